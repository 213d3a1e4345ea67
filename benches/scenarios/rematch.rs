//! Matching a waiting request again through its cursor, after the tree around it has changed.
//!
//! 64 requests have peeked and wait. Then 1,000 unrelated prompts are opened and run, which evicts as many old pages and
//! checkpoints, and the SWA pressure goes on until every waiting path has lost the checkpoint in its middle. Timed is the
//! next `peek` of each. It must find the same match, and cost the same for a prompt of 1,000 tokens and one of 100,000.

use super::RUNS;
use crate::common::driver::{Driver, PAGE, config};
use crate::common::{cpu_ns, figure, tokens};
use mimo_cache::cache::{CacheConfig, Request};
use mimo_cache::key::Key;
use mimo_cache::policy::PolicyKind;
use serde_json::Value;

const WAITING: usize = 64;
const UNRELATED: usize = 1_000;
/// Tokens of an unrelated prompt: 8 pages and a token, so that its last boundary is resumable.
const OTHER: usize = 8 * PAGE + 1;

pub fn run(quick: bool) -> Vec<Value> {
    let lengths: &[usize] = if quick { &[1_024] } else { &[1_024, 10_240, 100_352] };
    lengths
        .iter()
        .map(|&n| {
            let runs: Vec<f64> = (0..RUNS).map(|i| once(n + 1, i as u64)).collect();
            figure(&format!("rematch_{n}"), "us", &runs)
        })
        .collect()
}

/// Microseconds per peek for prompts of `n` tokens.
fn once(n: usize, run: u64) -> f64 {
    let (mut driver, mut waiting) = prepare(n, run);
    let before: Vec<_> = waiting.iter_mut().map(|r| driver.cache.peek(r)).collect();
    disturb(&mut driver, &waiting, run);
    let start = cpu_ns();
    let mut usable = 0;
    for request in &mut waiting {
        usable += driver.cache.peek(request).usable;
    }
    let ns = cpu_ns() - start;
    assert_eq!(usable, before.iter().map(|m| m.usable).sum::<u64>(), "a waiting request lost its match");
    assert_eq!(usable as usize, WAITING * (n - 1), "the waiting prompts are stored whole");
    ns as f64 / 1e3 / WAITING as f64
}

/// A full cache: old filler, then the waiting prompts with a checkpoint in the middle and one at the end.
pub fn prepare(n: usize, run: u64) -> (Driver, Vec<Request>) {
    let filler = UNRELATED + 256;
    let full = WAITING * (n / PAGE) + filler * (OTHER / PAGE) + 256;
    // Two SWA pages a checkpoint; room for the ends of the waiting prompts and for 1,000 newer checkpoints, so that these
    // push out what is older, in the order of LRU: the filler's and the middles.
    let sizes = config(full, 2 * (WAITING + UNRELATED + 32));
    let mut driver = Driver::new(CacheConfig { policy: PolicyKind::Lru, ..sizes });
    for i in 0..filler as u64 {
        driver.run(tokens(run << 32 | 1 << 24 | i, OTHER));
    }
    let prompts: Vec<Vec<u32>> = (0..WAITING as u64).map(|i| tokens(run << 32 | 2 << 24 | i, n)).collect();
    // The middle first, then the whole, then the whole again: now every middle is older than every end.
    for part in [n / 2 / PAGE * PAGE + 1, n, n] {
        for prompt in &prompts {
            driver.run(prompt[..part].to_vec());
        }
    }
    let waiting = prompts.into_iter().map(|p| driver.request(p)).collect();
    (driver, waiting)
}

/// At least 1,000 unrelated prompts, and as many more as it takes until each waiting path lost a checkpoint.
pub fn disturb(driver: &mut Driver, waiting: &[Request], run: u64) {
    let checkpoints = |driver: &Driver| -> Vec<usize> {
        let explain = |r: &Request| driver.cache.explain(r.tokens(), &Key::default(), &[]);
        waiting.iter().map(|r| explain(r).expect("explain").checkpoints.len()).collect()
    };
    let before = checkpoints(driver);
    for i in 0u64.. {
        driver.run(tokens(run << 32 | 3 << 24 | i, OTHER));
        let enough = i as usize + 1 >= UNRELATED;
        if enough && checkpoints(driver).iter().zip(&before).all(|(now, then)| now < then) {
            break;
        }
        assert!(i < 20_000, "the waiting paths keep their checkpoints whatever happens: {before:?}");
    }
}
