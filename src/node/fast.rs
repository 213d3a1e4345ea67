//! The same-host path: one thread that hands out a read-only descriptor of the memory and says where values are.
//!
//! - A thread and not tasks: an answer takes a microsecond, and waking a task would cost several times that.
//! - Only users of the node's own number or of `fast_path_users` may connect, and where the node has tokens only with one
//!   that is valid for all tenants: the descriptor shows everything.
//! - What a connection pins, if it wants that, is bounded, ends when it says so, after `limits.stall`, or with the
//!   connection. A reader that was stopped in mid-copy finds out by the words that it compares afterwards.
//! - A connection has one request at a time: the next is read when the answer was taken.

use super::auth::Grant;
use super::metrics::Metrics;
use super::state::State;
use crate::rpc::awake::Awake;
use crate::rpc::fast::{
    Found, HelloReply, Kind, MAX_OPEN, MAX_REQUEST_BYTES, Outcome, REQUEST_BYTES, Reply, Request, VERSION, asks,
};
use crate::shm::{ObjectId, Pinned};
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

#[path = "fast_sys.rs"]
mod sys;
use sys::{Epoll, Event};

/// Connections at one time.
const MAX_CONNECTIONS: usize = 256;
/// Requests of one peer that are answered before the others are looked at.
const MOST_IN_A_ROW: usize = 8;
/// How often pins are looked through, in milliseconds.
const TICK_MS: i32 = 1000;
const LISTENER: u64 = u64::MAX;
const STOP: u64 = u64::MAX - 1;

/// The thread.
pub struct FastPath {
    thread: Option<JoinHandle<()>>,
    stop: UnixStream,
}

impl FastPath {
    /// Listens on `path`, where nothing is.
    ///
    /// # Errors
    /// A sentence.
    pub fn start(state: Arc<State>, path: &Path) -> Result<FastPath, String> {
        let failed = |e: &dyn std::fmt::Display| format!("fast_path {}: {e}", path.display());
        let file = state.store.reader_file().map_err(|e| failed(&e))?;
        let listener = UnixListener::bind(path).map_err(|e| failed(&e))?;
        let made = || -> io::Result<(Server, UnixStream)> {
            listener.set_nonblocking(true)?;
            let (stop, stopped) = UnixStream::pair()?;
            let epoll = Epoll::new()?;
            epoll.add(listener.as_raw_fd(), LISTENER)?;
            epoll.add(stopped.as_raw_fd(), STOP)?;
            let file_bytes = file.metadata()?.len();
            let (peers, piece) = (HashMap::new(), vec![0; MAX_REQUEST_BYTES]);
            let server = Server {
                state,
                epoll,
                listener,
                _stopped: stopped,
                file,
                file_bytes,
                peers,
                piece,
                next: 0,
                deaf: false,
            };
            Ok((server, stop))
        };
        let (mut server, stop) = made().map_err(|e| failed(&e))?;
        let thread = std::thread::Builder::new().name("gcache-fast".into()).spawn(move || server.run());
        Ok(FastPath { thread: Some(thread.map_err(|e| failed(&e))?), stop })
    }

    /// Ends all connections and the thread.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        let _ = self.stop.write_all(&[0]);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for FastPath {
    fn drop(&mut self) {
        self.end();
    }
}

struct Server {
    state: Arc<State>,
    epoll: Epoll,
    listener: UnixListener,
    _stopped: UnixStream,
    file: File,
    file_bytes: u64,
    peers: HashMap<u64, Peer>,
    /// What is read goes through here.
    piece: Vec<u8>,
    next: u64,
    /// The listener is not looked at until the next tick.
    deaf: bool,
}

/// Values pinned by one `Get`.
struct Open {
    since: u64,
    bytes: u64,
    pins: Vec<Pinned>,
}

/// What a look at a peer came to.
#[derive(PartialEq)]
enum Turn {
    Quiet,
    Asked,
    Over,
}

