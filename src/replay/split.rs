//! A replay whose pools share one region: the capacity cut into chunks, and where the split went.

use crate::cache::{Cache, CacheConfig, Group, SplitStats};
use crate::error::{Error, Result};
use crate::pool::{Memory, Region};
use crate::replay::capacity::Pools;

/// Chunks into which a region is cut when nobody says otherwise. Finer is nearer to the best split and slower to get
/// there.
pub const CHUNKS: u32 = 64;

/// How the bytes are split between the pools.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Split {
    /// As the SWA share says, for the whole trace.
    #[default]
    Fixed,
    /// The SWA share is only the start; about so many chunks change between the pools.
    Adaptive {
        /// Chunks to aim at; small pools have fewer.
        chunks: u32,
    },
}

impl Split {
    /// Reads a name; `chunks` is for the adaptive split.
    pub fn parse(text: &str, chunks: u32) -> Result<Self> {
        match text {
            "fixed" => Ok(Split::Fixed),
            "adaptive" if (2..=2048).contains(&chunks) => Ok(Split::Adaptive { chunks }),
            "adaptive" => Err(Error::invalid("chunks of the region", chunks, "2 to 2048")),
            _ => Err(Error::invalid("split", crate::error::shown(text), "\"fixed\" or \"adaptive\"")),
        }
    }
}

/// A capacity as one region.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Carved {
    /// The region.
    pub region: Region,
    /// Bytes of a chunk.
    pub chunk_bytes: u64,
    scratch_bytes: u64,
}

impl Carved {
    /// Cuts the bytes of both pools and of scratch into at least `chunks` chunks beside scratch, where pages are small enough
    /// and no more than 4,096 are needed, with the split nearest to that of `pools`. What is left over, less than a chunk,
    /// stays unused. Windows have `window` tokens, pages `page`.
    pub fn of(pools: &Pools, chunks: u32, page: u32, window: u32) -> Result<Self> {
        if pools.full_pages == 0 || pools.swa_pages == 0 {
            return Err(Error::invalid("split", "\"adaptive\"", "\"fixed\" for a model with one group"));
        }
        let full_page = pools.full_bytes / u64::from(pools.full_pages);
        let swa_page = pools.swa_bytes / u64::from(pools.swa_pages);
        let bytes = pools.full_bytes.saturating_add(pools.swa_bytes).saturating_add(pools.scratch_bytes);
        let reserved = CacheConfig::reserved_swa(page, window, 0, pools.scratch_pages);
        let memory = Memory { name: "capacity and scratch", bytes, full_page, swa_page, align: 1, reserved };
        // Scratch is neither cache nor ever given away: small pools beside it are cut finely all the same.
        let (shape, chunks) = memory.cut((bytes - pools.scratch_bytes) / u64::from(chunks))?;
        let swa = f64::from(pools.swa_pages) + f64::from(pools.scratch_pages);
        let region = memory.region(&shape, chunks, swa, true)?;
        Ok(Carved { region, chunk_bytes: shape.bytes, scratch_bytes: pools.scratch_bytes })
    }

    /// Part of the bytes that SWA chunks have, scratch left out.
    pub fn swa_share(&self, stats: &SplitStats) -> f64 {
        let bytes = |chunks: u64| (chunks * self.chunk_bytes) as f64 - self.scratch_bytes as f64;
        bytes(stats.swa_chunks).max(0.0) / bytes(stats.swa_chunks + stats.full_chunks).max(1.0)
    }
}

/// Gives the full pool a chunk at once, as an engine does for a prompt that does not fit it. `false` when the SWA pool has
/// none to give.
pub fn enlarge_full(cache: &mut Cache) -> Result<bool> {
    // A change that runs already, perhaps the other way, is waited for.
    let begun = cache.reassign(Group::Full, None)? || cache.split_stats().draining.is_some();
    while cache.split_stats().draining.is_some() {
        let Some((id, _)) = cache.take_copies() else { break };
        cache.move_done(id)?;
    }
    Ok(begun && cache.split_stats().draining.is_none())
}

/// Where the split of a replay went.
#[derive(Debug, Clone, PartialEq)]
pub struct SplitOutcome {
    /// The region.
    pub carved: Carved,
    /// SWA share of the bytes at the start.
    pub start: f64,
    /// Its mean over requests.
    pub mean: f64,
    /// Its highest value.
    pub highest: f64,
    /// At the end.
    pub end: f64,
    /// The core's counters.
    pub stats: SplitStats,
}

/// Follows the split through a replay.
#[derive(Debug)]
pub struct Watch {
    carved: Carved,
    start: f64,
    highest: f64,
    sum: f64,
    seen: u64,
}

impl Watch {
    /// Before the first request.
    pub fn new(carved: Carved, stats: &SplitStats) -> Self {
        let start = carved.swa_share(stats);
        Watch { carved, start, highest: start, sum: 0.0, seen: 0 }
    }

    /// After a request.
    pub fn look(&mut self, stats: &SplitStats) {
        let share = self.carved.swa_share(stats);
        self.highest = self.highest.max(share);
        self.sum += share;
        self.seen += 1;
    }

    /// After the last one.
    pub fn outcome(self, stats: &SplitStats) -> SplitOutcome {
        let end = self.carved.swa_share(stats);
        let mean = if self.seen > 0 { self.sum / self.seen as f64 } else { self.start };
        let Watch { carved, start, highest, .. } = self;
        SplitOutcome { carved, start, mean, highest, end, stats: *stats }
    }
}
