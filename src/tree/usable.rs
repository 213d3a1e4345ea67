//! q: the largest window-safe boundary at or above a place, found by going back over stretches of SWA KV.
//!
//! In a node where every SWA page belongs to a checkpoint's window the stretches are those windows (and whatever the
//! windows of deeper nodes keep at the node's end), so that the cost knows the checkpoints passed and not the pages.
//! Elsewhere, where open sequences hold loose pages, a bitmap is read back 64 pages at a time.

use super::Tree;
use super::node::Node;
use super::walk::Place;

/// The search's state: pages `[point, candidate)` have SWA KV, nothing above `candidate` can be the answer.
struct Search {
    candidate: u32,
    point: u32,
}

impl Search {
    /// Takes the stretch `[from, to)`, deepest first; overlaps with earlier ones are no trouble.
    fn take(&mut self, from: u32, to: u32) {
        let to = to.min(self.point);
        if from >= to {
            return;
        }
        if to < self.point {
            self.candidate = to;
        }
        self.point = from;
    }

    /// Nothing more down to `depth`.
    fn gap(&mut self, depth: u32) {
        if self.point > depth {
            (self.candidate, self.point) = (depth, depth);
        }
    }
}

impl Tree {
    /// The largest boundary (in pages) at most `limit` and at most the place's depth such that every page of its window
    /// has SWA KV.
    pub(crate) fn usable(&self, at: Place, limit: u32) -> u32 {
        let top = at.depth.min(limit);
        if self.need == 0 || top == 0 {
            return top;
        }
        let mut search = Search { candidate: top, point: top };
        let mut id = at.node;
        loop {
            let node = &self.nodes[id];
            if node.is_root() {
                // A window is never longer than its prefix.
                return search.candidate;
            }
            if node.depth < search.point && self.search_node(node, &mut search) {
                return search.candidate;
            }
            id = node.parent;
        }
    }

    fn found(&self, search: &Search) -> bool {
        search.candidate - search.point >= self.need_at(search.candidate)
    }

    fn search_node(&self, node: &Node, search: &mut Search) -> bool {
        if node.swa > 0 {
            let low = if node.loose > 0 { node.depth } else { node.depth.max(node.end().saturating_sub(self.need)) };
            if low < search.point && self.search_bits(node, low, search) {
                return true;
            }
            if node.loose == 0 {
                let after = node.ckpts.partition_point(|&c| self.ckpts[c].end <= search.point);
                // One further: its window may reach below the point.
                let next = node.ckpts.get(after).into_iter();
                for &c in next.chain(node.ckpts[..after].iter().rev()) {
                    let c = &self.ckpts[c];
                    search.take((c.end - c.pages).max(node.depth), c.end);
                    if self.found(search) {
                        return true;
                    }
                }
            }
        }
        search.gap(node.depth);
        false
    }

    /// Stretches of the node's pages from the point down to `low`, from the bitmap.
    fn search_bits(&self, node: &Node, low: u32, search: &mut Search) -> bool {
        let mut end = node.end();
        for run in node.runs.iter().rev() {
            let start = end - run.len;
            let mut page = end.min(search.point);
            while page > start.max(low) {
                let (bits, place) = self.slots.swa_bits(run.start + (page - 1 - start));
                let there = (place + 1).min(page - start.max(low));
                let bits = bits << (63 - place);
                let absent = bits.leading_zeros().min(there);
                page -= absent;
                if absent == there {
                    continue;
                }
                let present = (!(bits << absent)).leading_zeros().min(there - absent);
                search.take(page - present, page);
                page -= present;
                if self.found(search) {
                    return true;
                }
            }
            if start <= low {
                break;
            }
            end = start;
        }
        false
    }
}
