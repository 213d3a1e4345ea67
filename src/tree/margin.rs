//! What a chunk more or less would be worth to each pool, in tokens, measured at every lookup.
//!
//! **More.** What a pool dropped among its last chunk's worth of pages would still be there with one chunk more, what it
//! dropped before that with two, and so on up to 16. A
//! checkpoint that went for want of SWA pages leaves a mark in its slot, and when that page is dropped too, in a table
//! of ends; a checkpoint that went with its full page is in that table as well. A lookup that passes such an end would
//! have started from there.
//!
//! **One less.** Everything in an order of eviction has the time at which it entered. The entry time of the newest
//! victim is the edge of the order, and the way that the edge went during the last chunk's worth of drops is about the
//! way it will go during the next: what lies within it would be gone with a chunk less. A hit on that is at risk. This
//! needs no list to be walked; where victims come from elsewhere (ends that nothing makes resumable, detached
//! namespaces), the edge stands still and nothing is at risk, which is right.

use super::Tree;
use super::walk::Place as WalkPlace;
use crate::policy::{NIL, REACHES, Worth};
use crate::pool::big::BigArray;

/// Marks of the edge in a chunk's worth of drops.
const MARKS: usize = 8;
/// Ways of a set of the table of ends.
const WAYS: usize = 4;
/// Pages looked at for a lost checkpoint between q and p.
const LOOKS: u32 = 4096;

/// The old end of one pool's order.
#[derive(Debug)]
pub struct Edge {
    per: u64,
    /// Pages dropped by the policy so far.
    clock: u64,
    /// Pages received with chunks so far: what was dropped before is that much further away.
    received: u64,
    ticks: u64,
    edge: u64,
    /// The clock and the edge, noted about every eighth of a chunk.
    marks: [(u64, u64); MARKS],
    seen: usize,
}

impl Edge {
    fn new(per: u32) -> Self {
        Edge { per: u64::from(per), clock: 0, received: 0, ticks: 0, edge: 0, marks: [(0, 0); MARKS], seen: 0 }
    }

    /// Something enters the order: its time.
    pub fn enter(&mut self) -> u64 {
        self.ticks += 1;
        self.ticks
    }

    /// Pages were dropped for want of room; `entered` of the victim if it was the oldest in the order.
    pub fn dropped(&mut self, pages: u64, entered: Option<u64>) {
        self.edge = self.edge.max(entered.unwrap_or(0));
        self.clock += pages;
        let last = self.marks[MARKS - 1].0;
        if self.edge > 0 && (self.seen == 0 || self.clock >= last + (self.per / MARKS as u64).max(1)) {
            self.marks.rotate_left(1);
            self.marks[MARKS - 1] = (self.clock, self.edge);
            self.seen = (self.seen + 1).min(MARKS);
        }
    }

    /// True when what entered then would be gone with a chunk less.
    pub fn at_risk(&self, entered: u64) -> bool {
        if self.seen == 0 {
            return false;
        }
        let (clock, edge) = self.marks[MARKS - self.seen];
        let way = (self.edge - edge) * self.per / (self.clock - clock).max(self.per / MARKS as u64).max(1);
        entered <= self.edge + way
    }

    /// The time of drops, as the table and the slots remember it.
    fn now(&self) -> u32 {
        (self.clock + self.received) as u32
    }

    /// What was dropped then would still be there with `1 << reach` chunks more; `None` with none of the reaches.
    fn reach(&self, then: u32) -> Option<usize> {
        let chunks = u64::from(self.now().wrapping_sub(then)).div_ceil(self.per).max(1);
        Some(chunks.next_power_of_two().trailing_zeros() as usize).filter(|&reach| reach < REACHES)
    }
}

/// Why an end is no longer resumable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lost {
    /// Its full page was dropped, and the checkpoint with it.
    WithFull,
    /// Its checkpoint was dropped for want of SWA pages, and its full page later.
    WithSwa,
}

