//! Counts and sizes of a tier.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What has happened since the tier was opened.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct RemoteTotals {
            $($(#[$doc])* pub $name: u64,)*
        }

        /// The same, being counted.
        #[derive(Debug, Default)]
        pub(super) struct Counters {
            $(pub(super) $name: AtomicU64,)*
        }

        impl Counters {
            /// As numbers.
            pub(super) fn totals(&self) -> RemoteTotals {
                RemoteTotals { $($name: self.$name.load(Ordering::Relaxed),)* }
            }
        }
    };
}

counters! {
    /// Values that the store has taken.
    stored,
    /// Bytes of their objects.
    stored_bytes,
    /// Values that the store had already, as it or the tier's memory says.
    present,
    /// Values that were not offered further because the queue was full.
    dropped,
    /// Values that were dropped after their last try.
    failed,
    /// Tries of a write or a delete after the first.
    retries,
    /// Reads that gave a verified value, from the store or from the queue.
    hits,
    /// Of those, reads from the queue.
    queue_hits,
    /// Bytes of values read.
    hit_bytes,
    /// Bytes of objects that came from the store.
    read_bytes,
    /// Reads that the store answered with nothing.
    misses,
    /// Reads that were not begun because the name was absent a moment ago.
    known_misses,
    /// Reads that were not begun because the tier rested.
    rested,
    /// Reads that failed.
    read_errors,
    /// Objects that failed a check.
    damaged,
    /// Objects that a program of another version has written.
    other_version,
    /// Deletes that the store has confirmed.
    deleted,
    /// Deletes that it has not.
    delete_errors,
}

impl Counters {
    /// Adds to a counter.
    pub(super) fn add(counter: &AtomicU64, n: u64) {
        counter.fetch_add(n, Ordering::Relaxed);
    }
}

/// What is there now, and the totals.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RemoteStats {
    /// Most bytes of the queue.
    pub queue_capacity_bytes: u64,
    /// Bytes of values that wait to be written or are being written.
    pub queue_bytes: u64,
    /// Those values.
    pub queued: u64,
    /// Reads that run.
    pub reads: u64,
    /// Keys of which it is known that the store has parts.
    pub keys: u64,
    /// Why the store was not reached lately; empty while it is.
    pub trouble: String,
    /// What has happened.
    pub totals: RemoteTotals,
}
