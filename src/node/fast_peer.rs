//! One connection of the same-host path: reads requests, answers them, and holds what they pin.

use super::sys;
use crate::node::auth::Grant;
use crate::node::metrics::Metrics;
use crate::node::state::State;
use crate::rpc::fast::{Found, HelloReply, Kind, MAX_OPEN, Outcome, REQUEST_BYTES, Reply, Request, VERSION, asks};
use crate::shm::{ObjectId, Pinned};
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;

/// Values pinned by one `Get`.
struct Open {
    since: u64,
    bytes: u64,
    pins: Vec<Pinned>,
}

/// What a look at a peer came to.
#[derive(PartialEq)]
pub enum Turn {
    Quiet,
    Asked,
    Over,
}

pub struct Peer {
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

impl Peer {
    /// A connection that was accepted now.
    pub fn new(stream: UnixStream, since: u64) -> Peer {
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

    /// Its socket.
    pub fn fd(&self) -> RawFd {
        self.stream.as_raw_fd()
    }

    /// Whether it is to be watched for room to write; none where that has not changed.
    pub fn turned(&mut self) -> Option<bool> {
        let writes = self.written < self.output.len();
        (writes != std::mem::replace(&mut self.writes, writes)).then_some(writes)
    }

    /// Whether it has not greeted within so many milliseconds.
    pub fn is_silent(&self, now: u64, most: u64) -> bool {
        !self.greeted && now.saturating_sub(self.since) > most
    }

    /// Ends pins that are older than that.
    pub fn unpin(&mut self, now: u64, most: u64) {
        let pinned = &mut self.pinned;
        self.open.retain(|_, open| {
            let keep = now.saturating_sub(open.since) <= most;
            *pinned -= if keep { 0 } else { open.bytes };
            keep
        });
    }

    /// Writes what waits, then reads once and answers one request after the other.
    pub fn turn(&mut self, state: &State, file: &File, file_bytes: u64, piece: &mut [u8]) -> Turn {
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
