//! Steps: slots for the next positions, page tables for kernels, and the fence around them.

use super::{Cache, FillOut, MAX_TOKENS, Plan, SeqId, SeqInfo, Why};
use crate::error::{Error, Result};
use crate::pool::{Full, Page, Reserved, Swa};

use super::sequence::SwaHold;

impl Cache {
    /// A free full page, made by eviction if need be.
    pub(super) fn allocate_full(&mut self) -> Option<Page<Full, Reserved>> {
        if self.tree.full.free() == 0 {
            self.tree.evict_full(1, Why::FullPool);
        }
        self.tree.full.allocate()
    }

    /// A free SWA page, made by dropping checkpoints if need be.
    pub(super) fn allocate_swa(&mut self) -> Option<Page<Swa, Reserved>> {
        while self.tree.swa.free() == 0 && self.tree.evictable_swa() > 0 {
            if self.tree.evict_swa(1, Why::SwaPool) == 0 {
                break;
            }
        }
        self.tree.swa.allocate()
    }

    /// Slots for `n` positions more. Beyond what `open` promised this can fail when pools are full; within it only
    /// while pages wait for a running step, or for a chunk that does not fit the scratch pages.
    pub fn reserve(&mut self, id: SeqId, n: u64) -> Result<()> {
        let seq = self.open_seq(id, "reserve")?;
        let end = seq.committed + seq.reserved;
        let end = end
            .checked_add(n)
            .filter(|&e| e <= MAX_TOKENS)
            .ok_or_else(|| Error::invalid("slots to reserve", n, format!("at most {} more", MAX_TOKENS - end)))?;
        let pages = end.div_ceil(self.page());
        let (full, swa) = self.room_for(id.index, pages)?;
        self.begin(id.index);
        // Room for the whole chunk at once: what is done per victim is done once for all its pages.
        let short = full.saturating_sub(u64::from(self.tree.full.free()));
        if short > 0 {
            self.tree.evict_full(short as u32, Why::FullPool);
        }
        self.seqs[id.index].table.reserve(full as usize);
        self.seqs[id.index].own.reserve(full as usize);
        for _ in 0..full {
            let page = self.allocate_full().expect("counted before");
            let seq = &mut self.seqs[id.index];
            self.promised -= u64::from((seq.table.len() as u64) < seq.budget);
            seq.table.push(page.id());
            seq.own.push_back(page);
        }
        for _ in 0..swa {
            let page = self.allocate_swa().expect("counted before");
            self.seqs[id.index].swa.push_back(SwaHold::Private(page));
        }
        self.recount_scratch(id.index);
        self.seqs[id.index].reserved += n;
        if swa > 0 {
            self.rebalance();
        }
        self.settle();
        Ok(())
    }

    /// Pages (full, SWA) that the sequence lacks for `pages` logical pages, if they can be had; changes nothing.
    fn room_for(&self, index: u32, pages: u64) -> Result<(u64, u64)> {
        let seq = &self.seqs[index];
        let tree = &self.tree;
        let (full, mut swa) = (self.full_room_for(index, pages)?, 0);
        if tree.has_swa {
            swa = pages.saturating_sub(u64::from(seq.swa_end()));
            let held = seq.swa_held() + swa;
            let scratch = held.saturating_sub(seq.quota);
            let others = self.scratch_used - seq.scratch;
            if swa > 0 && scratch + others > u64::from(self.config.scratch_pages) {
                return Err(self.out_of_scratch(scratch));
            }
            if swa > u64::from(tree.swa.free()) + tree.evictable_swa() {
                return Err(self.out_of_swa(swa));
            }
        }
        Ok((full, swa))
    }

    /// Full pages that the sequence lacks for `pages` logical pages, if they can be had; changes nothing.
    pub(super) fn full_room_for(&self, index: u32, pages: u64) -> Result<u64> {
        let (seq, tree) = (&self.seqs[index], &self.tree);
        if !tree.has_full {
            return Ok(0);
        }
        let full = pages.saturating_sub(seq.table.len() as u64);
        let beyond = pages.saturating_sub(seq.budget.max(seq.table.len() as u64));
        let counted = u64::from(tree.full.usable()) - u64::from(tree.full.private()) - tree.leased_full();
        let there = u64::from(tree.full.free()) + tree.evictable_full();
        if beyond + self.promised > counted && beyond > 0 || full > there {
            return Err(self.out_of_full(full));
        }
        Ok(full)
    }

    /// The largest `n` that `reserve` would accept now.
    pub fn reservable(&self, id: SeqId) -> Result<u64> {
        let seq = self.open_seq(id, "reservable")?;
        let end = seq.committed + seq.reserved;
        let (mut low, mut high) = (end.div_ceil(self.page()), MAX_TOKENS / self.page());
        if self.room_for(id.index, low).is_err() {
            return Ok(0);
        }
        while low < high {
            let mid = (low + high).div_ceil(2);
            if self.room_for(id.index, mid).is_ok() { low = mid } else { high = mid - 1 }
        }
        Ok((low * self.page()).min(MAX_TOKENS) - end)
    }

