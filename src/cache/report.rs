//! Where every prompt token came from, and why the rest missed.

use super::sequence::Seq;
use super::{Cache, Match, Misses, PoolStats, Report, SeqId, Stats};
use crate::error::{Error, Result};
use crate::key::{PageKeys, page_spans};
use crate::policy::NIL;
use crate::tree::{Query, WalkPlace};

impl Misses {
    /// Adds another lookup's misses.
    pub fn add(&mut self, other: &Misses) {
        self.window += other.window;
        self.last_token += other.last_token;
        self.evicted += other.evicted;
        self.in_flight += other.in_flight;
        self.capacity += other.capacity;
        self.never_seen += other.never_seen;
        self.partial_page += other.partial_page;
    }

    /// `tokens` of what missed came from another tier after all: the first ones, by position.
    pub(super) fn found(&mut self, mut tokens: u64) {
        let Misses { window, last_token, evicted, in_flight, capacity, never_seen, partial_page } = self;
        for cause in [window, last_token, evicted, in_flight, never_seen, capacity, partial_page] {
            let taken = tokens.min(*cause);
            *cause -= taken;
            tokens -= taken;
        }
    }

    /// Takes one lookup's misses out and adds what became of them.
    pub(super) fn replace(&mut self, old: &Misses, new: &Misses) {
        self.window -= old.window;
        self.last_token -= old.last_token;
        self.evicted -= old.evicted;
        self.in_flight -= old.in_flight;
        self.capacity -= old.capacity;
        self.never_seen -= old.never_seen;
        self.partial_page -= old.partial_page;
        self.add(new);
    }
}

impl Cache {
    /// The report of a lookup that ended at `place` with `usable` pages, and the keys it had to make from there on.
    pub(super) fn report_of(&self, root: u32, query: Query<'_>, place: WalkPlace, usable: u32) -> (Report, PageKeys) {
        let page = self.page();
        let n = query.tokens.len() as u64;
        let whole = n / page;
        let (p, q) = (u64::from(place.depth), u64::from(usable));
        let b = p.min((n - 1) / page);
        let mut misses = Misses {
            window: (b - q) * page,
            last_token: (p - b) * page,
            partial_page: n - whole * page,
            ..Misses::default()
        };
        let mut made = PageKeys::new(self.tree.roots[root].key, p, Vec::new());
        let mut rest = whole - p;
        if rest > 0 {
            let parent = match p {
                0 => self.tree.roots[root].key,
                _ => *self.tree.slots.key(self.tree.slot_above(place.node, place.depth - 1)),
            };
            let evicted = self.evicted_run(parent, query, place.depth, rest, &mut made);
            misses.evicted = evicted * page;
            rest -= evicted;
            // Another sequence works on the pages right after its lease; those that were evicted before count as such.
            let flying = self.in_flight_run(place, query).saturating_sub(evicted).min(rest);
            misses.in_flight = flying * page;
            rest -= flying;
            let most = u64::from(self.tree.full.usable());
            if self.tree.has_full && whole > most {
                misses.capacity = rest.min(whole - most) * page;
            }
            misses.never_seen = rest * page - misses.capacity;
        }
        let matched = Match { full_kv_match: p * page, usable: q * page };
        let report = Report { prompt_tokens: n, matched, promised: q * page, delivered: q * page, misses, turn: 1 };
        (report, made)
    }

    /// Pages from `from` on that the ghosts remember. They were dropped deepest first, so that the first page that is
    /// not remembered ends the run.
    fn evicted_run(&self, mut parent: [u8; 32], query: Query<'_>, from: u32, most: u64, made: &mut PageKeys) -> u64 {
        for i in 0..most {
            let page = u64::from(from) + i;
            parent = query.key(&parent, page, self.config.page_size);
            made.push(parent);
            if self.tree.ghosts.dropped_ago(&parent).is_none() {
                return i;
            }
        }
        most
    }

    /// Pages after the match that an open sequence is computing: its lease ends where the match ends and its tokens
    /// go on alike.
    fn in_flight_run(&self, place: WalkPlace, query: Query<'_>) -> u64 {
        let size = self.config.page_size as usize;
        let from = place.depth as usize;
        if place.node == NIL {
            return 0;
        }
        // A path lease ends at the end of a node that counts it: without one, nobody works on what comes after.
        let node = &self.tree.nodes[place.node];
        if node.leases == 0 || place.offset < node.len {
            return 0;
        }
        let pages = (query.tokens.len() / size - from) as u64;
        let same = |s: &Seq, at: usize| {
            let (start, page) = (at * size, at as u64);
            s.tokens.get(start..start + size) == Some(&query.tokens[start..start + size])
                && page_spans(query.spans, page, size as u32).eq(page_spans(&s.spans, page, size as u32))
        };
        let mut best = 0;
        for s in self.live.iter().map(|&index| &self.seqs[index]) {
            if best == pages {
                break;
            }
            let last = if place.depth == 0 { NIL } else { node.last_slot() };
            let same_place = s.store && s.leased == place.depth && s.root == node.root && s.lease == last;
            // The page that would make the run longer is looked at first: many copies of one prompt cost a page each.
            if same_place && same(s, from + best as usize) {
                best = best.max((from..from + pages as usize).take_while(|&at| same(s, at)).count() as u64);
            }
        }
        best
    }

    /// The report of the newest `open` or `resume` of a sequence.
    pub fn report(&self, id: SeqId) -> Result<Report> {
        Ok(self.seq(id, "report")?.report)
    }

