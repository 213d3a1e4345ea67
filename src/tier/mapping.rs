//! One anonymous mapping of memory that is really there. All unsafe code of the host region's memory is here.

use super::error::TierError;
use crate::memory;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What the mapping starts at a multiple of: the size of a huge page.
pub(super) const MAP_ALIGN: usize = 2 << 20;
/// Memory that a thread takes at a time.
const FAULT_STEP: usize = 32 << 20;
/// Most threads that take memory.
const MOST_THREADS: usize = 8;

/// Private memory of this process, taken in full and zeroed, until dropped.
///
/// A forked child sees zeros in its place: it could use none of it, and copies on write would take the memory twice.
pub(super) struct Mapping {
    base: *mut u8,
    len: usize,
}

// SAFETY: plain memory that stays until the mapping is dropped; whoever accesses it goes by the contract of its user.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Takes `len` bytes, a multiple of [`MAP_ALIGN`]. Whether they can be had is asked first: where memory is promised
    /// beyond what there is, the system would end processes instead of refusing.
    pub(super) fn new(len: usize, huge: bool) -> Result<Mapping, TierError> {
        let refused = |reason: String| TierError::Memory { bytes: len as u64, reason };
        let limits = [
            (memory::machine_left(), "the machine (MemAvailable of /proc/meminfo) can spare"),
            (memory::group_left(), "the memory limit of this process's control group leaves"),
        ];
        for (left, who) in limits {
            if let Some(left) = left.map(|left| left.saturating_sub(memory::SPARED))
                && left < len as u64
            {
                return Err(refused(format!("{who} {left}")));
            }
        }
        let mapping = Mapping::reserve(len).map_err(|e| refused(e.to_string()))?;
        let advise = |advice| {
            // SAFETY: the range is the mapping, and both pieces of advice leave it as it is.
            unsafe { libc::madvise(mapping.base.cast(), len, advice) }
        };
        // Hints: where the system follows neither, the region works all the same.
        advise(libc::MADV_WIPEONFORK);
        if huge {
            advise(libc::MADV_HUGEPAGE);
        }
        mapping.populate().map_err(|e| refused(e.to_string()))?;
        Ok(mapping)
    }

    fn reserve(len: usize) -> io::Result<Mapping> {
        let padded = len.checked_add(MAP_ALIGN).ok_or(io::ErrorKind::OutOfMemory)?;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a fresh mapping at a place that the system chooses.
        let start = unsafe {
            libc::mmap(std::ptr::null_mut(), padded, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0).cast::<u8>()
        };
        if start.cast() == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let before = (start as usize).next_multiple_of(MAP_ALIGN) - start as usize;
        let after = padded - before - len;
        // SAFETY: `before + len + after` bytes were mapped just now; what lies around the aligned part goes back. A part
        // that cannot go back, for want of kernel memory, stays reserved, which takes no memory.
        unsafe {
            let base = start.add(before);
            if before > 0 {
                libc::munmap(start.cast(), before);
            }
            if after > 0 {
                libc::munmap(base.add(len).cast(), after);
            }
            Ok(Mapping { base, len })
        }
    }

    /// Takes all memory, by several threads, so that no copy meets a page fault.
    fn populate(&self) -> io::Result<()> {
        let next = AtomicUsize::new(0);
        let work = || {
            loop {
                let at = next.fetch_add(FAULT_STEP, Ordering::Relaxed);
                if at >= self.len {
                    return Ok(());
                }
                self.take(at, FAULT_STEP.min(self.len - at))?;
            }
        };
        let steps = self.len.div_ceil(FAULT_STEP);
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get().min(MOST_THREADS).min(steps));
        std::thread::scope(|scope| {
            let others: Vec<_> = (1..threads)
                .map(|_| std::thread::Builder::new().spawn_scoped(scope, work))
                // With fewer threads it takes longer, no more.
                .map_while(Result::ok)
                .collect();
            let own = work();
            let others = others.into_iter().map(|t| t.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into())));
            others.fold(own, |all, one| all.and(one))
        })
    }

    fn take(&self, at: usize, len: usize) -> io::Result<()> {
        loop {
            // SAFETY: the range lies in the mapping, which is fresh.
            let rc = unsafe { libc::madvise(self.base.add(at).cast(), len, libc::MADV_POPULATE_WRITE) };
            if rc == 0 {
                return Ok(());
            }
            let error = io::Error::last_os_error();
            match error.raw_os_error() {
                Some(libc::EINTR | libc::EAGAIN) => {}
                // Kernels before 5.14.
                Some(libc::EINVAL) => {
                    for page in (at..at + len).step_by(4096) {
                        // SAFETY: inside the mapping, which nobody else has seen yet.
                        unsafe { self.base.add(page).write_volatile(0) };
                    }
                    return Ok(());
                }
                _ => return Err(error),
            }
        }
    }

    pub(super) fn base(&self) -> *mut u8 {
        self.base
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `reserve`; who uses addresses in it holds the region that holds this.
        unsafe { libc::munmap(self.base.cast(), self.len) };
    }
}
