//! io_uring: one thread that submits, waits and calls back.
//!
//! The thread sleeps inside the kernel until an operation completes or another thread rings: a read of an eventfd is always
//! in flight. No polling, so an idle tier costs nothing. Once an operation is in the submission queue its memory belongs to
//! the kernel until the completion is here, whatever the submitting call said.

use super::device::{Action, Op, Step};
use super::real::Engine;
use io_uring::{IoUring, Probe, opcode, squeue, types};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Entries of the submission queue.
const ENTRIES: u32 = 256;
/// Operations in flight; one entry is for the bell.
const MOST: usize = ENTRIES as usize - 1;
/// Names the read of the eventfd.
const BELL: u64 = u64::MAX;
/// Wait when the kernel is short of memory and nothing of ours is in flight.
const SHORTAGE: Duration = Duration::from_millis(2);

#[derive(Default)]
struct Queue {
    ops: VecDeque<(Op, Arc<File>)>,
    stop: bool,
    broken: Option<String>,
}

struct Line {
    queue: Mutex<Queue>,
    bell: File,
}

/// The ring and its thread, which ends when this is dropped and all operations have completed.
pub struct Ring {
    line: Arc<Line>,
    thread: Option<JoinHandle<()>>,
}

impl Ring {
    /// Sets up a ring, or says why the kernel refuses.
    pub fn new() -> io::Result<Ring> {
        let ring = IoUring::new(ENTRIES)?;
        let mut probe = Probe::new();
        ring.submitter().register_probe(&mut probe)?;
        let needed = [opcode::Readv::CODE, opcode::Writev::CODE, opcode::Fsync::CODE, opcode::Read::CODE];
        if needed.iter().any(|&code| !probe.is_supported(code)) {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "the kernel's io_uring lacks an operation"));
        }
        // SAFETY: a plain call.
        let bell = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        if bell < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a new descriptor that nobody else has.
        let bell = unsafe { File::from_raw_fd(bell) };
        let line = Arc::new(Line { queue: Mutex::default(), bell });
        let served = line.clone();
        let thread =
            std::thread::Builder::new().name("disk-ring".into()).spawn(move || Server::new(ring, &served).run())?;
        Ok(Ring { line, thread: Some(thread) })
    }
}

impl Line {
    fn ring(&self) {
        // It fails only when the counter is full, and then the thread is awake.
        let _ = (&self.bell).write(&1u64.to_ne_bytes());
    }
}

impl Engine for Ring {
    fn name(&self) -> &'static str {
        "io_uring"
    }

    fn start(&self, op: Op, file: Arc<File>) {
        let mut queue = self.line.queue.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(why) = queue.broken.clone() {
            drop(queue);
            return op.fail(io::Error::other(why));
        }
        queue.ops.push_back((op, file));
        drop(queue);
        self.line.ring();
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        self.line.queue.lock().unwrap_or_else(PoisonError::into_inner).stop = true;
        self.line.ring();
        if let Some(thread) = self.thread.take()
            // The last reference to the tier may go with a callback, on this thread.
            && thread.thread().id() != std::thread::current().id()
        {
            let _ = thread.join();
        }
    }
}

/// An operation that the kernel has. Boxed, since the kernel reads its pieces.
type Flying = Box<(Op, Arc<File>)>;

struct Server<'a> {
    ring: IoUring,
    line: &'a Line,
    waiting: VecDeque<Flying>,
    flying: Vec<Option<Flying>>,
    free: Vec<usize>,
    bell_value: Box<[u8; 8]>,
    listening: bool,
}

impl<'a> Server<'a> {
    fn new(ring: IoUring, line: &'a Line) -> Self {
        Server {
            ring,
            line,
            waiting: VecDeque::new(),
            flying: (0..MOST).map(|_| None).collect(),
            free: (0..MOST).rev().collect(),
            bell_value: Box::default(),
            listening: false,
        }
    }

