//! `open`: match, lease, reserve by count.

use super::sequence::{Seq, SwaHold};
use super::{Cache, MAX_TOKENS, Match, Report, Request, SeqId, base_quota};
use crate::error::{Error, Result};
use crate::key::{Key, PageKeys, Span};
use crate::policy::{Arrival, NIL, User, kind};
use crate::pool::NONE;
use crate::tree::{Cursor, Query, Tree, WalkPlace};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::sync::Arc;

/// What a new or resumed sequence starts from.
struct Found {
    root: Option<u32>,
    place: WalkPlace,
    /// q, in pages.
    usable: u32,
    /// Window pages whose MTP rows were made with other tokens: the reader gets copies.
    stale: SmallVec<[u32; 4]>,
}

impl Cache {
    /// Opens a sequence on a request: leases the full pages up to p and the window before q, and makes sure that both
    /// pools can serve the prompt and `credit` tokens more. The request is used up on success.
    pub fn open(&mut self, req: &mut Request, credit: u64) -> Result<SeqId> {
        if req.opened {
            return Err(Error::State {
                call: "open",
                state: "opened from this request already",
                allowed: "one from a new request",
            });
        }
        let query = Query::new(&req.tokens, &req.options.spans);
        let found = self.find(&req.base, &req.weights, &req.options.key, query, &mut req.cursor);
        let fresh = !std::mem::replace(&mut req.refused, true);
        self.admit(&found, req.tokens.len() as u64, credit, fresh)?;
        let len = req.tokens.len() as u64;
        let pages = (len / self.page()) as u32;
        let key = self.tree.current_key(&req.base, &req.weights, &req.options.key);
        let root = found.root.unwrap_or_else(|| self.tree.ensure_root(key));
        if !req.keys.is_below(&key) {
            req.keys = PageKeys::default();
        }
        let query = req.query();
        let (report, made) = self.report_of(root, query, found.place, found.usable);
        let keys = if req.keys.end() > made.end() { std::mem::take(&mut req.keys) } else { made };
        req.opened = true;
        self.next_generation = self.next_generation.wrapping_add(1);
        let generation = self.next_generation;
        let seq = Seq {
            generation,
            tokens: std::mem::take(&mut req.tokens),
            spans: std::mem::take(&mut req.options.spans),
            key: req.options.key.clone(),
            base: req.base,
            weights: Arc::clone(&req.weights),
            tenant: req.options.tenant,
            store: req.options.store,
            again: req.options.again,
            parked: false,
            live_at: 0,
            parked_at: 0,
            cursor: std::mem::take(&mut req.cursor),
            prompt: len,
            prompt_end: pages,
            exact: len == u64::from(pages) * self.page(),
            committed: 0,
            reserved: 0,
            root,
            lease: NIL,
            leased: 0,
            published: 0,
            table: Vec::new(),
            own: VecDeque::new(),
            duplicates: Vec::new(),
            swa: VecDeque::new(),
            swa_first: 0,
            full_from: 0,
            swa_from: 0,
            quota: 0,
            scratch: 0,
            budget: 0,
            version: 0,
            stamp: NONE,
            moves: SmallVec::new(),
            branch: 0,
            report,
            counted: true,
            keys,
            refused: false,
            arrival: Arrival::default(),
            back: 0,
            found: None,
            user: User::default(),
            settled: false,
            load: None,
            loaded: Vec::new(),
            loaded_end: (0, 0),
        };
        let index = self.seqs.insert(seq);
        self.enlist(index);
        self.take(index, root, &found, credit);
        Ok(SeqId { index, generation })
    }

