//! One job as those see it who wait for it.
//!
//! Threads count the units of each step down; whoever ends a step raises `ready`, the number of steps before which all
//! have ended, and wakes the waiters. The job's state changes once, by the last thread that leaves it.

use super::super::error::TierError;
use super::Direction;
use super::copier::Shared;
use super::plan::{Held, Plan};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Looks that a wait takes before it sleeps: about a microsecond.
const SPINS: usize = 32;
/// `ready_ns` of a step that has not ended.
const NOT_YET: u64 = u64::MAX;

/// What a wait found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The bytes are there.
    Done,
    /// Not within the timeout.
    Pending,
    /// The job was cancelled, or its copier dropped; nothing of it is written any more.
    Cancelled,
    /// A copy thread failed, with these words: a bug in this crate. Nothing of it is written any more.
    Failed(String),
}

/// How far a job is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Bytes copied.
    pub copied: u64,
    /// Bytes in all.
    pub bytes: u64,
    /// Layers that are ready, counted from the first; of a save 0 or 1, for all.
    pub ready: usize,
    /// Layers in all.
    pub layers: usize,
}

/// Nanoseconds of one layer of a load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayerTimes {
    /// The layer.
    pub layer: u32,
    /// Spent on copying it, over all threads.
    pub copied_ns: u64,
    /// From the job's submission until it was ready; `None` while it is not.
    pub ready_ns: Option<u64>,
    /// Spent in waits for it, over all callers of [`Job::wait_layer`].
    pub waited_ns: u64,
}

#[derive(Default)]
struct StepState {
    left: AtomicUsize,
    copied_ns: AtomicU64,
    ready_ns: AtomicU64,
    waited_ns: AtomicU64,
}

/// A job in the queue or at work.
pub(super) struct Inner {
    pub(super) plan: Plan,
    /// The next unit that nobody has taken.
    pub(super) next: AtomicUsize,
    /// Nobody takes another unit.
    pub(super) stop: AtomicBool,
    /// Threads at work on it, and whether it has left the queue's accounts; both change under the queue's lock.
    pub(super) active: AtomicUsize,
    pub(super) settled: AtomicBool,
    pub(super) copied: AtomicU64,
    /// `None` once it is over.
    held: Mutex<Option<Arc<Held>>>,
    failure: Mutex<Option<String>>,
    submitted: Instant,
    steps: Vec<StepState>,
    ready: AtomicUsize,
    state: Mutex<Option<Outcome>>,
    changed: Condvar,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}

impl Inner {
    pub(super) fn new(plan: Plan, held: Held) -> Inner {
        let step = |n| {
            let left = AtomicUsize::new(plan.units_of(n).len());
            StepState { left, ready_ns: AtomicU64::new(NOT_YET), ..StepState::default() }
        };
        let inner = Inner {
            steps: (0..plan.steps()).map(step).collect(),
            next: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            active: AtomicUsize::new(0),
            settled: AtomicBool::new(false),
            copied: AtomicU64::new(0),
            held: Mutex::new(Some(Arc::new(held))),
            failure: Mutex::new(None),
            submitted: Instant::now(),
            ready: AtomicUsize::new(0),
            state: Mutex::new(None),
            changed: Condvar::new(),
            plan,
        };
        inner.raise();
        inner
    }

    /// Nobody can take a unit of it.
    pub(super) fn spent(&self) -> bool {
        self.stop.load(Ordering::Acquire) || self.next.load(Ordering::Relaxed) >= self.plan.units()
    }

    /// What keeps the memory; `None` once the job is over.
    pub(super) fn held(&self) -> Option<Arc<Held>> {
        lock(&self.held).clone()
    }

    /// Units of a step were copied in so many nanoseconds.
    pub(super) fn count(&self, step: usize, units: usize, nanoseconds: u64) {
        let state = &self.steps[step];
        state.copied_ns.fetch_add(nanoseconds, Ordering::Relaxed);
        // Acquire as well: whoever raises `ready` must have seen the bytes of all threads.
        if state.left.fetch_sub(units, Ordering::AcqRel) == units {
            self.raise();
        }
    }

    fn raise(&self) {
        let _state = lock(&self.state);
        let before = self.ready.load(Ordering::Relaxed);
        let rest = self.steps[before..].iter().take_while(|step| step.left.load(Ordering::Acquire) == 0);
        let now = self.submitted.elapsed().as_nanos() as u64;
        let more = rest.map(|step| step.ready_ns.store(now, Ordering::Relaxed)).count();
        if more > 0 {
            self.ready.store(before + more, Ordering::Release);
            self.changed.notify_all();
        }
    }

    pub(super) fn fail(&self, words: String) {
        lock(&self.failure).get_or_insert(words);
        self.stop.store(true, Ordering::Release);
    }

