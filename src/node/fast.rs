//! The same-host path: one thread that hands out a read-only descriptor of the memory and says where values are.
//!
//! - A thread and not tasks: an answer takes a microsecond, and waking a task would cost several times that.
//! - Only users of the node's own number or of `fast_path_users` may connect, and where the node has tokens only with one
//!   that is valid for all tenants: the descriptor shows everything.
//! - What a connection pins, if it wants that, is bounded, ends when it says so, after `limits.stall`, or with the
//!   connection. A reader that was stopped in mid-copy finds out by the words that it compares afterwards.
//! - A connection has one request at a time: the next is read when the answer was taken.

use super::metrics::Metrics;
use super::state::State;
use crate::rpc::awake::Awake;
use crate::rpc::fast::MAX_REQUEST_BYTES;
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

#[path = "fast_peer.rs"]
mod peer;
#[path = "fast_sys.rs"]
mod sys;
use peer::{Peer, Turn};
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
        let turned = peer.turned();
        if turn == Turn::Over || turned.is_some_and(|writes| self.epoll.set(peer.fd(), token, writes).is_err()) {
            self.peers.remove(&token);
            Metrics::sub(&self.state.metrics.fast_connections, 1);
        }
        turn == Turn::Asked
    }

    /// Ends pins that are older than the stall limit.
    fn unpin(&mut self, now: u64) {
        let most = self.state.config.limits.stall.0.as_millis() as u64;
        self.peers.values_mut().for_each(|peer| peer.unpin(now, most));
    }

    /// Ends connections that did not greet within the stall limit.
    fn drop_silent(&mut self, now: u64) {
        let (most, before) = (self.state.config.limits.stall.0.as_millis() as u64, self.peers.len());
        self.peers.retain(|_, peer| !peer.is_silent(now, most));
        Metrics::sub(&self.state.metrics.fast_connections, (before - self.peers.len()) as u64);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        Metrics::sub(&self.state.metrics.fast_connections, self.peers.len() as u64);
    }
}
