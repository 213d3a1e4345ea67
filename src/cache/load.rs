//! `load`: a sequence goes on from rows that another tier has, instead of computing them.
//!
//! `missing` tells which pages a boundary lacks. `load` takes pages for them and moves the sequence there at once, so that
//! slots can be reserved and a step filled while bytes still come, layer by layer; nothing is published and nothing may
//! be committed before `load_done`. A load that failed puts the sequence back to where it was: the window it had is kept
//! until then, and the rest is computed.

use super::moves::PendingCopy;
use super::sequence::{Loaded, Loading, Seq, SwaHold};
use super::{Cache, Group, MtpRebuild, PageCopy, Record, SeqId, Why};
use crate::cache::commit::When;
use crate::error::{Error, Result};
use crate::pool::{Hold, MoveBucket};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::ops::Range;

/// Pages that a sequence lacks to go on from a boundary, as logical pages.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Missing {
    /// Full pages.
    pub full: Range<u64>,
    /// SWA pages of the boundary's window, ascending.
    pub swa: Vec<u64>,
}

/// What is to be loaded.
#[derive(Debug, Clone)]
pub struct LoadOptions<'a> {
    /// The boundary to go on from, in tokens.
    pub to: u64,
    /// Kinds of the checkpoint that is kept there ([`kind`](crate::policy::kind)); 0: none is.
    pub kinds: u8,
    /// Of each of the SWA pages that [`Cache::missing`] names: the tokens after it with which its MTP rows were made.
    pub records: &'a [Record],
    /// Pages keep the records they come with. Else the reader's own tokens count, and rows that were made with others are
    /// rebuilt.
    pub keep_records: bool,
}

/// Where to write what is loaded.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Load {
    /// Its number, for [`Cache::load_done`].
    pub id: u64,
    /// (logical page, page id).
    pub full: Vec<(u64, u32)>,
    /// (logical page, page id).
    pub swa: Vec<(u64, u32)>,
    /// MTP rows to rebuild when the bytes are there, before [`Cache::load_done`].
    pub rebuilds: Vec<MtpRebuild>,
}

/// Where an SWA page of the window comes from.
enum Source {
    /// The sequence holds it.
    Held,
    /// The tree has it as the reader needs it.
    Tree(u32),
    /// The tree has it with other MTP rows.
    Stale(u32),
    /// Another tier.
    Elsewhere,
}

impl Cache {
    /// What the sequence lacks to go on from boundary `to` instead of from its committed length. It must have no reserved
    /// slots and no load on the way, and stand at a boundary itself.
    pub fn missing(&self, id: SeqId, to: u64) -> Result<Missing> {
        self.check_load(id, to)?;
        let seq = &self.seqs[id.index];
        let pages = to / self.page();
        let from = (seq.table.len() as u64).min(pages);
        let full = if self.tree.has_full { from..pages } else { 0..0 };
        let swa = self.sources(id.index, pages as u32, false);
        let swa = swa.into_iter().filter(|(_, s)| matches!(s, Source::Elsewhere)).map(|(l, _)| u64::from(l)).collect();
        Ok(Missing { full, swa })
    }

    /// An open sequence without reserved slots or rows on their way.
    pub(super) fn loadable(&self, id: SeqId) -> Result<&Seq> {
        let seq = self.open_seq(id, "load into")?;
        let state = match (seq.load.is_some(), seq.reserved > 0) {
            (true, _) => "loading",
            (_, true) => "computing",
            _ => return Ok(seq),
        };
        Err(Error::State { call: "load into", state, allowed: "open, with nothing reserved" })
    }

    fn check_load(&self, id: SeqId, to: u64) -> Result<()> {
        let seq = self.loadable(id)?;
        if !seq.committed.is_multiple_of(self.page()) {
            let (call, allowed) = ("load into", "at a boundary");
            return Err(Error::State { call, state: "inside a page", allowed });
        }
        let known = seq.tokens.len() as u64;
        if !to.is_multiple_of(self.page()) || to <= seq.committed || to > known {
            let allowed = format!("a multiple of {} above {} and at most {known}", self.page(), seq.committed);
            return Err(Error::invalid("boundary to load", to, allowed));
        }
        Ok(())
    }

