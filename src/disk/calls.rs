//! What goes into the calls of [`super::Disk`] and comes out of their callbacks.

use super::error::DiskError;
use super::group::Crcs;
use super::{Aligned, Buffer};
use crate::shm::PutMeta;

/// What became of a put.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PutOutcome {
    /// Accepted: it survives the process, and power loss once its segment is sealed.
    Stored,
    /// The object is there already.
    Present,
    /// The object is being written by an earlier put.
    Busy,
    /// Too much is in flight, or no segment is free yet; try again later.
    NoRoom,
    /// The day's bytes are used up; try again later.
    OverBudget,
    /// It failed; it may or may not be there after the directory is opened anew.
    Failed(DiskError),
}

/// Called once with the outcome and the put's buffer, from the I/O thread or before [`super::Disk::put`] returns.
pub type PutDone = Box<dyn FnOnce(PutOutcome, Box<dyn Buffer>) + Send>;

/// A value to store.
pub struct Put {
    /// Name, length and so on.
    pub meta: PutMeta,
    /// CRC32C of each chunk; the caller has compared them with the bytes.
    pub crcs: Crcs,
    /// The bytes: at least [`PutMeta::len`].
    pub value: Box<dyn Buffer>,
    /// Called with the outcome.
    pub done: PutDone,
}

/// Says where a value goes, from what its header says of it.
pub type Chooser<B> = Box<dyn FnOnce(&PutMeta) -> Option<B> + Send>;

/// Where a read puts the value.
pub enum Target<B> {
    /// Here. The length is not known before the read, only its blocks ([`super::Disk::value_blocks`]): header and value
    /// are read at once.
    Buffer(B),
    /// Where this says, called from the I/O thread with what the header says of the value; none ends the read with
    /// [`DiskError::Missing`]. The header is read first, then the value.
    Place(Chooser<B>),
}

/// A verified value.
#[derive(Debug)]
pub struct Value<B> {
    /// As it was put.
    pub meta: PutMeta,
    /// CRC32C of each chunk.
    pub crcs: Crcs,
    /// Its first [`PutMeta::len`] bytes are the value; the rest of the last block may hold anything.
    pub buffer: B,
}

impl<B: Buffer> Value<B> {
    /// The value's bytes.
    pub fn bytes(&self) -> &[u8] {
        super::buffer::bytes_of(&self.buffer, self.meta.len as usize)
    }
}

/// Bytes of a value before they are verified.
pub(super) struct Raw {
    pub(super) meta: PutMeta,
    pub(super) crcs: Crcs,
    /// The bytes, where they could not be read in place.
    pub(super) bounce: Option<Aligned>,
}
