//! The split of a region between the pools: chunks change owner by what they are worth.
//!
//! One chunk changes at a time, in small steps. It *drains* first: from then on the giving pool hands nothing of it out,
//! counts its promises against the rest, and takes every page of it out of use. Free pages are withdrawn at once;
//! quarantined ones when their step or move is over; cached ones that nobody holds are copied to other pages of the same
//! pool by the plans that are handed out anyway, a few in each; leased and private ones wait until they are let go. Only
//! when the last page is withdrawn does the other pool get the chunk's ids, so that no byte of it is ever used by both.
//!
//! A chunk drains only while every promise and the highest demand of late fit what is left.

use super::{Cache, Group, PageCopy, Stats, Why};
use crate::error::{Error, OutOfPages, PoolName, Result};
use crate::pool::{Full, Holding, Page, Quarantined, Region, Swa};
use crate::tree::Until;

/// Most pages that one plan copies out of a chunk that drains.
const COPIES: usize = 32;
/// Pages looked at for them.
const LOOKS: u32 = 512;
/// SWA pages by which one call lets the cache shrink towards a smaller share.
const SHRINK: u64 = 8;
/// Opened sequences over which the highest demand is remembered, at least.
const RECENT: u64 = 256;
/// Opened sequences, or refused ones, after which a chunk that loses no page any more is kept after all.
const STUCK: u64 = 64;
/// Pages looked at in all chunks of a pool, and most in one of them, to find the one that is held least.
const SAMPLES: (u32, u32) = (1024, 16);

/// Old pages of the copies in one plan.
#[derive(Debug, Default)]
pub(super) struct Moved {
    pub(super) copies: Vec<PageCopy>,
    pub(super) full: Vec<Page<Full, Quarantined>>,
    pub(super) swa: Vec<Page<Swa, Quarantined>>,
}

#[derive(Debug, Clone, Copy)]
struct Drain {
    from: Group,
    chunk: u32,
    first: u32,
    len: u32,
    /// Where the next look begins, counted from `first`.
    cursor: u32,
    /// Pages left, and opened sequences and refusals since that number fell.
    left: u32,
    waited: u64,
    refused: u64,
}

/// The highest of values seen over the last one to two stretches of [`RECENT`].
#[derive(Debug, Clone, Copy, Default)]
struct Peak {
    now: u64,
    before: u64,
}

impl Peak {
    fn see(&mut self, value: u64, turn: bool) {
        if turn {
            (self.before, self.now) = (self.now, 0);
        }
        self.now = self.now.max(value);
    }

    fn get(&self) -> u64 {
        self.now.max(self.before)
    }
}

/// See the module's text.
#[derive(Debug)]
pub(super) struct Split {
    region: Region,
    drain: Option<Drain>,
    /// SWA pages beyond the share that the cache may still keep, while it shrinks.
    slack: u64,
    /// The chunk that did not become empty last.
    kept: Option<(Group, u32)>,
    full_peak: Peak,
    swa_peak: Peak,
    opens: u64,
    stats: SplitStats,
}

/// How a region is split, and what changed so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SplitStats {
    /// Chunks of the full pool, one that drains included. 0 without a region, as everything here.
    pub full_chunks: u64,
    /// Chunks of the SWA pool likewise.
    pub swa_chunks: u64,
    /// The pool that gives a chunk up just now.
    pub draining: Option<Group>,
    /// Pages of that chunk that are not withdrawn yet.
    pub draining_pages: u64,
    /// Chunks that the full pool got so far.
    pub to_full: u64,
    /// Chunks that the SWA pool got so far.
    pub to_swa: u64,
    /// Chunks that did not become empty and stayed.
    pub kept: u64,
    /// Full pages copied out of chunks.
    pub full_relocated: u64,
    /// SWA pages copied out of chunks.
    pub swa_relocated: u64,
}

impl Split {
    pub(super) fn new(region: &Region) -> Self {
        Split {
            region: region.clone(),
            drain: None,
            slack: 0,
            kept: None,
            full_peak: Peak::default(),
            swa_peak: Peak::default(),
            opens: 0,
            stats: SplitStats::default(),
        }
    }
}