    /// The last thread has left: lets the memory go, then says how the job ended.
    pub(super) fn finish(&self) {
        let held = lock(&self.held).take();
        // Without a lock: the owner's drop is the caller's code.
        drop(held);
        let outcome = match lock(&self.failure).take() {
            Some(words) => Outcome::Failed(words),
            None if self.ready.load(Ordering::Acquire) == self.steps.len() => Outcome::Done,
            None => Outcome::Cancelled,
        };
        *lock(&self.state) = Some(outcome);
        self.changed.notify_all();
    }

    /// Whether `steps` are ready, or how the job has ended.
    fn found(&self, state: &Option<Outcome>, steps: Option<usize>) -> Option<Outcome> {
        match (state, steps) {
            (Some(outcome), _) => Some(outcome.clone()),
            (None, Some(steps)) if self.ready.load(Ordering::Acquire) >= steps => Some(Outcome::Done),
            _ => None,
        }
    }

    /// Waits until `steps` are ready, or for the end.
    fn wait(&self, steps: Option<usize>, timeout: Option<Duration>) -> Outcome {
        let until = timeout.map(|timeout| Instant::now().checked_add(timeout));
        for _ in 0..SPINS {
            if steps.is_some_and(|steps| self.ready.load(Ordering::Acquire) >= steps) {
                break;
            }
            std::hint::spin_loop();
        }
        let mut state = lock(&self.state);
        loop {
            if let Some(outcome) = self.found(&state, steps) {
                return outcome;
            }
            state = match until.flatten() {
                // No timeout, or one beyond the clock's end.
                None => self.changed.wait(state).unwrap_or_else(|e| e.into_inner()),
                Some(until) => {
                    let left = until.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Outcome::Pending;
                    }
                    self.changed.wait_timeout(state, left).unwrap_or_else(|e| e.into_inner()).0
                }
            };
        }
    }
}

/// A job's handle. Dropping it does not cancel the job. Clones are the same job.
#[derive(Clone)]
pub struct Job {
    pub(super) inner: Arc<Inner>,
    pub(super) shared: Arc<Shared>,
}

impl Job {
    /// Where its bytes go.
    pub fn direction(&self) -> Direction {
        self.inner.plan.direction()
    }

    /// The layers of a load, ascending; empty for a save.
    pub fn layers(&self) -> &[u32] {
        &self.inner.plan.layers
    }

    /// Waits until all parts of the layers up to `layer` are copied. [`Outcome::Done`] lets this thread read them; once
    /// the job has ended it is the job's outcome.
    ///
    /// # Errors
    /// [`TierError::Invalid`] for a save, which has no layers.
    pub fn wait_layer(&self, layer: u32, timeout: Option<Duration>) -> Result<Outcome, TierError> {
        if self.direction() == Direction::Save {
            return Err(TierError::invalid("layer to wait for", format!("{layer} of a save"), "a layer of a load"));
        }
        let steps = self.layers().partition_point(|l| *l <= layer);
        let start = Instant::now();
        let outcome = self.inner.wait(Some(steps), timeout);
        if let Some(last) = steps.checked_sub(1) {
            let waited = start.elapsed().as_nanos() as u64;
            self.inner.steps[last].waited_ns.fetch_add(waited, Ordering::Relaxed);
        }
        Ok(outcome)
    }

    /// Waits until the job is over: nothing of it is written any more, and it holds no memory.
    pub fn wait(&self, timeout: Option<Duration>) -> Outcome {
        self.inner.wait(None, timeout)
    }

    /// How the job stands now.
    pub fn outcome(&self) -> Outcome {
        lock(&self.inner.state).clone().unwrap_or(Outcome::Pending)
    }

    /// Whether the job is over, however it ended.
    pub fn done(&self) -> bool {
        lock(&self.inner.state).is_some()
    }

    /// Asks the job to end after the pages under way. [`Job::wait`] tells when it has, and whether it was done before.
    pub fn cancel(&self) {
        self.shared.cancel(&self.inner);
    }

    /// How far it is.
    pub fn progress(&self) -> Progress {
        let inner = &self.inner;
        Progress {
            copied: inner.copied.load(Ordering::Relaxed),
            bytes: inner.plan.bytes,
            ready: inner.ready.load(Ordering::Acquire),
            layers: inner.steps.len(),
        }
    }

    /// Times of a load's layers; empty for a save.
    pub fn times(&self) -> Vec<LayerTimes> {
        let time = |(layer, step): (&u32, &StepState)| LayerTimes {
            layer: *layer,
            copied_ns: step.copied_ns.load(Ordering::Relaxed),
            ready_ns: Some(step.ready_ns.load(Ordering::Relaxed)).filter(|ns| *ns != NOT_YET),
            waited_ns: step.waited_ns.load(Ordering::Relaxed),
        };
        self.layers().iter().zip(&self.inner.steps).map(time).collect()
    }
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Job({:?}, {:?}, {:?})", self.direction(), self.outcome(), self.progress())
    }
}