struct Peer {
    stream: UnixStream,
    since: u64,
    greeted: bool,
    input: Vec<u8>,
    output: Vec<u8>,
    written: usize,
    /// Whether it is watched for room to write, not for input.
    writes: bool,
    /// Its descriptor goes with the next byte.
    descriptor: bool,
    closing: bool,
    open: HashMap<u64, Open>,
    pinned: u64,
}

impl Server {
    fn run(&mut self) {
        let mut events = Vec::new();
        let mut looked = self.state.clock.now();
        // Who asked last, and when.
        let mut asked: Option<(u64, Instant)> = None;
        let mut in_a_row = 0;
        let mut awake = Awake::default();
        loop {
            if let Some((peer, _)) = asked
                && in_a_row < MOST_IN_A_ROW
                && self.turn(peer)
            {
                (asked, in_a_row) = (Some((peer, Instant::now())), in_a_row + 1);
                continue;
            }
            in_a_row = 0;
            // The next request often follows at once.
            asked = asked.filter(|(_, at)| awake.look_again(*at));
            if let Err(error) = self.epoll.wait(&mut events, if asked.is_some() { 0 } else { TICK_MS }) {
                tracing::error!(%error, "the same-host path ends");
                return;
            }
            for Event { token } in events.drain(..) {
                match token {
                    STOP => return,
                    LISTENER => self.accept(),
                    peer => {
                        if self.turn(peer) {
                            asked = Some((peer, Instant::now()));
                        }
                    }
                }
            }
            let now = self.state.clock.now();
            if now.saturating_sub(looked) >= TICK_MS as u64 {
                looked = now;
                self.unpin(now);
                self.drop_silent(now);
                if std::mem::take(&mut self.deaf) {
                    let _ = self.epoll.set(self.listener.as_raw_fd(), LISTENER, false);
                }
            }
        }
    }

    fn accept(&mut self) {
        loop {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => return,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
                // Out of descriptors, say: the connection stays in the queue, and would wake this thread again at once.
                Err(error) => {
                    tracing::warn!(%error, "no same-host connection is accepted for a moment");
                    self.deaf = self.epoll.set(self.listener.as_raw_fd(), LISTENER, true).is_ok();
                    return;
                }
            };
            let users = &self.state.config.fast_path_users;
            let allowed = sys::peer_user(&stream).is_ok_and(|user| user == sys::own_user() || users.contains(&user));
            if !allowed || self.peers.len() >= MAX_CONNECTIONS || stream.set_nonblocking(true).is_err() {
                Metrics::add(&self.state.metrics.refused_connections, 1);
                tracing::warn!(allowed, "a same-host connection is refused");
                continue;
            }
            let token = self.next;
            self.next += 1;
            if self.epoll.add(stream.as_raw_fd(), token).is_ok() {
                Metrics::add(&self.state.metrics.fast_connections, 1);
                self.peers.insert(token, Peer::new(stream, self.state.clock.now()));
            }
        }
    }

    /// Looks what can be read from or written to a peer. Whether it asked something.
    fn turn(&mut self, token: u64) -> bool {
        let Some(peer) = self.peers.get_mut(&token) else { return false };
        let turn = peer.turn(&self.state, &self.file, self.file_bytes, &mut self.piece);
        let writes = peer.written < peer.output.len();
        let turns = writes != std::mem::replace(&mut peer.writes, writes);
        if turn == Turn::Over || turns && self.epoll.set(peer.stream.as_raw_fd(), token, writes).is_err() {
            self.peers.remove(&token);
            Metrics::sub(&self.state.metrics.fast_connections, 1);
        }
        turn == Turn::Asked
    }

    /// Ends pins that are older than the stall limit.
    fn unpin(&mut self, now: u64) {
        let most = self.state.config.limits.stall.0.as_millis() as u64;
        for peer in self.peers.values_mut() {
            let pinned = &mut peer.pinned;
            peer.open.retain(|_, open| {
                let keep = now.saturating_sub(open.since) <= most;
                *pinned -= if keep { 0 } else { open.bytes };
                keep
            });
        }
    }

    /// Ends connections that did not greet within the stall limit.
    fn drop_silent(&mut self, now: u64) {
        let (most, before) = (self.state.config.limits.stall.0.as_millis() as u64, self.peers.len());
        self.peers.retain(|_, peer| peer.greeted || now.saturating_sub(peer.since) <= most);
        Metrics::sub(&self.state.metrics.fast_connections, (before - self.peers.len()) as u64);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        Metrics::sub(&self.state.metrics.fast_connections, self.peers.len() as u64);
    }
}

