//! The engine's side of the contract: it reserves, runs steps on the fake device, commits and retires.
//!
//! A step computes rows [done, committed + reserved): full KV from `full_write_from`, SWA from `swa_write_from`.
//! Before a commit the MTP rows of the last `n_mtp` committed positions are made again with the tokens that became
//! known, as the real heads do. Rows after a rejected draft stay where they are, as garbage.

use super::lifecycle::pick;
use super::memory::{Page, mix};
use super::op::Prompt;
use super::story::Seq;
use super::world::World;
use mimo_cache::cache::{Commit, FillOut, Group, Plan};
use std::collections::HashSet;

/// How an engine step is made.
#[derive(Debug, Clone, Copy)]
pub struct Step {
    /// Most tokens of a prefill chunk.
    pub chunk: u64,
    /// Drafts that turn out right, where there are so many.
    pub accept: usize,
    /// Chooses drafts and samples.
    pub seed: u8,
    /// The compact form of the SWA table.
    pub compact: bool,
    /// `commit_many` instead of `commit`.
    pub many: bool,
}

/// What one sequence is about to commit.
struct Outcome {
    at: usize,
    computed: u64,
    tokens: Vec<u32>,
}

impl World {
    /// Reserves `n` slots; whether it worked.
    pub fn reserve(&mut self, i: usize, n: u64) -> bool {
        let id = self.seqs[i].id;
        let most = self.cache.reservable(id).expect("an open sequence");
        let before = self.check_seq(&self.seqs[i]);
        let worked = self.attempt(|w| w.cache.reserve(id, n)).is_some();
        assert_eq!(worked, n <= most, "reserve({n}) where {most} slots are reservable");
        // Within its promise a sequence may have to wait for running steps, and for nothing else.
        let waits = !self.running.is_empty() || !self.moves.is_empty() || !self.loads.is_empty() || self.lends_below();
        let s = &mut self.seqs[i];
        if !worked {
            let end = s.committed + s.reserved + n;
            let promised = end <= s.promised && s.reserved == 0 && n <= 1 + u64::from(self.setup.n_mtp);
            assert!(!promised || waits, "sequence {} was promised {n} slots up to {end}", s.writer);
            return false;
        }
        s.reserved += n;
        let s = &self.seqs[i];
        let after = self.check_seq(s);
        for place @ (writer, logical, page) in after {
            let read_only = page.0 == Group::Full && logical < s.full_write_from / u64::from(self.setup.page);
            let fresh = !read_only && !before.contains(&place);
            assert!(!fresh || !self.busy(page), "{page:?} was handed to sequence {writer} while in use");
        }
        true
    }

    pub fn trim(&mut self, i: usize) {
        let given = self.cache.trim(self.seqs[i].id).expect("an open sequence");
        let s = &mut self.seqs[i];
        assert_eq!(given, s.reserved, "trim gives back all reserved slots");
        (s.reserved, s.done) = (0, s.committed);
        s.guess.clear();
    }

