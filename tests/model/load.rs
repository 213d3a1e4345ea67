//! Rows that come from another tier. The fake one has every row of every story, MTP rows made with whatever record the
//! operation's bytes say, so that what the cache must rebuild or keep is told by the canaries.

use super::below::{copy, pages};
use super::lifecycle::pick;
use super::memory::{HEADS, Page, Row, STALE, mix};
use super::op::Prompt;
use super::story::{Seq, key};
use super::world::World;
use mimo_cache::cache::{Group, Load, LoadOptions, MtpRebuild, Record};
use mimo_cache::error::Error;
use mimo_cache::policy::kind;
use mimo_cache::tier::Pairs;

/// A load that was not ended yet.
#[derive(Debug, Clone)]
pub struct Incoming {
    pub load: Load,
    /// Record of each SWA page.
    pub records: Vec<Record>,
    /// From the host tier: what is copied, and what its pages held when it began.
    pub host: Option<(Pairs, Vec<Vec<Option<Row>>>)>,
    /// The sequence before: committed, full_write_from, swa_write_from.
    pub before: (u64, u64, u64),
    pub to: u64,
    pub writer: u32,
}

impl Incoming {
    /// The pages that it writes.
    pub fn pages(&self) -> impl Iterator<Item = Page> + '_ {
        let full = self.load.full.iter().map(|&(_, id)| (Group::Full, id));
        full.chain(self.load.swa.iter().map(|&(_, id)| (Group::Swa, id)))
    }
}

impl World {
    /// Begins a load for an open sequence that stands at a boundary; `far` names the boundary, `taste` the records.
    pub fn load(&mut self, i: usize, far: u8, taste: u8, keep_records: bool) -> Option<u64> {
        let page = u64::from(self.setup.page);
        let s = &self.seqs[i];
        let id = s.id;
        let boundaries = s.known() / page - s.committed / page;
        let fits = s.committed.is_multiple_of(page) && s.reserved == 0 && s.incoming.is_none();
        if !fits || boundaries == 0 {
            let to = s.known() / page * page;
            assert!(self.cache.missing(id, to).is_err(), "a load of a sequence at {} of {}", s.committed, s.known());
            return None;
        }
        let to = (s.committed / page + 1 + u64::from(far) % boundaries) * page;
        let missing = self.cache.missing(id, to).expect("a sequence at a boundary");
        let records: Vec<Record> = missing.swa.iter().map(|&logical| self.record(s, logical, taste)).collect();
        let options = LoadOptions { to, kinds: kind::PROMPT_END, records: &records, keep_records };
        let before = self.check_seq(s);
        let load = self.attempt(|w| w.cache.load(id, &options))?;
        let names = |pages: &[(u64, u32)]| pages.iter().map(|(l, _)| *l).collect::<Vec<_>>();
        if self.setup.has_full() {
            assert_eq!(names(&load.full), missing.full.collect::<Vec<_>>());
        }
        assert_eq!(names(&load.swa), missing.swa);
        let number = load.id;
        let before_load = before;
        self.set_out(i, load, records, None, to);
        let after = self.check_seq(&self.seqs[i]);
        for page in self.loads[&number].pages() {
            assert!(after.iter().any(|(_, _, p)| *p == page) && !before_load.iter().any(|(_, _, p)| *p == page));
        }
        let commit = self.cache.commit(id, 0, &[]);
        assert!(matches!(commit, Err(Error::State { .. })), "a commit while rows are on their way");
        assert!(self.cache.move_done(number).is_err(), "a load ended as a move");
        Some(number)
    }

    /// A load begins: the sequence stands at `to`, its pages are on their way.
    pub fn set_out(
        &mut self,
        i: usize,
        load: Load,
        records: Vec<Record>,
        host: Option<(Pairs, Vec<Vec<Option<Row>>>)>,
        to: u64,
    ) {
        let s = &mut self.seqs[i];
        let incoming = Incoming {
            load: load.clone(),
            records,
            host,
            before: (s.committed, s.full_write_from, s.swa_write_from),
            to,
            writer: s.writer,
        };
        (s.committed, s.done, s.swa_write_from) = (to, to, to);
        s.full_write_from = s.full_write_from.max(to);
        s.incoming = Some(load.id);
        // Pages of the tree may come as copies of the next plan.
        s.settled = false;
        for page in incoming.pages() {
            assert!(!self.busy(page), "{page:?} is loaded into while in use");
        }
        assert!(self.loads.insert(load.id, incoming).is_none(), "two loads are called {}", load.id);
    }

