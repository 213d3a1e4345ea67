//! What a tier is opened with.

use std::time::Duration;

/// Limits of a tier, and where its names begin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteConfig {
    /// What all names begin with, without a slash at either end; may be empty.
    pub prefix: String,
    /// The node's name, the next step of all names.
    pub node: String,
    /// Longest time of one write, or of one part of a listing.
    pub timeout: Duration,
    /// Longest time of one delete, all tries included, and of one read, waits for others' and all bytes of the value included. Below the deadlines of those
    /// who ask, or a store that hangs makes them take the node for one that does.
    pub read_timeout: Duration,
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
    /// Keys of which it is remembered that the store has them; 16 bytes each.
    pub keys: usize,
}

impl RemoteConfig {
    /// 10 seconds, half a second for a read or a delete, 2 retries, a queue of 256 MiB, 4 writes and 64 reads at a time, a minute of memory
    /// for misses, 1 Mi keys.
    pub fn new(prefix: impl Into<String>, node: impl Into<String>) -> RemoteConfig {
        RemoteConfig {
            prefix: prefix.into(),
            node: node.into(),
            timeout: Duration::from_secs(10),
            read_timeout: Duration::from_millis(500),
            retries: 2,
            queue_bytes: 256 << 20,
            uploads: 4,
            reads: 64,
            remember_absent: Duration::from_secs(60),
            keys: 1 << 20,
        }
    }

    /// After this nothing that a call has begun takes effect any more, as far as the tier assumes.
    pub(super) fn settled_after(&self) -> Duration {
        self.timeout * 3
    }
}
