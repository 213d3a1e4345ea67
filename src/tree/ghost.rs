//! Ghosts: a bounded memory of what was dropped, to explain later misses.
//!
//! A set-associative table of key fingerprints with the time of dropping: adding and looking up touch one line, the
//! oldest of a set is replaced, nothing is ever rehashed. A false positive (30 fingerprint bits over 8 ways) only
//! mislabels a miss.
//!
//! By whom something was dropped is not in the table, which would double its lines, but in a ring beside it: what one
//! call drops for one reason is one [`Episode`], however many pages it is. The ring forgets the oldest.

use crate::pool::big::BigArray;
use std::collections::VecDeque;

const WAYS: usize = 8;
/// The bit of a tag that is no fingerprint.
const MARK: u32 = 2;
/// Most episodes that are remembered, 40 bytes each.
const MAX_EPISODES: usize = 1 << 16;

/// Why something left the tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Why {
    /// The full pool was full; a checkpoint goes with its page.
    #[default]
    FullPool,
    /// The SWA pool was full.
    SwaPool,
    /// Its tenant's share was full.
    Share,
    /// SUPn: newer ends of the conversation took its place.
    Superseded,
    /// It was kept for a parked sequence, which went on.
    Resumed,
    /// Its pool gave up a chunk of the region.
    Chunk,
}

/// The call that is changing the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Act {
    /// Number of the call among those that can drop something, from 1.
    pub op: u64,
    /// Number of the sequence it serves.
    pub by: u64,
    /// Time told to the cache, in milliseconds.
    pub ms: u64,
    /// Why it drops something.
    pub why: Why,
}

#[derive(Debug, Clone, Copy)]
struct Episode {
    /// Number of its first drop.
    first: u64,
    act: Act,
    kinds: u8,
}

/// What is remembered of something that was dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dropped {
    /// The call that dropped it; `None` when that is forgotten.
    pub act: Option<Act>,
    /// Kinds of a checkpoint.
    pub kinds: u8,
}

/// See the module's text.
#[derive(Debug)]
pub struct Ghosts {
    /// Sets of 8 tags and the 8 times they were written.
    sets: BigArray,
    mask: usize,
    salt: u64,
    /// Drops so far; the table holds the low half of it.
    stamp: u64,
    episodes: VecDeque<Episode>,
    most: usize,
}

impl Ghosts {
    /// Room for at least `pages` dropped pages; 0 remembers nothing.
    pub fn new(pages: u32, salt: u64) -> Self {
        let sets = if pages == 0 { 0 } else { (pages as usize).div_ceil(WAYS).next_power_of_two() };
        let mut array = BigArray::new(sets * 2 * WAYS);
        // Written once here, so that no eviction pays for the first touch of its set's memory.
        array.fill(0);
        array.written();
        let most = (pages as usize).min(MAX_EPISODES);
        Ghosts { sets: array, mask: sets.wrapping_sub(1), salt, stamp: 0, episodes: VecDeque::new(), most }
    }

    fn place(&self, key: &[u8; 32]) -> (usize, u32) {
        let word = |i: usize| u64::from_le_bytes(key[i..i + 8].try_into().expect("8 bytes"));
        let h = word(0) ^ self.salt;
        (((h as usize) & self.mask) * 2 * WAYS, (word(8) as u32) & !MARK | 1)
    }

    /// Remembers what was dropped, with the kinds of a checkpoint and one bit of the policy's.
    pub fn add(&mut self, key: &[u8; 32], act: &Act, kinds: u8, mark: bool) {
        if self.sets.is_empty() {
            return;
        }
        self.stamp += 1;
        if self.episodes.back().is_none_or(|e| e.act != *act || e.kinds != kinds) {
            if self.episodes.len() == self.most {
                self.episodes.pop_front();
            }
            self.episodes.push_back(Episode { first: self.stamp, act: *act, kinds });
        }
        let (at, tag) = self.place(key);
        let stamp = self.stamp as u32;
        let (tags, stamps) = self.sets[at..at + 2 * WAYS].split_at_mut(WAYS);
        // The same page dropped again, an empty way, or else the oldest.
        let way = (0..WAYS)
            .find(|&w| tags[w] & !MARK == tag)
            .or_else(|| (0..WAYS).find(|&w| tags[w] == 0))
            .unwrap_or_else(|| (0..WAYS).max_by_key(|&w| stamp.wrapping_sub(stamps[w])).unwrap_or(0));
        (tags[way], stamps[way]) = (tag | if mark { MARK } else { 0 }, stamp);
    }

