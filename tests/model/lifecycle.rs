//! Operations that begin and end sequences, look things up, or change the cache as a whole.

use super::brute::{roots, weights};
use super::memory::mix;
use super::op::{Op, Prompt};
use super::story::{Seen, Seq, Story, key};
use super::world::{Waiting, World};
use mimo_cache::cache::{EventKind, Match, Report, RequestOptions, SeqId};
use mimo_cache::error::Error;
use mimo_cache::key::Span;

impl World {
    /// Dispatches one operation; those that find nothing to act on do nothing.
    pub fn run(&mut self, op: Op) {
        // What an operation's number names; without one the operation does nothing.
        let open = |w: &World, seq: u8| w.open_seq(seq);
        match op {
            Op::Serve { prompt, shape } => self.serve(prompt, shape),
            Op::Request { prompt } => self.request(prompt),
            Op::Peek { request } => self.peek(request),
            Op::Open { request, credit } => _ = self.open(request, credit),
            Op::Drop { request } => _ = pick(request, self.waiting.len()).map(|i| self.waiting.remove(i)),
            Op::Advance { mask, chunk, accept, seed, shape } => self.advance(mask, chunk, accept, seed, shape),
            Op::Reserve { seq, n } => _ = open(self, seq).map(|i| self.reserve(i, self.amount(n))),
            Op::Fill { mask, seed, compact } => self.fill(&self.masked(mask), seed, compact),
            Op::Commit { seq, rows, accept, extra, seed } => self.commit_op(seq, rows, accept, extra, seed),
            Op::Trim { seq } => _ = open(self, seq).map(|i| self.trim(i)),
            Op::Retire => self.retire(),
            Op::Finish { seq } => _ = open(self, seq).map(|i| self.finish(i)),
            Op::Abort { seq } => _ = pick(seq, self.seqs.len()).map(|i| self.abort(i)),
            Op::Fork { seq, m, credit } => {
                _ = open(self, seq).map(|i| self.fork(i, 1 + usize::from(m % 3), credit));
            }
            Op::Park { seq, store } => _ = open(self, seq).map(|i| self.park(i, store)),
            Op::Resume { seq, credit } => self.resume(seq, credit),
            Op::TakeCopies => self.take_copies(),
            Op::MoveDone { which } => self.move_done(which),
            Op::Match { prompt } => self.look(prompt, false),
            Op::Explain { prompt } => self.look(prompt, true),
            Op::Clear { key, all } => self.clear(key, all),
            Op::SetWeights { version } => {
                self.weights = version % 2;
                self.cache.set_weights(&weights(self.weights)).expect("a short name");
                if let Some(below) = &mut self.below {
                    below.tiers.set_weights(&weights(self.weights)).expect("a short name");
                }
            }
            Op::Pin { prompt, ttl } => {
                let story = self.story(prompt);
                let found = self.residency().lookup(&self.setup, &story, self.generations);
                match self.cache.pin(&story.tokens, &key(story.key), &story.spans, u64::from(ttl)) {
                    Ok(pinned) => assert!(pinned <= found.full_kv_match, "{pinned} tokens pinned of {found:?}"),
                    // Pins are bounded; the refusal says by how much.
                    Err(e) => assert!(found.full_kv_match > 0 && e.to_string().contains("pin"), "{e}"),
                }
            }
            Op::Clock { ms } => {
                self.now += u64::from(ms);
                self.cache.set_now(self.now);
                if let Some(below) = &mut self.below {
                    below.tiers.set_now(self.now);
                }
            }
            Op::TenantShare { tenant, full, swa } => {
                let share = |n: u8| if n > 200 { u64::MAX } else { u64::from(n % 24) };
                self.cache.set_tenant_share(u32::from(tenant % 2), share(full), share(swa));
            }
            Op::Drain { max } => self.drain(max),
            Op::Load { seq, far, taste } => _ = open(self, seq).map(|i| self.load(i, far, taste, false)),
            Op::LoadDone { which, ok } => self.load_done_op(which, ok),
            Op::Receive { prompt, far, taste } => self.receive(prompt, far, taste),
            Op::Lend { prompt, most } => self.lend(prompt, most),
            Op::Fetch { seq } => _ = open(self, seq).map(|i| self.fetch(i)),
            Op::Save { prompt } => self.save(prompt),
            Op::Saved { which, ok } => self.saved(which, ok),
            Op::ReceiveBelow { prompt, far, taste } => self.receive_below(prompt, far, taste),
            Op::Received { which, ok } => self.received(which, ok),
            Op::ServeBelow { prompt, taste } => self.serve_below(prompt, taste),
            Op::LendBelow { prompt, far } => self.lend_below(prompt, far),
            Op::Returned { which } => self.returned(which),
            Op::Reassign { to_full, chunk } => self.reassign(to_full, chunk),
        }
    }

