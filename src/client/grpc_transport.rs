//! gRPC to one node, over whatever [`super::Connect`] makes.

use super::call::{Call, CallError, code};
use super::chunks::Buffers;
use super::connect::Connect;
use super::grpc::{Connection, Sealed};
use super::metrics::Metrics;
use super::pool::{Greeting, Pool, PoolConfig};
use super::put_stream::PutStream;
use super::receive::Receive;
use super::transport::{GetBatch, NodeInfo, Pending, PutBatch, Transport};
use super::types::{Refusal, Stored};
use crate::rpc::check::Checked;
use crate::rpc::ids::pack;
use crate::rpc::limits::COMMON_VERSION;
use crate::rpc::pieces::PiecesReader;
use crate::rpc::v1;
use bytes::{BufMut, Bytes, BytesMut};
use std::sync::Arc;
use tokio::time::Instant;

/// Tries of one call: the second on another connection.
const TRIES: usize = 2;

/// See the head of this file.
pub struct Grpc {
    pool: Arc<Pool>,
    metrics: Arc<Metrics>,
    buffers: Buffers,
}

impl Grpc {
    /// No connection is made yet.
    pub fn new(config: PoolConfig, connect: Arc<dyn Connect>, metrics: Arc<Metrics>, buffers: Buffers) -> Grpc {
        Grpc { pool: Arc::new(Pool::new(config, connect, metrics.clone())), metrics, buffers }
    }

    /// What the node said when the last connection was opened.
    pub fn greeting(&self) -> Option<Greeting> {
        self.pool.greeting()
    }

    /// Makes a connection if there is none.
    pub async fn greet(&self) -> Result<(), CallError> {
        self.pool.get().await.map(|_| ())
    }

    async fn unary<Rep: Checked + Default>(
        &self,
        method: &'static str,
        request: impl Checked,
        deadline: Instant,
        idempotent: bool,
    ) -> Result<Rep, CallError> {
        let (mut tries, request) = (TRIES, Sealed::new(request));
        loop {
            let connection = self.pool.get().await?;
            match connection.unary(method, &request, deadline).await {
                Err(error) if self.repeats(&connection, &error, idempotent, &mut tries, deadline) => {}
                other => return other,
            }
        }
    }

    /// Answers for the node what it would refuse whole, so that one value that is too long for it costs no other. The node names
    /// an offer by its place in the call that it sees, which the caller never saw.
    fn refuse_too_long(&self, batch: &mut PutBatch<'_, '_>) {
        let Some(greeting) = self.pool.greeting() else { return };
        let most = greeting.info.limits.value_bytes;
        for (item, stored) in batch.items.iter().zip(&mut batch.stored) {
            let length = item.head.length;
            if length > most && stored.is_none() {
                let sentence = format!("the value has {length} bytes, allowed is at most {most} on this node");
                let node = self.pool.node().to_string();
                *stored = Some(Stored::Failed(Arc::new(Refusal { node, code: code::INVALID_ARGUMENT, sentence })));
            }
        }
    }

    /// Whether a failed call is made once more. Never after its deadline.
    fn repeats(
        &self,
        on: &Connection,
        error: &CallError,
        idempotent: bool,
        tries: &mut usize,
        deadline: Instant,
    ) -> bool {
        *tries -= 1;
        Metrics::add(&self.metrics.breaches, u64::from(matches!(error, CallError::Breach(_))));
        if matches!(error, CallError::Broken(_) | CallError::NotTaken(_) | CallError::Breach(_)) {
            on.retire();
        }
        let again = *tries > 0 && error.may_repeat(idempotent) && Instant::now() < deadline;
        if again {
            Metrics::add(&self.metrics.repeats, 1);
        }
        again
    }
}

