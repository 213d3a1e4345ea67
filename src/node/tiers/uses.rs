//! How often objects were used lately: a count-min sketch with aging (Einziger, Friedman and Manes, "TinyLFU", 2017). It
//! tells what deserves memory from what a scan reads once, in a fixed number of bytes whatever is stored.

use crate::shm::ObjectId;
use foldhash::quality::RandomState;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Counters of one row; a power of two.
const WIDTH: usize = 1 << 18;
/// Rows; the smallest counter of an object counts.
const ROWS: usize = 4;
/// Uses after which all counters are halved: ten for each counter of a row, as the paper has it.
const AGE: u64 = 10 * WIDTH as u64;

/// See the file. One MiB.
pub struct Uses {
    rows: Box<[AtomicU8]>,
    hash: RandomState,
    counted: AtomicU64,
}

impl Uses {
    /// Nothing was used yet.
    pub fn new() -> Uses {
        let rows = (0..WIDTH * ROWS).map(|_| AtomicU8::new(0)).collect();
        Uses { rows, hash: RandomState::default(), counted: AtomicU64::new(0) }
    }

    /// Counts a use, and returns how many there were lately with this one; at times more than there were, never fewer than
    /// half.
    pub fn count(&self, tenant: u64, id: &ObjectId) -> u8 {
        if self.counted.fetch_add(1, Ordering::Relaxed) % AGE == AGE - 1 {
            self.age();
        }
        let hash = self.hash.hash_one((tenant, id));
        let cells = (0..ROWS).map(|row| {
            // Each row takes other bits of the hash.
            let at = (hash >> (row * 11)) as usize % WIDTH;
            &self.rows[row * WIDTH + at]
        });
        let raised = cells.map(|cell| {
            let raise = |count: u8| Some(count.saturating_add(1));
            cell.fetch_update(Ordering::Relaxed, Ordering::Relaxed, raise).unwrap_or(0).saturating_add(1)
        });
        raised.min().unwrap_or(1)
    }

    fn age(&self) {
        for cell in &self.rows {
            cell.store(cell.load(Ordering::Relaxed) / 2, Ordering::Relaxed);
        }
    }
}

impl Default for Uses {
    fn default() -> Self {
        Uses::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(n: u32) -> ObjectId {
        let mut key = [0; 32];
        key[..4].copy_from_slice(&n.to_le_bytes());
        ObjectId { key, part: (n % 64) as u8 }
    }

    #[test]
    fn what_is_used_again_is_told_from_a_scan() {
        let uses = Uses::new();
        for n in 0..10_000 {
            uses.count(1, &id(n));
        }
        let again = (0..10_000).filter(|n| uses.count(1, &id(*n)) == 2).count();
        assert!(again > 9_900, "{again}");
        let first = (20_000..30_000).filter(|n| uses.count(1, &id(*n)) == 1).count();
        assert!(first > 9_900, "{first}");
        assert_eq!(uses.count(2, &id(0)), 1, "another tenant's is another object");
    }

    #[test]
    fn old_uses_fade_and_counts_end_at_their_most() {
        let uses = Uses::new();
        for _ in 0..1000 {
            uses.count(1, &id(7));
        }
        assert_eq!(uses.count(1, &id(7)), u8::MAX);
        uses.age();
        assert_eq!(uses.count(1, &id(7)), u8::MAX / 2 + 1);
        (0..8).for_each(|_| uses.age());
        assert_eq!(uses.count(1, &id(7)), 1);
    }
}
