//! What nodes and checkpoints remember of their users, what policies are told of it, and what is learnt when a prompt
//! comes.

use super::Tree;
use super::checkpoint::Checkpoint;
use super::walk::Query;
use crate::policy::{Arrival, End, NIL, Standing, User, class, kind};

/// Nodes looked at for the turn above a place.
const TURN_NODES: usize = 16;
/// Checkpoints looked at for the one that serves when another goes, and nodes.
const SPARE_LIMIT: usize = 32;

impl Tree {
    /// What the policy is told of a node.
    pub(super) fn standing(&self, id: u32) -> Standing {
        let n = &self.nodes[id];
        let class = if n.shared > 0 { class::shared(n.shared) } else { n.last.class };
        Standing { rank: n.rank, born: n.born, used: n.last.time, class, uses: n.uses, pages: n.len, worth: 1.0 }
    }

    /// What the policy is told of a checkpoint.
    pub(super) fn ckpt_standing(&self, id: u32) -> Standing {
        let c = &self.ckpts[id];
        let worth = if self.weighs { self.worth(id) } else { 1.0 };
        let uses = c.hits.saturating_add(1).min(u16::from(u8::MAX)) as u8;
        Standing { rank: c.rank, born: c.born, used: c.used, class: c.class, uses, pages: c.pages, worth }
    }

    /// Pages that only this checkpoint makes resumable, for each page that would be free without it. What a fresh end
    /// is worth does not depend on checkpoints that are kept in case it goes: they would go before it.
    pub(super) fn worth(&self, id: u32) -> f32 {
        let c = &self.ckpts[id];
        let below = self.serves_below(c, class::is_fresh_end(c.class));
        let window = self.window_pages(self.slots.node(c.slot), c.end, c.pages).unwrap_or_default();
        let freed = window.iter().filter(|&&p| self.swa_meta.get(p as usize).refs == 1).count();
        (c.end - below) as f32 / (freed as f32).max(0.5)
    }

    /// The boundary that a match falls back to without checkpoint `c`.
    fn serves_below(&self, c: &Checkpoint, past_spares: bool) -> u32 {
        let mut at = self.slots.node(c.slot);
        let mut looks = 0;
        loop {
            let node = &self.nodes[at];
            for &other in node.ckpts.iter().rev() {
                let other = &self.ckpts[other];
                if other.end >= c.end {
                    continue;
                }
                looks += 1;
                if looks > SPARE_LIMIT || !(past_spares && class::is_spare(other.class)) {
                    return other.end;
                }
            }
            looks += 1;
            if node.is_root() || looks > SPARE_LIMIT {
                return if node.is_root() { 0 } else { node.depth };
            }
            at = node.parent;
        }
    }

    /// What is known of a request whose full-KV match ends with `node`, at boundary `end`; the node was split there.
    pub(crate) fn arrival(&mut self, node: u32, end: u32) -> Arrival {
        if !self.history.learns() || end == 0 {
            return Arrival::default();
        }
        let age = self.history.now(self.now).saturating_sub(self.nodes[node].last.time);
        let last = self.nodes[node].last;
        if last.end > 0 && end >= last.end {
            return Arrival {
                reused: Some((last.class, age)),
                from: Some(last.end),
                parts: false,
                turn: last.turn,
                known: end,
            };
        }
        let turn = self.turn_above(node, end);
        if last.end == 0 {
            // Its first user has not finished.
            return Arrival { turn, known: end, ..Arrival::default() };
        }
        let class = class::shared(self.nodes[node].shared.saturating_add(1));
        Arrival { reused: Some((class, age)), parts: true, turn, known: end, ..Arrival::default() }
    }

    /// Turn of the deepest prompt that ended at or above boundary `end` of the path through `node`; 0 without.
    fn turn_above(&self, node: u32, end: u32) -> u16 {
        let mut at = node;
        for _ in 0..TURN_NODES {
            let n = &self.nodes[at];
            if n.prompt.1 > 0 && n.prompt.0 <= end {
                return n.prompt.1;
            }
            if n.is_root() {
                break;
            }
            at = n.parent;
        }
        0
    }

    /// A request computes `pages` pages again that had been evicted, from the end of `node` on. Returns `pages` when that
    /// was shortly before, else 0: policies go by what a cache twice as large would still have, however much longer the
    /// ghosts remember.
    pub(crate) fn came_back(&mut self, node: u32, query: Query<'_>, from: u32, pages: u32) -> u32 {
        if pages == 0 || query.tokens.len() < (from as usize + 1) * self.page as usize {
            return 0;
        }
        let parent = match self.nodes[node].last_slot() {
            NIL => self.roots[self.nodes[node].root].key,
            slot => *self.slots.key(slot),
        };
        let key = query.key(&parent, u64::from(from), self.page);
        let recent = self.full.total().saturating_mul(2);
        if self.ghosts.dropped_ago(&key).is_none_or(|ago| ago > recent) {
            return 0;
        }
        if let Some(mark) = self.ghosts.mark(&key) {
            self.order.came_back(mark, pages);
        }
        pages
    }

