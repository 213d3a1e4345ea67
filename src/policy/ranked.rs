//! Lists of ids, each in order of rank: what policies are made of.
//!
//! An id is in at most one list. Insertion and removal are O(log n) in the list, its first id is known without looking,
//! and nothing is ever sorted or moved at once.

use super::Standing;
use crate::pool::chunk::ChunkVec;
use std::collections::BTreeSet;

/// `list` of an id that is in none.
const ABSENT: u16 = u16::MAX;

/// Where an id stands.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Entry {
    /// Its list.
    pub list: u16,
    /// Place in the list: smaller is older. Equal ranks are told apart by id.
    pub rank: u64,
    /// Time of last use.
    pub used: u64,
    /// Pages that go with it.
    pub pages: u32,
    /// See [`Standing::worth`].
    pub worth: f32,
}

impl Entry {
    /// In `list`, by last use.
    pub fn new(list: u16, at: &Standing) -> Self {
        Entry { list, rank: at.rank, used: at.used, pages: at.pages, worth: at.worth }
    }
}

#[derive(Debug, Default)]
struct List {
    ids: BTreeSet<(u64, u32)>,
    pages: u64,
    /// Its place in `active`, while it holds ids.
    place: usize,
    oldest: u32,
}

/// See the module's text.
#[derive(Debug)]
pub struct Ranked {
    entries: ChunkVec<Entry>,
    lists: Vec<List>,
    active: Vec<u16>,
    len: usize,
}

impl Ranked {
    /// `lists` empty lists, numbered from 0.
    pub fn new(lists: u16) -> Self {
        let none = Entry { list: ABSENT, rank: 0, used: 0, pages: 0, worth: 0.0 };
        Ranked {
            entries: ChunkVec::new(none),
            lists: (0..lists).map(|_| List::default()).collect(),
            active: Vec::new(),
            len: 0,
        }
    }

    /// Puts an id in its list; one that is in a list moves.
    pub fn insert(&mut self, id: u32, entry: Entry) {
        self.remove(id);
        *self.entries.get_mut(id as usize) = entry;
        let list = &mut self.lists[entry.list as usize];
        if list.ids.is_empty() {
            list.place = self.active.len();
            self.active.push(entry.list);
            list.oldest = id;
        } else {
            let oldest = list.oldest;
            if (entry.rank, id) < (self.entries.get(oldest as usize).rank, oldest) {
                list.oldest = id;
            }
        }
        list.ids.insert((entry.rank, id));
        list.pages += u64::from(entry.pages);
        self.len += 1;
    }

    /// Takes an id out; `None` when it was in no list.
    pub fn remove(&mut self, id: u32) -> Option<Entry> {
        let entry = *self.get(id)?;
        self.entries.get_mut(id as usize).list = ABSENT;
        let list = &mut self.lists[entry.list as usize];
        list.ids.remove(&(entry.rank, id));
        list.pages -= u64::from(entry.pages);
        if list.ids.is_empty() {
            let place = list.place;
            self.active.swap_remove(place);
            if let Some(&moved) = self.active.get(place) {
                self.lists[moved as usize].place = place;
            }
        } else if list.oldest == id {
            list.oldest = list.ids.first().expect("not empty").1;
        }
        self.len -= 1;
        Some(entry)
    }

    /// An id's pages changed.
    pub fn resize(&mut self, id: u32, pages: u32) {
        if let Some(&entry) = self.get(id) {
            self.entries.get_mut(id as usize).pages = pages;
            let list = &mut self.lists[entry.list as usize];
            list.pages = list.pages - u64::from(entry.pages) + u64::from(pages);
        }
    }

    /// Where an id stands, if it is in a list.
    pub fn get(&self, id: u32) -> Option<&Entry> {
        Some(self.entries.get(id as usize)).filter(|e| e.list != ABSENT)
    }

    /// First id of a list.
    pub fn oldest(&self, list: u16) -> Option<u32> {
        let list = &self.lists[list as usize];
        (!list.ids.is_empty()).then_some(list.oldest)
    }