    /// Where each page of the window of boundary `end` (in pages) comes from, ascending.
    fn sources(&self, index: u32, end: u32, keep_records: bool) -> SmallVec<[(u32, Source); 8]> {
        let (seq, tree) = (&self.seqs[index], &self.tree);
        let first = end - tree.need_at(end);
        let node = seq.node(tree);
        let held = seq.swa_first..seq.swa_end();
        (first..end)
            .map(|logical| {
                if held.contains(&logical) {
                    return (logical, Source::Held);
                }
                let page = if logical < seq.leased { tree.slots.swa(tree.slot_above(node, logical)) } else { 0 };
                let source = match page {
                    0 => Source::Elsewhere,
                    page if keep_records || self.is_own(index, logical, tree.record(page)) => Source::Tree(page),
                    page => Source::Stale(page),
                };
                (logical, source)
            })
            .collect()
    }

    /// MTP rows that were made with `record` are those of the sequence: its next `n_mtp` tokens are known and the same.
    fn is_own(&self, index: u32, logical: u32, record: impl Iterator<Item = u32>) -> bool {
        let end = (logical as usize + 1) * self.tree.page as usize;
        let own = self.seqs[index].tokens.get(end..end + self.tree.n_mtp as usize);
        own.is_some_and(|own| record.eq(own.iter().copied()))
    }

    /// Moves the sequence to boundary `to` and tells which pages are to be written. See the module's text.
    pub fn load(&mut self, id: SeqId, options: &LoadOptions<'_>) -> Result<Load> {
        let missing = self.missing(id, options.to)?;
        let records = options.records;
        if records.len() != missing.swa.len() {
            let allowed = format!("{}, one for each missing SWA page", missing.swa.len());
            return Err(Error::invalid("number of records", records.len(), allowed));
        }
        self.check_records(records.iter())?;
        let end = (options.to / self.page()) as u32;
        let sources = self.sources(id.index, end, options.keep_records);
        self.check_load_room(id.index, &missing, &sources)?;
        self.begin(id.index);

        // Window pages of the tree first, so that making room cannot drop them.
        for (_, source) in &sources {
            if let Source::Tree(page) | Source::Stale(page) = source {
                self.tree.lease_swa(*page);
            }
        }
        let move_id =
            self.tree.fence.start_move(MoveBucket { seqs: vec![(id.index, id.generation)], ..MoveBucket::default() });
        let first = end - self.tree.need_at(end);
        let seq = &mut self.seqs[id.index];
        let kept = (first.max(seq.swa_first) - seq.swa_first).min(seq.swa.len() as u32);
        let old: VecDeque<SwaHold> = seq.swa.drain(..kept as usize).collect();
        seq.load = Some(Box::new(Loading {
            id: move_id,
            from: seq.committed,
            to: options.to,
            kinds: options.kinds,
            keep_records: options.keep_records,
            window: old,
            window_first: seq.swa_first,
            table: seq.table.len(),
            full_from: seq.full_from,
            swa_from: seq.swa_from,
        }));
        if seq.swa.is_empty() {
            seq.swa_first = first;
        } else {
            seq.swa_first += kept;
        }
        seq.moves.push(move_id);
        let mut load = Load { id: move_id, ..Load::default() };
        let short = (missing.full.end - missing.full.start).saturating_sub(u64::from(self.tree.full.free()));
        if short > 0 {
            self.tree.evict_full(short as u32, Why::FullPool);
        }
        for logical in missing.full {
            let page = self.allocate_full().expect("counted before");
            load.full.push((logical, page.id()));
            let seq = &mut self.seqs[id.index];
            self.promised -= u64::from((seq.table.len() as u64) < seq.budget);
            seq.table.push(page.id());
            seq.own.push_back(page);
        }
        let mut records = records.iter();
        for (logical, source) in sources {
            let hold = match source {
                Source::Held => continue,
                Source::Tree(page) => SwaHold::Leased(page),
                Source::Stale(page) => self.own_copy(id, logical, page, options.to),
                Source::Elsewhere => {
                    let own = self.allocate_swa().expect("counted before");
                    load.swa.push((u64::from(logical), own.id()));
                    let record = records.next().expect("one for each missing page");
                    let fits = self.is_own(id.index, logical, record.iter().copied());
                    if !options.keep_records && !fits {
                        load.rebuilds.extend(self.rebuild_of(id, logical, own.id(), options.to));
                    }
                    let whole = options.keep_records || fits;
                    let record = options.keep_records.then(|| record.clone());
                    self.seqs[id.index].loaded.push(Loaded { logical, whole, record });
                    SwaHold::Private(own)
                }
            };
            self.seqs[id.index].swa.push_back(hold);
        }
        let seq = &mut self.seqs[id.index];
        seq.committed = options.to;
        seq.full_from = seq.full_from.max(options.to);
        seq.swa_from = options.to;
        self.recount_scratch(id.index);
        self.rebalance();
        self.settle();
        Ok(load)
    }

