//! Why the tier refuses, and what has become of it.

use std::fmt::Display;
use std::io;

/// Errors of [`super::Disk`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DiskError {
    /// A value outside what is allowed. Nothing was changed.
    #[error("{what} is {value}, allowed is {allowed}")]
    Invalid {
        /// Which argument.
        what: &'static str,
        /// The value that was given.
        value: String,
        /// What is allowed.
        allowed: String,
    },
    /// The system refused.
    #[error("{path}: cannot {action}: {message}")]
    Io {
        /// The file or directory.
        path: String,
        /// What was tried.
        action: &'static str,
        /// The system's words.
        message: String,
        /// The system's error number, where there is one.
        code: Option<i32>,
    },
    /// Another process has the directory.
    #[error("{path} is in use by another process; stop it, or give this node a directory of its own")]
    InUse {
        /// The directory.
        path: String,
    },
    /// Not a directory of this tier, one of another version or configuration, or a damaged one.
    #[error("{path}: {reason}; {remedy}")]
    Refused {
        /// The directory.
        path: String,
        /// What does not fit.
        reason: String,
        /// What to do.
        remedy: String,
    },
    /// The bytes on disk do not match their checksums; the object was dropped.
    #[error("the object's bytes on disk are damaged; it was dropped")]
    Damaged,
    /// There is no such object, or it went while it was read.
    #[error("no such object")]
    Missing,
    /// As many reads are in flight as configured; try again later.
    #[error("{most} reads are in flight, which is the limit")]
    Busy {
        /// The limit.
        most: usize,
    },
    /// The target of a read is too small, or the callback gave none.
    #[error("the buffer has {capacity} bytes and the value takes {needed}")]
    TooSmall {
        /// What it has.
        capacity: u64,
        /// What is needed.
        needed: u64,
    },
    /// The tier takes nothing new; what it has can be read.
    #[error("the disk tier is read-only: {0}")]
    ReadOnly(String),
    /// The tier does nothing any more.
    #[error("the disk tier is offline: {0}")]
    Offline(String),
    /// The structures contradict each other; a bug in this crate.
    #[error("integrity: {0}")]
    Integrity(String),
}

impl DiskError {
    /// A [`DiskError::Invalid`].
    pub fn invalid(what: &'static str, value: impl Display, allowed: impl Display) -> Self {
        DiskError::Invalid { what, value: value.to_string(), allowed: allowed.to_string() }
    }

    /// A [`DiskError::Io`].
    pub fn io(path: impl Display, action: &'static str, error: &io::Error) -> Self {
        DiskError::Io { path: path.to_string(), action, message: error.to_string(), code: error.raw_os_error() }
    }

    /// A [`DiskError::Refused`].
    pub fn refused(path: impl Display, reason: impl Display, remedy: impl Display) -> Self {
        DiskError::Refused { path: path.to_string(), reason: reason.to_string(), remedy: remedy.to_string() }
    }
}

/// What the tier can do. It changes in one direction only; opening the directory anew begins again.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum State {
    /// Everything.
    #[default]
    Serving,
    /// A write failed: reads go on, nothing is written. Says why.
    ReadOnly(String),
    /// The device hangs, is gone, or fails reads again and again: every call answers at once. Says why.
    Offline(String),
}

impl State {
    /// The error of a call that writes.
    pub(super) fn writable(&self) -> Result<(), DiskError> {
        match self {
            State::ReadOnly(why) => Err(DiskError::ReadOnly(why.clone())),
            _ => self.readable(),
        }
    }

    /// The error of a call that reads.
    pub(super) fn readable(&self) -> Result<(), DiskError> {
        match self {
            State::Offline(why) => Err(DiskError::Offline(why.clone())),
            _ => Ok(()),
        }
    }
}
