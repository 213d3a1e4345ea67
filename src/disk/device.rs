//! The tiny trait that I/O goes through, and the operation that all backends share.
//!
//! A directory's files are named by [`FileId`]. [`Device::submit`] never blocks and calls the operation back exactly once;
//! everything else is rare and blocks. No lock of the tier is held during any of these calls, since a backend may call
//! back before `submit` returns.

use smallvec::SmallVec;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// An open file of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId(pub u32);

/// What an operation does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Fills the pieces from the file.
    Read,
    /// Writes the pieces to the file.
    Write,
    /// Makes all completed writes of the file survive power loss.
    Sync,
}

/// Memory of an operation, in the form the system takes.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Piece {
    /// First byte.
    pub start: *mut u8,
    /// Bytes.
    pub len: usize,
}

/// Called once with the outcome; owns the memory of the pieces.
pub type Done = Box<dyn FnOnce(io::Result<()>) + Send>;

/// What a backend does after a step.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// Do the rest.
    Again,
    /// Call [`Op::finish`].
    Finished,
}

/// Most pieces of one operation.
pub const MAX_PIECES: usize = 256;

/// An operation. Its callback owns the memory, so dropping an operation that the system may still carry out is wrong.
pub struct Op {
    /// Which file.
    pub file: FileId,
    /// What to do.
    pub action: Action,
    at: u64,
    pieces: SmallVec<[Piece; 2]>,
    first: usize,
    failure: Option<io::Error>,
    done: Option<Done>,
}

// SAFETY: the pieces point into memory that `done` owns, which is `Send`.
unsafe impl Send for Op {}

impl Op {
    /// An operation on the bytes at `at`.
    ///
    /// # Safety
    /// The pieces stay valid until `done` was called or dropped, and nobody touches them before that: `done` owns them.
    pub unsafe fn new(file: FileId, action: Action, at: u64, pieces: SmallVec<[Piece; 2]>, done: Done) -> Op {
        debug_assert!(pieces.len() <= MAX_PIECES);
        Op { file, action, at, pieces, first: 0, failure: None, done: Some(done) }
    }

    /// An operation without memory: a sync.
    pub fn sync(file: FileId, done: Done) -> Op {
        Op { file, action: Action::Sync, at: 0, pieces: SmallVec::new(), first: 0, failure: None, done: Some(done) }
    }

    /// Where the rest starts.
    pub fn at(&self) -> u64 {
        self.at
    }

    /// The memory of the rest.
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces[self.first..]
    }

    /// Bytes of the rest.
    pub fn remaining(&self) -> usize {
        self.pieces().iter().map(|p| p.len).sum()
    }

    /// Takes note of what the system did: a short read or write leaves a rest, an interrupted one all of it.
    pub fn advance(&mut self, result: io::Result<usize>) -> Step {
        let mut moved = match result {
            Ok(moved) => moved.min(self.remaining()),
            Err(e) if matches!(e.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock) => return Step::Again,
            Err(e) => {
                self.failure = Some(e);
                return Step::Finished;
            }
        };
        if self.action == Action::Sync {
            return Step::Finished;
        }
        if moved == 0 && self.remaining() > 0 {
            self.failure = Some(match self.action {
                Action::Write => io::Error::new(io::ErrorKind::WriteZero, "the device takes no more bytes"),
                _ => io::Error::new(io::ErrorKind::UnexpectedEof, "the file is shorter than it was"),
            });
            return Step::Finished;
        }
        self.at += moved as u64;
        while let Some(piece) = self.pieces.get_mut(self.first) {
            let part = piece.len.min(moved);
            // SAFETY: `part` is at most the piece's length.
            piece.start = unsafe { piece.start.add(part) };
            piece.len -= part;
            moved -= part;
            if piece.len > 0 {
                break;
            }
            self.first += 1;
        }
        if self.remaining() > 0 { Step::Again } else { Step::Finished }
    }

    /// Calls back; the system no longer refers to the memory.
    pub fn finish(mut self) {
        let outcome = self.failure.take().map_or(Ok(()), Err);
        if let Some(done) = self.done.take() {
            // A callback that panics must not end the thread that has the memory of other operations in flight. The panic
            // was reported by its hook; a lock that it held is poisoned, which whoever takes it next is told.
            let _ = catch_unwind(AssertUnwindSafe(|| done(outcome)));
        }
    }

    /// Calls back with an error, before the system was told or after it has finished.
    pub fn fail(mut self, error: io::Error) {
        self.failure = Some(error);
        self.finish();
    }
}

/// A directory on a device.
pub trait Device: Send + Sync {
    /// For reports: `io_uring`, `threads` or `memory`.
    fn name(&self) -> &'static str;
    /// Whether files are read and written without the page cache.
    fn direct(&self) -> bool;
    /// Path of the directory, for messages.
    fn path(&self) -> String;
    /// Names and lengths of all files, and of what else is there with length 0.
    fn list(&self) -> io::Result<Vec<(String, u64)>>;
    /// Opens a file.
    fn open(&self, name: &str) -> io::Result<FileId>;
    /// Makes and opens a file of zeros whose space is taken; nothing is left of it when that fails. Its name survives
    /// power loss when this returns.
    fn create(&self, name: &str, len: u64) -> io::Result<FileId>;
    /// Closes a file; operations in flight complete.
    fn close(&self, file: FileId);
    /// Renames a file; survives power loss when it returns.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file; an open one can be used on.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// A whole small file; fails beyond `most` bytes.
    fn read_file(&self, name: &str, most: usize) -> io::Result<Vec<u8>>;
    /// Writes a whole small file at once: a crash leaves the old one or the new one. Survives power loss when it returns.
    fn replace_file(&self, name: &str, bytes: &[u8]) -> io::Result<()>;
    /// Fails when the directory is gone.
    fn alive(&self) -> io::Result<()>;
    /// Starts an operation.
    fn submit(&self, op: Op);
}
