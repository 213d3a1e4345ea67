//! The device as the tier uses it: operations that know how long they take, and a way to wait for them.

use super::device::{Action, Device, Done, FileId, Op, Piece};
use super::layout::byte_of;
use super::{Aligned, BLOCK};
use smallvec::{SmallVec, smallvec};
use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How often one who waits looks whether the tier has gone offline.
const LOOK: Duration = Duration::from_millis(100);

#[derive(Default)]
struct Flying {
    next: u64,
    /// When each was first seen by a tick; none since it began.
    seen: BTreeMap<u64, Option<u64>>,
}

/// A device, with counts.
pub struct Io {
    /// The device itself, for everything but operations.
    pub device: Arc<dyn Device>,
    flying: Mutex<Flying>,
    written: AtomicU64,
    read: AtomicU64,
    given_up: AtomicBool,
}

impl Io {
    /// Around a device.
    pub fn new(device: Arc<dyn Device>) -> Io {
        Io {
            device,
            flying: Mutex::default(),
            written: AtomicU64::new(0),
            read: AtomicU64::new(0),
            given_up: AtomicBool::new(false),
        }
    }

    /// Bytes written and read.
    pub fn bytes(&self) -> (u64, u64) {
        (self.written.load(Ordering::Relaxed), self.read.load(Ordering::Relaxed))
    }

    /// Whether no operation is in flight for longer than `timeout_ms`, at `now`. The time of one counts from the first
    /// tick that sees it.
    pub fn is_moving(&self, now: u64, timeout_ms: u64) -> bool {
        let mut flying = self.flying.lock().unwrap_or_else(PoisonError::into_inner);
        flying.seen.values_mut().all(|seen| now.saturating_sub(*seen.get_or_insert(now)) <= timeout_ms)
    }

    /// Lets all who wait go, now and later; what is in flight keeps its memory until it completes.
    pub fn give_up(&self) {
        self.given_up.store(true, Ordering::Release);
    }

    /// Starts an operation at a block.
    ///
    /// # Safety
    /// As [`Op::new`]: `done` owns the memory of the pieces.
    pub unsafe fn start(
        self: &Arc<Self>,
        file: FileId,
        action: Action,
        block: u32,
        pieces: SmallVec<[Piece; 2]>,
        done: Done,
    ) {
        let bytes: u64 = pieces.iter().map(|p| p.len as u64).sum();
        let number = {
            let mut flying = self.flying.lock().unwrap_or_else(PoisonError::into_inner);
            let number = flying.next;
            flying.next += 1;
            flying.seen.insert(number, None);
            number
        };
        let io = self.clone();
        let counted: Done = Box::new(move |result| {
            io.flying.lock().unwrap_or_else(PoisonError::into_inner).seen.remove(&number);
            match action {
                Action::Write => io.written.fetch_add(bytes, Ordering::Relaxed),
                Action::Read => io.read.fetch_add(bytes, Ordering::Relaxed),
                Action::Sync => 0,
            };
            done(result);
        });
        // SAFETY: `counted` owns `done`, which owns the memory.
        self.device.submit(unsafe { Op::new(file, action, byte_of(block), pieces, counted) });
    }

    /// Starts a write of one buffer.
    pub fn write(self: &Arc<Self>, file: FileId, block: u32, bytes: Aligned, done: Done) {
        let pieces = smallvec![Piece { start: bytes.as_ptr().cast_mut(), len: bytes.len() }];
        let owner: Done = Box::new(move |result| {
            drop(bytes);
            done(result);
        });
        // SAFETY: `owner` owns the bytes.
        unsafe { self.start(file, Action::Write, block, pieces, owner) }
    }

    /// Starts a read into one buffer.
    pub fn read(
        self: &Arc<Self>,
        file: FileId,
        block: u32,
        bytes: Aligned,
        done: impl FnOnce(io::Result<Aligned>) + Send + 'static,
    ) {
        let pieces = smallvec![Piece { start: bytes.as_ptr().cast_mut(), len: bytes.len() }];
        let owner: Done = Box::new(move |result| done(result.map(|()| bytes)));
        // SAFETY: `owner` owns the bytes.
        unsafe { self.start(file, Action::Read, block, pieces, owner) }
    }

    /// Starts a sync.
    pub fn sync(self: &Arc<Self>, file: FileId, done: Done) {
        // SAFETY: there is no memory.
        unsafe { self.start(file, Action::Sync, 0, SmallVec::new(), done) }
    }

    /// Waits for what a callback sends, unless the tier gives up.
    pub fn wait<T>(&self, from: &Receiver<io::Result<T>>) -> io::Result<T> {
        loop {
            match from.recv_timeout(LOOK) {
                Ok(result) => return result,
                Err(RecvTimeoutError::Timeout) if !self.given_up.load(Ordering::Acquire) => {}
                Err(RecvTimeoutError::Timeout) => return Err(io::Error::other("the tier is offline")),
                Err(RecvTimeoutError::Disconnected) => return Err(io::Error::other("the operation was dropped")),
            }
        }
    }

    /// Writes and waits.
    pub fn write_now(self: &Arc<Self>, file: FileId, block: u32, bytes: &[u8]) -> io::Result<()> {
        let (send, receive) = channel();
        self.write(file, block, Aligned::copy_of(bytes), Box::new(move |result| drop(send.send(result))));
        self.wait(&receive)
    }

    /// Reads so many blocks and waits. The caller has checked that the file has them.
    pub fn read_now(self: &Arc<Self>, file: FileId, block: u32, blocks: u32) -> io::Result<Aligned> {
        let (send, receive) = channel();
        let bytes = Aligned::new(blocks as usize * BLOCK);
        self.read(file, block, bytes, move |result| drop(send.send(result)));
        self.wait(&receive)
    }

    /// Reads one block and waits.
    pub fn read_block(self: &Arc<Self>, file: FileId, block: u32) -> io::Result<[u8; BLOCK]> {
        let bytes = self.read_now(file, block, 1)?;
        Ok(bytes[..BLOCK].try_into().expect("a block"))
    }

    /// Syncs and waits.
    pub fn sync_now(self: &Arc<Self>, file: FileId) -> io::Result<()> {
        let (send, receive) = channel();
        self.sync(file, Box::new(move |result| drop(send.send(result))));
        self.wait(&receive)
    }
}
