//! The queue of jobs and the threads that empty it.
//!
//! One lock guards the queue and the accounts of what is in flight; no byte is copied and no owner dropped under it. A job
//! leaves the queue when all its units are taken, and the accounts when the last thread has left it.

use super::super::error::TierError;
use super::super::host::HostRegion;
use super::job::{Inner, Job};
use super::plan::{Held, Plan};
use super::{DeviceMemory, Direction, Pair, worker};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;

/// Most threads of a copier.
const MOST_THREADS: usize = 64;
/// Most jobs in flight.
const MOST_JOBS: usize = 1 << 16;

/// Sizes of a copier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopierConfig {
    /// Copy threads, 1 to 64.
    pub threads: usize,
    /// Jobs in flight at most, 1 to 65,536.
    pub max_jobs: usize,
    /// Bytes of all jobs in flight at most. A larger job is taken when nothing else is in flight.
    pub max_bytes: u64,
}

impl Default for CopierConfig {
    fn default() -> Self {
        CopierConfig { threads: 1, max_jobs: 64, max_bytes: u64::MAX }
    }
}

#[derive(Default)]
struct Queue {
    /// Loads, then saves: jobs of which units are left.
    waiting: [VecDeque<Arc<Inner>>; 2],
    /// Jobs and bytes in flight.
    jobs: usize,
    bytes: u64,
    closed: bool,
}

impl Queue {
    fn of(&mut self, job: &Inner) -> &mut VecDeque<Arc<Inner>> {
        &mut self.waiting[job.plan.direction() as usize]
    }

    /// Takes a job out that nobody works on any more. True once; whoever gets it ends the job.
    fn settle(&mut self, job: &Arc<Inner>) -> bool {
        if !job.spent() {
            return false;
        }
        self.of(job).retain(|other| !Arc::ptr_eq(other, job));
        let last = job.active.load(Ordering::Relaxed) == 0 && !job.settled.swap(true, Ordering::Relaxed);
        if last {
            self.jobs -= 1;
            self.bytes -= job.plan.bytes;
        }
        last
    }
}

/// What threads and handles share.
pub(super) struct Shared {
    queue: Mutex<Queue>,
    work: Condvar,
    /// Loads in the queue, for saves to give way.
    loads: AtomicUsize,
    /// A forked child has the queue but not the threads.
    process: u32,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Changes the queue, and ends the jobs that come out.
    fn change(&self, change: impl FnOnce(&mut Queue) -> Vec<Arc<Inner>>) {
        let over = {
            let mut queue = self.lock();
            let over = change(&mut queue);
            self.loads.store(queue.waiting[0].len(), Ordering::Relaxed);
            over
        };
        over.iter().for_each(|job| job.finish());
    }

    pub(super) fn cancel(&self, job: &Arc<Inner>) {
        job.stop.store(true, Ordering::Release);
        if self.process == std::process::id() {
            self.change(|queue| if queue.settle(job) { vec![Arc::clone(job)] } else { Vec::new() });
        }
    }

    /// The next job to work on, with this thread counted in; `None`: the copier closes.
    fn next(&self) -> Option<Arc<Inner>> {
        let mut queue = self.lock();
        loop {
            for waiting in &mut queue.waiting {
                // One whose units are all taken is ended by a thread that still works on it.
                while waiting.front().is_some_and(|job| job.spent()) {
                    waiting.pop_front();
                }
            }
            self.loads.store(queue.waiting[0].len(), Ordering::Relaxed);
            if let Some(job) = queue.waiting.iter().find_map(|waiting| waiting.front()) {
                job.active.fetch_add(1, Ordering::Relaxed);
                return Some(Arc::clone(job));
            }
            if queue.closed {
                return None;
            }
            queue = self.work.wait(queue).unwrap_or_else(|e| e.into_inner());
        }
    }

    fn run(&self) {
        while let Some(job) = self.next() {
            worker::work(&job, || self.loads.load(Ordering::Relaxed) > 0);
            self.change(|queue| {
                job.active.fetch_sub(1, Ordering::Relaxed);
                if queue.settle(&job) { vec![Arc::clone(&job)] } else { Vec::new() }
            });
        }
    }

    fn close(&self) {
        self.change(|queue| {
            queue.closed = true;
            let jobs: Vec<_> = queue.waiting.iter().flatten().cloned().collect();
            jobs.iter().for_each(|job| job.stop.store(true, Ordering::Release));
            jobs.into_iter().filter(|job| queue.settle(job)).collect()
        });
        self.work.notify_all();
    }
}