    /// A prompt with at least one token.
    pub fn story(&self, p: Prompt) -> Story {
        let none = Story::default();
        let base = pick(p.base, self.stories.len() + 1).and_then(|i| self.stories.get(i)).unwrap_or(&none);
        let kept = base.tokens.len() * usize::from(p.keep) / 255;
        let mut story = base.cut(kept.min(self.setup.longest() - 1));
        story.weights = self.weights;
        if story.tokens.is_empty() {
            story.key = p.flags & 3;
        }
        let start = story.tokens.len();
        let tail = 1 + usize::from(p.tail) * (5 * self.setup.page as usize + 2) / 256;
        for i in 0..tail.min(self.setup.longest() - start) {
            // Few tastes, and tokens that depend on little, so that independent prompts go the same way.
            let token = mix(u64::from(p.taste % 4), i as u64) % u64::from(self.setup.alphabet);
            story.tokens.push(token as u32);
        }
        let len = story.tokens.len() - start;
        if p.flags & 4 != 0 {
            let at = usize::from(p.taste / 4) % len;
            let length = 1 + usize::from(p.tail) % (len - at);
            story.spans.push(Span { start: (start + at) as u64, len: length as u64, hash: [p.taste % 2; 32] });
        }
        story
    }

    fn request(&mut self, p: Prompt) {
        if self.waiting.len() < 6 {
            let waiting = self.make_request(p);
            self.waiting.push(waiting);
        }
    }

    fn make_request(&self, p: Prompt) -> Waiting {
        let story = self.story(p);
        let (tenant, store) = (u32::from(p.flags >> 3 & 1), p.flags & 16 == 0);
        let options = RequestOptions { key: key(story.key), spans: story.spans.clone(), tenant, store, again: false };
        let request = self.cache.request(story.tokens.clone(), options).expect("a valid prompt");
        assert_eq!(request.tokens(), story.tokens);
        Waiting { request, story, store }
    }

    fn peek(&mut self, request: u8) {
        if let Some(i) = pick(request, self.waiting.len()) {
            let want = self.residency().lookup(&self.setup, &self.waiting[i].story, self.generations);
            let found = self.cache.peek(&mut self.waiting[i].request);
            self.check_match(found, want);
        }
    }

    /// Opens a waiting request; its index among the sequences.
    pub fn open(&mut self, request: u8, credit: u8) -> Option<usize> {
        let at = pick(request, self.waiting.len())?;
        let mut waiting = self.waiting.remove(at);
        self.open_waiting(&mut waiting, u64::from(credit % 32)).or_else(|| {
            self.waiting.push(waiting);
            None
        })
    }

    /// A request made and opened at once.
    pub fn open_prompt(&mut self, prompt: Prompt, credit: u8) -> Option<usize> {
        let mut waiting = self.make_request(prompt);
        self.open_waiting(&mut waiting, u64::from(credit))
    }

