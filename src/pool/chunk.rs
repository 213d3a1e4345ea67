//! Vectors that grow in chunks, so that no operation copies a large vector at once.

const CHUNK: usize = 4096;

/// A vector of small values that grows by whole chunks and never moves an element.
#[derive(Debug, Clone)]
pub struct ChunkVec<T> {
    chunks: Vec<Box<[T]>>,
    fill: T,
}

impl<T: Clone> ChunkVec<T> {
    /// An empty vector whose elements start as `fill`.
    pub fn new(fill: T) -> Self {
        ChunkVec { chunks: Vec::new(), fill }
    }

    /// Makes index `i` valid.
    #[inline]
    pub fn ensure(&mut self, i: usize) {
        if i >= self.chunks.len() * CHUNK {
            self.grow(i);
        }
    }

    #[cold]
    fn grow(&mut self, i: usize) {
        while i >= self.chunks.len() * CHUNK {
            self.chunks.push(vec![self.fill.clone(); CHUNK].into_boxed_slice());
        }
    }

    /// Element `i`, or the fill value's reference when it was never touched.
    #[inline]
    pub fn get(&self, i: usize) -> &T {
        self.chunks.get(i / CHUNK).map_or(&self.fill, |c| &c[i % CHUNK])
    }

    /// Element `i`, made valid when it was not.
    #[inline]
    pub fn get_mut(&mut self, i: usize) -> &mut T {
        self.ensure(i);
        &mut self.chunks[i / CHUNK][i % CHUNK]
    }

    /// Bytes of the chunks.
    pub fn bytes(&self) -> u64 {
        (self.chunks.len() * CHUNK * size_of::<T>()) as u64
    }

    /// Indices that exist.
    pub fn capacity(&self) -> usize {
        self.chunks.len() * CHUNK
    }
}

/// A stack of ids that grows and shrinks in chunks. An emptied chunk is kept until the one below is empty too, so that a
/// stack that swings around a chunk's end does not allocate.
#[derive(Debug, Clone, Default)]
pub struct ChunkStack {
    chunks: Vec<Vec<u32>>,
    spare: Option<Vec<u32>>,
}

impl ChunkStack {
    /// Adds an id on top.
    pub fn push(&mut self, id: u32) {
        match self.chunks.last_mut() {
            Some(c) if c.len() < CHUNK => c.push(id),
            _ => {
                let mut c = self.spare.take().unwrap_or_else(|| Vec::with_capacity(CHUNK));
                c.push(id);
                self.chunks.push(c);
            }
        }
    }

    /// Takes the id on top.
    pub fn pop(&mut self) -> Option<u32> {
        let last = self.chunks.last_mut()?;
        let id = last.pop();
        if last.is_empty() {
            self.spare = self.chunks.pop();
        }
        id
    }

    /// Number of ids.
    pub fn len(&self) -> usize {
        self.chunks.split_last().map_or(0, |(last, full)| full.len() * CHUNK + last.len())
    }

    /// True without ids.
    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }
}

/// Values with `u32` ids that are reused; grows in chunks.
#[derive(Debug, Clone)]
pub struct Arena<T> {
    chunks: Vec<Vec<Option<T>>>,
    free: ChunkStack,
    len: usize,
}

const ARENA_CHUNK: usize = 1024;

impl<T> Default for Arena<T> {
    fn default() -> Self {
        Arena { chunks: Vec::new(), free: ChunkStack::default(), len: 0 }
    }
}

impl<T> Arena<T> {
    /// Stores a value and returns its id.
    pub fn insert(&mut self, value: T) -> u32 {
        self.len += 1;
        if let Some(id) = self.free.pop() {
            self.chunks[id as usize / ARENA_CHUNK][id as usize % ARENA_CHUNK] = Some(value);
            return id;
        }
        if self.chunks.last().is_none_or(|c| c.len() == ARENA_CHUNK) {
            self.chunks.push(Vec::with_capacity(ARENA_CHUNK));
        }
        let n = self.chunks.len();
        let last = &mut self.chunks[n - 1];
        last.push(Some(value));
        ((n - 1) * ARENA_CHUNK + last.len() - 1) as u32
    }

    /// Takes a value out; its id may be given again.
    pub fn remove(&mut self, id: u32) -> T {
        self.len -= 1;
        self.free.push(id);
        self.chunks[id as usize / ARENA_CHUNK][id as usize % ARENA_CHUNK].take().expect("a live id")
    }

    /// The value, if the id is live.
    pub fn get(&self, id: u32) -> Option<&T> {
        self.chunks.get(id as usize / ARENA_CHUNK)?.get(id as usize % ARENA_CHUNK)?.as_ref()
    }

    /// The value, if the id is live.
    pub fn get_mut(&mut self, id: u32) -> Option<&mut T> {
        self.chunks.get_mut(id as usize / ARENA_CHUNK)?.get_mut(id as usize % ARENA_CHUNK)?.as_mut()
    }

    /// Live values.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True without live values.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Live ids and values.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.chunks.iter().enumerate().flat_map(|(c, chunk)| {
            chunk.iter().enumerate().filter_map(move |(i, v)| Some(((c * ARENA_CHUNK + i) as u32, v.as_ref()?)))
        })
    }

    /// Bytes of the chunks.
    pub fn bytes(&self) -> u64 {
        (self.chunks.len() * ARENA_CHUNK * size_of::<Option<T>>()) as u64
    }
}

impl<T> std::ops::Index<u32> for Arena<T> {
    type Output = T;
    fn index(&self, id: u32) -> &T {
        self.chunks[id as usize / ARENA_CHUNK][id as usize % ARENA_CHUNK].as_ref().expect("a live id")
    }
}

impl<T> std::ops::IndexMut<u32> for Arena<T> {
    fn index_mut(&mut self, id: u32) -> &mut T {
        self.chunks[id as usize / ARENA_CHUNK][id as usize % ARENA_CHUNK].as_mut().expect("a live id")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stack_and_arena_reuse_ids_across_chunks() {
        let mut s = ChunkStack::default();
        (0..10_000).for_each(|i| s.push(i));
        assert_eq!(s.len(), 10_000);
        assert!((0..10_000).rev().all(|i| s.pop() == Some(i)));
        assert!(s.pop().is_none() && s.is_empty());
        let mut a = Arena::default();
        let ids: Vec<u32> = (0..3000).map(|i| a.insert(i)).collect();
        assert_eq!(a.remove(ids[1500]), 1500);
        assert_eq!(a.insert(7), ids[1500]);
        assert_eq!((a.len(), a[ids[1500]], a.get(5000)), (3000, 7, None));
    }
}
