//! Values on their way out: their bytes, copied once from the caller with the CRC32C of each chunk, in buffers that are used
//! again.

use super::copy::append_crc;
use super::types::{NoMemory, PutItem};
use crate::rpc::limits::CHUNK_BYTES;
use bytes::Bytes;
use std::sync::{Arc, Mutex};

/// Buffers that are kept for the next value.
const KEPT: usize = 16;

/// Buffers of one chunk each. A new one costs the page faults of a mebibyte, so they are used again.
#[derive(Debug, Clone, Default)]
pub struct Buffers(Arc<Mutex<Vec<Vec<u8>>>>);

impl Buffers {
    fn take(&self) -> Result<Vec<u8>, NoMemory> {
        let kept = self.0.lock().unwrap_or_else(|e| e.into_inner()).pop();
        kept.map_or_else(|| with_room(CHUNK_BYTES), Ok)
    }
}

fn with_room(bytes: usize) -> Result<Vec<u8>, NoMemory> {
    let mut buffer = Vec::new();
    buffer.try_reserve_exact(bytes).map_err(|_| NoMemory)?;
    Ok(buffer)
}

/// A buffer that goes back when the last reader of its bytes is done.
struct Lent {
    bytes: Vec<u8>,
    home: Buffers,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let mut kept = self.home.0.lock().unwrap_or_else(|e| e.into_inner());
        if kept.len() < KEPT && self.bytes.capacity() == CHUNK_BYTES {
            let mut bytes = std::mem::take(&mut self.bytes);
            bytes.clear();
            kept.push(bytes);
        }
    }
}

/// Bytes of one chunk and their CRC32C.
pub type Chunk = (Bytes, u32);

/// A value that was copied: its chunks in order.
#[derive(Debug, Clone, Default)]
pub struct Copied(pub Vec<Chunk>);

impl Copied {
    /// Copies the whole value.
    ///
    /// # Errors
    /// There is no memory for it.
    pub fn new(item: &PutItem<'_>, buffers: &Buffers) -> Result<Copied, NoMemory> {
        let mut source = Source::new(item);
        std::iter::from_fn(|| source.next(buffers)).collect::<Result<_, _>>().map(Copied)
    }
}

/// Reads a value from the caller's memory chunk by chunk.
pub struct Source<'i, 'a> {
    item: &'i PutItem<'a>,
    segment: usize,
    offset: usize,
}

impl<'i, 'a> Source<'i, 'a> {
    /// From its start.
    pub fn new(item: &'i PutItem<'a>) -> Self {
        Source { item, segment: 0, offset: 0 }
    }

    /// The next chunk, unless there is no memory for it; `None` at the value's end.
    pub fn next(&mut self, buffers: &Buffers) -> Option<Result<Chunk, NoMemory>> {
        let left: usize = self.item.data.iter().skip(self.segment).map(|s| s.len()).sum::<usize>() - self.offset;
        if left == 0 {
            return None;
        }
        let size = left.min(CHUNK_BYTES);
        // Short values would hold a whole buffer each.
        let room = if size < CHUNK_BYTES / 2 { with_room(size) } else { buffers.take() };
        let Ok(mut bytes) = room else { return Some(Err(NoMemory)) };
        let mut crc = 0;
        while bytes.len() < size {
            let segment = self.item.data[self.segment];
            let n = (size - bytes.len()).min(segment.len() - self.offset);
            crc = append_crc(&mut bytes, &segment[self.offset..self.offset + n], crc);
            self.offset += n;
            if self.offset == segment.len() {
                (self.segment, self.offset) = (self.segment + 1, 0);
            }
        }
        Some(Ok((Bytes::from_owner(Lent { bytes, home: buffers.clone() }), crc)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::ObjectId;
    use smallvec::smallvec;

    #[test]
    fn segments_become_chunks() {
        let whole: Vec<u8> =
            (0..(2 * CHUNK_BYTES + 777) as u32).map(|i| (i.wrapping_mul(0x9e37_79b1) >> 24) as u8).collect();
        let id = ObjectId { key: [1; 32], part: 0, extent: [1; 32] };
        let cuts = [0, 0, 5, CHUNK_BYTES, CHUNK_BYTES + 1, whole.len(), whole.len()];
        let data = cuts.windows(2).map(|c| &whole[c[0]..c[1]]).collect();
        let item = PutItem { data, ..PutItem::new(id, &[]) };
        let buffers = Buffers::default();
        for _ in 0..2 {
            let copied = Copied::new(&item, &buffers).unwrap();
            assert_eq!(copied.0.iter().map(|c| c.0.len()).collect::<Vec<_>>(), [CHUNK_BYTES, CHUNK_BYTES, 777]);
            let joined: Vec<u8> = copied.0.iter().flat_map(|c| c.0.to_vec()).collect();
            assert!(joined == whole);
            assert!(copied.0.iter().all(|(bytes, crc)| crc32c::crc32c(bytes) == *crc));
        }
        assert_eq!(buffers.0.lock().unwrap().len(), 2, "the two whole buffers are used again");
        assert!(Copied::new(&PutItem { data: smallvec![], ..item }, &buffers).unwrap().0.is_empty());
    }
}
