//! The two passes over a trace.

use crate::cache::types::{CacheConfig, FillOut, Misses, Report, RequestOptions};
use crate::cache::{Cache, MAX_TOKENS, SeqId};
use crate::error::{Error, Result};
use crate::policy::{PolicyKind, Retention};
use crate::replay::capacity::{Capacity, KvBytes, Pools};
use crate::replay::keys::KeyBook;
use crate::replay::split::{self, Carved, Split, Watch};
use crate::replay::tokens;
use crate::replay::trace::{Line, Skipped, TraceReader, TraceRequest};
use std::path::Path;
use std::time::Instant;

pub mod explain;
pub mod host;
pub mod outcome;
pub mod overlap;

use host::{Below, HostOptions};
use outcome::{MAX_SAMPLES, Outcome, Progress, Sample, Totals};
use overlap::{Clock, Service};

/// Longest prefill chunk, in tokens.
pub const MAX_CHUNK: u32 = 1 << 24;
/// Lines of the trace between two calls of the progress function.
const PROGRESS_EVERY: u64 = 64;
/// Fewest and most dropped pages that the core remembers, to tell evicted from never seen: in a pool that thrashes a
/// single request drops as many pages as are cached.
const GHOSTS: (u32, u32) = (1 << 20, 1 << 28);

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
    /// Lines that cannot be used are counted and passed over; else the first of them ends the replay.
    pub skip_bad: bool,
    /// How fast requests are served, so that they overlap; `None`: one after another, each at its arrival and at once.
    pub service: Option<Service>,
    /// Tiers below the cache.
    pub host: Option<HostOptions>,
    /// Points in time that [`Outcome::samples`] shows, evenly spread over the requests; 0 for none.
    pub samples: u32,
}

/// The first pass: reads all of a trace, checks its ids and counts. `progress` is called now and then; `None` when it
/// returned `false`.
pub fn scan(reader: TraceReader, mut progress: impl FnMut() -> bool) -> Result<Option<Totals>> {
    let mut reader = reader.check_ids();
    let size = u64::from(reader.header().block_size);
    let mut request = TraceRequest::default();
    let (mut requests, mut blocks, mut partial) = (0u64, 0u64, 0u64);
    let mut lines = 0u64;
    loop {
        match reader.next_line(&mut request)? {
            Line::Request => {
                requests += 1;
                let full = request.block_count();
                blocks += full;
                partial += request.prompt_tokens - full * size;
            }
            Line::Skipped => {}
            Line::End => break,
        }
        lines += 1;
        if lines.is_multiple_of(PROGRESS_EVERY) && !progress() {
            return Ok(None);
        }
    }
    if requests == 0 {
        let message = match reader.skipped() {
            Skipped { lines: 0, .. } => "the trace has no request".into(),
            bad => {
                format!("the trace has no request, and {} lines were passed over: {}", bad.lines, bad.first.join("; "))
            }
        };
        return Err(Error::Trace { line: reader.line() + 1, message });
    }
    Ok(Some(Totals {
        header: reader.header().clone(),
        requests,
        prompt_tokens: blocks * size,
        partial_tokens: partial,
        unique_tokens: reader.distinct_ids() * size,
        skipped: reader.skipped().clone(),
    }))
}

/// Both passes over the file at `path`. `progress` is called now and then, with nothing done of nothing in the first pass;
/// when it returns `false` the replay stops and gives `None`.
pub fn run(path: &Path, options: &Options, progress: impl FnMut(Progress) -> bool) -> Result<Option<Outcome>> {
    run_from(|| TraceReader::open(path), options, progress)
}

