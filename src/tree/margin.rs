//! What a chunk more or less would be worth to each pool, in tokens, measured at every lookup.
//!
//! **More.** What a pool dropped among its last chunk's worth of pages would still be there with one chunk more, what it
//! dropped before that with two, and so on up to 16. A
//! checkpoint that went for want of SWA pages leaves a mark in its slot, and when that page is dropped too, in a table
//! of ends; a checkpoint that went with its full page is in that table as well. A lookup that passes such an end would
//! have started from there.
//!
//! **One less.** Everything in an order of eviction has the time at which it entered. Now and then the old end of the
//! order is walked for a chunk's worth of pages, less those that would go before all others because nothing makes them
//! resumable; a hit on something that entered no later than where the walk ended is at risk. What goes is seldom exactly a
//! chunk's worth: the end of a conversation takes all before it along that it alone made resumable. So a hit is counted by
//! the part that the chunk is of the pages that the walk came to, which is also right where a walk ends early.

use super::Tree;
use super::walk::Place as WalkPlace;
use crate::policy::{NIL, Policy, REACHES, Worth};
use crate::pool::big::BigArray;

/// Ways of a set of the table of ends.
const WAYS: usize = 4;
/// Pages looked at for a lost checkpoint between q and p.
const LOOKS: u32 = 4096;
/// Things looked at in one walk along an old end.
const STEPS: usize = 128;
/// Walks are as old as this many lookups at most.
const LOOKUPS: u32 = 8;

/// The old end of one pool's order.
#[derive(Debug)]
pub struct Edge {
    per: u64,
    /// Pages dropped for want of room so far.
    clock: u64,
    /// Pages received with chunks so far: what was dropped before is that much further away.
    received: u64,
    ticks: u64,
    /// What would be gone with `1 << i` chunks less.
    risks: [Risk; REACHES],
    /// The clock at the last walk, and whether what it found at risk is there no longer.
    walked: u64,
    moved: bool,
}

/// The part of an order that some chunks less would take.
#[derive(Debug, Clone, Copy, Default)]
struct Risk {
    /// It entered no later than this.
    limit: u64,
    /// Pages that have to go, and those that would.
    want: u64,
    gone: u64,
}

impl Edge {
    fn new(per: u32) -> Self {
        let risks = [Risk::default(); REACHES];
        Edge { per: u64::from(per), clock: 0, received: 0, ticks: 0, risks, walked: 0, moved: true }
    }

    /// Something enters the order: its time.
    pub fn enter(&mut self) -> u64 {
        self.ticks += 1;
        self.ticks
    }

    /// Something that entered then leaves the order.
    pub fn leave(&mut self, entered: u64) {
        self.moved |= entered <= self.risks[0].limit;
    }

    /// Pages were dropped for want of room.
    pub fn dropped(&mut self, pages: u64) {
        self.clock += pages;
    }

    /// The least reach with which what entered then would be gone; [`REACHES`] with none.
    fn at_risk(&self, entered: u64) -> usize {
        self.risks.iter().position(|risk| entered <= risk.limit).unwrap_or(REACHES)
    }

    /// What a hit of so many tokens counts that is at risk with this reach.
    fn weigh(&self, reach: usize, tokens: u64) -> u64 {
        let Risk { want, gone, .. } = self.risks[reach];
        tokens * want / gone.max(1)
    }

    /// Walks over (id, time of entry, pages) of what would go, oldest first, after `first` pages that go before.
    /// `gone(id, want)` says how many of its pages go with `want` of them.
    fn walk(
        &mut self,
        first: u64,
        old: impl Iterator<Item = (u32, u64, u64)>,
        mut gone: impl FnMut(u32, u64) -> u64,
    ) {
        let wants = std::array::from_fn(|reach| (self.per << reach).saturating_sub(first));
        self.risks = wants.map(|want| Risk { limit: 0, want, gone: 0 });
        (self.walked, self.moved) = (self.clock, false);
        let (mut seen, mut reach, mut steps) = (0, wants.iter().take_while(|&&want| want == 0).count(), 0);
        for (id, entered, pages) in old.take(STEPS) {
            steps += 1;
            while let Some(risk) = self.risks.get_mut(reach).filter(|risk| risk.want <= seen + pages) {
                (risk.limit, risk.gone) = (entered, seen + gone(id, risk.want - seen));
                reach += 1;
            }
            seen += pages;
            if reach == REACHES {
                return;
            }
            self.risks[reach..].iter_mut().for_each(|risk| (risk.limit, risk.gone) = (entered, seen));
        }
        if steps < STEPS {
            // There is no more: all of it is at risk.
            self.risks[reach..].iter_mut().for_each(|risk| risk.want = risk.gone);
        }
    }

