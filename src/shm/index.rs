//! Which objects there are: one entry for each key of a tenant, one record for each of its parts.
//!
//! Keys themselves stay in the slot headers; an entry has 64 bits of a seeded hash, and a lookup compares the header of
//! its first object as well. The tables are split 256 ways, so that growing one of them takes a moment only.

use super::object::ChainKey;
use super::spans::MAX_OBJECTS;
use crate::pool::chunk::{ChunkStack, ChunkVec};
use foldhash::quality::RandomState;
use hashbrown::HashTable;
use std::hash::BuildHasher;

/// No object, key or extent.
pub const NIL: u32 = u32::MAX;

/// Facts about an object, as bits.
pub mod flag {
    /// Its writer has not committed; it has no key yet.
    pub const WRITING: u8 = 1;
    /// Deleted while pinned; it has no key any more.
    pub const DELETED: u8 = 2;
    /// Under at least one lease.
    pub const LEASED: u8 = 4;
    /// Goes before the rest of its extent.
    pub const SUPERSEDED: u8 = 8;
    /// Chosen to leave, and not used since.
    pub const LEAVING: u8 = 16;
    /// The record is in use.
    pub const LIVE: u8 = 128;
}

/// One object: 32 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Object {
    /// Page of the file at which its slot starts.
    pub at: u32,
    /// Pins.
    pub pins: u16,
    /// Bits of [`flag`].
    pub flags: u8,
    /// Part of its key.
    pub part: u8,
    /// Its key's entry.
    pub key: u32,
    /// The next part of the same key.
    pub next: u32,
    /// Left child in the order of its extent.
    pub left: u32,
    /// Right child.
    pub right: u32,
    /// Its extent.
    pub extent: u32,
    /// Page index in its prefix.
    pub page: u32,
}

const NO_OBJECT: Object =
    Object { at: 0, pins: 0, flags: 0, part: 0, key: NIL, next: NIL, left: NIL, right: NIL, extent: NIL, page: 0 };

impl Object {
    /// A record without key and extent.
    pub fn new(at: u32, flags: u8) -> Object {
        Object { at, flags, ..NO_OBJECT }
    }

    /// Whether it may not be evicted now.
    pub fn is_held(&self) -> bool {
        self.pins > 0 || self.flags & (flag::WRITING | flag::DELETED | flag::LEASED) != 0
    }

    /// Whether lookups find it.
    pub fn is_listed(&self) -> bool {
        self.flags & (flag::LIVE | flag::WRITING | flag::DELETED) == flag::LIVE
    }
}

/// Records with ids that are used again.
#[derive(Debug)]
pub struct Objects {
    records: ChunkVec<Object>,
    free: ChunkStack,
    made: u32,
}

impl Objects {
    fn new() -> Objects {
        Objects { records: ChunkVec::new(NO_OBJECT), free: ChunkStack::default(), made: 0 }
    }

    /// A record; `None` when there are as many as ids allow.
    pub fn insert(&mut self, object: Object) -> Option<u32> {
        let id = match self.free.pop() {
            Some(id) => id,
            None if self.made < MAX_OBJECTS => {
                self.made += 1;
                self.made - 1
            }
            None => return None,
        };
        *self.records.get_mut(id as usize) = object;
        Some(id)
    }

    /// Gives a record back.
    pub fn remove(&mut self, id: u32) {
        self[id] = NO_OBJECT;
        self.free.push(id);
    }

    /// Records in use.
    pub fn len(&self) -> usize {
        self.made as usize - self.free.len()
    }

    /// Ids and records in use.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &Object)> {
        (0..self.made).map(|id| (id, &self[id])).filter(|(_, o)| o.flags & flag::LIVE != 0)
    }

    fn bytes(&self) -> u64 {
        self.records.bytes() + 4 * self.free.len() as u64
    }
}

impl std::ops::Index<u32> for Objects {
    type Output = Object;
    fn index(&self, id: u32) -> &Object {
        self.records.get(id as usize)
    }
}

impl std::ops::IndexMut<u32> for Objects {
    fn index_mut(&mut self, id: u32) -> &mut Object {
        self.records.get_mut(id as usize)
    }
}