/// Both passes over what `open` opens; it is called twice and must give the same trace.
pub fn run_from(
    mut open: impl FnMut() -> Result<TraceReader>,
    options: &Options,
    mut progress: impl FnMut(Progress) -> bool,
) -> Result<Option<Outcome>> {
    let Some((totals, pools, mut engine, mut reader)) = begin(&mut open, options, &mut progress)? else {
        return Ok(None);
    };
    let block = totals.header.block_size;
    let mut request = TraceRequest::default();
    let start = Instant::now();
    let mut now = Progress { done: 0, total: totals.requests, prompt_tokens: 0, hit_tokens: 0 };
    let mut samples = Vec::with_capacity(options.samples as usize);
    let mut lines = 0u64;
    loop {
        match reader.next_line(&mut request)? {
            Line::Request => {
                engine.serve(&request, block)?;
                now.done += 1;
                (now.prompt_tokens, now.hit_tokens) = (engine.prompt_tokens, engine.hit_tokens);
                let due = (samples.len() as u64 + 1) * totals.requests / u64::from(options.samples.max(1));
                if samples.len() < options.samples as usize && now.done >= due {
                    samples.push(engine.sample(now.done, request.t_ms));
                }
            }
            Line::Skipped => {}
            Line::End => break,
        }
        lines += 1;
        if lines.is_multiple_of(PROGRESS_EVERY) && !progress(now) {
            return Ok(None);
        }
    }
    engine.run_to_the_end()?;
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
        tiers: engine.host.map_or_else(Vec::new, |host| host.outcome()),
        seconds,
        samples,
        most_open: engine.clock.as_ref().map_or(1, |c| c.most_open as u64),
        waited_ms: engine.clock.as_ref().map_or(0, |c| c.waited / 1000),
    }))
}

/// The first pass, and everything that the second needs; `None` when `progress` stopped it.
fn begin(
    open: &mut impl FnMut() -> Result<TraceReader>,
    options: &Options,
    progress: &mut impl FnMut(Progress) -> bool,
) -> Result<Option<(Totals, Pools, Engine, TraceReader)>> {
    check(options)?;
    let none = Progress { done: 0, total: 0, prompt_tokens: 0, hit_tokens: 0 };
    let Some(totals) = scan(open()?.skip_bad(options.skip_bad), || progress(none))? else { return Ok(None) };
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
    let pages = totals.unique_tokens / u64::from(options.page_size);
    let engine = Engine::new(options, pools, KeyBook::new(pages, options.page_size, block / options.page_size))?;
    let mut reader = open()?.skip_bad(options.skip_bad);
    // What the first pass refused for its ids is not seen otherwise.
    if totals.skipped.ids > 0 {
        reader = reader.check_ids();
    }
    Ok(Some((totals, pools, engine, reader)))
}