impl Transport for Grpc {
    fn probe(&self, deadline: Instant) -> Pending<'_, NodeInfo> {
        Box::pin(async move {
            match tokio::time::timeout_at(deadline, self.pool.fresh()).await {
                Ok(opened) => opened?,
                Err(_) => return Err(CallError::Late),
            };
            self.info().ok_or(CallError::Late)
        })
    }

    fn info(&self) -> Option<NodeInfo> {
        self.pool.greeting().map(|g| g.info)
    }

    fn exists<'a>(&'a self, call: Call, lease_ms: u32, runs: Vec<v1::KeyRun>) -> Pending<'a, v1::ExistsReply> {
        let request =
            v1::ExistsRequest { version: COMMON_VERSION, tenant: call.tenant, lease_ms, runs, ..Default::default() };
        Box::pin(self.unary("Exists", request, call.deadline, true))
    }

    fn get<'a, 'b: 'a, 'c: 'b>(&'a self, call: Call, batch: &'a mut GetBatch<'b, 'c>) -> Pending<'a, ()> {
        Box::pin(async move {
            let mut tries = TRIES;
            loop {
                let asked = batch.open();
                if asked.is_empty() {
                    return Ok(());
                }
                let connection = self.pool.get().await?;
                match get_once(&connection, call, batch, asked).await {
                    Err(error) if self.repeats(&connection, &error, true, &mut tries, call.deadline) => {}
                    other => return other,
                }
            }
        })
    }

    fn put<'a, 'b: 'a, 'c: 'b>(&'a self, call: Call, batch: &'a mut PutBatch<'b, 'c>) -> Pending<'a, ()> {
        Box::pin(async move {
            let mut tries = TRIES;
            loop {
                let connection = self.pool.get().await?;
                self.refuse_too_long(batch);
                match PutStream::run(&connection, call, batch, &self.buffers).await {
                    // The first writer wins, so that a second try finds its own bytes at worst.
                    Err(error) if self.repeats(&connection, &error, true, &mut tries, call.deadline) => {}
                    other => return other,
                }
            }
        })
    }

    fn touch<'a>(&'a self, call: Call, runs: Vec<v1::ObjectRun>) -> Pending<'a, v1::TouchReply> {
        let request = v1::TouchRequest { version: COMMON_VERSION, tenant: call.tenant, runs, ..Default::default() };
        Box::pin(self.unary("Touch", request, call.deadline, true))
    }

    fn delete<'a>(&'a self, call: Call, runs: Vec<v1::ObjectRun>) -> Pending<'a, v1::DeleteReply> {
        let request = v1::DeleteRequest { version: COMMON_VERSION, tenant: call.tenant, runs, ..Default::default() };
        // A second delete could hit what another client has stored since.
        Box::pin(self.unary("Delete", request, call.deadline, false))
    }

    fn verify<'a>(&'a self, call: Call, runs: Vec<v1::ObjectRun>) -> Pending<'a, v1::VerifyReply> {
        let request = v1::VerifyRequest { version: COMMON_VERSION, tenant: call.tenant, runs, ..Default::default() };
        Box::pin(self.unary("Verify", request, call.deadline, true))
    }

    fn stats(&self, call: Call) -> Pending<'_, v1::StatsReply> {
        let request = v1::StatsRequest { version: COMMON_VERSION, tenant: call.tenant, ..Default::default() };
        Box::pin(self.unary("Stats", request, call.deadline, true))
    }

    fn reset(&self) {
        self.pool.reset();
    }
}

/// One stream of values, for the objects at `asked`.
async fn get_once(
    connection: &Arc<Connection>,
    call: Call,
    batch: &mut GetBatch<'_, '_>,
    asked: Vec<usize>,
) -> Result<(), CallError> {
    let runs = object_runs(asked.iter().map(|&i| (batch.buckets[i], batch.items[i].id.key, batch.items[i].id.part)));
    let version = connection.version();
    let request = v1::GetRequest { version, tenant: call.tenant, runs, ..Default::default() };
    let request = Sealed::new(request);
    let mut receive = Receive::new(batch, asked, version);
    let mut stream = connection.begin("Get", call.deadline).await?;
    stream.send_now(request.bytes, true);
    let mut reader = PiecesReader::of_answers(request.check);
    while let Some(bytes) = stream.data().await? {
        reader.feed(&bytes, &mut receive).map_err(CallError::Breach)?;
    }
    if reader.is_between_messages() && receive.is_complete() {
        Ok(())
    } else {
        Err(CallError::Breach("the answer ends before all objects have come".into()))
    }
}

/// Objects packed into runs of consecutive ones of one bucket.
pub fn object_runs(objects: impl Iterator<Item = (u32, [u8; 32], u8)>) -> Vec<v1::ObjectRun> {
    let mut packed = BytesMut::new();
    let mut ends: Vec<(u32, usize)> = Vec::new();
    for (bucket, key, part) in objects {
        packed.put_slice(&pack(&key, part));
        match ends.last_mut() {
            Some((last, end)) if *last == bucket => *end = packed.len(),
            _ => ends.push((bucket, packed.len())),
        }
    }
    let packed = packed.freeze();
    let mut start = 0;
    let run = |(bucket, end)| v1::ObjectRun { bucket, ids: slice(&packed, &mut start, end) };
    ends.into_iter().map(run).collect()
}

/// The bytes from `start` to `end`; the next slice starts there.
pub fn slice(packed: &Bytes, start: &mut usize, end: usize) -> Bytes {
    packed.slice(std::mem::replace(start, end)..end)
}
