//! Reads from below memory, the disk tier first: into a buffer that is sent, or into a slot of memory when the value deserves it.
//!
//! - Concurrent reads of one value are one read: what it gives is shared. It runs on its own, so that a reader who takes
//!   nothing holds up nobody who wants the same, and no slot of a value that comes up.
//! - Buffers of values that wait to be sent are bounded over all calls. A read whose turn has come waits for its share; one
//!   ahead of its turn has a budget of its own, and is not begun where that is used up. So readers who take nothing cost
//!   others their read-ahead, and hold them up only where the values that are in turn take all of the other budget.
//! - The length of a value in the object store is known when it is opened, and then it has its share, within its time. A read
//!   ahead of its turn begins with a share of a likely size; where there is not enough it is begun anew when its turn comes.
//! - Bytes are compared with their CRCs before anything else; a value that differs is dropped, counted, and a miss.

use super::{TierCounts, Tiers};
use crate::disk::{Aligned, Buffer, DiskError, Target, Value};
use crate::rpc::v1::Source;
use crate::shm::{Begin, ObjectId, PutMeta, Writer};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared, WeakShared};
use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::task::JoinHandle;

/// Least and most bytes of values in buffers of their own whose turn it is, over all calls; between them an eighth of the
/// memory tier.
const TURN_BYTES: RangeInclusive<u64> = 32 << 20..=128 << 20;
/// The same of values that were read ahead of it.
const AHEAD_BYTES: RangeInclusive<u64> = 4 << 20..=128 << 20;
/// Unit of which the semaphores count them.
const UNIT: u64 = 4096;
/// Reads at a time. Fewer than a directory takes (`DiskConfig::reads_in_flight`), so that none is refused; more wait.
const READS: usize = 192;

/// How long a read may take until it is a miss: no reader waits for a device that hangs.
const READ_WAIT: Duration = Duration::from_secs(5);
/// Reads that are remembered as under way until those that ended are forgotten.
const FLIGHTS: usize = 256;

/// Where a value is.
#[derive(Debug, Clone)]
pub enum Fetch {
    /// In memory, since this read where it was found in another tier.
    InMemory(Source),
    /// Read from disk, or from the object store.
    OnDisk(Arc<OnDisk>),
    /// Nowhere.
    Absent,
    /// It was there, damaged, and was dropped.
    Damaged,
    /// Not read, since buffers for reads ahead of their turn are used up; only of [`Tiers::fetch_ahead`].
    Crowded,
}

/// A value in a buffer of its own.
#[derive(Debug)]
pub struct OnDisk {
    /// Where it was.
    pub source: Source,
    value: Value<Landing>,
    _share: OwnedSemaphorePermit,
}

