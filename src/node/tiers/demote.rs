//! Demotion: what eviction would take next is written to disk in batches, and leaves memory when its write has completed.
//!
//! One thread keeps `reserve` bytes free. It sleeps until a value was put or found no room, and looks once a second whether
//! the disks still write: where none does, memory evicts by itself again.

use super::{TierCounts, Tiers};
use crate::disk::{Buffer, Disk, Put, PutOutcome, State};
use crate::remote::Writers;
use crate::shm::{Leaving, ObjectId};
use smallvec::SmallVec;
use std::any::Any;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Bytes chosen at once.
const BATCH_BYTES: u64 = 8 << 20;
/// Bytes on their way to the disks.
const IN_FLIGHT_BYTES: u64 = 64 << 20;
/// How often the disks are looked at.
const LOOK: Duration = Duration::from_secs(1);
/// Pause after a disk had no room for a value, while it reclaims some.
const PAUSE: Duration = Duration::from_millis(5);

/// What the thread and those who wake it share.
#[derive(Default)]
pub struct Demotion {
    awake: Mutex<bool>,
    changed: Condvar,
    stopping: AtomicBool,
    /// Bytes of slots whose values were given to the disks, and of those that wait to be given again.
    in_flight: AtomicU64,
    /// What a disk had no room for a moment ago.
    again: Mutex<Vec<Leaving>>,
}

impl Demotion {
    fn again(&self) -> MutexGuard<'_, Vec<Leaving>> {
        self.again.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// There is something to do.
    pub fn wake(&self) {
        *self.awake.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_one();
    }

    /// Waits for that, or for its time.
    fn sleep(&self, most: Duration) {
        let awake = self.awake.lock().unwrap_or_else(PoisonError::into_inner);
        let slept = self.changed.wait_timeout_while(awake, most, |awake| !*awake);
        *slept.unwrap_or_else(PoisonError::into_inner).0 = false;
    }
}

