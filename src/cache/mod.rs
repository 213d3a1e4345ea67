//! The cache as an engine sees it: requests, sequences, steps. The core decides and returns plans of plain integers;
//! the caller owns the memory and runs them.
//!
//! `request` holds a cursor and no lease; `open` matches, leases and reserves by count; `reserve`, `fill`, `commit` and
//! `trim` run a sequence; `fork`, `park`, `resume`, `finish` and `abort` change its life; `retire` and `move_done` tell
//! that nothing touches old pages any more. A call that fails changes nothing.

mod commit;
mod end;
mod explain;
mod fork;
mod lend;
mod load;
mod moves;
mod open;
mod report;
mod sequence;
mod split;
mod step;
pub mod types;

pub use lend::{Boundary, Lent};
pub use load::{Load, LoadOptions, Missing};
pub use split::SplitStats;
pub use types::*;

use crate::error::{Error, OutOfPages, PoolName, Result};
use crate::key::{Key, PageKeys, Span, root_key, validate_spans};
use crate::pool::chunk::Arena;
use crate::tree::{Cursor, Query, Tree, WalkPlace};
use moves::PendingCopy;
use sequence::Seq;
use split::Split;
use std::sync::Arc;

/// Longest sequence, in tokens: lengths are `i32` in kernels' buffers.
pub const MAX_TOKENS: u64 = i32::MAX as u64 - 4096;

/// A prompt on its way into the cache. Holds no lease: dropping it costs nothing.
#[derive(Debug, Clone)]
pub struct Request {
    tokens: Vec<u32>,
    options: RequestOptions,
    /// Key of the namespace at generation 0.
    base: PageKey,
    weights: Arc<[u8]>,
    cursor: Cursor,
    keys: PageKeys,
    opened: bool,
    /// It was refused for want of pages before.
    refused: bool,
}

impl Request {
    fn query(&self) -> Query<'_> {
        Query { tokens: &self.tokens, spans: &self.options.spans, known: &self.keys }
    }

    /// Root key of its namespace, if that was never cleared.
    pub(crate) fn root_key(&self) -> &PageKey {
        &self.base
    }

    /// Keys of the prompt's first pages, made before with the same tokens: they are believed, and only checked with debug
    /// assertions.
    pub(crate) fn set_keys(&mut self, keys: PageKeys) {
        self.keys = keys;
    }

    /// The prompt; empty once opened.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// True once a sequence was opened from it.
    pub fn is_opened(&self) -> bool {
        self.opened
    }
}

/// See the module's text.
#[derive(Debug)]
pub struct Cache {
    config: CacheConfig,
    weights: Arc<[u8]>,
    tree: Tree,
    seqs: Arena<Seq>,
    /// Sequences that are open and not parked, in no order; each knows its place.
    live: Vec<u32>,
    next_generation: u32,
    /// Full pages promised to open sequences and not taken yet.
    promised: u64,
    /// SWA pages reserved for windows.
    quota: u64,
    /// SWA pages that sequences hold beyond their windows.
    scratch_used: u64,
    /// SWA pages that copies in flight hold.
    copy_holds: u64,
    pending: Vec<PendingCopy>,
    rebuilds: Vec<MtpRebuild>,
    /// With a region: whose its chunks are.
    split: Option<Box<Split>>,
    parked: u64,
    opens: u64,
    prompt_tokens: u64,
    hit_tokens: u64,
    full_kv_tokens: u64,
    misses: Misses,
}

