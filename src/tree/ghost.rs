//! Ghosts: a bounded memory of pages that were dropped, to explain later misses.
//!
//! A set-associative table of key fingerprints with the time of dropping: adding and looking up touch one line, the
//! oldest of a set is replaced, nothing is ever rehashed. A false positive (30 fingerprint bits over 8 ways) only
//! mislabels a miss.

use crate::pool::big::BigArray;

const WAYS: usize = 8;
/// The bit of a tag that is no fingerprint.
const MARK: u32 = 2;

/// See the module's text.
#[derive(Debug)]
pub struct Ghosts {
    /// Sets of 8 tags and the 8 times they were written.
    sets: BigArray,
    mask: usize,
    salt: u64,
    stamp: u32,
}

impl Ghosts {
    /// Room for at least `pages` dropped pages; 0 remembers nothing.
    pub fn new(pages: u32, salt: u64) -> Self {
        let sets = if pages == 0 { 0 } else { (pages as usize).div_ceil(WAYS).next_power_of_two() };
        let mut array = BigArray::new(sets * 2 * WAYS);
        // Written once here, so that no eviction pays for the first touch of its set's memory.
        array.fill(0);
        array.written();
        Ghosts { sets: array, mask: sets.wrapping_sub(1), salt, stamp: 0 }
    }

    fn place(&self, key: &[u8; 32]) -> (usize, u32) {
        let word = |i: usize| u64::from_le_bytes(key[i..i + 8].try_into().expect("8 bytes"));
        let h = word(0) ^ self.salt;
        (((h as usize) & self.mask) * 2 * WAYS, (word(8) as u32) & !MARK | 1)
    }

    /// Remembers a dropped page, and one bit of it.
    pub fn add(&mut self, key: &[u8; 32], mark: bool) {
        if self.sets.is_empty() {
            return;
        }
        self.stamp = self.stamp.wrapping_add(1);
        let (at, tag) = self.place(key);
        let stamp = self.stamp;
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
        Some(self.stamp.wrapping_sub(self.sets[at + WAYS]))
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

    /// Bytes of the table.
    pub fn bytes(&self) -> u64 {
        (self.sets.len() * 4) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remembers_the_newest() {
        let key = |i: u64| {
            let mut k = [0u8; 32];
            k[..8].copy_from_slice(&i.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes());
            k[8..16].copy_from_slice(&(i * 2).to_le_bytes());
            k
        };
        let mut g = Ghosts::new(1000, 3);
        (0..100_000).for_each(|i| g.add(&key(i), i % 3 == 0));
        let kept = (99_000..100_000).filter(|&i| g.dropped_ago(&key(i)).is_some()).count();
        assert!(kept > 700, "{kept}");
        let marked = |i| g.mark(&key(i)).is_none_or(|m| m == (i % 3 == 0));
        assert!((99_000..100_000).all(marked));
        assert!((0..90_000).all(|i| g.dropped_ago(&key(i)).is_none()));
        assert_eq!(Ghosts::new(0, 0).dropped_ago(&key(1)), None);
    }
}