    /// Opens these very tokens, in the first namespace.
    pub fn open_tokens(&mut self, tokens: Vec<u32>, credit: u64) -> Option<usize> {
        let story = Story { tokens, weights: self.weights, ..Story::default() };
        self.open_story(story, credit)
    }

    /// Opens a story.
    pub fn open_story(&mut self, story: Story, credit: u64) -> Option<usize> {
        let options = RequestOptions { key: key(story.key), spans: story.spans.clone(), ..RequestOptions::default() };
        let request = self.cache.request(story.tokens.clone(), options).expect("a valid prompt");
        self.open_waiting(&mut Waiting { request, story, store: true }, credit)
    }

    fn open_waiting(&mut self, waiting: &mut Waiting, credit: u64) -> Option<usize> {
        if self.seqs.len() >= 8 {
            return None;
        }
        let want = self.residency().lookup(&self.setup, &waiting.story, self.generations);
        let length = waiting.story.tokens.len() as u64;
        let usable = self.usable();
        let opened = self.attempt(|w| w.cache.open(&mut waiting.request, credit));
        assert_eq!(waiting.request.is_opened(), opened.is_some());
        self.check_admission(length + credit, opened.is_some(), usable);
        let id = opened?;
        let writer = self.next_writer;
        self.next_writer += 1;
        let story = waiting.story.clone();
        let mut seq = Seq {
            id,
            prefixes: Vec::new(),
            namespace: 0,
            writer,
            prompt: length,
            promised: length + credit,
            store: waiting.store,
            committed: 0,
            reserved: 0,
            done: 0,
            guess: Vec::new(),
            guess_prefixes: Vec::new(),
            full_write_from: 0,
            swa_write_from: 0,
            settled: false,
            incoming: None,
            counted: true,
            parked: false,
            seen: Seen::default(),
            story,
        };
        self.begin(&mut seq, want);
        self.seqs.push(seq);
        Some(self.seqs.len() - 1)
    }

    /// A sequence was opened or resumed on all its known tokens.
    fn begin(&mut self, s: &mut Seq, want: Match) {
        let report = self.cache.report(s.id).expect("a live sequence");
        self.check_report(&report, s.known(), want);
        let fresh = self.namespaces.len() as u32;
        s.namespace = *self.namespaces.entry((s.story.weights, s.story.key)).or_insert(fresh);
        s.prefixes = s.story.prefixes(s.namespace);
        s.prompt = s.known();
        (s.committed, s.reserved, s.done) = (want.usable, 0, want.usable);
        s.full_write_from = want.full_kv_match;
        s.swa_write_from = want.usable;
        (s.settled, s.parked, s.counted) = (false, false, true);
        self.totals.opens += 1;
        self.totals.prompt_tokens += s.known();
        self.totals.hit_tokens += report.matched.usable;
        self.totals.full_kv_tokens += report.matched.full_kv_match;
        self.totals.missed += report.misses.total();
    }

    fn check_match(&self, found: Match, want: Match) {
        assert_eq!(found, want, "what matching found, and what the dump says token by token");
    }

    /// hits + misses = prompt, and each part is what its name says.
    fn check_report(&self, report: &Report, prompt: u64, want: Match) {
        let page = u64::from(self.setup.page);
        self.check_match(report.matched, want);
        let (p, q, m) = (report.matched.full_kv_match, report.matched.usable, report.misses);
        let whole = prompt / page * page;
        let resumable = p.min(prompt - 1) / page * page;
        assert_eq!(report.prompt_tokens, prompt);
        assert_eq!(q + m.total(), prompt, "hits and misses make up the prompt: {report:?}");
        assert_eq!(
            (m.window, m.last_token, m.partial_page),
            (resumable - q, p - resumable, prompt - whole),
            "{report:?}"
        );
        assert_eq!(m.evicted + m.in_flight + m.capacity + m.never_seen, whole - p, "{report:?}");
        assert_eq!((report.promised, report.delivered), (q, q), "with one tier what is promised is delivered");
        assert!(report.turn >= 1, "{report:?}");
    }