impl OnDisk {
    pub(super) fn new(source: Source, value: Value<Landing>, share: OwnedSemaphorePermit) -> OnDisk {
        OnDisk { source, value, _share: share }
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

/// What is left of the buffers.
pub struct Shares {
    turn: Arc<Semaphore>,
    /// Units of all buffers for values in turn.
    most: u64,
    ahead: Arc<Semaphore>,
    reads: Semaphore,
}

impl Shares {
    /// For a memory tier of so many bytes.
    pub fn new(memory: u64) -> Shares {
        let units = |within: RangeInclusive<u64>| (memory / 8).clamp(*within.start(), *within.end()) / UNIT;
        let of = |units: u64| Arc::new(Semaphore::new(units as usize));
        let most = units(TURN_BYTES);
        Shares { turn: of(most), most, ahead: of(units(AHEAD_BYTES)), reads: Semaphore::new(READS) }
    }

    /// Waits for a share. A value that is longer than all of them takes them all.
    pub(super) async fn in_turn(&self, bytes: u64) -> Option<OwnedSemaphorePermit> {
        let units = bytes.div_ceil(UNIT).min(self.most) as u32;
        self.turn.clone().acquire_many_owned(units).await.ok()
    }

    /// Makes a share of a read ahead of its turn as large as `bytes` need; none where there is no more.
    pub(super) fn fit(&self, mut share: OwnedSemaphorePermit, bytes: u64) -> Option<OwnedSemaphorePermit> {
        let (has, needed) = (share.num_permits(), bytes.div_ceil(UNIT));
        if has as u64 >= needed {
            drop(share.split(has - needed as usize));
            return Some(share);
        }
        drop(share);
        self.ahead(bytes)
    }

    /// A share, if there is one.
    fn ahead(&self, bytes: u64) -> Option<OwnedSemaphorePermit> {
        self.ahead.clone().try_acquire_many_owned(bytes.div_ceil(UNIT) as u32).ok()
    }
}

/// A read that runs whether its reader looks or not, and ends with the last of them.
struct Running(JoinHandle<Fetch>);

impl Future for Running {
    type Output = Fetch;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Fetch> {
        // It panicked, or the node stops.
        Pin::new(&mut self.0).poll(cx).map(|ended| ended.unwrap_or(Fetch::Absent))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.abort();
    }
}

type Name = (u64, ObjectId);
type Flight = Shared<BoxFuture<'static, Fetch>>;

/// Reads under way.
#[derive(Default)]
pub struct Flights(Mutex<HashMap<Name, WeakShared<BoxFuture<'static, Fetch>>>>);

impl Flights {
    /// The read of this value that is under way, or this one.
    fn join(&self, name: Name, read: impl Future<Output = Fetch> + Send + 'static) -> Flight {
        let mut flights = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(flight) = flights.get(&name).and_then(WeakShared::upgrade).filter(|f| f.peek().is_none()) {
            return flight;
        }
        if flights.len() >= FLIGHTS {
            flights.retain(|_, flight| flight.upgrade().is_some_and(|f| f.peek().is_none()));
        }
        let flight = Running(tokio::spawn(read)).boxed().shared();
        if let Some(weak) = flight.downgrade() {
            flights.insert(name, weak);
        }
        flight
    }

    /// Nobody joins the reads of these any more: they were deleted, and another value may get the name.
    pub fn forget(&self, tenant: u64, ids: &[ObjectId]) {
        let mut flights = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        ids.iter().for_each(|id| drop(flights.remove(&(tenant, *id))));
    }
}

impl Tiers {
    /// Looks for a value, and reads it where it is on disk alone. That counts as a use of it. Within a tokio runtime.
    pub async fn fetch(self: Arc<Self>, tenant: u64, id: ObjectId) -> Fetch {
        if self.in_memory(tenant, &id) {
            return Fetch::InMemory(Source::Memory);
        }
        if !self.may_be_below(tenant, &id) {
            TierCounts::add(&self.counts.misses, 1);
            return Fetch::Absent;
        }
        let flight = self.flights.join((tenant, id), self.clone().flight(tenant, id, None));
        match flight.await {
            // Of somebody whose turn had not come.
            Fetch::Crowded => self.read(tenant, id, None).await,
            found => found,
        }
    }

    /// As [`Tiers::fetch`], for a value whose turn has not come: none where it is below memory, of `bytes` there, and buffers
    /// for such are used up; [`Fetch::Crowded`] where that was found later.
    pub fn fetch_ahead(self: &Arc<Self>, tenant: u64, id: ObjectId, bytes: u64) -> Option<BoxFuture<'static, Fetch>> {
        if bytes == 0 {
            return Some(self.clone().fetch(tenant, id).boxed());
        }
        let share = self.shares.ahead(bytes)?;
        Some(self.flights.join((tenant, id), self.clone().flight(tenant, id, Some(share))).boxed())
    }

    /// Bytes that reading a value from below memory takes, or is likely to take; 0 where it is in memory, or nowhere.
    pub fn bytes_to_read(&self, tenant: u64, id: &ObjectId) -> u64 {
        if self.in_memory(tenant, id) {
            return 0;
        }
        let on_disk = self.disk_bytes(tenant, id);
        if on_disk > 0 { on_disk } else { self.likely_below(tenant, id) }
    }

    /// Bytes that a value takes on disk; 0 where it is not there.
    pub fn disk_bytes(&self, tenant: u64, id: &ObjectId) -> u64 {
        self.disk_of(tenant, id).and_then(|disk| disk.value_blocks(tenant, id)).unwrap_or(0)
    }

    /// Counts a use of a value in memory.
    pub fn used(&self, tenant: u64, id: &ObjectId) {
        if self.has_disk() {
            self.uses.count(tenant, id);
        }
    }

    /// A read that others join, unless it found nothing: they look themselves.
    async fn flight(self: Arc<Self>, tenant: u64, id: ObjectId, share: Option<OwnedSemaphorePermit>) -> Fetch {
        let found = self.clone().read(tenant, id, share).await;
        if matches!(found, Fetch::Absent | Fetch::Damaged | Fetch::Crowded) {
            self.flights.forget(tenant, &[id]);
        }
        found
    }

    /// `share`: of the buffers for reads ahead of their turn, if this is one.
    async fn read(self: Arc<Self>, tenant: u64, id: ObjectId, mut share: Option<OwnedSemaphorePermit>) -> Fetch {
        let is_ahead = share.is_some();
        let fetch = self.read_disk(tenant, id, &mut share).await;
        let Some(remote) = self.remote().filter(|_| matches!(fetch, Fetch::Absent | Fetch::Damaged)) else {
            return fetch;
        };
        // The disk's read took the share, and a read ahead of its turn has no other.
        if is_ahead && share.is_none() {
            return Fetch::Crowded;
        }
        // What a disk has dropped meanwhile was queued before.
        match (self.read_below(remote, tenant, &id, share).await, fetch) {
            (Fetch::Absent, Fetch::Damaged) => Fetch::Damaged,
            (Fetch::Absent, _) => {
                TierCounts::add(&self.counts.misses, 1);
                Fetch::Absent
            }
            (fetch, _) => fetch,
        }
    }

    /// Takes the share where it begins to read.
    async fn read_disk(self: &Arc<Self>, tenant: u64, id: ObjectId, share: &mut Option<OwnedSemaphorePermit>) -> Fetch {
        let Some(disk) = self.disk_of(tenant, &id).cloned() else { return Fetch::Absent };
        let Some(blocks) = disk.value_blocks(tenant, &id) else { return Fetch::Absent };
        let share = match share.take() {
            Some(share) => share,
            None => match self.shares.in_turn(blocks).await {
                Some(share) => share,
                None => return Fetch::Absent,
            },
        };
        let Ok(_one) = self.shares.reads.acquire().await else { return Fetch::Absent };
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
        // What comes later is thrown away, and its memory with it.
        let Ok(Ok(outcome)) = tokio::time::timeout(READ_WAIT, answer).await else { return Fetch::Absent };
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
            Landing::Heap(_) => {
                Fetch::OnDisk(Arc::new(OnDisk::new(Source::Disk, Value { meta, crcs, buffer }, share)))
            }
            Landing::Slot(writer) => match self.bring_up(writer, &crcs, || self.disk_of(tenant, id).is_some()) {
                true => Fetch::InMemory(Source::Disk),
                false => Fetch::Absent,
            },
        }
    }

    /// Publishes a value in memory, unless it was deleted meanwhile: then it must not come back.
    pub(super) fn bring_up(&self, writer: Writer, crcs: &[u32], is_there: impl FnOnce() -> bool) -> bool {
        let _turn = self.turn();
        if !is_there() || writer.commit(crcs).is_err() {
            return false;
        }
        TierCounts::add(&self.counts.promoted, 1);
        true
    }
}
