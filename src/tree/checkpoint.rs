//! Checkpoints: what keeps the SWA pages of a boundary's window, and so makes the boundary resumable.

use super::Tree;
use super::ghost::Why;
use crate::policy::{NIL, User, kind};
use smallvec::SmallVec;

/// Ancestors that SUPn looks at.
const SUP_LIMIT: usize = 64;
/// Nodes on the path that SUPn looks at.
const SUP_NODES: usize = 256;

/// A resumable boundary.
#[derive(Debug, Clone)]
pub struct Checkpoint {
    /// Slot whose end is the boundary.
    pub slot: u32,
    /// Boundary, in pages.
    pub end: u32,
    /// Set of [`kind`]s.
    pub kinds: u8,
    /// A match ended on it.
    pub matched: bool,
    /// Turn number of the request that made it.
    pub turn: u32,
    /// Pages before the boundary it keeps: its window, and one more for a prompt that is an exact multiple of the page.
    pub pages: u32,
    /// Soft pins.
    pub pins: u32,
    /// Who made it.
    pub tenant: u32,
    /// Order of the last use, and of the first one.
    pub rank: u64,
    /// See `rank`.
    pub born: u64,
    /// Time of the last use.
    pub used: u64,
    /// Matches that ended on it.
    pub hits: u16,
    /// Its class for the policy.
    pub class: u16,
}

impl Checkpoint {
    /// At boundary `end`, the end of `slot`, with the window of `pages` pages; the tree fills in the rest.
    pub fn new(slot: u32, end: u32, kinds: u8, pages: u32) -> Self {
        Checkpoint {
            slot,
            end,
            kinds,
            matched: false,
            turn: 1,
            pages,
            pins: 0,
            tenant: 0,
            rank: 0,
            born: 0,
            used: 0,
            hits: 0,
            class: 0,
        }
    }
}

impl Tree {
    /// SWA pages of the `pages` pages before boundary `end` on the path through `node`, deepest first; `None` at the
    /// first hole.
    pub(crate) fn window_pages(&self, node: u32, end: u32, pages: u32) -> Option<SmallVec<[u32; 8]>> {
        let mut out = SmallVec::new();
        let mut whole = true;
        self.path_back(node, end - pages, end, |_, slot| {
            let page = self.slots.swa(slot);
            whole = page != 0;
            out.push(page);
            whole
        });
        whole.then_some(out)
    }

    /// Makes a checkpoint at `slot` or adds to the one that is there. All `pages` pages have SWA KV.
    pub(crate) fn add_checkpoint(&mut self, mut made: Checkpoint, user: &User) -> u32 {
        let Checkpoint { slot, end, kinds, turn, pages, .. } = made;
        let class = Self::class_of(kinds, user);
        let node = self.slots.node(slot);
        let old = self.slots.ckpt(slot);
        let (id, kept) = if old != NIL {
            let c = &mut self.ckpts[old];
            c.kinds |= kinds;
            c.turn = c.turn.max(turn);
            let kept = c.pages;
            c.pages = kept.max(pages);
            if c.hits == 0 && kinds & !(kind::BRANCH | kind::STRIDE) != 0 {
                c.class = class;
            }
            self.touch_ckpt(old);
            (old, kept)
        } else {
            self.ranks += 1;
            (made.rank, made.born, made.used, made.class) = (self.ranks, self.ranks, self.history.now(self.now), class);
            if !crate::policy::class::is_fresh_end(class) {
                self.history.entered(class);
            }
            let id = self.ckpts.insert(made);
            self.slots.set_ckpt(slot, id);
            let at = self.nodes[node].ckpts.partition_point(|&c| self.ckpts[c].end < end);
            self.nodes[node].ckpts.insert(at, id);
            self.update_dead(node);
            (id, 0)
        };
        if pages > kept {
            let more = self.window_pages(node, end - kept, pages - kept).expect("the caller made the pages resident");
            for page in more {
                let meta = self.swa_meta.get_mut(page as usize);
                meta.refs += 1;
                meta.hint = id;
                if meta.refs == 1 {
                    let node = self.slots.node(meta.slot);
                    self.nodes[node].loose -= 1;
                }
            }
        }
        if old == NIL {
            // Weighed with its pages counted.
            self.order_ckpt(id);
        }
        id
    }