/// One key of one tenant: 20 bytes, since halves of numbers need no alignment to 8.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    hash: [u32; 2],
    mask: [u32; 2],
    /// Its first part; `NIL` in entries that are not in use.
    head: u32,
}

/// Halves of a number.
fn halves(n: u64) -> [u32; 2] {
    [n as u32, (n >> 32) as u32]
}

/// The number of two halves.
fn joined(halves: [u32; 2]) -> u64 {
    u64::from(halves[0]) | u64::from(halves[1]) << 32
}

/// Ids by hash; splits of a table.
#[derive(Debug)]
pub struct Table {
    splits: Vec<HashTable<u32>>,
}

impl Table {
    /// An empty table.
    pub fn new() -> Table {
        Table { splits: (0..256).map(|_| HashTable::new()).collect() }
    }

    /// The id with this hash that `is` accepts.
    pub fn find(&self, hash: u64, mut is: impl FnMut(u32) -> bool) -> Option<u32> {
        self.splits[Self::split(hash)].find(hash, |id| is(*id)).copied()
    }

    /// Adds an id.
    pub fn insert(&mut self, hash: u64, id: u32, hash_of: impl Fn(u32) -> u64) {
        self.splits[Self::split(hash)].insert_unique(hash, id, |id| hash_of(*id));
    }

    /// Takes an id out; false when it was not there.
    pub fn remove(&mut self, hash: u64, id: u32) -> bool {
        match self.splits[Self::split(hash)].find_entry(hash, |other| *other == id) {
            Ok(found) => {
                found.remove();
                true
            }
            Err(_) => false,
        }
    }

    /// Ids.
    pub fn len(&self) -> usize {
        self.splits.iter().map(HashTable::len).sum()
    }

    /// Bytes of the splits.
    pub fn bytes(&self) -> u64 {
        self.splits.iter().map(|s| s.allocation_size() as u64).sum()
    }

    /// The table itself takes the low and the seven highest bits.
    fn split(hash: u64) -> usize {
        (hash >> 44) as usize & 255
    }
}

/// All keys and objects.
#[derive(Debug)]
pub struct Index {
    /// Objects by id.
    pub objects: Objects,
    table: Table,
    entries: ChunkVec<Entry>,
    free: ChunkStack,
    made: u32,
    seed: RandomState,
}

impl Index {
    /// No keys.
    pub fn new() -> Index {
        let entries = ChunkVec::new(Entry { hash: [0; 2], mask: [0; 2], head: NIL });
        let (table, free) = (Table::new(), ChunkStack::default());
        Index { objects: Objects::new(), table, entries, free, made: 0, seed: RandomState::default() }
    }

    /// Hash of a key of a tenant; of an extent likewise.
    pub fn hash(&self, tenant: u64, key: &ChainKey) -> u64 {
        self.seed.hash_one((tenant, key))
    }

    /// The entry of a key; `is` tells whether the object's header has the key and tenant.
    pub fn find(&self, hash: u64, mut is: impl FnMut(&Object) -> bool) -> Option<u32> {
        self.table.find(hash, |id| {
            let entry = self.entries.get(id as usize);
            entry.hash == halves(hash) && is(&self.objects[entry.head])
        })
    }

    /// Parts of a key that are there.
    pub fn mask(&self, key: u32) -> u64 {
        joined(self.entries.get(key as usize).mask)
    }

    /// The object of a part.
    pub fn part(&self, key: u32, part: u8) -> Option<u32> {
        if self.mask(key) & 1 << part == 0 {
            return None;
        }
        self.parts(key).find(|o| self.objects[*o].part == part)
    }

