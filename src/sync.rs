//! The one file with locks: a [`Cache`] shared by threads, usable until a call fails inside it, refused after `fork`.
//!
//! - Everything inside a cache is single-threaded; [`SharedCache`] is that cache behind one mutex.
//! - Lock order: the cache first, then a [`Guarded`] value. Closures run under the lock, so they call nothing that could
//!   come back here: no Python, no other cache.
//! - A panic inside the core never leaves [`SharedCache::with`]: it becomes [`Error::Integrity`], and from then on every
//!   call is refused, since nobody can know what the panic left half done.
//! - In a child made by `fork` a lock may be held by a thread that does not exist there. Every call compares an epoch
//!   that a fork handler raises and is refused before it touches a lock; drops leak what they cannot lock.
//!
//! With the cargo feature `shuttle` the locks are those of the schedule explorer of that name.

use crate::cache::{Cache, SeqId};
use crate::error::{Error, Result};
use std::any::Any;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicU64 as ProcessWide;
use std::sync::{Once, OnceLock};

#[cfg(feature = "shuttle")]
use shuttle::sync::{
    Arc, Mutex, TryLockError,
    atomic::{AtomicBool, Ordering},
};
#[cfg(not(feature = "shuttle"))]
use std::sync::{
    Arc, Mutex, TryLockError,
    atomic::{AtomicBool, Ordering},
};

/// Why a call on a shared cache was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// The core's own error.
    Core(Error),
    /// The cache belongs to the parent process.
    Forked,
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Fault::Core(error)
    }
}

/// Result of [`SharedCache::try_with`].
pub enum Attempt<R, F> {
    /// The closure ran, or the call was refused.
    Done(std::result::Result<R, Fault>),
    /// Another thread holds the lock; here is the closure again.
    Busy(F),
}

static FORKS: ProcessWide = ProcessWide::new(0);

/// Raised in every child process before `fork` returns there.
fn process_epoch() -> u64 {
    FORKS.load(std::sync::atomic::Ordering::Relaxed)
}

extern "C" fn after_fork_in_child() {
    FORKS.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
}

fn watch_forks() {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        // SAFETY: the handler is a plain function that does one atomic addition, which is allowed after fork.
        let rc = unsafe { libc::pthread_atfork(None, None, Some(after_fork_in_child)) };
        assert_eq!(rc, 0, "pthread_atfork failed for lack of memory");
    });
}

struct Inner {
    cache: ManuallyDrop<Mutex<Cache>>,
    /// Sequences whose owner was dropped while the lock was held elsewhere; the next call aborts them.
    abandoned: ManuallyDrop<Mutex<Vec<SeqId>>>,
    any_abandoned: AtomicBool,
    /// The words of the panic after which the cache is refused. Written under the lock.
    failed: OnceLock<String>,
    epoch: u64,
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.epoch == process_epoch() {
            // SAFETY: dropped once, here. In a forked child both leak: their insides may be half changed by a thread
            // that does not exist there.
            unsafe {
                ManuallyDrop::drop(&mut self.cache);
                ManuallyDrop::drop(&mut self.abandoned);
            }
        }
    }
}

/// A cache that threads share. Clones are the same cache.
#[derive(Clone)]
pub struct SharedCache {
    inner: Arc<Inner>,
}

impl SharedCache {
    /// Takes a cache in.
    pub fn new(cache: Cache) -> Self {
        watch_forks();
        SharedCache {
            inner: Arc::new(Inner {
                cache: ManuallyDrop::new(Mutex::new(cache)),
                abandoned: ManuallyDrop::new(Mutex::new(Vec::new())),
                any_abandoned: AtomicBool::new(false),
                failed: OnceLock::new(),
                epoch: process_epoch(),
            }),
        }
    }

    /// Whether both are the same cache.
    pub fn same(&self, other: &SharedCache) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// [`Fault::Forked`] in a child process.
    #[inline]
    pub fn check_process(&self) -> std::result::Result<(), Fault> {
        if self.inner.epoch == process_epoch() { Ok(()) } else { Err(Fault::Forked) }
    }