    /// With which tokens the other tier's rows of a page were made: the reader's, others, or too few.
    fn record(&self, s: &Seq, logical: u64, taste: u8) -> Record {
        let n = u64::from(self.setup.n_mtp);
        let end = (logical + 1) * u64::from(self.setup.page);
        let own = (end..end + n).map(|at| s.token(at)).take_while(|t| *t != STALE);
        match taste % 4 {
            0 | 1 => own.collect(),
            2 => own.take(mix(u64::from(taste), logical) as usize % 4).collect(),
            _ => (0..n).map(|k| (mix(u64::from(taste / 4), k) % u64::from(self.setup.alphabet)) as u32).collect(),
        }
    }

    /// A load ends; with `ok` its rows are there.
    pub fn load_done(&mut self, id: u64, ok: bool) {
        let incoming = self.loads.remove(&id).expect("a load on its way");
        let at = self.seqs.iter().position(|s| s.incoming == Some(id));
        assert_eq!(at.is_some(), self.seqs.iter().any(|s| s.writer == incoming.writer && !s.parked));
        if let Some(i) = at {
            if ok && incoming.host.is_none() {
                self.bring(i, &incoming);
            }
            let prompt = self.cache.report(self.seqs[i].id).expect("a live sequence").prompt_tokens;
            let s = &mut self.seqs[i];
            s.incoming = None;
            if ok {
                let gained = incoming.to.min(prompt) - incoming.before.0.min(prompt);
                if s.counted {
                    self.totals.hit_tokens += gained;
                    self.totals.missed -= gained;
                }
            } else {
                (s.committed, s.full_write_from, s.swa_write_from) = incoming.before;
                (s.reserved, s.done) = (0, s.committed);
                s.guess.clear();
            }
        }
        let arrived = match (&incoming.host, self.below.as_mut()) {
            (Some((pairs, was)), Some(below)) => {
                copy(&below.memory, &mut self.memory, &pages(pairs, true), was, ok);
                if let Some(i) = at.filter(|_| ok) {
                    self.rebuild(i, &incoming);
                }
                let below = self.below.as_mut().expect("a host tier");
                below.tiers.fetched(&mut self.cache, id, ok).expect("a load on its way")
            }
            _ => self.cache.load_done(id, ok).expect("a load on its way"),
        };
        assert_eq!(arrived, ok && at.is_some());
        if let Some(i) = at.filter(|_| ok) {
            let report = self.cache.report(self.seqs[i].id).expect("a live sequence");
            assert_eq!(report.delivered + report.misses.total(), report.prompt_tokens, "{report:?}");
            assert!(report.promised >= report.delivered && report.delivered <= incoming.to, "{report:?}");
        }
    }

    /// The other tier's rows.
    fn bring(&mut self, i: usize, incoming: &Incoming) {
        let page = u64::from(self.setup.page);
        for &(logical, id) in &incoming.load.full {
            for position in logical * page..(logical + 1) * page {
                let row = self.seqs[i].row(&self.setup, Group::Full, position);
                self.memory.write(id, row);
            }
        }
        for (&(logical, id), record) in incoming.load.swa.iter().zip(&incoming.records) {
            let end = (logical + 1) * page;
            for position in logical * page..end {
                let mut row = self.seqs[i].row(&self.setup, Group::Swa, position);
                for k in 0..HEADS.min(self.setup.n_mtp as usize) {
                    if let Some(beyond) = (position + k as u64 + 1).checked_sub(end) {
                        row.mtp[k] = record.get(beyond as usize).copied().unwrap_or(STALE);
                    }
                }
                self.memory.write(id, row);
            }
        }
        self.rebuild(i, incoming);
    }