    /// Starts a step for `picks`, runs its plan and its kernels, and leaves it running.
    pub fn fill(&mut self, picks: &[usize], seed: u8, compact: bool) {
        let page = u64::from(self.setup.page);
        let ends: Vec<u64> = picks.iter().map(|i| self.seqs[*i].committed + self.seqs[*i].reserved).collect();
        let pages = ends.iter().max().map_or(0, |e| e.div_ceil(page)) as usize;
        // The width of a compact row that engines may count on: ceil((W + slots) / page) + 2.
        let slots = picks.iter().map(|i| self.seqs[*i].reserved).max().unwrap_or(0);
        let reach = u64::from(self.setup.window) + slots;
        let full_width = if self.setup.has_full() { pages + 1 } else { 0 };
        let swa_width = match (self.setup.has_swa(), compact) {
            (true, true) => reach.div_ceil(page) as usize + 2,
            (true, false) => pages + 1,
            (false, _) => 0,
        };
        let n = picks.len();
        let (mut full, mut swa) = (vec![-7; n * full_width], vec![-7; n * swa_width]);
        let (mut base, mut lens) = (vec![-7; n], vec![-7; n]);
        let ids: Vec<_> = picks.iter().map(|i| self.seqs[*i].id).collect();
        let out = FillOut {
            full: &mut full,
            full_width,
            swa: &mut swa,
            swa_width,
            swa_base: compact.then_some(&mut base[..]),
            lens: &mut lens,
        };
        let step = self.next_step;
        let plan = self.cache.fill(step, &ids, out).unwrap_or_else(|e| panic!("a valid fill was refused: {e}"));
        self.next_step += 1;
        let mut touched = self.execute(&plan);
        for (row, i) in picks.iter().enumerate() {
            assert_eq!(lens[row] as u64, ends[row], "lens is committed + reserved");
            let first = if compact { base[row] as u64 } else { 0 };
            let full = self.row_of(Group::Full, &full[row * full_width..][..full_width], 0, *i, ends[row]);
            let swa = self.row_of(Group::Swa, &swa[row * swa_width..][..swa_width], first, *i, ends[row]);
            touched.extend(full.iter().chain(&swa).map(|(_, page)| *page));
            self.verify(*i);
            self.compute(*i, ends[row], &full, &swa, seed);
        }
        self.running.push_back((step, touched));
        if self.running.len() > 4 {
            self.retire();
        }
    }

    /// Checks a row of a step's table against the cache's own account: (logical page, page).
    fn row_of(&self, group: Group, row: &[i32], first: u64, i: usize, end: u64) -> Vec<(u64, Page)> {
        let s = &self.seqs[i];
        let mut want: Vec<(u64, u32)> = Vec::new();
        match group {
            Group::Full => want.extend((0..).zip(self.cache.full_table(s.id).expect("open").iter().copied())),
            Group::Swa => {
                let (begin, ids) = self.cache.swa_table(s.id).expect("open");
                want.extend((begin..).zip(ids));
            }
        }
        let (last, page) = (first + row.len() as u64, u64::from(self.setup.page));
        let window = if group == Group::Full { 0 } else { s.committed.saturating_sub(u64::from(self.setup.window)) };
        for (column, id) in row.iter().enumerate() {
            let logical = first + column as u64;
            let listed = want.iter().find(|(l, _)| *l == logical).map_or(0, |(_, id)| *id as i32);
            let used = (window / page..end.div_ceil(page)).contains(&logical);
            let wrong = *id != if used { listed } else { 0 };
            assert!(!wrong, "{group:?} page {logical} of sequence {}: {row:?} from page {first}, {want:?}", s.writer);
        }
        let whole = row.is_empty() || (first <= window / page && last >= end.div_ceil(page));
        assert!(whole, "{group:?} pages {first} to {last} for positions {window} to {end} of sequence {}", s.writer);
        want.retain(|(logical, _)| (first..last).contains(logical));
        want.into_iter().map(|(logical, id)| (logical, (group, id))).collect()
    }

    /// Runs a plan's copies and rebuilds; the pages it touches.
    fn execute(&mut self, plan: &Plan) -> HashSet<Page> {
        let mut touched = HashSet::new();
        for copy in &plan.copies {
            let (src, dst) = ((copy.group, copy.src), (copy.group, copy.dst));
            assert!(!self.busy(dst), "{dst:?} is copied to while a running step uses it");
            self.memory.copy(copy);
            touched.extend([src, dst]);
        }
        for rebuild in &plan.rebuilds {
            let s = self.seqs.iter().find(|s| s.id == rebuild.seq).expect("a rebuild for a live sequence");
            let page = (Group::Swa, rebuild.page);
            assert!(rebuild.start < rebuild.end && rebuild.end <= s.committed, "{rebuild:?} at {}", s.committed);
            for position in rebuild.start..rebuild.end {
                // The hidden state is in the row; it must be the reader's own.
                let found = self.memory.row(page, position).map(|r| (r.namespace, r.prefix, r.position));
                let row = s.row(&self.setup, Group::Swa, position);
                assert_eq!(found, Some((row.namespace, row.prefix, row.position)), "hidden state for {rebuild:?}");
                self.memory.write(rebuild.page, row);
            }
            touched.insert(page);
        }
        self.seqs.iter_mut().for_each(|s| s.settled = true);
        touched
    }