impl Cache {
    /// An empty cache.
    pub fn new(mut config: CacheConfig) -> Result<Cache> {
        if let Some(region) = config.region.take() {
            if config.full_pages != 0 || config.swa_pages != 0 {
                let value = format!("{} and {}", config.full_pages, config.swa_pages);
                return Err(Error::invalid(
                    "full_pages and swa_pages",
                    value,
                    "0 and 0 with a region, which tells them",
                ));
            }
            let c = &config;
            let reserved = CacheConfig::reserved_swa(c.page_size, c.window, c.n_mtp, c.scratch_pages);
            let region = region.checked(reserved)?;
            (config.full_pages, config.swa_pages) = (region.full_ids() as u32, region.swa_ids() as u32);
            config.region = Some(region);
        }
        let c = &config;
        if !c.page_size.is_power_of_two() || c.page_size > 1024 {
            return Err(Error::invalid("page_size", c.page_size, "a power of two from 1 to 1024"));
        }
        if c.window > 1 << 20 {
            return Err(Error::invalid("window", c.window, "0 to 2^20 tokens"));
        }
        if c.full_pages == 0 && c.swa_pages == 0 {
            return Err(Error::invalid("full_pages and swa_pages", "0 and 0", "at least one pool with pages"));
        }
        for (what, pages) in [("full_pages", c.full_pages), ("swa_pages", c.swa_pages)] {
            if pages > 1 << 30 {
                return Err(Error::invalid(what, pages, "at most 2^30 pages"));
            }
        }
        if c.n_mtp > 8 || (c.n_mtp > 0 && c.swa_pages == 0) {
            return Err(Error::invalid("n_mtp", c.n_mtp, "0 to 8 heads, and 0 without an SWA pool"));
        }
        let quota = base_quota(c);
        if c.swa_pages > 0 && (c.scratch_pages > c.swa_pages || u64::from(c.swa_pages - c.scratch_pages) < quota) {
            return Err(Error::invalid(
                "swa_pages and scratch_pages",
                format!("{} and {}", c.swa_pages, c.scratch_pages),
                format!("swa_pages - scratch_pages of at least {quota}, the window of one sequence"),
            ));
        }
        if c.swa_pages == 0 && c.scratch_pages > 0 {
            return Err(Error::invalid("scratch_pages", c.scratch_pages, "0 without an SWA pool"));
        }
        if c.ghost_pages > 1 << 28 || c.event_capacity > 1 << 28 {
            let value = format!("{} and {}", c.ghost_pages, c.event_capacity);
            return Err(Error::invalid("ghost_pages and event_capacity", value, "at most 2^28 each"));
        }
        let tree = Tree::new(c);
        let split = c.region.as_ref().map(|r| Box::new(Split::new(r)));
        Ok(Cache {
            weights: Arc::from(Vec::new()),
            tree,
            seqs: Arena::default(),
            live: Vec::new(),
            next_generation: 0,
            promised: 0,
            quota: 0,
            scratch_used: 0,
            copy_holds: 0,
            pending: Vec::new(),
            rebuilds: Vec::new(),
            split,
            parked: 0,
            opens: 0,
            prompt_tokens: 0,
            hit_tokens: 0,
            full_kv_tokens: 0,
            misses: Misses::default(),
            config,
        })
    }

    /// How the cache is laid out.
    pub fn config(&self) -> &CacheConfig {
        &self.config
    }

    fn page(&self) -> u64 {
        u64::from(self.config.page_size)
    }

    fn base_key(&self, key: &Key) -> PageKey {
        root_key(&self.config.fingerprint, &self.weights, key, 0)
    }

    /// A request for a prompt. Checks everything that can be wrong with it.
    pub fn request(&self, tokens: Vec<u32>, options: RequestOptions) -> Result<Request> {
        check_prompt(&tokens)?;
        options.key.validate()?;
        validate_spans(&options.spans, tokens.len() as u64)?;
        let base = self.base_key(&options.key);
        let weights = self.weights.clone();
        Ok(Request {
            tokens,
            options,
            base,
            weights,
            cursor: Cursor::default(),
            keys: PageKeys::default(),
            opened: false,
            refused: false,
        })
    }

    /// What `open` would find now. No lease, no recency; looking again costs only what changed.
    pub fn peek(&self, req: &mut Request) -> Match {
        let key = self.tree.current_key(&req.base, &req.weights, &req.options.key);
        let Some(root) = self.tree.find_root(&key) else {
            req.cursor.reset();
            return Match::default();
        };
        let query = Query::new(&req.tokens, &req.options.spans);
        self.look_up(root, query, &mut req.cursor)
    }

