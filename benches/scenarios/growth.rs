//! Time per operation and bytes per token from 1 M to 100 M cached tokens, in sessions of 32k tokens, with a full pool.
//!
//! Each size is a process of its own (this binary again, with `growth_at TOKENS`), so that resident memory is its own.

use super::RUNS;
use crate::common::driver::{CHUNK, Driver, PAGE, config};
use crate::common::{cpu_ns, figure, resident_bytes, tokens};
use mimo_cache::key::Key;
use serde_json::{Value, json};
use std::process::{Command, Stdio};

/// 512 pages and a token.
const SESSION: usize = 512 * PAGE + 1;
const TURN: usize = 2_048;
const CALLS: usize = 64;

pub fn run(quick: bool) -> Vec<Value> {
    let sizes: &[usize] = if quick { &[1, 3] } else { &[1, 3, 10, 30, 100] };
    let mut out = Vec::new();
    for &millions in sizes {
        let runs: Vec<Value> = (0..RUNS).map(|_| child(millions)).collect();
        for name in ["match", "turn", "chunk", "bytes_per_token"] {
            let values: Vec<f64> = runs.iter().map(|r| r[name].as_f64().expect("a number")).collect();
            let unit = if name == "bytes_per_token" { "B" } else { "us" };
            out.push(figure(&format!("growth_{name}_{millions}M"), unit, &values));
        }
    }
    out
}

fn child(millions: usize) -> Value {
    let exe = std::env::current_exe().expect("this binary has a path");
    let child = Command::new(exe)
        .args(["growth_at", &millions.to_string()])
        .stderr(Stdio::inherit())
        .output()
        .expect("this binary can run again");
    assert!(child.status.success(), "the run at {millions} M tokens failed");
    let text = String::from_utf8(child.stdout).expect("its output is text");
    serde_json::from_str(text.lines().last().unwrap_or("")).expect("its last line is JSON")
}

/// One size, measured in this process.
pub fn at(millions: usize) -> Value {
    let sessions = (millions * 1_000_000 / SESSION).max(4);
    let pages = sessions * (SESSION / PAGE);
    let before = resident_bytes();
    let mut driver = Driver::new(config(pages, 4 * sessions + 1_024));
    // A tenth more than fits: eviction has begun, and what remembers evicted pages has its memory.
    let last = (sessions + (sessions / 10).max(8)) as u64;
    for number in 0..last {
        driver.run(tokens(number, SESSION));
    }
    let bytes = resident_bytes().saturating_sub(before) as f64 / (pages * PAGE) as f64;
    // Prompts that are stored, far apart, so that neither they nor their nodes are in a cache of the processor.
    let stored = |i: usize| tokens(last - 1 - (i * sessions / 2 / CALLS.min(sessions)) as u64, SESSION);
    let calls = CALLS.min(sessions / 2);
    let prompts: Vec<Vec<u32>> = (0..calls).map(stored).collect();
    let start = cpu_ns();
    for prompt in &prompts {
        let found = driver.cache.match_tokens(prompt, &Key::default(), &[]).expect("match");
        assert_eq!(found.usable as usize, SESSION - 1);
    }
    let matched = (cpu_ns() - start) as f64 / 1e3 / calls as f64;

    // A turn on a stored session; the pool is full, so its 32 pages come from eviction.
    let requests: Vec<_> = prompts
        .into_iter()
        .enumerate()
        .map(|(i, mut prompt)| {
            prompt.pop();
            prompt.extend(tokens(1 << 40 | i as u64, TURN));
            driver.request(prompt)
        })
        .collect();
    let start = cpu_ns();
    for mut request in requests {
        let seq = driver.cache.open(&mut request, 0).expect("open");
        driver.compute(seq, TURN, &[]);
        driver.cache.finish(seq).expect("finish");
    }
    let turn = (cpu_ns() - start) as f64 / 1e3 / calls as f64;

    // Evict and allocate for a chunk.
    let (mut ns, mut chunks) = (0, 0);
    for i in 0..calls as u64 / 4 {
        let (seq, _) = driver.open(tokens(2 << 40 | i, SESSION - 1), 0);
        for _ in 0..(SESSION - 1) / CHUNK {
            let start = cpu_ns();
            driver.cache.reserve(seq, CHUNK as u64).expect("reserve");
            ns += cpu_ns() - start;
            chunks += 1;
            let step = driver.fill(seq);
            driver.cache.commit(seq, CHUNK as u64, &[]).expect("commit");
            driver.cache.retire(step).expect("retire");
        }
        driver.cache.finish(seq).expect("finish");
    }
    let chunk = ns as f64 / 1e3 / chunks as f64;
    json!({"match": matched, "turn": turn, "chunk": chunk, "bytes_per_token": bytes})
}
