//! Threads of Python that wait for calls of the GCache client: signals reach them, and `close` waits for them.

use crate::client::Client;
use pyo3::prelude::*;
use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

/// How long [`end`] sleeps before it looks again whether calls are under way.
const STEP: Duration = Duration::from_millis(2);

thread_local! {
    /// What a signal handler raised while this thread waited for a call.
    static RAISED: Cell<Option<PyErr>> = const { Cell::new(None) };
    /// Calls of this thread under way: more than one where a signal handler makes another.
    static RUNNING: Cell<usize> = const { Cell::new(0) };
}

/// Counts a call of this thread.
pub(super) struct Running;

impl Running {
    pub(super) fn new() -> Running {
        RUNNING.set(RUNNING.get() + 1);
        Running
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        RUNNING.set(RUNNING.get() - 1);
    }
}

/// Runs the handlers of signals that have come, and keeps what they raise. Only the main thread has any.
pub(super) fn interrupted() -> bool {
    match Python::attach(|py| py.check_signals()) {
        Ok(()) => false,
        Err(raised) => {
            RAISED.set(Some(raised));
            true
        }
    }
}

/// What [`interrupted`] kept.
pub(super) fn raised() -> Option<PyErr> {
    RAISED.take()
}

/// Waits for the calls under way on a client that nobody can call any more, and ends it.
///
/// # Errors
/// What a signal handler raises meanwhile; the client ends with its last call then.
pub(super) fn end(py: Python<'_>, mut client: Arc<Client>) -> PyResult<()> {
    // A signal handler would wait for the call that it interrupts, and a forked child for threads that it does not have.
    if RUNNING.get() > 0 || !client.is_of_this_process() {
        py.detach(|| drop(client));
        return Ok(());
    }
    loop {
        let rest = py.detach(|| match Arc::try_unwrap(client) {
            Ok(last) => {
                drop(last);
                None
            }
            Err(used) => {
                std::thread::sleep(STEP);
                Some(used)
            }
        });
        match rest {
            None => return Ok(()),
            Some(used) => client = used,
        }
        py.check_signals()?;
    }
}
