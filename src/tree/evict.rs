//! Eviction, per group: O(1) per page and independent of how much is cached.

use super::Tree;
use super::ghost::Why;
use super::node::Place;
use crate::policy::NIL;
use smallvec::SmallVec;

/// Detached roots and children looked at per eviction.
const DETACHED_LIMIT: usize = 16;
/// Checkpoints that are weighed again for one choice.
const REWEIGHED: usize = 8;

impl Tree {
    /// Frees up to `want` full pages: detached namespaces first, then ends that no checkpoint makes resumable, then by
    /// the policy, soft-pinned ones last. Returns how many became free.
    pub(crate) fn evict_full(&mut self, want: u32, why: Why) -> u32 {
        self.act.why = why;
        let mut got = 0;
        while got < want {
            let Some(id) = self.next_victim() else { break };
            if self.nodes[id].place == Place::Pinned {
                self.unpin_node(id);
                continue;
            }
            let before = self.full.free();
            self.evict_tail(id, want - got);
            // What was still to be copied, or is in a chunk that drains, does not become free.
            got += self.full.free() - before;
        }
        got
    }

    fn next_victim(&mut self) -> Option<u32> {
        (!self.detached.is_empty())
            .then(|| self.detached_leaf())
            .flatten()
            .or_else(|| self.dead.oldest())
            .or_else(|| self.order.victim(self.history.ask(self.now, self.full.total())))
            .or_else(|| self.pinned_leaf())
    }

    /// The oldest pinned leaf. A node that was pinned before something below it stands before it in the order; those
    /// go to the young end.
    fn pinned_leaf(&mut self) -> Option<u32> {
        for _ in 0..self.pinned.len() {
            let id = self.pinned.oldest()?;
            if self.nodes[id].is_leaf() {
                return Some(id);
            }
            self.pinned.remove(id);
            self.pinned.insert(id);
        }
        None
    }

    /// An evictable leaf below a detached root.
    fn detached_leaf(&self) -> Option<u32> {
        self.detached.iter().take(DETACHED_LIMIT).find_map(|&root| {
            let mut at = self.roots[root].node;
            loop {
                let node = &self.nodes[at];
                if node.is_leaf() {
                    return (node.place == Place::Evictable).then_some(at);
                }
                let free = |c: &u32| matches!(self.nodes[*c].place, Place::Evictable) || self.nodes[*c].is_leased();
                at = self.children(at).take(DETACHED_LIMIT).find(free)?;
            }
        })
    }

    /// Takes up to `want` pages from the end of an evictable leaf.
    pub(super) fn evict_tail(&mut self, id: u32, want: u32) -> u32 {
        debug_assert!(self.nodes[id].is_leaf() && self.nodes[id].place == Place::Evictable);
        let mut got = 0;
        // A stretch without checkpoint at its end goes only down to the last checkpoint while it is taken as dead.
        let was_dead = self.dead.contains(id);
        let mark = self.order.mark(id);
        while got < want {
            let slot = self.nodes[id].last_slot();
            let ckpt = self.slots.ckpt(slot);
            if ckpt != NIL {
                if was_dead && got > 0 {
                    break;
                }
                self.weigh_leaf(id, ckpt);
                self.counters.checkpoints += 1;
                self.drop_checkpoint(ckpt);
            }
            self.ghosts.add(self.slots.key(slot), &self.act, 0, mark);
            self.remove_tail(id);
            self.counters.full += 1;
            got += 1;
            if self.nodes[id].len == 0 {
                self.order.evicted(id, got);
                self.remove_empty(id);
                return got;
            }
        }
        self.order.evicted(id, got);
        self.update_dead(id);
        got
    }