impl Cache {
    /// Begins to give a chunk of the other pool to `to`: this one, or the one with the fewest pages in use. `false` when
    /// one drains already, or when the other pool would get smaller than its least, or could not keep its promises or
    /// meet the highest demand of late.
    pub fn reassign(&mut self, to: Group, chunk: Option<u32>) -> Result<bool> {
        let Some(split) = self.split.as_deref() else {
            let allowed = "only for a cache with a region";
            return Err(Error::invalid("pool that gets a chunk", format!("{to:?}"), allowed));
        };
        if let Some(chunk) = chunk {
            match self.chunk_owner(chunk) {
                Some((from, _)) if from != to => {}
                Some(_) => return Err(Error::invalid("chunk", chunk, "one of the other pool")),
                None => return Err(Error::invalid("chunk", chunk, format!("0 to {}", split.region.chunks - 1))),
            }
        }
        let begun = self.begin_drain(to, chunk);
        if let Some(balance) = self.tree.balance().filter(|_| begun) {
            // Whoever asks for chunks does not want them back at once.
            balance.restart();
        }
        self.rebalance();
        self.settle();
        Ok(begun)
    }

    /// The pool that has a chunk, and whether the chunk drains; `None` for a chunk that does not exist.
    pub fn chunk_owner(&self, chunk: u32) -> Option<(Group, bool)> {
        let (full, swa) = self.tree.full.chunks().zip(self.tree.swa.chunks())?;
        if chunk >= full.count() {
            return None;
        }
        match (full.holding(chunk), swa.holding(chunk)) {
            (Holding::Other, swa) => Some((Group::Swa, swa == Holding::Draining)),
            (full, _) => Some((Group::Full, full == Holding::Draining)),
        }
    }

    pub(super) fn begin_drain(&mut self, to: Group, chunk: Option<u32>) -> bool {
        let Some(split) = self.split.as_deref().filter(|s| s.drain.is_none()) else { return false };
        let (tree, region) = (&self.tree, &split.region);
        let (from, left, least, slack) = match to {
            Group::Swa => {
                let held = u64::from(tree.full.private()) + tree.leased_full() + self.promised;
                let least = u64::from(region.min_full_chunks) * u64::from(region.full_pages);
                let left = u64::from(tree.full.usable()).saturating_sub(u64::from(region.full_pages));
                (Group::Full, left, least.max(held).max(split.full_peak.get()), 0)
            }
            Group::Full => {
                let held = (self.quota + self.copy_holds).max(split.swa_peak.get());
                let least = u64::from(region.min_swa_chunks) * u64::from(region.swa_pages);
                let left = u64::from(tree.swa.usable()).saturating_sub(u64::from(region.swa_pages));
                (Group::Swa, left, least.max(u64::from(self.config.scratch_pages) + held), region.swa_pages)
            }
        };
        if left < least {
            return false;
        }
        let Some(chunk) = chunk.or_else(|| self.loosest(from)) else { return false };
        let tree = &mut self.tree;
        let (first, len) = if from == Group::Full { tree.full.drain(chunk) } else { tree.swa.drain(chunk) };
        let split = self.split.as_deref_mut().expect("checked above");
        split.drain = Some(Drain { from, chunk, first, len, cursor: 0, left: len, waited: 0, refused: 0 });
        split.slack = u64::from(slack);
        true
    }

    /// The chunk of which the fewest pages are held, as far as samples tell; of those the emptiest, and then the highest.
    /// Not the one that did not become empty last, if there is another.
    fn loosest(&self, from: Group) -> Option<u32> {
        let (tree, split) = (&self.tree, self.split.as_deref()?);
        let ids = if from == Group::Full { tree.full.chunks()? } else { tree.swa.chunks()? };
        let samples = (SAMPLES.0 / ids.count()).clamp(1, SAMPLES.1);
        let step = ids.per().div_ceil(samples).max(1);
        let held = |page: u32| match from {
            Group::Full => tree.full.is_private(page) || tree.full.is_cached(page) && !tree.is_idle_full(page),
            Group::Swa => tree.swa.is_private(page) || tree.swa.is_cached(page) && !tree.is_idle_swa(page),
        };
        ids.owned().min_by_key(|&chunk| {
            let first = ids.first_id(chunk);
            let pages = (first..first + ids.per()).step_by(step as usize);
            (split.kept == Some((from, chunk)), pages.filter(|&page| held(page)).count(), ids.live(chunk))
        })
    }

    /// SWA pages beyond their share that may stay a little longer.
    pub(super) fn shrinking(&mut self) -> u64 {
        let Some(split) = self.split.as_deref_mut() else { return 0 };
        split.slack = split.slack.saturating_sub(SHRINK);
        split.slack
    }

    /// SWA pages by which the share shrinks just now.
    pub(super) fn given_up(&self) -> u64 {
        let Some(split) = self.split.as_deref() else { return 0 };
        split.drain.map_or(0, |d| if d.from == Group::Swa { u64::from(d.len) - split.slack } else { 0 })
    }

