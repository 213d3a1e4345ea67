//! Writing: a few tasks take values from the queue, one each.

use super::bucket::{Kept, Refused};
use super::queue::{Ended, Queued};
use super::recent::Known;
use super::stats::Counters;
use super::tier::{Remote, lock};
use futures_util::future::BoxFuture;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout};

/// Pause before a call is tried again; doubled each time.
const PAUSE: Duration = Duration::from_millis(100);

/// The tasks; they end when this is dropped, whatever is queued.
#[derive(Debug)]
pub struct Writers(Vec<JoinHandle<()>>);

impl Drop for Writers {
    fn drop(&mut self) {
        self.0.iter().for_each(JoinHandle::abort);
    }
}

impl Remote {
    /// Starts to write what is queued, and to list what is there.
    pub fn start(self: &Arc<Self>, on: &Handle) -> Writers {
        let mut tasks: Vec<_> = (0..self.config.uploads).map(|_| on.spawn(self.clone().write_on())).collect();
        tasks.push(on.spawn(self.clone().list()));
        Writers(tasks)
    }

    async fn write_on(self: Arc<Self>) {
        loop {
            let until = lock(&self.rest).until(Instant::now());
            if let Some(until) = until {
                sleep_until(until).await;
                continue;
            }
            // Before the look at the queue, so that nothing is added in between.
            let added = self.added.notified();
            let next = lock(&self.queue).take();
            match next {
                Some(queued) => {
                    // Whoever was woken for more than one finds the others' wake-ups gone.
                    self.added.notify_one();
                    self.write(queued).await;
                }
                None => added.await,
            }
        }
    }

    async fn write(&self, queued: Arc<Queued>) {
        let name = queued.name();
        let (at, parts) = queued.object(&self.names);
        let (outcome, unsure) = self.tries(|| self.bucket.put(&at, parts.clone())).await;
        match &outcome {
            Ok(kept) => {
                let counter = if *kept == Kept::Stored { &self.counts.stored } else { &self.counts.present };
                Counters::add(counter, 1);
                Counters::add(&self.counts.stored_bytes, if *kept == Kept::Stored { queued.meta.len } else { 0 });
                // Before it leaves the queue, so that nobody takes it for absent.
                lock(&self.recent).set(&name, Known::Present, Instant::now());
            }
            Err(refused) => {
                Counters::add(&self.counts.failed, 1);
                lock(&self.record).remove(&name);
                tracing::debug!(why = refused.sentence, "a value could not be written to the object store");
            }
        }
        // Also where a later try was answered: the earlier one may take effect after a delete that follows.
        let until = Instant::now() + self.config.settled_after();
        let ended = if unsure { Ended::Until(until) } else { Ended::Settled };
        lock(&self.queue).ended(&queued, ended);
        self.ended.notify_waiters();
    }

    /// A call, tried again as often as the configuration says; and whether any try may take effect yet.
    pub(super) async fn tries<'a, T>(
        &self,
        call: impl Fn() -> BoxFuture<'a, Result<T, Refused>>,
    ) -> (Result<T, Refused>, bool) {
        let (mut pause, mut left, mut unsure) = (PAUSE, self.config.retries, false);
        loop {
            let answered = timeout(self.config.timeout, call()).await;
            match answered.unwrap_or_else(|_| Err(Refused::late(self.config.timeout.as_millis()))) {
                Ok(done) => {
                    self.went_well();
                    return (Ok(done), unsure);
                }
                Err(refused) => {
                    unsure |= refused.unsure;
                    self.went_wrong(&refused.sentence);
                    if left == 0 {
                        return (Err(refused), unsure);
                    }
                }
            }
            left -= 1;
            Counters::add(&self.counts.retries, 1);
            sleep(pause).await;
            pause *= 2;
        }
    }

    /// Waits until nothing is queued, at most so long; returns how many values are.
    pub async fn drain(&self, most: Duration) -> u64 {
        let until = Instant::now() + most;
        loop {
            let ended = self.ended.notified();
            let left = lock(&self.queue).size().1;
            if left == 0 || tokio::time::timeout_at(until, ended).await.is_err() {
                return left;
            }
        }
    }
}