/// See the module's text.
#[derive(Debug)]
pub struct Margin {
    /// The full pool's order.
    pub full: Edge,
    /// The SWA pool's order.
    pub swa: Edge,
    /// Sets of 4 tags and 4 times; the low bit of a time tells why.
    ends: BigArray,
    mask: usize,
    salt: u64,
    /// First page of the path just leased that is at risk.
    shallowest: u32,
}

impl Margin {
    /// For chunks of so many pages.
    pub fn new(full_pages: u32, swa_pages: u32, salt: u64) -> Self {
        // Several pages go with each end, so that this is enough for the longest reach.
        let sets = (4 * (full_pages + swa_pages) as usize).div_ceil(WAYS).next_power_of_two();
        let mut ends = BigArray::new(sets * 2 * WAYS);
        ends.fill(0);
        Margin {
            full: Edge::new(full_pages),
            swa: Edge::new(swa_pages),
            ends,
            mask: sets - 1,
            salt,
            shallowest: u32::MAX,
        }
    }

    fn place(&self, key: &[u8; 32]) -> (usize, u32) {
        let word = |i: usize| u64::from_le_bytes(key[i..i + 8].try_into().expect("8 bytes"));
        (((word(0) ^ self.salt) as usize & self.mask) * 2 * WAYS, word(8) as u32 | 1)
    }

    fn lost(&self, time: u32) -> Option<(Lost, usize)> {
        let (edge, lost) = if time & 1 == 0 { (&self.full, Lost::WithFull) } else { (&self.swa, Lost::WithSwa) };
        // Half the range of a time is enough: what looks young after 2^31 drops mislabels one lookup.
        let then = (time >> 1) | (edge.now() & 1 << 31);
        Some((lost, edge.reach(then)?))
    }

    fn remember(&mut self, key: &[u8; 32], lost: Lost, then: u32) {
        let (at, tag) = self.place(key);
        let time = then << 1 | u32::from(lost == Lost::WithSwa);
        let (tags, times) = self.ends[at..at + 2 * WAYS].split_at(WAYS);
        let same = tags.iter().position(|&t| t == tag).or_else(|| tags.iter().position(|&t| t == 0));
        let way = same.or_else(|| times.iter().position(|&t| self.lost(t).is_none())).unwrap_or(tag as usize % WAYS);
        (self.ends[at + way], self.ends[at + WAYS + way]) = (tag, time);
    }

    fn recall(&self, key: &[u8; 32]) -> Option<(Lost, usize)> {
        let (at, tag) = self.place(key);
        let way = self.ends[at..at + WAYS].iter().position(|&t| t == tag)?;
        self.lost(self.ends[at + WAYS + way])
    }

    /// A pool received a chunk: what it dropped before would not have been saved by the next one.
    pub fn received(&mut self, full: bool) {
        let edge = if full { &mut self.full } else { &mut self.swa };
        edge.received += edge.per;
    }

    /// Adds a dropped page after the match to what was found of ends: boundary `end` in pages.
    pub fn note_missed(&self, key: &[u8; 32], end: u32, ends: &mut MissedEnds) {
        match self.recall(key) {
            Some((Lost::WithFull, reach)) => ends.full[reach..].fill(end),
            Some((Lost::WithSwa, reach)) => ends.swa[reach..].fill(end),
            None => {}
        }
    }

    /// Bytes of the table.
    pub fn bytes(&self) -> u64 {
        self.ends.len() as u64 * 4
    }
}

/// Deepest boundaries after the match that `1 << i` chunks more would have kept resumable, in pages; 0 for none.
#[derive(Debug, Clone, Copy, Default)]
pub struct MissedEnds {
    /// With more full pages.
    pub full: [u32; REACHES],
    /// With more SWA pages.
    pub swa: [u32; REACHES],
}

impl Tree {
    /// A full page at the end of an evictable leaf is about to go, with its checkpoint if `had_end`.
    pub(super) fn note_dropped_end(&mut self, slot: u32, had_end: bool) {
        let Some(margin) = &mut self.margin else { return };
        let lost = self.slots.lost(slot);
        if had_end {
            let now = margin.full.now();
            margin.remember(self.slots.key(slot), Lost::WithFull, now);
        } else if lost != 0 && margin.swa.reach(lost).is_some() {
            margin.remember(self.slots.key(slot), Lost::WithSwa, lost);
        }
    }