    /// Opens a parked sequence again on its known tokens.
    pub fn resume(&mut self, id: SeqId, credit: u64) -> Result<()> {
        let seq = self.seq(id, "resume")?;
        if !seq.parked {
            return Err(Error::State { call: "resume", state: "open", allowed: "parked" });
        }
        let mut cursor = seq.cursor.clone();
        let seq = &self.seqs[id.index];
        let found = self.find(&seq.base, &seq.weights, &seq.key, seq.query(), &mut cursor);
        let (tokens, fresh) = (seq.tokens.len() as u64, !seq.refused);
        self.seqs[id.index].refused = true;
        self.admit(&found, tokens, credit, fresh)?;
        let seq = &self.seqs[id.index];
        let key = self.tree.current_key(&seq.base, &seq.weights, &seq.key);
        let root = found.root.unwrap_or_else(|| self.tree.ensure_root(key));
        self.seqs[id.index].keys = PageKeys::default();
        let (report, made) = self.report_of(root, self.seqs[id.index].query(), found.place, found.usable);
        let seq = &mut self.seqs[id.index];
        seq.keys = made;
        seq.cursor = cursor;
        (seq.parked, seq.refused, seq.counted) = (false, false, true);
        seq.prompt = seq.tokens.len() as u64;
        seq.report = report;
        self.parked -= 1;
        self.enlist(id.index);
        self.take(id.index, root, &found, credit);
        let seq = &self.seqs[id.index];
        let at = seq.parked_at;
        if 0 < at && at <= seq.leased {
            let slot = self.tree.slot_above(seq.node(&self.tree), at - 1);
            self.tree.remove_kind(slot, kind::PARK);
            self.settle();
        }
        Ok(())
    }

    fn find(&self, base: &[u8; 32], weights: &[u8], key: &Key, query: Query<'_>, cursor: &mut Cursor) -> Found {
        let root = self.tree.find_root(&self.tree.current_key(base, weights, key));
        let mut found =
            Found { root, place: WalkPlace { node: NIL, offset: 0, depth: 0 }, usable: 0, stale: SmallVec::new() };
        let Some(root) = root else {
            cursor.reset();
            return found;
        };
        found.place = self.tree.walk(root, query, cursor);
        let limit = (query.tokens.len() as u64 - 1) / self.page();
        found.usable = self.tree.usable(found.place, limit as u32);
        if self.tree.n_mtp > 0 {
            found.stale = self.stale_pages(&found, query.tokens);
        }
        found
    }

    /// Pages of the window before q whose record is not `n_mtp` tokens equal to the reader's from the page's end.
    fn stale_pages(&self, found: &Found, tokens: &[u32]) -> SmallVec<[u32; 4]> {
        let tree = &self.tree;
        let n = tree.n_mtp as usize;
        let mut stale = SmallVec::new();
        let q = found.usable;
        tree.path_back(found.place.node, q - tree.need_at(q), q, |page, slot| {
            let end = (page as usize + 1) * tree.page as usize;
            let fits =
                tokens.len() >= end + n && tree.record(tree.slots.swa(slot)).eq(tokens[end..end + n].iter().copied());
            if !fits {
                stale.push(page);
            }
            true
        });
        stale.reverse();
        stale
    }

    /// Checks that both pools can serve the sequence. It is `fresh` when it was not refused before.
    fn admit(&mut self, found: &Found, tokens: u64, credit: u64, fresh: bool) -> Result<()> {
        let result = self.check_room(found, tokens, credit);
        if let Err(Error::OutOfPages(short)) = &result {
            self.refused(short, fresh);
        }
        result
    }

