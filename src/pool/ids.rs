//! The free ids of a pool: one flat list, or one list for each chunk of a region that two pools share.
//!
//! With chunks the lowest chunk that has a free id serves first, so that high chunks empty out. Every operation is O(1):
//! the ids of a chunk are a linked list, and a bitmap of two levels finds the lowest chunk. An id of a chunk that drains
//! is remembered and never handed out.

use super::chunk::{ChunkStack, ChunkVec};

/// Most chunks of a region: two levels of 64 bits.
pub const MAX_CHUNKS: u32 = 64 * 64;

/// What a chunk is to a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holding {
    /// The other pool's.
    Other,
    /// This pool's.
    Owned,
    /// Still this pool's; nothing in it is handed out any more.
    Draining,
}

/// A set of chunks.
#[derive(Debug)]
struct ChunkSet {
    words: [u64; 64],
    summary: u64,
}

impl ChunkSet {
    fn first(&self) -> Option<usize> {
        (self.summary != 0).then(|| {
            let word = self.summary.trailing_zeros() as usize;
            word * 64 + self.words[word].trailing_zeros() as usize
        })
    }

    fn set(&mut self, chunk: usize, there: bool) {
        let (word, bit) = (chunk / 64, 1u64 << (chunk % 64));
        if there {
            self.words[word] |= bit
        } else {
            self.words[word] &= !bit
        }
        let any = self.words[word] != 0;
        if any { self.summary |= 1 << word } else { self.summary &= !(1 << word) }
    }
}

#[derive(Debug, Clone)]
struct IdChunk {
    holding: Holding,
    /// Newest id that was given back; 0 for none.
    head: u32,
    /// Ids of the chunk that were handed out at least once since the pool has it.
    used: u32,
    /// Free ids, given back or never handed out.
    free: u32,
    /// Nobody has had anything of the chunk yet, in either pool.
    fresh: bool,
}

/// Ids by chunk.
#[derive(Debug)]
pub struct ChunkedIds {
    per: u32,
    chunks: Vec<IdChunk>,
    /// The free id below one in its chunk's list.
    next: ChunkVec<u32>,
    /// Owned chunks with a free id.
    open: Box<ChunkSet>,
    free: u32,
    usable: u32,
    /// Fresh chunks among the owned ones.
    fresh: u32,
}

/// See the module's text.
#[derive(Debug)]
pub enum FreeIds {
    /// Ids 1 to `total` in one list.
    Flat {
        /// Ids.
        total: u32,
        /// Ids from here on were never given out.
        fresh: u32,
        /// Ids that were given back.
        stack: ChunkStack,
    },
    /// Ids by chunk.
    Chunked(ChunkedIds),
}

impl FreeIds {
    /// All of 1 to `total` are free.
    pub fn flat(total: u32) -> Self {
        FreeIds::Flat { total, fresh: 1, stack: ChunkStack::default() }
    }

    /// `chunks` chunks of `per` ids each; those in `owned` are this pool's.
    pub fn chunked(chunks: u32, per: u32, owned: std::ops::Range<u32>) -> Self {
        let none = IdChunk { holding: Holding::Other, head: 0, used: 0, free: per, fresh: false };
        let mut ids = ChunkedIds {
            per,
            chunks: vec![none; chunks as usize],
            next: ChunkVec::new(0),
            open: Box::new(ChunkSet { words: [0; 64], summary: 0 }),
            free: 0,
            usable: 0,
            fresh: owned.len() as u32,
        };
        for chunk in owned {
            ids.take_over(chunk);
            ids.chunks[chunk as usize].fresh = true;
        }
        FreeIds::Chunked(ids)
    }

    /// Takes a free id.
    pub fn pop(&mut self) -> Option<u32> {
        match self {
            FreeIds::Flat { total, fresh, stack } => stack.pop().or_else(|| {
                let id = *fresh;
                (id <= *total).then(|| {
                    *fresh += 1;
                    id
                })
            }),
            FreeIds::Chunked(ids) => ids.pop(),
        }
    }

    /// Gives an id back.
    pub fn push(&mut self, id: u32) {
        match self {
            FreeIds::Flat { stack, .. } => stack.push(id),
            FreeIds::Chunked(ids) => ids.push(id),
        }
    }

    /// Ids that [`Self::pop`] could give.
    pub fn free(&self) -> u32 {
        match self {
            FreeIds::Flat { total, fresh, stack } => stack.len() as u32 + (total + 1 - fresh),
            FreeIds::Chunked(ids) => ids.free,
        }
    }

