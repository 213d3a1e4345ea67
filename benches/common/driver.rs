//! A small engine around the cache: runs prompts in chunks with steps that retire at once.

use mimo_cache::cache::{Cache, CacheConfig, FillOut, Match, Request, RequestOptions, SeqId};
use mimo_cache::policy::{PolicyKind, Retention};

/// Tokens per page in every scenario.
pub const PAGE: usize = 64;
/// W in every scenario.
pub const WINDOW: u32 = 128;
/// Tokens of a prefill chunk.
pub const CHUNK: usize = 8_192;
/// Pages a running chunk needs beside the cache: the chunk and two partial pages.
pub const SCRATCH: u32 = (CHUNK / PAGE) as u32 + 2;

/// A cache of `full` and `swa` pages (scratch comes on top), ghosts and events on as by default.
pub fn config(full: usize, swa: usize) -> CacheConfig {
    CacheConfig {
        page_size: PAGE as u32,
        window: WINDOW,
        n_mtp: 0,
        full_pages: full as u32,
        swa_pages: swa as u32 + SCRATCH,
        scratch_pages: SCRATCH,
        retention: Retention::default(),
        policy: PolicyKind::default(),
        event_capacity: 65_536,
        ghost_pages: 2 * full as u32,
        fingerprint: [7; 32],
        seed: 0,
        max_pinned_pages: full as u32 / 10,
        region: None,
    }
}

/// The cache and the engine's buffers.
pub struct Driver {
    pub cache: Cache,
    step: u64,
    full: Vec<i32>,
    swa: Vec<i32>,
}

impl Driver {
    pub fn new(config: CacheConfig) -> Driver {
        Driver::of(Cache::new(config).expect("the bench's own configuration is valid"))
    }

    pub fn of(cache: Cache) -> Driver {
        Driver { cache, step: 1, full: vec![0; 4_096], swa: vec![0; 160] }
    }

    /// A request in the default namespace.
    pub fn request(&self, tokens: Vec<u32>) -> Request {
        self.cache.request(tokens, RequestOptions::default()).expect("a prompt of the bench is valid")
    }

    /// Starts a step with `seq` in it; returns its number.
    pub fn fill(&mut self, seq: SeqId) -> u64 {
        let step = self.step;
        self.step += 1;
        let (mut base, mut lens) = ([0], [0]);
        let out = FillOut {
            full: &mut self.full,
            full_width: 4_096,
            swa: &mut self.swa,
            swa_width: 160,
            swa_base: Some(&mut base),
            lens: &mut lens,
        };
        self.cache.fill(step, &[seq], out).expect("fill");
        step
    }

    /// Computes the next `n` positions, whose tokens are known or given.
    pub fn compute(&mut self, seq: SeqId, n: usize, tokens: &[u32]) {
        self.cache.reserve(seq, n as u64).expect("reserve");
        let step = self.fill(seq);
        self.cache.commit(seq, n as u64, tokens).expect("commit");
        self.cache.retire(step).expect("retire");
    }

    /// Computes what is left of the prompt, in chunks.
    pub fn prefill(&mut self, seq: SeqId) {
        loop {
            let info = self.cache.info(seq).expect("info");
            let left = (info.known - info.committed) as usize;
            if left == 0 {
                return;
            }
            self.compute(seq, left.min(CHUNK), &[]);
        }
    }

    /// Opens, and says what matched.
    pub fn open(&mut self, tokens: Vec<u32>, credit: u64) -> (SeqId, Match) {
        let mut request = self.request(tokens);
        let seq = self.cache.open(&mut request, credit).expect("open");
        let report = self.cache.report(seq).expect("report");
        (seq, report.matched)
    }

    /// A whole request: afterwards its pages are cached.
    pub fn run(&mut self, tokens: Vec<u32>) -> Match {
        let (seq, found) = self.open(tokens, 0);
        self.prefill(seq);
        self.cache.finish(seq).expect("finish");
        found
    }
}
