//! The tier's surface, and what all of its calls share.

use super::bucket::Bucket;
use super::config::RemoteConfig;
use super::delete::AT_ONCE;
use super::header::Crcs;
use super::queue::{Queue, Queued};
use super::recent::{Known, Recent};
use super::record::Record;
use super::rest::Rest;
use super::stats::{Counters, RemoteStats};
use super::{Name, Names};
use crate::disk::Aligned;
use crate::shm::{ChainKey, PutMeta};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{Notify, Semaphore};
use tokio::time::Instant;

/// What reads are taken to need before one was seen, and the most that they are.
const LIKELY_BYTES: (u64, u64) = (4 << 20, 32 << 20);

/// Names that something is being done with, beside the queue.
#[derive(Default)]
pub(super) struct Busy {
    /// Reads that run; the flag says that the object was deleted meanwhile.
    pub(super) reads: Vec<(Name, Arc<AtomicBool>)>,
    /// Deletes that have not ended: how many of each name.
    pub(super) deletes: HashMap<Name, usize>,
}

/// See [`super`]. [`Remote::start`] must be called for anything to be written.
pub struct Remote {
    pub(super) bucket: Arc<dyn Bucket>,
    pub(super) config: RemoteConfig,
    pub(super) names: Names,
    pub(super) queue: Mutex<Queue>,
    /// The queue got something.
    pub(super) added: Notify,
    /// A write has ended.
    pub(super) ended: Notify,
    pub(super) busy: Mutex<Busy>,
    pub(super) recent: Mutex<Recent>,
    pub(super) record: Mutex<Record>,
    pub(super) rest: Mutex<Rest>,
    pub(super) reading: Arc<Semaphore>,
    pub(super) deleting: Semaphore,
    pub(super) counts: Counters,
    likely: AtomicU64,
}

impl std::fmt::Debug for Remote {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Remote({:?})", self.bucket)
    }
}

/// Nothing that a panic could leave half done is behind these locks for longer than one call.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Remote {
    /// Over a store.
    pub fn new(bucket: Arc<dyn Bucket>, config: RemoteConfig) -> Arc<Remote> {
        Arc::new(Remote {
            bucket,
            names: Names::new(&config.prefix, &config.node),
            queue: Mutex::new(Queue::new(config.queue_bytes)),
            added: Notify::new(),
            ended: Notify::new(),
            busy: Mutex::default(),
            recent: Mutex::new(Recent::new(config.remember_absent)),
            record: Mutex::new(Record::new(config.keys)),
            rest: Mutex::default(),
            reading: Arc::new(Semaphore::new(config.reads)),
            deleting: Semaphore::new(AT_ONCE),
            counts: Counters::default(),
            likely: AtomicU64::new(LIKELY_BYTES.0),
            config,
        })
    }

    /// Whether a value should be read so that it can be offered; counts it where it should not.
    pub fn wants(&self, name: &Name, len: u64) -> bool {
        let known = lock(&self.recent).get(name, Instant::now());
        if known == Some(Known::Present) {
            Counters::add(&self.counts.present, 1);
            return false;
        }
        let mut queue = lock(&self.queue);
        queue.settle(Instant::now());
        let room = queue.has_room(len);
        drop(queue);
        if !room {
            Counters::add(&self.counts.dropped, 1);
        }
        room
    }

    /// Adds a value to the queue: the first bytes of `value`, which were compared with their CRCs. False where it is dropped.
    pub fn offer(&self, meta: PutMeta, crcs: Crcs, value: Aligned) -> bool {
        let mut queue = lock(&self.queue);
        queue.settle(Instant::now());
        let added = queue.add(Queued::new(meta, crcs, value));
        drop(queue);
        if added {
            let name = (meta.tenant, meta.id);
            lock(&self.recent).forget(&name);
            lock(&self.record).add(&name);
            self.added.notify_one();
        } else {
            Counters::add(&self.counts.dropped, 1);
        }
        added
    }

    /// Masks of the parts of keys that the store, or the queue, is known to have; none while the tier rests.
    pub fn present(&self, tenant: u64, keys: &[ChainKey]) -> Vec<u64> {
        if lock(&self.rest).until(Instant::now()).is_some() {
            return vec![0; keys.len()];
        }
        let record = lock(&self.record);
        keys.iter().map(|key| record.parts(tenant, key)).collect()
    }

    /// Whether asking for an object may find it: it is not known to be absent, and the tier does not rest.
    pub fn may_have(&self, name: &Name) -> bool {
        let now = Instant::now();
        lock(&self.queue).has(name)
            || lock(&self.recent).get(name, now) != Some(Known::Absent) && lock(&self.rest).until(now).is_none()
    }

    /// The store does not have it, as it said. That is not relied on while a write of it waits, runs, or may take effect yet.
    pub(super) fn is_absent(&self, name: &Name) {
        let (queue, now) = (lock(&self.queue), Instant::now());
        if !queue.has(name) && !queue.is_unsettled(name, now) {
            lock(&self.recent).set(name, Known::Absent, now);
            lock(&self.record).remove(name);
        }
    }

    /// Bytes that reading an object is likely to take; the longest value read lately, within bounds.
    pub fn likely_bytes(&self) -> u64 {
        self.likely.load(Ordering::Relaxed)
    }

    pub(super) fn saw(&self, bytes: u64) {
        let before = self.likely_bytes();
        // Falls slowly, so that a short value between long ones does not make the next one wait.
        let next = bytes.max(before - before / 64);
        self.likely.store(next.clamp(1 << 16, LIKELY_BYTES.1), Ordering::Relaxed);
    }

    /// A call went well.
    pub(super) fn went_well(&self) {
        if lock(&self.rest).went_well() {
            tracing::info!(store = ?self.bucket, "the object store answers again");
        }
    }

    /// A call failed.
    pub(super) fn went_wrong(&self, why: &str) {
        if lock(&self.rest).failed(why, Instant::now()) {
            tracing::error!(store = ?self.bucket, why, "the object store fails; the node serves on without it");
        }
    }

    /// Counts and sizes.
    pub fn stats(&self) -> RemoteStats {
        let (queue_bytes, queued) = lock(&self.queue).size();
        RemoteStats {
            queue_capacity_bytes: self.config.queue_bytes,
            queue_bytes,
            queued,
            reads: (self.config.reads - self.reading.available_permits()) as u64,
            keys: lock(&self.record).len() as u64,
            trouble: lock(&self.rest).trouble().to_string(),
            totals: self.counts.totals(),
        }
    }
}