    /// The same, without taking a step.
    pub(super) fn slack(&self) -> u64 {
        self.split.as_ref().map_or(0, |s| s.slack)
    }

    /// Copies pages out of the chunk that drains, for a plan that is over at `until`. Makes room by the policy where
    /// there is none.
    pub(super) fn move_pages(&mut self, until: Until) -> Moved {
        let mut moved = Moved::default();
        let Some(drain) = self.split.as_ref().and_then(|s| s.drain) else { return moved };
        let mut at = drain.cursor;
        for _ in 0..drain.len.min(LOOKS) {
            if moved.copies.len() == COPIES || !self.has_room_to_move(drain.from) {
                break;
            }
            let src = drain.first + at;
            let dst = match drain.from {
                Group::Full => self.tree.relocate_full(src, until).map(|(dst, old)| {
                    moved.full.push(old);
                    dst
                }),
                Group::Swa => self.tree.relocate_swa(src, until).map(|(dst, old)| {
                    moved.swa.push(old);
                    dst
                }),
            };
            moved.copies.extend(dst.map(|dst| PageCopy { group: drain.from, src, dst }));
            at = (at + 1) % drain.len;
        }
        let split = self.split.as_deref_mut().expect("checked above");
        split.stats.full_relocated += moved.full.len() as u64;
        split.stats.swa_relocated += moved.swa.len() as u64;
        if let Some(drain) = &mut split.drain {
            drain.cursor = at;
        }
        moved
    }

    /// Makes sure of one free page beyond what is promised.
    fn has_room_to_move(&mut self, group: Group) -> bool {
        let tree = &mut self.tree;
        match group {
            Group::Full => {
                if u64::from(tree.full.free()) + tree.evictable_full() <= self.promised {
                    return false;
                }
                tree.full.free() > 0 || tree.evict_full(1, Why::Chunk) > 0
            }
            Group::Swa => {
                // The cache shrinks to its new share anyway; room beyond scratch comes from that.
                let scratch = u64::from(self.config.scratch_pages) - self.scratch_used;
                tree.swa.free() > 0 && u64::from(tree.swa.free()) + tree.evictable_swa() > scratch
            }
        }
    }

    /// The end of every call that changes something: a chunk without pages is the other pool's from here on, and
    /// changes become events.
    pub(super) fn settle(&mut self) {
        self.settle_split();
        self.tree.settle();
    }

    fn settle_split(&mut self) {
        let Some(split) = self.split.as_deref_mut() else { return };
        let Some(drain) = &mut split.drain else { return };
        let tree = &mut self.tree;
        let left = if drain.from == Group::Full { tree.full.draining() } else { tree.swa.draining() };
        if left < drain.left {
            (drain.left, drain.waited, drain.refused) = (left, 0, 0);
        }
        if left > 0 {
            return;
        }
        match drain.from {
            Group::Full => {
                let chunk = tree.full.give_up();
                tree.swa.take_over(chunk);
                split.stats.to_swa += 1;
            }
            Group::Swa => {
                let chunk = tree.swa.give_up();
                tree.full.take_over(chunk);
                split.stats.to_full += 1;
            }
        }
        (split.drain, split.slack) = (None, 0);
    }

    /// A sequence was opened: remembers the demand, and begins the change that is due, if one is.
    pub(super) fn weigh(&mut self) {
        let Some(split) = self.split.as_deref_mut() else { return };
        split.opens += 1;
        let turn = split.opens.is_multiple_of(RECENT);
        let tree = &self.tree;
        split.full_peak.see(u64::from(tree.full.private()) + tree.leased_full() + self.promised, turn);
        split.swa_peak.see(self.quota + self.copy_holds, turn);
        match &mut split.drain {
            Some(drain) if drain.waited < STUCK => drain.waited += 1,
            Some(_) => self.keep_chunk(),
            None => self.balance(),
        }
    }

    /// The chunk that drains stays with its pool.
    fn keep_chunk(&mut self) {
        let Some(split) = self.split.as_deref_mut() else { return };
        let Some(drain) = split.drain.take() else { return };
        if drain.from == Group::Full {
            self.tree.full.undrain()
        } else {
            self.tree.swa.undrain()
        }
        (split.kept, split.slack) = (Some((drain.from, drain.chunk)), 0);
        split.stats.kept += 1;
    }

