//! The tree's shape: splits, joins, removal of nodes, paths.

use super::Tree;
use super::WalkPlace;
use super::node::{MAX_PAGES, MAX_RUNS, Node, Place};
use super::slots::Run;
use crate::policy::NIL;
use smallvec::SmallVec;

impl Tree {
    /// Cuts a node before its page `at` (0 < at < len). The lower part keeps the id, the leases and the children; the
    /// new upper part is returned and shares the lower one's age.
    pub(crate) fn split(&mut self, id: u32, at: u32) -> u32 {
        self.unhang(id);
        let node = &mut self.nodes[id];
        debug_assert!(0 < at && at < node.len);
        let mut upper = Node::new(node.parent, node.root, node.depth, node.tenant);
        (upper.stamp, upper.written) = (node.stamp, node.written);
        upper.place = node.place;
        upper.leased_children = u32::from(node.is_leased());
        upper.pinned_children = u32::from(node.is_pinned());
        upper.hash = node.hash;
        (upper.rank, upper.born, upper.last) = (node.rank, node.born, node.last);
        (upper.shared, upper.uses) = (node.shared, node.uses);
        if node.prompt.0 <= node.depth + at {
            upper.prompt = std::mem::take(&mut node.prompt);
        }
        let mut left = at;
        let mut lower: SmallVec<[Run; 2]> = SmallVec::new();
        for run in node.runs.drain(..) {
            let take = run.len.min(left);
            if take > 0 {
                upper.runs.push(Run { start: run.start, len: take });
            }
            if take < run.len {
                lower.push(Run { start: run.start + take, len: run.len - take });
            }
            left -= take;
        }
        node.runs = lower;
        node.depth += at;
        node.len -= at;
        upper.len = at;
        let boundary = node.depth;
        let place = node.place;
        let cut = node.ckpts.iter().position(|&c| self.ckpts[c].end > boundary).unwrap_or(node.ckpts.len());
        upper.ckpts = node.ckpts.drain(..cut).collect();
        if node.swa > 0 {
            upper.runs.iter().for_each(|&r| {
                self.slots.each_swa(r, |page| {
                    upper.swa += 1;
                    upper.loose += u32::from(self.swa_meta.get(page as usize).refs == 0);
                });
            });
        }
        node.swa -= upper.swa;
        node.loose -= upper.loose;
        let runs = upper.runs.clone();
        let new = self.nodes.insert(upper);
        runs.iter().for_each(|&r| self.slots.set_node(r, new));
        self.add_child(new);
        self.nodes[id].parent = new;
        self.nodes[id].hash = self.first_page_hash(id);
        self.add_child(id);
        match place {
            Place::None => {}
            // The lower part's entry in the bucket stands; the upper one needs its own, after it.
            Place::Pending => {
                self.tickets += 1;
                let (stamp, ticket) = (self.nodes[new].stamp, self.nodes[id].ticket);
                self.nodes[new].ticket = self.tickets;
                let nodes = &mut self.fence.bucket(stamp).nodes;
                let at = nodes.iter().rposition(|&e| e == (id, ticket)).expect("a pending node has an entry");
                nodes.insert(at + 1, (new, self.tickets));
            }
            Place::Evictable => {
                let len = self.nodes[id].len;
                self.order.resize(id, len);
                if self.own_nodes.contains(id) {
                    self.own_nodes.insert_after(self.nodes[new].tenant, id, new);
                }
            }
            Place::Pinned => self.pinned.insert_after(id, new),
        }
        new
    }

    /// Joins `upper` into its only child `lower` when nothing tells them apart: both were let go just now.
    pub(super) fn try_join(&mut self, upper: u32, lower: u32) -> bool {
        let (u, l) = (&self.nodes[upper], &self.nodes[lower]);
        let fits = u.len + l.len <= MAX_PAGES && u.runs.len() + l.runs.len() <= MAX_RUNS;
        let alike = u.tenant == l.tenant && u.place == l.place && u.pins == 0 && u.stamp == l.stamp && u.shared == 0;
        if u.is_root() || u.children != 1 || !fits || !alike || u.is_leased() || l.is_leased() {
            return false;
        }
        if u.place == Place::Pending {
            // Its pages stay counted, under the lower node's entry.
            self.nodes[upper].place = Place::None;
        } else {
            self.take_from_order(upper);
        }
        self.unhang(lower);
        self.unhang(upper);
        let u = self.nodes.remove(upper);
        u.runs.iter().for_each(|&r| self.slots.set_node(r, lower));
        let l = &mut self.nodes[lower];
        let mut runs = u.runs;
        for &run in &l.runs {
            match runs.last_mut() {
                Some(r) if self.slots.joins(*r, run) => r.len += run.len,
                _ => runs.push(run),
            }
        }
        l.runs = runs;
        l.written = l.written.max(u.written);
        l.depth = u.depth;
        l.len += u.len;
        l.swa += u.swa;
        l.loose += u.loose;
        l.parent = u.parent;
        let mut ckpts = u.ckpts;
        ckpts.append(&mut l.ckpts);
        l.ckpts = ckpts;
        l.hash = u.hash;
        if l.prompt.0 == 0 {
            l.prompt = u.prompt;
        }
        let len = l.len;
        self.order.resize(lower, len);
        self.add_child(lower);
        true
    }

