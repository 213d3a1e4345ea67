//! The two passes over a trace.

use crate::cache::types::{CacheConfig, FillOut, Misses, RequestOptions};
use crate::cache::{Cache, MAX_TOKENS, SeqId};
use crate::error::{Error, Result};
use crate::policy::{PolicyKind, Retention};
use crate::replay::capacity::{Capacity, KvBytes, Pools};
use crate::replay::ids::IdSet;
use crate::replay::split::{self, Carved, Split, SplitOutcome, Watch};
use crate::replay::tokens;
use crate::replay::trace::{Header, TraceReader, TraceRequest};
use std::path::Path;
use std::time::Instant;

/// Longest prefill chunk, in tokens.
pub const MAX_CHUNK: u32 = 1 << 24;
/// Requests between two calls of the progress function.
const PROGRESS_EVERY: u64 = 64;
/// Most dropped pages that the core remembers.
const MAX_GHOSTS: u32 = 1 << 28;

/// What to replay a trace through.
#[derive(Debug, Clone)]
pub struct Options {
    /// What a token costs.
    pub kv: KvBytes,
    /// How large the cache is.
    pub capacity: Capacity,
    /// Part of the bytes for SWA pages: above 0 and below 1, or 0 for a model without an SWA group.
    pub swa_share: f64,
    /// Whether that is so for the whole trace.
    pub split: Split,
    /// Which boundaries stay resumable.
    pub retention: Retention,
    /// Order of eviction.
    pub policy: PolicyKind,
    /// Tokens per page; the trace's blocks must be whole pages.
    pub page_size: u32,
    /// Longest prefill chunk, in tokens.
    pub chunk: u32,
    /// Seed of the core's hash tables.
    pub seed: u64,
}

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
    /// Wall time of the second pass.
    pub seconds: f64,
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

/// The first pass: reads all of a trace and counts.
pub fn scan(mut reader: TraceReader) -> Result<Totals> {
    let size = u64::from(reader.header().block_size);
    let mut ids = IdSet::new();
    let mut request = TraceRequest::default();
    let (mut requests, mut blocks, mut partial) = (0u64, 0u64, 0u64);
    while reader.next_into(&mut request)? {
        requests += 1;
        for &(first, count) in &request.blocks {
            ids.insert_run(first, count);
        }
        let full = request.block_count();
        blocks += full;
        partial += request.prompt_tokens - full * size;
    }
    if requests == 0 {
        return Err(Error::Trace { line: reader.line() + 1, message: "the trace has no request".into() });
    }
    Ok(Totals {
        header: reader.header().clone(),
        requests,
        prompt_tokens: blocks * size,
        partial_tokens: partial,
        unique_tokens: ids.len() * size,
    })
}

/// Both passes over the file at `path`. `progress` is called now and then; when it returns `false` the replay stops and
/// gives `None`.
pub fn run(path: &Path, options: &Options, progress: impl FnMut(Progress) -> bool) -> Result<Option<Outcome>> {
    run_from(|| TraceReader::open(path), options, progress)
}