/// Copies pages between one device memory and one host region. Dropping it cancels what is in flight and ends its threads.
pub struct Copier {
    device: Arc<DeviceMemory>,
    host: Arc<HostRegion>,
    config: CopierConfig,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Copier {
    /// Starts the threads.
    ///
    /// # Errors
    /// [`TierError::Invalid`] where a number is out of range or the region was made for pages of another layout;
    /// [`TierError::Thread`] where the system gives no thread.
    pub fn new(device: Arc<DeviceMemory>, host: Arc<HostRegion>, config: CopierConfig) -> Result<Self, TierError> {
        let CopierConfig { threads, max_jobs, max_bytes } = config;
        if !(1..=MOST_THREADS).contains(&threads) {
            return Err(TierError::invalid("threads", threads, format!("1 to {MOST_THREADS}")));
        }
        if !(1..=MOST_JOBS).contains(&max_jobs) {
            return Err(TierError::invalid("max_jobs", max_jobs, format!("1 to {MOST_JOBS}")));
        }
        if max_bytes == 0 {
            return Err(TierError::invalid("max_bytes", max_bytes, "at least 1"));
        }
        if !host.fits(device.layout()) {
            let allowed = "one that was made for a layout with the same pages";
            return Err(TierError::invalid("host region", "one with pages of other sizes", allowed));
        }
        let shared = Arc::new(Shared {
            queue: Mutex::new(Queue::default()),
            work: Condvar::new(),
            loads: AtomicUsize::new(0),
            process: std::process::id(),
        });
        let mut copier = Copier { device, host, config, shared, threads: Vec::with_capacity(threads) };
        for number in 1..=threads {
            let shared = Arc::clone(&copier.shared);
            let thread = std::thread::Builder::new().name(format!("mimo-copy-{number}")).spawn(move || shared.run());
            copier.threads.push(thread.map_err(|e| TierError::Thread { number, message: e.to_string() })?);
        }
        Ok(copier)
    }

    /// Queues a job, or refuses it and copies nothing. `full` and `swa` list its pages; none at all is a job that is done.
    ///
    /// # Errors
    /// [`TierError::Invalid`] for an id out of range, the null page, or a page written twice; [`TierError::Busy`] where
    /// as much is in flight as the configuration allows; [`TierError::Closed`] in a forked child.
    pub fn submit(&self, direction: Direction, full: &[Pair], swa: &[Pair]) -> Result<Job, TierError> {
        if self.shared.process != std::process::id() {
            return Err(TierError::Closed("belongs to the parent process"));
        }
        let held = Held { device: Arc::clone(&self.device), host: Arc::clone(&self.host) };
        let plan = Plan::new(&held, direction, full, swa)?;
        let (bytes, empty) = (plan.bytes, plan.units() == 0);
        let inner = Arc::new(Inner::new(plan, held));
        let job = Job { inner: Arc::clone(&inner), shared: Arc::clone(&self.shared) };
        if empty {
            // It was never in the accounts.
            inner.settled.store(true, Ordering::Relaxed);
            inner.finish();
            return Ok(job);
        }
        let mut queue = self.shared.lock();
        if queue.jobs >= self.config.max_jobs {
            let (in_flight, limit) = (queue.jobs as u64, self.config.max_jobs as u64);
            return Err(TierError::Busy { what: "jobs", in_flight, asked: 1, limit });
        }
        let in_flight = queue.bytes;
        if queue.jobs > 0 && in_flight.saturating_add(bytes) > self.config.max_bytes {
            return Err(TierError::Busy { what: "bytes", in_flight, asked: bytes, limit: self.config.max_bytes });
        }
        queue.jobs += 1;
        queue.bytes += bytes;
        queue.of(&inner).push_back(inner);
        self.shared.loads.store(queue.waiting[0].len(), Ordering::Relaxed);
        drop(queue);
        self.shared.work.notify_all();
        Ok(job)
    }

    /// Jobs and bytes in flight.
    pub fn in_flight(&self) -> (usize, u64) {
        let queue = self.shared.lock();
        (queue.jobs, queue.bytes)
    }

    /// Copy threads.
    pub fn threads(&self) -> usize {
        self.threads.len()
    }
}

impl Drop for Copier {
    fn drop(&mut self) {
        // A forked child has neither the threads nor, perhaps, the lock.
        if self.shared.process != std::process::id() {
            self.threads.drain(..).for_each(std::mem::forget);
            return;
        }
        self.shared.close();
        for thread in self.threads.drain(..) {
            // Jobs catch their panics; there is nobody to tell of another.
            let _ = thread.join();
        }
    }
}

impl std::fmt::Debug for Copier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Copier({:?})", self.config)
    }
}
