//! `fork`: several sequences from one, for sampling and search.

use super::moves::PendingCopy;
use super::sequence::{Seq, SwaHold};
use super::{Cache, Group, MAX_TOKENS, MtpRebuild, PageCopy, SeqId, base_quota};
use crate::cache::commit::When;
use crate::error::{Error, Result};
use crate::key::PageKeys;
use crate::pool::{Hold, NONE};
use crate::tree::Cursor;
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::sync::Arc;

impl Cache {
    /// Opens `m` sequences at the committed length and known tokens of `id`, with `credit` tokens each beyond the known
    /// ones and nothing reserved; all of them or none. Whole full pages are shared: through the tree where the sequence
    /// may publish (they are published now, without waiting for `n_mtp` more tokens), else by count. Partial pages and
    /// the sequence's own SWA pages are copied through the next plan.
    pub fn fork(&mut self, id: SeqId, m: usize, credit: u64) -> Result<Vec<SeqId>> {
        let seq = self.open_seq(id, "fork")?;
        seq.check_loaded("fork")?;
        if m == 0 || m > 4096 {
            return Err(Error::invalid("number of forks", m, "1 to 4096"));
        }
        let known = seq.tokens.len() as u64;
        let total = known
            .checked_add(credit)
            .filter(|&t| t <= MAX_TOKENS)
            .ok_or_else(|| Error::invalid("credit", credit, format!("at most {}", MAX_TOKENS - known)))?;
        let page = self.page();
        let whole = seq.committed / page;
        let partial = u64::from(seq.committed % page != 0);
        let budget = total.div_ceil(page);
        let m64 = m as u64;
        if self.tree.has_full {
            // A prefix whose full KV is leased beyond the committed length (p > q) is shared as well.
            let shared = whole.max(u64::from(seq.leased));
            let needed = budget.saturating_sub(shared) * m64;
            let there =
                u64::from(self.tree.full.usable()) - u64::from(self.tree.full.private()) - self.tree.leased_full();
            let now = self.copies_full(seq) * m64;
            // Publishing may lease pages that could have been evicted.
            let met = if now > 0 { whole.saturating_sub(u64::from(seq.leased)) } else { 0 };
            let free = u64::from(self.tree.full.free()) + self.tree.evictable_full();
            if needed + self.promised > there || now + met > free {
                return Err(self.out_of_full(needed));
            }
        }
        if self.tree.has_swa {
            let own = self.copies_swa(seq);
            let needed = (base_quota(&self.config) + own) * m64;
            let scratch = (seq.swa.len() as u64).saturating_sub(base_quota(&self.config));
            if needed + self.quota + self.copy_holds > self.swa_share() {
                return Err(self.out_of_swa(needed));
            }
            if scratch * m64 + self.scratch_used > u64::from(self.config.scratch_pages) {
                return Err(self.out_of_scratch(scratch * m64));
            }
            if own * m64 > u64::from(self.tree.swa.free()) + self.tree.evictable_swa() {
                return Err(self.out_of_swa(needed));
            }
        }
        self.begin(id.index);
        self.publish(id.index, whole as u32, When::Fork);
        let children = (0..m).map(|_| self.fork_one(id, budget, partial != 0)).collect();
        self.drop_duplicates(id.index);
        self.rebalance();
        self.settle();
        Ok(children)
    }

    /// 1 when the committed rows end inside one of the sequence's own full pages.
    fn copies_full(&self, seq: &Seq) -> u64 {
        let partial = !seq.committed.is_multiple_of(self.page());
        u64::from(partial && seq.committed > u64::from(seq.leased) * self.page())
    }

    /// Its own SWA pages with committed rows.
    fn copies_swa(&self, seq: &Seq) -> u64 {
        let end = seq.committed.div_ceil(self.page());
        let pages = (u64::from(seq.swa_first)..end).zip(&seq.swa);
        pages.filter(|(_, h)| matches!(h, SwaHold::Private(_))).count() as u64
    }

