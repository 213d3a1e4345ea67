//! A bounded memory of where prompts ended: what the next turn of a session went on from, whether its pages are still
//! cached or not.
//!
//! A set-associative table of key fingerprints: adding and looking up touch one set, the oldest entry of a full set is
//! replaced, nothing is ever rehashed. A false positive (32 bits of fingerprint over 8 ways) only miscounts a reuse.

use crate::pool::big::BigArray;

const WAYS: usize = 8;
const SET: usize = 3 * WAYS;

/// The end of a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct End {
    /// When.
    pub time: u64,
    /// Turn of its session, from 1.
    pub turn: u16,
    /// Its class.
    pub class: u16,
}

/// See the module's text.
#[derive(Debug)]
pub struct Ends {
    /// Sets of 8 tags, 8 times, and 8 pairs of turn and class.
    sets: BigArray,
    mask: usize,
    salt: u64,
}

impl Ends {
    /// Room for at least `ends` of them; 0 remembers nothing.
    pub fn new(ends: usize, salt: u64) -> Self {
        let sets = if ends == 0 { 0 } else { ends.div_ceil(WAYS).next_power_of_two() };
        Ends { sets: BigArray::new(sets * SET), mask: sets.wrapping_sub(1), salt }
    }

    fn place(&self, key: &[u8; 32]) -> (usize, u32) {
        let word = |i: usize| u64::from_le_bytes(key[i..i + 8].try_into().expect("8 bytes"));
        let h = word(0) ^ self.salt;
        (((h as usize) & self.mask) * SET, (word(8) as u32) | 1)
    }

    /// The place of a key's entry in its set, if it has one.
    fn way(&self, key: &[u8; 32]) -> Option<usize> {
        if self.sets.is_empty() {
            return None;
        }
        let (at, tag) = self.place(key);
        self.sets[at..at + WAYS].iter().position(|&t| t == tag).map(|way| at + way)
    }

    /// The end at the page with this key.
    pub fn find(&self, key: &[u8; 32]) -> Option<End> {
        let at = self.way(key)?;
        let (time, what) = (self.sets[at + WAYS], self.sets[at + 2 * WAYS]);
        Some(End { time: u64::from(time), turn: (what >> 16) as u16, class: what as u16 })
    }

    /// Remembers an end, in place of what was known of this page.
    pub fn put(&mut self, key: &[u8; 32], end: End) {
        if self.sets.is_empty() {
            return;
        }
        let (at, tag) = self.place(key);
        let set = &self.sets[at..at + 2 * WAYS];
        let way = (0..WAYS)
            .find(|&w| set[w] == tag)
            .or_else(|| (0..WAYS).find(|&w| set[w] == 0))
            .unwrap_or_else(|| (0..WAYS).min_by_key(|&w| set[WAYS + w]).unwrap_or(0));
        self.sets[at + way] = tag;
        self.sets[at + way + WAYS] = end.time.min(u64::from(u32::MAX)) as u32;
        self.sets[at + way + 2 * WAYS] = u32::from(end.turn) << 16 | u32::from(end.class);
    }

    /// Forgets the end at a page.
    pub fn forget(&mut self, key: &[u8; 32]) {
        if let Some(at) = self.way(key) {
            self.sets[at] = 0;
        }
    }

    /// Bytes of the table.
    pub fn bytes(&self) -> u64 {
        (self.sets.len() * 4) as u64
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

    #[test]
    fn remembers_the_newest_and_forgets_when_told() {
        let mut ends = Ends::new(1000, 3);
        let end = |i: u64| End { time: i, turn: i as u16, class: 7 };
        (0..20_000).for_each(|i| ends.put(&key(i), end(i)));
        let known = |ends: &Ends| (19_000..20_000).filter(|&i| ends.find(&key(i)) == Some(end(i))).count();
        assert!(known(&ends) > 700, "{}", known(&ends));
        assert!((0..15_000).all(|i| ends.find(&key(i)).is_none()));
        ends.put(&key(19_999), End { time: 5, turn: 9, class: 1 });
        assert_eq!(ends.find(&key(19_999)), Some(End { time: 5, turn: 9, class: 1 }));
        (0..20_000).for_each(|i| ends.forget(&key(i)));
        assert_eq!(known(&ends), 0);
    }

    #[test]
    fn no_room_is_no_trouble() {
        let mut ends = Ends::new(0, 0);
        ends.put(&key(1), End { time: 1, turn: 1, class: 1 });
        ends.forget(&key(1));
        assert_eq!((ends.find(&key(1)), ends.bytes()), (None, 0));
    }
}
