//! The worst single operation while 1 M pages are cached and while the cache grows to them.
//!
//! One thread plays a fixed script of every operation and notes the CPU time of each call. Five runs of the same script: an
//! interrupt hits another call each time, so the minimum over the runs of one call is its own cost, and the maximum of
//! those over all calls of a kind is what that kind can cost. Calls walk, compare or hash only their own tokens (32k at
//! most), which is inside the figure.

use super::RUNS;
use crate::common::driver::{CHUNK, Driver, PAGE, SCRATCH, config};
use crate::common::{figure, thread_ns, tokens};
use mimo_cache::cache::{Cache, Commit, FillOut, Request, RequestOptions, SeqId};
use mimo_cache::key::Key;
use serde_json::Value;
use std::collections::BTreeMap;

/// Tokens of a session: 512 pages and a token.
const SESSION: usize = 512 * PAGE + 1;

pub fn run(quick: bool) -> Vec<Value> {
    let pages = if quick { 20_000 } else { 1_000_000 };
    let mut kinds: Vec<&'static str> = Vec::new();
    let mut least: Vec<u64> = Vec::new();
    for run in 0..RUNS {
        let script = Script::play(pages);
        if run == 0 {
            (kinds, least) = (script.kinds, script.ns);
        } else {
            assert_eq!(kinds, script.kinds, "the script is the same in every run");
            least.iter_mut().zip(&script.ns).for_each(|(a, &b)| *a = (*a).min(b));
        }
    }
    let mut worst: BTreeMap<&str, u64> = BTreeMap::new();
    for (&kind, &ns) in kinds.iter().zip(&least) {
        let slot = worst.entry(kind).or_default();
        *slot = (*slot).max(ns);
    }
    let all = worst.values().copied().max().unwrap_or(0);
    let mut out = vec![figure("worst_operation", "us", &[all as f64 / 1e3])];
    out.extend(worst.iter().map(|(kind, &ns)| figure(&format!("worst_{kind}"), "us", &[ns as f64 / 1e3])));
    out
}

struct Script {
    cache: Cache,
    step: u64,
    rows: Vec<i32>,
    kinds: Vec<&'static str>,
    ns: Vec<u64>,
}

impl Script {
    /// Plays everything once.
    fn play(pages: usize) -> Script {
        let cache = Driver::new(config(pages, pages / 32 + 8 * SCRATCH as usize)).cache;
        let mut s = Script { cache, step: 1, rows: vec![0; 2_048], kinds: Vec::new(), ns: Vec::new() };
        let sessions = (pages * PAGE / SESSION) as u64;
        for i in 0..sessions {
            s.session(i, i % 4);
        }
        // The pool is full: from here on every page that is taken was evicted somewhere.
        for i in 0..sessions / 8 {
            s.turn(sessions - 1 - i, i);
            s.session(sessions + i, i % 4);
        }
        s.around(sessions);
        s
    }

    fn time<T>(&mut self, kind: &'static str, call: impl FnOnce(&mut Cache) -> T) -> T {
        let start = thread_ns();
        let out = call(&mut self.cache);
        let ns = thread_ns() - start;
        self.kinds.push(kind);
        self.ns.push(ns);
        out
    }

    fn request(&mut self, tokens: Vec<u32>, salt: u64) -> Request {
        let options = RequestOptions { key: key(salt), tenant: salt as u32, ..RequestOptions::default() };
        self.time("request", |c| c.request(tokens, options)).expect("request")
    }

    fn open(&mut self, tokens: Vec<u32>, salt: u64, credit: u64) -> SeqId {
        let mut request = self.request(tokens, salt);
        self.time("peek", |c| c.peek(&mut request));
        self.time("open", |c| c.open(&mut request, credit)).expect("open")
    }

    fn fill(&mut self, seqs: &[SeqId]) -> u64 {
        let step = self.step;
        self.step += 1;
        let n = seqs.len();
        let mut rows = std::mem::take(&mut self.rows);
        rows.resize(n * 2_048, 0);
        let (mut swa, mut base, mut lens) = (vec![0; n * 160], vec![0; n], vec![0; n]);
        self.time("fill", |c| {
            let out = FillOut {
                full: &mut rows,
                full_width: 2_048,
                swa: &mut swa,
                swa_width: 160,
                swa_base: Some(&mut base),
                lens: &mut lens,
            };
            c.fill(step, seqs, out)
        })
        .expect("fill");
        self.rows = rows;
        step
    }