    /// One lookup without a request; the tokens are only read.
    pub fn match_tokens(&self, tokens: &[u32], key: &Key, spans: &[Span]) -> Result<Match> {
        check_prompt(tokens)?;
        key.validate()?;
        validate_spans(spans, tokens.len() as u64)?;
        let base = self.base_key(key);
        let Some(root) = self.tree.find_root(&self.tree.current_key(&base, &self.weights, key)) else {
            return Ok(Match::default());
        };
        let query = Query::new(tokens, spans);
        Ok(self.found_at(self.tree.walk_once(root, query), query))
    }

    fn look_up(&self, root: u32, query: Query<'_>, cursor: &mut Cursor) -> Match {
        self.found_at(self.tree.walk(root, query, cursor), query)
    }

    fn found_at(&self, place: WalkPlace, query: Query<'_>) -> Match {
        let limit = (query.tokens.len() as u64 - 1) / self.page();
        let usable = self.tree.usable(place, limit as u32);
        Match { full_kv_match: u64::from(place.depth) * self.page(), usable: u64::from(usable) * self.page() }
    }

    /// Detaches a namespace, or all of them: lookups find nothing there any more, open sequences publish nothing more.
    pub fn clear(&mut self, key: Option<&Key>) {
        match key {
            Some(key) => {
                let base = self.base_key(key);
                let weights = self.weights.clone();
                self.tree.clear(&base, &weights, key);
            }
            None => self.tree.clear_all(),
        }
        self.settle();
    }

    /// Later requests belong to this version of the weights and share nothing with earlier ones.
    pub fn set_weights(&mut self, version: &[u8]) -> Result<()> {
        if version.len() > crate::key::MAX_NAME {
            let allowed = format!("at most {} bytes", crate::key::MAX_NAME);
            return Err(Error::invalid("weights version", format!("{} bytes long", version.len()), allowed));
        }
        self.weights = Arc::from(version);
        Ok(())
    }

    /// The version of the weights that later requests belong to.
    pub(crate) fn weights(&self) -> &[u8] {
        &self.weights
    }

    /// The most cached pages that a tenant's publications may own.
    pub fn set_tenant_share(&mut self, tenant: u32, max_full: u64, max_swa: u64) {
        self.tree.set_share(tenant, max_full, max_swa);
    }

    /// Pins what is cached of a prompt for `ttl_ms`: it goes after everything else. Returns the usable tokens pinned.
    pub fn pin(&mut self, tokens: &[u32], key: &Key, spans: &[Span], ttl_ms: u64) -> Result<u64> {
        check_prompt(tokens)?;
        key.validate()?;
        validate_spans(spans, tokens.len() as u64)?;
        let base = self.base_key(key);
        let Some(root) = self.tree.find_root(&self.tree.current_key(&base, &self.weights, key)) else { return Ok(0) };
        let place = self.tree.walk(root, Query::new(tokens, spans), &mut Cursor::default());
        // The whole prefix counts, its last page too: a pinned prompt is read with more tokens behind it.
        let usable = self.tree.usable(place, u32::MAX);
        if usable == 0 {
            return Ok(0);
        }
        while u64::from(usable) > self.tree.pin_room() && self.tree.end_pins() {}
        let room = self.tree.pin_room();
        if u64::from(usable) > room {
            return Err(Error::invalid("pages to pin", usable, format!("at most {room} more pinned pages")));
        }
        let node = self.tree.node_ending_at(place.node, usable);
        self.tree.pin_path(node, usable, self.tree.now.saturating_add(ttl_ms));
        self.settle();
        Ok(u64::from(usable) * self.page())
    }

    /// Tells the time, in milliseconds from any start; never goes back.
    pub fn set_now(&mut self, ms: u64) {
        self.tree.set_now(ms);
        self.settle();
    }

    /// Takes up to `max` events off the ring.
    pub fn drain_events(&mut self, max: usize) -> Drained {
        self.tree.events.drain(max)
    }

    /// What lookups can find now, for consumers that lost events.
    pub fn snapshot(&self) -> Snapshot {
        self.tree.snapshot()
    }

    /// The tree as indented text.
    pub fn dump_text(&self) -> String {
        self.tree.dump_text()
    }

    /// The tree as Graphviz source.
    pub fn dump_dot(&self) -> String {
        self.tree.dump_dot()
    }

