//! Least recently used: a doubly linked list over ids for everything that needs no more, and the policy of that name.

use super::ranked::{Entry, Ranked};
use super::{Now, Policy, Standing};
use crate::pool::chunk::ChunkVec;

/// No id.
pub const NIL: u32 = u32::MAX;
/// `prev` of an id that is in no list.
const ABSENT: u32 = u32::MAX - 1;

/// A linked list of ids, oldest first; every operation O(1).
#[derive(Debug)]
pub struct LruList {
    links: ChunkVec<(u32, u32)>,
    head: u32,
    tail: u32,
    len: usize,
}

impl Default for LruList {
    fn default() -> Self {
        LruList { links: ChunkVec::new((ABSENT, NIL)), head: NIL, tail: NIL, len: 0 }
    }
}

impl LruList {
    fn link(&mut self, prev: u32, id: u32, next: u32) {
        debug_assert!(!self.contains(id));
        *self.links.get_mut(id as usize) = (prev, next);
        match prev {
            NIL => self.head = id,
            p => self.links.get_mut(p as usize).1 = id,
        }
        match next {
            NIL => self.tail = id,
            n => self.links.get_mut(n as usize).0 = id,
        }
        self.len += 1;
    }

    /// Puts `id` at the young end.
    pub fn insert(&mut self, id: u32) {
        self.link(self.tail, id, NIL);
    }

    /// Puts `id` after `older`.
    pub fn insert_after(&mut self, older: u32, id: u32) {
        let next = self.links.get(older as usize).1;
        self.link(older, id, next);
    }

    /// Takes `id` out. Does nothing when it is not in.
    pub fn remove(&mut self, id: u32) {
        let (prev, next) = *self.links.get(id as usize);
        if prev == ABSENT {
            return;
        }
        match prev {
            NIL => self.head = next,
            p => self.links.get_mut(p as usize).1 = next,
        }
        match next {
            NIL => self.tail = prev,
            n => self.links.get_mut(n as usize).0 = prev,
        }
        *self.links.get_mut(id as usize) = (ABSENT, NIL);
        self.len -= 1;
    }

    /// The oldest id.
    pub fn oldest(&self) -> Option<u32> {
        (self.head != NIL).then_some(self.head)
    }

    /// True when `id` is in the list.
    pub fn contains(&self, id: u32) -> bool {
        self.links.get(id as usize).0 != ABSENT
    }

    /// Ids in the list.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True without ids.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Ids, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        std::iter::successors(Some(self.head), |&id| Some(self.links.get(id as usize).1)).take_while(|&id| id != NIL)
    }
}

/// Evicts what was used longest ago.
#[derive(Debug)]
pub struct Lru {
    ids: Ranked,
}

impl Default for Lru {
    fn default() -> Self {
        Lru { ids: Ranked::new(1) }
    }
}

impl Policy for Lru {
    fn insert(&mut self, id: u32, at: Standing) {
        self.ids.insert(id, Entry::new(0, &at));
    }

    fn remove(&mut self, id: u32) {
        self.ids.remove(id);
    }

    fn victim(&mut self, _: Now<'_>) -> Option<u32> {
        self.ids.oldest(0)
    }

    fn ids(&self) -> &Ranked {
        &self.ids
    }

    fn ids_mut(&mut self) -> &mut Ranked {
        &mut self.ids
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_order_through_removal_and_splits() {
        let mut l = LruList::default();
        for id in [5, 9000, 2] {
            l.insert(id);
        }
        l.insert_after(9000, 7);
        l.remove(5);
        l.remove(5);
        assert_eq!(l.iter().collect::<Vec<_>>(), [9000, 7, 2]);
        assert_eq!((l.oldest(), l.len()), (Some(9000), 3));
        assert!(!l.contains(5) && l.contains(2));
    }
}