    /// Counters and state.
    pub fn stats(&self) -> Stats {
        let t = &self.tree;
        Stats {
            full: PoolStats {
                total: u64::from(t.full.total()),
                free: u64::from(t.full.free()),
                private: u64::from(t.full.private()),
                cached: u64::from(t.full.cached()),
                leased: t.leased_full(),
                quarantined: u64::from(t.full.quarantined()),
                promised: self.promised,
                scratch_used: 0,
            },
            swa: PoolStats {
                total: u64::from(t.swa.total()),
                free: u64::from(t.swa.free()),
                private: u64::from(t.swa.private()),
                cached: u64::from(t.swa.cached()),
                leased: t.leased_swa(),
                quarantined: u64::from(t.swa.quarantined()),
                promised: self.quota + self.copy_holds,
                scratch_used: self.scratch_used,
            },
            nodes: t.nodes.len() as u64,
            checkpoints: t.ckpts.len() as u64,
            open_sequences: self.seqs.len() as u64 - self.parked,
            parked_sequences: self.parked,
            opens: self.opens,
            prompt_tokens: self.prompt_tokens,
            hit_tokens: self.hit_tokens,
            full_kv_tokens: self.full_kv_tokens,
            misses: self.misses,
            full_evicted: t.counters.full,
            checkpoints_evicted: t.counters.checkpoints,
            swa_evicted: t.counters.swa,
            tree_bytes: t.bytes(),
            split: self.split_stats(),
        }
    }

    /// Every count and cross-reference, recomputed. O(everything); for tests and debugging.
    pub fn check_integrity(&self) -> Result<()> {
        self.tree
            .check()
            .and_then(|()| self.check_sequences())
            .and_then(|()| self.check_split())
            .map_err(Error::Integrity)
    }

    fn check_sequences(&self) -> std::result::Result<(), String> {
        let t = &self.tree;
        let (mut quota, mut promised, mut scratch, mut parked) = (0, 0, 0, 0);
        let mut full = std::collections::BTreeMap::<u32, u32>::new();
        let mut swa = full.clone();
        let mut leases = full.clone();
        for (id, s) in self.seqs.iter() {
            parked += u64::from(s.parked);
            if s.parked {
                continue;
            }
            if self.live.get(s.live_at as usize) != Some(&id) {
                return Err(format!("sequence {id} is not in its place among the live ones"));
            }
            quota += s.quota;
            promised += s.promised();
            scratch += s.scratch;
            s.own.iter().for_each(|p| *full.entry(p.id()).or_default() += 1);
            s.duplicates.iter().for_each(|d| *full.entry(d.page.id()).or_default() += 1);
            for hold in s.swa.iter().chain(s.load.iter().flat_map(|l| &l.window)) {
                match hold {
                    super::sequence::SwaHold::Private(p) => *swa.entry(p.id()).or_default() += 1,
                    super::sequence::SwaHold::Leased(p) => *leases.entry(*p).or_default() += 1,
                }
            }
            let node = &t.nodes[s.node(t)];
            if node.end() != s.leased || (s.lease != NIL && node.last_slot() != s.lease) || node.leases == 0 {
                return Err(format!("sequence {id} does not lease the end of its {} pages", s.leased));
            }
            if t.has_full && s.table.len() != s.leased as usize + s.own.len() {
                return Err(format!("sequence {id} has {} pages in its table, {} in hand", s.table.len(), s.own.len()));
            }
        }
        let moving = t.fence.moves().flat_map(|m| &m.holds);
        let mut holds = 0;
        for hold in moving.chain(self.pending.iter().map(|p| &p.hold)) {
            match hold {
                crate::pool::Hold::Tree { swa: 0, .. } => {}
                crate::pool::Hold::Tree { swa, .. } => {
                    *leases.entry(*swa).or_default() += 1;
                    holds += 1;
                }
                crate::pool::Hold::Published(..) => return Err("a hold is half published".into()),
                crate::pool::Hold::Full(p) => *full.entry(p.id()).or_default() += 1,
                crate::pool::Hold::Swa(p) => {
                    *swa.entry(p.id()).or_default() += 1;
                    holds += 1;
                }
            }
        }
        if self.live.len() as u64 + parked != self.seqs.len() as u64 {
            return Err(format!("{} live and {parked} parked sequences of {}", self.live.len(), self.seqs.len()));
        }
        let have = (quota, promised, scratch, parked, holds);
        let want = (self.quota, self.promised, self.scratch_used, self.parked, self.copy_holds);
        if have != want {
            return Err(format!(
                "sequences sum to {have:?}, counted {want:?} (quota, promised, scratch, parked, holds)"
            ));
        }
        if full.len() as u32 != t.full.private()
            || full.iter().any(|(&id, &n)| !t.full.is_private(id) || t.full.handles(id) != n)
        {
            return Err("full pages of sequences and private pages differ".into());
        }
        if swa.len() as u32 != t.swa.private()
            || swa.iter().any(|(&id, &n)| !t.swa.is_private(id) || t.swa.handles(id) != n)
        {
            return Err("SWA pages of sequences and private pages differ".into());
        }
        if leases.len() as u64 != t.leased_swa()
            || leases.iter().any(|(&id, &n)| t.swa_meta.get(id as usize).leases != n)
        {
            return Err("SWA leases of sequences and of pages differ".into());
        }
        if t.has_swa && self.swa_in_share() > self.swa_share() + self.slack() {
            return Err("windows and checkpoints take more than their share of the SWA pool".into());
        }
        let beyond = u64::from(t.full.private()) + t.leased_full() + self.promised > u64::from(t.full.usable());
        if t.has_full && beyond {
            return Err("more full pages are promised than the pool can serve".into());
        }
        Ok(())
    }
}