    /// Ids of a list, the last one first.
    pub fn from_the_youngest(&self, list: u16) -> impl Iterator<Item = u32> + '_ {
        self.lists[list as usize].ids.iter().rev().map(|&(_, id)| id)
    }

    /// Pages of a list.
    pub fn pages(&self, list: u16) -> u64 {
        self.lists[list as usize].pages
    }

    /// Lists that hold ids, in no order.
    pub fn active(&self) -> &[u16] {
        &self.active
    }

    /// Ids in all lists.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True without ids.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// All ids, list by list, oldest first in each.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.active.iter().flat_map(|&l| self.lists[l as usize].ids.iter().map(|&(_, id)| id))
    }

    /// Bytes, about.
    pub fn bytes(&self) -> u64 {
        self.entries.bytes() + self.len as u64 * 24
    }

    /// Every count and cross-reference, recomputed.
    pub fn check(&self) -> Result<(), String> {
        let mut len = 0;
        for (number, list) in self.lists.iter().enumerate() {
            let listed = self.active.iter().filter(|&&l| usize::from(l) == number).count();
            if listed != usize::from(!list.ids.is_empty()) {
                return Err(format!("list {number} of {} ids is listed {listed} times", list.ids.len()));
            }
            if listed > 0 && self.active[list.place] as usize != number {
                return Err(format!("list {number} does not know its place"));
            }
            let mut pages = 0;
            for &(rank, id) in &list.ids {
                match self.get(id) {
                    Some(e) if usize::from(e.list) == number && e.rank == rank => pages += u64::from(e.pages),
                    other => return Err(format!("list {number} has id {id}, whose entry is {other:?}")),
                }
            }
            let oldest = list.ids.first().map(|e| e.1);
            if listed > 0 && oldest != Some(list.oldest) {
                return Err(format!("list {number} begins with {}, not {oldest:?}", list.oldest));
            }
            if pages != list.pages {
                return Err(format!("list {number} counts {} pages, has {pages}", list.pages));
            }
            len += list.ids.len();
        }
        if len == self.len { Ok(()) } else { Err(format!("{len} ids in lists, counted {}", self.len)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        /// Against a map from id to entry.
        #[test]
        fn lists_equal_a_map(ops in prop::collection::vec((0u32..12, 0u16..3, 0u64..6, 1u32..4, 0u8..4), 0..200)) {
            let mut ranked = Ranked::new(3);
            let mut model: BTreeMap<u32, Entry> = BTreeMap::new();
            for (id, list, rank, pages, what) in ops {
                match what {
                    0 => prop_assert_eq!(ranked.remove(id), model.remove(&id)),
                    1 => {
                        ranked.resize(id, pages);
                        model.entry(id).and_modify(|e| e.pages = pages);
                    }
                    _ => {
                        let entry = Entry { list, rank, used: rank, pages, worth: 1.0 };
                        ranked.insert(id, entry);
                        model.insert(id, entry);
                    }
                }
                prop_assert_eq!(ranked.check(), Ok(()));
                prop_assert_eq!(ranked.len(), model.len());
                for list in 0..3 {
                    let own = || model.iter().filter(|(_, e)| e.list == list).map(|(&id, e)| (e.rank, id));
                    prop_assert_eq!(ranked.oldest(list), own().min().map(|e| e.1));
                    let mut back: Vec<(u64, u32)> = own().collect();
                    back.sort_unstable_by(|a, b| b.cmp(a));
                    prop_assert!(ranked.from_the_youngest(list).eq(back.into_iter().map(|e| e.1)));
                    let pages: u64 = model.values().filter(|e| e.list == list).map(|e| u64::from(e.pages)).sum();
                    prop_assert_eq!(ranked.pages(list), pages);
                }
                let mut ids: Vec<u32> = ranked.iter().collect();
                ids.sort_unstable();
                prop_assert!(ids.into_iter().eq(model.keys().copied()));
            }
        }
    }
}
