//! The world: a cache, a fake device full of canaries, and a fake engine that drives both.
//!
//! [`World::apply`] runs one operation and then [`World::audit`]: everything that must hold between operations. A
//! broken rule panics with the values. The engine obeys the contract of `Cache` and nothing more: copies run in the
//! order of the plans, steps stay running until they are retired, rejected drafts leave garbage behind.

use super::below::Below;
use super::brute::{Mirror, Residency, roots};
use super::load::Incoming;
use super::memory::{Memory, Page, Row, Rows};
use super::op::Op;
use super::remote::Remote;
use super::setup::Setup;
use super::story::{Seen, Seq, Story};
use mimo_cache::cache::{Cache, Group, PageKey, PoolStats, Request};
use mimo_cache::error::{Error, OutOfPages, Result};
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

/// A request that was not opened yet.
pub struct Waiting {
    pub request: Request,
    pub story: Story,
    pub store: bool,
}

/// Page of a sequence: (writer, logical page, page).
type Held = HashSet<(u32, u64, Page)>;

pub struct World {
    pub setup: Setup,
    pub cache: Cache,
    pub memory: Memory,
    pub waiting: Vec<Waiting>,
    pub seqs: Vec<Seq>,
    pub stories: Vec<Story>,
    pub weights: u8,
    /// How often anything was cleared.
    pub generations: u64,
    pub roots: HashSet<PageKey>,
    /// Canary namespace of (weights, key); a new one after every clear.
    pub namespaces: HashMap<(u8, u8), u32>,
    pub next_step: u64,
    /// Running steps and unfinished moves with the pages their kernels may touch.
    pub running: VecDeque<(u64, HashSet<Page>)>,
    pub moves: BTreeMap<u64, HashSet<Page>>,
    pub loads: BTreeMap<u64, Incoming>,
    /// Pages that are lent, as they were when they were.
    pub below: Option<Below>,
    pub remote: Remote,
    pub lent: BTreeMap<u64, Vec<(Page, Rows)>>,
    pub held: Held,
    pub mirror: Mirror,
    pub next_writer: u32,
    pub now: u64,
    pub totals: Totals,
    /// Compare whole dumps around refused calls; slow.
    pub thorough: bool,
}

/// What the counters of `stats` must say.
#[derive(Default, Debug, PartialEq, Clone, Copy)]
pub struct Totals {
    pub opens: u64,
    pub prompt_tokens: u64,
    pub hit_tokens: u64,
    pub full_kv_tokens: u64,
    pub missed: u64,
}

impl World {
    pub fn new(setup: Setup) -> World {
        let cache = Cache::new(setup.config()).expect("a valid layout");
        let roots = roots(&cache.config().fingerprint, 0);
        World {
            memory: Memory::new(&setup),
            setup,
            cache,
            roots,
            waiting: Vec::new(),
            seqs: Vec::new(),
            stories: Vec::new(),
            weights: 0,
            generations: 0,
            namespaces: HashMap::new(),
            next_step: 1,
            running: VecDeque::new(),
            moves: BTreeMap::new(),
            loads: BTreeMap::new(),
            below: None,
            remote: Remote::default(),
            lent: BTreeMap::new(),
            held: Held::new(),
            mirror: Mirror::default(),
            next_writer: 1,
            now: 0,
            totals: Totals::default(),
            thorough: true,
        }
    }

    pub fn apply(&mut self, op: Op) {
        self.run(op);
        self.audit();
    }

    /// A running step or an unfinished move may touch this page.
    pub fn busy(&self, page: Page) -> bool {
        if self.loads.values().flat_map(Incoming::pages).any(|other| self.memory.overlap(other, page)) {
            return true;
        }
        let mut touched = self.running.iter().map(|(_, p)| p).chain(self.moves.values());
        if self.setup.region.is_none() {
            return touched.any(|pages| pages.contains(&page));
        }
        // Bytes are busy, whatever pool they are asked for.
        touched.any(|pages| pages.iter().any(|&other| self.memory.overlap(other, page)))
    }

