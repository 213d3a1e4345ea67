//! The answer of a `Get` as an HTTP body: values go from the shared memory to the socket without a copy of ours.
//!
//! - One object is pinned at a time, when its turn comes, and stays so while its bytes wait to be sent: what a slow reader
//!   holds is one value, however long its batch is. What was evicted meanwhile is a miss.
//! - What is on disk is read ahead of its turn ([`Ahead`]).
//! - Small pieces and misses are gathered in a buffer of [`GATHER_BYTES`], since each frame costs a system call; large ones
//!   follow their head as they are.
//! - Bytes are not compared with their CRC here: the reader does that, and reports (`Verify`).

use super::deadline::Deadline;
use super::metrics::Metrics;
use super::state::{Progress, State};
use super::tiers::{Ahead, Fetch, Fetched};
use crate::rpc::frame::{Carrier, PieceHead, put_head, put_sealed};
use crate::rpc::limits::{CHUNK_BYTES, SOURCE_VERSION};
use crate::rpc::v1::{GetReply, Miss, MissReason, Source};
use crate::shm::{ObjectId, Pinned};
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderValue};
use http_body::Frame;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tonic::{Code, Status};

/// Pieces up to this are copied behind their head: below it a copy costs less than a frame.
const COPIED_BYTES: usize = 16 << 10;
/// What is gathered before it is sent.
const GATHER_BYTES: usize = 64 << 10;

/// A pinned value as shared bytes.
struct Value(Pinned);

impl AsRef<[u8]> for Value {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// The object whose pieces are being sent.
struct Current {
    bytes: Bytes,
    crcs: Box<[u32]>,
    layout: u32,
    source: Source,
    at: usize,
}

/// Who asked, and how.
pub struct Caller {
    /// Of the stream.
    pub progress: Arc<Progress>,
    /// Whose objects.
    pub tenant: u64,
    /// Of the protocol, of the request.
    pub version: u32,
    /// Check of the request, with which the checks of the answers begin.
    pub check: u32,
    /// When the stream ends, whatever is left.
    pub deadline: Deadline,
}

/// See the file.
pub struct GetBody {
    state: Arc<State>,
    caller: Caller,
    ids: Vec<ObjectId>,
    next: usize,
    ahead: Ahead,
    current: Option<Current>,
    piece_bytes: usize,
    frames: VecDeque<Bytes>,
    gathered: BytesMut,
    ended: bool,
}

impl GetBody {
    /// The values of `ids` in pieces of at most `piece_bytes`, a divisor of a chunk.
    pub fn new(state: Arc<State>, caller: Caller, ids: Vec<ObjectId>, piece_bytes: usize) -> GetBody {
        debug_assert!(CHUNK_BYTES.is_multiple_of(piece_bytes));
        GetBody {
            state,
            caller,
            ids,
            next: 0,
            ahead: Ahead::default(),
            current: None,
            piece_bytes,
            frames: VecDeque::new(),
            gathered: BytesMut::new(),
            ended: false,
        }
    }

    /// The next bytes of the body; `None` at its end.
    fn next_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        loop {
            if let Some(frame) = self.frames.pop_front() {
                return Poll::Ready(Some(frame));
            }
            if self.gathered.len() >= GATHER_BYTES || self.current.is_none() && self.next == self.ids.len() {
                return Poll::Ready((!self.gathered.is_empty()).then(|| self.gathered.split().freeze()));
            }
            if self.current.is_some() {
                self.piece();
            } else if self.object(cx).is_pending() {
                // What is there is sent while the disk reads.
                return match self.gathered.is_empty() {
                    true => Poll::Pending,
                    false => Poll::Ready(Some(self.gathered.split().freeze())),
                };
            }
        }
    }