    fn is_due(&self) -> bool {
        self.moved || self.clock - self.walked >= (self.per / 16).max(1)
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
    /// First page of the path just leased that is at risk with each reach.
    shallowest: [u32; REACHES],
    /// Lookups since the last walks.
    lookups: u32,
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
            shallowest: [u32::MAX; REACHES],
            lookups: 0,
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

    /// Drops a checkpoint for want of SWA pages.
    pub(super) fn lose_checkpoint(&mut self, id: u32) {
        let (slot, before) = (self.ckpts[id].slot, self.swa.cached());
        self.counters.checkpoints += 1;
        self.drop_checkpoint(id);
        let freed = before - self.swa.cached();
        if let Some(margin) = &mut self.margin {
            // The time before it: its own pages have to be there too for it to stay.
            self.slots.set_lost(slot, margin.swa.now().max(1));
            margin.swa.dropped(u64::from(freed));
        }
    }

    /// A node leaves the order for a lease.
    pub(super) fn note_leased(&mut self, id: u32) {
        if let Some(margin) = &mut self.margin {
            let node = &self.nodes[id];
            let reach = margin.full.at_risk(node.entered);
            margin.shallowest[reach..].iter_mut().for_each(|first| *first = node.depth.min(*first));
        }
    }

    /// Before a path is leased: nothing on it is at risk yet, and what would be is known.
    pub(crate) fn begin_worth(&mut self) {
        let Some(mut margin) = self.margin.take() else { return };
        margin.shallowest = [u32::MAX; REACHES];
        margin.lookups += 1;
        let late = margin.lookups >= LOOKUPS;
        if late || margin.full.is_due() {
            let first = self.dead.iter().take(STEPS).map(|id| self.dead_pages(id)).sum();
            let ids = std::iter::successors(self.order.victim(), |&id| self.order.after(id));
            let live = ids.filter(|&id| !self.dead.contains(id)).map(|id| (id, &self.nodes[id]));
            let live = live.map(|(id, node)| (id, node.entered, u64::from(node.len)));
            margin.full.walk(first, live, |id, want| self.pages_gone(id, want));
        }
        if late || margin.swa.is_due() {
            let ids = std::iter::successors(self.ckpt_order.victim(), |&id| self.ckpt_order.after(id));
            let free = ids.take(2 * STEPS).filter(|&id| !self.frees_nothing(id)).map(|id| (id, &self.ckpts[id]));
            let free = free.map(|(id, ckpt)| (id, ckpt.entered, u64::from(ckpt.pages)));
            margin.swa.walk(0, free, |id, _| u64::from(self.ckpts[id].pages));
        }
        if late {
            margin.lookups = 0;
        }
        self.margin = Some(margin);
    }

    /// Pages at the end of a leaf that no checkpoint makes resumable.
    fn dead_pages(&self, id: u32) -> u64 {
        let node = &self.nodes[id];
        let kept = node.ckpts.last().map_or(node.depth, |&c| self.ckpts[c].end);
        u64::from(node.end() - kept)
    }

    /// Pages of a node that are gone, or go next, once `want` are taken from its end: down to the last checkpoint left.
    fn pages_gone(&self, id: u32, want: u64) -> u64 {
        let node = &self.nodes[id];
        let upto = node.end() - want.min(u64::from(node.len)) as u32;
        let kept = node.ckpts[..node.ckpts.partition_point(|&c| self.ckpts[c].end <= upto)].last();
        u64::from(node.end() - kept.map_or(node.depth, |&c| self.ckpts[c].end))
    }

    /// What the lookup that was just leased says: it matched to the end of `node`, is usable up to `q`, and `limit` is
    /// the last boundary that would have been of use to it. Called before the checkpoint at `q` is refreshed.
    pub(crate) fn worth(&self, node: u32, q: u32, limit: u32, missed: MissedEnds) -> Worth {
        let Some(margin) = self.margin.as_deref() else { return Worth::default() };
        let page = u64::from(self.page);
        let p = self.nodes[node].end();
        let place = WalkPlace { node, offset: self.nodes[node].len, depth: p };
        let beyond = |end: u32| u64::from(end.min(limit).saturating_sub(q)) * page;
        let mut worth = Worth { full_gain: missed.full.map(beyond), swa_gain: missed.swa.map(beyond), ..Worth::default() };
        let lost = self.lost_between(node, q, p.min(limit), margin);
        worth.swa_gain.iter_mut().zip(lost).for_each(|(gain, end)| *gain = (*gain).max(beyond(end)));
        for (reach, loss) in worth.full_loss.iter_mut().enumerate() {
            // At most as many pages as the chunks have would be gone from the end of this path.
            let most = u32::try_from(margin.full.per << reach).unwrap_or(u32::MAX);
            let kept = margin.shallowest[reach].max(p.saturating_sub(most));
            if kept < q {
                *loss = margin.full.weigh(reach, u64::from(q - self.usable(place, kept)) * page);
            }
        }
        if let Some((reach, below)) = self.window_at_risk(node, q, margin) {
            let lost = u64::from(q - self.usable(place, below)) * page;
            (reach..REACHES).for_each(|reach| worth.swa_loss[reach] = margin.swa.weigh(reach, lost));
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

    /// If the checkpoint that makes `q` resumable would be gone with chunks less: the reach, and the pages before its
    /// window.
    fn window_at_risk(&self, node: u32, q: u32, margin: &Margin) -> Option<(usize, u32)> {
        if q == 0 {
            return None;
        }
        let id = self.slots.ckpt(self.slot_above(node, q - 1));
        let id = if id != NIL { id } else { self.hint_at(node, q)? };
        let c = &self.ckpts[id];
        // Pinned ones go last, and so does the deepest of a stretch.
        let spared = c.pins > 0 || self.instead_of(id) != id;
        let reach = margin.swa.at_risk(c.entered);
        (!spared && reach < REACHES).then(|| (reach, (c.end - c.pages).min(q - 1)))
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

    /// Things of 1 to 5 pages, the n-th entered at n.
    fn walk(edge: &mut Edge, first: u64, count: u32) {
        let pages = |id: u32| u64::from(1 + (id - 1) % 5);
        edge.walk(first, (1..=count).map(|id| (id, u64::from(id), pages(id))), |_, want| want);
    }

    #[test]
    fn the_next_chunks_of_victims_are_at_risk() {
        let mut edge = Edge::new(16);
        // 1 + 2 + 3 + 4 + 5 + 1 pages, and twice that, and so on.
        walk(&mut edge, 0, 400);
        assert_eq!([1, 6, 7, 11, 12, 22, 23].map(|n| edge.at_risk(n)), [0, 0, 1, 1, 2, 2, 3]);
        assert_eq!((edge.at_risk(86), edge.at_risk(87)), (4, REACHES));
        assert_eq!([0, 4].map(|reach| edge.weigh(reach, 100)), [100, 100]);
        // Pages that nothing makes resumable would go before them.
        walk(&mut edge, 11, 40);
        assert_eq!([3, 4].map(|n| edge.at_risk(n)), [0, 1]);
        walk(&mut edge, 16, 40);
        assert_eq!([1, 6, 7].map(|n| edge.at_risk(n)), [1, 1, 2]);
    }

    #[test]
    fn a_hit_counts_for_the_part_that_the_chunks_are() {
        let mut edge = Edge::new(4);
        edge.walk(0, [(1, 7, 100)].into_iter(), |_, want| want * 10);
        assert_eq!((edge.at_risk(7), edge.at_risk(8), edge.weigh(0, 100)), (0, REACHES, 10));
        // A walk that ends early stands for the rest.
        let mut edge = Edge::new(6 * STEPS as u32);
        walk(&mut edge, 0, 1000);
        assert_eq!([STEPS as u64, STEPS as u64 + 1].map(|n| edge.at_risk(n)), [0, REACHES]);
        assert!((198..=204).contains(&edge.weigh(0, 100)), "{}", edge.weigh(0, 100));
        // An order that has no more is at risk as it is.
        walk(&mut edge, 0, 10);
        assert_eq!((edge.at_risk(10), edge.weigh(0, 100)), (0, 100));
    }

    #[test]
    fn a_walk_is_due_after_a_sixteenth_of_a_chunk() {
        let mut edge = Edge::new(64);
        walk(&mut edge, 0, 0);
        assert!(!edge.is_due() && edge.at_risk(1) == REACHES);
        edge.dropped(3);
        assert!(!edge.is_due());
        edge.dropped(1);
        assert!(edge.is_due());
        walk(&mut edge, 0, 40);
        edge.leave(edge.risks[0].limit + 1);
        assert!(!edge.is_due());
        edge.leave(edge.risks[0].limit);
        assert!(edge.is_due());
    }

    #[test]
    fn ends_are_near_for_a_chunk_of_drops() {
        let mut m = Margin::new(8, 4, 1);
        m.remember(&key(1), Lost::WithFull, m.full.now());
        m.remember(&key(2), Lost::WithSwa, m.swa.now());
        let reaches = |m: &Margin| [m.recall(&key(1)), m.recall(&key(2))];
        assert_eq!(reaches(&m), [Some((Lost::WithFull, 0)), Some((Lost::WithSwa, 0))]);
        m.full.dropped(8);
        m.swa.dropped(4);
        assert_eq!(reaches(&m), [Some((Lost::WithFull, 0)), Some((Lost::WithSwa, 0))]);
        m.full.dropped(1);
        m.received(false);
        assert_eq!(reaches(&m), [Some((Lost::WithFull, 1)), Some((Lost::WithSwa, 1))]);
        m.full.dropped(8);
        m.swa.dropped(16 * 4);
        assert_eq!((reaches(&m), m.recall(&key(3))), ([Some((Lost::WithFull, 2)), None], None));
    }

    #[test]
    fn the_table_keeps_what_is_near() {
        let mut m = Margin::new(1000, 10, 1);
        for i in 0..50_000 {
            m.remember(&key(i), Lost::WithFull, m.full.now());
            m.full.dropped(1);
        }
        let near = (49_000..50_000).filter(|&i| m.recall(&key(i)).is_some()).count();
        assert!(near > 900, "{near}");
        assert!((0..33_000).all(|i| m.recall(&key(i)).is_none()));
    }
}