    fn run(mut self) {
        loop {
            let stop = {
                let mut queue = self.line.queue.lock().unwrap_or_else(PoisonError::into_inner);
                self.waiting.extend(queue.ops.drain(..).map(Box::new));
                queue.stop
            };
            while let Some(slot) = (!self.waiting.is_empty()).then(|| self.free.pop()).flatten() {
                if let Some(op) = self.waiting.pop_front() {
                    self.submit(slot, op);
                }
            }
            let idle = self.waiting.is_empty() && self.free.len() == MOST;
            if stop && idle {
                break;
            }
            self.listen();
            if let Err(e) = self.ring.submit_and_wait(1) {
                match e.raw_os_error() {
                    Some(libc::EINTR) => {}
                    // Completions make room.
                    Some(libc::EAGAIN | libc::EBUSY) => std::thread::sleep(SHORTAGE),
                    _ => return self.give_up(&e),
                }
            }
            self.complete();
        }
        if self.listening {
            // The kernel may still write to it; eight bytes.
            std::mem::forget(std::mem::take(&mut self.bell_value));
        }
    }

    /// Keeps a read of the eventfd in flight.
    fn listen(&mut self) {
        if self.listening {
            return;
        }
        let to = self.bell_value.as_mut_ptr();
        let entry = opcode::Read::new(types::Fd(self.line.bell.as_raw_fd()), to, 8).build().user_data(BELL);
        // SAFETY: the eight bytes stay until the read completes, or for ever.
        self.listening = unsafe { self.ring.submission().push(&entry) }.is_ok();
    }

    fn submit(&mut self, slot: usize, op: Flying) {
        let entry = entry_of(&op).user_data(slot as u64);
        self.flying[slot] = Some(op);
        // SAFETY: the operation is in `flying` until it completes, and owns its memory and its file.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        if pushed.is_err() {
            // The queue was not emptied by the last call; the kernel has not seen this one.
            self.free.push(slot);
            if let Some(op) = self.flying[slot].take() {
                self.waiting.push_front(op);
            }
        }
    }

    fn complete(&mut self) {
        let ended: Vec<(u64, i32)> = self.ring.completion().map(|c| (c.user_data(), c.result())).collect();
        for (name, result) in ended {
            if name == BELL {
                self.listening = false;
                continue;
            }
            let slot = name as usize;
            let Some(mut flying) = self.flying.get_mut(slot).and_then(Option::take) else { continue };
            self.free.push(slot);
            let result = if result < 0 { Err(io::Error::from_raw_os_error(-result)) } else { Ok(result as usize) };
            match flying.0.advance(result) {
                Step::Again => self.waiting.push_front(flying),
                Step::Finished => {
                    let (op, file) = *flying;
                    drop(file);
                    op.finish();
                }
            }
        }
    }

    /// The ring does not work any more. What the kernel has keeps its memory for ever; the rest fails.
    fn give_up(mut self, error: &io::Error) {
        let why = format!("io_uring failed: {error}");
        let ops = {
            let mut queue = self.line.queue.lock().unwrap_or_else(PoisonError::into_inner);
            queue.broken = Some(why.clone());
            std::mem::take(&mut queue.ops)
        };
        let waiting = self.waiting.drain(..).map(|op| op.0);
        for op in waiting.chain(ops.into_iter().map(|(op, _)| op)).collect::<Vec<_>>() {
            op.fail(io::Error::other(why.clone()));
        }
        std::mem::forget(std::mem::take(&mut self.flying));
        std::mem::forget(std::mem::take(&mut self.bell_value));
    }
}

fn entry_of(flying: &Flying) -> squeue::Entry {
    let (op, file) = &**flying;
    let (descriptor, pieces) = (types::Fd(file.as_raw_fd()), op.pieces());
    let (list, count) = (pieces.as_ptr().cast::<libc::iovec>(), pieces.len() as u32);
    match op.action {
        Action::Read => opcode::Readv::new(descriptor, list, count).offset(op.at()).build(),
        Action::Write => opcode::Writev::new(descriptor, list, count).offset(op.at()).build(),
        Action::Sync => opcode::Fsync::new(descriptor).flags(types::FsyncFlags::DATASYNC).build(),
    }
}
