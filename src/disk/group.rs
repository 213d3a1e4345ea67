//! The header block of a group: what is known of the entries whose payloads follow it (`docs/format.md`).
//!
//! One block describes up to 40 short values, so that a value of one block does not cost two. A block stands for itself:
//! nothing outside it is needed to trust it.

use super::BLOCK;
use super::layout::{Damaged, MAX_ENTRIES, VERSION, blocks_of, sum_around, u32_at, u64_at};
use crate::shm::{ChainKey, MAX_PARTS, MAX_VALUE_BYTES, ObjectId, PutMeta, chunks_of};
use smallvec::SmallVec;

const MAGIC: [u8; 8] = *b"mimogrp\0";
const SUM_AT: usize = 12;
const PREFIX: usize = 48;
const RECORD: usize = 96;
const FLAG_SUPERSEDED: u8 = 1;

/// CRC32C of each chunk of a value.
pub type Crcs = SmallVec<[u32; 4]>;

/// One value of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// As it was put.
    pub meta: PutMeta,
    /// CRC32C of each of its chunks.
    pub crcs: Crcs,
    /// First block of its bytes in the segment.
    pub at: u32,
}

impl Entry {
    /// Bytes of a record with so many chunks.
    pub fn record_bytes(len: u64) -> usize {
        RECORD + 4 * chunks_of(len as usize)
    }
}

/// A group's header block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// Of the segment.
    pub generation: u64,
    /// Block of this header in the segment.
    pub block: u32,
    /// Entries of the segment before this group.
    pub first: u32,
    /// In the order of their bytes.
    pub entries: Vec<Entry>,
}

/// Whether another entry of `len` bytes fits into a header that has `used` bytes of records.
pub fn has_room(used: usize, len: u64) -> bool {
    PREFIX + used + Entry::record_bytes(len) <= BLOCK
}

impl Group {
    /// Blocks of the header and all payloads.
    pub fn blocks(&self) -> u32 {
        1 + self.entries.iter().map(|e| blocks_of(e.meta.len)).sum::<u32>()
    }

    /// The block.
    ///
    /// # Panics
    /// When the records do not fit, which [`has_room`] prevents.
    pub fn encode(&self) -> [u8; BLOCK] {
        let mut b = [0; BLOCK];
        b[0..8].copy_from_slice(&MAGIC);
        b[8..12].copy_from_slice(&VERSION.to_le_bytes());
        b[16..24].copy_from_slice(&self.generation.to_le_bytes());
        b[24..28].copy_from_slice(&self.block.to_le_bytes());
        b[28..32].copy_from_slice(&self.first.to_le_bytes());
        b[32..36].copy_from_slice(&(self.entries.len() as u32).to_le_bytes());
        b[36..40].copy_from_slice(&self.blocks().to_le_bytes());
        let mut at = PREFIX;
        for entry in &self.entries {
            let end = at + Entry::record_bytes(entry.meta.len);
            encode_record(entry, &mut b[at..end]);
            at = end;
        }
        Self::mend(&mut b);
        b
    }

    /// Makes the checksum right; for fuzz targets.
    pub fn mend(b: &mut [u8; BLOCK]) {
        let sum = sum_around(b, SUM_AT, BLOCK);
        b[SUM_AT..SUM_AT + 4].copy_from_slice(&sum.to_le_bytes());
    }

    /// Reads the header of the group that starts at `block` of a segment of `blocks` blocks. Payloads end before block
    /// `blocks`; nothing is allocated that does not fit into the header.
    pub fn decode(b: &[u8; BLOCK], generation: u64, block: u32, blocks: u32) -> Result<Group, Damaged> {
        let number = |at| u32_at(b, at).expect("inside");
        if b[0..8] != MAGIC || number(8) != VERSION || number(SUM_AT) != sum_around(b, SUM_AT, BLOCK) {
            return Err(Damaged("the checksum of a group header does not match"));
        }
        if u64_at(b, 16) != Some(generation) || number(24) != block {
            return Err(Damaged("a group header belongs elsewhere"));
        }
        let (first, count) = (number(28), number(32) as usize);
        if count == 0 || count > BLOCK / RECORD || first as usize + count > MAX_ENTRIES {
            return Err(Damaged("a group header counts impossible entries"));
        }
        let mut entries = Vec::with_capacity(count);
        let (mut at, mut payload) = (PREFIX, u64::from(block) + 1);
        for _ in 0..count {
            let entry = decode_record(b, at, payload as u32)?;
            at += Entry::record_bytes(entry.meta.len);
            payload += u64::from(blocks_of(entry.meta.len));
            if payload > u64::from(blocks) {
                return Err(Damaged("a group reaches beyond its segment"));
            }
            entries.push(entry);
        }
        let group = Group { generation, block, first, entries };
        if number(36) != group.blocks() {
            return Err(Damaged("a group header contradicts itself"));
        }
        Ok(group)
    }
}

fn encode_record(entry: &Entry, b: &mut [u8]) {
    let put = &entry.meta;
    b[0..8].copy_from_slice(&put.tenant.to_le_bytes());
    b[8..40].copy_from_slice(&put.id.key);
    b[40..72].copy_from_slice(&put.extent);
    b[72..76].copy_from_slice(&put.bucket.to_le_bytes());
    b[76..80].copy_from_slice(&put.page_index.to_le_bytes());
    b[80..84].copy_from_slice(&put.layout.to_le_bytes());
    b[84..88].copy_from_slice(&(put.len as u32).to_le_bytes());
    b[88] = put.id.part;
    b[89] = if put.superseded { FLAG_SUPERSEDED } else { 0 };
    for (n, crc) in entry.crcs.iter().enumerate() {
        b[RECORD + 4 * n..RECORD + 4 * n + 4].copy_from_slice(&crc.to_le_bytes());
    }
}

fn decode_record(b: &[u8; BLOCK], at: usize, payload: u32) -> Result<Entry, Damaged> {
    const SHORT: Damaged = Damaged("a group header ends within an entry");
    let record = b.get(at..at + RECORD).ok_or(SHORT)?;
    let number = |at| u32_at(record, at).expect("inside");
    let key = |at: usize| -> ChainKey { record[at..at + 32].try_into().expect("32 bytes") };
    let len = u64::from(number(84));
    let part = record[88];
    if len == 0 || len > MAX_VALUE_BYTES || part >= MAX_PARTS || record[89] & !FLAG_SUPERSEDED != 0 {
        return Err(Damaged("an entry is outside the limits"));
    }
    let sums = b.get(at + RECORD..at + Entry::record_bytes(len)).ok_or(SHORT)?;
    let meta = PutMeta {
        id: ObjectId { key: key(8), part },
        tenant: u64_at(record, 0).expect("inside"),
        bucket: number(72),
        len,
        extent: key(40),
        page_index: number(76),
        superseded: record[89] & FLAG_SUPERSEDED != 0,
        layout: number(80),
    };
    let crcs = sums.chunks_exact(4).map(|c| u32::from_le_bytes(c.try_into().expect("four bytes"))).collect();
    Ok(Entry { meta, crcs, at: payload })
}