impl Peer {
    fn new(stream: UnixStream, since: u64) -> Peer {
        Peer {
            stream,
            since,
            greeted: false,
            input: Vec::new(),
            output: Vec::new(),
            written: 0,
            writes: false,
            descriptor: false,
            closing: false,
            open: HashMap::new(),
            pinned: 0,
        }
    }

    /// Writes what waits, then reads once and answers one request after the other.
    fn turn(&mut self, state: &State, file: &File, file_bytes: u64, piece: &mut [u8]) -> Turn {
        let (mut may_read, mut turn) = (true, Turn::Quiet);
        loop {
            match self.flush(file.as_raw_fd()) {
                Ok(true) if self.closing => return Turn::Over,
                Ok(true) => {}
                Ok(false) => return turn,
                Err(_) => return Turn::Over,
            }
            match self.receive(&mut may_read, piece) {
                Ok(Some((request, body))) => {
                    turn = Turn::Asked;
                    if let Err(sentence) = self.answer(state, file_bytes, request, &body) {
                        self.refuse(request.sequence, &sentence);
                    }
                }
                Ok(None) => return turn,
                Err(Some(sentence)) => self.refuse(0, &sentence),
                Err(None) => return Turn::Over,
            }
        }
    }

    /// True when nothing waits any more.
    fn flush(&mut self, descriptor: RawFd) -> io::Result<bool> {
        while self.written < self.output.len() {
            let rest = &self.output[self.written..];
            let sent = if self.descriptor {
                sys::send_with(&self.stream, rest, descriptor)
            } else {
                (&self.stream).write(rest)
            };
            match sent {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(n) => {
                    self.written += n;
                    self.descriptor = false;
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        self.output.clear();
        self.written = 0;
        Ok(true)
    }

    /// The next whole request; None while it is not there, or when it was read once: others have their turn. An error with
    /// a sentence is told, one without ends it all.
    fn receive(&mut self, may_read: &mut bool, piece: &mut [u8]) -> Result<Option<(Request, Vec<u8>)>, Option<String>> {
        loop {
            if let Some(head) = self.input.first_chunk::<REQUEST_BYTES>() {
                let request = Request::read(head).map_err(Some)?;
                let end = REQUEST_BYTES + request.body_bytes();
                if self.input.len() >= end {
                    let body = self.input[REQUEST_BYTES..end].to_vec();
                    self.input.drain(..end);
                    return Ok(Some((request, body)));
                }
            }
            if !std::mem::take(may_read) {
                return Ok(None);
            }
            match (&self.stream).read(piece) {
                Ok(0) => return Err(None),
                Ok(n) => self.input.extend_from_slice(&piece[..n]),
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Err(None),
            }
        }
    }

    fn answer(&mut self, state: &State, file_bytes: u64, request: Request, body: &[u8]) -> Result<(), String> {
        match request.kind {
            Kind::Hello => {
                let mut headers = http::HeaderMap::new();
                let bearer = [b"Bearer ", body].concat();
                if let (false, Ok(value)) = (body.is_empty(), http::HeaderValue::from_bytes(&bearer)) {
                    headers.insert(http::header::AUTHORIZATION, value);
                }
                match state.tokens.grant(&headers) {
                    Ok(Grant::All) => {}
                    Ok(Grant::Only(_)) => return Err("the token is not valid for all tenants".into()),
                    Err(status) => return Err(status.message().to_string()),
                }
                (self.greeted, self.descriptor) = (true, true);
                let hello = HelloReply {
                    file_bytes,
                    pin_bytes: state.config.limits.fast_path_pins.0,
                    version: VERSION,
                    pin_ms: state.config.limits.stall.millis(),
                    start_id: state.start_id,
                };
                let body_bytes = crate::rpc::fast::HELLO_BYTES as u32;
                Reply { kind: Kind::Hello, count: 0, sequence: request.sequence, body_bytes }.put(&mut self.output);
                hello.put(&mut self.output);
                Ok(())
            }
            _ if !self.greeted => Err("the first message must be a Hello".into()),
            Kind::Get => self.get(state, request, body),
            Kind::Release | Kind::Refused => {
                if let Some(open) = self.open.remove(&request.sequence) {
                    self.pinned -= open.bytes;
                }
                Ok(())
            }
        }
    }

    fn get(&mut self, state: &State, request: Request, body: &[u8]) -> Result<(), String> {
        if request.pins && (self.open.contains_key(&request.sequence) || self.open.len() >= MAX_OPEN) {
            return Err(format!(
                "sequence number {} with {} gets not released, allowed is one that is not among them, and {MAX_OPEN}",
                request.sequence,
                self.open.len()
            ));
        }
        let m = &state.metrics;
        let most = state.config.limits.fast_path_pins.0;
        let mut open = Open { since: state.clock.now(), bytes: 0, pins: Vec::new() };
        let (mut found, mut crcs) = (Vec::with_capacity(usize::from(request.count)), Vec::new());
        for (key, part) in asks(body)? {
            let id = ObjectId { key, part };
            let Some(pinned) = state.store.get(request.tenant, &id) else {
                let below = state.tiers.may_be_below(request.tenant, &id);
                Metrics::add(&m.fast_misses, u64::from(!below));
                found.push(Found::miss(if below { Outcome::Elsewhere } else { Outcome::Absent }));
                continue;
            };
            state.tiers.used(request.tenant, &id);
            let at = pinned.shared_ref();
            // One value may always be pinned, or a large one could never be read.
            if request.pins && self.pinned + open.bytes > 0 && self.pinned + open.bytes + at.len > most {
                found.push(Found::miss(Outcome::NoPin));
                continue;
            }
            Metrics::add(&m.fast_hits, 1);
            Metrics::add(&m.fast_bytes, at.len);
            let first = crcs.len() as u32;
            crcs.extend_from_slice(pinned.crcs());
            found.push(Found {
                outcome: Outcome::Hit,
                layout: pinned.meta().put.layout,
                offset: at.offset,
                len: at.len,
                header_at: at.header_at,
                header_word: at.header_word,
                span_at: at.span_at,
                span_word: at.span_word,
                crcs: (crcs.len() as u32 - first, first),
            });
            if request.pins {
                open.bytes += at.len;
                open.pins.push(pinned);
            }
        }
        let body_bytes = (found.len() * crate::rpc::fast::FOUND_BYTES + 4 * crcs.len()) as u32;
        let head = Reply { kind: Kind::Get, count: request.count, sequence: request.sequence, body_bytes };
        head.put(&mut self.output);
        found.iter().for_each(|f| f.put(&mut self.output));
        crcs.iter().for_each(|crc| self.output.extend_from_slice(&crc.to_le_bytes()));
        if !open.pins.is_empty() {
            self.pinned += open.bytes;
            self.open.insert(request.sequence, open);
        }
        Ok(())
    }

    /// Says why, and ends the connection when that was sent.
    fn refuse(&mut self, sequence: u64, sentence: &str) {
        let body_bytes = sentence.len() as u32;
        Reply { kind: Kind::Refused, count: 0, sequence, body_bytes }.put(&mut self.output);
        self.output.extend_from_slice(sentence.as_bytes());
        self.closing = true;
    }
}
