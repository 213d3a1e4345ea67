//! Handles to single values: a [`Writer`] owns a slot until it commits, a [`Pinned`] value stays until it is dropped.

use super::error::ShmError;
use super::header::{Crcs, Header};
use super::layout::{Word, state};
use super::ledger::{Opened, Place};
use super::object::{CHUNK_BYTES, ObjectMeta, PutMeta, SharedRef, chunks_of};
use super::store::Shared;
use super::{ObjectId, crc};
use std::ops::Deref;
use std::sync::Arc;

/// A slot to write a value into. Dropped without [`Writer::commit`] it is given back.
#[derive(Debug)]
pub struct Writer {
    shared: Arc<Shared>,
    meta: PutMeta,
    opened: Opened,
    committed: bool,
}

impl Writer {
    pub(super) fn new(shared: Arc<Shared>, meta: PutMeta, opened: Opened) -> Writer {
        Writer { shared, meta, opened, committed: false }
    }

    /// As it was begun.
    pub fn meta(&self) -> &PutMeta {
        &self.meta
    }

    /// The value's bytes, exactly as many as [`PutMeta::len`]; they hold anything before they are written.
    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the slot is this writer's alone until it is committed or dropped, and `self` is borrowed.
        unsafe { self.shared.map.region.bytes_mut(self.opened.place.value_at, self.meta.len) }
    }

    /// Where the slot lies in this process, and its bytes, which are this writer's alone.
    pub fn slot(&self) -> (*mut u8, usize) {
        let Place { value_at, slot_bytes, .. } = self.opened.place;
        (self.shared.map.region.address(value_at, slot_bytes).cast_mut(), slot_bytes as usize)
    }

    /// Publishes the value with the CRC32C of each of its chunks ([`CHUNK_BYTES`]), which the caller has compared with the
    /// bytes. When it returns the value survives `kill -9`.
    ///
    /// # Errors
    /// Not one CRC for each chunk; the slot is given back.
    pub fn commit(mut self, crcs: &[u32]) -> Result<(), ShmError> {
        let chunks = chunks_of(self.meta.len as usize);
        if crcs.len() != chunks {
            let allowed = format!("{chunks}, one for each {CHUNK_BYTES} bytes of {}", self.meta.len);
            return Err(ShmError::invalid("number of CRCs", crcs.len(), allowed));
        }
        let meta = ObjectMeta { put: self.meta, generation: self.opened.generation };
        let words = Header { meta, crcs: Crcs::from_slice(crcs) }.encode();
        for (n, word) in words.iter().enumerate().skip(1) {
            self.shared.map.region.store(self.opened.place.header_at + 8 * n as u64, *word);
        }
        self.shared.lock()?.publish(&self.opened, &self.meta);
        self.committed = true;
        Ok(())
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if !self.committed
            && let Ok(mut ledger) = self.shared.lock()
        {
            ledger.abort(&self.opened, &self.meta);
        }
    }
}

/// A value that stays where it is until this is dropped.
#[derive(Debug)]
pub struct Pinned {
    shared: Arc<Shared>,
    object: u32,
    header: Header,
    at: SharedRef,
}

impl Pinned {
    pub(super) fn new(shared: Arc<Shared>, object: u32, header: Header, place: &Place, span: (u64, u64)) -> Pinned {
        let at = SharedRef {
            offset: place.value_at,
            len: header.meta.put.len,
            header_at: place.header_at,
            header_word: Word::new(header.meta.generation, state::COMMITTED).0,
            span_at: span.0,
            span_word: span.1,
        };
        Pinned { shared, object, header, at }
    }

    pub(super) fn object(&self) -> u32 {
        self.object
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Whether it was deleted since it was pinned.
    pub fn is_deleted(&self) -> bool {
        self.shared.lock().is_ok_and(|ledger| ledger.is_deleted(self.object))
    }

    /// Where the value lies in this process, and the bytes of its slot. Only this value's bytes mean anything.
    pub fn slot(&self) -> (*mut u8, usize) {
        let classes = &self.shared.map.classes;
        // The class of its length; a value is in no other.
        let bytes = classes.find(self.at.len).map_or(self.at.len, |class| classes.shape(class).slot_bytes());
        (self.shared.map.region.address(self.at.offset, bytes).cast_mut(), bytes as usize)
    }

    /// Its name.
    pub fn id(&self) -> &ObjectId {
        &self.header.meta.put.id
    }

    /// CRC32C of each chunk, as the writer gave them.
    pub fn crcs(&self) -> &[u32] {
        &self.header.crcs
    }

    /// What is known besides the bytes.
    pub fn meta(&self) -> &ObjectMeta {
        &self.header.meta
    }

    /// Where readers in other processes find it.
    pub fn shared_ref(&self) -> SharedRef {
        self.at
    }

    /// Compares the bytes with the CRCs. If it says false, tell [`super::Store::drop_if_damaged`].
    pub fn verify(&self) -> bool {
        crc::chunk_crcs(self).as_slice() == self.crcs()
    }

    /// Copies the value and compares it with its CRCs in one pass. If it says false `dst` holds anything; tell
    /// [`super::Store::drop_if_damaged`].
    ///
    /// # Panics
    /// When `dst` has another length than the value.
    pub fn copy_to(&self, dst: &mut [u8]) -> bool {
        crc::copy_verified(dst, self, self.crcs())
    }
}

impl Deref for Pinned {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: a committed value does not change, and its slot is not reused while it is pinned.
        unsafe { self.shared.map.region.bytes(self.at.offset, self.at.len) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if let Ok(mut ledger) = self.shared.lock() {
            ledger.unpin(self.object);
        }
    }
}