    /// Refusing is right when it must be, and wrong when nothing else holds a page.
    fn check_admission(&self, tokens: u64, opened: bool, (full, swa): (u64, u64)) {
        let setup = &self.setup;
        let pages = tokens.div_ceil(u64::from(setup.page));
        let never = setup.has_full() && pages > full;
        assert!(!(never && opened), "{tokens} tokens were promised, which the whole pool cannot hold");
        let idle = self.seqs.iter().all(|s| s.parked) && self.running.is_empty() && self.moves.is_empty();
        let idle = idle && !self.lends_below();
        let copies = (setup.window + setup.n_mtp).div_ceil(setup.page) + 1;
        let room = !setup.has_swa() || u64::from(setup.quota() + copies + setup.scratch) <= swa;
        if idle && !never && room && !opened {
            panic!("{tokens} tokens were refused though nothing else is open:\n{}", self.cache.dump_text());
        }
    }

    fn fork(&mut self, i: usize, m: usize, credit: u8) {
        if self.seqs.len() + m > 8 {
            return;
        }
        if self.seqs[i].incoming.is_some() {
            let refused = self.cache.fork(self.seqs[i].id, m, 0);
            assert!(matches!(refused, Err(Error::State { .. })), "a fork while rows are on their way");
            return;
        }
        let (parent, credit) = (self.seqs[i].id, u64::from(credit % 16));
        let Some(children) = self.attempt(|w| w.cache.fork(parent, m, credit)) else { return };
        assert_eq!(children.len(), m, "fork makes all or nothing");
        for id in children {
            let s = &self.seqs[i];
            let child = Seq {
                id,
                story: s.story.clone(),
                prefixes: s.prefixes.clone(),
                writer: self.next_writer,
                promised: s.known() + credit,
                reserved: 0,
                done: s.committed,
                guess: Vec::new(),
                guess_prefixes: Vec::new(),
                settled: false,
                incoming: None,
                counted: false,
                seen: Seen::default(),
                ..*s
            };
            self.next_writer += 1;
            self.seqs.push(child);
        }
    }

    fn park(&mut self, i: usize, store: bool) {
        self.await_load(i, store);
        self.verify(i);
        self.cache.park(self.seqs[i].id, store).expect("an open sequence");
        let info = self.cache.info(self.seqs[i].id).expect("a parked sequence");
        let s = &mut self.seqs[i];
        (s.parked, s.reserved, s.committed) = (true, 0, info.committed);
        s.guess.clear();
        self.remember(i);
    }

    fn resume(&mut self, seq: u8, credit: u8) {
        let parked: Vec<usize> = (0..self.seqs.len()).filter(|i| self.seqs[*i].parked).collect();
        let Some(i) = pick(seq, parked.len()).map(|n| parked[n]) else { return };
        let (id, credit) = (self.seqs[i].id, u64::from(credit % 32));
        let want = self.residency().lookup(&self.setup, &self.seqs[i].story, self.generations);
        let usable = self.usable();
        let resumed = self.attempt(|w| w.cache.resume(id, credit)).is_some();
        self.check_admission(self.seqs[i].known() + credit, resumed, usable);
        if resumed {
            let mut s = self.seqs.remove(i);
            s.promised = s.known() + credit;
            s.seen = Seen::default();
            self.begin(&mut s, want);
            self.seqs.insert(i, s);
        }
    }

    pub fn finish(&mut self, i: usize) {
        self.verify(i);
        self.cache.finish(self.seqs[i].id).expect("an open sequence");
        self.remember(i);
        let gone = self.seqs.remove(i).id;
        self.check_gone(gone);
    }

    pub fn abort(&mut self, i: usize) {
        self.cache.abort(self.seqs[i].id).expect("a live sequence");
        self.remember(i);
        let gone = self.seqs.remove(i).id;
        self.check_gone(gone);
    }

