//! The other side of the same-host fast path: a process that maps the file read only and copies values out of it.
//!
//! The node says by message where a value is ([`SharedRef`]) and what its CRCs are; it may also pin it. The reader copies,
//! and then compares two words in the mapping: if they are unchanged, the slot was not reused before the copy ended.
//! Nothing that the message says is trusted: a place outside the file is a fault.

use super::config::Probe;
use super::crc::copy_quietly_append;
use super::error::ShmError;
use super::layout::{PAGE_BYTES, SUPERBLOCK_BYTES};
use super::object::{CHUNK_BYTES, SharedRef};
use super::region::Region;
use super::superblock;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;

/// Why a value could not be copied. None leaves trusted bytes in the destination.
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
    /// The caller wanted no more.
    #[error("the copy was stopped")]
    Stopped,
}

/// A read-only mapping of a store's file.
#[derive(Debug)]
pub struct Reader {
    region: Region,
    /// Device, inode and bytes of the file.
    file: (u64, u64, u64),
}

impl Reader {
    /// Maps the file behind a descriptor that the node has passed. The descriptor is not needed afterwards.
    ///
    /// # Errors
    /// A file that is not a store's or has another version, or one that cannot be mapped.
    pub fn new(file: &File) -> Result<Reader, ShmError> {
        let path = "the file passed by the node".to_string();
        let failed = |e: io::Error| ShmError::Io { path: path.clone(), action: "map it", message: e.to_string() };
        let file_is = identity(&file.metadata().map_err(failed)?);
        let len = file_is.2;
        // Of a file that became shorter since, the end cannot be read: the system would kill this process. A node never
        // shortens its file.
        let region = Region::map(file, len.max(SUPERBLOCK_BYTES), false, Probe::default()).map_err(failed)?;
        let mut page = [0; SUPERBLOCK_BYTES as usize];
        region.read(0, &mut page);
        match superblock::read(&page) {
            Ok(s) if s.geometry.file_bytes == len => Ok(Reader { region, file: file_is }),
            found => {
                let reason = format!("it is not a shared-memory file that this program reads ({found:?})");
                Err(ShmError::Refused { path, reason, remedy: "use the same version as the node".into() })
            }
        }
    }

    /// Bytes of the file.
    pub fn file_bytes(&self) -> u64 {
        self.file.2
    }

    /// Whether this is a mapping of the file behind a descriptor.
    pub fn is_of(&self, file: &File) -> bool {
        file.metadata().is_ok_and(|meta| identity(&meta) == self.file)
    }

    /// Copies a value into the pieces of `dst`, one after the other, and compares it with its CRCs in the same pass. Room
    /// behind its end stays as it is. `proceed` is asked before each chunk.
    ///
    /// # Errors
    /// See [`ReadFault`]; `dst` then holds anything.
    pub fn copy(
        &self,
        at: &SharedRef,
        crcs: &[u32],
        dst: &mut [&mut [u8]],
        mut proceed: impl FnMut() -> bool,
    ) -> Result<(), ReadFault> {
        let word = |at: u64| at.is_multiple_of(8) && self.region.holds(at, 8);
        let room: u64 = dst.iter().map(|piece| piece.len() as u64).sum();
        let fits = self.region.holds(at.offset, at.len) && at.len <= room && at.offset.is_multiple_of(PAGE_BYTES);
        let counts = crcs.len() as u64 == at.len.div_ceil(CHUNK_BYTES as u64);
        if !(fits && counts && word(at.header_at) && word(at.span_at)) {
            return Err(ReadFault::Invalid);
        }
        if !self.is_there(at) {
            return Err(ReadFault::Gone);
        }
        let (mut from, end) = (at.offset, at.offset + at.len);
        let mut pieces = dst.iter_mut();
        let mut room: &mut [u8] = &mut [];
        let mut same = true;
        for expected in crcs {
            if !proceed() {
                return Err(ReadFault::Stopped);
            }
            let (mut crc, mut left) = (0, (end - from).min(CHUNK_BYTES as u64) as usize);
            while left > 0 {
                if room.is_empty() {
                    room = pieces.next().ok_or(ReadFault::Invalid)?;
                    continue;
                }
                let (to, rest) = room.split_at_mut(left.min(room.len()));
                let source = self.region.address(from, to.len() as u64);
                // SAFETY: the source lies in the mapping, which stays as long as `self`; it is shared memory, so `to`,
                // which is exclusively borrowed, is no part of it. The node may write to it meanwhile, which this copy
                // tolerates.
                crc = unsafe { copy_quietly_append(crc, to.as_mut_ptr(), source, to.len()) };
                (from, left, room) = (from + to.len() as u64, left - to.len(), rest);
            }
            same = crc == *expected;
            if !same {
                break;
            }
        }
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

fn identity(meta: &Metadata) -> (u64, u64, u64) {
    (meta.dev(), meta.ino(), meta.len())
}
