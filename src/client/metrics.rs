//! Everything a client counts.

use super::types::{Got, Miss, Stored};
use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[doc = $doc:literal])* $name:ident,)*) => {
        /// Counters of one client, from 0 on. All are totals but `queue_bytes`, which is a state.
        #[derive(Debug, Default)]
        pub struct Metrics {
            $($(#[doc = $doc])* pub $name: AtomicU64,)*
        }

        impl Metrics {
            /// Names and values of now.
            pub fn snapshot(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name.load(Ordering::Relaxed)),)*]
            }
        }
    };
}

counters! {
    /// Objects asked for by get.
    get_objects,
    /// Of those, hits.
    get_hits,
    /// Bytes of the hits.
    get_bytes,
    /// Hits by the same-host path.
    fast_hits,
    /// Values that changed while they were copied over the same-host path, and were asked for over gRPC.
    fast_moved,
    /// Misses: the node has no such object.
    miss_absent,
    /// Misses: bytes did not match their CRC.
    miss_damaged,
    /// Misses: no answer within the deadline.
    miss_late,
    /// Misses: no connection, or it broke.
    miss_unreachable,
    /// Misses: the breaker is open.
    miss_refused,
    /// Misses: the node has too much to do.
    miss_overloaded,
    /// Misses: a fresh node is not asked for everything.
    miss_ramp,
    /// Misses: there is no node.
    miss_no_node,
    /// Misses: there was no memory here for the bytes.
    miss_no_memory,
    /// Values longer than their destination.
    too_long,
    /// Objects whose request a node refused.
    get_failed,
    /// Objects found at the previous owner of their bucket.
    previous_hits,
    /// Keys asked for by exists.
    exists_keys,
    /// Keys of which the nodes have something.
    exists_found,
    /// Objects offered by put.
    put_objects,
    /// Of those, stored.
    put_stored,
    /// Bytes of values stored.
    put_bytes,
    /// Offered and present already: no bytes were sent.
    put_present,
    /// Another writer was at it.
    put_busy,
    /// The node had no room.
    put_no_room,
    /// Bytes changed on the way.
    put_corrupt,
    /// Not sent, or not known to be stored.
    put_dropped,
    /// Objects whose request a node refused.
    put_failed,
    /// Bytes that wait in the queue of later puts.
    queue_bytes,
    /// Objects that found no room in the queue.
    queue_full,
    /// Objects that waited in the queue for too long.
    queue_late,
    /// Calls to nodes.
    calls,
    /// Calls made a second time on another connection.
    repeats,
    /// Answers against the protocol.
    breaches,
    /// Connections opened.
    connects,
    /// Connections that could not be opened.
    connect_failures,
    /// Breakers opened.
    breaker_opened,
    /// Probes of nodes that had failed.
    probes,
    /// Fresh, empty nodes found.
    ramps,
    /// Damaged values reported to their nodes.
    damage_reports,
    /// Changes of membership.
    membership_changes,
}

impl Metrics {
    /// Adds to a counter.
    pub(super) fn add(counter: &AtomicU64, n: u64) {
        counter.fetch_add(n, Ordering::Relaxed);
    }

    pub(super) fn got(&self, got: &Got) {
        match got {
            Got::Hit { length, .. } => {
                Self::add(&self.get_hits, 1);
                Self::add(&self.get_bytes, *length);
            }
            Got::Miss(miss) => Self::add(self.miss(*miss), 1),
            Got::TooLong { .. } => Self::add(&self.too_long, 1),
            Got::Failed(_) => Self::add(&self.get_failed, 1),
        }
    }

    pub(super) fn stored(&self, stored: &Stored, length: u64) {
        match stored {
            Stored::Stored => {
                Self::add(&self.put_stored, 1);
                Self::add(&self.put_bytes, length);
            }
            Stored::Present => Self::add(&self.put_present, 1),
            Stored::Busy => Self::add(&self.put_busy, 1),
            Stored::NoRoom => Self::add(&self.put_no_room, 1),
            Stored::Corrupt => Self::add(&self.put_corrupt, 1),
            Stored::Dropped(_) => Self::add(&self.put_dropped, 1),
            Stored::Failed(_) => Self::add(&self.put_failed, 1),
        }
    }

    fn miss(&self, miss: Miss) -> &AtomicU64 {
        match miss {
            Miss::Absent => &self.miss_absent,
            Miss::Damaged => &self.miss_damaged,
            Miss::Late => &self.miss_late,
            Miss::Unreachable => &self.miss_unreachable,
            Miss::Refused => &self.miss_refused,
            Miss::Overloaded => &self.miss_overloaded,
            Miss::Ramp => &self.miss_ramp,
            Miss::NoNode => &self.miss_no_node,
            Miss::NoMemory => &self.miss_no_memory,
        }
    }
}
