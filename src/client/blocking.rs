//! The client for threads that may wait.

use super::config::ClientConfig;
use super::connect::Sockets;
use super::core::Core;
use super::types::{Counted, GetItem, KeyRun, ObjectId, Presence, PutItem, Refusal, Stored};
use super::{BreakerState, Metrics};
use crate::error::{Error, Result};
use crate::member::{Fixed, Member, Membership};
use crate::rpc::v1::StatsReply;
use std::future::Future;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use tokio::time::{Instant, MissedTickBehavior, interval_at};

/// How often a file of nodes is looked at.
pub const FILE_INTERVAL: Duration = Duration::from_secs(1);

/// How often a call that waits asks whether it shall go on.
pub const ASK_EVERY: Duration = Duration::from_millis(50);

/// A client with a small runtime of its own. Any number of threads may call; each call's copying is done by the thread that
/// waits for it. Every call takes the time it may last, by default [`ClientConfig::deadline`].
pub struct Client {
    core: Arc<Core>,
    /// `None` only while it is dropped.
    runtime: Option<Runtime>,
    process: u32,
    interrupted: Option<fn() -> bool>,
}

impl Client {
    /// A client of a list of nodes that does not change.
    ///
    /// # Errors
    /// A configuration or list that makes no sense, or a system without threads to give.
    pub fn of(config: ClientConfig, nodes: Vec<Member>) -> Result<Client> {
        Client::with(config, || Ok(Arc::new(Fixed::new(nodes)?)))
    }

    /// A client of the nodes in a file, which is read again when it changes.
    ///
    /// # Errors
    /// As [`Client::of`], or a file that cannot be read.
    pub fn of_file(config: ClientConfig, path: &Path) -> Result<Client> {
        Client::with(config, || Ok(Arc::new(Fixed::file(path, FILE_INTERVAL)?)))
    }

    /// A client of what a membership says, which is made within the client's runtime.
    ///
    /// # Errors
    /// As [`Client::of`], or what `membership` says.
    pub fn with(config: ClientConfig, membership: impl FnOnce() -> Result<Arc<dyn Membership>>) -> Result<Client> {
        config.validate()?;
        let runtime = Builder::new_multi_thread()
            // One more would only hand each small answer on to the other: a get of 64 KiB over TCP takes three times as long
            // with two. The copying is the caller's, so that one thread keeps up with the sockets of two.
            .worker_threads((config.threads / 2).max(1))
            .max_blocking_threads(2)
            .thread_name("gcache-client")
            .enable_all()
            .build()
            .map_err(|e| Error::Io { path: "threads of the client".to_string(), message: e.to_string() })?;
        let core = {
            let _in = runtime.enter();
            Core::new(config, membership()?, Arc::new(Sockets))?
        };
        Ok(Client { core, runtime: Some(runtime), process: std::process::id(), interrupted: None })
    }

    /// Has calls that wait ask, every [`ASK_EVERY`], whether they shall go on. One that shall not is cancelled, ends with
    /// [`Error::Interrupted`], and leaves the caller's memory alone from then on.
    #[must_use]
    pub fn interrupted_by(mut self, asked: fn() -> bool) -> Client {
        self.interrupted = Some(asked);
        self
    }

    /// Whether this is the process that made the client: threads and connections do not survive a fork.
    pub fn is_of_this_process(&self) -> bool {
        self.process == std::process::id()
    }

    fn wait<T>(&self, future: impl Future<Output = T>) -> Result<T> {
        if tokio::runtime::Handle::try_current().is_ok() {
            let allowed = "a thread outside asynchronous runtimes; futures there";
            return Err(Error::invalid("thread of a blocking call", "one of an asynchronous runtime", allowed));
        }
        match &self.runtime {
            Some(runtime) if self.is_of_this_process() => match self.interrupted {
                None => Ok(runtime.block_on(future)),
                Some(asked) => runtime.block_on(unless(asked, future)),
            },
            _ => Err(Error::invalid(
                "process of the call",
                std::process::id(),
                format!("{}, which made it", self.process),
            )),
        }
    }

