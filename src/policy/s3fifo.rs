//! S3-FIFO (Yang, Zhang, Qiu, Yue and Vigfusson, SOSP'23) over leaves: a small queue for what is new, a large one for
//! what was used again. Both are first in, first out; a use only counts.
//!
//! What reaches the end of the small queue unused goes, used it moves to the large one. What reaches the end of the
//! large one gets another round for each use, three at most. What comes back soon after it went starts in the large one.

use super::ranked::{Entry, Ranked};
use super::{Now, Policy, Standing};
use crate::pool::chunk::ChunkVec;

const SMALL: u16 = 0;
const MAIN: u16 = 1;
/// Pages of the small queue: one in so many.
const PART: u64 = 10;
/// Most uses that count.
const MOST: u8 = 3;
/// Ids that are moved for one choice; the next one then goes whatever it did.
const MOVES: usize = 16;

/// What is remembered of an id while it is leased: its place in its queue.
#[derive(Debug, Clone, Copy)]
struct Place {
    born: u64,
    list: u16,
    rank: u64,
    /// Uses that were counted already.
    spent: u8,
}

/// See the module's text.
#[derive(Debug)]
pub struct S3Fifo {
    ids: Ranked,
    places: ChunkVec<Place>,
    uses: ChunkVec<u8>,
    /// Places in the large queue, given one after the other.
    next: u64,
}

impl Default for S3Fifo {
    fn default() -> Self {
        let none = Place { born: u64::MAX, list: SMALL, rank: 0, spent: 0 };
        S3Fifo { ids: Ranked::new(2), places: ChunkVec::new(none), uses: ChunkVec::new(0), next: 0 }
    }
}

impl S3Fifo {
    fn uses(&self, id: u32) -> u8 {
        let spent = self.places.get(id as usize).spent;
        self.uses.get(id as usize).saturating_sub(spent).min(MOST)
    }

    /// Puts an id at the end of the large queue, with one use less to count.
    fn requeue(&mut self, id: u32, spent: u8) {
        self.next += 1;
        let place = self.places.get_mut(id as usize);
        (place.list, place.rank, place.spent) = (MAIN, self.next, spent);
        let entry = Entry { list: MAIN, rank: self.next, ..*self.ids.get(id).expect("an id in a queue") };
        self.ids.insert(id, entry);
    }
}

impl Policy for S3Fifo {
    fn insert(&mut self, id: u32, at: Standing) {
        let place = self.places.get_mut(id as usize);
        if place.born != at.born {
            // Its first use does not count; what came back has one more and starts in the large queue.
            *place = Place { born: at.born, list: SMALL, rank: at.born, spent: 1 };
            if at.uses > 1 && at.rank == at.born {
                self.next += 1;
                (place.list, place.rank) = (MAIN, self.next);
            }
        }
        let (list, rank) = (place.list, place.rank);
        *self.uses.get_mut(id as usize) = at.uses;
        self.ids.insert(id, Entry { rank, ..Entry::new(list, &at) });
    }

    fn remove(&mut self, id: u32) {
        self.ids.remove(id);
    }

    fn victim(&mut self, _: Now<'_>) -> Option<u32> {
        for moves in 0.. {
            let all = self.ids.pages(SMALL) + self.ids.pages(MAIN);
            let first = if self.ids.pages(SMALL) * PART >= all { SMALL } else { MAIN };
            let id = self.ids.oldest(first).or_else(|| self.ids.oldest(SMALL ^ MAIN ^ first))?;
            let uses = self.uses(id);
            if uses == 0 || moves == MOVES {
                return Some(id);
            }
            // Moving to the large queue does not spend uses, another round there spends one.
            let all = *self.uses.get(id as usize);
            let from = self.places.get(id as usize).list;
            self.requeue(id, if from == SMALL { all } else { all - (uses - 1) });
        }
        None
    }

    fn ids(&self) -> &Ranked {
        &self.ids
    }

    fn ids_mut(&mut self) -> &mut Ranked {
        &mut self.ids
    }
}
