//! Memory that an operation owns until it completes.

use super::BLOCK;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::any::Any;

/// Memory for a value. Where it starts at a multiple of 4,096 bytes and its capacity covers the value's last block, the
/// device reads or writes it directly, the rest of that last block included; otherwise bytes are copied.
///
/// # Safety
/// `start` points to `capacity` bytes that stay where they are, valid for reads and writes, while the object lives, also
/// when the object itself moves. While an operation owns it nobody else writes them, and nobody reads them while it is
/// the target of a read.
pub unsafe trait Buffer: Any + Send {
    /// First byte.
    fn start(&self) -> *mut u8;
    /// Bytes from there on.
    fn capacity(&self) -> usize;
}

/// Zeroed memory aligned to a block, a whole number of blocks long.
#[derive(Debug)]
pub struct Aligned {
    start: *mut u8,
    len: usize,
}

// SAFETY: plain memory with one owner.
unsafe impl Send for Aligned {}
// SAFETY: shared references only read.
unsafe impl Sync for Aligned {}

impl Aligned {
    /// Room for `len` bytes, at least one block.
    pub fn new(len: usize) -> Aligned {
        let len = len.max(1).next_multiple_of(BLOCK);
        let layout = layout(len);
        // SAFETY: the layout's size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        if start.is_null() {
            handle_alloc_error(layout);
        }
        Aligned { start, len }
    }

    /// A copy of `bytes`, followed by zeros.
    pub fn copy_of(bytes: &[u8]) -> Aligned {
        let mut copy = Aligned::new(bytes.len());
        copy[..bytes.len()].copy_from_slice(bytes);
        copy
    }
}

fn layout(len: usize) -> Layout {
    Layout::from_size_align(len, BLOCK).expect("a length within the limits of the format")
}

impl Drop for Aligned {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and not used any more.
        unsafe { dealloc(self.start, layout(self.len)) }
    }
}

impl std::ops::Deref for Aligned {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: allocated, initialised, and borrowed with `self`.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }
}

impl std::ops::DerefMut for Aligned {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.len) }
    }
}

// SAFETY: heap memory that only this object refers to.
unsafe impl Buffer for Aligned {
    fn start(&self) -> *mut u8 {
        self.start
    }
    fn capacity(&self) -> usize {
        self.len
    }
}

// SAFETY: heap memory that stays while the vector is not changed, which its owner, the operation, does not do.
unsafe impl Buffer for Vec<u8> {
    fn start(&self) -> *mut u8 {
        self.as_ptr().cast_mut()
    }
    fn capacity(&self) -> usize {
        self.len()
    }
}

/// Whether the device can use the first `len` bytes and the rest of their last block in place.
pub(super) fn fits_directly(buffer: &dyn Buffer, len: usize) -> bool {
    (buffer.start() as usize).is_multiple_of(BLOCK) && buffer.capacity() >= len.next_multiple_of(BLOCK)
}

/// The first `len` bytes.
///
/// # Panics
/// When the buffer is shorter.
pub(super) fn bytes_of(buffer: &dyn Buffer, len: usize) -> &[u8] {
    assert!(len <= buffer.capacity(), "{len} bytes of a buffer of {}", buffer.capacity());
    // SAFETY: the trait's promise; nobody writes while the operation owns it, which is whoever calls this.
    unsafe { std::slice::from_raw_parts(buffer.start(), len) }
}