    /// A sequence was not opened for want of pages. The first time (`fresh`) that is evidence for the pool that was short,
    /// if chunks can cure it at all. A chunk that empties no further is not withheld for ever from requests that all fail:
    /// it is the one thing that a refusal may change, and not what lookups find.
    pub(super) fn refused(&mut self, short: &OutOfPages, fresh: bool) {
        let Some(split) = self.split.as_deref_mut() else { return };
        let by = match short.pool {
            PoolName::Full => Group::Full,
            PoolName::Swa => Group::Swa,
            PoolName::Scratch => return,
        };
        if let Some(balance) = self.tree.balance().filter(|_| fresh && short.needed <= short.most) {
            balance.refused(by);
        }
        let Some(drain) = &mut split.drain else { return };
        drain.refused += 1;
        if drain.refused > STUCK {
            self.keep_chunk();
        }
    }

    /// The most pages that the pools could ever promise, with all chunks that the other one can do without: full, and SWA
    /// without scratch.
    pub(super) fn most_pages(&self) -> (u64, u64) {
        let Some(split) = self.split.as_deref() else {
            return (u64::from(self.tree.full.usable()), self.swa_share());
        };
        let r = &split.region;
        let pages = |other: u32, per: u32| u64::from(r.chunks - other) * u64::from(per);
        let scratch = u64::from(self.config.scratch_pages);
        (pages(r.min_swa_chunks, r.full_pages), pages(r.min_full_chunks, r.swa_pages) - scratch)
    }

    /// A pool gets the chunk that it is due.
    fn balance(&mut self) {
        let Some(balance) = self.tree.balance() else { return };
        let (fresh, due) = (balance.due(true), balance.due(false));
        let Some(to) = fresh else { return };
        let other = if to == Group::Full { self.tree.swa.chunks() } else { self.tree.full.chunks() };
        let unused = other.and_then(|chunks| chunks.fresh());
        let begun = match (unused, due) {
            (None, None) => return,
            (unused, _) => self.begin_drain(to, unused),
        };
        if let Some(balance) = self.tree.balance().filter(|_| begun) {
            if unused.is_some() {
                balance.restart()
            } else {
                balance.moved(to)
            }
            self.rebalance();
        }
    }

    /// Pages that the full and the SWA pool can promise now, scratch included: those of a chunk that drains left out.
    pub fn usable_pages(&self) -> (u64, u64) {
        (u64::from(self.tree.full.usable()), u64::from(self.tree.swa.usable()))
    }

    /// The split's part of the statistics.
    pub fn split_stats(&self) -> SplitStats {
        let Some(split) = self.split.as_deref() else { return SplitStats::default() };
        let (full, swa) = (&self.tree.full, &self.tree.swa);
        let drains = |group| u64::from(split.drain.is_some_and(|d| d.from == group));
        SplitStats {
            full_chunks: u64::from(full.usable() / split.region.full_pages) + drains(Group::Full),
            swa_chunks: u64::from(swa.usable() / split.region.swa_pages) + drains(Group::Swa),
            draining: split.drain.map(|d| d.from),
            draining_pages: u64::from(full.draining() + swa.draining()),
            ..split.stats
        }
    }

    /// What must hold of the split between calls.
    pub(super) fn check_split(&self) -> std::result::Result<(), String> {
        let Some(split) = self.split.as_deref() else { return Ok(()) };
        let stats = self.split_stats();
        if stats.full_chunks + stats.swa_chunks != u64::from(split.region.chunks) {
            return Err(format!(
                "{} full and {} SWA chunks of {}",
                stats.full_chunks, stats.swa_chunks, split.region.chunks
            ));
        }
        let (full, swa) = (self.tree.full.drain_chunk(), self.tree.swa.drain_chunk());
        if full.is_some() != (stats.draining == Some(Group::Full))
            || swa.is_some() != (stats.draining == Some(Group::Swa))
        {
            return Err(format!("chunks {full:?} and {swa:?} drain, known is {:?}", stats.draining));
        }
        let least = split.region.min_swa_chunks * split.region.swa_pages;
        if self.tree.swa.usable() < least {
            return Err(format!("{} SWA pages are left, the least is {least}", self.tree.swa.usable()));
        }
        Ok(())
    }
}

impl Stats {
    /// Part of a region's chunks that the SWA pool has; `None` without a region.
    pub fn swa_chunk_share(&self) -> Option<f64> {
        let all = self.split.full_chunks + self.split.swa_chunks;
        (all > 0).then(|| self.split.swa_chunks as f64 / all as f64)
    }
}
