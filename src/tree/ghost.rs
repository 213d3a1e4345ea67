//! Ghosts: a bounded memory of pages that were dropped, to explain later misses.
//!
//! A set-associative table of key fingerprints with the time of dropping: adding and looking up touch one line, the
//! oldest of a set is replaced, nothing is ever rehashed. A false positive (32 fingerprint bits over 8 ways) only
//! mislabels a miss.

const WAYS: usize = 8;

/// See the module's text.
#[derive(Debug)]
pub struct Ghosts {
    sets: Vec<[(u32, u32); WAYS]>,
    salt: u64,
    stamp: u32,
}

impl Ghosts {
    /// Room for at least `pages` dropped pages; 0 remembers nothing.
    pub fn new(pages: u32, salt: u64) -> Self {
        let sets = (pages as usize).div_ceil(WAYS).next_power_of_two();
        let sets = if pages == 0 { Vec::new() } else { vec![[(0, 0); WAYS]; sets] };
        Ghosts { sets, salt, stamp: 0 }
    }

    fn place(&self, key: &[u8; 32]) -> (usize, u32) {
        let word = |i: usize| u64::from_le_bytes(key[i..i + 8].try_into().expect("8 bytes"));
        let h = word(0) ^ self.salt;
        ((h as usize) & (self.sets.len() - 1), (word(8) as u32) | 1)
    }

    /// Remembers a dropped page.
    pub fn add(&mut self, key: &[u8; 32]) {
        if self.sets.is_empty() {
            return;
        }
        self.stamp = self.stamp.wrapping_add(1);
        let (set, tag) = self.place(key);
        let stamp = self.stamp;
        let set = &mut self.sets[set];
        // The same page dropped again, an empty way, or else the oldest.
        let way = (0..WAYS)
            .find(|&w| set[w].0 == tag)
            .or_else(|| (0..WAYS).find(|&w| set[w].0 == 0))
            .unwrap_or_else(|| (0..WAYS).max_by_key(|&w| stamp.wrapping_sub(set[w].1)).unwrap_or(0));
        set[way] = (tag, stamp);
    }

    /// True when the page was dropped and is still remembered; how many drops ago.
    pub fn dropped_ago(&self, key: &[u8; 32]) -> Option<u32> {
        if self.sets.is_empty() {
            return None;
        }
        let (set, tag) = self.place(key);
        self.sets[set].iter().find(|w| w.0 == tag).map(|w| self.stamp.wrapping_sub(w.1))
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
        (0..100_000).for_each(|i| g.add(&key(i)));
        let kept = (99_000..100_000).filter(|&i| g.dropped_ago(&key(i)).is_some()).count();
        assert!(kept > 700, "{kept}");
        assert!((0..90_000).all(|i| g.dropped_ago(&key(i)).is_none()));
        assert_eq!(Ghosts::new(0, 0).dropped_ago(&key(1)), None);
    }
}
