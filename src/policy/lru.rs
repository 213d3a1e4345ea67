//! Least recently used: a doubly linked list over ids, every operation O(1).

use super::Policy;
use crate::pool::chunk::ChunkVec;

/// No id.
pub const NIL: u32 = u32::MAX;
/// `prev` of an id that is in no list.
const ABSENT: u32 = u32::MAX - 1;

/// A linked list of ids, oldest first.
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

    /// Ids, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        std::iter::successors(Some(self.head), |&id| Some(self.links.get(id as usize).1)).take_while(|&id| id != NIL)
    }
}

impl Policy for LruList {
    fn insert(&mut self, id: u32) {
        self.link(self.tail, id, NIL);
    }

    fn insert_after(&mut self, older: u32, id: u32) {
        let next = self.links.get(older as usize).1;
        self.link(older, id, next);
    }

    fn remove(&mut self, id: u32) {
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

    fn victim(&self) -> Option<u32> {
        (self.head != NIL).then_some(self.head)
    }

    fn after(&self, id: u32) -> Option<u32> {
        let next = self.links.get(id as usize).1;
        (next != NIL).then_some(next)
    }

    fn contains(&self, id: u32) -> bool {
        self.links.get(id as usize).0 != ABSENT
    }

    fn len(&self) -> usize {
        self.len
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
        assert_eq!((l.victim(), l.after(7), l.len()), (Some(9000), Some(2), 3));
        assert!(!l.contains(5) && l.contains(2));
    }
}
