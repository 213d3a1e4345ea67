//! Why the store refuses.

use std::fmt::Display;

/// Errors of [`super::Store`]. Nothing was changed, and a file that is refused is left as it is.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ShmError {
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
    /// The system refused.
    #[error("{path}: cannot {action}: {message}")]
    Io {
        /// The file.
        path: String,
        /// What was tried.
        action: &'static str,
        /// The system's words, and what to do where that is known.
        message: String,
    },
    /// Another process has the file.
    #[error(
        "{path} is in use by another process (the last to attach was process {pid}); stop it, or give this node a file of its own"
    )]
    InUse {
        /// The file.
        path: String,
        /// Process id in the superblock; 0 where it cannot be read.
        pid: u64,
    },
    /// Not a file of this store, one of another version or configuration, or a damaged one.
    #[error("{path}: {reason}; {remedy}")]
    Refused {
        /// The file.
        path: String,
        /// What does not fit.
        reason: String,
        /// What to do.
        remedy: String,
    },
    /// The structures contradict each other; a bug in this crate.
    #[error("integrity: {0}")]
    Integrity(String),
}

impl ShmError {
    /// A [`ShmError::Invalid`].
    pub fn invalid(what: &'static str, value: impl Display, allowed: impl Display) -> Self {
        ShmError::Invalid { what, value: value.to_string(), allowed: allowed.to_string() }
    }
}