    fn check_gone(&self, id: SeqId) {
        assert!(self.cache.info(id).is_err() && self.cache.tokens(id).is_err(), "{id:?} ended and still answers");
    }

    /// Later prompts may begin like this sequence.
    fn remember(&mut self, i: usize) {
        let story = self.seqs[i].story.clone();
        if self.stories.len() < 12 {
            self.stories.push(story);
        } else {
            let at = self.next_writer as usize % 12;
            self.stories[at] = story;
        }
    }

    fn look(&mut self, p: Prompt, explain: bool) {
        let story = self.story(p);
        let want = self.residency().lookup(&self.setup, &story, self.generations);
        let (tokens, key, spans) = (&story.tokens, key(story.key), &story.spans);
        let found = self.cache.match_tokens(tokens, &key, spans).expect("a valid prompt");
        self.check_match(found, want);
        self.look_below(&story);
        if explain {
            let told = self.cache.explain(tokens, &key, spans).expect("a valid prompt");
            assert_eq!(told.report.matched, found);
            self.check_report(&told.report, tokens.len() as u64, want);
            assert!(!told.lines.is_empty(), "an explanation says something");
        }
    }

    fn clear(&mut self, n: u8, all: bool) {
        if self.generations >= 40 {
            return;
        }
        self.cache.clear(if all { None } else { Some(key(n)) }.as_ref());
        if let Some(below) = &mut self.below {
            below.tiers.clear(if all { None } else { Some(key(n)) }.as_ref());
        }
        self.generations += 1;
        self.roots = roots(&self.cache.config().fingerprint, self.generations);
        let fresh = self.namespaces.len() as u32 + self.generations as u32 * 100;
        let weights = self.weights;
        for ((w, k), namespace) in &mut self.namespaces {
            if all || (*w == weights && key(*k) == key(n)) {
                *namespace = fresh + *namespace % 100;
            }
        }
        let found: Vec<Match> = self.waiting.iter_mut().map(|w| self.cache.peek(&mut w.request)).collect();
        for (w, found) in self.waiting.iter().zip(found) {
            let cleared = all || (w.story.weights == weights && key(w.story.key) == key(n));
            assert!(!cleared || found == Match::default(), "{found:?} after the namespace was cleared");
        }
    }

    fn drain(&mut self, max: u8) {
        if self.setup.events == 0 {
            let drained = self.cache.drain_events(usize::MAX);
            assert!(drained.events.is_empty() && drained.lost == 0, "events are off");
            return;
        }
        let max = if max.is_multiple_of(2) { usize::MAX } else { usize::from(max) };
        let drained = self.cache.drain_events(max);
        assert!(drained.events.len() <= max);
        if !self.mirror.fold(drained) {
            self.cache.drain_events(usize::MAX);
            self.mirror.resync(self.cache.snapshot());
        }
        if max == usize::MAX {
            self.mirror.check(self.cache.snapshot());
            self.residency().check(&self.setup);
        }
    }

    /// The open (not parked) sequence that a number names.
    pub fn open_seq(&self, seq: u8) -> Option<usize> {
        let open: Vec<usize> = (0..self.seqs.len()).filter(|i| !self.seqs[*i].parked).collect();
        pick(seq, open.len()).map(|n| open[n])
    }

    /// The open sequences that the bits of a mask name.
    pub fn masked(&self, mask: u8) -> Vec<usize> {
        (0..self.seqs.len()).filter(|i| !self.seqs[*i].parked && (mask >> i & 1 == 1 || mask == 0)).collect()
    }

    /// Slots to reserve: mostly a few, sometimes a long chunk.
    pub fn amount(&self, n: u8) -> u64 {
        u64::from(n) % (3 * u64::from(self.setup.page) + 4)
    }
}

/// An index below `len`, or none.
pub fn pick(n: u8, len: usize) -> Option<usize> {
    usize::from(n).checked_rem(len)
}
