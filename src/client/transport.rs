//! What carries calls to one node. gRPC over TCP and over Unix sockets, and the same-host path for reads, are here; an RDMA
//! engine can be another.
//!
//! Every call of a transport is cancelled by dropping its future, and touches the caller's memory only while it is polled:
//! so a deadline is a timeout around it, and borrowed memory is safe.

use super::call::{Call, CallError};
use super::types::{GetItem, Got, PutItem, Stored};
use crate::rpc::v1;
use std::future::Future;
use std::pin::Pin;
use tokio::time::Instant;

/// A call under way.
pub type Pending<'a, T> = Pin<Box<dyn Future<Output = Result<T, CallError>> + Send + 'a>>;

/// Who answers at the other end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeInfo {
    /// Another number each time the node starts.
    pub start_id: u64,
    /// What it accepts.
    pub limits: v1::Limits,
}

/// The objects of one get call, and what came of it. Dropping the call leaves here what had come by then.
pub struct GetBatch<'b, 'a> {
    /// Objects of one node.
    pub items: &'b mut [GetItem<'a>],
    /// Bucket of each.
    pub buckets: &'b [u32],
    /// What became of each; `None` until its answer came.
    pub got: Vec<Option<Got>>,
    /// Positions of values that did not match their CRC here: the node does not know yet.
    pub damaged: Vec<usize>,
    /// Hits that came by the same-host path.
    pub fast_hits: u64,
}

impl GetBatch<'_, '_> {
    /// Positions without an answer, in order.
    pub fn open(&self) -> Vec<usize> {
        self.got.iter().enumerate().filter(|(_, got)| got.is_none()).map(|(i, _)| i).collect()
    }
}

/// The objects of one put call, and what came of it.
pub struct PutBatch<'b, 'a> {
    /// Objects of one node, and what became of each.
    pub items: &'b [PutItem<'a>],
    /// Bucket of each.
    pub buckets: &'b [u32],
    /// Bytes and CRCs of values that were copied before; empty where they are read from the items.
    pub copied: &'b [super::chunks::Copied],
    /// What became of each; `None` until its answer came.
    pub stored: Vec<Option<Stored>>,
}

/// What carries calls to one node.
pub trait Transport: Send + Sync + 'static {
    /// Whether the node answers, on a new connection.
    fn probe(&self, deadline: Instant) -> Pending<'_, NodeInfo>;
    /// What the node said last; `None` before the first connection.
    fn info(&self) -> Option<NodeInfo>;
    /// Which parts of each key are there.
    fn exists<'a>(&'a self, call: Call, lease_ms: u32, runs: Vec<v1::KeyRun>) -> Pending<'a, v1::ExistsReply>;
    /// Reads values into their destinations.
    fn get<'a, 'b: 'a, 'c: 'b>(&'a self, call: Call, batch: &'a mut GetBatch<'b, 'c>) -> Pending<'a, ()>;
    /// Offers values and sends those that are wanted.
    fn put<'a, 'b: 'a, 'c: 'b>(&'a self, call: Call, batch: &'a mut PutBatch<'b, 'c>) -> Pending<'a, ()>;
    /// Marks objects as used.
    fn touch<'a>(&'a self, call: Call, runs: Vec<v1::ObjectRun>) -> Pending<'a, v1::TouchReply>;
    /// Forgets objects.
    fn delete<'a>(&'a self, call: Call, runs: Vec<v1::ObjectRun>) -> Pending<'a, v1::DeleteReply>;
    /// Has values compared with their CRCs.
    fn verify<'a>(&'a self, call: Call, runs: Vec<v1::ObjectRun>) -> Pending<'a, v1::VerifyReply>;
    /// Counts and sizes.
    fn stats(&self, call: Call) -> Pending<'_, v1::StatsReply>;
    /// The node failed: connections of now take no new calls.
    fn reset(&self);
}
