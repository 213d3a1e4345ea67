//! Schedule exploration of the concurrent face, with `cargo test --features shuttle --test shuttle`: the same threads
//! under many orders of their locks, chosen at random and by priorities. `MIMO_CASES` sets the number of schedules.

#![cfg(feature = "shuttle")]

mod model;

use mimo_cache::cache::{Cache, FillOut, RequestOptions, SeqId};
use mimo_cache::error::Error;
use mimo_cache::key::Key;
use mimo_cache::sync::{Fault, SharedCache};
use model::Setup;
use model::brute::Mirror;
use model::script::{join, words};
use shuttle::sync::{Arc, Mutex};
use shuttle::thread;
use std::collections::BTreeSet;

fn explore(scenario: fn()) {
    let schedules = std::env::var("MIMO_CASES").ok().and_then(|v| v.parse().ok()).unwrap_or(300);
    shuttle::check_random(scenario, schedules);
    shuttle::check_pct(scenario, schedules, 3);
}

fn cache() -> SharedCache {
    let mut setup = Setup::roomy(2, 4, 1);
    (setup.full_pages, setup.swa_pages, setup.scratch) = (24, 24, 6);
    SharedCache::new(Cache::new(setup.config()).expect("a valid layout"))
}

/// Steps of several runners: numbered under the cache's lock, retired in order once all before them have ended.
#[derive(Default)]
struct Steps {
    filled: u64,
    retired: u64,
    ended: BTreeSet<u64>,
}

impl Steps {
    fn fill(&mut self, cache: &mut Cache, seq: SeqId) -> mimo_cache::error::Result<u64> {
        let (mut full, mut swa, mut base, mut lens) = ([0; 32], [0; 32], [0; 1], [0; 1]);
        let (full, swa, swa_base, lens) = (&mut full[..], &mut swa[..], Some(&mut base[..]), &mut lens[..]);
        let out = FillOut { full, full_width: 32, swa, swa_width: 32, swa_base, lens };
        cache.fill(self.filled + 1, &[seq], out)?;
        self.filled += 1;
        Ok(self.filled)
    }

    fn end(&mut self, cache: &mut Cache, step: u64) -> mimo_cache::error::Result<()> {
        self.ended.insert(step);
        while self.ended.remove(&(self.retired + 1)) {
            self.retired += 1;
            cache.retire(self.retired)?;
        }
        Ok(())
    }
}

/// Serves one prompt, giving way between all calls; a refusal for want of pages ends it early.
fn serve(cache: &SharedCache, steps: &Mutex<Steps>, tokens: Vec<u32>) -> Result<(), Fault> {
    let mut request = cache.with(|c| c.request(tokens, RequestOptions::default()))?;
    let length = request.tokens().len() as u64;
    let seq = cache.with(|c| c.open(&mut request, 2))?;
    loop {
        let info = cache.with(|c| c.info(seq))?;
        let left = length.saturating_sub(info.committed);
        if left == 0 {
            return cache.with(|c| c.finish(seq));
        }
        let n = left.min(4);
        if cache.with(|c| c.reserve(seq, n)).is_err() {
            return cache.with(|c| c.abort(seq));
        }
        let step = cache.with(|c| steps.lock().unwrap().fill(c, seq))?;
        let sampled: &[u32] = if n == left { &[9] } else { &[] };
        cache.with(|c| c.commit(seq, n, sampled))?;
        cache.with(|c| steps.lock().unwrap().end(c, step))?;
    }
}

fn no_pages(result: Result<(), Fault>) {
    match result {
        Ok(()) | Err(Fault::Core(Error::OutOfPages(_))) => {}
        Err(other) => panic!("{other:?}"),
    }
}

fn at_rest(cache: &SharedCache) {
    let check = |c: &mut Cache| {
        c.check_integrity()?;
        let stats = c.stats();
        for pool in [stats.full, stats.swa] {
            assert_eq!((pool.private, pool.leased, pool.quarantined, pool.promised), (0, 0, 0, 0), "{pool:?}");
        }
        assert_eq!(stats.open_sequences, 0);
        Ok(())
    };
    cache.with(check).expect("a cache at rest");
}