    /// Records that come with the bytes of a load: (logical page, record) of some of the pages that it named, to be told
    /// before [`Self::load_done`].
    pub fn load_records(&mut self, id: SeqId, records: &[(u64, Record)]) -> Result<()> {
        let seq = self.seq(id, "load into")?;
        if !seq.load.as_ref().is_some_and(|l| l.keep_records) {
            let (call, state) = ("tell records of", "without a load that keeps them");
            return Err(Error::State { call, state, allowed: "loading, with keep_records" });
        }
        self.check_records(records.iter().map(|(_, record)| record))?;
        for (logical, record) in records {
            let Some(own) = self.seqs[id.index].loaded.iter_mut().find(|l| u64::from(l.logical) == *logical) else {
                return Err(Error::invalid("logical page of a record", logical, "a page of the load"));
            };
            own.record = Some(record.clone());
        }
        Ok(())
    }

    fn check_records<'a>(&self, mut records: impl Iterator<Item = &'a Record>) -> Result<()> {
        let n_mtp = self.tree.n_mtp as usize;
        match records.find(|r| r.len() > n_mtp) {
            Some(long) => Err(Error::invalid("tokens in a record", long.len(), format!("at most {n_mtp}"))),
            None => Ok(()),
        }
    }

    /// Both pools have room for the load, by count; changes nothing.
    fn check_load_room(&self, index: u32, missing: &Missing, sources: &[(u32, Source)]) -> Result<()> {
        let (seq, tree) = (&self.seqs[index], &self.tree);
        self.full_room_for(index, missing.full.end)?;
        if !tree.has_swa {
            return Ok(());
        }
        let copies = sources.iter().filter(|(_, s)| matches!(s, Source::Stale(_))).count() as u64;
        let fresh = missing.swa.len() as u64 + copies;
        let more = sources.iter().filter(|(_, s)| !matches!(s, Source::Held)).count() as u64;
        let scratch = (seq.swa.len() as u64 + more).saturating_sub(seq.quota);
        let others = self.scratch_used - seq.scratch;
        if scratch + others > u64::from(self.config.scratch_pages) && scratch > seq.scratch {
            return Err(self.out_of_scratch(scratch));
        }
        if copies > 0 && self.quota + self.copy_holds + copies > self.swa_share() {
            return Err(self.out_of_swa(copies));
        }
        let taken = sources.iter().filter(|(_, s)| match s {
            Source::Tree(page) | Source::Stale(page) => {
                let meta = tree.swa_meta.get(*page as usize);
                meta.leases == 0 && !meta.waiting && !tree.swa.is_draining(*page)
            }
            _ => false,
        });
        if u64::from(tree.swa.free()) + tree.evictable_swa() < fresh + taken.count() as u64 {
            return Err(self.out_of_swa(fresh));
        }
        Ok(())
    }

    /// A private copy, through the next plan, of a leased page of the tree whose MTP rows are another continuation's; the
    /// lease becomes the copy's hold. The sequence goes on from `to`.
    pub(super) fn own_copy(&mut self, id: SeqId, logical: u32, swa: u32, to: u64) -> SwaHold {
        let own = self.allocate_swa().expect("counted before");
        let seq = &self.seqs[id.index];
        let (node, slot) = (seq.node(&self.tree), seq.lease);
        self.tree.lease_path(node);
        self.copy_holds += 1;
        self.pending.push(PendingCopy {
            copy: PageCopy { group: Group::Swa, src: swa, dst: own.id() },
            owner: (id.index, id.generation),
            reads: None,
            hold: Hold::Tree { slot, swa },
        });
        let rebuild = self.rebuild_of(id, logical, own.id(), to);
        self.rebuilds.extend(rebuild);
        SwaHold::Private(own)
    }

    /// The rows that look beyond the end of a page, as far as they are in this page and in the window before `to`.
    fn rebuild_of(&self, seq: SeqId, logical: u32, page: u32, to: u64) -> Option<MtpRebuild> {
        let end = u64::from(logical + 1) * self.page();
        let window = to.saturating_sub(u64::from(self.tree.window));
        let start = (end - u64::from(self.tree.n_mtp).min(self.page())).max(window);
        (start < end).then_some(MtpRebuild { seq, page, start, end })
    }

    /// The bytes of a load are there and its rebuilds were run, or (`ok` false) they will not come and nothing writes its
    /// pages any more. Returns true when a sequence goes on from them: false also when it has ended meanwhile.
    pub fn load_done(&mut self, id: u64, ok: bool) -> Result<bool> {
        let owner = self.tree.fence.move_bucket(id).and_then(|b| b.seqs.first().copied());
        let is_load = |s: &super::sequence::Seq| s.load.as_ref().is_some_and(|l| l.id == id);
        let alive = owner.filter(|&(index, generation)| {
            self.seqs.get(index).is_some_and(|s| s.generation == generation && is_load(s))
        });
        let load = alive.and_then(|(index, _)| self.seqs[index].load.take());
        self.move_done(id)?;
        let (Some((index, _)), Some(load)) = (alive, load) else { return Ok(false) };
        self.begin(index);
        if ok {
            self.arrive(index, *load);
        } else {
            self.go_back(index, *load);
        }
        self.recount_scratch(index);
        self.rebalance();
        self.settle();
        Ok(ok)
    }

    fn arrive(&mut self, index: u32, load: Loading) {
        let seq = &mut self.seqs[index];
        let window_first = seq.swa_first;
        seq.loaded.retain(|l| l.logical >= window_first);
        for hold in load.window {
            match hold {
                SwaHold::Private(page) => self.tree.free_private_swa(page, seq.stamp, &seq.moves),
                SwaHold::Leased(page) => self.tree.unlease_swa(page, seq.stamp),
            }
        }
        let id = SeqId { index, generation: seq.generation };
        self.drop_unowned(id);
        let seq = &mut self.seqs[index];
        // What it generated since is no part of its prompt.
        let prompt = seq.report.prompt_tokens;
        let gained = load.to.min(prompt) - load.from.min(prompt);
        seq.report.delivered += gained;
        seq.report.promised = seq.report.promised.max(seq.report.delivered);
        let before = seq.report.misses;
        seq.report.misses.found(gained);
        let now = seq.report.misses;
        if seq.counted {
            self.hit_tokens += gained;
            self.misses.replace(&before, &now);
        }
        let seq = &mut self.seqs[index];
        let end = (load.to / u64::from(self.tree.page)) as u32;
        seq.loaded_end = if load.kinds > 0 { (end, load.kinds) } else { (0, 0) };
        let known = seq.tokens.len() as u64;
        let n_mtp = if load.keep_records { 0 } else { u64::from(self.tree.n_mtp) };
        let ready = load.to.min(known.saturating_sub(n_mtp)) / u64::from(self.tree.page);
        self.recount_scratch(index);
        self.publish(index, ready as u32, When::Prefill);
    }

    /// The sequence stands where it stood before the load.
    fn go_back(&mut self, index: u32, load: Loading) {
        let tree = &mut self.tree;
        let seq = &mut self.seqs[index];
        let (stamp, from) = (seq.stamp, (load.from / u64::from(tree.page)) as u32);
        let pages = seq.committed.div_ceil(u64::from(tree.page));
        debug_assert!(seq.committed == load.to && pages >= u64::from(from));
        seq.reserved = 0;
        while seq.table.len() > load.table {
            seq.table.pop();
            let page = seq.own.pop_back().expect("a page for every position");
            self.promised += u64::from((seq.table.len() as u64) < seq.budget);
            tree.free_private_full(page, stamp, &seq.moves);
        }
        while seq.swa_end() > from.max(seq.swa_first) {
            match seq.swa.pop_back() {
                Some(SwaHold::Private(page)) => tree.free_private_swa(page, stamp, &seq.moves),
                Some(SwaHold::Leased(page)) => tree.unlease_swa(page, stamp),
                None => break,
            }
        }
        for hold in load.window.into_iter().rev() {
            seq.swa.push_front(hold);
        }
        seq.swa_first = load.window_first;
        (seq.committed, seq.full_from, seq.swa_from) = (load.from, load.full_from, load.swa_from);
        seq.loaded.retain(|l| l.logical < from);
        let id = SeqId { index, generation: seq.generation };
        self.drop_unowned(id);
    }

    /// Copies and rebuilds that no plan contains yet are not run for pages that the sequence does not hold any more.
    fn drop_unowned(&mut self, id: SeqId) {
        self.rebuilds.retain(|r| r.seq != id || self.tree.swa.is_private(r.page));
        self.drop_unowned_copies();
    }
}
