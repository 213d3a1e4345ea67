//! How a span is cut, and its entry in the slab table.

use super::crc::crc32c;
use super::layout::{ENTRY_BYTES, Geometry, HEADER_BYTES, LONG_HEADER_BYTES, PAGE_BYTES, Word, state};
use super::object::{CHUNK_BYTES, MAX_VALUE_BYTES};

/// Pages of a slot that holds one chunk at most; its header is short.
pub const CHUNK_PAGES: u32 = (CHUNK_BYTES as u64 / PAGE_BYTES) as u32;
/// Pages of the longest slot.
pub const MAX_SLOT_PAGES: u32 = (MAX_VALUE_BYTES / PAGE_BYTES) as u32;

/// Equal slots in a run of slabs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpanShape {
    /// Pages of a slot.
    pub slot_pages: u32,
    /// Number of slots.
    pub slots: u32,
    /// Number of slabs.
    pub slabs: u32,
    /// Pages at the start that hold slot headers; 0 where header blocks hold them.
    pub header_pages: u16,
}

impl SpanShape {
    /// Distance of the slot headers.
    pub fn stride(&self) -> u64 {
        if self.slot_pages > CHUNK_PAGES { LONG_HEADER_BYTES } else { HEADER_BYTES }
    }

    /// Bytes of a slot.
    pub fn slot_bytes(&self) -> u64 {
        u64::from(self.slot_pages) * PAGE_BYTES
    }

    /// Position of a slot of the span that starts with slab `first`.
    pub fn slot_at(&self, g: &Geometry, first: u32, slot: u32) -> u64 {
        let pages = u64::from(self.header_pages) + u64::from(slot) * u64::from(self.slot_pages);
        g.slab_at(first) + pages * PAGE_BYTES
    }

    /// Position of a slot's header.
    pub fn header_at(&self, g: &Geometry, first: u32, slot: u32) -> u64 {
        let base = if self.header_pages > 0 { g.slab_at(first) } else { g.block_at(first) };
        base + u64::from(slot) * self.stride()
    }

    /// Whether slots and headers lie inside a span of this file that starts with slab `first`.
    pub fn fits(&self, g: &Geometry, first: u32) -> bool {
        let pages = u64::from(self.slabs) * u64::from(g.slab_pages());
        let slots = u64::from(self.slots) * u64::from(self.slot_pages);
        let headers = u64::from(self.slots) * self.stride();
        let room = match self.header_pages {
            0 => u64::from(self.slabs) * u64::from(g.block_bytes),
            n => u64::from(n) * PAGE_BYTES,
        };
        (1..=MAX_SLOT_PAGES).contains(&self.slot_pages)
            && self.slots >= 1
            && self.slabs >= 1
            && u64::from(first) + u64::from(self.slabs) <= u64::from(g.slabs)
            && slots + u64::from(self.header_pages) <= pages
            && headers <= room
    }

    /// The entry of slab `first`, as words in the order of the file.
    pub fn encode(&self, first: u32, generation: u64) -> [u64; 4] {
        let word = Word::new(generation, state::COMMITTED).0;
        let mut out = [
            word,
            u64::from(self.slot_pages) | u64::from(self.slots) << 32,
            u64::from(self.slabs) | u64::from(self.header_pages) << 32 | self.stride() << 48,
            0,
        ];
        out[3] = u64::from(check(&out, first)) << 32;
        out
    }

    /// Makes state and checksum of an entry right; for fuzz targets.
    pub fn mend(words: &mut [u64; 4], first: u32) {
        words[0] = Word::new(words[0] >> 8, state::COMMITTED).0;
        words[3] = u64::from(check(words, first)) << 32;
    }

    /// Reads the entry of slab `first`. `Ok(None)` for a free one, `Err` for a damaged one.
    pub fn decode(words: [u64; 4], g: &Geometry, first: u32) -> Result<Option<SpanShape>, Damaged> {
        match Word(words[0]).state() {
            state::FREE => return Ok(None),
            state::COMMITTED => {}
            _ => return Err(Damaged),
        }
        let shape = SpanShape {
            slot_pages: words[1] as u32,
            slots: (words[1] >> 32) as u32,
            slabs: words[2] as u32,
            header_pages: (words[2] >> 32) as u16,
        };
        let whole = words[3] == u64::from(check(&words, first)) << 32;
        if whole && words[2] >> 48 == shape.stride() && shape.fits(g, first) { Ok(Some(shape)) } else { Err(Damaged) }
    }
}

/// An entry or header that fails a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Damaged;

fn check(words: &[u64; 4], first: u32) -> u32 {
    let mut bytes = [0u8; ENTRY_BYTES as usize];
    for (to, word) in bytes.chunks_exact_mut(8).zip(&words[..3]) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    bytes[28..].copy_from_slice(&first.to_le_bytes());
    crc32c(&bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: SpanShape = SpanShape { slot_pages: 5, slots: 30, slabs: 10, header_pages: 1 };

    #[test]
    fn an_entry_reads_back_and_no_flip_of_a_bit_does() {
        let g = Geometry::of(16 << 20, 64 << 10).unwrap();
        let words = SHAPE.encode(3, 77);
        assert_eq!(SpanShape::decode(words, &g, 3), Ok(Some(SHAPE)));
        assert_eq!(SpanShape::decode(words, &g, 4), Err(Damaged), "an entry is bound to its place");
        for bit in 0..256 {
            let mut bad = words;
            bad[bit / 64] ^= 1 << (bit % 64);
            assert_eq!(SpanShape::decode(bad, &g, 3), Err(Damaged), "bit {bit}");
        }
        assert_eq!(SpanShape::decode([0; 4], &g, 3), Ok(None));
    }

    #[test]
    fn shapes_that_reach_beyond_their_span_do_not_fit() {
        let g = Geometry::of(16 << 20, 64 << 10).unwrap();
        assert!(SHAPE.fits(&g, 0) && SHAPE.fits(&g, g.slabs - 10) && !SHAPE.fits(&g, g.slabs - 9));
        let bad = [
            SpanShape { slot_pages: 6, ..SHAPE },
            SpanShape { slots: 32, ..SHAPE },
            SpanShape { slots: 33, slot_pages: 1, ..SHAPE },
            SpanShape { header_pages: 0, ..SHAPE },
            SpanShape { slabs: 0, ..SHAPE },
            SpanShape { slots: 0, ..SHAPE },
            SpanShape { slot_pages: 0, ..SHAPE },
            SpanShape { slot_pages: MAX_SLOT_PAGES + 1, slots: 1, slabs: 2049, header_pages: 0 },
            SpanShape { slots: u32::MAX, slot_pages: u32::MAX, ..SHAPE },
        ];
        for shape in bad {
            assert!(!shape.fits(&g, 0), "{shape:?}");
        }
    }
}
