//! The order of eviction: where a node stands in it, and when it moves.

use super::Tree;
use super::node::Place;

impl Tree {
    pub(super) fn take_from_order(&mut self, id: u32) {
        let node = &mut self.nodes[id];
        match node.place {
            Place::None => return,
            Place::Pending => self.pending_full -= u64::from(node.len) * u64::from(self.has_full),
            Place::Evictable => self.disorder_node(id),
            Place::Pinned => self.pinned.remove(id),
        }
        self.nodes[id].place = Place::None;
        self.dead.remove(id);
    }

    /// Puts an unleased node at the young end; with a running step it waits first.
    pub(super) fn put_in_order(&mut self, id: u32) {
        let node = &mut self.nodes[id];
        debug_assert!(node.place == Place::None && !node.is_leased());
        if node.is_root() {
            return;
        }
        if !self.fence.is_retired(node.stamp) {
            node.place = Place::Pending;
            self.pending_full += u64::from(node.len) * u64::from(self.has_full);
            self.tickets += 1;
            node.ticket = self.tickets;
            self.fence.bucket(node.stamp).nodes.push((id, self.tickets));
            return;
        }
        if node.is_pinned() {
            node.place = Place::Pinned;
            self.pinned.insert(id);
        } else {
            node.place = Place::Evictable;
            self.ranks += 1;
            node.rank = self.ranks;
            if node.born == 0 {
                node.born = node.rank;
            }
            self.order_node(id);
        }
        self.update_dead(id);
    }

    /// Enters a node in the policy's order, when it is a leaf that may go.
    pub(super) fn update_leaf(&mut self, id: u32) {
        let node = &self.nodes[id];
        if node.place == Place::Evictable && node.is_leaf() {
            let at = self.standing(id);
            self.order.insert(id, at);
        }
    }

    /// A leaf whose last pages no checkpoint can make resumable goes before anything else.
    pub(super) fn update_dead(&mut self, id: u32) {
        let node = &self.nodes[id];
        let dead = self.need > 0
            && self.has_full
            && node.place == Place::Evictable
            && node.is_leaf()
            && node.ckpts.last().is_none_or(|&c| self.ckpts[c].end < node.end());
        if !dead {
            self.dead.remove(id);
        } else if !self.dead.contains(id) {
            self.dead.insert(id);
        }
    }

    /// A step was retired: nodes that waited for it can be evicted.
    pub(crate) fn step_retired(&mut self, nodes: Vec<(u32, u64)>, swa: Vec<u32>) {
        for (id, ticket) in nodes {
            let Some(node) = self.nodes.get(id) else { continue };
            if node.place == Place::Pending && node.ticket == ticket {
                self.take_from_order(id);
                self.put_in_order(id);
            }
        }
        for page in swa {
            let meta = self.swa_meta.get_mut(page as usize);
            if meta.waiting && self.fence.is_retired(meta.stamp) {
                meta.waiting = false;
                self.swa_waiting -= 1;
            }
        }
    }
}
