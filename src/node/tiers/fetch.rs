//! Reads from below memory, the disk tier first: into a buffer that is sent, or into a slot of memory when the value deserves it.
//!
//! - Concurrent reads of one value are one read: what it gives is shared.
//! - Buffers of values that wait to be sent are bounded over all calls; a read waits for its share.
//! - Bytes are compared with their CRCs before anything else; a value that differs is dropped, counted, and a miss.

use super::{FETCHED_BYTES, FETCHED_UNIT, TierCounts, Tiers};
use crate::disk::{Aligned, Buffer, DiskError, Target, Value};
use crate::shm::{Begin, ObjectId, PutMeta, Writer};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared, WeakShared};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

/// Reads that are remembered as under way until those that ended are forgotten.
const FLIGHTS: usize = 256;

/// Where a value is.
#[derive(Debug, Clone)]
pub enum Fetch {
    /// In memory.
    InMemory,
    /// Read from disk, or from the object store.
    OnDisk(Arc<OnDisk>),
    /// Nowhere.
    Absent,
    /// It was there, damaged, and was dropped.
    Damaged,
}

/// A value in a buffer of its own.
#[derive(Debug)]
pub struct OnDisk {
    value: Value<Landing>,
    _share: OwnedSemaphorePermit,
}

impl OnDisk {
    pub(super) fn new(value: Value<Landing>, share: OwnedSemaphorePermit) -> OnDisk {
        OnDisk { value, _share: share }
    }

    /// CRC32C of each chunk.
    pub fn crcs(&self) -> &[u32] {
        &self.value.crcs
    }

    /// What is known of it.
    pub fn meta(&self) -> &PutMeta {
        &self.value.meta
    }
}

impl AsRef<[u8]> for OnDisk {
    fn as_ref(&self) -> &[u8] {
        self.value.bytes()
    }
}

/// [`OnDisk`] as shared bytes.
#[derive(Debug, Clone)]
pub struct Fetched(pub Arc<OnDisk>);

impl AsRef<[u8]> for Fetched {
    fn as_ref(&self) -> &[u8] {
        (*self.0).as_ref()
    }
}

/// Where the disk writes a value that is read.
#[derive(Debug)]
pub(super) enum Landing {
    Heap(Aligned),
    Slot(Writer),
}

// SAFETY: memory that only this object refers to: of its own, or of a slot that is its writer's until it commits.
unsafe impl Buffer for Landing {
    fn start(&self) -> *mut u8 {
        match self {
            Landing::Heap(memory) => memory.start(),
            Landing::Slot(writer) => writer.slot().0,
        }
    }
    fn capacity(&self) -> usize {
        match self {
            Landing::Heap(memory) => memory.capacity(),
            Landing::Slot(writer) => writer.slot().1,
        }
    }
}

type Name = (u64, ObjectId);
type Flight = Shared<BoxFuture<'static, Fetch>>;

