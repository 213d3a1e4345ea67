//! The footer of a sealed segment: what recovery needs of each entry, and nothing of the values.
//!
//! The last block of the file says how many entries there are; their records end where it starts. What reclaiming and
//! lookups need beyond that is in the groups' headers.

use super::BLOCK;
use super::group::Group;
use super::layout::{Damaged, MAX_ENTRIES, VERSION, blocks_of, sum_around, u32_at, u64_at};
use crate::shm::{ChainKey, MAX_PARTS, MAX_VALUE_BYTES, crc32c};

const MAGIC: [u8; 8] = *b"mimofoot";
const SUM_AT: usize = 12;
/// Bytes of a record.
pub const RECORD: usize = 64;

/// An entry as the footer knows it. Its number in the segment is its place in the footer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listed {
    /// Chain key.
    pub key: ChainKey,
    /// Who may see it.
    pub tenant: u64,
    /// Bytes of the value.
    pub len: u32,
    /// First block of the value.
    pub at: u32,
    /// Block of its group's header.
    pub header: u32,
    /// Bucket of the placement table.
    pub bucket: u32,
    /// Part.
    pub part: u8,
}

impl Listed {
    /// The entries of a group.
    pub fn of_group(group: &Group) -> impl Iterator<Item = Listed> + '_ {
        group.entries.iter().map(|e| Listed {
            key: e.meta.id.key,
            tenant: e.meta.tenant,
            len: e.meta.len as u32,
            at: e.at,
            header: group.block,
            bucket: e.meta.bucket,
            part: e.meta.id.part,
        })
    }

    fn encode(&self) -> [u8; RECORD] {
        let mut b = [0; RECORD];
        b[0..32].copy_from_slice(&self.key);
        b[32..40].copy_from_slice(&self.tenant.to_le_bytes());
        b[40..44].copy_from_slice(&self.len.to_le_bytes());
        b[44..48].copy_from_slice(&self.at.to_le_bytes());
        b[48..52].copy_from_slice(&self.header.to_le_bytes());
        b[52..56].copy_from_slice(&self.bucket.to_le_bytes());
        b[56] = self.part;
        b
    }

    /// Reads a record of a segment whose data lie in blocks `data.0` to before `data.1`.
    fn decode(b: &[u8], data: (u32, u32)) -> Result<Listed, Damaged> {
        let number = |at| u32_at(b, at).expect("inside");
        let listed = Listed {
            key: b[0..32].try_into().expect("32 bytes"),
            tenant: u64_at(b, 32).expect("inside"),
            len: number(40),
            at: number(44),
            header: number(48),
            bucket: number(52),
            part: b[56],
        };
        let end = u64::from(listed.at) + u64::from(blocks_of(u64::from(listed.len)));
        let inside = listed.header >= data.0 && listed.header < listed.at && end <= u64::from(data.1);
        let near = listed.at.wrapping_sub(listed.header) <= u32::from(u16::MAX);
        let sane = listed.len > 0 && u64::from(listed.len) <= MAX_VALUE_BYTES && listed.part < MAX_PARTS;
        if inside && near && sane { Ok(listed) } else { Err(Damaged("an entry of its footer is outside the limits")) }
    }
}

/// The last block of a sealed segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trailer {
    /// Of the segment.
    pub generation: u64,
    /// Records before it.
    pub entries: u32,
    /// CRC32C of the records' blocks.
    pub records_sum: u32,
}

impl Trailer {
    /// Blocks of the records of so many entries.
    pub fn record_blocks(entries: usize) -> u32 {
        blocks_of((entries * RECORD) as u64)
    }

    /// Makes the checksum right; for fuzz targets.
    pub fn mend(b: &mut [u8; BLOCK]) {
        let sum = sum_around(b, SUM_AT, BLOCK);
        b[SUM_AT..SUM_AT + 4].copy_from_slice(&sum.to_le_bytes());
    }

    fn encode(&self) -> [u8; BLOCK] {
        let mut b = [0; BLOCK];
        b[0..8].copy_from_slice(&MAGIC);
        b[8..12].copy_from_slice(&VERSION.to_le_bytes());
        b[16..24].copy_from_slice(&self.generation.to_le_bytes());
        b[24..28].copy_from_slice(&self.entries.to_le_bytes());
        b[28..32].copy_from_slice(&self.records_sum.to_le_bytes());
        Self::mend(&mut b);
        b
    }

    /// Reads the last block of a segment of `blocks` blocks whose data begin at `data_at`. None: this generation was not
    /// sealed, or the block is damaged, which cannot be told apart. The records lie within the segment.
    pub fn decode(b: &[u8; BLOCK], generation: u64, data_at: u32, blocks: u32) -> Option<Trailer> {
        let number = |at| u32_at(b, at).expect("inside");
        let trailer = Trailer { generation: u64_at(b, 16)?, entries: number(24), records_sum: number(28) };
        let entries = trailer.entries as usize;
        let right = b[0..8] == MAGIC && number(8) == VERSION && number(SUM_AT) == sum_around(b, SUM_AT, BLOCK);
        let fits = entries <= MAX_ENTRIES && Trailer::record_blocks(entries) + 1 + data_at <= blocks;
        (right && fits && trailer.generation == generation).then_some(trailer)
    }
}

/// The footer's bytes: records, padded to a block, and the trailer.
pub fn encode(generation: u64, entries: &[Listed]) -> Vec<u8> {
    let mut bytes: Vec<u8> = entries.iter().flat_map(Listed::encode).collect();
    bytes.resize(Trailer::record_blocks(entries.len()) as usize * BLOCK, 0);
    let trailer = Trailer { generation, entries: entries.len() as u32, records_sum: crc32c(&bytes) };
    bytes.extend_from_slice(&trailer.encode());
    bytes
}

/// Reads the records that a trailer vouches for; data lie in blocks `data.0` to before `data.1`.
pub fn decode(trailer: &Trailer, records: &[u8], data: (u32, u32)) -> Result<Vec<Listed>, Damaged> {
    let count = trailer.entries as usize;
    if records.len() != Trailer::record_blocks(count) as usize * BLOCK || crc32c(records) != trailer.records_sum {
        return Err(Damaged("the checksum of its footer does not match"));
    }
    records.chunks_exact(RECORD).take(count).map(|r| Listed::decode(r, data)).collect()
}