    /// Gives back all reserved slots, never committed rows. Returns how many.
    pub fn trim(&mut self, id: SeqId) -> Result<u64> {
        self.open_seq(id, "trim")?;
        let page = self.page();
        let seq = &mut self.seqs[id.index];
        let freed = std::mem::take(&mut seq.reserved);
        let pages = seq.committed.div_ceil(page);
        while seq.table.len() as u64 > pages && !seq.own.is_empty() {
            seq.table.pop();
            let handle = seq.own.pop_back().expect("checked");
            self.promised += u64::from((seq.table.len() as u64) < seq.budget);
            self.tree.free_private_full(handle, seq.stamp, &seq.moves);
        }
        while u64::from(seq.swa_end()) > pages {
            match seq.swa.pop_back() {
                Some(SwaHold::Private(handle)) => self.tree.free_private_swa(handle, seq.stamp, &seq.moves),
                Some(SwaHold::Leased(swa)) => self.tree.unlease_swa(swa, seq.stamp),
                None => break,
            }
        }
        self.recount_scratch(id.index);
        self.rebalance();
        self.settle();
        Ok(freed)
    }

    /// Starts a step: writes the page tables of `seqs` and returns the copies to run before the step's kernels.
    pub fn fill(&mut self, step: u64, seqs: &[SeqId], mut out: FillOut<'_>) -> Result<Plan> {
        self.tree.fence.check_fill(step)?;
        self.check_fill(seqs, &out)?;
        let stamp = self.tree.fence.start(step);
        let page = self.page();
        for (i, id) in seqs.iter().enumerate() {
            let seq = &mut self.seqs[id.index];
            seq.stamp = stamp;
            out.lens[i] = (seq.committed + seq.reserved) as i32;
            if self.tree.has_full {
                let row = &mut out.full[i * out.full_width..][..out.full_width];
                let table = seq.visible_table(page);
                let (ids, rest) = row.split_at_mut(table.len());
                ids.iter_mut().zip(table).for_each(|(o, &id)| *o = id as i32);
                rest.fill(0);
            }
            if self.tree.has_swa {
                let row = &mut out.swa[i * out.swa_width..][..out.swa_width];
                let base = seq.committed.saturating_sub(u64::from(self.tree.window)) / page;
                let skip = base as usize - seq.swa_first as usize;
                let column = match &mut out.swa_base {
                    Some(bases) => {
                        bases[i] = base as i32;
                        0
                    }
                    None => base as usize,
                };
                row[..column].fill(0);
                let mut end = column;
                for (o, hold) in row[column..].iter_mut().zip(seq.swa.range(skip..)) {
                    *o = hold.id() as i32;
                    end += 1;
                }
                row[end..].fill(0);
            }
        }
        Ok(self.plan_for_step(stamp))
    }

    fn check_fill(&self, seqs: &[SeqId], out: &FillOut<'_>) -> Result<()> {
        let b = seqs.len();
        let mut seen: Vec<u32> = seqs.iter().map(|s| s.index).collect();
        seen.sort_unstable();
        if let Some(w) = seen.windows(2).find(|w| w[0] == w[1]) {
            return Err(Error::invalid("sequences of a step", format!("sequence {} twice", w[0]), "each one once"));
        }
        let check = |what, have: usize, need: usize| {
            if have < need { Err(Error::invalid(what, have, format!("at least {need}"))) } else { Ok(()) }
        };
        check("length of lens", out.lens.len(), b)?;
        check("length of the full table", out.full.len(), b * out.full_width)?;
        check("length of the SWA table", out.swa.len(), b * out.swa_width)?;
        if let Some(bases) = &out.swa_base {
            check("length of swa_base", bases.len(), b)?;
        }
        for &id in seqs {
            let seq = self.open_seq(id, "fill")?;
            if self.tree.has_full {
                check("columns of the full table", out.full_width, seq.visible_table(self.page()).len())?;
            }
            if self.tree.has_swa {
                let base = seq.committed.saturating_sub(u64::from(self.tree.window)) / self.page();
                let from = if out.swa_base.is_some() { base } else { 0 };
                check(
                    "columns of the SWA table",
                    out.swa_width,
                    u64::from(seq.swa_end()).saturating_sub(from) as usize,
                )?;
            }
        }
        Ok(())
    }

    /// The oldest running step is over: nothing touches what was freed before it any more.
    pub fn retire(&mut self, step: u64) -> Result<()> {
        let bucket = self.tree.fence.retire(step)?;
        bucket.full.into_iter().for_each(|p| self.tree.full.release(p));
        bucket.swa.into_iter().for_each(|p| self.tree.swa.release(p));
        self.tree.settle_landing(None);
        self.tree.step_retired(bucket.nodes, bucket.swa_wait);
        self.settle();
        Ok(())
    }

    /// Where a sequence stands.
    pub fn info(&self, id: SeqId) -> Result<SeqInfo> {
        let s = self.seq(id, "info")?;
        Ok(SeqInfo {
            committed: s.committed,
            known: s.tokens.len() as u64,
            reserved: s.reserved,
            full_write_from: s.full_from,
            swa_write_from: s.swa_from,
            swa_base: s.committed.saturating_sub(u64::from(self.tree.window)) / self.page(),
            swa_held: s.swa.len() as u64,
            table_version: s.version,
            parked: s.parked,
        })
    }

    /// Known tokens.
    pub fn tokens(&self, id: SeqId) -> Result<&[u32]> {
        Ok(&self.seq(id, "tokens")?.tokens)
    }

    /// Full page ids of logical pages from 0, covering committed and reserved positions.
    pub fn full_table(&self, id: SeqId) -> Result<&[u32]> {
        Ok(self.open_seq(id, "full_table")?.visible_table(self.page()))
    }

    /// First logical page and SWA page ids held from there on.
    pub fn swa_table(&self, id: SeqId) -> Result<(u64, Vec<u32>)> {
        let s = self.open_seq(id, "swa_table")?;
        Ok((u64::from(s.swa_first), s.swa.iter().map(SwaHold::id).collect()))
    }
}
