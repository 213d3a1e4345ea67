//! Entry points of the fuzz target: bytes are read as if they stood on disk. With `mend` their checksums are made right
//! first, since random bytes never get beyond them. Not part of the library's interface.

use super::BLOCK;
use super::footer::{self, Listed, Trailer};
use super::group::Group;
use super::layout::{DirectoryId, SegmentHeader, Use, blocks_of};
use super::manifest::Manifest;
use super::memory::Memory;
use super::segment::{data_at, file_name};
use super::{Aligned, Disk, DiskConfig, Target, Worker};
use crate::shm::crc32c;
use std::sync::Arc;

const GENERATION: u64 = 7;
const BLOCKS: u32 = 16;
const DIRECTORY: DirectoryId = [9; 16];

/// The first block of `bytes`, and the rest.
fn block_of(bytes: &[u8]) -> ([u8; BLOCK], &[u8]) {
    let mut block = [0; BLOCK];
    let len = bytes.len().min(BLOCK);
    block[..len].copy_from_slice(&bytes[..len]);
    (block, &bytes[len..])
}

/// Reads bytes as a manifest, a segment's header, a group's header and a footer; what is accepted must be what would be
/// written, and lie within the segment.
pub fn read_parts(bytes: &[u8], mend: bool) {
    let (mut page, rest) = block_of(bytes);
    if mend {
        Manifest::mend(&mut page);
    }
    if let Ok(manifest) = Manifest::decode(&page) {
        assert_eq!(Manifest::decode(&manifest.encode()), Ok(manifest));
    }
    if mend {
        SegmentHeader::mend(&mut page);
    }
    if let Ok(Some(header)) = SegmentHeader::decode(&page, BLOCKS) {
        assert_eq!(SegmentHeader::decode(&header.encode(), BLOCKS), Ok(Some(header)));
    }
    if mend {
        Group::mend(&mut page);
    }
    let block = data_at(BLOCKS);
    if let Ok(group) = Group::decode(&page, GENERATION, block, BLOCKS) {
        assert!(block + group.blocks() <= BLOCKS && !group.entries.is_empty());
        assert!(group.entries.iter().all(|e| e.meta.validate().is_ok() && e.at > block));
        assert_eq!(Group::decode(&group.encode(), GENERATION, block, BLOCKS), Ok(group));
    }
    read_footer(&page, rest, mend);
}

fn read_footer(page: &[u8; BLOCK], records: &[u8], mend: bool) {
    let mut page = *page;
    let mut records = records.to_vec();
    records.resize(records.len().next_multiple_of(BLOCK), 0);
    if mend {
        page[28..32].copy_from_slice(&crc32c(&records).to_le_bytes());
        Trailer::mend(&mut page);
    }
    let data = data_at(BLOCKS);
    let Some(trailer) = Trailer::decode(&page, GENERATION, data, BLOCKS) else { return };
    let count = Trailer::record_blocks(trailer.entries as usize);
    assert!(data + count < BLOCKS);
    if let Ok(listed) = footer::decode(&trailer, &records, (data, BLOCKS - 1 - count)) {
        let inside = |l: &Listed| l.at + blocks_of(u64::from(l.len)) <= BLOCKS - 1 - count && l.header >= data;
        assert!(listed.len() == trailer.entries as usize && listed.iter().all(inside));
    }
}