    /// The check by count; changes nothing.
    fn check_room(&self, found: &Found, tokens: u64, credit: u64) -> Result<()> {
        let total = tokens.checked_add(credit).filter(|&t| t <= MAX_TOKENS).ok_or_else(|| {
            let allowed = format!("{} tokens for a prompt of {tokens}", MAX_TOKENS - tokens);
            Error::invalid("credit", credit, allowed)
        })?;
        let tree = &self.tree;
        if tree.has_full {
            let needed = total.div_ceil(self.page()) - u64::from(found.place.depth);
            let pinned = if found.root.is_some() { tree.unleased_above(found.place) } else { 0 };
            let free = u64::from(tree.full.usable()) - u64::from(tree.full.private()) - tree.leased_full();
            if needed + self.promised + pinned > free {
                // Cached pages that the match would pin are taken as well.
                return Err(self.out_of_full(needed + pinned));
            }
        }
        if tree.has_swa {
            let copies = found.stale.len() as u64;
            let needed = base_quota(&self.config) + copies;
            if needed + self.quota + self.copy_holds > self.swa_share() {
                return Err(self.out_of_swa(needed));
            }
            let mut taken = 0;
            let q = found.usable;
            if q > 0 {
                tree.path_back(found.place.node, q - tree.need_at(q), q, |_, slot| {
                    let page = tree.slots.swa(slot);
                    let meta = tree.swa_meta.get(page as usize);
                    taken += u64::from(meta.leases == 0 && !meta.waiting && !tree.swa.is_draining(page));
                    true
                });
            }
            if u64::from(tree.swa.free()) + tree.evictable_swa() < copies + taken {
                return Err(self.out_of_swa(needed));
            }
        }
        Ok(())
    }

    /// Leases what was found and fills in the sequence; cannot fail after [`Self::admit`].
    fn take(&mut self, index: u32, root: u32, found: &Found, credit: u64) {
        self.begin(index);
        let page = self.page();
        let (p, q) = (found.place.depth, found.usable);
        let tree = &mut self.tree;
        let top = tree.roots[root].node;
        let node = if p == 0 { top } else { tree.node_ending_at(found.place.node, p) };
        tree.lease_path(node);
        let slot = tree.nodes[node].last_slot();
        let first = q - tree.need_at(q);
        let window = tree.path_slots(node, first, q);
        let ids: SmallVec<[u32; 8]> = window.iter().map(|&s| tree.slots.swa(s)).collect();
        ids.iter().for_each(|&id| tree.lease_swa(id));
        let (again, prompt_end) = (self.seqs[index].again, self.seqs[index].prompt_end);
        if !again {
            tree.history.arrive(tree.now);
        }
        let query = self.seqs[index].query();
        let evicted = (self.seqs[index].report.misses.evicted / page) as u32;
        let back = p + tree.came_back(node, query, p, evicted);
        let arrival = if again { Arrival::default() } else { tree.arrival(node, p) };
        let last = tree.nodes[node].last;
        let turn = match (again, q > 0) {
            (true, _) => u32::from(last.turn.saturating_sub(1)),
            (false, true) => tree.refresh(node, q, prompt_end),
            (false, false) => 0,
        };
        let seq = &mut self.seqs[index];
        (seq.root, seq.lease, seq.leased, seq.published) = (root, slot, p, q);
        (seq.arrival, seq.found, seq.settled) = (arrival, None, again);
        seq.back = back;
        seq.user = match again && last.end > 0 {
            true => User { end: prompt_end, ..last },
            false => tree.history.user(&arrival, seq.prompt_end, tree.page),
        };
        if tree.has_full {
            let total = (seq.tokens.len() as u64 + credit).div_ceil(page);
            seq.table = Vec::with_capacity(total as usize);
            tree.path_full_ids(node, p, &mut seq.table);
            seq.budget = total;
            self.promised += seq.promised();
        }
        (seq.committed, seq.reserved) = (u64::from(q) * page, 0);
        (seq.full_from, seq.swa_from) = (u64::from(p) * page, u64::from(q) * page);
        seq.branch = if q < p { p } else { 0 };
        seq.report.turn = turn + 1;
        seq.swa_first = first;
        seq.quota = base_quota(&self.config);
        self.quota += seq.quota;
        let id = SeqId { index, generation: seq.generation };
        let (matched, to) = (seq.report, seq.swa_from);
        // Copies take their pages after the window is leased, so that making room cannot drop what they read.
        let mut holds = VecDeque::with_capacity(ids.len());
        for (i, swa) in ids.into_iter().enumerate() {
            let logical = first + i as u32;
            if !found.stale.contains(&logical) {
                holds.push_back(SwaHold::Leased(swa));
                continue;
            }
            holds.push_back(self.own_copy(id, logical, swa, to));
        }
        let seq = &mut self.seqs[index];
        seq.swa = holds;
        let ends_here = q > 0 && q == seq.prompt_end && seq.store;
        self.recount_scratch(index);
        self.settle_user(index);
        if ends_here {
            self.keep(index, q, kind::PROMPT_END);
        }
        self.rebalance();
        self.opens += 1;
        self.prompt_tokens += matched.prompt_tokens;
        self.hit_tokens += matched.delivered;
        self.full_kv_tokens += matched.matched.full_kv_match;
        self.misses.add(&matched.misses);
        self.weigh();
        self.settle();
    }