    /// Takes a leaf without pages out of the tree; its parents follow while they hold nothing.
    pub(super) fn remove_empty(&mut self, id: u32) {
        self.take_from_order(id);
        self.unhang(id);
        let node = self.nodes.remove(id);
        debug_assert!(node.len == 0 && node.is_leaf() && !node.is_leased() && !node.is_pinned());
        if self.nodes[node.parent].is_root() {
            self.prune_root(node.root);
            return;
        }
        self.update_dead(node.parent);
        self.update_leaf(node.parent);
        if !self.has_full {
            self.trim_tail(node.parent);
        }
    }

    /// The node whose end is boundary `end` of the path through `node`, split where it has to be. 0 is the root.
    pub(crate) fn node_ending_at(&mut self, node: u32, end: u32) -> u32 {
        let at = self.place_at(WalkPlace { node, offset: 0, depth: end }, end);
        if end < self.nodes[at.node].end() { self.split(at.node, at.offset) } else { at.node }
    }

    /// The place at boundary `end` on the way to a place at or below it.
    pub(crate) fn place_at(&self, at: WalkPlace, end: u32) -> WalkPlace {
        let mut node = at.node;
        while !self.nodes[node].is_root() && self.nodes[node].depth >= end {
            node = self.nodes[node].parent;
        }
        WalkPlace { node, offset: end - self.nodes[node].depth, depth: end }
    }

    /// The slot of page `page` (counted from the root) on the path that ends in `node`.
    pub(crate) fn slot_above(&self, node: u32, page: u32) -> u32 {
        let mut id = node;
        loop {
            let n = &self.nodes[id];
            if page >= n.depth {
                return n.slot(page - n.depth);
            }
            id = n.parent;
        }
    }

    /// Calls `f` with the slots of pages `[from, to)` on the path that ends in `node`, deepest first, until it says
    /// stop.
    pub(crate) fn path_back(&self, node: u32, from: u32, to: u32, mut f: impl FnMut(u32, u32) -> bool) {
        let mut id = node;
        let mut page = to;
        while page > from {
            let n = &self.nodes[id];
            if page <= n.depth {
                id = n.parent;
                continue;
            }
            let mut end = n.end();
            for run in n.runs.iter().rev() {
                let start = end - run.len;
                while page > start && page > from {
                    page -= 1;
                    if !f(page, run.start + (page - start)) {
                        return;
                    }
                }
                end = start;
            }
        }
    }

    /// Slots of pages `[from, to)` on the path that ends in `node`, in order.
    pub(crate) fn path_slots(&self, node: u32, from: u32, to: u32) -> SmallVec<[u32; 8]> {
        let mut out: SmallVec<[u32; 8]> = SmallVec::from_elem(NIL, (to - from) as usize);
        self.path_back(node, from, to, |page, slot| {
            out[(page - from) as usize] = slot;
            true
        });
        out
    }

    /// The slot before `slot` on its path, or [`NIL`] for the first page.
    pub(crate) fn slot_before(&self, slot: u32) -> u32 {
        let id = self.slots.node(slot);
        let n = &self.nodes[id];
        let mut prev = NIL;
        for run in &n.runs {
            if (run.start..run.start + run.len).contains(&slot) {
                if slot > run.start {
                    return slot - 1;
                }
                break;
            }
            prev = run.start + run.len - 1;
        }
        if prev != NIL { prev } else { self.nodes[n.parent].last_slot() }
    }

    /// Key before the one of `slot`.
    pub(crate) fn parent_key(&self, slot: u32) -> [u8; 32] {
        match self.slot_before(slot) {
            NIL => self.roots[self.nodes[self.slots.node(slot)].root].key,
            s => *self.slots.key(s),
        }
    }

    /// Appends the full page ids of pages `[0, to)` on the path that ends in `node`.
    pub(crate) fn path_full_ids(&self, node: u32, to: u32, out: &mut Vec<u32>) {
        let base = out.len();
        out.resize(base + to as usize, 0);
        let mut id = node;
        let mut end = to;
        while end > 0 {
            let n = &self.nodes[id];
            let mut page = n.depth;
            for &run in &n.runs {
                if page >= end {
                    break;
                }
                let len = run.len.min(end - page);
                let ids = self.slots.full_ids(Run { start: run.start, len });
                out[base + page as usize..][..len as usize].copy_from_slice(ids);
                page += run.len;
            }
            end = end.min(n.depth);
            id = n.parent;
        }
    }
}