/// Opens a directory with one segment whose bytes follow from these, reads all that it claims to hold, and writes to it.
pub fn open_segment(bytes: &[u8], mend: bool) {
    let mut segment = vec![0; BLOCKS as usize * BLOCK];
    let len = bytes.len().min(segment.len() - BLOCK);
    segment[BLOCK..BLOCK + len].copy_from_slice(&bytes[..len]);
    let header = SegmentHeader {
        directory: DIRECTORY,
        number: 0,
        blocks: BLOCKS,
        generation: GENERATION,
        used: Use::Taken,
        stream: 0,
    };
    segment[..BLOCK].copy_from_slice(&header.encode());
    if mend {
        mend_segment(&mut segment);
    }
    let manifest = Manifest {
        directory: DIRECTORY,
        fingerprint: [0; 32],
        epoch: 1,
        capacity_bytes: 0,
        segment_bytes: segment.len() as u32,
    };
    let at = data_at(BLOCKS);
    let first = Group::decode(&block_of(&segment[at as usize * BLOCK..]).0, GENERATION, at, BLOCKS);
    let groups = first.map_or(Vec::new(), |group| group.entries);
    let device = Arc::new(Memory::new());
    device.place("manifest", manifest.encode().to_vec());
    let bytes = segment.len() as u64;
    device.place(&file_name(0), segment);
    let config = DiskConfig { worker: Worker::Caller, ..DiskConfig::new("nowhere", 8 * bytes) };
    let (disk, report) = Disk::open_on(&config, device).expect("a damaged segment is no reason not to open");
    disk.check_integrity().expect("what was recovered agrees with itself");
    assert!(report.objects <= u64::from(BLOCKS));
    for entry in groups {
        let target = Target::Buffer(Aligned::new(BLOCKS as usize * BLOCK));
        disk.get(entry.meta.tenant, &entry.meta.id, target, |read| {
            // Whatever it is: a value that was verified, or an error.
            let _ = read.and_then(|fetched| fetched.verify()).map(|value| value.bytes().len());
        });
    }
    while disk.work() {}
    disk.check_integrity().expect("what was served agrees with itself");
}

/// Makes the checksums of the first group and of the footer right, and with them what must match.
fn mend_segment(segment: &mut [u8]) {
    let at = data_at(BLOCKS);
    let from = at as usize * BLOCK;
    let mut group = block_of(&segment[from..]).0;
    group[0..8].copy_from_slice(b"mimogrp\0");
    group[8..12].copy_from_slice(&super::layout::VERSION.to_le_bytes());
    group[16..24].copy_from_slice(&GENERATION.to_le_bytes());
    group[24..28].copy_from_slice(&at.to_le_bytes());
    group[28..32].fill(0);
    Group::mend(&mut group);
    segment[from..from + BLOCK].copy_from_slice(&group);
    let last = segment.len() - BLOCK;
    let mut trailer = block_of(&segment[last..]).0;
    let count = Trailer::record_blocks(trailer[24] as usize) as usize;
    let sum = crc32c(&segment[last - count * BLOCK..last]);
    trailer[28..32].copy_from_slice(&sum.to_le_bytes());
    Trailer::mend(&mut trailer);
    segment[last..].copy_from_slice(&trailer);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the fuzzer does, for a moment, with bytes of which most are zero.
    #[test]
    fn random_bytes_are_read_or_refused() {
        let mut x = 1u64;
        let mut next = move || {
            x = x.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            x >> 33
        };
        for case in 0..400 {
            let mut bytes = vec![0u8; (next() % 62_000) as usize];
            for _ in 0..next() % 60 {
                let at = next() as usize % bytes.len().clamp(1, 700);
                bytes.iter_mut().skip(at + (next() % 3 * 4096) as usize).take(1).for_each(|b| *b = next() as u8);
            }
            read_parts(&bytes, case % 2 == 0);
            open_segment(&bytes, case % 2 == 0);
        }
    }

    /// A group that the mending leaves as it is must be recovered: the fuzzer gets beyond the checks.
    #[test]
    fn a_whole_group_is_recovered() {
        use crate::disk::group::Entry;
        use crate::shm::{ObjectId, PutMeta, chunk_crcs};
        let (value, key) = ([5u8; 100], [3; 32]);
        let id = ObjectId { key, part: 2 };
        let meta =
            PutMeta { id, tenant: 4, bucket: 0, len: 100, extent: key, page_index: 0, superseded: false, layout: 0 };
        let at = data_at(BLOCKS);
        let entry = Entry { meta, crcs: chunk_crcs(&value), at: at + 1 };
        let group = Group { generation: GENERATION, block: at, first: 0, entries: vec![entry] };
        let mut bytes = vec![0; (BLOCKS as usize - 1) * BLOCK];
        let from = (at as usize - 1) * BLOCK;
        bytes[from..from + BLOCK].copy_from_slice(&group.encode());
        bytes[from + BLOCK..from + BLOCK + 100].copy_from_slice(&value);
        open_segment(&bytes, true);
        read_parts(&group.encode(), false);
    }
}
