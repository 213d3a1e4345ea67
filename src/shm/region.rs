//! The mapping of the file. All unsafe code for it is here.
//!
//! Words that the layout orders are stored one by one with [`Region::store`]; a killed process leaves a prefix of them.
//! Slots are handed out as slices: the store sees to it that one is either written by its one writer or read.

use super::config::Probe;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering};

/// Memory that is handed to one thread at a time, so that a stop request is soon obeyed.
const FAULT_STEP: usize = 32 << 20;

/// A shared mapping of a whole file, until dropped.
pub struct Region {
    base: *mut u8,
    len: usize,
    probe: Probe,
}

// SAFETY: the mapping is plain memory that stays until the region is dropped. Access goes through atomics, or through
// slices whose exclusiveness the callers of the unsafe methods promise.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl std::fmt::Debug for Region {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Region({} bytes)", self.len)
    }
}

impl Region {
    /// Maps the first `len` bytes of `file`, which must have them.
    pub fn map(file: &File, len: u64, write: bool, probe: Probe) -> io::Result<Region> {
        let len = usize::try_from(len).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
        if len == 0 || file.metadata()?.len() < len as u64 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, format!("the file has less than {len} bytes")));
        }
        let protection = libc::PROT_READ | if write { libc::PROT_WRITE } else { 0 };
        // SAFETY: a fresh mapping of an open file; nothing else refers to it.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // A hint: tmpfs follows it where the system allows huge pages on advice.
        // SAFETY: the range is the mapping.
        unsafe { libc::madvise(base, len, libc::MADV_HUGEPAGE) };
        Ok(Region { base: base.cast(), len, probe })
    }

    /// Whether `len` bytes at `at` are in the mapping.
    pub fn holds(&self, at: u64, len: u64) -> bool {
        at.checked_add(len).is_some_and(|end| end <= self.len as u64)
    }

    fn word(&self, at: u64) -> &AtomicU64 {
        assert!(at.is_multiple_of(8) && self.holds(at, 8), "word at {at} of a file of {} bytes", self.len);
        // SAFETY: aligned, since the mapping is aligned to pages, and inside. Words are only accessed as atomics.
        unsafe { &*self.base.add(at as usize).cast::<AtomicU64>() }
    }

    /// Reads a word; what was stored before it is seen as well.
    pub fn load(&self, at: u64) -> u64 {
        u64::from_le(self.word(at).load(Ordering::Acquire))
    }

    /// Reads a word after all reads before it: the check at the end of a copy from a mapping that others write.
    pub fn load_after_reads(&self, at: u64) -> u64 {
        std::sync::atomic::fence(Ordering::Acquire);
        u64::from_le(self.word(at).load(Ordering::Relaxed))
    }

    /// Stores a word after everything that was stored before, and before everything that is stored later: a slot's word
    /// must change before its bytes do.
    pub fn store(&self, at: u64, value: u64) {
        self.word(at).store(value.to_le(), Ordering::Release);
        std::sync::atomic::fence(Ordering::Release);
        if let Some(probe) = &self.probe.0 {
            probe();
        }
    }

    /// Reads words into `out`, whose length is a multiple of 8.
    pub fn read(&self, at: u64, out: &mut [u8]) {
        for (n, bytes) in out.chunks_exact_mut(8).enumerate() {
            let word = self.word(at + 8 * n as u64).load(Ordering::Relaxed);
            bytes.copy_from_slice(&word.to_ne_bytes());
        }
    }

    /// Bytes of a slot.
    ///
    /// # Safety
    /// No one in this process writes them while the slice lives, and no other process has the file open for writing.
    pub unsafe fn bytes(&self, at: u64, len: u64) -> &[u8] {
        assert!(self.holds(at, len), "{len} bytes at {at} of a file of {} bytes", self.len);
        // SAFETY: inside the mapping; the rest is the caller's promise.
        unsafe { std::slice::from_raw_parts(self.base.add(at as usize), len as usize) }
    }

    /// Bytes of a slot, to write.
    ///
    /// # Safety
    /// No other reference to them lives in this process while the slice does.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn bytes_mut(&self, at: u64, len: u64) -> &mut [u8] {
        assert!(self.holds(at, len), "{len} bytes at {at} of a file of {} bytes", self.len);
        // SAFETY: inside the mapping; the rest is the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.base.add(at as usize), len as usize) }
    }

    /// Where `len` bytes at `at` are, for copies that tolerate writers.
    pub fn address(&self, at: u64, len: u64) -> *const u8 {
        assert!(self.holds(at, len), "{len} bytes at {at} of a file of {} bytes", self.len);
        // SAFETY: inside the mapping.
        unsafe { self.base.add(at as usize) }
    }

    /// Steps of [`Region::populate`].
    pub fn steps(&self) -> usize {
        self.len.div_ceil(FAULT_STEP)
    }

    /// Takes the memory of one step and enters it into the mapping, writable. Contents stay as they are.
    pub fn populate(&self, file: &File, step: usize) -> io::Result<()> {
        let at = step * FAULT_STEP;
        let len = FAULT_STEP.min(self.len - at);
        loop {
            // SAFETY: the range lies in the mapping; populating changes no contents.
            let rc = unsafe { libc::madvise(self.base.add(at).cast(), len, libc::MADV_POPULATE_WRITE) };
            if rc == 0 {
                return Ok(());
            }
            let error = io::Error::last_os_error();
            match error.raw_os_error() {
                Some(libc::EINTR | libc::EAGAIN) => {}
                // Kernels before 5.14.
                Some(libc::EINVAL) => return self.touch(file, at, len),
                // Without this call a store into the page would be answered with a signal.
                Some(libc::EFAULT) => return Err(io::Error::from_raw_os_error(libc::ENOSPC)),
                _ => return Err(error),
            }
        }
    }

    fn touch(&self, file: &File, at: usize, len: usize) -> io::Result<()> {
        // SAFETY: a plain call on an open file.
        if unsafe { libc::fallocate(file.as_raw_fd(), 0, at as i64, len as i64) } != 0 {
            return Err(io::Error::last_os_error());
        }
        for page in (at..at + len).step_by(4096) {
            // Adding nothing is a write that loses no one's.
            self.word(page as u64).fetch_or(0, Ordering::Relaxed);
        }
        Ok(())
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `map`; no slice of it outlives the region.
        unsafe { libc::munmap(self.base.cast(), self.len) };
    }
}
