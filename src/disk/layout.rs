//! Numbers of the format (`docs/format.md`, "The disk tier"), and the header of a segment.

use super::BLOCK;
use crate::shm::{MAX_PARTS, crc32c, crc32c_append};

/// The version that is written, of manifest and segments.
pub const VERSION: u32 = 1;
/// Smallest segment.
pub const MIN_SEGMENT_BYTES: u64 = 64 << 10;
/// Largest segment: its blocks fit 18 bits.
pub const MAX_SEGMENT_BYTES: u64 = 1 << 30;
/// Most entries of a segment: an entry's number has 16 bits.
pub const MAX_ENTRIES: usize = 65_535;
/// First block after the header block: the marks.
pub const MARKS_AT: u32 = 1;
/// Parts from here on go to the stream of checkpoints.
pub const CHECKPOINT_PARTS: u8 = MAX_PARTS / 2;

const MAGIC: [u8; 8] = *b"mimoseg\0";
const SUM_AT: usize = 12;
const SUMMED: usize = 256;

/// Identity of a directory, random, in its manifest and in each of its segments.
pub type DirectoryId = [u8; 16];

/// Something on disk that does not pass its checks, and which.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Damaged(pub &'static str);

/// Blocks that `len` bytes take.
pub const fn blocks_of(len: u64) -> u32 {
    len.div_ceil(BLOCK as u64) as u32
}

/// Position of a block.
pub const fn byte_of(block: u32) -> u64 {
    block as u64 * BLOCK as u64
}

/// Blocks of the marks of a segment of `blocks` blocks: a byte for each entry that may be in it.
pub const fn mark_blocks(blocks: u32) -> u32 {
    let entries = if blocks as usize > MAX_ENTRIES { MAX_ENTRIES as u64 } else { blocks as u64 };
    blocks_of(entries)
}

/// A little-endian number at `at`.
pub fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4).map(|b| u32::from_le_bytes(b.try_into().expect("four bytes")))
}

/// A little-endian number at `at`.
pub fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..at + 8).map(|b| u64::from_le_bytes(b.try_into().expect("eight bytes")))
}

/// CRC32C of the first `end` bytes without the four at `hole`.
pub fn sum_around(bytes: &[u8], hole: usize, end: usize) -> u32 {
    crc32c_append(crc32c(&bytes[..hole]), &bytes[hole + 4..end])
}

/// Whether a segment holds entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// Nothing in it counts.
    Free = 1,
    /// Groups of its generation count.
    Taken = 2,
}

/// Block 0 of a segment. All of it lies in one sector, so that a crash leaves the old one or the new one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentHeader {
    /// Of the directory.
    pub directory: DirectoryId,
    /// Number in the file's name.
    pub number: u32,
    /// Blocks of the file.
    pub blocks: u32,
    /// Given once in the life of the directory; the last one of a free segment.
    pub generation: u64,
    /// Whether it holds entries.
    pub used: Use,
    /// Whose entries.
    pub stream: u8,
}

impl SegmentHeader {
    /// The block.
    pub fn encode(&self) -> [u8; BLOCK] {
        let mut b = [0; BLOCK];
        b[0..8].copy_from_slice(&MAGIC);
        b[8..12].copy_from_slice(&VERSION.to_le_bytes());
        b[16..32].copy_from_slice(&self.directory);
        b[32..36].copy_from_slice(&self.number.to_le_bytes());
        b[36..40].copy_from_slice(&self.blocks.to_le_bytes());
        b[40..48].copy_from_slice(&self.generation.to_le_bytes());
        b[48] = self.used as u8;
        b[49] = self.stream;
        Self::mend(&mut b);
        b
    }

    /// Makes the checksum right; for fuzz targets.
    pub fn mend(b: &mut [u8; BLOCK]) {
        let sum = sum_around(b, SUM_AT, SUMMED);
        b[SUM_AT..SUM_AT + 4].copy_from_slice(&sum.to_le_bytes());
    }

    /// Reads block 0 of a file of `blocks` blocks. None: all zero, a file that was only made.
    pub fn decode(b: &[u8; BLOCK], blocks: u32) -> Result<Option<SegmentHeader>, Damaged> {
        if b[..SUMMED].iter().all(|b| *b == 0) {
            return Ok(None);
        }
        if b[0..8] != MAGIC {
            return Err(Damaged("its header is not one of a segment"));
        }
        if u32_at(b, 8) != Some(VERSION) {
            return Err(Damaged("its header has another version"));
        }
        if u32_at(b, SUM_AT) != Some(sum_around(b, SUM_AT, SUMMED)) {
            return Err(Damaged("the checksum of its header does not match"));
        }
        let used = match b[48] {
            1 => Use::Free,
            2 => Use::Taken,
            _ => return Err(Damaged("its header says neither free nor taken")),
        };
        let header = SegmentHeader {
            directory: b[16..32].try_into().expect("16 bytes"),
            number: u32_at(b, 32).expect("inside"),
            blocks: u32_at(b, 36).expect("inside"),
            generation: u64_at(b, 40).expect("inside"),
            used,
            stream: b[49],
        };
        if header.blocks != blocks {
            return Err(Damaged("its size is not the one in its header"));
        }
        if usize::from(header.stream) >= super::STREAMS {
            return Err(Damaged("its header names a stream that does not exist"));
        }
        Ok(Some(header))
    }
}

/// The mark of an entry that is deleted or was moved.
pub const MARKED: u8 = 0xff;

/// Whether a byte of the marks is a mark: most bits decide, so that no three bits that flip change it.
pub fn is_marked(byte: u8) -> bool {
    byte.count_ones() >= 4
}