/// The thread; stopped when dropped.
pub struct Demoter {
    tiers: Arc<Tiers>,
    _writers: Option<Writers>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Demoter {
    fn drop(&mut self) {
        self.tiers.demotion.stopping.store(true, Ordering::Relaxed);
        self.tiers.demotion.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A value that the disk writes from where it lies.
struct Going(Leaving);

// SAFETY: a pinned slot stays where it is, committed bytes do not change, and nobody uses what is behind them in the slot.
unsafe impl Buffer for Going {
    fn start(&self) -> *mut u8 {
        self.0.slot().0
    }
    fn capacity(&self) -> usize {
        self.0.slot().1
    }
}

impl Tiers {
    /// Starts demotion, and writing to the object store; none without disks. With an object store, inside a tokio runtime.
    ///
    /// # Errors
    /// The system's.
    pub fn start(self: &Arc<Self>) -> Result<Option<Demoter>, String> {
        if !self.has_disk() {
            return Ok(None);
        }
        let writers = self.remote().map(|remote| remote.start(&tokio::runtime::Handle::current()));
        if let Some(heir) = self.heir() {
            self.disks.iter().for_each(|disk| disk.set_heir(heir.clone()));
        }
        let tiers = self.clone();
        let thread = std::thread::Builder::new().name("demote".into()).spawn(move || tiers.demote());
        let thread = Some(thread.map_err(|e| format!("cannot start the thread of the disk tier: {e}"))?);
        Ok(Some(Demoter { tiers: self.clone(), _writers: writers, thread }))
    }

    fn demote(self: &Arc<Self>) {
        let mut told: Vec<Option<String>> = vec![None; self.disks.len()];
        let mut kept = true;
        while !self.demotion.stopping.load(Ordering::Relaxed) {
            let again = !self.demotion.again().is_empty();
            if again {
                std::thread::sleep(PAUSE);
            } else {
                self.demotion.sleep(LOOK);
            }
            self.look(&mut told, &mut kept);
            let again = std::mem::take(&mut *self.demotion.again());
            if !again.is_empty() {
                self.give(again, true);
            }
            while self.demote_some() {}
        }
    }

    /// Tells what has become of the disks; where none writes any more memory evicts by itself again.
    fn look(&self, told: &mut [Option<String>], kept: &mut bool) {
        let now = self.clock.now();
        for (disk, told) in self.disks.iter().zip(told) {
            disk.tick(now);
            let trouble = super::trouble(disk);
            if trouble == *told {
                continue;
            }
            let path = disk.path();
            match (&trouble, disk.state()) {
                (Some(trouble), State::Serving) => {
                    tracing::warn!(path, trouble, "a disk has less room than configured")
                }
                (Some(trouble), State::ReadOnly(_)) => {
                    tracing::error!(path, trouble, "a disk takes no new values; what it has is served")
                }
                (Some(trouble), State::Offline(_)) => {
                    tracing::error!(path, trouble, "a disk is offline; memory serves on")
                }
                (None, _) => tracing::info!(path, "a disk has the room that is configured"),
            }
            *told = trouble;
        }
        let keep = self.disks.iter().any(|disk| disk.state() == State::Serving);
        if keep != *kept {
            *kept = keep;
            self.memory.keep_all(keep);
            self.room.notify_waiters();
        }
    }

    /// Sends a batch on its way; false when enough is free or on its way, or nothing can go.
    fn demote_some(self: &Arc<Self>) -> bool {
        let d = &self.demotion;
        let in_flight = d.in_flight.load(Ordering::Relaxed);
        let (free, wanted) = (self.memory.free_bytes(), self.memory.wants_room());
        let lacking = self.settings.reserve.saturating_sub(free + in_flight);
        let wanted = if wanted && in_flight == 0 { BATCH_BYTES } else { 0 };
        let bytes = lacking.max(wanted).min(BATCH_BYTES).min(IN_FLIGHT_BYTES.saturating_sub(in_flight));
        if bytes == 0 || d.stopping.load(Ordering::Relaxed) {
            return false;
        }
        let chosen = self.memory.leaving(bytes);
        let any = !chosen.is_empty();
        self.give(chosen, false);
        any
    }

    /// Gives values to the disks; `again`: they were counted before.
    fn give(self: &Arc<Self>, chosen: Vec<Leaving>, again: bool) {
        let d = &self.demotion;
        let mut batches: Vec<Vec<Put>> = self.disks.iter().map(|_| Vec::new()).collect();
        let mut clean = Vec::new();
        let turn = self.turn();
        for leaving in chosen {
            let (meta, bytes) = (leaving.meta().put, leaving.slot().1 as u64);
            if again {
                d.in_flight.fetch_sub(bytes, Ordering::Relaxed);
            }
            if leaving.is_deleted() {
                continue;
            }
            if self.disk_of(meta.tenant, &meta.id).is_some() {
                clean.push((leaving, &self.counts.clean));
                continue;
            }
            let Some(at) = self.disk_for(&meta.id, meta.len) else {
                clean.push((leaving, &self.counts.dropped));
                continue;
            };
            d.in_flight.fetch_add(bytes, Ordering::Relaxed);
            let tiers = self.clone();
            let done = move |outcome, value: Box<dyn Buffer>| tiers.written(outcome, value, bytes);
            let crcs = leaving.crcs().iter().copied().collect();
            batches[at].push(Put { meta, crcs, value: Box::new(Going(leaving)), done: Box::new(done) });
        }
        let now = self.clock.now();
        for (disk, batch) in self.disks.iter().zip(batches) {
            disk.put(batch, now);
        }
        drop(turn);
        let freed = !clean.is_empty();
        for (leaving, counter) in clean {
            if leaving.leave() {
                TierCounts::add(counter, 1);
            }
        }
        if freed {
            self.room.notify_waiters();
        }
    }

    /// Where a value goes: by its key among the disks that can take it.
    fn disk_for(&self, id: &ObjectId, len: u64) -> Option<usize> {
        let takes = |disk: &Disk| disk.state() == State::Serving && len <= disk.max_value_bytes();
        let fit: SmallVec<[usize; 4]> = (0..self.disks.len()).filter(|n| takes(&self.disks[*n])).collect();
        let key = u64::from_le_bytes(id.key[..8].try_into().unwrap_or_default());
        (!fit.is_empty()).then(|| fit[(key % fit.len() as u64) as usize])
    }

    /// A write has completed, or was refused.
    fn written(&self, outcome: PutOutcome, value: Box<dyn Buffer>, bytes: u64) {
        let value: Box<dyn Any> = value;
        let Ok(going) = value.downcast::<Going>() else { return };
        let leaving = going.0;
        let counter = match outcome {
            PutOutcome::Stored => Some(&self.counts.demoted),
            PutOutcome::Present => Some(&self.counts.clean),
            // An earlier write of it is on its way, or the disk must reclaim first: it is given again.
            PutOutcome::Busy | PutOutcome::NoRoom => None,
            PutOutcome::OverBudget | PutOutcome::Failed(_) => Some(&self.counts.dropped),
        };
        match counter {
            Some(counter) => {
                if leaving.leave() {
                    TierCounts::add(counter, 1);
                }
            }
            None => {
                self.demotion.again().push(leaving);
                self.demotion.wake();
                return;
            }
        }
        self.demotion.in_flight.fetch_sub(bytes, Ordering::Relaxed);
        self.room.notify_waiters();
        self.demotion.wake();
    }
}
