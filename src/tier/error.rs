//! Typed errors of the host tier's memory and copies. A refused call has copied nothing.

use std::fmt::Display;

/// Why memory was not given, or a job not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TierError {
    /// A value outside what is allowed.
    #[error("{what} is {value}, allowed is {allowed}")]
    Invalid {
        /// Which argument.
        what: &'static str,
        /// The value that was given.
        value: String,
        /// What is allowed.
        allowed: String,
    },
    /// The host region's memory cannot be had.
    #[error("the host region of {bytes} bytes cannot be had: {reason}; use fewer pages, or make room")]
    Memory {
        /// Bytes of the region.
        bytes: u64,
        /// Who has too little, or the system's words.
        reason: String,
    },
    /// Back-pressure: as much is in flight as is allowed. Nothing was queued; wait for a job and try again.
    #[error("the copier is busy: {in_flight} {what} in flight and {asked} more asked for, allowed are {limit}")]
    Busy {
        /// "jobs" or "bytes".
        what: &'static str,
        /// What is in flight.
        in_flight: u64,
        /// What the refused job would add.
        asked: u64,
        /// The limit.
        limit: u64,
    },
    /// The copier was closed, or belongs to the parent process.
    #[error("the copier {0}; allowed is one that is open, in the process that made it")]
    Closed(&'static str),
    /// The system gave no thread.
    #[error("cannot start copy thread {number}: {message}")]
    Thread {
        /// Which of them, from 1.
        number: usize,
        /// The system's words.
        message: String,
    },
    /// CUDA is not there, or refused.
    #[error("cannot register the host region with CUDA: {0}")]
    Cuda(String),
}

impl TierError {
    /// A [`TierError::Invalid`].
    pub fn invalid(what: &'static str, value: impl Display, allowed: impl Display) -> Self {
        TierError::Invalid { what, value: value.to_string(), allowed: allowed.to_string() }
    }
}
