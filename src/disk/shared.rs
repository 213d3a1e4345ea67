//! What all of a tier's calls and threads have in common: the device, the one lock, and the bell of the worker.

use super::core::{Core, Later};
use super::error::DiskError;
use super::heir::Heir;
use super::io::Io;
use super::segment::{Phase, SegmentId};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

#[derive(Default)]
struct Bell {
    rung: bool,
    stop: bool,
}

/// See above.
pub struct Shared {
    pub(super) io: Arc<Io>,
    core: Mutex<Core>,
    bell: Mutex<Bell>,
    ringing: Condvar,
    /// A read failed since one went well.
    pub(super) reads_failed: AtomicBool,
    /// Held by whoever does the worker's work.
    pub(super) working: Mutex<()>,
    /// Gets what reclaiming drops.
    pub(super) heir: OnceLock<Arc<dyn Heir>>,
}

impl Shared {
    /// Around what opening found.
    pub fn new(io: Arc<Io>, core: Core) -> Shared {
        Shared {
            io,
            core: Mutex::new(core),
            bell: Mutex::default(),
            ringing: Condvar::new(),
            reads_failed: AtomicBool::new(false),
            working: Mutex::new(()),
            heir: OnceLock::new(),
        }
    }

    /// The bookkeeping, unless a call failed inside it: then nobody knows what it left half done.
    pub fn lock(&self) -> Result<MutexGuard<'_, Core>, DiskError> {
        const FAILED: &str = "a call failed inside the tier; it cannot be used any more, open the directory anew";
        self.core.lock().map_err(|_: PoisonError<_>| DiskError::Integrity(FAILED.into()))
    }

    /// Runs something under the lock and, after it, what it left to call.
    pub fn with<R>(&self, what: impl FnOnce(&mut Core, &mut Later) -> R) -> Result<R, DiskError> {
        let mut later = Later::new();
        let result = what(&mut *self.lock()?, &mut later);
        later.into_iter().for_each(|call| call());
        Ok(result)
    }

    /// As [`Shared::with`], for calls after which deletes or seals may be ready. The worker itself uses the other one: it
    /// looks again anyway, and must not wake itself for what waits for the device.
    pub fn with_bell<R>(&self, what: impl FnOnce(&mut Core, &mut Later) -> R) -> Result<R, DiskError> {
        let ring_after = |core: &mut Core, later: &mut Later| {
            let result = what(core, later);
            (result, !core.tickets.is_empty() || core.count(Phase::Sealing) > 0)
        };
        let (result, ring) = self.with(ring_after)?;
        if ring {
            self.ring();
        }
        Ok(result)
    }

    /// Wakes the worker.
    pub fn ring(&self) {
        self.bell.lock().unwrap_or_else(PoisonError::into_inner).rung = true;
        self.ringing.notify_one();
    }

    /// Tells the worker to end.
    pub fn stop(&self) {
        self.bell.lock().unwrap_or_else(PoisonError::into_inner).stop = true;
        self.ringing.notify_one();
    }

    /// Waits for the bell; false when it is time to end.
    pub fn listen(&self) -> bool {
        let bell = self.bell.lock().unwrap_or_else(PoisonError::into_inner);
        let mut bell = self.ringing.wait_while(bell, |b| !b.rung && !b.stop).unwrap_or_else(PoisonError::into_inner);
        bell.rung = false;
        !bell.stop
    }

    /// Whether the worker is to end.
    pub fn stopping(&self) -> bool {
        self.bell.lock().unwrap_or_else(PoisonError::into_inner).stop
    }

    /// A write failed.
    pub fn write_failed(&self, what: &str, error: &std::io::Error) {
        let why = format!("{what}: {error}");
        // A poisoned lock refuses everything anyway.
        let _ = self.with(|core, _| core.become_read_only(&why));
    }

    /// The device is gone: nobody waits for it any more.
    pub fn go_offline(&self, why: &str) {
        let _ = self.with(|core, _| core.become_offline(why));
        self.io.give_up();
        self.ring();
    }

    /// The segment that a callback was about, unless it has become another one meanwhile.
    pub fn same(core: &Core, id: SegmentId, generation: u64) -> bool {
        core.segments.get(id as usize).and_then(Option::as_ref).is_some_and(|s| s.generation == generation)
    }
}
