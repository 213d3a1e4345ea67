//! Puts that nobody waits for: copied at once, sent later, dropped and counted where the nodes do not keep up.
//!
//! Each node has a queue of its own, so that a node that hangs holds up nobody else; the bytes of all queues together are
//! bounded. Nothing here blocks the caller for longer than copying takes.

use super::chunks::{Buffers, Copied};
use super::config::ClientConfig;
use super::metrics::Metrics;
use super::node::Node;
use super::transport::{Bytes, Outgoing, PutHead};
use super::types::{Miss, NoMemory, PutItem, Stored};
use super::writes::put_slice;
use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, Weak};
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

/// What an object costs besides its bytes.
const OVERHEAD: usize = 512;
/// Most objects taken from a queue at once.
const TAKEN: usize = 256;

/// A node, and what waits to be sent to it.
type Line = (Weak<Node>, mpsc::UnboundedSender<Waiting>);

/// See the head of this file.
pub struct Queue {
    shared: Arc<Shared>,
    buffers: Buffers,
    nodes: Mutex<HashMap<usize, Line>>,
}

struct Shared {
    config: Arc<ClientConfig>,
    metrics: Arc<Metrics>,
    bytes: Mutex<usize>,
    empty: Notify,
}

/// A value in a queue. Its bytes are given back to the bound when it is dropped.
struct Waiting {
    head: PutHead,
    copied: Copied,
    since: Instant,
    cost: usize,
    shared: Arc<Shared>,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut bytes = self.shared.bytes.lock().unwrap_or_else(|e| e.into_inner());
        *bytes -= self.cost;
        self.shared.metrics.queue_bytes.store(*bytes as u64, Ordering::Relaxed);
        if *bytes == 0 {
            self.shared.empty.notify_waiters();
        }
    }
}

impl Queue {
    /// Empty queues.
    pub fn new(config: Arc<ClientConfig>, metrics: Arc<Metrics>) -> Queue {
        let shared = Arc::new(Shared { config, metrics, bytes: Mutex::new(0), empty: Notify::new() });
        Queue { shared, buffers: Buffers::default(), nodes: Mutex::default() }
    }

    /// Copies a value into its node's queue. False: it was dropped and counted, there was no room.
    pub fn push(&self, node: &Arc<Node>, item: &PutItem<'_>, bucket: u32) -> bool {
        let cost = item.length() as usize + OVERHEAD;
        {
            let mut bytes = self.shared.bytes.lock().unwrap_or_else(|e| e.into_inner());
            if *bytes + cost > self.shared.config.queue_bytes {
                Metrics::add(&self.shared.metrics.queue_full, 1);
                self.shared.metrics.stored(&Stored::Dropped(Miss::Overloaded), 0);
                return false;
            }
            *bytes += cost;
            self.shared.metrics.queue_bytes.store(*bytes as u64, Ordering::Relaxed);
        }
        let (head, copied, since) = (PutHead::new(item, bucket), Copied::default(), Instant::now());
        let mut waiting = Waiting { head, copied, since, cost, shared: self.shared.clone() };
        waiting.copied = match Copied::new(item, &self.buffers) {
            Ok(copied) => copied,
            Err(NoMemory) => {
                self.shared.metrics.stored(&Stored::Dropped(Miss::NoMemory), 0);
                return false;
            }
        };
        // The other end lives as long as the node.
        let _ = self.sender(node).send(waiting);
        true
    }

    /// Waits until everything in the queues was sent or dropped. False: not by the deadline.
    pub async fn flush(&self, deadline: Instant) -> bool {
        loop {
            let empty = self.shared.empty.notified();
            tokio::pin!(empty);
            // From here on a notice is not missed.
            empty.as_mut().enable();
            if *self.shared.bytes.lock().unwrap_or_else(|e| e.into_inner()) == 0 {
                return true;
            }
            if tokio::time::timeout_at(deadline, empty).await.is_err() {
                return false;
            }
        }
    }

    fn sender(&self, node: &Arc<Node>) -> mpsc::UnboundedSender<Waiting> {
        let mut nodes = self.nodes.lock().unwrap_or_else(|e| e.into_inner());
        nodes.retain(|_, (node, _)| node.strong_count() > 0);
        let made = nodes.entry(Arc::as_ptr(node) as usize).or_insert_with(|| {
            let (sender, receiver) = mpsc::unbounded_channel();
            tokio::spawn(drain(Arc::downgrade(node), receiver, self.shared.clone()));
            (Arc::downgrade(node), sender)
        });
        made.1.clone()
    }
}

/// Sends what comes, in order. Ends when the client is gone.
async fn drain(node: Weak<Node>, mut queue: mpsc::UnboundedReceiver<Waiting>, shared: Arc<Shared>) {
    let mut taken = Vec::new();
    while queue.recv_many(&mut taken, TAKEN).await > 0 {
        let Some(node) = node.upgrade() else { return };
        let now = Instant::now();
        let mut waiting = Vec::new();
        let mut bytes = 0u64;
        for one in taken.drain(..) {
            if now.saturating_duration_since(one.since) > shared.config.queue_deadline {
                Metrics::add(&shared.metrics.queue_late, 1);
                shared.metrics.stored(&Stored::Dropped(Miss::Late), 0);
                continue;
            }
            if bytes + one.head.length > shared.config.slice_bytes && !waiting.is_empty() {
                send(&node, &shared, std::mem::take(&mut waiting)).await;
                bytes = 0;
            }
            bytes += one.head.length;
            waiting.push(one);
        }
        if !waiting.is_empty() {
            send(&node, &shared, waiting).await;
        }
    }
}

async fn send(node: &Arc<Node>, shared: &Shared, waiting: Vec<Waiting>) {
    let deadline = Instant::now() + shared.config.deadline;
    let mut waiting = &waiting[..];
    while !waiting.is_empty() {
        let (now, later) = waiting.split_at(waiting.len().min(node.most_objects()));
        let outgoing = now.iter().map(|w| Outgoing { head: w.head, bytes: Bytes::Copied(&w.copied) }).collect();
        let stored = put_slice(node, shared.config.tenant, outgoing, deadline).await;
        stored.iter().zip(now).for_each(|(s, w)| shared.metrics.stored(s, w.head.length));
        waiting = later;
    }
}
