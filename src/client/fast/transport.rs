//! Reads over the same-host path where there is one, everything else over gRPC.

use super::answer;
use super::copy::{Job, copy_all};
use super::link::Link;
use crate::client::call::{Call, CallError};
use crate::client::grpc_transport::Grpc;
use crate::client::transport::{GetBatch, NodeInfo, Pending, PutBatch, Transport};
use crate::client::types::{Got, Miss};
use crate::rpc::fast::{MAX_ASKS, Outcome, VERSION};
use crate::rpc::v1;
use crate::shm::Reader;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::time::Instant;

/// After trouble the path is left alone for so long.
const PAUSE: Duration = Duration::from_secs(2);
/// Connections that are kept for the next call.
const KEPT: usize = 8;
/// Bytes copied before other nodes of the same call get their turn.
const TURN: u64 = 32 << 20;
/// So few bytes are copied within some 20 us, and the words tell whether they stayed: to pin them would cost a message, and
/// they are asked for once more, pinned, when they did not stay.
const UNPINNED: u64 = 256 << 10;

/// See the head of this file.
pub struct FastTransport {
    grpc: Grpc,
    token: Option<String>,
    machine: Option<Vec<u8>>,
    threads: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    idle: Vec<Link>,
    reader: Option<Arc<Reader>>,
    not_before: Option<Instant>,
}