/// Reads under way.
#[derive(Default)]
pub struct Flights(Mutex<HashMap<Name, WeakShared<BoxFuture<'static, Fetch>>>>);

impl Flights {
    /// The read of this value that is under way, or this one.
    fn join(&self, name: Name, read: impl FnOnce() -> BoxFuture<'static, Fetch>) -> Flight {
        let mut flights = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(flight) = flights.get(&name).and_then(WeakShared::upgrade).filter(|f| f.peek().is_none()) {
            return flight;
        }
        if flights.len() >= FLIGHTS {
            flights.retain(|_, flight| flight.upgrade().is_some_and(|f| f.peek().is_none()));
        }
        let flight = read().shared();
        if let Some(weak) = flight.downgrade() {
            flights.insert(name, weak);
        }
        flight
    }
}

impl Tiers {
    /// Looks for a value, and reads it where it is on disk alone. That counts as a use of it.
    pub async fn fetch(self: Arc<Self>, tenant: u64, id: ObjectId) -> Fetch {
        if self.in_memory(tenant, &id) {
            return Fetch::InMemory;
        }
        if !self.may_be_below(tenant, &id) {
            TierCounts::add(&self.counts.misses, 1);
            return Fetch::Absent;
        }
        let flight = self.flights.join((tenant, id), || self.clone().read(tenant, id).boxed());
        flight.await
    }

    /// Bytes that reading a value takes; 0 where it is not on disk.
    pub fn disk_bytes(&self, tenant: u64, id: &ObjectId) -> u64 {
        self.disk_of(tenant, id).and_then(|disk| disk.value_blocks(tenant, id)).unwrap_or(0)
    }

    /// Counts a use of a value in memory.
    pub fn used(&self, tenant: u64, id: &ObjectId) {
        if self.has_disk() {
            self.uses.count(tenant, id);
        }
    }

    async fn read(self: Arc<Self>, tenant: u64, id: ObjectId) -> Fetch {
        let mut fetch = self.read_disk(tenant, id).await;
        // What the disk has dropped meanwhile was queued before.
        if matches!(fetch, Fetch::Absent) && self.remote().is_some() {
            fetch = self.read_below(tenant, &id).await;
            TierCounts::add(&self.counts.misses, u64::from(matches!(fetch, Fetch::Absent)));
        }
        fetch
    }

    async fn read_disk(self: &Arc<Self>, tenant: u64, id: ObjectId) -> Fetch {
        let Some(disk) = self.disk_of(tenant, &id).cloned() else { return Fetch::Absent };
        let Some(blocks) = disk.value_blocks(tenant, &id) else { return Fetch::Absent };
        let share = (blocks as usize).min(FETCHED_BYTES).div_ceil(FETCHED_UNIT) as u32;
        let Ok(share) = self.fetched.clone().acquire_many_owned(share).await else { return Fetch::Absent };
        let (done, answer) = oneshot::channel();
        let target = if self.uses.count(tenant, &id) >= self.settings.promote_after {
            let tiers = self.clone();
            Target::Place(Box::new(move |meta: &PutMeta| {
                Some(match tiers.memory.begin(meta, tiers.clock.now()) {
                    Ok(Begin::Slot(writer)) => Landing::Slot(writer),
                    _ => Landing::Heap(Aligned::new(meta.len as usize)),
                })
            }))
        } else {
            Target::Buffer(Landing::Heap(Aligned::new(blocks as usize)))
        };
        disk.get(tenant, &id, target, move |outcome| drop(done.send(outcome)));
        let Ok(outcome) = answer.await else { return Fetch::Absent };
        match outcome.and_then(|fetched| fetched.verify()) {
            Ok(value) => self.landed(tenant, &id, value, share),
            Err(DiskError::Damaged) => Fetch::Damaged,
            Err(DiskError::Missing) => Fetch::Absent,
            Err(error) => {
                tracing::debug!(%error, "a read from disk is a miss");
                Fetch::Absent
            }
        }
    }

    fn landed(&self, tenant: u64, id: &ObjectId, value: Value<Landing>, share: OwnedSemaphorePermit) -> Fetch {
        let Value { meta, crcs, buffer } = value;
        match buffer {
            Landing::Heap(_) => Fetch::OnDisk(Arc::new(OnDisk { value: Value { meta, crcs, buffer }, _share: share })),
            Landing::Slot(writer) => match self.bring_up(writer, &crcs, || self.disk_of(tenant, id).is_some()) {
                true => Fetch::InMemory,
                false => Fetch::Absent,
            },
        }
    }

    /// Publishes a value in memory, unless it was deleted meanwhile: then it must not come back.
    pub(super) fn bring_up(&self, writer: Writer, crcs: &[u32], is_there: impl FnOnce() -> bool) -> bool {
        let len = writer.meta().len;
        let _turn = self.turn();
        if !is_there() || writer.commit(crcs).is_err() {
            return false;
        }
        TierCounts::add(&self.counts.promoted, 1);
        TierCounts::add(&self.counts.promoted_bytes, len);
        true
    }
}
