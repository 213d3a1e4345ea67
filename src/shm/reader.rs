//! The other side of the same-host fast path: a process that maps the file read only and copies values out of it.
//!
//! The node says by message where a value is ([`SharedRef`]) and what its CRCs are; it may also pin it. The reader copies,
//! and then compares two words in the mapping: if they are unchanged, the slot was not reused before the copy ended.

use super::config::Probe;
use super::crc::copy_verified_quietly;
use super::error::ShmError;
use super::layout::{PAGE_BYTES, SUPERBLOCK_BYTES};
use super::object::{CHUNK_BYTES, SharedRef};
use super::region::Region;
use super::superblock;
use std::fs::File;

/// Why a value could not be copied. All but the first are faults; none leaves trusted bytes in the destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ReadFault {
    /// Its slot was freed or reused; a miss.
    #[error("the value was evicted or deleted while it was copied")]
    Gone,
    /// The bytes do not match the CRCs although the slot was not reused: tell the node.
    #[error("the value does not match its checksums")]
    Damaged,
    /// The message names a place outside the file, or numbers that do not fit each other.
    #[error("the place of the value lies outside the file or does not fit the destination")]
    Invalid,
}

/// A read-only mapping of a store's file.
#[derive(Debug)]
pub struct Reader {
    region: Region,
}

impl Reader {
    /// Maps the file behind a descriptor that the node has passed.
    ///
    /// # Errors
    /// A file that is not a store's or has another version, or one that cannot be mapped.
    pub fn new(file: &File) -> Result<Reader, ShmError> {
        let path = "the file passed by the node".to_string();
        let failed = |e: std::io::Error| ShmError::Io { path: path.clone(), action: "map it", message: e.to_string() };
        let len = file.metadata().map_err(failed)?.len();
        let region = Region::map(file, len.max(SUPERBLOCK_BYTES), false, Probe::default()).map_err(failed)?;
        let mut page = [0; SUPERBLOCK_BYTES as usize];
        region.read(0, &mut page);
        match superblock::read(&page) {
            Ok(s) if s.geometry.file_bytes == len => Ok(Reader { region }),
            found => {
                let reason = format!("it is not a shared-memory file that this program reads ({found:?})");
                Err(ShmError::Refused { path, reason, remedy: "use the same version as the node".into() })
            }
        }
    }

    /// Copies a value into `dst`, which has its length, and compares it with its CRCs in the same pass.
    ///
    /// # Errors
    /// See [`ReadFault`]; `dst` then holds anything.
    pub fn copy(&self, at: &SharedRef, crcs: &[u32], dst: &mut [u8]) -> Result<(), ReadFault> {
        let word = |at: u64| at.is_multiple_of(8) && self.region.holds(at, 8);
        let fits = self.region.holds(at.offset, at.len) && at.len == dst.len() as u64;
        let counts = crcs.len() == dst.len().div_ceil(CHUNK_BYTES) && at.offset.is_multiple_of(PAGE_BYTES);
        if !(fits && counts && word(at.header_at) && word(at.span_at)) {
            return Err(ReadFault::Invalid);
        }
        if !self.is_there(at) {
            return Err(ReadFault::Gone);
        }
        let source = self.region.address(at.offset, at.len);
        // SAFETY: the source lies in the mapping, which stays as long as `self`; it is shared memory, so `dst`, which is
        // exclusively borrowed, is no part of it. The node may write to it meanwhile, which this copy tolerates.
        let same = unsafe { copy_verified_quietly(dst.as_mut_ptr(), source, dst.len(), crcs) };
        match (self.is_there(at), same) {
            (false, _) => Err(ReadFault::Gone),
            (true, false) => Err(ReadFault::Damaged),
            (true, true) => Ok(()),
        }
    }

    /// Whether the slot still holds the value; the entry's word first, since it vouches for the place of the header's.
    fn is_there(&self, at: &SharedRef) -> bool {
        self.region.load_after_reads(at.header_at) == at.header_word
            && self.region.load_after_reads(at.span_at) == at.span_word
    }
}