/// Both passes over what `open` opens; it is called twice and must give the same trace.
pub fn run_from(
    mut open: impl FnMut() -> Result<TraceReader>,
    options: &Options,
    mut progress: impl FnMut(Progress) -> bool,
) -> Result<Option<Outcome>> {
    check(options)?;
    let totals = scan(open()?)?;
    let block = totals.header.block_size;
    if !block.is_multiple_of(options.page_size) {
        let allowed = format!("a power of two that divides the trace's block of {block} tokens");
        return Err(Error::invalid("page size", options.page_size, allowed));
    }
    let pools = options.capacity.pools(
        &options.kv,
        options.swa_share,
        options.page_size,
        options.chunk,
        totals.unique_tokens,
    )?;
    let mut engine = Engine::new(options, pools)?;
    let mut reader = open()?;
    let mut request = TraceRequest::default();
    let start = Instant::now();
    let mut now = Progress { done: 0, total: totals.requests, prompt_tokens: 0, hit_tokens: 0 };
    while reader.next_into(&mut request)? {
        engine.serve(&request, block)?;
        now.done += 1;
        if now.done.is_multiple_of(PROGRESS_EVERY) {
            (now.prompt_tokens, now.hit_tokens) = (engine.prompt_tokens, engine.hit_tokens);
            if !progress(now) {
                return Ok(None);
            }
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    if engine.prompt_tokens != totals.prompt_tokens {
        let message = "the trace changed between the first and the second reading".into();
        return Err(Error::Trace { line: reader.line(), message });
    }
    let stats = engine.cache.stats();
    Ok(Some(Outcome {
        totals,
        pools,
        hit_tokens: engine.hit_tokens,
        full_kv_tokens: engine.full_kv_tokens,
        misses: engine.misses,
        checkpoints: stats.checkpoints,
        full_evicted: stats.full_evicted,
        checkpoints_evicted: stats.checkpoints_evicted,
        split: engine.watch.map(|watch| watch.outcome(&stats.split)),
        seconds,
    }))
}

fn check(options: &Options) -> Result<()> {
    let page = options.page_size;
    if !page.is_power_of_two() || page > 1024 {
        return Err(Error::invalid("page size", page, "a power of two from 1 to 1024"));
    }
    if options.chunk < page || options.chunk > 1 << 24 {
        return Err(Error::invalid(
            "chunk",
            options.chunk,
            format!("from one page, {page} tokens, to {} tokens", 1 << 24),
        ));
    }
    Ok(())
}

/// A serving engine that computes nothing: it drives the core one request after another.
struct Engine {
    cache: Cache,
    page: u64,
    chunk: u64,
    watch: Option<Watch>,
    step: u64,
    swa_width: usize,
    full_table: Vec<i32>,
    swa_table: Vec<i32>,
    prompt_tokens: u64,
    hit_tokens: u64,
    full_kv_tokens: u64,
    misses: Misses,
}

impl Engine {
    fn new(options: &Options, pools: Pools) -> Result<Self> {
        let (page, chunk) = (u64::from(options.page_size), u64::from(options.chunk));
        let carved = match options.split {
            Split::Fixed => None,
            Split::Adaptive { chunks } => Some(Carved::of(&pools, chunks)?),
        };
        let fixed = |pages| if carved.is_some() { 0 } else { pages };
        let cache = Cache::new(CacheConfig {
            page_size: options.page_size,
            window: options.kv.window,
            // Replay has no MTP rows to be right about; their bytes are in the capacity.
            n_mtp: 0,
            full_pages: fixed(pools.full_pages),
            swa_pages: fixed(pools.swa_pages + pools.scratch_pages),
            scratch_pages: pools.scratch_pages,
            retention: options.retention.clone(),
            policy: options.policy,
            event_capacity: 0,
            ghost_pages: pools.full_pages.saturating_mul(2).min(MAX_GHOSTS),
            fingerprint: [0; 32],
            seed: options.seed,
            max_pinned_pages: 0,
            region: carved.as_ref().map(|c| c.region.clone()),
        })?;
        let watch = carved.map(|carved| Watch::new(carved, &cache.stats().split));
        let swa_width =
            if pools.swa_pages == 0 { 0 } else { (u64::from(options.kv.window) + chunk).div_ceil(page) + 2 };
        Ok(Engine {
            cache,
            page,
            chunk,
            watch,
            step: 0,
            swa_width: swa_width as usize,
            full_table: Vec::new(),
            swa_table: vec![0; swa_width as usize],
            prompt_tokens: 0,
            hit_tokens: 0,
            full_kv_tokens: 0,
            misses: Misses::default(),
        })
    }

    /// Most prompt tokens that the full pool can hold beside the page of the last token.
    fn limit(&self) -> u64 {
        let most = match self.cache.usable_pages().0 {
            0 => MAX_TOKENS - 1,
            pages => ((pages - 1) * self.page).min(MAX_TOKENS - 1),
        };
        most / self.page * self.page
    }

    /// One request from arrival to end.
    fn serve(&mut self, request: &TraceRequest, block: u32) -> Result<()> {
        let full = request.block_count() * u64::from(block);
        self.prompt_tokens += full;
        // What is larger than the pool keeps its head.
        while self.limit() < full && self.watch.is_some() && std::env::var("LAB").is_err() && std::env::var("NOENL").is_err() && split::enlarge_full(&mut self.cache)? {}
        let head = full.min(self.limit());
        self.misses.capacity += full - head;
        if head == 0 {
            return Ok(());
        }
        let mut prompt = Vec::with_capacity(head as usize + 1);
        tokens::append(&request.blocks, block, head, &mut prompt);
        // A token after the last block, so that all of them may be a hit. Its page is not full and is never shared.
        prompt.push(0);

        self.cache.set_now(request.t_ms);
        let mut waiting = self.cache.request(prompt, RequestOptions::default())?;
        let seq = self.cache.open(&mut waiting, 0)?;
        let report = self.cache.report(seq)?;
        let mut at = self.cache.info(seq)?.committed;
        while at < head + 1 {
            let n = self.chunk.min(head + 1 - at);
            self.cache.reserve(seq, n)?;
            self.step(seq, at + n)?;
            self.cache.commit(seq, n, &[])?;
            self.cache.retire(self.step)?;
            at += n;
        }
        self.cache.finish(seq)?;

        let (m, misses) = (report.matched, report.misses);
        let hit = report.delivered;
        // The last token is the partial page; every other token is a hit or has one cause.
        if hit + misses.total() != head + 1 || misses.partial_page != 1 || hit > m.full_kv_match || hit % self.page != 0
        {
            return Err(Error::Integrity(format!("a prompt of {} tokens was reported as {report:?}", head + 1)));
        }
        self.hit_tokens += hit;
        self.full_kv_tokens += m.full_kv_match;
        if let Some(watch) = &mut self.watch {
            watch.look(&self.cache.split_stats());
        }
        // The partial page stays out of a replay's sums.
        self.misses.add(&Misses { partial_page: 0, ..misses });
        Ok(())
    }

    /// Starts the next step for a sequence of `len` tokens, as a runner would before its kernels.
    fn step(&mut self, seq: SeqId, len: u64) -> Result<()> {
        self.step += 1;
        let full_width = len.div_ceil(self.page) as usize;
        if self.full_table.len() < full_width {
            self.full_table.resize(full_width, 0);
        }
        let (mut base, mut lens) = ([0i32], [0i32]);
        let out = FillOut {
            full: &mut self.full_table[..full_width],
            full_width,
            swa: &mut self.swa_table,
            swa_width: self.swa_width,
            swa_base: Some(&mut base),
            lens: &mut lens,
        };
        self.cache.fill(self.step, &[seq], out)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