impl FastTransport {
    /// `machine` is the boot id of this machine; without it the path is never tried. Large batches are copied by up to
    /// `threads` threads.
    pub fn new(grpc: Grpc, token: Option<String>, machine: Option<Vec<u8>>, threads: usize) -> FastTransport {
        FastTransport { grpc, token, machine, threads, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// The socket to try now, and the node's start, if the node is on this machine.
    fn socket(&self) -> Option<(PathBuf, u64)> {
        let machine = self.machine.as_ref()?;
        let greeting = self.grpc.greeting()?;
        let fast = greeting.fast_path.filter(|f| f.version == VERSION && *greeting.machine == **machine)?;
        Some((PathBuf::from(&fast.socket), greeting.info.start_id))
    }

    /// A connection to the node's present start, for one call.
    async fn link(&self) -> Option<Link> {
        let start_id = self.grpc.info()?.start_id;
        let known = {
            let mut state = self.state();
            if state.not_before.is_some_and(|t| Instant::now() < t) {
                return None;
            }
            state.idle.retain(|l| l.start_id == start_id);
            if let Some(link) = state.idle.pop() {
                return Some(link);
            }
            state.reader.clone()
        };
        let (path, start_id) = self.socket()?;
        match Link::open(&path, self.token.as_deref(), start_id, known).await {
            Ok(link) => {
                self.state().reader = Some(link.reader.clone());
                Some(link)
            }
            Err(_) => {
                self.pause();
                None
            }
        }
    }

    fn pause(&self) {
        self.state().not_before = Some(Instant::now() + PAUSE);
    }

    fn keep(&self, link: Link) {
        let mut state = self.state();
        if state.idle.len() < KEPT {
            state.idle.push(link);
        }
    }

    /// Gets what is in the node's memory. What stays without an answer is for gRPC.
    async fn get_fast(&self, call: Call, batch: &mut GetBatch<'_, '_>) -> Result<(), CallError> {
        if self.machine.is_some() && self.grpc.info().is_none() {
            self.grpc.greet().await?;
        }
        let Some(mut link) = self.link().await else { return Ok(()) };
        match self.get_over(&mut link, call, batch).await {
            Ok(()) => self.keep(link),
            Err(CallError::Late) => return Err(CallError::Late),
            // gRPC goes on, within the same deadline: the node may have been restarted.
            Err(error) => {
                self.state().idle.clear();
                if !matches!(error, CallError::Broken(_)) {
                    self.pause();
                }
            }
        }
        Ok(())
    }

    /// Gets what is in the node's memory over a connection, which is of no use any more after an error.
    async fn get_over(&self, link: &mut Link, call: Call, batch: &mut GetBatch<'_, '_>) -> Result<(), CallError> {
        let mut open = batch.open();
        let mut pins = open.iter().map(|&i| batch.items[i].into.expected()).sum::<u64>() > UNPINNED;
        while !open.is_empty() {
            let asked = open.len().min(MAX_ASKS);
            let ids = open[..asked].iter().map(|&i| (&batch.items[i].id.key, batch.items[i].id.part));
            let body = link.get(call.tenant, pins, ids).await?;
            let answers = answer::read(&body, asked).map_err(CallError::Breach)?;
            let (mut again, mut hits) = (Vec::new(), Vec::new());
            for (&position, (found, crcs)) in open[..asked].iter().zip(&answers) {
                match found.outcome {
                    Outcome::Hit => hits.push(Job { position, found, crcs }),
                    Outcome::Absent => batch.got[position] = Some(Got::Miss(Miss::Absent)),
                    Outcome::NoPin => again.push(position),
                    // It stays open, for gRPC.
                    Outcome::Elsewhere => {}
                }
            }
            if again.len() == asked {
                return Err(CallError::Breach("nothing may be pinned".to_string()));
            }
            let mut rest = &hits[..];
            while !rest.is_empty() {
                let (now, later) = rest.split_at(turn(rest));
                copy_all(&link.reader, now, call.deadline, self.threads, batch)?;
                rest = later;
                if !rest.is_empty() {
                    tokio::task::yield_now().await;
                }
            }
            let moved = hits.iter().map(|hit| hit.position).filter(|&i| batch.got[i].is_none());
            if pins {
                // A pinned value stays where it is, so that something is wrong with this path: they are for gRPC.
                batch.fast_moved += moved.count() as u64;
                link.release()?;
            } else {
                again.extend(moved);
                pins = !again.is_empty();
            }
            // Objects for which the connection's pins did not suffice, or that moved, are asked for once more.
            open.splice(..asked, again);
        }
        Ok(())
    }
}

/// How many of these values are copied in one go.
fn turn(jobs: &[Job<'_>]) -> usize {
    let mut bytes = 0;
    let within = |job: &&Job<'_>| {
        bytes += job.found.len;
        bytes <= TURN
    };
    jobs.iter().take_while(within).count().max(1)
}

impl Transport for FastTransport {
    fn get<'a, 'b: 'a, 'c: 'b>(&'a self, call: Call, batch: &'a mut GetBatch<'b, 'c>) -> Pending<'a, ()> {
        Box::pin(async move {
            self.get_fast(call, batch).await?;
            match batch.got.iter().all(Option::is_some) {
                true => Ok(()),
                false => self.grpc.get(call, batch).await,
            }
        })
    }

    fn probe(&self, deadline: Instant) -> Pending<'_, NodeInfo> {
        self.grpc.probe(deadline)
    }

    fn info(&self) -> Option<NodeInfo> {
        self.grpc.info()
    }

    fn exists<'a>(&'a self, call: Call, lease_ms: u32, runs: Vec<v1::KeyRun>) -> Pending<'a, v1::ExistsReply> {
        self.grpc.exists(call, lease_ms, runs)
    }

    fn put<'a, 'b: 'a, 'c: 'b>(&'a self, call: Call, batch: &'a mut PutBatch<'b, 'c>) -> Pending<'a, ()> {
        self.grpc.put(call, batch)
    }

    fn touch<'a>(&'a self, call: Call, runs: Vec<v1::ObjectRun>) -> Pending<'a, v1::TouchReply> {
        self.grpc.touch(call, runs)
    }

    fn delete<'a>(&'a self, call: Call, runs: Vec<v1::ObjectRun>) -> Pending<'a, v1::DeleteReply> {
        self.grpc.delete(call, runs)
    }

    fn verify<'a>(&'a self, call: Call, runs: Vec<v1::ObjectRun>) -> Pending<'a, v1::VerifyReply> {
        self.grpc.verify(call, runs)
    }

    fn stats(&self, call: Call) -> Pending<'_, v1::StatsReply> {
        self.grpc.stats(call)
    }

    fn reset(&self) {
        self.grpc.reset();
        self.state().idle.clear();
    }
}