    /// True when the page was dropped and is still remembered; how many drops ago.
    pub fn dropped_ago(&self, key: &[u8; 32]) -> Option<u32> {
        let at = self.way(key)?;
        Some((self.stamp as u32).wrapping_sub(self.sets[at + WAYS]))
    }

    /// The bit that was remembered of a dropped page.
    pub fn mark(&self, key: &[u8; 32]) -> Option<bool> {
        self.way(key).map(|at| self.sets[at] & MARK != 0)
    }

    fn way(&self, key: &[u8; 32]) -> Option<usize> {
        if self.sets.is_empty() {
            return None;
        }
        let (at, tag) = self.place(key);
        self.sets[at..at + WAYS].iter().position(|&t| t & !MARK == tag).map(|way| at + way)
    }

    /// What is remembered of a key, from its newest drop.
    pub fn recall(&self, key: &[u8; 32]) -> Option<Dropped> {
        let number = self.stamp - u64::from(self.dropped_ago(key)?);
        let at = self.episodes.partition_point(|e| e.first <= number);
        let episode = at.checked_sub(1).map(|i| self.episodes[i]);
        Some(Dropped { act: episode.map(|e| e.act), kinds: episode.map_or(0, |e| e.kinds) })
    }

    /// Bytes of the table and the ring.
    pub fn bytes(&self) -> u64 {
        (self.sets.len() * 4 + self.episodes.len() * size_of::<Episode>()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(i: u64) -> [u8; 32] {
        let mut k = [0u8; 32];
        k[..8].copy_from_slice(&i.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes());
        k[8..16].copy_from_slice(&(i * 2).to_le_bytes());
        k
    }

    fn act(op: u64) -> Act {
        Act { op, by: op * 10, ms: op * 1000, why: Why::SwaPool }
    }

    #[test]
    fn remembers_the_newest() {
        let mut g = Ghosts::new(1000, 3);
        (0..100_000).for_each(|i| g.add(&key(i), &Act::default(), 0, i % 3 == 0));
        let kept = (99_000..100_000).filter(|&i| g.dropped_ago(&key(i)).is_some()).count();
        assert!(kept > 700, "{kept}");
        let marked = |i| g.mark(&key(i)).is_none_or(|m| m == (i % 3 == 0));
        assert!((99_000..100_000).all(marked));
        assert!((0..90_000).all(|i| g.dropped_ago(&key(i)).is_none()));
        assert_eq!(g.episodes.len(), 1, "one call for one reason");
        assert_eq!(Ghosts::new(0, 0).dropped_ago(&key(1)), None);
    }

    #[test]
    fn tells_who_dropped_it_last() {
        let mut g = Ghosts::new(1000, 3);
        for op in 1..=30u64 {
            (0..5).for_each(|i| g.add(&key(op * 100 + i), &act(op), op as u8, false));
        }
        g.add(&key(203), &act(40), 7, true);
        let when = |k| g.recall(&key(k)).map(|d| (d.act.map(|a| a.op), d.kinds));
        assert_eq!(when(100), Some((Some(1), 1)));
        assert_eq!(when(1704), Some((Some(17), 17)));
        assert_eq!(when(203), Some((Some(40), 7)), "dropped a second time");
        assert_eq!(when(204), Some((Some(2), 2)));
        assert_eq!(when(99), None);
    }

    #[test]
    fn the_ring_is_bounded_and_says_when_it_forgot() {
        let mut g = Ghosts::new(64, 3);
        (0..1000u64).for_each(|i| g.add(&key(i % 40), &act(i + 1), 0, false));
        assert_eq!(g.episodes.len(), 64);
        assert!((0..40).all(|i| g.recall(&key(i)).is_none_or(|d| d.act.is_some())), "the last 40 drops are remembered");
        let mut g = Ghosts::new(16, 3);
        g.add(&key(1), &act(1), 0, false);
        // The same page again and again: the first is still in the table, but its episode is gone.
        (0..50).for_each(|op| g.add(&key(2), &act(op + 2), 0, false));
        assert_eq!(g.recall(&key(1)), Some(Dropped { act: None, kinds: 0 }));
    }
}