    /// Every committed row that the next step reads is this sequence's own KV.
    pub fn verify(&self, i: usize) {
        let (s, page) = (&self.seqs[i], u64::from(self.setup.page));
        if !s.settled || s.incoming.is_some() {
            return;
        }
        if self.setup.has_full() {
            let table = self.cache.full_table(s.id).expect("an open sequence");
            for t in 0..s.committed.max(s.full_write_from.min(s.committed + s.reserved)) {
                s.check(&self.setup, &self.memory, (Group::Full, table[(t / page) as usize]), t);
            }
        }
        if self.setup.has_swa() {
            let (first, table) = self.cache.swa_table(s.id).expect("an open sequence");
            for t in s.committed.saturating_sub(u64::from(self.setup.window))..s.committed {
                s.check(&self.setup, &self.memory, (Group::Swa, table[(t / page - first) as usize]), t);
            }
            for (logical, id) in (first..).zip(&table) {
                self.check_record(s, (logical + 1) * page, *id);
            }
        }
    }

    /// A published SWA page's MTP rows were made with the tokens that its record names.
    fn check_record(&self, s: &Seq, end: u64, id: u32) {
        let Some(record) = self.cache.mtp_record(id) else { return };
        let heads = u64::from(self.setup.n_mtp);
        assert!(record.len() as u64 <= heads, "a record of {record:?} for {heads} heads");
        let page = u64::from(self.setup.page);
        for position in end - heads.min(page)..end {
            for k in 0..heads {
                let beyond = (position + k + 1).checked_sub(end).map(|n| n as usize);
                let Some(token) = beyond.and_then(|n| record.get(n)) else { continue };
                let row = self.memory.row((Group::Swa, id), position).expect("a published row");
                assert_eq!(row.mtp[k as usize], *token, "SWA page {id} of {}, record {record:?}: {row:?}", s.writer);
            }
        }
    }

    fn compute(&mut self, i: usize, end: u64, full: &[(u64, Page)], swa: &[(u64, Page)], seed: u8) {
        let (setup, s) = (&self.setup, &mut self.seqs[i]);
        let alphabet = u64::from(setup.alphabet);
        s.draft(end, |position| (mix(u64::from(seed % 4), position) % alphabet) as u32);
        for position in s.done..end {
            let logical = position / u64::from(setup.page);
            for (group, table, from) in [(Group::Full, full, s.full_write_from), (Group::Swa, swa, s.swa_write_from)] {
                let exists = if group == Group::Full { setup.has_full() } else { setup.has_swa() };
                if exists && position >= from {
                    let (_, (_, id)) = table.iter().find(|(l, _)| *l == logical).expect("a page for every slot");
                    self.memory.write(*id, s.row(setup, group, position));
                }
            }
        }
        s.done = end;
    }

    /// Makes the MTP rows of [from, to) again where the tokens they need are known by now.
    fn renew_mtp(&mut self, i: usize, from: u64, to: u64) {
        if !self.setup.has_swa() || self.setup.n_mtp == 0 {
            return;
        }
        let (s, page) = (&self.seqs[i], u64::from(self.setup.page));
        let (first, table) = self.cache.swa_table(s.id).expect("an open sequence");
        // Before q only the window has rows; a window shorter than the reach of the heads ends the walk.
        let from = from.max(s.swa_write_from.saturating_sub(u64::from(self.setup.window)).min(to));
        for position in from.max(first * page)..to {
            let id = table[(position / page - first) as usize];
            let row = s.row(&self.setup, Group::Swa, position);
            let old = self.memory.row((Group::Swa, id), position).expect("a committed row");
            if old.mtp == row.mtp {
                continue;
            }
            let known = s.known().saturating_sub(position + 1).min(u64::from(self.setup.n_mtp)) as usize;
            if self.cache.mtp_record(id).is_some() {
                // Published: never written again, and right as far as tokens are known.
                assert_eq!(old.mtp[..known], row.mtp[..known], "published SWA page {id} has a stale row: {old:?}");
                continue;
            }
            let holders = self.held.iter().filter(|(_, _, p)| *p == (Group::Swa, id)).count();
            assert!(
                holders <= 1 || old.mtp[..known] == row.mtp[..known],
                "SWA page {id} is shared and must be written"
            );
            if holders <= 1 {
                self.memory.write(id, row);
            }
        }
    }

