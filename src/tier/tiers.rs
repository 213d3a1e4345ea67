//! The host tier below a cache: what the two have together, what comes up, what goes down.
//!
//! [`Tiers`] decides and moves nothing, like the cache above it, which it gets with every call: it returns page pairs, the
//! caller copies them and tells when it is over. The host tier is a [`Cache`] of its own, with its own pools, policy,
//! leases and integrity check, in which a copy down is a sequence that loads instead of computing, and a copy up a loan.
//! So each tier is closed under prefixes by itself and evicts by itself; a page that goes down takes its ancestors along.
//!
//! Nothing is told of a page before its bytes are there: what comes up is published by [`Tiers::fetched`], what goes down
//! by [`Tiers::saved`], and both ends are leased until then.

use super::back::Dirty;
use super::plan::{Cost, Residency, union_boundary};
use super::types::{Fetch, Pairs, Prefix, Story, TierConfig, TierStats};
use crate::cache::{Boundary, Cache, CacheConfig, LoadOptions, PageKey, SeqId};
use crate::error::{Error, Result};
use crate::key::Key;
use crate::policy::{Retention, kind};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// A load on its way up.
#[derive(Debug)]
struct Coming {
    seq: SeqId,
    /// The loan of the host tier.
    loan: u64,
    from: u64,
    to: u64,
    full: u64,
    swa: u64,
}

/// A boundary on its way down.
#[derive(Debug)]
pub(super) struct Going {
    /// The host tier's sequence.
    pub(super) seq: SeqId,
    /// The loan of the cache above, if it has any of the pages.
    pub(super) loan: Option<u64>,
    pub(super) full: u64,
    pub(super) swa: u64,
    /// Key of the page that ends at the boundary.
    pub(super) key: [u8; 32],
    /// Logical SWA pages that come from another process with their records; `None` for a copy from above alone.
    pub(super) awaited: Option<Vec<u64>>,
    /// What goes down after it.
    pub(super) rest: Option<Rest>,
}

/// Boundaries of one prompt, deepest first, with the keys of the pages that end there.
pub(super) type Chain = Vec<(Boundary, PageKey)>;

/// What goes down after the boundary that is on its way.
#[derive(Debug)]
pub(super) struct Rest {
    pub(super) story: Story,
    pub(super) chain: Chain,
}

impl Rest {
    pub(super) fn of(prefix: &Prefix<'_>, chain: Chain) -> Rest {
        let end = chain.iter().map(|(b, _)| b.at).max().unwrap_or(0);
        Rest { story: Story::of(prefix, end), chain }
    }
}

/// See the module's text.
#[derive(Debug)]
pub struct Tiers {
    pub(super) config: TierConfig,
    pub(super) host: Cache,
    pub(super) cost: Cost,
    coming: BTreeMap<u64, Coming>,
    pub(super) going: BTreeMap<u64, Going>,
    /// Boundaries on their way down.
    pub(super) saving: BTreeSet<[u8; 32]>,
    /// What waits to be written back.
    pub(super) dirty: Dirty,
    /// Loans of the host tier for the tier below it.
    pub(super) lending: BTreeSet<u64>,
    /// Number of the layout of the bytes of host pages.
    pub(super) layout: [u8; 32],
    pub(super) stats: TierStats,
    need: u64,
}

impl Tiers {
    /// A host tier below `above`. What is set there later by `set_weights` must be told here as well.
    ///
    /// # Errors
    /// [`Error::Invalid`] for pools that cannot hold one window, or of groups that the cache above does not have.
    pub fn new(above: &Cache, config: TierConfig) -> Result<Tiers> {
        let c = above.config();
        for (what, pages, upper) in
            [("host full_pages", config.full_pages, c.full_pages), ("host swa_pages", config.swa_pages, c.swa_pages)]
        {
            if (pages > 0) != (upper > 0) {
                let allowed = if upper > 0 { "at least 1, as above" } else { "0, as above" };
                return Err(Error::invalid(what, pages, allowed));
            }
        }
        if c.region.is_some() {
            // Its pages move between chunks by copies that other threads do not wait for.
            return Err(Error::invalid("cache", "one with a region", "one with pools of fixed size"));
        }
        if config.max_saving == 0 {
            return Err(Error::invalid("max_saving", 0, "at least 1 page"));
        }
        let window = if c.swa_pages > 0 { c.window } else { 0 };
        let need = u64::from(window.div_ceil(c.page_size));
        let retention = Retention { seq_end: false, branch: false, stride: 0, dense_stride: 0, ..c.retention.clone() };
        let mut host = Cache::new(CacheConfig {
            full_pages: config.full_pages,
            swa_pages: config.swa_pages,
            // The window before and after a load, of a sequence or two.
            scratch_pages: (4 * need as u32).min(config.swa_pages / 8),
            retention,
            event_capacity: 0,
            ghost_pages: config.full_pages.min(1 << 20),
            max_pinned_pages: 0,
            region: None,
            ..c.clone()
        })?;
        host.set_weights(above.weights())?;
        Ok(Tiers {
            config,
            host,
            cost: Cost::default(),
            coming: BTreeMap::new(),
            going: BTreeMap::new(),
            saving: BTreeSet::new(),
            lending: BTreeSet::new(),
            dirty: Dirty::default(),
            layout: [0; 32],
            stats: TierStats::default(),
            need,
        })
    }