    /// Drops a checkpoint; SWA pages that nothing else needs are freed.
    pub(crate) fn drop_checkpoint(&mut self, id: u32) {
        self.disorder_ckpt(id);
        self.ckpt_pinned.remove(id);
        let c = self.ckpts.remove(id);
        if c.pins > 0 {
            self.forget_pinned_ckpt(id);
        }
        let node = self.slots.node(c.slot);
        self.ckpt_ghosts.add(self.slots.key(c.slot), &self.act, c.kinds, false);
        self.slots.set_ckpt(c.slot, NIL);
        self.nodes[node].ckpts.retain(|&mut x| x != id);
        let pages = self.window_pages(node, c.end, c.pages).expect("a checkpoint's pages are resident");
        self.update_dead(node);
        self.reweigh_below(node, c.end);
        for page in pages {
            self.unref_swa(page);
        }
    }

    /// Takes kinds off a checkpoint; without any left it goes.
    pub(crate) fn remove_kind(&mut self, slot: u32, kinds: u8) {
        let id = self.slots.ckpt(slot);
        if id == NIL {
            return;
        }
        let c = &mut self.ckpts[id];
        let all = c.kinds;
        c.kinds &= !kinds;
        if c.kinds == 0 {
            c.kinds = all;
            self.act.why = Why::Resumed;
            self.drop_checkpoint(id);
        }
    }

    /// A match ended at boundary `end` on the path through `node`, of a prompt that ends at `prompt_end`: refreshes the
    /// checkpoint there, or those whose pages it read. Returns the turn of the checkpoint at the boundary, else 0.
    pub(crate) fn refresh(&mut self, node: u32, end: u32, prompt_end: u32) -> u32 {
        if self.need == 0 || end == 0 {
            return 0;
        }
        let id = self.slots.ckpt(self.slot_above(node, end - 1));
        if id != NIL {
            self.matched_ckpt(id, prompt_end);
            return self.ckpts[id].turn;
        }
        for page in self.window_pages(node, end, self.need_at(end)).unwrap_or_default() {
            let meta = *self.swa_meta.get(page as usize);
            if meta.refs == 0 {
                continue;
            }
            let near = self.ckpts.get(meta.hint).is_some_and(|c| {
                c.end > end
                    && c.end - c.pages < end
                    && self.nodes[self.slots.node(c.slot)].root == self.nodes[node].root
            });
            if near {
                self.touch_ckpt(meta.hint);
            }
        }
        0
    }

    /// SUPn after an END was made at `end` on the path through `node`: of the ends above, those beyond the newest `n`
    /// go once they were matched, unless two edges leave exactly there.
    pub(crate) fn supersede(&mut self, node: u32, end: u32, n: u32) {
        let ends = kind::PROMPT_END | kind::SEQ_END;
        let mut kept = 0;
        let mut drop: SmallVec<[u32; 8]> = SmallVec::new();
        let mut seen = 0;
        let mut id = node;
        'path: for _ in 0..SUP_NODES {
            let nd = &self.nodes[id];
            for &c in nd.ckpts.iter().rev() {
                let ck = &self.ckpts[c];
                if ck.end > end || ck.kinds & ends == 0 {
                    continue;
                }
                seen += 1;
                if seen > SUP_LIMIT {
                    break 'path;
                }
                if kept < n {
                    kept += 1;
                } else if ck.matched && ck.pins == 0 && !(ck.end == nd.end() && nd.children >= 2) {
                    drop.push(c);
                }
            }
            if nd.is_root() {
                break;
            }
            id = nd.parent;
        }
        for c in drop {
            let ck = &mut self.ckpts[c];
            let all = ck.kinds;
            ck.kinds &= !ends;
            if ck.kinds == 0 {
                ck.kinds = all;
                self.act.why = Why::Superseded;
                self.drop_checkpoint(c);
            }
        }
    }

    /// The checkpoint to evict in place of `id`: on an unbranched stretch the deepest goes last.
    pub(super) fn instead_of(&self, id: u32) -> u32 {
        let c = &self.ckpts[id];
        let mut at = self.slots.node(c.slot);
        let node = &self.nodes[at];
        let i = node.ckpts.partition_point(|&x| self.ckpts[x].end < c.end);
        let deepest = i + 1 == node.ckpts.len();
        if !deepest || self.has_deeper(at) {
            return id;
        }
        if i > 0 {
            return node.ckpts[i - 1];
        }
        // Above, while the stretch has no other branch; a few nodes are enough, long stretches are joined.
        for _ in 0..8 {
            let parent = self.nodes[at].parent;
            let p = &self.nodes[parent];
            if p.is_root() || p.children != 1 {
                break;
            }
            if let Some(&last) = p.ckpts.last() {
                return last;
            }
            at = parent;
        }
        id
    }

    fn has_deeper(&self, node: u32) -> bool {
        let mut at = node;
        for _ in 0..8 {
            if self.nodes[at].children != 1 {
                return false;
            }
            at = self.nodes[at].first_child;
            if !self.nodes[at].ckpts.is_empty() {
                return true;
            }
        }
        false
    }
}
