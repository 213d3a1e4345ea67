//! The store's surface, and the one lock.
//!
//! Batches take the lock anew every [`BATCH`] items, so that no caller waits for another's whole batch.

use super::config::{BootId, Recovery, StoreConfig};
use super::error::ShmError;
use super::ledger::{Answer, Ledger};
use super::mapped::{Mapped, in_background};
use super::object::{ChainKey, ObjectId, PutMeta};
use super::span::Damaged;
use super::stats::Stats;
use super::values::{Pinned, Writer};
use std::fs::File;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Items for which the lock is taken at once.
const BATCH: usize = 64;
/// Leases that one call ends in passing.
const EXPIRED: usize = 1024;

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
    /// The first so many keys are leased in all the parts reported; the lease's bytes did not suffice for more. Without a
    /// lease 0.
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

/// What a look for a value finds.
enum Looked {
    Value(Pinned),
    Absent,
    /// Its header was damaged.
    Dropped,
}

/// The memory tier of a node. Clones are the same store; the file is closed with the last of them, and of the pinned
/// values and writers.
#[derive(Debug, Clone)]
pub struct Store {
    shared: Arc<Shared>,
}

/// What the store, its pinned values and its writers have in common.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) map: Arc<Mapped>,
    ledger: Mutex<Ledger>,
    max_lease_ms: u32,
    stop: Arc<AtomicBool>,
    populating: Option<JoinHandle<()>>,
}

impl Shared {
    /// The ledger, unless a call failed inside it: then nobody knows what it left half done.
    pub(super) fn lock(&self) -> Result<MutexGuard<'_, Ledger>, ShmError> {
        const FAILED: &str = "a call failed inside the store; it cannot be used any more, open the file anew";
        self.ledger.lock().map_err(|_: PoisonError<_>| ShmError::Integrity(FAILED.into()))
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.populating.take() {
            // It cannot fail: it runs nothing but system calls.
            let _ = thread.join();
        }
    }
}

impl Store {
    /// Makes the file or attaches to it. Blocks until it can serve: where a file is made, until its memory is taken.
    ///
    /// # Errors
    /// Sizes outside the limits, a file in use, one of another kind, version, size or fingerprint, a damaged superblock,
    /// or too little memory; each says what to do.
    pub fn open(config: &StoreConfig, boot: BootId) -> Result<(Store, Recovery), ShmError> {
        let (ledger, recovery) = super::open::open(config, boot)?;
        let (map, stop) = (ledger.map.clone(), Arc::new(AtomicBool::new(false)));
        let populating = (!recovery.created && in_background(config)).then(|| {
            let (map, stop) = (map.clone(), stop.clone());
            std::thread::Builder::new().name("shm-populate".into()).spawn(move || map.populate_until(&stop)).ok()
        });
        let ledger = Mutex::new(ledger);
        let shared = Shared { map, ledger, max_lease_ms: config.max_lease_ms, stop, populating: populating.flatten() };
        Ok((Store { shared: Arc::new(shared) }, recovery))
    }

    /// Longest value that this file can hold.
    pub fn max_value_bytes(&self) -> u64 {
        self.shared.map.classes.max_value_bytes()
    }

    /// The parts of each key that are there for `tenant`. With a lease they are also kept, as far as the lease's bytes
    /// go; a later `get` of others may miss. Is no use: nothing becomes younger.
    pub fn exists(&self, tenant: u64, keys: &[ChainKey], lease: Option<Lease>, now: u64) -> Exists {
        let mut out = Exists { masks: Vec::with_capacity(keys.len()), leased_keys: 0 };
        let mut leasing = lease;
        self.expire_some(now);
        for batch in keys.chunks(BATCH) {
            let Ok(mut ledger) = self.shared.lock() else { break };
            for key in batch {
                let found = ledger.key(tenant, key);
                out.masks.push(found.map_or(0, |k| ledger.index.mask(k)));
                if let Some(Lease { owner, millis }) = leasing {
                    let end = now.saturating_add(u64::from(millis.min(self.shared.max_lease_ms)));
                    match found.is_none_or(|k| ledger.lease(k, owner, end)) {
                        true => out.leased_keys += 1,
                        false => leasing = None,
                    }
                }
            }
        }
        out.masks.resize(keys.len(), 0);
        out
    }

    /// Ends all leases of `owner`; for the end of a connection.
    pub fn release_owner(&self, owner: LeaseOwner) {
        while self.shared.lock().is_ok_and(|mut ledger| !ledger.release_owner(owner, BATCH)) {}
    }