    /// New nodes that end at or above `node` hold pages that came back, up to boundary `back`.
    pub(crate) fn mark_back(&mut self, node: u32, back: u32) {
        let mut at = node;
        loop {
            let n = &mut self.nodes[at];
            if n.is_root() || n.born > 0 || n.uses > 0 {
                return;
            }
            if n.depth < back {
                n.uses = 1;
            }
            at = n.parent;
        }
    }

    /// The prompt of a request is in the tree up to its end, boundary `end` on the path through `node`.
    pub(crate) fn settle_user(&mut self, a: &Arrival, found: Option<(u32, End)>, node: u32, end: u32) -> User {
        if end == 0 || !self.history.learns() {
            return self.history.user(a, end, self.page);
        }
        let found = found.filter(|&(at, _)| at > a.known);
        let mut a = *a;
        if a.parts && found.is_none() && !self.part(node, a.known, a.known < end) {
            a.reused = None;
        }
        // What the session went on from is no end any more.
        let old = found.map(|f| f.0).or(a.from);
        if let Some(at) = old.filter(|&at| 0 < at && at < end) {
            let key = *self.slots.key(self.slot_above(node, at - 1));
            self.history.forget(&key);
        }
        let key = *self.slots.key(self.slot_above(node, end - 1));
        self.history.settle(&a, found, end, &key, self.page)
    }

    /// Prompts part at boundary `at` of the path through `node`; the newer one goes on there, or ends. False when there is
    /// nothing left of the other one.
    fn part(&mut self, node: u32, at: u32, goes_on: bool) -> bool {
        let slot = self.slot_above(node, at - 1);
        let node = &mut self.nodes[self.slots.node(slot)];
        let parts = node.last_slot() == slot && node.children > u32::from(goes_on);
        if parts {
            node.shared = node.shared.saturating_add(1);
        }
        parts
    }

    /// Class of a new checkpoint.
    pub(super) fn class_of(kinds: u8, user: &User) -> u16 {
        if kinds & (kind::PROMPT_END | kind::SEQ_END | kind::PARK) != 0 {
            user.class
        } else if kinds & kind::BRANCH != 0 {
            class::BRANCH
        } else {
            class::STRIDE
        }
    }

    /// A checkpoint enters another class.
    pub(super) fn reclass(&mut self, id: u32, class: u16) {
        if self.ckpts[id].class == class {
            return;
        }
        self.ckpts[id].class = class;
        if !class::is_fresh_end(class) {
            self.history.entered(class);
        }
        if self.ckpt_order.ids().get(id).is_some() {
            let at = self.ckpt_standing(id);
            self.ckpt_order.insert(id, at);
        }
    }

    /// A match ended on a checkpoint, of a prompt that ends at boundary `prompt_end`.
    pub(super) fn matched_ckpt(&mut self, id: u32, prompt_end: u32) {
        let now = self.history.now(self.now);
        let c = &mut self.ckpts[id];
        let (class, age) = (c.class, now.saturating_sub(c.used));
        c.matched = true;
        c.hits = c.hits.saturating_add(1);
        let (hits, end) = (c.hits, c.end);
        if class::is_fresh_end(class) {
            if hits == 1 && end < prompt_end {
                self.pass_again(id);
                self.reclass(id, class::PASSED);
            } else if hits > 1 {
                self.reclass(id, class::matched(hits));
            }
        } else {
            self.history.used(class, age);
            self.history.entered(class::matched(hits.max(2)));
            self.ckpts[id].class = class::matched(hits.max(2));
        }
        self.touch_ckpt(id);
    }

    /// The session's end before this one is two turns back now.
    fn pass_again(&mut self, id: u32) {
        let c = &self.ckpts[id];
        let (end, mut at) = (c.end, self.slots.node(c.slot));
        for _ in 0..SPARE_LIMIT {
            let node = &self.nodes[at];
            if let Some(&above) = node.ckpts.iter().rev().find(|&&x| self.ckpts[x].end < end) {
                if self.ckpts[above].class == class::PASSED {
                    self.reclass(above, class::PASSED_AGAIN);
                }
                return;
            }
            if node.is_root() {
                return;
            }
            at = node.parent;
        }
    }

    /// A checkpoint went: the next one below it on its stretch unlocks more than before.
    pub(super) fn reweigh_below(&mut self, node: u32, end: u32) {
        if !self.weighs {
            return;
        }
        let mut at = node;
        for _ in 0..8 {
            let n = &self.nodes[at];
            if let Some(&id) = n.ckpts.iter().find(|&&c| self.ckpts[c].end > end) {
                if self.ckpt_order.ids().get(id).is_some() {
                    let worth = self.worth(id);
                    self.ckpt_order.reweigh(id, worth);
                }
                return;
            }
            if n.children != 1 || n.first_child == NIL {
                return;
            }
            at = n.first_child;
        }
    }
}
