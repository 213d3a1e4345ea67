//! Large zeroed arrays, aligned for huge pages, so that a walk over a long prompt needs few translations.
//!
//! Huge pages are asked for only once an array is written to its end. Asked for earlier, a first touch would have to find
//! and clear 2 MiB at once, which takes milliseconds where memory is in pieces; this way the system joins the pages in the
//! background and nobody waits.

use std::ops::{Deref, DerefMut};

const HUGE: usize = 2 << 20;

/// A zeroed array of `u32` that never moves.
#[derive(Debug)]
pub enum BigArray {
    /// Small: ordinary memory.
    Small(Box<[u32]>),
    /// A mapping aligned to huge pages.
    Mapped {
        /// First element.
        start: *mut u32,
        /// Elements.
        len: usize,
    },
}

// SAFETY: the mapping is owned by this value alone, like a box.
unsafe impl Send for BigArray {}
// SAFETY: shared references only read.
unsafe impl Sync for BigArray {}

impl BigArray {
    /// `len` zeroed elements.
    pub fn new(len: usize) -> Self {
        let bytes = len * 4;
        if bytes < HUGE || !bytes.is_multiple_of(HUGE) {
            return BigArray::Small(vec![0; len].into());
        }
        Self::map(bytes).unwrap_or_else(|| BigArray::Small(vec![0; len].into()))
    }

    #[cfg(unix)]
    fn map(bytes: usize) -> Option<Self> {
        let (protect, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a fresh anonymous mapping; what lies outside the aligned middle is given back at once.
        unsafe {
            let at = libc::mmap(std::ptr::null_mut(), bytes + HUGE, protect, flags, -1, 0);
            if at == libc::MAP_FAILED {
                return None;
            }
            let (at, skip) = (at.cast::<u8>(), at.cast::<u8>().align_offset(HUGE));
            let start = at.add(skip);
            if skip > 0 {
                libc::munmap(at.cast(), skip);
            }
            if skip < HUGE {
                libc::munmap(start.add(bytes).cast(), HUGE - skip);
            }
            Some(BigArray::Mapped { start: start.cast(), len: bytes / 4 })
        }
    }

    /// Every page was written: they may be joined to huge ones. Only a hint.
    pub fn written(&self) {
        #[cfg(target_os = "linux")]
        if let BigArray::Mapped { start, len } = self {
            // SAFETY: the mapping made in `map`; the advice changes no content.
            unsafe { libc::madvise(start.cast(), len * 4, libc::MADV_HUGEPAGE) };
        }
    }

    #[cfg(not(unix))]
    fn map(_: usize) -> Option<Self> {
        None
    }
}

impl Deref for BigArray {
    type Target = [u32];
    fn deref(&self) -> &[u32] {
        match self {
            BigArray::Small(b) => b,
            // SAFETY: `len` zeroed or written elements, alive as long as `self`.
            BigArray::Mapped { start, len } => unsafe { std::slice::from_raw_parts(*start, *len) },
        }
    }
}

impl DerefMut for BigArray {
    fn deref_mut(&mut self) -> &mut [u32] {
        match self {
            BigArray::Small(b) => b,
            // SAFETY: as above, and `self` is borrowed alone.
            BigArray::Mapped { start, len } => unsafe { std::slice::from_raw_parts_mut(*start, *len) },
        }
    }
}

impl Drop for BigArray {
    fn drop(&mut self) {
        #[cfg(unix)]
        if let BigArray::Mapped { start, len } = self {
            // SAFETY: the mapping made in `map`, not used after this.
            unsafe { libc::munmap(start.cast(), *len * 4) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_of_any_size_are_zeroed_and_writable() {
        for len in [0, 10, HUGE / 4, HUGE / 2] {
            let mut a = BigArray::new(len);
            assert_eq!(a.len(), len);
            assert!(a.iter().all(|&t| t == 0));
            a.fill(7);
            assert!(a.iter().all(|&t| t == 7));
        }
    }
}