    /// The objects of a key.
    pub fn parts(&self, key: u32) -> impl Iterator<Item = u32> + '_ {
        let head = self.entries.get(key as usize).head;
        std::iter::successors(Some(head), |o| Some(self.objects[*o].next)).take_while(|o| *o != NIL)
    }

    /// Lists an object under a key, which is made when there is none (`key` is `None`).
    pub fn list(&mut self, hash: u64, key: Option<u32>, object: u32) {
        let key = key.unwrap_or_else(|| self.add_key(hash));
        let record = &mut self.objects[object];
        let entry = self.entries.get_mut(key as usize);
        (record.key, record.next) = (key, entry.head);
        entry.head = object;
        entry.mask = halves(joined(entry.mask) | 1 << record.part);
    }

    /// Takes an object off its key, and the key out with its last part.
    pub fn unlist(&mut self, object: u32) {
        let Object { key, next, part, .. } = self.objects[object];
        let entry = self.entries.get_mut(key as usize);
        entry.mask = halves(joined(entry.mask) & !(1 << part));
        if entry.head == object {
            entry.head = next;
        } else {
            let mut before = entry.head;
            while self.objects[before].next != object {
                before = self.objects[before].next;
            }
            self.objects[before].next = next;
        }
        let record = &mut self.objects[object];
        (record.key, record.next) = (NIL, NIL);
        let entry = *self.entries.get(key as usize);
        if entry.head == NIL {
            self.table.remove(joined(entry.hash), key);
            self.free.push(key);
        }
    }

    /// Keys with at least one part.
    pub fn keys(&self) -> usize {
        self.made as usize - self.free.len()
    }

    /// Bytes of this process that keys and objects take.
    pub fn bytes(&self) -> u64 {
        self.objects.bytes() + self.table.bytes() + self.entries.bytes() + 4 * self.free.len() as u64
    }

    fn add_key(&mut self, hash: u64) -> u32 {
        let key = self.free.pop().unwrap_or_else(|| {
            self.made += 1;
            self.made - 1
        });
        *self.entries.get_mut(key as usize) = Entry { hash: halves(hash), mask: [0; 2], head: NIL };
        let entries = &self.entries;
        self.table.insert(hash, key, |id| joined(entries.get(id as usize).hash));
        key
    }

    /// Compares entries, masks and chains; returns the number of objects that are listed.
    pub fn check(&self) -> Result<usize, String> {
        let (mut listed, mut keys) = (0, 0);
        for key in (0..self.made).filter(|k| self.entries.get(*k as usize).head != NIL) {
            let hash = joined(self.entries.get(key as usize).hash);
            let mut mask = 0u64;
            for object in self.parts(key) {
                let o = &self.objects[object];
                if o.key != key || !o.is_listed() || mask & 1 << o.part != 0 {
                    return Err(format!("object {object} is listed wrongly under key {key}: {o:?}"));
                }
                mask |= 1 << o.part;
                listed += 1;
            }
            if mask != self.mask(key) || self.table.find(hash, |k| k == key).is_none() {
                return Err(format!("key {key} has parts {mask:x}, mask {:x}, or is not found", self.mask(key)));
            }
            keys += 1;
        }
        if (keys, keys) == (self.keys(), self.table.len()) {
            Ok(listed)
        } else {
            Err(format!("{keys} keys with parts, {} counted, {} in the table", self.keys(), self.table.len()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_as_small_as_promised() {
        assert_eq!((size_of::<Object>(), size_of::<Entry>()), (32, 20));
    }

    #[test]
    fn keys_of_equal_hash_stay_apart() {
        let mut x = Index::new();
        let object = |at, part| Object { at, part, flags: flag::LIVE, ..NO_OBJECT };
        let ids: Vec<u32> =
            [(1, 0), (2, 63), (3, 0)].map(|(at, part)| x.objects.insert(object(at, part)).unwrap()).into();
        x.list(5, None, ids[0]);
        let first = x.find(5, |o| o.at == 1);
        x.list(5, first, ids[1]);
        assert_eq!(x.find(5, |o| o.at == 9), None);
        x.list(5, None, ids[2]);
        assert_eq!((x.keys(), x.check()), (2, Ok(3)));
        let first = x.objects[ids[0]].key;
        assert_eq!((x.mask(first), x.part(first, 63), x.part(first, 1)), (1 << 63 | 1, Some(ids[1]), None));
        for id in [ids[0], ids[2], ids[1]] {
            x.unlist(id);
            x.objects.remove(id);
            x.check().unwrap();
        }
        assert_eq!((x.keys(), x.objects.len()), (0, 0));
    }
}