    /// The host tier, for counters and lookups.
    pub fn host(&self) -> &Cache {
        &self.host
    }

    /// How it is set up.
    pub fn config(&self) -> &TierConfig {
        &self.config
    }

    /// What loads and tokens cost from now on.
    pub fn set_cost(&mut self, cost: Cost) {
        self.cost = cost;
    }

    /// See [`Cache::set_weights`].
    pub fn set_weights(&mut self, version: &[u8]) -> Result<()> {
        self.host.set_weights(version)
    }

    /// See [`Cache::clear`].
    pub fn clear(&mut self, key: Option<&Key>) {
        self.host.clear(key);
    }

    /// See [`Cache::set_now`].
    pub fn set_now(&mut self, ms: u64) {
        self.host.set_now(ms);
    }

    /// Counters, and what is on its way.
    pub fn stats(&self) -> TierStats {
        let saving = self.going.values().filter(|g| g.awaited.is_none()).map(|g| g.full + g.swa).sum();
        let (fetching, lending) = (self.coming.len() as u64, self.lending.len() as u64);
        TierStats { saving_pages: saving, fetching, lending, dirty_pages: self.dirty.pages(), ..self.stats }
    }

    /// The longest usable prefix of both tiers together, in tokens, with one token left to compute. No lease, no recency.
    ///
    /// # Errors
    /// As [`Cache::match_tokens`].
    pub fn usable(&self, above: &Cache, prefix: &Prefix<'_>) -> Result<u64> {
        let Prefix { tokens, key, spans, .. } = *prefix;
        let page = self.page();
        let own = above.match_tokens(tokens, key, spans)?.usable / page;
        let from = own.saturating_sub(self.need);
        let (depth, map) = above.window_map(tokens, key, spans, from)?;
        let (host_depth, host_map) = self.host.window_map(tokens, key, spans, from)?;
        let tiers = [Residency { depth, from, swa: &map }, Residency { depth: host_depth, from, swa: &host_map }];
        let limit = (tokens.len() as u64 - 1) / page;
        Ok(self.together(&tiers, 0..0, own, limit).unwrap_or(own) * page)
    }