    /// See [`Core::exists`].
    pub fn exists(&self, runs: &[KeyRun<'_>], want: u64, lease_ms: u32, within: Option<Duration>) -> Result<Presence> {
        self.wait(self.core.exists(runs, want, lease_ms, self.core.deadline(within)))
    }

    /// See [`Core::get`].
    pub fn get(&self, items: &mut [GetItem<'_>], within: Option<Duration>) -> Result<()> {
        self.wait(self.core.get(items, self.core.deadline(within)))?
    }

    /// See [`Core::put`].
    pub fn put(&self, items: &[PutItem<'_>], within: Option<Duration>) -> Result<Vec<Stored>> {
        self.wait(self.core.put(items, self.core.deadline(within)))?
    }

    /// See [`Core::put_later`].
    pub fn put_later(&self, items: &[PutItem<'_>]) -> Result<usize> {
        // Not `wait`: nothing is waited for, but the queue's tasks belong to the runtime.
        match &self.runtime {
            Some(runtime) if self.is_of_this_process() => {
                let _in = runtime.enter();
                self.core.put_later(items)
            }
            _ => self.wait(async { 0 }),
        }
    }

    /// Waits until what [`Client::put_later`] took was sent or dropped. False: not within the time.
    pub fn flush(&self, within: Option<Duration>) -> Result<bool> {
        self.wait(self.core.flush(self.core.deadline(within)))
    }

    /// See [`Core::touch`].
    pub fn touch(&self, ids: &[ObjectId], within: Option<Duration>) -> Result<Counted> {
        self.wait(self.core.touch(ids, self.core.deadline(within)))?
    }

    /// See [`Core::delete`].
    pub fn delete(&self, ids: &[ObjectId], within: Option<Duration>) -> Result<Counted> {
        self.wait(self.core.delete(ids, self.core.deadline(within)))?
    }

    /// See [`Core::verify`].
    pub fn verify(&self, ids: &[ObjectId], within: Option<Duration>) -> Result<Counted> {
        self.wait(self.core.verify(ids, self.core.deadline(within)))?
    }

    /// See [`Core::stats`].
    pub fn stats(&self, within: Option<Duration>) -> Result<Vec<(String, Option<StatsReply>)>> {
        self.wait(self.core.stats(self.core.deadline(within)))
    }

    /// Name of the node that owns an extent, by the chain key of its first page; nobody is asked.
    pub fn locate(&self, extent: &[u8; 32]) -> Option<String> {
        self.core.cluster().route(extent).now.map(|n| n.member.name.clone())
    }

    /// Names of the nodes and what their breakers are.
    pub fn nodes(&self) -> Vec<(String, BreakerState)> {
        self.core.cluster().nodes().iter().map(|n| (n.member.name.clone(), n.breaker())).collect()
    }

    /// What nodes said that refused a call and have answered none since, by name.
    pub fn refusals(&self) -> Vec<(String, Arc<Refusal>)> {
        let cluster = self.core.cluster();
        cluster.nodes().iter().filter_map(|n| Some((n.member.name.clone(), n.refusal()?))).collect()
    }

    /// Why the list of nodes may be old; `None` while its source answers.
    pub fn membership_trouble(&self) -> Option<String> {
        self.core.view().trouble
    }

    /// What the client counts.
    pub fn metrics(&self) -> &Metrics {
        self.core.metrics()
    }
}

/// What `future` comes to, unless `asked` says first that it shall not go on; then it is dropped, and with it all its calls.
async fn unless<T>(asked: fn() -> bool, future: impl Future<Output = T>) -> Result<T> {
    let mut future = pin!(future);
    let mut ticks = interval_at(Instant::now() + ASK_EVERY, ASK_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            biased;
            done = &mut future => return Ok(done),
            _ = ticks.tick() => if asked() { return Err(Error::Interrupted) },
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let Some(runtime) = self.runtime.take() else { return };
        if self.is_of_this_process() {
            // Not waiting for what a call to the system may still do; connections end with their tasks.
            runtime.shutdown_background();
        } else {
            // Its threads are in the parent.
            std::mem::forget(runtime);
        }
    }
}