    /// Runs `f` on the cache; waits for the lock.
    pub fn with<R>(&self, f: impl FnOnce(&mut Cache) -> Result<R>) -> std::result::Result<R, Fault> {
        self.check_process()?;
        match self.inner.cache.lock() {
            Ok(mut cache) => self.run(&mut cache, f),
            Err(poisoned) => self.run(&mut poisoned.into_inner(), f),
        }
    }

    /// Runs `f` on the cache unless another thread holds the lock.
    #[inline]
    pub fn try_with<R, F: FnOnce(&mut Cache) -> Result<R>>(&self, f: F) -> Attempt<R, F> {
        if let Err(fault) = self.check_process() {
            return Attempt::Done(Err(fault));
        }
        match self.inner.cache.try_lock() {
            Ok(mut cache) => Attempt::Done(self.run(&mut cache, f)),
            Err(TryLockError::Poisoned(poisoned)) => Attempt::Done(self.run(&mut poisoned.into_inner(), f)),
            Err(TryLockError::WouldBlock) => Attempt::Busy(f),
        }
    }

    /// For destructors: aborts `seq` now if the lock is free, else at the start of the next call. Never waits, and does
    /// nothing in a forked child.
    pub fn abandon(&self, seq: SeqId) {
        if self.check_process().is_err() {
            return;
        }
        self.inner.abandoned.lock().unwrap_or_else(|e| e.into_inner()).push(seq);
        self.inner.any_abandoned.store(true, Ordering::Release);
        // Any call settles; it may also be refused, and then there is nothing left to settle for.
        let _ = self.try_with(|_| Ok(()));
    }

    fn run<R>(&self, cache: &mut Cache, f: impl FnOnce(&mut Cache) -> Result<R>) -> std::result::Result<R, Fault> {
        if let Some(words) = self.inner.failed.get() {
            return Err(refused(words).into());
        }
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            if self.inner.any_abandoned.load(Ordering::Acquire) {
                self.settle(cache);
            }
            f(cache)
        }));
        match outcome {
            Ok(result) => Ok(result?),
            Err(payload) => {
                let words = self.inner.failed.get_or_init(|| panic_words(payload.as_ref()));
                Err(refused(words).into())
            }
        }
    }

    fn settle(&self, cache: &mut Cache) {
        self.inner.any_abandoned.store(false, Ordering::Release);
        let abandoned = std::mem::take(&mut *self.inner.abandoned.lock().unwrap_or_else(|e| e.into_inner()));
        for seq in abandoned {
            // A sequence that ended by itself meanwhile is as good as aborted.
            let _ = cache.abort(seq);
        }
    }
}

fn refused(words: &str) -> Error {
    Error::Integrity(format!("a call failed inside the cache ({words}); this cache cannot be used any more"))
}

fn panic_words(payload: &(dyn Any + Send)) -> String {
    match (payload.downcast_ref::<&str>(), payload.downcast_ref::<String>()) {
        (Some(words), _) => (*words).to_string(),
        (_, Some(words)) => words.clone(),
        _ => "a panic without words".to_string(),
    }
}

/// A value of one caller that calls change under the cache's lock, such as a request with its cursor. Its own lock is
/// a leaf: taken after the cache's and never waited for with it.
pub struct Guarded<T> {
    value: ManuallyDrop<Mutex<T>>,
    epoch: u64,
}

impl<T> Guarded<T> {
    /// Wraps a value.
    pub fn new(value: T) -> Self {
        Guarded { value: ManuallyDrop::new(Mutex::new(value)), epoch: process_epoch() }
    }

    /// Runs `f` on the value. Call only after [`SharedCache::check_process`] has passed or inside `with`.
    #[inline]
    pub fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        f(&mut self.value.lock().unwrap_or_else(|e| e.into_inner()))
    }
}

impl<T> Drop for Guarded<T> {
    fn drop(&mut self) {
        if self.epoch == process_epoch() {
            // SAFETY: dropped once, here; leaked in a forked child for the reason given at `Inner`.
            unsafe { ManuallyDrop::drop(&mut self.value) };
        }
    }
}