    /// Ids of the pool, those of a chunk that drains left out.
    pub fn usable(&self) -> u32 {
        match self {
            FreeIds::Flat { total, .. } => *total,
            FreeIds::Chunked(ids) => ids.usable,
        }
    }

    /// Ids up to here may have been handed out at some time.
    pub fn highest(&self) -> u32 {
        match self {
            FreeIds::Flat { fresh, .. } => fresh - 1,
            FreeIds::Chunked(ids) => ids.per * ids.chunks.len() as u32,
        }
    }

    /// The ids by chunk, if the pool has chunks.
    pub fn chunks(&self) -> Option<&ChunkedIds> {
        if let FreeIds::Chunked(ids) = self { Some(ids) } else { None }
    }

    /// As [`Self::chunks`], to change them.
    pub fn chunks_mut(&mut self) -> Option<&mut ChunkedIds> {
        if let FreeIds::Chunked(ids) = self { Some(ids) } else { None }
    }
}

impl ChunkedIds {
    fn pop(&mut self) -> Option<u32> {
        let c = self.open.first()?;
        let chunk = &mut self.chunks[c];
        let id = if chunk.head != 0 {
            let id = chunk.head;
            chunk.head = *self.next.get(id as usize);
            id
        } else {
            chunk.used += 1;
            c as u32 * self.per + chunk.used
        };
        chunk.free -= 1;
        self.free -= 1;
        if std::mem::take(&mut chunk.fresh) {
            self.fresh -= 1;
        }
        if chunk.free == 0 {
            self.open.set(c, false);
        }
        Some(id)
    }

    fn push(&mut self, id: u32) {
        let c = self.chunk_of(id);
        let chunk = &mut self.chunks[c as usize];
        *self.next.get_mut(id as usize) = chunk.head;
        chunk.head = id;
        chunk.free += 1;
        if chunk.holding == Holding::Owned {
            self.free += 1;
            if chunk.free == 1 {
                self.open.set(c as usize, true);
            }
        }
    }

    /// Ids of a chunk.
    pub fn per(&self) -> u32 {
        self.per
    }

    /// Number of chunks, whoever has them.
    pub fn count(&self) -> u32 {
        self.chunks.len() as u32
    }

    /// Chunk of an id.
    pub fn chunk_of(&self, id: u32) -> u32 {
        (id - 1) / self.per
    }

    /// First id of a chunk; it has [`Self::per`] of them.
    pub fn first_id(&self, chunk: u32) -> u32 {
        chunk * self.per + 1
    }

    /// Whose a chunk is.
    pub fn holding(&self, chunk: u32) -> Holding {
        self.chunks[chunk as usize].holding
    }

    /// Ids of a chunk that somebody uses or that wait for a step or a move.
    pub fn live(&self, chunk: u32) -> u32 {
        self.per - self.chunks[chunk as usize].free
    }

    /// The highest chunk of which nobody has had anything yet.
    pub fn fresh(&self) -> Option<u32> {
        if self.fresh == 0 { None } else { (0..self.count()).rev().find(|&c| self.chunks[c as usize].fresh) }
    }