    /// Pages that the pools can promise now: (full, SWA).
    pub fn usable(&self) -> (u64, u64) {
        let stats = self.cache.stats();
        let drains = |group| if stats.split.draining == Some(group) { stats.split.draining_pages } else { 0 };
        (stats.full.total - drains(Group::Full), stats.swa.total - drains(Group::Swa))
    }

    pub fn residency(&self) -> Residency<'_> {
        Residency::of(&self.cache, &self.roots)
    }

    /// Everything a caller can see of the state, for comparing before and after a refused call.
    fn face(&self) -> String {
        let dump = if self.thorough { self.cache.dump_text() } else { String::new() };
        format!("{:?}\n{dump}", self.cache.stats())
    }

    /// Runs a call that may be refused for want of pages; checks that a refusal changes nothing and makes sense.
    pub fn attempt<T>(&mut self, call: impl FnOnce(&mut World) -> Result<T>) -> Option<T> {
        let before = self.face();
        match call(self) {
            Ok(value) => Some(value),
            Err(Error::OutOfPages(short)) => {
                assert_eq!(self.face(), before, "a refused call changed something: {short}");
                self.check_refusal(&short);
                None
            }
            Err(other) => panic!("a valid call was refused: {other}"),
        }
    }

    fn check_refusal(&self, short: &OutOfPages) {
        let stats = self.cache.stats();
        let total = if short.pool == mimo_cache::error::PoolName::Full { stats.full.total } else { stats.swa.total };
        assert!(short.total <= total, "{short}: the pool has {total} pages");
        assert!(short.needed > 0, "{short}: nothing was needed");
        assert!(short.total <= short.most && (self.setup.region.is_some() || short.total == short.most), "{short}");
    }

    /// What must hold between operations.
    pub fn audit(&mut self) {
        self.cache.check_integrity().unwrap_or_else(|e| panic!("{e}\n{}", self.cache.dump_text()));
        self.check_below();
        let stats = self.cache.stats();
        let sums = |p: PoolStats| assert_eq!(p.free + p.private + p.cached + p.quarantined, p.total, "{p:?}");
        sums(stats.full);
        sums(stats.swa);
        self.check_sizes();
        let totals = Totals {
            opens: stats.opens,
            prompt_tokens: stats.prompt_tokens,
            hit_tokens: stats.hit_tokens,
            full_kv_tokens: stats.full_kv_tokens,
            missed: stats.misses.total(),
        };
        assert_eq!(totals, self.totals, "counters");
        assert_eq!(totals.hit_tokens + totals.missed, totals.prompt_tokens, "hits and misses make up the prompts");
        let parked = self.seqs.iter().filter(|s| s.parked).count() as u64;
        assert_eq!((stats.open_sequences, stats.parked_sequences), (self.seqs.len() as u64 - parked, parked));
        let held = self.seqs.iter().flat_map(|s| self.check_seq(s)).collect();
        self.check_ownership(&held);
        self.check_chunks(&held);
        self.held = held;
        (0..self.seqs.len()).for_each(|i| self.check_table(i));
    }

    /// Where page ids of committed tokens change, by adoption, the version of the table does.
    fn check_table(&mut self, i: usize) {
        let s = &self.seqs[i];
        if s.parked {
            return;
        }
        let version = self.cache.info(s.id).expect("a live sequence").table_version;
        let mut full = self.cache.full_table(s.id).expect("a live sequence").to_vec();
        full.truncate((s.committed / u64::from(self.setup.page)) as usize);
        if full.iter().zip(&s.seen.full).any(|(new, old)| new != old) {
            assert_ne!(version, s.seen.version, "{:?} became {full:?} under the same version", s.seen.full);
        }
        let committed = s.committed;
        self.seqs[i].seen = Seen { version, committed, full };
    }

    /// A sequence's own account; returns its pages.
    pub fn check_seq(&self, s: &Seq) -> Vec<(u32, u64, Page)> {
        let (setup, page) = (&self.setup, u64::from(self.setup.page));
        let info = self.cache.info(s.id).expect("a live sequence");
        assert_eq!(
            (info.committed, info.known, info.reserved, info.parked),
            (s.committed, s.known(), s.reserved, s.parked),
            "committed, known, reserved, parked of sequence {}",
            s.writer
        );
        assert_eq!(self.cache.tokens(s.id).expect("a live sequence"), s.story.tokens, "tokens of {}", s.writer);
        if s.parked {
            return Vec::new();
        }
        assert_eq!((info.full_write_from, info.swa_write_from), (s.full_write_from, s.swa_write_from));
        let end = s.committed + s.reserved;
        let full = self.cache.full_table(s.id).expect("a live sequence");
        let (first, swa) = self.cache.swa_table(s.id).expect("a live sequence");
        let mut out = Vec::new();
        if setup.has_full() {
            assert_eq!(full.len() as u64, end.div_ceil(page), "full pages cover committed + reserved");
            out.extend(full.iter().zip(0..).map(|(id, logical)| (s.writer, logical, (Group::Full, *id))));
        }
        if setup.has_swa() {
            let window = s.committed.saturating_sub(u64::from(setup.window));
            assert!(end == window || first <= window / page, "the SWA table begins at page {first}, inside the window");
            // What heads and late publication need before the window; a fresh sequence has its window only.
            let opened = (s.swa_write_from / page).saturating_sub(u64::from(setup.window).div_ceil(page));
            let needed = window.saturating_sub(u64::from(setup.n_mtp)) / page;
            assert!(first <= needed.max(opened), "SWA from page {first} on, positions before page {needed} are needed");
            assert_eq!(first + swa.len() as u64, end.div_ceil(page).max(first), "SWA pages cover committed + reserved");
            out.extend(swa.iter().zip(first..).map(|(id, logical)| (s.writer, logical, (Group::Swa, *id))));
            // O(W), whatever the length; the copies of `open` leave with the window that they were made for.
            let reach = u64::from(setup.window + setup.n_mtp);
            let young = s.committed < s.swa_write_from + reach + page;
            let copies = if young { u64::from(setup.window).div_ceil(page) } else { 0 };
            let most = (reach + s.reserved).div_ceil(page) + 2 + copies;
            assert!(info.swa_held <= most, "sequence {} holds {} SWA pages, at most {most}", s.writer, info.swa_held);
        }
        assert!(out.iter().all(|(_, _, (_, id))| *id != 0), "a null page in a table of sequence {}: {out:?}", s.writer);
        out
    }

    /// Pages that will be written belong to one sequence alone and are not the tree's.
    fn check_ownership(&self, held: &Held) {
        let mut holders: HashMap<Page, u32> = HashMap::new();
        held.iter().for_each(|(_, _, page)| *holders.entry(*page).or_default() += 1);
        for (writer, logical, page) in held {
            let s = self.seqs.iter().find(|s| s.writer == *writer).expect("a live sequence");
            let read_below = if page.0 == Group::Full { s.committed.max(s.full_write_from) } else { s.committed };
            if (logical + 1) * u64::from(self.setup.page) <= read_below {
                continue;
            }
            assert_eq!(holders[page], 1, "{page:?}, which sequence {writer} will write, is held by others too");
            let published = page.0 == Group::Swa && self.cache.mtp_record(page.1).is_some();
            assert!(!published, "{page:?}, which sequence {writer} will write, is published");
        }
    }

    /// Ends everything and checks that every page comes home.
    pub fn close(mut self) {
        while !self.seqs.is_empty() {
            self.apply(Op::Abort { seq: 0 });
        }
        while !self.running.is_empty() {
            self.apply(Op::Retire);
        }
        while !self.loads.is_empty() {
            self.apply(Op::LoadDone { which: 0, ok: true });
        }
        self.close_below();
        self.apply(Op::TakeCopies);
        while !self.moves.is_empty() {
            self.apply(Op::MoveDone { which: 0 });
        }
        self.finish_drain();
        let idle = |p: PoolStats| assert_eq!((p.private, p.quarantined, p.leased, p.promised), (0, 0, 0, 0), "{p:?}");
        let stats = self.cache.stats();
        idle(stats.full);
        idle(stats.swa);
        assert_eq!(stats.swa.scratch_used, 0);
        self.fill_the_pool();
    }
}
