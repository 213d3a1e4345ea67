//! The index: where each object is, 24 bytes a record and a hash table of `u32`.
//!
//! Keys are not kept: a record has 64 bits of a keyed hash (SipHash, keys drawn for the process) of tenant and key, and its
//! part exactly. All parts of a key have the same hash, so one probe finds them. Whoever reads compares the whole key with
//! the entry's header. Two keys with one hash are one chance in 2^64 a pair, and nobody can choose them without the keys;
//! then a put answers `Present`, a read `Missing`, and a delete deletes the other one: what a cache may do, never wrong
//! bytes.

use crate::shm::ChainKey;
use hashbrown::HashTable;
use std::hash::{BuildHasher, RandomState};

/// Records of one piece of the arena: 96 KiB, so that growing wastes little.
const PIECE: usize = 4096;
const NONE: u32 = u32::MAX;

/// Bits of [`Record::flags`].
pub mod flag {
    /// Was read or touched since it was written.
    pub const HIT: u8 = 1;
}

/// Where an object is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record {
    /// Hash of tenant and key; of a record that is not in use, the next such record.
    pub hash: u64,
    /// Segment, its place in the table of segments.
    pub segment: u32,
    /// First block of the value.
    pub at: u32,
    /// From the group's header to the value, in blocks.
    pub back: u16,
    /// Blocks of the value.
    pub blocks: u16,
    /// Entry of the segment.
    pub number: u16,
    /// Part.
    pub part: u8,
    /// See [`flag`].
    pub flags: u8,
}

/// All objects that lookups find.
#[derive(Debug)]
pub struct Index {
    hasher: RandomState,
    table: HashTable<u32>,
    pieces: Vec<Box<[Record; PIECE]>>,
    used: u32,
    free: u32,
}

const EMPTY: Record = Record { hash: NONE as u64, segment: 0, at: 0, back: 0, blocks: 0, number: 0, part: 0, flags: 0 };

impl Index {
    /// An empty one.
    pub fn new() -> Index {
        Index { hasher: RandomState::new(), table: HashTable::new(), pieces: Vec::new(), used: 0, free: NONE }
    }

    /// Hash of a tenant's key.
    pub fn hash(&self, tenant: u64, key: &ChainKey) -> u64 {
        self.hasher.hash_one((tenant, key))
    }

    /// Objects.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Bytes allocated.
    pub fn bytes(&self) -> u64 {
        (self.table.allocation_size()
            + self.pieces.len() * size_of::<[Record; PIECE]>()
            + self.pieces.capacity() * size_of::<usize>()) as u64
    }

    /// A record in use.
    pub fn get(&self, at: u32) -> &Record {
        &self.pieces[at as usize / PIECE][at as usize % PIECE]
    }

    /// A record in use, to change what is no part of its name.
    pub fn get_mut(&mut self, at: u32) -> &mut Record {
        &mut self.pieces[at as usize / PIECE][at as usize % PIECE]
    }

    /// The object of a hash and part.
    pub fn find(&self, hash: u64, part: u8) -> Option<u32> {
        self.table.find(hash, |&r| matches(self.get(r), hash, part)).copied()
    }

    /// Mask of the parts that are there.
    pub fn mask(&self, hash: u64) -> u64 {
        let parts = self.table.iter_hash(hash).map(|&r| self.get(r)).filter(|r| r.hash == hash);
        parts.fold(0, |mask, r| mask | 1 << r.part)
    }

    /// Enters an object that is not there. False when four billion are.
    pub fn insert(&mut self, record: Record) -> bool {
        debug_assert!(self.find(record.hash, record.part).is_none());
        let Some(at) = self.take() else { return false };
        let hash = record.hash;
        *self.get_mut(at) = record;
        let pieces = &self.pieces;
        self.table.insert_unique(hash, at, |&r| pieces[r as usize / PIECE][r as usize % PIECE].hash);
        true
    }

    /// Forgets an object and says where it was.
    pub fn remove(&mut self, hash: u64, part: u8) -> Option<Record> {
        let pieces = &self.pieces;
        let of = |r: u32| &pieces[r as usize / PIECE][r as usize % PIECE];
        let (at, _) = self.table.find_entry(hash, |&r| matches(of(r), hash, part)).ok()?.remove();
        let record = *self.get(at);
        *self.get_mut(at) = Record { hash: u64::from(self.free), ..EMPTY };
        self.free = at;
        Some(record)
    }

    /// All objects.
    pub fn iter(&self) -> impl Iterator<Item = &Record> {
        self.table.iter().map(|&r| self.get(r))
    }

    fn take(&mut self) -> Option<u32> {
        if self.free != NONE {
            let at = self.free;
            self.free = self.get(at).hash as u32;
            return Some(at);
        }
        if self.used == NONE {
            return None;
        }
        if self.used as usize == self.pieces.len() * PIECE {
            let piece = vec![EMPTY; PIECE].into_boxed_slice();
            self.pieces.push(piece.try_into().unwrap_or_else(|_| unreachable!("made with this length")));
        }
        self.used += 1;
        Some(self.used - 1)
    }
}

fn matches(record: &Record, hash: u64, part: u8) -> bool {
    record.hash == hash && record.part == part
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_million_objects_take_at_most_forty_bytes_each() {
        assert_eq!(size_of::<Record>(), 24);
        let mut index = Index::new();
        let mut most = 0.0f64;
        for n in 0..1_000_000u64 {
            let mut key = [0; 32];
            key[..8].copy_from_slice(&n.to_le_bytes());
            let hash = index.hash(1, &key);
            assert!(index.insert(Record { hash, part: (n % 64) as u8, at: n as u32, ..EMPTY }));
            if n >= 65_536 {
                most = most.max(index.bytes() as f64 / index.len() as f64);
            }
        }
        assert!(most <= 40.0, "{most} bytes");
        let mut key = [0; 32];
        key[..8].copy_from_slice(&77_777u64.to_le_bytes());
        let hash = index.hash(1, &key);
        assert_eq!(index.mask(hash), 1 << (77_777 % 64));
        assert_eq!(index.mask(index.hash(2, &key)), 0);
        assert_eq!(index.remove(hash, (77_777 % 64) as u8).map(|r| r.at), Some(77_777));
        assert_eq!((index.mask(hash), index.len()), (0, 999_999));
    }

    #[test]
    fn all_parts_of_a_key_are_found_at_once() {
        let mut index = Index::new();
        let hash = index.hash(3, &[7; 32]);
        for part in (0..64).step_by(2) {
            assert!(index.insert(Record { hash, part, ..EMPTY }));
        }
        assert_eq!(index.mask(hash), 0x5555_5555_5555_5555);
        (0..64).step_by(4).for_each(|part| assert!(index.remove(hash, part).is_some()));
        assert_eq!(index.mask(hash), 0x4444_4444_4444_4444);
        assert!(index.remove(hash, 0).is_none() && index.find(hash, 2).is_some());
        assert!(index.iter().all(|r| r.hash == hash));
    }
}
