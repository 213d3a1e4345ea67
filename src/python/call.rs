//! How a Python call reaches the cache: the lock, the GIL, the clock.
//!
//! Short calls keep the GIL and try the lock; if another thread holds it, or the call may touch [`LONG`] tokens or more,
//! the GIL is released first. A thread therefore never waits for the lock with the GIL held, and closures touch no
//! Python object (a garbage collection inside one could drop a sequence of the same cache).

use super::errors;
use crate::cache::Cache;
use crate::error::Result;
use crate::sync::{Attempt, SharedCache};
#[cfg(target_os = "linux")]
use crate::{sync::Guarded, tier::Tiers};
use pyo3::prelude::*;
use std::sync::Arc;
#[cfg(target_os = "linux")]
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Tokens (or table entries) from which a call releases the GIL.
pub(super) const LONG: usize = 4096;

struct Shared {
    cache: SharedCache,
    created: Instant,
    high_tokens: AtomicBool,
    #[cfg(target_os = "linux")]
    tiers: OnceLock<Guarded<Tiers>>,
}

/// What every Python object of one cache holds.
#[derive(Clone)]
pub(super) struct Handle(Arc<Shared>);

impl Handle {
    pub(super) fn new(cache: Cache) -> Self {
        let cache = SharedCache::new(cache);
        Handle(Arc::new(Shared {
            cache,
            created: Instant::now(),
            high_tokens: AtomicBool::new(false),
            #[cfg(target_os = "linux")]
            tiers: OnceLock::new(),
        }))
    }

    /// Runs `f` under the lock; `work` is the number of tokens it may touch.
    #[inline]
    pub(super) fn call<R: Send>(
        &self,
        py: Python<'_>,
        work: usize,
        f: impl FnOnce(&mut Cache) -> Result<R> + Send,
    ) -> PyResult<R> {
        let cache = &self.0.cache;
        let outcome = if work >= LONG {
            py.detach(|| cache.with(f))
        } else {
            match cache.try_with(f) {
                Attempt::Done(outcome) => outcome,
                Attempt::Busy(f) => py.detach(|| cache.with(f)),
            }
        };
        outcome.map_err(|fault| errors::fault_to_py(py, fault))
    }

    pub(super) fn same(&self, other: &Handle) -> bool {
        self.0.cache.same(&other.0.cache)
    }

    /// Refuses a forked child.
    pub(super) fn check_process(&self, py: Python<'_>) -> PyResult<()> {
        self.0.cache.check_process().map_err(|fault| errors::fault_to_py(py, fault))
    }

    pub(super) fn in_child(&self) -> bool {
        self.0.cache.check_process().is_err()
    }

    /// Puts a host tier below the cache; false when there is one. Under the cache's lock.
    #[cfg(target_os = "linux")]
    pub(super) fn put_tiers(&self, tiers: Tiers) -> bool {
        self.0.tiers.set(Guarded::new(tiers)).is_ok()
    }

    /// The host tier, if there is one. Under the cache's lock.
    #[cfg(target_os = "linux")]
    pub(super) fn with_tiers<R>(&self, f: impl FnOnce(Option<&mut Tiers>) -> R) -> R {
        match self.0.tiers.get() {
            Some(tiers) => tiers.with(|tiers| f(Some(tiers))),
            None => f(None),
        }
    }

    /// For destructors.
    pub(super) fn abandon(&self, seq: crate::cache::SeqId) {
        self.0.cache.abandon(seq);
    }

    /// Milliseconds since the cache was made, the clock of pins and opens.
    pub(super) fn now_ms(&self) -> u64 {
        self.0.created.elapsed().as_millis() as u64
    }

    /// Notes that tokens of 2^31 or more may be in the tree.
    pub(super) fn note_high_tokens(&self) {
        self.0.high_tokens.store(true, Ordering::Release);
    }

    /// Whether tokens of 2^31 or more may be in the tree. While not, what matched holds no negative int32.
    pub(super) fn high_tokens(&self) -> bool {
        self.0.high_tokens.load(Ordering::Acquire)
    }
}