    /// What a lookup of this prompt tells, without opening it.
    pub(super) fn lookup_report(
        &self,
        tokens: &[u32],
        key: &Key,
        spans: &[Span],
    ) -> (Option<(u32, WalkPlace)>, Report) {
        let base = self.base_key(key);
        let query = Query::new(tokens, spans);
        let found = self.find(&base, &self.weights, key, query, &mut Cursor::default());
        match found.root {
            Some(root) => {
                let (report, _) = self.report_of(root, query, found.place, found.usable);
                (Some((root, found.place)), report)
            }
            None => {
                let n = tokens.len() as u64;
                let whole = n / self.page() * self.page();
                let mut report = Report { prompt_tokens: n, turn: 1, matched: Match::default(), ..Report::default() };
                report.misses.never_seen = whole;
                report.misses.partial_page = n - whole;
                (None, report)
            }
        }
    }
}

impl Tree {
    /// Full pages that a lease at this place would newly pin.
    pub(super) fn unleased_above(&self, place: WalkPlace) -> u64 {
        let mut at = place.node;
        let mut upto = place.offset;
        let mut sum = 0;
        loop {
            let n = &self.nodes[at];
            if n.is_leased() || n.is_root() {
                return sum * u64::from(self.has_full);
            }
            sum += u64::from(upto);
            at = n.parent;
            upto = self.nodes[at].len;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::{CacheConfig, RequestOptions};
    use crate::policy::{PolicyKind, Retention};

    /// Opens and computes a prompt of two pages and a token, whose known keys are of the given namespace, and of nothing
    /// that was ever hashed. To use one of them is an assertion's fault.
    fn serve_with_false_keys(clear: bool) {
        let mut cache = Cache::new(CacheConfig {
            page_size: 4,
            window: 0,
            n_mtp: 0,
            full_pages: 8,
            swa_pages: 0,
            scratch_pages: 0,
            retention: Retention::default(),
            policy: PolicyKind::Lru,
            event_capacity: 0,
            ghost_pages: 0,
            fingerprint: [0; 32],
            seed: 0,
            max_pinned_pages: 0,
            region: None,
        })
        .expect("a valid layout");
        let mut request = cache.request((0..9).collect(), RequestOptions::default()).expect("a valid prompt");
        request.set_keys(PageKeys::new(*request.root_key(), 0, vec![[9; 32]; 2]));
        if clear {
            cache.clear(None);
        }
        let seq = cache.open(&mut request, 0).expect("room for it");
        cache.reserve(seq, 9).expect("room for it");
        cache.commit(seq, 9, &[]).expect("a valid commit");
        cache.finish(seq).expect("an open sequence");
        let found = cache.match_tokens(&(0..9).collect::<Vec<_>>(), &Key::default(), &[]).expect("a valid prompt");
        assert_eq!(found.usable, 8);
    }

    #[test]
    fn keys_of_another_namespace_are_not_used() {
        serve_with_false_keys(true);
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "the known key of page 0 is another one")]
    fn known_keys_are_used() {
        serve_with_false_keys(false);
    }
}