    /// Ends leases whose time is over at `now`. `exists` and `begin` do so in passing.
    pub fn expire(&self, now: u64) {
        while self.shared.lock().is_ok_and(|mut ledger| !ledger.expire(now, BATCH)) {}
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    fn expire_some(&self, now: u64) {
        if let Ok(mut ledger) = self.shared.lock() {
            ledger.expire(now, EXPIRED);
        }
    }

    /// The value, pinned until dropped; counts as a use. Its bytes are not checked here: [`Pinned::verify`]. A value whose
    /// header is damaged is dropped, counted, and missing.
    pub fn get(&self, tenant: u64, id: &ObjectId) -> Option<Pinned> {
        match self.look(tenant, id) {
            Looked::Value(value) => Some(value),
            Looked::Absent | Looked::Dropped => None,
        }
    }

    fn look(&self, tenant: u64, id: &ObjectId) -> Looked {
        let Ok(mut ledger) = self.shared.lock() else { return Looked::Absent };
        let found = match ledger.find_checked(tenant, id) {
            Ok(found) => found.filter(|(object, ..)| ledger.pin(*object)),
            Err(Damaged) => {
                ledger.totals.misses += 1;
                return Looked::Dropped;
            }
        };
        let Some((object, place, header)) = found else {
            ledger.totals.misses += 1;
            return Looked::Absent;
        };
        ledger.refresh(object);
        ledger.mend_entry(place.slot.span);
        ledger.totals.hits += 1;
        let span_word = ledger.spans.get(place.slot.span).word;
        let span_at = self.shared.map.geometry.entry_at(ledger.spans.get(place.slot.span).first);
        Looked::Value(Pinned::new(self.shared.clone(), object, header, &place, (span_at, span_word)))
    }

    /// A place for a value. Evicts as needed; memory taken by it is bounded by the file.
    ///
    /// # Errors
    /// A part or length outside the limits, or a value longer than the file can hold.
    pub fn begin(&self, meta: &PutMeta, now: u64) -> Result<Begin, ShmError> {
        meta.validate()?;
        let class = self.shared.map.classes.find(meta.len).ok_or_else(|| {
            ShmError::invalid(
                "value length",
                meta.len,
                format!("at most {} bytes in this file", self.max_value_bytes()),
            )
        })?;
        self.expire_some(now);
        let answer = self.shared.lock()?.begin(meta, class);
        Ok(match answer {
            Answer::Present => Begin::Present,
            Answer::Busy => Begin::Busy,
            Answer::NoRoom => Begin::NoRoom,
            Answer::Opened(opened) => Begin::Slot(Writer::new(self.shared.clone(), *meta, opened)),
        })
    }

    /// Marks objects as used, those given last as used last: clients give the tail first. Returns how many are there.
    pub fn touch(&self, tenant: u64, ids: &[ObjectId]) -> usize {
        self.each(ids, |ledger, id| ledger.find(tenant, id).map(|o| ledger.refresh(o)).is_some())
    }

    /// Forgets objects, whoever holds pins or leases; returns how many were there. When it returns they stay forgotten
    /// through `kill -9`. Pinned values stay readable until they are dropped. A writer that has begun is not stopped.
    pub fn delete(&self, tenant: u64, ids: &[ObjectId]) -> usize {
        self.each(ids, |ledger, id| {
            let found = ledger.find(tenant, id);
            if let Some(object) = found {
                ledger.delete(object);
                ledger.totals.deleted += 1;
            }
            found.is_some()
        })
    }

    fn each(&self, ids: &[ObjectId], mut what: impl FnMut(&mut Ledger, &ObjectId) -> bool) -> usize {
        let mut count = 0;
        for batch in ids.chunks(BATCH) {
            let Ok(mut ledger) = self.shared.lock() else { break };
            count += batch.iter().filter(|id| what(&mut ledger, id)).count();
        }
        count
    }

    /// Compares a value with its CRCs, and its header with the header's, and drops it if they differ: for reports of readers.
    /// True if it was dropped.
    pub fn drop_if_damaged(&self, tenant: u64, id: &ObjectId) -> bool {
        let value = match self.look(tenant, id) {
            Looked::Value(value) if !value.verify() => value,
            Looked::Dropped => return true,
            Looked::Value(_) | Looked::Absent => return false,
        };
        let Ok(mut ledger) = self.shared.lock() else { return false };
        // It is pinned, so unless it was deleted meanwhile its record is the one that was found.
        let same = ledger.find(tenant, id) == Some(value.object());
        if same {
            ledger.delete(value.object());
            ledger.totals.damaged_values += 1;
        }
        drop(ledger);
        same
    }

    /// A descriptor of the file for readers in other processes: read only, and without the lock.
    pub fn reader_file(&self) -> Result<File, ShmError> {
        self.shared.map.reader_file()
    }

    /// Counts and sizes.
    pub fn stats(&self) -> Stats {
        self.shared.lock().map_or_else(|_| Stats::default(), |ledger| ledger.stats())
    }

    /// Compares everything with everything, the file included; for tests and debugging, linear in what is stored.
    ///
    /// # Errors
    /// [`ShmError::Integrity`] with the first contradiction.
    pub fn check_integrity(&self) -> Result<(), ShmError> {
        self.shared.lock()?.check().map_err(ShmError::Integrity)
    }
}