    fn fork_one(&mut self, id: SeqId, budget: u64, partial: bool) -> SeqId {
        let page = self.page();
        self.next_generation = self.next_generation.wrapping_add(1);
        let generation = self.next_generation;
        let seq = &self.seqs[id.index];
        let parent = (id.index, id.generation);
        let node = seq.node(&self.tree);
        let whole = (seq.committed / page) as usize;
        let child = Seq {
            generation,
            tokens: seq.tokens.clone(),
            spans: seq.spans.clone(),
            key: seq.key.clone(),
            base: seq.base,
            weights: Arc::clone(&seq.weights),
            tenant: seq.tenant,
            store: seq.store,
            again: false,
            parked: false,
            live_at: 0,
            parked_at: 0,
            cursor: Cursor::default(),
            prompt: seq.prompt,
            prompt_end: seq.prompt_end,
            exact: seq.exact,
            committed: seq.committed,
            reserved: 0,
            root: seq.root,
            lease: seq.lease,
            leased: seq.leased,
            published: seq.published,
            table: Vec::with_capacity(budget as usize),
            own: VecDeque::new(),
            duplicates: Vec::new(),
            swa: VecDeque::new(),
            swa_first: seq.swa_first,
            full_from: seq.full_from,
            swa_from: seq.swa_from,
            quota: base_quota(&self.config),
            scratch: 0,
            budget: if self.tree.has_full { budget } else { 0 },
            version: 0,
            stamp: NONE,
            moves: SmallVec::new(),
            branch: seq.branch,
            report: seq.report,
            counted: false,
            keys: PageKeys::default(),
            refused: false,
            arrival: seq.arrival,
            back: seq.back,
            found: seq.found,
            user: seq.user,
            settled: seq.settled,
            load: None,
            loaded: Vec::new(),
            loaded_end: (0, 0),
        };
        self.tree.lease_path(node);
        let index = self.seqs.insert(child);
        self.enlist(index);
        let owner = (index, generation);
        self.quota += self.seqs[index].quota;
        if self.tree.has_full {
            self.fork_full(id.index, owner, node, whole, partial);
            self.promised += self.seqs[index].promised();
        }
        if self.tree.has_swa {
            self.fork_swa(parent, owner);
        }
        SeqId { index, generation }
    }

    fn fork_full(&mut self, from: u32, owner: (u32, u32), node: u32, whole: usize, partial: bool) {
        let leased = self.seqs[from].leased as usize;
        let mut table = std::mem::take(&mut self.seqs[owner.0].table);
        // Pages of the tree by the tree's ids: the parent may still use duplicates of its own.
        self.tree.path_full_ids(node, leased as u32, &mut table);
        let mut own = VecDeque::new();
        for i in leased..whole {
            let page = self.tree.full.share(&self.seqs[from].own[i - leased]);
            table.push(page.id());
            own.push_back(page);
        }
        if partial && whole >= leased {
            let page = self.allocate_full().expect("counted before");
            let seq = &self.seqs[from];
            let source = &seq.own[whole - leased];
            let copy = PageCopy { group: Group::Full, src: source.id(), dst: page.id() };
            let hold = Hold::Full(self.tree.full.share(source));
            self.pending.push(PendingCopy { copy, owner, reads: Some((from, seq.generation)), hold });
            table.push(page.id());
            own.push_back(page);
        }
        let child = &mut self.seqs[owner.0];
        child.table = table;
        child.own = own;
    }

    fn fork_swa(&mut self, parent: (u32, u32), owner: (u32, u32)) {
        let end = self.seqs[parent.0].committed.div_ceil(self.page());
        let first = u64::from(self.seqs[parent.0].swa_first);
        for i in 0..end.saturating_sub(first) as usize {
            let hold = match self.seqs[parent.0].swa.get(i) {
                None => break,
                Some(&SwaHold::Leased(page)) => {
                    self.tree.lease_swa(page);
                    SwaHold::Leased(page)
                }
                Some(SwaHold::Private(_)) => {
                    let page = self.allocate_swa().expect("counted before");
                    let Some(SwaHold::Private(source)) = self.seqs[parent.0].swa.get(i) else { unreachable!() };
                    let copy = PageCopy { group: Group::Swa, src: source.id(), dst: page.id() };
                    let hold = Hold::Swa(self.tree.swa.share(source));
                    self.copy_holds += 1;
                    self.pending.push(PendingCopy { copy, owner, reads: Some(parent), hold });
                    // MTP rows that the parent has not rebuilt yet are the child's to rebuild.
                    let seq = SeqId { index: owner.0, generation: owner.1 };
                    let due = self.rebuilds.iter().find(|r| r.page == copy.src).copied();
                    self.rebuilds.extend(due.map(|r| MtpRebuild { seq, page: copy.dst, ..r }));
                    SwaHold::Private(page)
                }
            };
            self.seqs[owner.0].swa.push_back(hold);
        }
        self.recount_scratch(owner.0);
    }
}
