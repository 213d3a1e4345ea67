//! What an object is called and what is known of it besides its bytes.

use super::error::ShmError;

/// Chain key of a page (`docs/keys.md`).
pub type ChainKey = [u8; 32];

/// Parts of one key: a mask over them is one `u64`. By convention part = group x 32 + shard, group 0 for full pages and 1
/// for SWA pages.
pub const MAX_PARTS: u8 = 64;

/// Longest value.
pub const MAX_VALUE_BYTES: u64 = 128 << 20;

/// Bytes of a value that share one CRC32C.
pub const CHUNK_BYTES: usize = 1 << 20;

/// Chunks of a value of `len` bytes.
pub const fn chunks_of(len: usize) -> usize {
    len.div_ceil(CHUNK_BYTES)
}

/// Name of an object within its tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectId {
    /// Chain key of the page.
    pub key: ChainKey,
    /// Part, less than [`MAX_PARTS`].
    pub part: u8,
}

/// What a writer says of a value before its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PutMeta {
    /// Name within the tenant.
    pub id: ObjectId,
    /// Who may see it; 0 for none.
    pub tenant: u64,
    /// Bucket of the placement table, for those who cannot interpret the key.
    pub bucket: u32,
    /// Bytes, 1 to [`MAX_VALUE_BYTES`].
    pub len: u64,
    /// Chain key of the first page of the object's extent.
    pub extent: ChainKey,
    /// Index of the page in its prefix.
    pub page_index: u32,
    /// An SWA page whose checkpoint has a successor: goes before the rest of its extent.
    pub superseded: bool,
    /// Layout number of the bytes.
    pub layout: u32,
}

impl PutMeta {
    /// Refuses a part or length outside the limits.
    pub fn validate(&self) -> Result<(), ShmError> {
        if self.id.part >= MAX_PARTS {
            return Err(ShmError::invalid("part", self.id.part, format!("0 to {}", MAX_PARTS - 1)));
        }
        if self.len == 0 || self.len > MAX_VALUE_BYTES {
            return Err(ShmError::invalid("value length", self.len, format!("1 to {MAX_VALUE_BYTES} bytes")));
        }
        Ok(())
    }
}

/// What is known of a stored value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObjectMeta {
    /// As it was put.
    pub put: PutMeta,
    /// Unique in the life of the file.
    pub generation: u64,
}

/// Where a reader in another process finds a value, and the two words that tell whether it still was there after the copy
/// (`docs/format.md`). All positions count from the start of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedRef {
    /// First byte of the value.
    pub offset: u64,
    /// Bytes of the value.
    pub len: u64,
    /// Position of the slot header's word.
    pub header_at: u64,
    /// What it must be.
    pub header_word: u64,
    /// Position of the word of the span's entry in the slab table.
    pub span_at: u64,
    /// What it must be.
    pub span_word: u64,
}
