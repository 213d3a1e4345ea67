//! What a tier is opened with.

use std::time::Duration;

/// Limits of a tier, and where its names begin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteConfig {
    /// What all names begin with, without a slash at either end; may be empty.
    pub prefix: String,
    /// The node's name, the next step of all names.
    pub node: String,
    /// Longest time of one call. A read has it for the whole value.
    pub timeout: Duration,
    /// How often a write or a delete is tried again. A read is not: its caller computes meanwhile.
    pub retries: u32,
    /// Bytes of values that wait to be written or are being written. One value may always wait.
    pub queue_bytes: u64,
    /// Values written at the same time.
    pub uploads: usize,
    /// Reads at the same time; more wait, within their time.
    pub reads: usize,
    /// How long a name that was not there is taken to be absent.
    pub remember_absent: Duration,
}

impl RemoteConfig {
    /// 10 seconds, 2 retries, a queue of 256 MiB, 4 writes and 64 reads at a time, a minute of memory for misses.
    pub fn new(prefix: impl Into<String>, node: impl Into<String>) -> RemoteConfig {
        RemoteConfig {
            prefix: prefix.into(),
            node: node.into(),
            timeout: Duration::from_secs(10),
            retries: 2,
            queue_bytes: 256 << 20,
            uploads: 4,
            reads: 64,
            remember_absent: Duration::from_secs(60),
        }
    }

    /// After this nothing that a call has begun takes effect any more, as far as the tier assumes.
    pub(super) fn settled_after(&self) -> Duration {
        self.timeout * 3
    }
}
