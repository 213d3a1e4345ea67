//! Threads that call `preadv`, `pwritev` and `fdatasync`, for kernels that refuse io_uring.

use super::device::{Action, Op, Step};
use super::real::Engine;
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

/// Operations at the same time.
const THREADS: usize = 8;

#[derive(Default)]
struct Queue {
    ops: VecDeque<(Op, Arc<File>)>,
    stop: bool,
}

type Line = (Mutex<Queue>, Condvar);

/// The threads; they end when this is dropped and the queue is empty.
pub struct Pool {
    line: Arc<Line>,
    threads: Vec<JoinHandle<()>>,
}

impl Pool {
    /// Starts the threads.
    pub fn new() -> io::Result<Pool> {
        let mut pool = Pool { line: Arc::default(), threads: Vec::new() };
        for n in 0..THREADS {
            let line = pool.line.clone();
            pool.threads.push(std::thread::Builder::new().name(format!("disk-io-{n}")).spawn(move || serve(&line))?);
        }
        Ok(pool)
    }
}

impl Engine for Pool {
    fn name(&self) -> &'static str {
        "threads"
    }

    fn start(&self, op: Op, file: Arc<File>) {
        self.line.0.lock().unwrap_or_else(PoisonError::into_inner).ops.push_back((op, file));
        self.line.1.notify_one();
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.line.0.lock().unwrap_or_else(PoisonError::into_inner).stop = true;
        self.line.1.notify_all();
        for thread in self.threads.drain(..) {
            // The last reference to the tier may go with a callback, on one of these threads.
            if thread.thread().id() != std::thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}

fn serve(line: &Line) {
    loop {
        let queue = line.0.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = line.1.wait_while(queue, |q| q.ops.is_empty() && !q.stop);
        let next = waited.unwrap_or_else(PoisonError::into_inner).ops.pop_front();
        let Some((mut op, file)) = next else { return };
        while op.advance(carry_out(&op, &file)) == Step::Again {}
        drop(file);
        op.finish();
    }
}

/// One system call.
fn carry_out(op: &Op, file: &File) -> io::Result<usize> {
    let (descriptor, pieces) = (file.as_raw_fd(), op.pieces());
    let (list, count) = (pieces.as_ptr().cast::<libc::iovec>(), pieces.len() as libc::c_int);
    // SAFETY: a piece is laid out as an iovec, and the operation owns the memory.
    let result = unsafe {
        match op.action {
            Action::Read => libc::preadv(descriptor, list, count, op.at() as libc::off_t),
            Action::Write => libc::pwritev(descriptor, list, count, op.at() as libc::off_t),
            Action::Sync => libc::fdatasync(descriptor) as isize,
        }
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as usize) }
}