    /// Decides what a sequence commits: at most `rows`, after accepting `accept` drafts and `extra` further tokens.
    fn outcome(&self, i: usize, rows: u64, accept: usize, extra: usize, seed: u8) -> Outcome {
        let s = &self.seqs[i];
        let mut tokens: Vec<u32> = s.guess.iter().copied().take(accept).collect();
        for n in 0..extra {
            let at = u64::from(seed % 8) + n as u64;
            tokens.push((mix(s.known() + at, at) % u64::from(self.setup.alphabet)) as u32);
        }
        let right = tokens.iter().zip(&s.guess).take_while(|(a, b)| a == b).count() as u64;
        let valid = s.done.min(s.known() + right).max(s.committed);
        Outcome { at: i, computed: rows.min(valid - s.committed).min(s.reserved), tokens }
    }

    /// Operations stop extending a sequence at some length.
    fn long_enough(&self, i: usize) -> bool {
        self.seqs[i].story.tokens.len() > 2 * self.setup.longest()
    }

    /// Commits for several sequences at once.
    fn commit(&mut self, outcomes: &[Outcome], many: bool) {
        for o in outcomes {
            let s = &mut self.seqs[o.at];
            s.learn(&o.tokens);
            let (from, to) = (s.committed.saturating_sub(u64::from(self.setup.n_mtp)), s.committed + o.computed);
            self.renew_mtp(o.at, from, to);
        }
        let items: Vec<Commit> = outcomes
            .iter()
            .map(|o| Commit { seq: self.seqs[o.at].id, computed: o.computed, tokens: &o.tokens })
            .collect();
        if many {
            self.cache.commit_many(&items).unwrap_or_else(|e| panic!("a valid commit was refused: {e}"));
        } else {
            for item in items {
                let done = self.cache.commit(item.seq, item.computed, item.tokens);
                done.unwrap_or_else(|e| panic!("a valid commit was refused: {e}"));
            }
        }
        for o in outcomes {
            let s = &mut self.seqs[o.at];
            s.committed += o.computed;
            s.reserved -= o.computed;
            s.done = s.done.max(s.committed);
        }
    }

    pub fn commit_op(&mut self, seq: u8, rows: u8, accept: u8, extra: u8, seed: u8) {
        let Some(i) = self.open_seq(seq).filter(|i| self.seqs[*i].settled) else { return };
        self.await_load(i, extra % 8 != 7);
        let rows = if rows == 0 { u64::MAX } else { u64::from(rows) - 1 };
        let more = !self.long_enough(i);
        let (accept, fresh) = if more { (usize::from(accept % 6), usize::from(extra % 4)) } else { (0, 0) };
        let outcome = self.outcome(i, rows, accept, fresh, seed);
        self.commit(&[outcome], extra >= 128);
    }

    /// One engine step for the sequences of a mask, from an operation's bytes.
    pub fn advance(&mut self, mask: u8, chunk: u8, accept: u8, seed: u8, shape: u8) {
        let how = Step {
            chunk: self.amount(chunk) + 1,
            accept: usize::from(accept),
            seed,
            compact: shape % 4 != 1,
            many: shape % 8 < 4,
        };
        self.step(&self.masked(mask), how);
        if shape < 160 {
            self.retire();
        }
    }