    /// Drops a checkpoint for want of SWA pages; `entered` of the checkpoint the order named.
    pub(super) fn lose_checkpoint(&mut self, id: u32, entered: u64) {
        let (slot, before) = (self.ckpts[id].slot, self.swa.cached());
        self.counters.checkpoints += 1;
        self.drop_checkpoint(id);
        let freed = before - self.swa.cached();
        if let Some(margin) = &mut self.margin {
            margin.swa.dropped(u64::from(freed), Some(entered));
            // Without a full group the slot may have gone with the checkpoint; regions need both groups.
            let now = margin.swa.now().max(1);
            self.slots.set_lost(slot, now);
        }
    }

    /// A node leaves the order for a lease.
    pub(super) fn note_leased(&mut self, id: u32) {
        if let Some(margin) = &mut self.margin {
            let node = &self.nodes[id];
            if margin.full.at_risk(node.entered) {
                margin.shallowest = margin.shallowest.min(node.depth);
            }
        }
    }

    /// Before a path is leased: nothing on it is at risk yet.
    pub(crate) fn begin_worth(&mut self) {
        if let Some(margin) = &mut self.margin {
            margin.shallowest = u32::MAX;
        }
    }

    /// What the lookup that was just leased says: it matched to the end of `node`, is usable up to `q`, and `limit` is
    /// the last boundary that would have been of use to it. Called before the checkpoint at `q` is refreshed.
    pub(crate) fn worth(&self, node: u32, q: u32, limit: u32, missed: MissedEnds) -> Worth {
        let Some(margin) = &self.margin else { return Worth::default() };
        let page = u64::from(self.page);
        let p = self.nodes[node].end();
        let place = WalkPlace { node, offset: self.nodes[node].len, depth: p };
        let beyond = |end: u32| u64::from(end.min(limit).saturating_sub(q)) * page;
        let mut worth = Worth { full_gain: missed.full.map(beyond), swa_gain: missed.swa.map(beyond), ..Worth::default() };
        let lost = self.lost_between(node, q, p.min(limit), margin);
        worth.swa_gain.iter_mut().zip(lost).for_each(|(gain, end)| *gain = (*gain).max(beyond(end)));
        // At most a chunk's worth of pages would be gone from the end of this path.
        let kept = margin.shallowest.max(p.saturating_sub(margin.full.per as u32));
        if kept < q {
            worth.full_loss = u64::from(q - self.usable(place, kept)) * page;
        }
        if let Some(below) = self.window_at_risk(node, q, margin) {
            worth.swa_loss = u64::from(q - self.usable(place, below)) * page;
        }
        worth
    }

    /// The deepest boundaries in (from, to] whose checkpoints `1 << i` chunks more would have kept; 0 for none.
    fn lost_between(&self, node: u32, from: u32, to: u32, margin: &Margin) -> [u32; REACHES] {
        let (mut ends, mut open) = ([0; REACHES], REACHES);
        self.path_back(node, from.max(to.saturating_sub(LOOKS)).min(to), to, |page, slot| {
            let lost = self.slots.lost(slot);
            if lost != 0 && self.slots.ckpt(slot) == NIL {
                let reach = margin.swa.reach(lost).unwrap_or(REACHES).min(open);
                ends[reach..open].fill(page + 1);
                open = reach;
            }
            open > 0
        });
        ends
    }