    /// The boundary that tiers reach together, in pages.
    fn together(&self, tiers: &[Residency<'_>], held: Range<u64>, above: u64, limit: u64) -> Option<u64> {
        match self.config.rules.mixed {
            true => union_boundary(tiers, held, above, limit, self.need),
            false => tiers.iter().filter_map(|t| union_boundary(&[*t], 0..0, above, limit, self.need)).max(),
        }
    }

    /// A load on its way whose prefix a request with these tokens shares beyond what it would find now: opened after
    /// that load is over, the request has it without one of its own.
    ///
    /// # Errors
    /// As [`Cache::match_tokens`].
    pub fn awaits(&self, above: &Cache, prefix: &Prefix<'_>) -> Result<Option<u64>> {
        if self.coming.is_empty() {
            return Ok(None);
        }
        let own = above.match_tokens(prefix.tokens, prefix.key, prefix.spans)?.usable;
        let shares = |c: &Coming| {
            let last = (prefix.tokens.len() as u64 - 1) / self.page() * self.page();
            let common = c.to.min(last);
            common > own && common > c.from && above.begins_like(c.seq, prefix.tokens, prefix.key, prefix.spans, common)
        };
        Ok(self.coming.iter().find(|(_, c)| shares(c)).map(|(&id, _)| id))
    }

    /// Brings up what the host tier has for a sequence that was just opened, beyond what it started from. The sequence
    /// stands at [`Fetch::to`] at once; it may reserve and fill, and commit after [`Self::fetched`]. `None`: there is
    /// nothing more, it does not pay, or a pool has no room.
    ///
    /// # Errors
    /// [`Error::State`] for a sequence that has ended, is parked, has reserved slots or a load on its way.
    pub fn fetch(&mut self, above: &mut Cache, seq: SeqId) -> Result<Option<Fetch>> {
        let page = self.page();
        let Some(own) = above.standing(seq)? else { return Ok(None) };
        let (tokens, key, spans) = (own.tokens, own.key, own.spans);
        let (at, len) = (own.committed / page, tokens.len() as u64);
        let held = own.held;
        let from = at.saturating_sub(self.need);
        let (host_depth, host_map) = self.host.window_map(&tokens, &key, &spans, from)?;
        let (depth, map) = above.window_map(&tokens, &key, &spans, from)?;
        let tiers = [Residency { depth, from, swa: &map }, Residency { depth: host_depth, from, swa: &host_map }];
        let Some(end) = self.together(&tiers, held, at, (len - 1) / page) else { return Ok(None) };
        let to = end * page;
        let missing = above.missing(seq, to)?;
        let (full, swa) = (missing.full.end - missing.full.start, missing.swa.len() as u64);
        if !self.cost.pays(to - at * page, full, swa) {
            self.stats.declined += 1;
            return Ok(None);
        }
        let prefix = (&tokens[..], &key, &spans[..]);
        let Some(loan) = self.host.lend(prefix, missing.full.clone(), &missing.swa)? else {
            // A page that only the cache above had when it was planned; what is there is computed from.
            self.stats.no_room_above += 1;
            return Ok(None);
        };
        let kept = self.host.boundaries(&tokens, &key, &spans, to - page, 1)?;
        let kinds = kept.first().filter(|b| b.at == to).map_or(kind::PROMPT_END, |b| b.kinds | kind::PROMPT_END);
        let kinds = if self.config.rules.heal { kinds } else { 0 };
        let options = LoadOptions { to, kinds, records: &loan.records, keep_records: false };
        let load = match above.load(seq, &options) {
            Ok(load) => load,
            Err(error) => {
                self.host.move_done(loan.id)?;
                self.stats.no_room_above += 1;
                return if matches!(error, Error::OutOfPages(_)) { Ok(None) } else { Err(error) };
            }
        };
        let pair = |below: &[u32], here: &[(u64, u32)]| here.iter().map(|h| h.1).zip(below.iter().copied()).collect();
        let pairs = Pairs { full: pair(&loan.full, &load.full), swa: pair(&loan.swa, &load.swa) };
        self.coming.insert(load.id, Coming { seq, loan: loan.id, from: at * page, to, full, swa });
        self.stats.fetches += 1;
        Ok(Some(Fetch { id: load.id, pairs, rebuilds: load.rebuilds, from: at * page, to }))
    }

    /// A load is over: its bytes are there and its rebuilds were run, or nothing of it is written any more. True when
    /// its sequence goes on from them.
    ///
    /// # Errors
    /// [`Error::Order`] for a number that is no load on its way.
    pub fn fetched(&mut self, above: &mut Cache, id: u64, ok: bool) -> Result<bool> {
        let Some(coming) = self.coming.get(&id) else {
            let running: Vec<_> = self.coming.keys().take(8).collect();
            return Err(Error::Order { what: "load", value: id, expected: format!("one of {running:?}") });
        };
        let arrived = above.load_done(id, ok)?;
        self.host.move_done(coming.loan)?;
        if arrived {
            self.stats.fetched_tokens += coming.to - coming.from;
            self.stats.fetched_full += coming.full;
            self.stats.fetched_swa += coming.swa;
        } else {
            self.stats.fetches_failed += 1;
        }
        self.coming.remove(&id);
        Ok(arrived)
    }

    /// A request that [`Self::save`] is not told of was served: what the host tier has of its prompt counts as used.
    ///
    /// # Errors
    /// As [`Cache::match_tokens`].
    pub fn used(&mut self, prefix: &Prefix<'_>) -> Result<()> {
        match self.config.rules.touch {
            true => self.host.touch(prefix.tokens, prefix.key, prefix.spans),
            false => Ok(()),
        }
    }

    /// The host tier itself, to stand above another one in a replay.
    pub(crate) fn host_mut(&mut self) -> &mut Cache {
        &mut self.host
    }

    /// Numbers of the fetches, saves and receives on their way, ascending: an interrupt can come between a call and who
    /// would have noted its number.
    pub fn moving(&self) -> (Vec<u64>, Vec<u64>, Vec<u64>) {
        let going =
            |receives| self.going.iter().filter(move |(_, g)| g.awaited.is_some() == receives).map(|(&id, _)| id);
        (self.coming.keys().copied().collect(), going(false).collect(), going(true).collect())
    }

    pub(super) fn page(&self) -> u64 {
        u64::from(self.host.config().page_size)
    }

    pub(super) fn need(&self) -> u64 {
        self.need
    }

    /// The host tier's own check, and that everything on its way is known on both sides.
    ///
    /// # Errors
    /// [`Error::Integrity`].
    pub fn check_integrity(&self) -> Result<()> {
        self.host.check_integrity()?;
        let keys: BTreeSet<_> = self.going.values().map(|g| g.key).collect();
        if keys != self.saving {
            return Err(Error::Integrity(format!(
                "{} boundaries go down, {} are noted",
                keys.len(),
                self.saving.len()
            )));
        }
        let open = self.host.stats().open_sequences;
        if open != self.going.len() as u64 {
            return Err(Error::Integrity(format!(
                "{open} sequences of the host tier, {} copies down",
                self.going.len()
            )));
        }
        Ok(())
    }
}