fn check(options: &Options) -> Result<()> {
    let page = options.page_size;
    if options.samples > MAX_SAMPLES {
        return Err(Error::invalid("samples", options.samples, format!("0 to {MAX_SAMPLES}")));
    }
    // With pages of one token the token of each prompt's own would be a page that others share.
    if !page.is_power_of_two() || !(2..=1024).contains(&page) {
        return Err(Error::invalid("page size", page, "a power of two from 2 to 1024"));
    }
    if let Some(host) = &options.host {
        host.check(options.service.is_some())?;
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
    keys: KeyBook,
    /// With it requests overlap.
    clock: Option<Clock>,
    page: u64,
    chunk: u64,
    /// With pools that share a region.
    watch: Option<Watch>,
    host: Option<Below>,
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
    fn new(options: &Options, pools: Pools, keys: KeyBook) -> Result<Self> {
        let (page, chunk) = (u64::from(options.page_size), u64::from(options.chunk));
        let carved = match options.split {
            Split::Fixed => None,
            Split::Adaptive { chunks } => Some(Carved::of(&pools, chunks, options.page_size, options.kv.window)?),
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
            ghost_pages: pools.full_pages.saturating_mul(2).clamp(GHOSTS.0, GHOSTS.1),
            fingerprint: [0; 32],
            seed: options.seed,
            max_pinned_pages: 0,
            region: carved.as_ref().map(|c| c.region.clone()),
        })?;
        let host = options.host.map(|host| host.below(&cache, &pools)).transpose()?;
        let watch = carved.map(|carved| Watch::new(carved, &cache.stats().split));
        let swa_width =
            if pools.swa_pages == 0 { 0 } else { (u64::from(options.kv.window) + chunk).div_ceil(page) + 2 };
        Ok(Engine {
            cache,
            keys,
            clock: options.service.map(Clock::new).transpose()?,
            page,
            chunk,
            watch,
            host,
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

    /// Chunks of a region go to the full pool as long as a prompt does not fit it.
    fn make_room(&mut self, request: &TraceRequest, block: u32) -> Result<()> {
        let full = request.block_count() * u64::from(block);
        while self.watch.is_some() && self.limit() < full && split::enlarge_full(&mut self.cache)? {}
        Ok(())
    }

    /// The prompt of a request, or nothing when the pool has no room for a block of it. What is larger than the pool
    /// keeps its head.
    fn prompt(&self, request: &TraceRequest, block: u32) -> Vec<u32> {
        let full = request.block_count() * u64::from(block);
        let head = full.min(self.limit());
        if head == 0 {
            return Vec::new();
        }
        let mut prompt = Vec::with_capacity(head as usize + 1);
        tokens::append(&request.blocks, block, head, &mut prompt);
        // A token after the last block, so that all of them may be a hit. Its page is not full and is never shared.
        prompt.push(0);
        prompt
    }

    /// One request from arrival to end.
    fn serve(&mut self, request: &TraceRequest, block: u32) -> Result<()> {
        let full = request.block_count() * u64::from(block);
        self.prompt_tokens += full;
        self.make_room(request, block)?;
        let prompt = self.prompt(request, block);
        let head = (prompt.len() as u64).saturating_sub(1);
        self.misses.capacity += full - head;
        if head == 0 {
            return Ok(());
        }
        let mut waiting = self.cache.request(prompt, RequestOptions::default())?;
        let keys = self.keys.keys(*waiting.root_key(), &request.blocks, waiting.tokens());
        waiting.set_keys(keys);
        if self.clock.is_some() {
            return self.serve_overlapping(request, waiting, head);
        }
        self.cache.set_now(request.t_ms);
        let prompt = if self.host.is_some() { waiting.tokens().to_vec() } else { Vec::new() };
        let seq = self.cache.open(&mut waiting, 0)?;
        if let Some(host) = &mut self.host {
            host.bring_up(&mut self.cache, seq, &prompt, request.t_ms)?;
        }
        let report = self.cache.report(seq)?;
        let mut at = self.cache.info(seq)?.committed;
        while at < head + 1 {
            let n = self.chunk.min(head + 1 - at);
            self.compute(seq, at, n)?;
            at += n;
        }
        self.cache.finish(seq)?;
        if let Some(host) = &mut self.host {
            host.write_down(&mut self.cache, &prompt, report.matched.usable)?;
        }
        self.account(&report, head)
    }

    /// The next `n` positions of a sequence from `at` on, as one step.
    fn compute(&mut self, seq: SeqId, at: u64, n: u64) -> Result<()> {
        self.cache.reserve(seq, n)?;
        self.step(seq, at + n)?;
        self.cache.commit(seq, n, &[])?;
        self.cache.retire(self.step)
    }

    /// Adds a lookup of `head` tokens and one more to the sums.
    fn account(&mut self, report: &Report, head: u64) -> Result<()> {
        let (m, misses) = (report.matched, report.misses);
        let hit = report.delivered;
        // The last token is the partial page; every other token is a hit or has one cause.
        if hit + misses.total() != head + 1
            || misses.partial_page != 1
            || hit > m.full_kv_match.max(if self.host.is_some() { head } else { 0 })
            || !hit.is_multiple_of(self.page)
        {
            return Err(Error::Integrity(format!("a prompt of {} tokens was reported as {report:?}", head + 1)));
        }
        self.hit_tokens += hit;
        self.full_kv_tokens += m.full_kv_match.max(hit);
        if let Some(watch) = &mut self.watch {
            watch.look(&self.cache.split_stats());
        }
        // The partial page stays out of a replay's sums.
        self.misses.add(&Misses { partial_page: 0, ..misses });
        Ok(())
    }

    fn sample(&self, requests: u64, t_ms: u64) -> Sample {
        let stats = self.cache.stats();
        Sample {
            requests,
            t_ms,
            prompt_tokens: self.prompt_tokens,
            hit_tokens: self.hit_tokens,
            full_kv_tokens: self.full_kv_tokens,
            misses: self.misses,
            full_cached: stats.full.cached,
            swa_cached: stats.swa.cached,
            checkpoints: stats.checkpoints,
        }
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