    /// One engine step, left running: chunks for those in prefill, drafts for those in decode.
    pub fn step(&mut self, picks: &[usize], how: Step) {
        let mut picks = picks.to_vec();
        for i in picks.clone() {
            let s = &self.seqs[i];
            let left = s.known() - s.committed;
            let want = if left > 1 { how.chunk.min(left) } else { left + u64::from(self.setup.drafts) };
            let want = want.saturating_sub(s.reserved);
            if !self.reserve(i, want) {
                while !self.running.is_empty() {
                    self.retire();
                }
                let most = self.cache.reservable(self.seqs[i].id).expect("an open sequence");
                self.reserve(i, want.min(most));
            }
        }
        picks.retain(|i| self.seqs[*i].reserved > 0);
        self.fill(&picks, how.seed, how.compact);
        // What comes layer by layer is there when the step is over, or the step was for nothing.
        picks.iter().for_each(|&i| self.await_load(i, !how.seed.is_multiple_of(5)));
        picks.retain(|i| self.seqs[*i].reserved > 0);
        let mut outcomes = Vec::new();
        for (n, i) in picks.iter().enumerate() {
            let s = &self.seqs[*i];
            let sampled = s.committed + s.reserved >= s.known() && !self.long_enough(*i);
            let accept = if sampled { (how.accept + n * 3) % 5 } else { 0 };
            let rows = s.known() - s.committed + accept as u64;
            outcomes.push(self.outcome(*i, rows, accept, usize::from(sampled), how.seed));
        }
        self.commit(&outcomes, how.many);
        picks.into_iter().for_each(|i| self.trim(i));
    }

    pub fn retire(&mut self) {
        if let Some((step, _)) = self.running.pop_front() {
            self.cache.retire(step).expect("steps are retired in order");
        }
    }

    pub fn take_copies(&mut self) {
        let Some((id, plan)) = self.cache.take_copies() else { return };
        assert!(!plan.copies.is_empty() || !plan.rebuilds.is_empty(), "a move of nothing");
        let touched = self.execute(&plan);
        assert!(self.moves.insert(id, touched).is_none(), "two moves are called {id}");
    }

    pub fn move_done(&mut self, which: u8) {
        if let Some(n) = pick(which, self.moves.len()) {
            let id = *self.moves.keys().nth(n).expect("a move");
            self.moves.remove(&id);
            self.end_loan(id);
            self.cache.move_done(id).expect("an unfinished move");
        }
    }

    /// A whole life in one operation.
    pub fn serve(&mut self, prompt: Prompt, shape: u8) {
        let Some(i) = self.open_prompt(prompt, shape % 8) else { return };
        let id = self.seqs[i].id;
        for round in 0..60u8 {
            let Some(i) = self.seqs.iter().position(|s| s.id == id) else { return };
            let s = &self.seqs[i];
            if s.known() >= s.prompt + u64::from(shape % 8) && s.committed + 1 >= s.known() {
                break;
            }
            self.advance(1 << i, shape.wrapping_mul(31), shape / 8 + round, round, shape);
            self.audit();
        }
        let i = self.seqs.iter().position(|s| s.id == id).expect("still open");
        if shape % 16 == 15 { self.abort(i) } else { self.finish(i) }
    }

    /// After everything has ended, one sequence can have the whole pool, and gets all that it was promised.
    pub fn fill_the_pool(&mut self) {
        let (setup, (full, swa)) = (&self.setup, self.usable());
        let copies = (setup.window + setup.n_mtp).div_ceil(setup.page) + 1;
        if setup.has_swa() && u64::from(setup.quota() + copies + setup.scratch) > swa {
            return;
        }
        let tokens = if setup.has_full() { full * u64::from(setup.page) } else { 100 };
        let i = self.open_tokens(vec![u32::MAX], tokens - 1).expect("an empty cache refused a sequence of its size");
        while self.seqs[i].committed < tokens {
            let s = &self.seqs[i];
            let n = (1 + u64::from(self.setup.n_mtp)).min(tokens - s.committed);
            assert!(self.reserve(i, n), "a promised page was refused at {}", self.seqs[i].committed);
            self.fill(&[i], 0, true);
            let outcome = self.outcome(i, n, n as usize, 0, 0);
            self.commit(&[outcome], false);
            self.retire();
            self.audit();
        }
        self.abort(i);
    }
}
