//! The tier's surface, and its worker.

use super::calls::{Put, Target};
use super::config::{Backend, DiskConfig, DiskRecovery, Worker};
use super::delete::DeleteDone;
use super::device::Device;
use super::error::{DiskError, State};
use super::heir::Heir;
use super::index::flag;
use super::read::Fetched;
use super::seal::SealDone;
use super::segment::Phase;
use super::shared::Shared;
use super::stats::DiskStats;
use super::{BLOCK, Buffer, real};
use crate::shm::{ChainKey, ObjectId};
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;

/// Items for which the lock is taken at once.
const BATCH: usize = 64;

/// The disk tier of one directory. Clones are the same tier; with the last of them the worker ends, and the directory is
/// free for another process when nothing is in flight and no [`Fetched`] is left.
#[derive(Clone)]
pub struct Disk {
    running: Arc<Running>,
}

struct Running {
    shared: Arc<Shared>,
    worker: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for Disk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Disk({})", self.running.shared.io.device.path())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.shared.stop();
        if let Some(worker) = self.worker.take() {
            // One that waits for a device that hangs ends when the tier gives up, which nobody can tell it any more.
            self.shared.io.give_up();
            // The last handle may be dropped by a callback that runs on the worker.
            if worker.thread().id() != std::thread::current().id() {
                let _ = worker.join();
            }
        }
    }
}

impl Disk {
    /// Makes the directory or attaches to it. Blocks until it can serve: reads headers and footers, no values.
    ///
    /// # Errors
    /// Sizes outside the limits, a directory in use, one of another kind, version or fingerprint, a damaged manifest, no
    /// space for the first segments, or what the system says; each says what to do. A segment that is damaged is no error:
    /// it is set aside and reported.
    pub fn open(config: &DiskConfig) -> Result<(Disk, DiskRecovery), DiskError> {
        config.validate()?;
        let (device, ring_refused) = real::device(&config.dir, config.backend)?;
        let (disk, report) = Disk::open_on(config, device)?;
        let told = if config.backend == Backend::Auto { ring_refused } else { String::new() };
        Ok((disk, DiskRecovery { ring_refused: told, ..report }))
    }

    /// As [`Disk::open`], on a device of the caller's.
    ///
    /// # Errors
    /// As there.
    pub fn open_on(config: &DiskConfig, device: Arc<dyn Device>) -> Result<(Disk, DiskRecovery), DiskError> {
        let (shared, report) = super::open::open(config, device)?;
        let worker = match config.worker {
            Worker::Caller => None,
            Worker::Thread => {
                let shared = shared.clone();
                let path = shared.io.device.path();
                let spawned = std::thread::Builder::new().name("disk-worker".into()).spawn(move || work(&shared));
                Some(spawned.map_err(|e| DiskError::io(path, "start the worker", &e))?)
            }
        };
        shared.ring();
        Ok((Disk { running: Arc::new(Running { shared, worker }) }, report))
    }

    fn shared(&self) -> &Arc<Shared> {
        &self.running.shared
    }

    /// Longest value that fits into a new segment.
    pub fn max_value_bytes(&self) -> u64 {
        self.shared().lock().map_or(0, |core| super::write::max_value_bytes(&core.config))
    }

    /// The parts of each key that are there for `tenant`, as masks. No I/O, and no use: nothing is marked as hit. Nothing is
    /// there when the tier is offline.
    pub fn exists(&self, tenant: u64, keys: &[ChainKey]) -> Vec<u64> {
        let mut masks = Vec::with_capacity(keys.len());
        for batch in keys.chunks(BATCH) {
            let Ok(core) = self.shared().lock() else { break };
            if core.state.readable().is_err() {
                break;
            }
            masks.extend(batch.iter().map(|key| core.index.mask(core.index.hash(tenant, key))));
        }
        masks.resize(keys.len(), 0);
        masks
    }

    /// Bytes of the blocks of an object, what a [`Target::Buffer`] should have; none where it is not there.
    pub fn value_blocks(&self, tenant: u64, id: &ObjectId) -> Option<u64> {
        let core = self.shared().lock().ok()?;
        let at = core.index.find(core.index.hash(tenant, &id.key), id.part)?;
        core.state.readable().ok()?;
        Some(u64::from(core.index.get(at).blocks) * BLOCK as u64)
    }

    /// Stores values; each put's callback is called once, and has the buffer. Values that are given together share headers
    /// and writes. Nothing waits: what finds no room is answered `NoRoom`.
    pub fn put(&self, batch: Vec<Put>, now: u64) {
        self.shared().put(batch, now);
        if self.shared().lock().is_ok_and(|core| core.count(Phase::Free) < core.config.spare_segments()) {
            self.shared().ring();
        }
    }

