//! What all calls of a node share.

use super::aside::WATCHES_OF_CONNECTION;
use super::auth::Tokens;
use super::config::NodeConfig;
use super::metrics::Metrics;
use super::tiers::Tiers;
use crate::disk::Disk;
use crate::remote::Remote;
use crate::shm::{BootId, LeaseOwner, Store};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::{Notify, Semaphore};

/// Milliseconds since the node started.
#[derive(Debug, Clone, Copy)]
pub struct Clock(Instant);

impl Clock {
    /// Starts at 0.
    pub fn start() -> Clock {
        Clock(Instant::now())
    }

    /// Now.
    pub fn now(&self) -> u64 {
        self.0.elapsed().as_millis() as u64
    }
}

/// The node's shared state.
pub struct State {
    /// Settings.
    pub config: NodeConfig,
    /// The memory tier.
    pub store: Store,
    /// All storage tiers.
    pub tiers: Arc<Tiers>,
    /// This machine.
    pub machine: BootId,
    /// Who may what.
    pub tokens: Tokens,
    /// Counters of the wire.
    pub metrics: Metrics,
    /// The node's time.
    pub clock: Clock,
    /// Another number each time the node starts.
    pub start_id: u64,
    /// Stopping: no new values.
    pub draining: AtomicBool,
    /// One permit for each call that runs.
    pub calls: Arc<Semaphore>,
    /// One permit for each verification that runs: it takes a processor.
    pub verifying: Semaphore,
    owed: AtomicU64,
    watched: Mutex<Vec<Weak<Progress>>>,
}

impl State {
    /// State over an open store, without disks.
    pub fn new(config: NodeConfig, store: Store, machine: BootId, tokens: Tokens) -> State {
        State::with_disks(config, store, Vec::new(), machine, tokens)
    }

    /// State over open tiers. With disks, [`Tiers::start`] must follow.
    pub fn with_disks(config: NodeConfig, store: Store, disks: Vec<Disk>, machine: BootId, tokens: Tokens) -> State {
        State::with_tiers(config, store, disks, None, machine, tokens)
    }

    /// As [`State::with_disks`], with an object store below the disks.
    pub fn with_tiers(
        config: NodeConfig,
        store: Store,
        disks: Vec<Disk>,
        remote: Option<Arc<Remote>>,
        machine: BootId,
        tokens: Tokens,
    ) -> State {
        let clock = Clock::start();
        let settings = config.tiering();
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        State {
            calls: Arc::new(Semaphore::new(config.limits.calls)),
            tiers: Tiers::with_remote(store.clone(), disks, remote, settings, clock),
            config,
            store,
            machine,
            tokens,
            metrics: Metrics::default(),
            clock,
            start_id: since.as_nanos() as u64,
            draining: AtomicBool::new(false),
            verifying: Semaphore::new(1),
            owed: AtomicU64::new(0),
            watched: Mutex::new(Vec::new()),
        }
    }

    /// Takes `bytes` of what all `Put`s may owe; false where they owe too much already.
    pub fn owe(&self, bytes: u64) -> bool {
        let most = self.config.put_total();
        let add = |owed: u64| (owed == 0 || owed.saturating_add(bytes) <= most).then_some(owed.saturating_add(bytes));
        self.owed.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_ok()
    }

    /// Gives back what [`State::owe`] took; an offer that waits for room may have waited for that.
    pub fn pay(&self, bytes: u64) {
        self.owed.fetch_sub(bytes, Ordering::Relaxed);
        self.tiers.room.notify_waiters();
    }

    /// Bytes owed by all `Put`s.
    pub fn owed(&self) -> u64 {
        self.owed.load(Ordering::Relaxed)
    }

    /// Watches a stream: its connection is closed once it makes no progress for `limits.stall`.
    pub fn watch(&self, connection: &Arc<Connection>) -> Arc<Progress> {
        let progress = Arc::new(Progress { at: AtomicU64::new(self.clock.now()), connection: connection.clone() });
        self.watched.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(&progress));
        progress
    }

    /// Closes the connections of stalled streams; returns how many. Streams that notice by themselves come first.
    pub fn sweep(&self) -> usize {
        const GRACE_MS: u64 = 2000;
        let now = self.clock.now();
        let stall = self.config.limits.stall.0.as_millis() as u64 + GRACE_MS;
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        let mut closed = 0;
        watched.retain(|progress| {
            let Some(progress) = progress.upgrade() else { return false };
            let stalled = now.saturating_sub(progress.at.load(Ordering::Relaxed)) > stall;
            if stalled {
                progress.connection.close();
                closed += 1;
            }
            !stalled
        });
        closed
    }
}

/// One connection: its number is the owner of its leases.
pub struct Connection {
    /// Unique in the life of the node.
    pub id: u64,
    /// For logs.
    pub peer: String,
    /// A call has come.
    pub used: AtomicBool,
    /// One permit for each watch of health on it.
    pub watches: Arc<Semaphore>,
    closing: Notify,
    state: Arc<State>,
}

impl Connection {
    /// A new one.
    pub fn new(id: u64, peer: String, state: Arc<State>) -> Arc<Connection> {
        let watches = Arc::new(Semaphore::new(WATCHES_OF_CONNECTION));
        Arc::new(Connection { id, peer, used: AtomicBool::new(false), watches, closing: Notify::new(), state })
    }

    /// Ends it, whatever runs on it.
    pub fn close(&self) {
        self.closing.notify_one();
    }

    /// Waits for [`Connection::close`].
    pub async fn closed(&self) {
        self.closing.notified().await;
    }
}

/// Its leases end when nothing of it is left: a call that runs on after the socket was closed holds it, and what that call
/// leased would stay otherwise.
impl Drop for Connection {
    fn drop(&mut self) {
        self.state.store.release_owner(LeaseOwner(self.id));
    }
}

/// When a stream last moved.
pub struct Progress {
    at: AtomicU64,
    connection: Arc<Connection>,
}

impl Progress {
    /// It moved.
    pub fn moved(&self, now: u64) {
        self.at.store(now, Ordering::Relaxed);
    }
}