    /// The owned chunks, from the highest on.
    pub fn owned(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.count()).rev().filter(|&c| self.holding(c) == Holding::Owned)
    }

    /// Nothing of the chunk is handed out from here on.
    pub fn drain(&mut self, chunk: u32) {
        let c = &mut self.chunks[chunk as usize];
        assert!(c.holding == Holding::Owned, "chunk {chunk} is not this pool's to drain");
        c.holding = Holding::Draining;
        self.fresh -= u32::from(std::mem::take(&mut c.fresh));
        self.free -= c.free;
        self.usable -= self.per;
        self.open.set(chunk as usize, false);
    }

    /// A chunk that drained is handed out from again.
    pub fn undrain(&mut self, chunk: u32) {
        let c = &mut self.chunks[chunk as usize];
        assert!(c.holding == Holding::Draining, "chunk {chunk} does not drain");
        c.holding = Holding::Owned;
        self.free += c.free;
        self.usable += self.per;
        self.open.set(chunk as usize, c.free > 0);
    }

    /// A chunk that has drained becomes the other pool's.
    pub fn give_up(&mut self, chunk: u32) {
        let c = &mut self.chunks[chunk as usize];
        assert!(c.holding == Holding::Draining && c.free == self.per, "chunk {chunk} is in use and cannot be given up");
        *c = IdChunk { holding: Holding::Other, head: 0, used: 0, free: self.per, fresh: false };
    }

    /// A chunk of the other pool becomes this one's.
    pub fn take_over(&mut self, chunk: u32) {
        let c = &mut self.chunks[chunk as usize];
        assert!(c.holding == Holding::Other, "chunk {chunk} is this pool's already");
        c.holding = Holding::Owned;
        self.free += self.per;
        self.usable += self.per;
        self.open.set(chunk as usize, true);
    }

    /// Recounts what the counts say.
    pub fn check(&self) -> Result<(), String> {
        let (mut free, mut usable) = (0, 0);
        for (i, c) in self.chunks.iter().enumerate() {
            let listed = std::iter::successors(Some(c.head), |&id| Some(*self.next.get(id as usize)));
            let mut back = 0;
            for id in listed.take_while(|&id| id != 0) {
                let inside = self.chunk_of(id) as usize == i && (id - 1) % self.per < c.used;
                if !inside || back == self.per {
                    return Err(format!("chunk {i} lists id {id} as given back"));
                }
                back += 1;
            }
            if c.free != back + (self.per - c.used) {
                return Err(format!(
                    "chunk {i} counts {} free ids, has {back} and {} unused",
                    c.free,
                    self.per - c.used
                ));
            }
            if c.holding == Holding::Other && c.free != self.per {
                return Err(format!("chunk {i} is the other pool's and has ids in use"));
            }
            if c.holding == Holding::Owned {
                (free, usable) = (free + c.free, usable + self.per);
            }
            let open = self.open.words[i / 64] >> (i % 64) & 1 == 1;
            if open != (c.holding == Holding::Owned && c.free > 0) {
                return Err(format!("chunk {i} with {} free ids is listed as open: {open}", c.free));
            }
        }
        let fresh = self.chunks.iter().filter(|c| c.fresh).count() as u32;
        if fresh != self.fresh || self.chunks.iter().any(|c| c.fresh && (c.used > 0 || c.holding != Holding::Owned)) {
            return Err(format!("{fresh} fresh chunks, counted {}", self.fresh));
        }
        let summary = (0..64).filter(|&w| self.open.words[w] != 0).fold(0u64, |s, w| s | 1 << w);
        if (free, usable, summary) != (self.free, self.usable, self.open.summary) {
            return Err(format!("{free} free of {usable} usable ids, counted {} of {}", self.free, self.usable));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_chunk_serves_first() {
        let mut ids = FreeIds::chunked(200, 4, 100..200);
        let taken: Vec<u32> = (0..8).map(|_| ids.pop().unwrap()).collect();
        assert_eq!(taken, (401..409).collect::<Vec<_>>());
        ids.push(402);
        ids.push(408);
        assert_eq!((ids.pop(), ids.pop(), ids.pop()), (Some(402), Some(408), Some(409)));
        ids.chunks().unwrap().check().unwrap();
        assert_eq!((ids.free(), ids.usable()), (391, 400));
    }

    #[test]
    fn a_chunk_that_drains_gives_nothing_and_can_come_back() {
        let mut ids = FreeIds::chunked(2, 3, 0..2);
        let held: Vec<u32> = (0..4).map(|_| ids.pop().unwrap()).collect();
        assert_eq!(held, [1, 2, 3, 4]);
        let chunks = ids.chunks_mut().unwrap();
        assert_eq!(chunks.owned().collect::<Vec<_>>(), [1, 0]);
        chunks.drain(0);
        assert_eq!((chunks.live(0), chunks.holding(0)), (3, Holding::Draining));
        assert_eq!((ids.free(), ids.usable()), (2, 3));
        ids.push(2);
        assert_eq!((ids.pop(), ids.pop(), ids.pop()), (Some(5), Some(6), None));
        ids.chunks_mut().unwrap().undrain(0);
        assert_eq!((ids.pop(), ids.free()), (Some(2), 0));
        ids.chunks_mut().unwrap().drain(0);
        [1, 2, 3].into_iter().for_each(|id| ids.push(id));
        ids.chunks_mut().unwrap().give_up(0);
        ids.chunks().unwrap().check().unwrap();
        assert_eq!((ids.pop(), ids.usable()), (None, 3));
        ids.chunks_mut().unwrap().take_over(0);
        assert_eq!((ids.pop(), ids.free(), ids.usable()), (Some(1), 2, 6));
        ids.chunks().unwrap().check().unwrap();
    }

    #[test]
    #[should_panic(expected = "in use")]
    fn a_chunk_in_use_is_not_given_up() {
        let mut ids = FreeIds::chunked(1, 3, 0..1);
        ids.pop();
        ids.chunks_mut().unwrap().drain(0);
        ids.chunks_mut().unwrap().give_up(0);
    }
}