    fn rebuild(&mut self, i: usize, incoming: &Incoming) {
        for MtpRebuild { seq, page, start, end } in incoming.load.rebuilds.iter().copied() {
            assert_eq!(seq, self.seqs[i].id);
            assert!(start < end && end <= incoming.to, "{start} to {end} is rebuilt of {}", incoming.to);
            for position in start..end {
                let row = self.seqs[i].row(&self.setup, Group::Swa, position);
                let found = self.memory.row((Group::Swa, page), position).map(|r| (r.prefix, r.position));
                assert_eq!(found, Some((row.prefix, position)), "hidden state of a loaded page");
                self.memory.write(page, row);
            }
        }
    }

    /// Ends the load that a sequence waits for, if there is one.
    pub fn await_load(&mut self, i: usize, ok: bool) {
        if let Some(id) = self.seqs[i].incoming {
            self.load_done(id, ok);
        }
    }

    pub fn load_done_op(&mut self, which: u8, ok: bool) {
        if let Some(n) = pick(which, self.loads.len()) {
            let id = *self.loads.keys().nth(n).expect("a load");
            self.load_done(id, ok);
        }
    }

    /// What a copy from another tier is: a sequence that computes nothing, goes to a boundary by loading and ends.
    pub fn receive(&mut self, prompt: Prompt, far: u8, taste: u8) {
        let Some(i) = self.open_prompt(prompt, 0) else { return };
        let writer = self.seqs[i].writer;
        let id = self.load(i, far, taste, true);
        self.audit();
        let at = |w: &World| w.seqs.iter().position(|s| s.writer == writer).expect("still open");
        if let Some(id) = id {
            self.load_done(id, taste % 16 != 15);
            self.audit();
        }
        // Its MTP rows are those of the records, which no reader's table shows before it was asked.
        let i = at(self);
        self.seqs[i].settled = false;
        self.finish(i);
    }

    /// Lends what is cached of a prompt, and checks what the borrower would read.
    pub fn lend(&mut self, prompt: Prompt, most: u8) {
        let story = self.story(prompt);
        let (tokens, key, spans) = (&story.tokens, key(story.key), &story.spans);
        let found = self.cache.match_tokens(tokens, &key, spans).expect("a valid prompt");
        let (depth, map) = self.cache.window_map(tokens, &key, spans, 0).expect("a valid prompt");
        let page = u64::from(self.setup.page);
        assert_eq!(depth * page, found.full_kv_match);
        let at = found.usable / page;
        let need = if self.setup.has_swa() { u64::from(self.setup.window).div_ceil(page) } else { 0 };
        let swa: Vec<u64> = (at.saturating_sub(need)..at).collect();
        assert!(swa.iter().all(|l| map[*l as usize]), "the window of {found:?} is not in {map:?}");
        let full = if self.setup.has_full() { 0..at } else { 0..0 };
        let Some(lent) = self.cache.lend((tokens, &key, spans), full, &swa).expect("a valid prompt") else {
            return;
        };
        let fresh = self.namespaces.len() as u32;
        let namespace = *self.namespaces.entry((story.weights, story.key)).or_insert(fresh);
        let prefixes = story.prefixes(namespace);
        let mut pages = Vec::new();
        for (logical, id) in (0..)
            .zip(&lent.full)
            .map(|(l, id)| (l, (Group::Full, *id)))
            .chain(swa.iter().zip(&lent.swa).map(|(l, id)| (*l, (Group::Swa, *id))))
        {
            for position in logical * page..(logical + 1) * page {
                let row = self.memory.row(id, position).expect("a published row");
                assert_eq!((row.prefix, row.position), (prefixes[position as usize], position), "{id:?} was lent");
            }
            pages.push(id);
        }
        for (id, record) in lent.swa.iter().zip(&lent.records) {
            assert_eq!(self.cache.mtp_record(*id).as_deref(), Some(&record[..]));
        }
        self.moves.insert(lent.id, Default::default());
        self.lent.insert(lent.id, pages.iter().map(|p| (*p, self.memory.page(*p))).collect());
        while self.lent.len() > usize::from(most % 4) {
            let id = *self.lent.keys().next().expect("a loan");
            self.moves.remove(&id);
            self.end_loan(id);
            self.cache.move_done(id).expect("an unfinished move");
        }
    }

    /// What was lent was not written while it was.
    pub fn end_loan(&mut self, id: u64) {
        for (page, rows) in self.lent.remove(&id).unwrap_or_default() {
            assert_eq!(self.memory.page(page), rows, "{page:?} was written while it was lent");
        }
    }
}