    /// Starts the next object; pending while it is read from below memory.
    fn object(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let (tenant, id) = (self.caller.tenant, self.ids[self.next]);
        if !self.state.tiers.has_disk() {
            match self.state.store.get(tenant, &id) {
                Some(pinned) => self.pinned(pinned, Source::Memory),
                None => self.miss(MissReason::Absent),
            }
            return Poll::Ready(());
        }
        self.ahead.start(&self.state.tiers, tenant, &self.ids);
        match std::task::ready!(self.ahead.poll_next(cx)) {
            Fetch::InMemory(source) => match self.state.store.get(tenant, &id) {
                Some(pinned) => {
                    self.state.tiers.used(tenant, &id);
                    self.pinned(pinned, source);
                }
                // It left in between.
                None => self.ahead.again(&self.state.tiers, tenant, &id),
            },
            Fetch::OnDisk(value) => {
                let (crcs, layout) = (value.crcs().into(), value.meta().layout);
                let source = value.source;
                self.begin(Bytes::from_owner(Fetched(value)), crcs, layout, source);
            }
            Fetch::Crowded => self.ahead.again(&self.state.tiers, tenant, &id),
            Fetch::Absent => self.miss(MissReason::Absent),
            Fetch::Damaged => self.miss(MissReason::Damaged),
        }
        Poll::Ready(())
    }

    fn pinned(&mut self, pinned: Pinned, source: Source) {
        let (crcs, layout) = (pinned.crcs().into(), pinned.meta().put.layout);
        self.begin(Bytes::from_owner(Value(pinned)), crcs, layout, source);
    }

    fn begin(&mut self, bytes: Bytes, crcs: Box<[u32]>, layout: u32, source: Source) {
        self.next += 1;
        Metrics::add(&self.state.metrics.get_bytes, bytes.len() as u64);
        self.current = Some(Current { bytes, crcs, layout, source, at: 0 });
    }

    fn miss(&mut self, reason: MissReason) {
        let miss = Miss { index: self.next as u32, reason: reason as i32 };
        self.next += 1;
        put_sealed(&mut self.gathered, GetReply { misses: vec![miss], ..GetReply::default() }, self.caller.check);
    }

    /// Adds the next piece of the current object.
    fn piece(&mut self) {
        let Some(current) = &mut self.current else { return };
        let start = current.at;
        let end = (start + self.piece_bytes).min(current.bytes.len());
        let data = current.bytes.slice(start..end);
        let whole = end == current.bytes.len();
        let ends_chunk = whole || end.is_multiple_of(CHUNK_BYTES);
        let head = PieceHead {
            index: (self.next - 1) as u32,
            length: if start == 0 { current.bytes.len() as u64 } else { 0 },
            layout: if start == 0 { current.layout } else { 0 },
            offset: start as u64,
            source: if start == 0 && self.caller.version >= SOURCE_VERSION { current.source as i32 } else { 0 },
            crc32c: ends_chunk.then(|| current.crcs.get(start / CHUNK_BYTES).copied().unwrap_or_default()),
        };
        put_head(&mut self.gathered, Carrier::GetReply, &head, data.len(), self.caller.check);
        if data.len() <= COPIED_BYTES {
            self.gathered.extend_from_slice(&data);
        } else {
            self.frames.push_back(self.gathered.split().freeze());
            self.frames.push_back(data);
        }
        current.at = end;
        if whole {
            self.current = None;
        }
    }
}

impl http_body::Body for GetBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.caller.progress.moved(self.state.clock.now());
        if self.ended {
            return Poll::Ready(None);
        }
        let late = self.caller.deadline.check().err();
        if late.is_none()
            && let Some(bytes) = std::task::ready!(self.next_frame(cx))
        {
            return Poll::Ready(Some(Ok(Frame::data(bytes))));
        }
        self.ended = true;
        self.current = None;
        let trailers = trailers(late.as_ref());
        Poll::Ready(Some(Ok(Frame::trailers(trailers))))
    }
}

/// The end of an answer.
pub(super) fn trailers(status: Option<&Status>) -> HeaderMap {
    let mut map = HeaderMap::new();
    let ok = Status::new(Code::Ok, "");
    if status.unwrap_or(&ok).add_header(&mut map).is_err() {
        map.insert("grpc-status", HeaderValue::from_static("13"));
    }
    map
}
