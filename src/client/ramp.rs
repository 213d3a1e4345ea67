//! How a fresh, empty node comes into use: its share of extents grows from a first part to all of them.
//!
//! A node that lost its memory, or has just joined, misses everything and is sent everything at once; both are smoothed by
//! asking it for a growing part of the buckets only. Whether a bucket takes part depends on the bucket and the share alone,
//! and shares only grow, so that what was put is also asked for. Time comes in as milliseconds of one monotonic clock.

/// Numbers of a ramp.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RampConfig {
    /// From the first part to all, in milliseconds; 0: at once.
    pub length_ms: u64,
    /// Part of the buckets at the start, in 1/1024.
    pub first: u32,
}

impl Default for RampConfig {
    fn default() -> Self {
        RampConfig { length_ms: 10_000, first: 64 }
    }
}

/// Parts of a whole share.
const WHOLE: u64 = 1024;

/// The ramp of one node; it admits everything until [`Ramp::start`].
#[derive(Debug)]
pub struct Ramp {
    config: RampConfig,
    since: Option<u64>,
}

impl Ramp {
    /// A ramp that has ended.
    pub fn new(config: RampConfig) -> Ramp {
        Ramp { config, since: None }
    }

    /// The node is found fresh and empty.
    pub fn start(&mut self, now: u64) {
        self.since = Some(now);
    }

    /// The share of now, in 1/1024: straight up over the ramp's length.
    pub fn share(&self, now: u64) -> u32 {
        let Some(since) = self.since else { return WHOLE as u32 };
        let (passed, length) = (now.saturating_sub(since), self.config.length_ms);
        if passed >= length {
            return WHOLE as u32;
        }
        let first = u64::from(self.config.first).min(WHOLE);
        (first + u64::try_from(u128::from(WHOLE - first) * u128::from(passed) / u128::from(length)).unwrap_or(WHOLE))
            as u32
    }

    /// Whether a bucket takes part at a share.
    pub fn admits(share: u32, bucket: u32) -> bool {
        // Multiplicative hashing (Knuth, TAOCP 6.4): neighbours in the table are spread over the shares.
        let spread = bucket.wrapping_mul(0x9e37_79b1) >> 22;
        spread < share
    }
}