    /// Tokens after its end with which the MTP rows of a published SWA page were made.
    pub fn mtp_record(&self, swa_page: u32) -> Option<Vec<u32>> {
        (swa_page <= self.config.swa_pages && self.tree.swa.is_cached(swa_page))
            .then(|| self.tree.record(swa_page).collect())
    }

    /// SWA pages for windows and checkpoints: all but scratch.
    fn swa_share(&self) -> u64 {
        u64::from(self.tree.swa.usable() - self.config.scratch_pages)
    }

    /// A call begins that may drop something, for this sequence.
    fn begin(&mut self, index: u32) {
        let generation = self.seqs[index].generation;
        self.tree.begin(SeqId { index, generation }.number());
    }

    /// SWA pages that count against the share of windows and checkpoints. Scratch that no chunk uses serves windows, so
    /// that they push out checkpoints only when there are many of them or a chunk needs its room.
    fn swa_in_share(&self) -> u64 {
        let private = u64::from(self.tree.swa.private());
        let outside = private.min(u64::from(self.config.scratch_pages)).max(self.scratch_used);
        private + u64::from(self.tree.swa.cached()) - outside
    }

    /// Cached and window pages fit their share again: a chunk that retention keeps pushes out older checkpoints.
    fn rebalance(&mut self) {
        let slack = self.shrinking();
        loop {
            let over = self.swa_in_share().saturating_sub(self.swa_share() + slack);
            let why = if over <= self.given_up() { Why::Chunk } else { Why::SwaPool };
            if over == 0 || self.tree.evict_swa(over as u32, why) == 0 {
                return;
            }
        }
    }

    fn out_of_full(&self, needed: u64) -> Error {
        Error::OutOfPages(OutOfPages {
            pool: PoolName::Full,
            needed,
            free: u64::from(self.tree.full.free()),
            quarantined: u64::from(self.tree.full.quarantined()) + self.tree.waiting_full(),
            evictable: self.tree.evictable_full(),
            promised: self.promised,
            total: u64::from(self.tree.full.usable()),
            most: self.most_pages().0,
        })
    }

    fn out_of_swa(&self, needed: u64) -> Error {
        Error::OutOfPages(OutOfPages {
            pool: PoolName::Swa,
            needed,
            free: u64::from(self.tree.swa.free()),
            quarantined: u64::from(self.tree.swa.quarantined()) + self.tree.waiting_swa(),
            evictable: self.tree.evictable_swa(),
            promised: self.quota + self.copy_holds,
            total: self.swa_share(),
            most: self.most_pages().1,
        })
    }

    fn out_of_scratch(&self, needed: u64) -> Error {
        let total = u64::from(self.config.scratch_pages);
        Error::OutOfPages(OutOfPages {
            pool: PoolName::Scratch,
            needed,
            free: total - self.scratch_used,
            quarantined: u64::from(self.tree.swa.quarantined()),
            evictable: 0,
            promised: 0,
            total,
            most: total,
        })
    }
}

/// SWA pages reserved for the window of one sequence.
fn base_quota(c: &CacheConfig) -> u64 {
    if c.swa_pages == 0 { 0 } else { window_pages(c.page_size, c.window, c.n_mtp) }
}

/// `ceil((W + n_mtp + 1 + n_mtp) / page) + 2`.
fn window_pages(page_size: u32, window: u32, n_mtp: u32) -> u64 {
    (u64::from(window) + 2 * u64::from(n_mtp) + 1).div_ceil(u64::from(page_size.max(1))) + 2
}

impl CacheConfig {
    /// SWA pages that the SWA pool of a region keeps in any case: scratch, one sequence's window, and a checkpoint beside
    /// it, which may keep a page more than a window.
    pub fn reserved_swa(page_size: u32, window: u32, n_mtp: u32, scratch_pages: u32) -> u64 {
        let kept = u64::from(window.div_ceil(page_size.max(1))) + 1;
        window_pages(page_size, window, n_mtp) + kept + u64::from(scratch_pages)
    }
}

fn check_prompt(tokens: &[u32]) -> Result<()> {
    let n = tokens.len() as u64;
    if n == 0 || n > MAX_TOKENS {
        return Err(Error::invalid("prompt length", n, format!("1 to {MAX_TOKENS} tokens")));
    }
    Ok(())
}
