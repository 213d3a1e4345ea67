//! What carries calls to one node. gRPC over TCP and over Unix sockets, and the same-host path for reads, are here; an RDMA
//! engine can be another.
//!
//! Every call of a transport is cancelled by dropping its future, and touches the caller's memory only while it is polled:
//! so a deadline is a timeout around it, and borrowed memory is safe.

use super::call::{Call, CallError};
use super::chunks::Copied;
use super::types::{GetItem, Got, ObjectId, PutItem, Stored};
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
    pub items: Vec<&'b mut GetItem<'a>>,
    /// Bucket of each.
    pub buckets: Vec<u32>,
    /// What became of each; `None` until its answer came.
    pub got: Vec<Option<Got>>,
    /// Positions of values that did not match their CRC here: the node does not know yet.
    pub damaged: Vec<usize>,
    /// Hits that came by the same-host path.
    pub fast_hits: u64,
    /// How many changed while they were copied over it.
    pub fast_moved: u64,
}

impl GetBatch<'_, '_> {
    /// Positions without an answer, in order.
    pub fn open(&self) -> Vec<usize> {
        self.got.iter().enumerate().filter(|(_, got)| got.is_none()).map(|(i, _)| i).collect()
    }
}

/// Where the bytes of a value to put are.
#[derive(Clone, Copy)]
pub enum Bytes<'b, 'a> {
    /// With the caller, to be copied when the node wants them.
    There(&'b PutItem<'a>),
    /// Copied before, because the caller did not wait.
    Copied(&'b Copied),
}

/// A value to put.
pub struct Outgoing<'b, 'a> {
    /// What the node is told of it.
    pub head: PutHead,
    /// Its bytes.
    pub bytes: Bytes<'b, 'a>,
}

/// What a node is told of a value.
#[derive(Debug, Clone, Copy)]
pub struct PutHead {
    /// Which object.
    pub id: ObjectId,
    /// Its bucket.
    pub bucket: u32,
    /// Bytes of the value.
    pub length: u64,
    /// Index of the page in its prefix.
    pub page_index: u32,
    /// Goes first.
    pub superseded: bool,
    /// Layout number.
    pub layout: u32,
}

impl PutHead {
    /// Of an item.
    pub fn new(item: &PutItem<'_>, bucket: u32) -> PutHead {
        let &PutItem { id, page_index, superseded, layout, .. } = item;
        PutHead { id, bucket, length: item.length(), page_index, superseded, layout }
    }
}

/// The objects of one put call, and what came of it. Dropping the call leaves here what had come by then.
pub struct PutBatch<'b, 'a> {
    /// Objects of one node.
    pub items: Vec<Outgoing<'b, 'a>>,
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