/// Two runners on prompts that share a prefix, a scheduler that looks, and a consumer of the events.
#[test]
fn runners_a_scheduler_and_a_router() {
    explore(|| {
        let (cache, steps) = (cache(), Arc::new(Mutex::new(Steps::default())));
        let shared = words(1, 9);
        let runner = |topic: u32| {
            let (cache, steps, shared) = (cache.clone(), steps.clone(), shared.clone());
            thread::spawn(move || no_pages(serve(&cache, &steps, join(&[&shared, &words(topic, 5)]))))
        };
        let mut threads = vec![runner(2), runner(3)];
        let (c, prompt) = (cache.clone(), join(&[&shared, &words(4, 1)]));
        threads.push(thread::spawn(move || {
            let mut request = c.with(|c| c.request(prompt.clone(), RequestOptions::default())).unwrap();
            let mut before = 0;
            for _ in 0..4 {
                let (found, once) =
                    c.with(|c| Ok((c.peek(&mut request), c.match_tokens(&prompt, &Key::default(), &[])?))).unwrap();
                assert_eq!(found, once, "the cursor and a fresh walk");
                assert!(found.full_kv_match >= before, "nothing is evicted here");
                before = found.full_kv_match;
            }
        }));
        let mirror = Arc::new(Mutex::new(Mirror::default()));
        let (c, m) = (cache.clone(), mirror.clone());
        threads.push(thread::spawn(move || {
            for _ in 0..3 {
                let drained = c.with(|c| Ok(c.drain_events(2))).unwrap();
                assert!(m.lock().unwrap().fold(drained), "the ring is large enough");
            }
        }));
        threads.into_iter().for_each(|t| t.join().unwrap());
        let (rest, snapshot) = cache.with(|c| Ok((c.drain_events(usize::MAX), c.snapshot()))).unwrap();
        let mut mirror = mirror.lock().unwrap();
        assert!(mirror.fold(rest));
        mirror.check(snapshot);
        at_rest(&cache);
    });
}

/// Sequences dropped by their owners while other threads hold the lock are aborted all the same.
#[test]
fn dropped_sequences_end_whoever_holds_the_lock() {
    explore(|| {
        let (cache, steps) = (cache(), Arc::new(Mutex::new(Steps::default())));
        let mut threads = Vec::new();
        for topic in 0..3 {
            let cache = cache.clone();
            threads.push(thread::spawn(move || {
                let mut request = cache.with(|c| c.request(words(topic, 6), RequestOptions::default())).unwrap();
                let Ok(seq) = cache.with(|c| c.open(&mut request, 0)) else { return };
                cache.with(|c| c.reserve(seq, 3)).unwrap();
                cache.abandon(seq);
            }));
        }
        let (c, s) = (cache.clone(), steps.clone());
        threads.push(thread::spawn(move || no_pages(serve(&c, &s, words(7, 9)))));
        threads.into_iter().for_each(|t| t.join().unwrap());
        at_rest(&cache);
    });
}

/// After a panic inside the core everybody gets a plain refusal, and nobody waits for ever.
#[test]
fn a_failed_cache_refuses_every_thread() {
    explore(|| {
        let cache = cache();
        let c = cache.clone();
        let breaker = thread::spawn(move || {
            let broken = c.with(|_| -> mimo_cache::error::Result<()> { panic!("a bug in the core") });
            assert!(matches!(broken, Err(Fault::Core(Error::Integrity(_)))), "{broken:?}");
        });
        let c = cache.clone();
        let user = thread::spawn(move || {
            for _ in 0..3 {
                match c.with(|c| c.request(vec![1, 2, 3], RequestOptions::default())) {
                    Ok(request) => assert_eq!(request.tokens().len(), 3),
                    Err(fault) => assert!(matches!(fault, Fault::Core(Error::Integrity(_))), "{fault:?}"),
                }
            }
        });
        breaker.join().unwrap();
        user.join().unwrap();
        let last = cache.with(|c| Ok(c.stats().opens));
        assert!(
            matches!(&last, Err(Fault::Core(Error::Integrity(words))) if words.contains("a bug in the core")),
            "{last:?}"
        );
    });
}