    /// If the checkpoint that makes `q` resumable would be gone with a chunk less: the pages before its window.
    fn window_at_risk(&self, node: u32, q: u32, margin: &Margin) -> Option<u32> {
        if q == 0 {
            return None;
        }
        let id = self.slots.ckpt(self.slot_above(node, q - 1));
        let id = if id != NIL { id } else { self.hint_at(node, q)? };
        let c = &self.ckpts[id];
        // Pinned ones go last, and so does the deepest of a stretch.
        let spared = c.pins > 0 || self.instead_of(id) != id;
        (!spared && margin.swa.at_risk(c.entered)).then(|| (c.end - c.pages).min(q - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(i: u64) -> [u8; 32] {
        let mut k = [0u8; 32];
        k[..8].copy_from_slice(&i.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes());
        k[8..16].copy_from_slice(&i.wrapping_mul(0xC2B2_AE3D_27D4_EB4F).to_le_bytes());
        k
    }

    /// A list of 100 pages, oldest first, that loses one page for each that enters: exactly the 16 oldest are at risk.
    #[test]
    fn the_next_chunk_of_victims_is_at_risk() {
        let mut edge = Edge::new(16);
        let mut order: std::collections::VecDeque<u64> = (0..100).map(|_| edge.enter()).collect();
        for _ in 0..1000 {
            order.push_back(edge.enter());
            let victim = order.pop_front().unwrap();
            edge.dropped(1, Some(victim));
        }
        let at_risk = order.iter().filter(|&&e| edge.at_risk(e)).count();
        assert!((13..=16).contains(&at_risk), "{at_risk}");
        assert!(order.iter().take(at_risk).all(|&e| edge.at_risk(e)));
    }

    #[test]
    fn pages_that_are_used_again_thin_the_old_end_out() {
        let mut edge = Edge::new(64);
        let mut order: std::collections::VecDeque<u64> = (0..400).map(|_| edge.enter()).collect();
        let mut state = 7u64;
        for round in 0..20_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            if round % 3 == 0 {
                order.push_back(edge.enter());
                let victim = order.pop_front().unwrap();
                edge.dropped(1, Some(victim));
            } else {
                let at = (state >> 33) as usize % order.len();
                order.remove(at);
                order.push_back(edge.enter());
            }
        }
        let at_risk = order.iter().filter(|&&e| edge.at_risk(e)).count();
        assert!((45..=90).contains(&at_risk), "{at_risk} of 64");
    }

    #[test]
    fn nothing_is_at_risk_while_victims_come_from_elsewhere() {
        let mut edge = Edge::new(16);
        (0..100).for_each(|_| _ = edge.enter());
        assert!(!edge.at_risk(1));
        edge.dropped(50, None);
        assert!(!edge.at_risk(1));
        (1..40).for_each(|e| edge.dropped(1, Some(e)));
        assert!(edge.at_risk(45) && !edge.at_risk(90));
        (0..50).for_each(|_| edge.dropped(1, None));
        assert!(edge.at_risk(39) && !edge.at_risk(40));
    }

    #[test]
    fn ends_are_near_for_a_chunk_of_drops() {
        let mut m = Margin::new(8, 4, 1);
        m.remember(&key(1), Lost::WithFull, m.full.now());
        m.remember(&key(2), Lost::WithSwa, m.swa.now());
        let reaches = |m: &Margin| [m.recall(&key(1)), m.recall(&key(2))];
        assert_eq!(reaches(&m), [Some((Lost::WithFull, 0)), Some((Lost::WithSwa, 0))]);
        m.full.dropped(8, None);
        m.swa.dropped(4, None);
        assert_eq!(reaches(&m), [Some((Lost::WithFull, 0)), Some((Lost::WithSwa, 0))]);
        m.full.dropped(1, None);
        m.received(false);
        assert_eq!(reaches(&m), [Some((Lost::WithFull, 1)), Some((Lost::WithSwa, 1))]);
        m.full.dropped(8, None);
        m.swa.dropped(16 * 4, None);
        assert_eq!((reaches(&m), m.recall(&key(3))), ([Some((Lost::WithFull, 2)), None], None));
    }

    #[test]
    fn the_table_keeps_what_is_near() {
        let mut m = Margin::new(1000, 10, 1);
        for i in 0..50_000 {
            m.remember(&key(i), Lost::WithFull, m.full.now());
            m.full.dropped(1, None);
        }
        let near = (49_000..50_000).filter(|&i| m.recall(&key(i)).is_some()).count();
        assert!(near > 900, "{near}");
        assert!((0..33_000).all(|i| m.recall(&key(i)).is_none()));
    }
}
