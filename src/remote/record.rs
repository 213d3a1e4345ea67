//! Which objects the store has, as far as this process knows, so that an `exists` can report them without asking. Of each key
//! a hash and the mask of its parts, in a table of a fixed size; of keys that share a place those used last stay.
//!
//! It may be wrong both ways, and neither costs more than a miss: what another key pushed out is not reported, though a read
//! finds it; what the store dropped by rules of its own is reported until the first read of it.

use super::Name;
use crate::shm::ChainKey;
use foldhash::quality::RandomState;
use std::hash::BuildHasher;

/// Keys of one place.
const WAYS: usize = 8;

/// See the file. 16 bytes for each key.
pub struct Record {
    /// Hash and parts of a key; no parts where it is free. In each place those used last come first.
    keys: Box<[(u64, u64)]>,
    hash: RandomState,
    len: usize,
}

impl Record {
    /// For about so many keys.
    pub fn new(keys: usize) -> Record {
        let keys = keys.next_multiple_of(WAYS).max(WAYS);
        Record { keys: vec![(0, 0); keys].into(), hash: RandomState::default(), len: 0 }
    }

    fn place(&self, tenant: u64, key: &ChainKey) -> (u64, usize) {
        let hash = self.hash.hash_one((tenant, key));
        (hash, (hash as usize % (self.keys.len() / WAYS)) * WAYS)
    }

    /// Parts of a key that the store has.
    pub fn parts(&self, tenant: u64, key: &ChainKey) -> u64 {
        let (hash, at) = self.place(tenant, key);
        self.keys[at..at + WAYS].iter().find(|(of, parts)| *of == hash && *parts != 0).map_or(0, |(_, parts)| *parts)
    }

    /// The store has it.
    pub fn add(&mut self, (tenant, id): &Name) {
        let (hash, at) = self.place(*tenant, &id.key);
        let place = &mut self.keys[at..at + WAYS];
        let found = place.iter().position(|(of, parts)| *of == hash && *parts != 0);
        let last = place[WAYS - 1].1;
        place[..=found.unwrap_or(WAYS - 1)].rotate_right(1);
        if found.is_none() {
            self.len += usize::from(last == 0);
            place[0] = (hash, 0);
        }
        place[0].1 |= 1 << id.part;
    }

    /// The store does not have it.
    pub fn remove(&mut self, (tenant, id): &Name) {
        let (hash, at) = self.place(*tenant, &id.key);
        let place = &mut self.keys[at..at + WAYS];
        let Some(found) = place.iter().position(|(of, parts)| *of == hash && *parts != 0) else { return };
        place[found].1 &= !(1 << id.part);
        if place[found].1 == 0 {
            // What is free comes last.
            place[found..].rotate_left(1);
            self.len -= 1;
        }
    }

    /// Keys in it.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether more keys would push out as many others.
    pub fn is_full(&self) -> bool {
        self.len >= self.keys.len() / 8 * 7
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::ObjectId;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn name(n: u8, part: u8) -> Name {
        (u64::from(n & 1), ObjectId { key: [n >> 1; 32], part })
    }

    proptest! {
        /// Against a map, with one place of eight keys and twelve that want it: what it says was added, nothing that was
        /// removed is said, and the key that was added last is there.
        #[test]
        fn a_record_is_a_map_that_forgets(script in prop::collection::vec((0..12u8, 0..64u8, any::<bool>()), 1..200)) {
            let (mut record, mut model) = (Record::new(8), BTreeMap::<u8, u64>::new());
            for (n, part, adds) in script {
                let of = name(n, part);
                if adds {
                    record.add(&of);
                    *model.entry(n).or_default() |= 1 << part;
                    prop_assert_eq!(record.parts(of.0, &of.1.key) >> part & 1, 1);
                } else {
                    record.remove(&of);
                    *model.entry(n).or_default() &= !(1 << part);
                }
                let said: Vec<u64> = (0..12).map(|n| record.parts(name(n, 0).0, &name(n, 0).1.key)).collect();
                for (n, said) in said.iter().enumerate() {
                    let had = model.get(&(n as u8)).copied().unwrap_or_default();
                    prop_assert_eq!(said & !had, 0, "key {} was not added", n);
                    // A key that was pushed out begins anew.
                    if *said == 0 {
                        model.remove(&(n as u8));
                    }
                }
                prop_assert_eq!(said.iter().filter(|parts| **parts != 0).count(), record.len());
                prop_assert_eq!(record.len(), model.values().filter(|parts| **parts != 0).count());
            }
        }
    }

    #[test]
    fn the_keys_used_last_stay() {
        let mut record = Record::new(8);
        (0..8).for_each(|n| record.add(&name(2 * n, 0)));
        record.add(&name(0, 1));
        record.add(&name(20, 0));
        let parts = |n: u8| record.parts(0, &[n; 32]);
        assert_eq!((parts(0), parts(1), parts(2), parts(10), record.len()), (3, 0, 1, 1, 8));
        assert!(record.is_full());
    }
}