    fn compute(&mut self, seq: SeqId, n: usize, new: &[u32]) {
        self.time("reserve", |c| c.reserve(seq, n as u64)).expect("reserve");
        let step = self.fill(&[seq]);
        self.time("commit", |c| c.commit(seq, n as u64, new)).expect("commit");
        self.time("retire", |c| c.retire(step)).expect("retire");
    }

    fn prefill(&mut self, seq: SeqId) {
        loop {
            let info = self.cache.info(seq).expect("info");
            let left = (info.known - info.committed) as usize;
            if left == 0 {
                return;
            }
            self.compute(seq, left.min(CHUNK), &[]);
        }
    }

    /// A 32k-token prompt from open to finish.
    fn session(&mut self, number: u64, salt: u64) {
        let seq = self.open(tokens(number, SESSION), salt, 0);
        self.prefill(seq);
        self.time("finish", |c| c.finish(seq)).expect("finish");
    }

    /// A further turn on a stored session: a branch near its end, decode with rejected drafts, forks, a preemption.
    fn turn(&mut self, number: u64, i: u64) {
        let mut prompt = tokens(number, SESSION);
        prompt.truncate(SESSION - 1 - PAGE * (i as usize % 40));
        prompt.extend(tokens(1 << 40 | i, 700));
        let seq = self.open(prompt, number % 4, 4_096);
        self.prefill(seq);
        for k in 0..6u64 {
            // Four drafts, of which one to four are accepted.
            let accepted = (1 + (i + k) % 4) as usize;
            self.time("reserve", |c| c.reserve(seq, 4)).expect("reserve");
            let step = self.fill(&[seq]);
            let new = tokens(2 << 40 | i << 8 | k, accepted);
            self.time("commit", |c| c.commit(seq, accepted as u64, &new)).expect("commit");
            self.time("trim", |c| c.trim(seq)).expect("trim");
            self.time("retire", |c| c.retire(step)).expect("retire");
        }
        let children = self.time("fork", |c| c.fork(seq, 3, 64)).expect("fork");
        for &child in &children {
            self.time("reserve", |c| c.reserve(child, 64)).expect("reserve");
        }
        let step = self.fill(&children);
        let new: Vec<Vec<u32>> = (0..3).map(|k| tokens(3 << 40 | i << 8 | k, 64)).collect();
        let items: Vec<Commit> =
            children.iter().zip(&new).map(|(&seq, tokens)| Commit { seq, computed: 64, tokens }).collect();
        self.time("commit_many", |c| c.commit_many(&items)).expect("commit_many");
        self.time("retire", |c| c.retire(step)).expect("retire");
        self.time("abort", |c| c.abort(children[0])).expect("abort");
        self.time("finish", |c| c.finish(children[1])).expect("finish");
        self.time("park", |c| c.park(seq, true)).expect("park");
        self.time("finish", |c| c.finish(children[2])).expect("finish");
        self.time("resume", |c| c.resume(seq, 64)).expect("resume");
        self.prefill(seq);
        self.time("finish", |c| c.finish(seq)).expect("finish");
        self.time("drain_events", |c| c.drain_events(1_024));
    }

    /// What is rare: pins, shares, namespaces that go away with a quarter million pages each.
    fn around(&mut self, sessions: u64) {
        let recent = sessions + sessions / 8 - 1;
        let (salt, prompt) = ((recent - sessions) % 4, tokens(recent, SESSION));
        self.time("match", |c| c.match_tokens(&prompt, &key(salt), &[])).expect("match");
        self.time("explain", |c| c.explain(&prompt, &key(salt), &[])).expect("explain");
        self.time("pin", |c| c.pin(&prompt, &key(salt), &[], 60_000)).expect("pin");
        self.time("set_now", |c| c.set_now(120_000));
        self.time("set_tenant_share", |c| c.set_tenant_share(2, 1_000, 100));
        for i in 0..4 {
            self.session(2 * sessions + i, 2);
        }
        self.time("clear", |c| c.clear(Some(&key(1))));
        for i in 0..8 {
            self.session(3 * sessions + i, 1);
        }
        self.time("set_weights", |c| c.set_weights(b"next")).expect("set_weights");
        for i in 0..8 {
            self.session(4 * sessions + i, i % 4);
        }
        self.time("clear", |c| c.clear(None));
        for i in 0..8 {
            self.session(5 * sessions + i, i % 4);
        }
    }
}

fn key(salt: u64) -> Key {
    Key { salt: salt.to_le_bytes().to_vec(), ..Key::default() }
}
