//! Settings of a client.

use super::breaker::BreakerConfig;
use super::ramp::RampConfig;
use crate::error::{Error, Result};
use crate::ring::{DEFAULT_BUCKETS, MAX_BUCKETS};
use std::time::Duration;

/// Settings of a client.
#[derive(Debug, Clone)]
pub struct ClientConfig {
    /// Whose objects: what is put belongs to it, and nothing else is seen. 0 for none.
    pub tenant: u64,
    /// Buckets of the placement table, a power of two; the same for all clients of a cluster.
    pub buckets: u32,
    /// Token for the nodes, where they ask for one.
    pub token: Option<String>,
    /// Name for the nodes' logs.
    pub name: String,
    /// Deadline of a call that gives none.
    pub deadline: Duration,
    /// A node that was given this long, plus the bytes asked for at `fair_rate`, and has not answered, is at fault; one that
    /// was given less is not.
    pub fair_time: Duration,
    /// Bytes in a second that a sound node can be expected to deliver.
    pub fair_rate: u64,
    /// After a change of membership the owners before it are asked for so long for what the present ones lack.
    pub previous_owner: Duration,
    /// Most connections to one node.
    pub connections: usize,
    /// A connection attempt, and a probe of a node that failed, ends after so long.
    pub connect_deadline: Duration,
    /// Most bytes of values in one call to a node.
    pub slice_bytes: u64,
    /// Most objects in one call to a node; the node's own limit counts too.
    pub slice_objects: usize,
    /// Most bytes that wait in the queue of [`super::Client::put_later`].
    pub queue_bytes: usize,
    /// What waits in the queue for longer than this is dropped.
    pub queue_deadline: Duration,
    /// Threads of the client's runtime, and the most that copy a large batch over the same-host path.
    pub threads: usize,
    /// Whether to use the same-host path of a node on this machine.
    pub fast_path: bool,
    /// See [`BreakerConfig`].
    pub breaker: BreakerConfig,
    /// See [`RampConfig`].
    pub ramp: RampConfig,
}

impl Default for ClientConfig {
    fn default() -> Self {
        ClientConfig {
            tenant: 0,
            buckets: DEFAULT_BUCKETS,
            token: None,
            name: concat!("mimo_cache ", env!("CARGO_PKG_VERSION"), " (Rust)").to_string(),
            deadline: Duration::from_secs(1),
            fair_time: Duration::from_millis(20),
            fair_rate: 200_000_000,
            previous_owner: Duration::from_secs(600),
            connections: 2,
            connect_deadline: Duration::from_millis(500),
            slice_bytes: 64 << 20,
            slice_objects: 1024,
            queue_bytes: 256 << 20,
            queue_deadline: Duration::from_secs(5),
            threads: 2,
            fast_path: true,
            breaker: BreakerConfig::default(),
            ramp: RampConfig::default(),
        }
    }
}

impl ClientConfig {
    /// Refuses numbers that make no sense.
    pub fn validate(&self) -> Result<()> {
        if !self.buckets.is_power_of_two() || self.buckets > MAX_BUCKETS {
            return Err(Error::invalid("buckets", self.buckets, format!("a power of two up to {MAX_BUCKETS}")));
        }
        if self
            .token
            .as_ref()
            .is_some_and(|t| t.is_empty() || t.len() > 4096 || !t.bytes().all(|b| b.is_ascii_graphic()))
        {
            return Err(Error::invalid("token", "not shown", "1 to 4096 visible ASCII characters"));
        }
        if self.name.len() > crate::rpc::limits::MAX_CLIENT_BYTES {
            return Err(Error::invalid("name", format!("{} bytes long", self.name.len()), "at most 256 bytes"));
        }
        for (what, value) in [("deadline", self.deadline), ("connect_deadline", self.connect_deadline)] {
            if value.is_zero() || value > Duration::from_secs(3600) {
                return Err(Error::invalid(what, format!("{} s", value.as_secs_f64()), "above 0 and up to an hour"));
            }
        }
        let counts = [
            ("connections", self.connections, 64),
            ("slice_objects", self.slice_objects, 8192),
            ("threads", self.threads, 64),
        ];
        for (what, value, most) in counts {
            if !(1..=most).contains(&value) {
                return Err(Error::invalid(what, value, format!("1 to {most}")));
            }
        }
        if self.slice_bytes == 0 || self.fair_rate == 0 {
            return Err(Error::invalid("slice_bytes and fair_rate", 0, "1 or more"));
        }
        Ok(())
    }

    /// How long a sound node may take for `bytes`.
    pub fn fair(&self, bytes: u64) -> Duration {
        self.fair_time + Duration::from_micros(bytes.saturating_mul(1_000_000) / self.fair_rate)
    }
}
