//! The store's surface.

use super::config::{BootId, Recovery, StoreConfig};
use super::error::ShmError;
use super::object::{ChainKey, ObjectId, ObjectMeta, PutMeta, SharedRef};
use std::fs::File;
use std::ops::Deref;

/// Whose lease it is, for instance a connection. Numbers are the caller's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LeaseOwner(pub u64);

/// A request to keep what is reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lease {
    /// Who holds it.
    pub owner: LeaseOwner,
    /// For how long; cut at [`StoreConfig::max_lease_ms`].
    pub millis: u32,
}

/// Answer of [`Store::exists`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exists {
    /// For each key the parts that are there.
    pub masks: Vec<u64>,
    /// The first so many keys are leased in all the parts reported; the lease's bytes did not suffice for more.
    pub leased_keys: usize,
}

/// Answer of [`Store::begin`].
#[derive(Debug)]
pub enum Begin {
    /// The object is there already; send no bytes.
    Present,
    /// Another writer has begun this object.
    Busy,
    /// Pins, leases and writers hold too much of the memory; a miss, try again later.
    NoRoom,
    /// Write here.
    Slot(Writer),
}

/// Counts and sizes. Counters begin at 0 when the store is opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Size of the file.
    pub file_bytes: u64,
    /// Bytes of all slabs: the most that values can take.
    pub slab_bytes: u64,
    /// Bytes of slabs that belong to no span.
    pub free_slab_bytes: u64,
    /// Keys with at least one part.
    pub keys: u64,
    /// Values.
    pub objects: u64,
    /// Bytes of the values.
    pub value_bytes: u64,
    /// Bytes of their slots.
    pub slot_bytes: u64,
    /// Values with at least one pin.
    pub pinned_objects: u64,
    /// Values with at least one lease.
    pub leased_objects: u64,
    /// Bytes of slots under lease, counted once for each owner.
    pub lease_bytes: u64,
    /// Writers that have neither committed nor aborted.
    pub writers: u64,
    /// Bytes of this process that the index takes.
    pub index_bytes: u64,
    /// Values committed.
    pub committed: u64,
    /// `begin` answered `Present`.
    pub present: u64,
    /// `begin` answered `Busy`.
    pub busy: u64,
    /// `begin` answered `NoRoom`.
    pub no_room: u64,
    /// Writers dropped without a commit.
    pub aborted: u64,
    /// `get` found the value.
    pub hits: u64,
    /// `get` found none.
    pub misses: u64,
    /// Values evicted, and their bytes.
    pub evicted_objects: u64,
    /// Bytes of the values evicted.
    pub evicted_bytes: u64,
    /// Of the evicted values, those that went because whole slabs were needed.
    pub reclaimed_objects: u64,
    /// Values deleted.
    pub deleted: u64,
    /// Values dropped because their header no longer passed its checks.
    pub damaged_headers: u64,
    /// Values dropped because their bytes no longer match their CRCs.
    pub damaged_values: u64,
}

/// The memory tier of a node. Clones are the same store; the file is closed with the last of them, and of the pinned
/// values and writers.
#[derive(Clone)]
pub struct Store {}

impl Store {
    /// Makes the file or attaches to it.
    ///
    /// # Errors
    /// Sizes outside the limits, a file in use, one of another kind, version, size or fingerprint, or a damaged
    /// superblock; each says what to do.
    pub fn open(config: &StoreConfig, boot: BootId) -> Result<(Store, Recovery), ShmError> {
        unimplemented!("{config:?} {boot:?}")
    }

    /// The parts of each key that are there for `tenant`. With a lease they are also kept, as far as the lease's bytes
    /// go; a later `get` of others may miss.
    pub fn exists(&self, tenant: u64, keys: &[ChainKey], lease: Option<Lease>, now: u64) -> Exists {
        unimplemented!("{tenant} {keys:?} {lease:?} {now}")
    }

    /// Ends all leases of `owner`; for the end of a connection.
    pub fn release_owner(&self, owner: LeaseOwner) {
        unimplemented!("{owner:?}")
    }

    /// Ends leases whose time is over. `exists` and `begin` do so too.
    pub fn expire(&self, now: u64) {
        unimplemented!("{now}")
    }

    /// The value, pinned until dropped; counts as a use. Its bytes are not checked here: [`Pinned::verify`].
    pub fn get(&self, tenant: u64, id: &ObjectId) -> Option<Pinned> {
        unimplemented!("{tenant} {id:?}")
    }

    /// A place for a value. Evicts as needed.
    ///
    /// # Errors
    /// A part or length outside the limits, or a value longer than all slabs together.
    pub fn begin(&self, meta: &PutMeta, now: u64) -> Result<Begin, ShmError> {
        unimplemented!("{meta:?} {now}")
    }

    /// Marks objects as used, those given last as used last: clients give the tail first. Returns how many are there.
    pub fn touch(&self, tenant: u64, ids: &[ObjectId]) -> usize {
        unimplemented!("{tenant} {ids:?}")
    }

    /// Forgets objects, whoever holds pins or leases; returns how many were there. When it returns they stay forgotten
    /// through `kill -9`.
    pub fn delete(&self, tenant: u64, ids: &[ObjectId]) -> usize {
        unimplemented!("{tenant} {ids:?}")
    }

    /// Compares a value with its CRCs and drops it if they differ: for reports of readers. True if it was dropped.
    pub fn drop_if_damaged(&self, tenant: u64, id: &ObjectId) -> bool {
        unimplemented!("{tenant} {id:?}")
    }

    /// A descriptor of the file for readers in other processes: read only, and not the one that holds the lock.
    pub fn reader_file(&self) -> Result<File, ShmError> {
        unimplemented!()
    }

    /// Counts and sizes.
    pub fn stats(&self) -> Stats {
        unimplemented!()
    }

    /// Compares everything with everything, the file included; for tests and debugging, linear in what is stored.
    ///
    /// # Errors
    /// [`ShmError::Integrity`] with the first contradiction.
    pub fn check_integrity(&self) -> Result<(), ShmError> {
        unimplemented!()
    }
}

/// A slot to write a value into. Dropped without [`Writer::commit`] it is given back.
#[derive(Debug)]
pub struct Writer {}

impl Writer {
    /// The value's bytes, exactly as many as [`PutMeta::len`]; they hold anything before they are written.
    pub fn bytes(&mut self) -> &mut [u8] {
        unimplemented!()
    }

    /// Publishes the value with the CRC32C of each of its chunks, which the caller has compared with the bytes.
    ///
    /// # Errors
    /// Not one CRC for each chunk; the slot is given back.
    pub fn commit(self, crcs: &[u32]) -> Result<(), ShmError> {
        unimplemented!("{crcs:?}")
    }
}

/// A value that stays where it is until this is dropped.
#[derive(Debug)]
pub struct Pinned {}

impl Pinned {
    /// CRC32C of each chunk, as the writer gave them.
    pub fn crcs(&self) -> &[u32] {
        unimplemented!()
    }

    /// What is known besides the bytes.
    pub fn meta(&self) -> &ObjectMeta {
        unimplemented!()
    }

    /// For readers in other processes.
    pub fn shared_ref(&self) -> SharedRef {
        unimplemented!()
    }

    /// Compares the bytes with the CRCs. If it says false, tell [`Store::drop_if_damaged`].
    pub fn verify(&self) -> bool {
        unimplemented!()
    }
}

impl Deref for Pinned {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        unimplemented!()
    }
}
