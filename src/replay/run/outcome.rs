//! What a replay counts and finds.

use crate::cache::types::Misses;
use crate::replay::capacity::Pools;
use crate::replay::split::SplitOutcome;
use crate::replay::trace::{Header, Skipped};
use crate::tier::{TierConfig, TierStats};

/// What the first pass counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Totals {
    /// Line 1 of the trace.
    pub header: Header,
    /// Requests.
    pub requests: u64,
    /// Prompt tokens in full blocks.
    pub prompt_tokens: u64,
    /// Prompt tokens after the last full block, which no rate counts.
    pub partial_tokens: u64,
    /// Tokens of distinct blocks.
    pub unique_tokens: u64,
    /// Lines that were passed over.
    pub skipped: Skipped,
}

impl Totals {
    /// Hit rate of an infinite cache: every block but the first of its id is a hit. 0 without prompt tokens.
    pub fn ceiling(&self) -> f64 {
        rate(self.prompt_tokens - self.unique_tokens, self.prompt_tokens)
    }
}

/// How far a replay is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Requests done.
    pub done: u64,
    /// Requests in all.
    pub total: u64,
    /// Prompt tokens in full blocks so far.
    pub prompt_tokens: u64,
    /// Usable tokens so far.
    pub hit_tokens: u64,
}

/// The state after some requests. Counts are from the start of the replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample {
    /// Requests done.
    pub requests: u64,
    /// Arrival of the last of them, in milliseconds.
    pub t_ms: u64,
    /// Prompt tokens in full blocks.
    pub prompt_tokens: u64,
    /// Usable tokens.
    pub hit_tokens: u64,
    /// Tokens with full KV, usable or not.
    pub full_kv_tokens: u64,
    /// Why the rest missed.
    pub misses: Misses,
    /// Cached pages of the full pool now.
    pub full_cached: u64,
    /// Cached pages of the SWA pool now.
    pub swa_cached: u64,
    /// Checkpoints now.
    pub checkpoints: u64,
}

/// Most samples of a replay.
pub const MAX_SAMPLES: u32 = 1 << 16;

/// What a replay found. With `hit_tokens` the misses sum to `totals.prompt_tokens`.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// The first pass.
    pub totals: Totals,
    /// The pools that were used.
    pub pools: Pools,
    /// Usable tokens.
    pub hit_tokens: u64,
    /// Tokens with full KV, usable or not.
    pub full_kv_tokens: u64,
    /// Why the rest missed. `partial_page` is 0: partial blocks are outside.
    pub misses: Misses,
    /// Checkpoints at the end.
    pub checkpoints: u64,
    /// Full pages evicted.
    pub full_evicted: u64,
    /// Checkpoints evicted.
    pub checkpoints_evicted: u64,
    /// Where an adaptive split went.
    pub split: Option<SplitOutcome>,
    /// The tiers below, the host tier first, and what each moved.
    pub tiers: Vec<(TierConfig, TierStats)>,
    /// Wall time of the second pass.
    pub seconds: f64,
    /// The way there, in order; the last is the end.
    pub samples: Vec<Sample>,
    /// Most sequences that were open at once.
    pub most_open: u64,
    /// Virtual time that requests waited for room, in milliseconds.
    pub waited_ms: u64,
}

impl Outcome {
    /// Usable tokens over prompt tokens.
    pub fn token_hit_rate(&self) -> f64 {
        rate(self.hit_tokens, self.totals.prompt_tokens)
    }

    /// Tokens with full KV over prompt tokens; what a cache that ignored windows would claim.
    pub fn full_kv_hit_rate(&self) -> f64 {
        rate(self.full_kv_tokens, self.totals.prompt_tokens)
    }

    /// Requests over wall time of the second pass.
    pub fn requests_per_second(&self) -> f64 {
        self.totals.requests as f64 / self.seconds.max(1e-9)
    }
}

fn rate(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}