    /// Reads a value; the callback gets it unverified, since that takes time: [`Fetched::verify`]. Counts as a hit.
    ///
    /// # Errors
    /// Of the callback: `Missing`, `Busy`, `TooSmall`, `Io`, `Damaged`, `Offline`.
    pub fn get<B: Buffer>(
        &self,
        tenant: u64,
        id: &ObjectId,
        target: Target<B>,
        done: impl FnOnce(Result<Fetched<B>, DiskError>) + Send + 'static,
    ) {
        self.shared().get(tenant, id, target, Box::new(done));
    }

    /// Marks objects as hit, so that reclaiming keeps them. Returns how many are there. Hits are kept in memory only: after
    /// a restart nothing is hit.
    pub fn touch(&self, tenant: u64, ids: &[ObjectId]) -> usize {
        let mut count = 0;
        for batch in ids.chunks(BATCH) {
            let Ok(mut core) = self.shared().lock() else { break };
            for id in batch {
                if let Some(at) = core.index.find(core.index.hash(tenant, &id.key), id.part) {
                    core.index.get_mut(at).flags |= flag::HIT;
                    count += 1;
                }
            }
        }
        count
    }

    /// Forgets objects, also those that are being written; lookups miss when this returns. When the callback is called with
    /// `Ok` (how many were there) none of them comes back, through `kill -9` and power loss. On an error they may.
    pub fn delete(&self, tenant: u64, ids: &[ObjectId], done: impl FnOnce(Result<usize, DiskError>) + Send + 'static) {
        self.shared().delete(tenant, ids, Box::new(done) as DeleteDone);
    }

    /// Seals what was accepted before this call; the callback says when it survives power loss. The rest of the open
    /// segments stays empty until they are reclaimed, so this is for shutting down and for tests, not for every batch.
    pub fn seal(&self, done: impl FnOnce(Result<(), DiskError>) + Send + 'static) {
        self.shared().seal(Box::new(done) as SealDone);
    }

    /// Offers what reclaiming drops to `heir` from now on; the first one stays.
    pub fn set_heir(&self, heir: Arc<dyn Heir>) {
        let _ = self.shared().heir.set(heir);
    }

    /// To be called now and then, for instance each second: notices operations that hang, and asks the worker to see whether
    /// the directory is still there.
    pub fn tick(&self, now: u64) {
        let Ok(timeout) = self.shared().with(|core, _| {
            core.look = true;
            core.config.io_timeout_ms
        }) else {
            return;
        };
        if !self.shared().io.is_moving(now, timeout) {
            self.shared().go_offline(&format!("the device did not complete an operation for {timeout} ms"));
        }
        self.shared().ring();
    }

    /// Path of the directory, for messages.
    pub fn path(&self) -> String {
        self.shared().io.device.path()
    }

    /// What the tier can do, and why not more.
    pub fn state(&self) -> State {
        self.shared().lock().map_or_else(|e| State::Offline(e.to_string()), |core| core.state.clone())
    }

    /// Counts and sizes.
    pub fn stats(&self) -> DiskStats {
        let Ok(core) = self.shared().lock() else { return DiskStats::default() };
        let io = &self.shared().io;
        let mut totals = core.totals;
        (totals.written_bytes, totals.read_bytes) = io.bytes();
        let (objects, block_bytes) = core.summed();
        let (free, sealed) = (core.count(Phase::Free) as u64, core.count(Phase::Sealed) as u64);
        DiskStats {
            capacity_bytes: core.config.capacity_bytes,
            file_bytes: core.file_bytes,
            objects,
            block_bytes,
            free_segments: free,
            sealed_segments: sealed,
            open_segments: core.numbers.len() as u64 - free - sealed,
            index_bytes: core.index.bytes() + core.each().map(|(_, s)| s.marks.capacity() as u64).sum::<u64>(),
            write_bytes_in_flight: core.write_bytes,
            reads_in_flight: core.reads as u64,
            no_space: core.no_space,
            direct: io.device.direct(),
            totals,
        }
    }

    /// Does one piece of the worker's work, with [`Worker::Caller`]; false when there is none, and always where the tier has
    /// a worker of its own. Blocks for the device.
    pub fn work(&self) -> bool {
        self.running.worker.is_none() && self.shared().work()
    }

    /// Compares everything with everything, sealed segments' footers included; for tests and debugging, linear in what is
    /// stored, and it waits for the device.
    ///
    /// # Errors
    /// [`DiskError::Integrity`] with the first contradiction.
    pub fn check_integrity(&self) -> Result<(), DiskError> {
        self.shared().check_integrity()
    }
}

fn work(shared: &Arc<Shared>) {
    while shared.listen() {
        while !shared.stopping() && shared.work() {}
    }
}

impl Shared {
    /// One piece of work, the most urgent first.
    pub fn work(self: &Arc<Self>) -> bool {
        let _one_at_a_time = self.working.lock().unwrap_or_else(PoisonError::into_inner);
        if self.with(|core, _| std::mem::take(&mut core.look)).unwrap_or(false)
            && let Err(e) = self.io.device.alive()
        {
            self.go_offline(&format!("the directory is gone: {e}"));
        }
        self.write_marks() || self.seal_one() || self.prepare_one(true)
    }
}
