//! `commit`: rows become final, whole pages become the tree's, windows move on.

use super::sequence::{Duplicate, SwaHold};
use super::{Cache, Commit, Group, SeqId};
use crate::error::{Error, Result};
use crate::key::PageKeys;
use crate::policy::{NIL, kind};
use crate::pool::{Computed, Full, Page};
use crate::tree::{Checkpoint, Query, WalkPlace};
use smallvec::SmallVec;

/// What may happen to a page that the tree already has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum When {
    /// The end of a prefill chunk: the tree's page is adopted.
    Prefill,
    /// Decode: ours stays in the table.
    Decode,
    /// The sequence ends or pauses.
    End,
    /// Before a fork: full pages only.
    Fork,
}

impl Cache {
    /// The next `computed` rows are final; `tokens` extends the known tokens.
    pub fn commit(&mut self, id: SeqId, computed: u64, tokens: &[u32]) -> Result<()> {
        self.check_commit(&Commit { seq: id, computed, tokens })?;
        self.apply_commit(&Commit { seq: id, computed, tokens });
        self.settle();
        Ok(())
    }

    /// Several commits at once; all of them or none.
    pub fn commit_many(&mut self, items: &[Commit<'_>]) -> Result<()> {
        let mut seen: Vec<u32> = items.iter().map(|c| c.seq.index).collect();
        seen.sort_unstable();
        if let Some(w) = seen.windows(2).find(|w| w[0] == w[1]) {
            return Err(Error::invalid("sequences of a commit", format!("sequence {} twice", w[0]), "each one once"));
        }
        items.iter().try_for_each(|c| self.check_commit(c))?;
        items.iter().for_each(|c| self.apply_commit(c));
        self.settle();
        Ok(())
    }

    fn check_commit(&self, c: &Commit<'_>) -> Result<()> {
        let seq = self.open_seq(c.seq, "commit")?;
        seq.check_loaded("commit")?;
        if c.computed > seq.reserved {
            return Err(Error::invalid("rows to commit", c.computed, format!("at most {} reserved", seq.reserved)));
        }
        let known = seq.tokens.len() as u64 + c.tokens.len() as u64;
        if known > super::MAX_TOKENS {
            let room = super::MAX_TOKENS - seq.tokens.len() as u64;
            return Err(Error::invalid("tokens to commit", c.tokens.len(), format!("at most {room}")));
        }
        if known < seq.committed + c.computed {
            let allowed = format!("at most {} rows, or more tokens", known - seq.committed);
            return Err(Error::invalid("rows to commit", c.computed, allowed));
        }
        Ok(())
    }

    fn apply_commit(&mut self, c: &Commit<'_>) {
        self.begin(c.seq.index);
        let seq = &mut self.seqs[c.seq.index];
        let when = if seq.committed < seq.prompt { When::Prefill } else { When::Decode };
        seq.tokens.extend_from_slice(c.tokens);
        seq.committed += c.computed;
        seq.reserved -= c.computed;
        let known = seq.tokens.len() as u64;
        let ready = seq.committed.min(known.saturating_sub(u64::from(self.tree.n_mtp)));
        let pages = (ready / u64::from(self.tree.page)) as u32;
        self.publish(c.seq.index, pages, when);
        self.slide(c.seq.index);
    }

    /// Lets SWA pages go that are before everything the sequence still needs.
    pub(super) fn slide(&mut self, index: u32) {
        let seq = &mut self.seqs[index];
        let first = seq.first_needed(&self.tree);
        if seq.swa.is_empty() || seq.swa_first >= first {
            return;
        }
        while seq.swa_first < first {
            match seq.swa.pop_front() {
                Some(SwaHold::Private(page)) => self.tree.free_private_swa(page, seq.stamp, &seq.moves),
                Some(SwaHold::Leased(page)) => self.tree.unlease_swa(page, seq.stamp),
                None => break,
            }
            seq.swa_first += 1;
        }
        self.recount_scratch(index);
        self.rebalance();
    }

    /// True while the sequence may publish: not while a move may still write its pages.
    pub(super) fn may_publish(&self, index: u32) -> bool {
        let seq = &self.seqs[index];
        seq.store && seq.moves.is_empty() && self.tree.roots[seq.root].attached
    }

    /// Publishes whole pages up to `target`, makes the checkpoints that are due and offers SWA pages of the window.
    pub(super) fn publish(&mut self, index: u32, target: u32, when: When) {
        if self.seqs[index].published >= target || !self.may_publish(index) {
            return;
        }
        self.publish_full(index, target, when);
        self.settle_user(index);
        if when == When::Fork {
            return;
        }
        let seq = &self.seqs[index];
        // A tenant's share may have stopped publication short of the target.
        let target = target.min(seq.leased);
        let from = seq.published;
        if from >= target {
            return;
        }
        if self.tree.has_swa {
            for (end, kinds) in self.due(index, from, target) {
                self.keep(index, end, kinds);
            }
            self.offer_window(index, from, target);
            // What was a window in scratch may be a checkpoint now.
            self.rebalance();
        }
        self.seqs[index].published = target;
    }

    /// Once the whole prompt is in the tree it is known what its user did.
    pub(super) fn settle_user(&mut self, index: u32) {
        let seq = &mut self.seqs[index];
        if !seq.settled && seq.leased >= seq.prompt_end {
            seq.settled = true;
            seq.user = self.tree.settle_user(&seq.arrival, seq.found, seq.node(&self.tree), seq.prompt_end);
        }
    }

    /// Moves the path lease over pages up to `target`: pages that the tree has are matched, others become its own.
    fn publish_full(&mut self, index: u32, target: u32, when: When) {
        while self.seqs[index].leased < target {
            let seq = &self.seqs[index];
            let node = seq.node(&self.tree);
            let at = WalkPlace { node, offset: self.tree.nodes[node].len, depth: seq.leased };
            let upto = target as usize * self.tree.page as usize;
            let query = Query::new(&seq.tokens[..upto], &seq.spans);
            let place = self.tree.walk_down(at, query, |_, _, _| {});
            if place.depth > seq.leased {
                // A page that others hold too would stay beside the tree's, and nobody counted on both.
                let sole = self.sole_full(index, place.depth - seq.leased);
                let depth = seq.leased + sole;
                if sole > 0 {
                    self.meet(index, node, WalkPlace { depth, ..place }, when);
                }
                if depth < place.depth {
                    return;
                }
                continue;
            }
            let (room, _) = self.tree.share_left(seq.tenant);
            let tenant = seq.tenant;
            let want = u64::from(target - seq.leased);
            if self.tree.has_full && room < want {
                self.tree.evict_tenant_full(tenant, want);
            }
            let room = if self.tree.has_full { self.tree.share_left(tenant).0 } else { u64::MAX };
            let count = self.unshared_full(index, want.min(room) as u32);
            if count == 0 {
                return;
            }
            for i in 0..count as usize * usize::from(self.tree.full.has_notes()) {
                let note = self.seqs[index].own.get(i).and_then(|p| self.tree.full.take_note(p.id()));
                self.inherit(index, note);
            }
            if !self.may_publish(index) {
                // It took over a page that a move may still write.
                return;
            }
            let copied = self.unhold_full(index, count);
            let seq = &mut self.seqs[index];
            let query = Query { tokens: &seq.tokens, spans: &seq.spans, known: &seq.keys };
            let own = &mut seq.own;
            let mut pages = std::iter::from_fn(|| own.pop_front().map(Page::computed));
            let pages: &mut dyn Iterator<Item = Page<Full, Computed>> = &mut pages;
            let back = seq.back;
            let (end, found) = self.tree.insert(node, query, seq.leased, count, (tenant, seq.stamp), pages);
            seq.found = found.filter(|&(at, _)| at <= seq.prompt_end).or(seq.found);
            self.tree.mark_back(end, back);
            seq.lease = self.tree.nodes[end].last_slot();
            seq.leased += count;
            if u64::from(seq.leased) >= seq.keys.end() {
                seq.keys = PageKeys::default();
            }
            for page in copied {
                self.hold_published(Group::Full, page, end, 0);
            }
            if (count as u64) < want {
                return;
            }
        }
    }

    /// The tree has our next pages already: the path lease goes on over them. Our own pages are given back at once, or
    /// in decode stay in the table while the pool has room for both.
    fn meet(&mut self, index: u32, node: u32, place: WalkPlace, when: When) {
        let tree = &mut self.tree;
        let to = tree.node_ending_at(place.node, place.depth);
        tree.lease_path(to);
        let seq = &mut self.seqs[index];
        tree.unlease_path(node, 0, None);
        let from = seq.leased;
        seq.lease = tree.nodes[to].last_slot();
        seq.leased = place.depth;
        if !tree.has_full {
            return;
        }
        let slots = tree.path_slots(to, from, place.depth);
        for (i, slot) in slots.into_iter().enumerate() {
            let logical = from + i as u32;
            let page = seq.own.pop_front().expect("a page for every position");
            let used = u64::from(tree.full.private()) + tree.leased_full() + self.promised;
            if matches!(when, When::Decode | When::Fork) && used <= u64::from(tree.full.usable()) {
                seq.duplicates.push(Duplicate { index: logical, page });
            } else {
                seq.table[logical as usize] = tree.slots.full(slot);
                seq.version += 1;
                tree.free_private_full(page, seq.stamp, &seq.moves);
            }
        }
        self.drop_duplicates(index);
    }

    /// The sequence takes the tree's pages in place of its duplicates while the pool has no room for both.
    pub(super) fn drop_duplicates(&mut self, index: u32) {
        let tree = &mut self.tree;
        let seq = &mut self.seqs[index];
        let node = seq.node(tree);
        while u64::from(tree.full.private()) + tree.leased_full() + self.promised > u64::from(tree.full.usable()) {
            let Some(d) = seq.duplicates.pop() else { break };
            seq.table[d.index as usize] = tree.slots.full(tree.slot_above(node, d.index));
            seq.version += 1;
            tree.free_private_full(d.page, seq.stamp, &seq.moves);
        }
    }

    /// Boundaries in `(from, to]` that retention wants, with their kinds.
    fn due(&self, index: u32, from: u32, to: u32) -> SmallVec<[(u32, u8); 4]> {
        let seq = &self.seqs[index];
        let rules = &self.config.retention;
        let mut out: SmallVec<[(u32, u8); 4]> = SmallVec::new();
        let mut add = |end: u32, kinds: u8| {
            if from < end && end <= to {
                match out.iter_mut().find(|(e, _)| *e == end) {
                    Some((_, k)) => *k |= kinds,
                    None => out.push((end, kinds)),
                }
            }
        };
        add(seq.prompt_end, kind::PROMPT_END);
        if seq.loaded_end.0 > 0 {
            add(seq.loaded_end.0, seq.loaded_end.1);
        }
        if rules.branch && seq.branch > 0 {
            add(seq.branch, kind::BRANCH);
        }
        let mut every = |stride: u64, until: u64| {
            // A boundary serves for a stride when a multiple of the stride lies in its page's reach.
            let step = stride.div_ceil(self.page()).max(1);
            let mut end = (u64::from(from) / step + 1) * step;
            while end <= u64::from(to) && end * self.page() <= until {
                add(end as u32, kind::STRIDE);
                end += step;
            }
        };
        if rules.stride > 0 {
            every(rules.stride, u64::MAX);
        }
        if rules.dense_stride > 0 {
            every(rules.dense_stride, rules.dense_until);
        }
        out.sort_unstable_by_key(|&(end, _)| end);
        out
    }

    /// Makes a checkpoint at boundary `end` (in pages) from the pages the tree has and those the sequence holds.
    pub(super) fn keep(&mut self, index: u32, end: u32, kinds: u8) {
        let tree = &self.tree;
        let seq = &self.seqs[index];
        if tree.need == 0 || end == 0 {
            return;
        }
        let node = seq.node(tree);
        let mut pages = tree.need_at(end);
        // A prompt that is a multiple of the page comes again one token short: keep the boundary before it too.
        if kinds & kind::PROMPT_END != 0 && seq.exact && pages < end {
            pages += 1;
        }
        let mut slots = tree.path_slots(node, end - pages, end);
        if pages > tree.need_at(end) && tree.slots.swa(slots[0]) == 0 && !self.has_rows(index, end - pages) {
            slots.remove(0);
            pages -= 1;
        }
        let tenant = seq.tenant;
        // Making room in the tenant's share may drop pages that this window would have used.
        let mut holes = self.holes(index, end - pages, &slots);
        if let Some(n) = holes {
            let room = self.tree.share_left(tenant).1;
            if n > room {
                self.tree.evict_tenant_swa(tenant, n);
                holes = self.holes(index, end - pages, &slots);
            }
        }
        if holes.is_none_or(|n| n > self.tree.share_left(tenant).1) {
            return;
        }
        for (i, &slot) in slots.iter().enumerate() {
            self.offer(index, end - pages + i as u32, slot);
        }
        let at = *slots.last().expect("a window has a page");
        let turn = self.seqs[index].report.turn;
        let user = self.seqs[index].user;
        self.tree.add_checkpoint(Checkpoint { turn, tenant, ..Checkpoint::new(at, end, kinds, pages) }, &user);
        let sup = self.config.retention.sup;
        if sup > 0 && kinds & (kind::PROMPT_END | kind::SEQ_END) != 0 {
            self.tree.supersede(node, end, sup);
        }
    }

    /// Pages of the current window fill the tree's holes, so that others can start from here too.
    fn offer_window(&mut self, index: u32, from: u32, to: u32) {
        let tree = &self.tree;
        let seq = &self.seqs[index];
        let start = (seq.committed.saturating_sub(u64::from(tree.window)) / u64::from(tree.page)) as u32;
        let first = from.max(start).max(seq.swa_first);
        let to = to.min(seq.swa_end());
        if tree.need == 0 || first >= to {
            return;
        }
        let slots = tree.path_slots(seq.node(tree), first, to);
        let tenant = seq.tenant;
        for (i, slot) in slots.into_iter().enumerate() {
            if self.tree.share_left(tenant).1 > 0 {
                self.offer(index, first + i as u32, slot);
            }
        }
    }

    /// SWA pages that the tree lacks in `slots`, pages from `first` on; `None` if the sequence cannot give all of them.
    fn holes(&self, index: u32, first: u32, slots: &[u32]) -> Option<u64> {
        let mut lacking =
            (first..).zip(slots).filter(|&(_, &s)| self.tree.slots.swa(s) == 0).map(|(logical, _)| logical);
        lacking.try_fold(0, |n, logical| self.has_rows(index, logical).then_some(n + 1))
    }

    /// The sequence holds the SWA page and all its rows are its own: no copy into it is still to be run, and of a page
    /// copied at `open` all rows that look beyond its end were rebuilt, not only those inside the window.
    fn has_rows(&self, index: u32, logical: u32) -> bool {
        let (seq, page) = (&self.seqs[index], self.page());
        let end = u64::from(logical + 1) * page;
        let rebuilt_from = seq.swa_from.saturating_sub(u64::from(self.tree.window));
        let loaded = seq.loaded.iter().find(|l| l.logical == logical);
        let partly = end <= seq.swa_from && end - u64::from(self.tree.n_mtp).min(page) < rebuilt_from;
        if !loaded.map_or(!partly, |l| l.whole || !partly) {
            return false;
        }
        let id = logical.checked_sub(seq.swa_first).and_then(|i| seq.swa.get(i as usize)).map(SwaHold::id);
        id.is_some_and(|id| !self.pending.iter().any(|p| p.copy.group == Group::Swa && p.copy.dst == id))
    }

    /// Publishes the SWA page of logical page `logical` into `slot`, if there is a hole; the sequence keeps a lease.
    fn offer(&mut self, index: u32, logical: u32, slot: u32) {
        if self.tree.slots.swa(slot) != 0 || !self.has_rows(index, logical) {
            return;
        }
        let seq = &mut self.seqs[index];
        let i = (logical - seq.swa_first) as usize;
        let SwaHold::Private(page) = std::mem::replace(&mut seq.swa[i], SwaHold::Leased(NIL)) else {
            unreachable!("a leased page is in its slot")
        };
        let copied = self.tree.swa.is_shared(&page).then(|| self.unhold(Group::Swa, page.id()));
        let note = self.tree.swa.take_note(page.id());
        self.inherit(index, note);
        let seq = &mut self.seqs[index];
        let end = (logical as usize + 1) * self.tree.page as usize;
        let kept = seq.loaded.iter().find(|l| l.logical == logical).and_then(|l| l.record.as_deref());
        let after = kept.unwrap_or(&seq.tokens[end.min(seq.tokens.len())..]);
        let id = self.tree.publish_swa(slot, page.computed(), after, (seq.tenant, seq.stamp));
        seq.swa[i] = SwaHold::Leased(id);
        if copied.is_some() {
            let node = self.seqs[index].node(&self.tree);
            self.hold_published(Group::Swa, id, node, id);
        }
    }
}
