//! Where things are in the file, layout version 1 (`docs/format.md`).

use super::error::ShmError;

/// Unit of slots, and alignment of values.
pub const PAGE_BYTES: u64 = 4096;
/// The superblock.
pub const SUPERBLOCK_BYTES: u64 = PAGE_BYTES;
/// One entry of the slab table.
pub const ENTRY_BYTES: u64 = 32;
/// Distance of slot headers where a slot holds one chunk.
pub const HEADER_BYTES: u64 = 128;
/// Distance of slot headers where a slot holds more chunks.
pub const LONG_HEADER_BYTES: u64 = 640;
/// A slab's header block is this part of the slab.
pub const BLOCK_SHARE: u32 = 256;
/// Smallest slab.
pub const MIN_SLAB_BYTES: u32 = 64 << 10;
/// Largest slab.
pub const MAX_SLAB_BYTES: u32 = 16 << 20;
/// Page numbers are 32 bits; the largest is kept free.
pub const MAX_FILE_BYTES: u64 = (u32::MAX as u64 - 1) * PAGE_BYTES;

/// States of a word, five bits apart from each other.
pub mod state {
    /// No value, no span.
    pub const FREE: u8 = 0x00;
    /// A writer owns the slot.
    pub const WRITING: u8 = 0x1f;
    /// A value, or a span.
    pub const COMMITTED: u8 = 0xf8;
}

/// A generation and a state in one atomic store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Word(pub u64);

impl Word {
    /// Joins the two; a generation has 56 bits.
    pub fn new(generation: u64, state: u8) -> Word {
        debug_assert!(generation < 1 << 56);
        Word(generation << 8 | u64::from(state))
    }

    /// Unique in the life of the file.
    pub fn generation(self) -> u64 {
        self.0 >> 8
    }

    /// One of [`state`], unless damaged.
    pub fn state(self) -> u8 {
        self.0 as u8
    }
}

/// Sizes and positions that follow from the sizes of file and slab.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Size of the file.
    pub file_bytes: u64,
    /// Size of a slab.
    pub slab_bytes: u32,
    /// Number of slabs.
    pub slabs: u32,
    /// Start of the slab table.
    pub table_at: u64,
    /// Start of the header blocks.
    pub blocks_at: u64,
    /// Start of the slabs.
    pub slabs_at: u64,
    /// Size of a slab's header block.
    pub block_bytes: u32,
}

impl Geometry {
    /// As many slabs as fit.
    pub fn of(file_bytes: u64, slab_bytes: u32) -> Result<Geometry, ShmError> {
        if !slab_bytes.is_power_of_two() || !(MIN_SLAB_BYTES..=MAX_SLAB_BYTES).contains(&slab_bytes) {
            let allowed = format!("a power of two, {MIN_SLAB_BYTES} to {MAX_SLAB_BYTES} bytes");
            return Err(ShmError::invalid("slab size", slab_bytes, allowed));
        }
        if !file_bytes.is_multiple_of(PAGE_BYTES) || file_bytes > MAX_FILE_BYTES {
            let allowed = format!("a multiple of {PAGE_BYTES}, at most {MAX_FILE_BYTES} bytes");
            return Err(ShmError::invalid("size of the shared-memory file", file_bytes, allowed));
        }
        let block_bytes = slab_bytes / BLOCK_SHARE;
        let each = u64::from(slab_bytes) + u64::from(block_bytes) + ENTRY_BYTES;
        let most = (file_bytes / each) as u32;
        let fitting = (1..=most).rev().map(|slabs| Self::with(file_bytes, slab_bytes, slabs));
        // Rounding costs less than three slabs, so this looks at a few numbers only.
        fitting.take_while(|g| most - g.slabs < 8).find(|g| g.end() <= file_bytes).ok_or_else(|| {
            let least = Self::with(0, slab_bytes, 1).end();
            ShmError::invalid("size of the shared-memory file", file_bytes, format!("at least {least} bytes"))
        })
    }

    fn with(file_bytes: u64, slab_bytes: u32, slabs: u32) -> Geometry {
        let block_bytes = slab_bytes / BLOCK_SHARE;
        let blocks_at = (SUPERBLOCK_BYTES + u64::from(slabs) * ENTRY_BYTES).next_multiple_of(PAGE_BYTES);
        let blocks_end = (blocks_at + u64::from(slabs) * u64::from(block_bytes)).next_multiple_of(PAGE_BYTES);
        Geometry {
            file_bytes,
            slab_bytes,
            slabs,
            table_at: SUPERBLOCK_BYTES,
            blocks_at,
            slabs_at: blocks_end.next_multiple_of(u64::from(slab_bytes)),
            block_bytes,
        }
    }

    fn end(&self) -> u64 {
        self.slab_at(self.slabs)
    }

    /// Pages of a slab.
    pub fn slab_pages(&self) -> u32 {
        self.slab_bytes / PAGE_BYTES as u32
    }

    /// Position of a slab.
    pub fn slab_at(&self, slab: u32) -> u64 {
        self.slabs_at + u64::from(slab) * u64::from(self.slab_bytes)
    }

    /// Position of a slab's entry in the table.
    pub fn entry_at(&self, slab: u32) -> u64 {
        self.table_at + u64::from(slab) * ENTRY_BYTES
    }

    /// Position of a slab's header block.
    pub fn block_at(&self, slab: u32) -> u64 {
        self.blocks_at + u64::from(slab) * u64::from(self.block_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_slabs_as_fit_and_nothing_overlaps() {
        for slab in [MIN_SLAB_BYTES, 1 << 20, MAX_SLAB_BYTES] {
            for pages in (0..40_000u64).step_by(7) {
                let bytes = pages * PAGE_BYTES;
                let Ok(g) = Geometry::of(bytes, slab) else {
                    assert!(bytes < 3 * u64::from(slab), "{bytes} bytes hold a slab of {slab}");
                    continue;
                };
                assert!(g.entry_at(g.slabs) <= g.blocks_at && g.block_at(g.slabs) <= g.slabs_at, "{g:?}");
                assert!(g.end() <= bytes && g.slabs_at.is_multiple_of(u64::from(slab)), "{g:?}");
                assert!(Geometry::with(bytes, slab, g.slabs + 1).end() > bytes, "{g:?} leaves a slab out");
            }
        }
    }

    #[test]
    fn sizes_outside_the_limits_are_refused() {
        for (bytes, slab) in [(1 << 30, 0), (1 << 30, 65_537), (1 << 30, 32 << 10), (1 << 30, 32 << 20)] {
            assert!(Geometry::of(bytes, slab).unwrap_err().to_string().contains("slab size"));
        }
        for bytes in [0, 4096, 4097, (1 << 30) + 1, u64::MAX, u64::MAX - 4095, MAX_FILE_BYTES + PAGE_BYTES] {
            assert!(Geometry::of(bytes, 1 << 20).is_err(), "{bytes}");
        }
        assert!(Geometry::of(MAX_FILE_BYTES, 1 << 20).unwrap().slabs > 16_000_000);
    }
}