    /// Takes the last slot off a leaf; its SWA KV, if any, is no checkpoint's and no sequence's.
    fn remove_tail(&mut self, id: u32) {
        let slot = self.nodes[id].last_slot();
        let swa = self.slots.swa(slot);
        debug_assert!(swa == 0, "no checkpoint and no lease keeps the SWA page of a free tail");
        self.touch_slot(slot);
        let full = self.slots.full(slot);
        let tenant = self.nodes[id].tenant;
        if full != 0 {
            let page = self.full.take_back(full);
            self.free_full(page);
            self.slots.set_full(slot, 0);
            self.count_tenant(tenant, -1, 0);
        }
        let node = &mut self.nodes[id];
        node.len -= 1;
        let last = node.runs.last_mut().expect("a node with pages has runs");
        last.len -= 1;
        if last.len == 0 {
            node.runs.pop();
        }
        self.release_slot(slot);
    }

    /// Without a full group pages live in the tree only down to the last one with SWA KV or lease. Returns true when
    /// the node is gone.
    pub(super) fn trim_tail(&mut self, id: u32) -> bool {
        let node = &self.nodes[id];
        if self.has_full || node.is_root() || node.is_leased() || node.is_pinned() || !node.is_leaf() {
            return false;
        }
        while self.nodes[id].len > 0 && self.slots.swa(self.nodes[id].last_slot()) == 0 {
            self.remove_tail(id);
        }
        let left = self.nodes[id].len;
        if left == 0 {
            self.remove_empty(id);
            return true;
        }
        self.order.resize(id, left);
        false
    }

    /// Drops checkpoints by the policy until `want` SWA pages left the tree or nothing is left to drop. Checkpoints
    /// whose pages are all leased would free nothing and are passed over.
    pub(crate) fn evict_swa(&mut self, want: u32, why: Why) -> u32 {
        self.act.why = why;
        let before = self.swa.cached();
        let gone = |t: &Tree| before - t.swa.cached();
        if !self.detached.is_empty() && self.has_full {
            while gone(self) < want {
                match self.detached_leaf() {
                    Some(id) if self.below_is_rich(id) => self.evict_tail(id, u32::MAX),
                    _ => break,
                };
            }
        }
        // Those whose pages are all leased are in use: they step aside for this call.
        let mut aside: SmallVec<[u32; 8]> = SmallVec::new();
        while gone(self) < want {
            let Some(id) = self.next_checkpoint() else { break };
            if self.frees_nothing(id) {
                self.disorder_ckpt(id);
                aside.push(id);
                continue;
            }
            self.weigh_ckpt(id);
            let other = if self.weighs { id } else { self.instead_of(id) };
            let id = if self.ckpts[other].pins > 0 || self.frees_nothing(other) { id } else { other };
            self.counters.checkpoints += 1;
            self.drop_checkpoint(id);
        }
        for id in aside {
            self.touch_ckpt(id);
            self.order_ckpt(id);
        }
        let mut passed = 0;
        while gone(self) < want && passed < self.ckpt_pinned.len() {
            let Some(id) = self.ckpt_pinned.oldest() else { break };
            if self.frees_nothing(id) {
                passed += 1;
                self.touch_ckpt(id);
                continue;
            }
            let other = self.instead_of(id);
            let id = if self.frees_nothing(other) { id } else { other };
            self.counters.checkpoints += 1;
            self.drop_checkpoint(id);
        }
        gone(self)
    }

    /// The checkpoint that the policy lets go. What it unlocks may have changed since it took its place.
    fn next_checkpoint(&mut self) -> Option<u32> {
        for _ in 0..REWEIGHED {
            let id = self.ckpt_order.victim(self.history.ask(self.now, self.swa.total()))?;
            if !self.weighs {
                return Some(id);
            }
            let worth = self.worth(id);
            if !self.ckpt_order.reweigh(id, worth) {
                return Some(id);
            }
        }
        self.ckpt_order.victim(self.history.ask(self.now, self.swa.total()))
    }

    fn below_is_rich(&self, id: u32) -> bool {
        self.nodes[id].swa > 0 || !self.nodes[id].ckpts.is_empty()
    }

    pub(super) fn frees_nothing(&self, id: u32) -> bool {
        let c = &self.ckpts[id];
        let node = self.slots.node(c.slot);
        self.window_pages(node, c.end, c.pages)
            .is_some_and(|w| w.iter().all(|&p| self.swa_meta.get(p as usize).leases > 0))
    }
}
