//! The node's shared-memory file in this process: read only, and changing under our eyes.

use crate::client::types::Destination;
use crate::rpc::limits::CHUNK_BYTES;
use crate::shm::copy_quietly_append;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Which file it is, so that connections to the same node share one mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileId {
    device: u64,
    inode: u64,
    bytes: u64,
}

/// A whole file, mapped read-only and shared.
#[derive(Debug)]
pub struct Mapping {
    base: *const u8,
    id: FileId,
}

// SAFETY: the memory is only read, through copies that tolerate concurrent writes, and lives until the last owner drops it.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Which file a descriptor is.
    ///
    /// # Errors
    /// The system's, or a file shorter than `bytes`: reading its end would kill the process.
    pub fn identify(file: &File, bytes: u64) -> io::Result<FileId> {
        let meta = file.metadata()?;
        if meta.len() < bytes {
            return Err(io::Error::other(format!("the file has {} bytes, said were {bytes}", meta.len())));
        }
        Ok(FileId { device: meta.dev(), inode: meta.ino(), bytes })
    }

    /// Maps the file. The descriptor is not needed afterwards.
    pub fn new(file: &File, id: FileId) -> io::Result<Mapping> {
        let size = usize::try_from(id.bytes).map_err(io::Error::other)?;
        // SAFETY: a new mapping of a live descriptor, at a place of the system's choice.
        let base =
            unsafe { libc::mmap(std::ptr::null_mut(), size, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Mapping { base: base.cast(), id })
    }

    /// Which file it is.
    pub fn id(&self) -> FileId {
        self.id
    }

    /// The word at `at`, which is a multiple of 8 and lies within the file. Reads before this call come before it.
    pub fn word(&self, at: u64) -> u64 {
        assert!(at.is_multiple_of(8) && at + 8 <= self.id.bytes, "checked when the answer was read");
        fence(Ordering::Acquire);
        // SAFETY: within the mapping and aligned, as asserted; the node writes words at once.
        let word = unsafe { &*self.base.add(at as usize).cast::<AtomicU64>() };
        u64::from_le(word.load(Ordering::Acquire))
    }

    /// Copies `length` bytes at `offset` into a destination that has room for them, and gives the CRC32C of each chunk as it
    /// arrived. `proceed` is asked before each chunk; `None` where it says no.
    pub fn copy(
        &self,
        offset: u64,
        length: u64,
        into: &mut Destination<'_>,
        mut proceed: impl FnMut() -> bool,
    ) -> Option<Vec<u32>> {
        assert!(offset.checked_add(length).is_some_and(|end| end <= self.id.bytes), "checked when the answer was read");
        if let Destination::Grow(value) = into {
            value.clear();
            value.resize(length as usize, 0);
        }
        let length = length as usize;
        let mut crcs = Vec::with_capacity(length.div_ceil(CHUNK_BYTES));
        let (mut at, mut index, mut used) = (0, 0, 0);
        while at < length {
            if !proceed() {
                return None;
            }
            let end = (at + CHUNK_BYTES).min(length);
            let mut crc = 0;
            while at < end {
                let segment = into.segment(index)?;
                if used == segment.len() {
                    (index, used) = (index + 1, 0);
                    continue;
                }
                let n = (end - at).min(segment.len() - used);
                let target = &mut segment[used..used + n];
                // SAFETY: the source lies within the mapping, as asserted, and no reference to it is made: the node may be
                // writing there, and what is copied then is thrown away. The target is ours alone.
                crc = unsafe { copy_quietly_append(crc, target.as_mut_ptr(), self.base.add(offset as usize + at), n) };
                (at, used) = (at + n, used + n);
            }
            crcs.push(crc);
        }
        Some(crcs)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: our mapping, of this size, and nobody refers to it any more.
        unsafe { libc::munmap(self.base.cast_mut().cast(), self.id.bytes as usize) };
    }
}
