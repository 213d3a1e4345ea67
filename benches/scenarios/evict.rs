//! Scenario (d): evict one page with 1k, 10k and 1 M leaves of one page each; the cost must not know how many there are.
//!
//! The pool is full, so that every `reserve` of a page evicts exactly one leaf and hands its page out. Both are timed.

use super::RUNS;
use crate::common::driver::{Driver, PAGE, config};
use crate::common::{cpu_ns, figure, tokens};
use mimo_cache::cache::SeqId;
use serde_json::Value;

/// Sequences that reserve one page each.
const READERS: usize = 256;
/// Times they do so in a run.
const ROUNDS: u64 = 8;

pub fn run(quick: bool) -> Vec<Value> {
    let sizes: &[usize] = if quick { &[1_000] } else { &[1_000, 10_000, 1_000_000] };
    sizes
        .iter()
        .map(|&leaves| {
            let runs: Vec<f64> = (0..RUNS).map(|_| once(leaves)).collect();
            figure(&format!("evict_{leaves}"), "us", &runs)
        })
        .collect()
}

fn once(leaves: usize) -> f64 {
    let (mut driver, readers) = prepare(leaves);
    let mut ns = 0;
    for round in 0..ROUNDS {
        let before = driver.cache.stats().full_evicted;
        let start = cpu_ns();
        for &seq in &readers {
            driver.cache.reserve(seq, PAGE as u64).expect("reserve");
        }
        ns += cpu_ns() - start;
        assert_eq!(driver.cache.stats().full_evicted - before, READERS as u64, "one page is evicted per reserve");
        // The pages come back, and new leaves take them.
        for (i, &seq) in readers.iter().enumerate() {
            assert_eq!(driver.cache.trim(seq), Ok(PAGE as u64));
            driver.run(tokens(4 << 40 | round << 20 | i as u64, PAGE));
        }
    }
    ns as f64 / 1e3 / READERS as f64 / ROUNDS as f64
}

/// A pool full of `leaves` cached leaves of one page, and readers that hold one page each and may take one more.
pub fn prepare(leaves: usize) -> (Driver, Vec<SeqId>) {
    // Windows: at most 6 pages a reader; a checkpoint of a leaf keeps its one page.
    let mut driver = Driver::new(config(leaves + READERS, leaves + 8 * READERS));
    let readers: Vec<SeqId> = (0..READERS as u64)
        .map(|i| {
            let (seq, _) = driver.open(tokens(1 << 40 | i, PAGE), PAGE as u64);
            driver.prefill(seq);
            seq
        })
        .collect();
    for i in 0..leaves as u64 {
        // The pool promises each reader one page: the last leaves push the first ones out.
        driver.run(tokens(2 << 40 | i, PAGE));
    }
    let mut extra = 0u64;
    while driver.cache.stats().full.free > 0 {
        let before = driver.cache.stats().full_evicted;
        driver.run(tokens(3 << 40 | extra, PAGE));
        extra += 1;
        if driver.cache.stats().full_evicted > before {
            break;
        }
        assert!(extra < 1 << 20, "the pool never fills");
    }
    (driver, readers)
}
