//! What the bench binaries share: CPU clocks, medians, tokens, and a driver that plays the engine.

#![allow(dead_code)] // each binary uses its part

pub mod driver;

use serde_json::{Value, json};

/// CPU time of this process, in nanoseconds: what other processes do with the machine does not count.
pub fn cpu_ns() -> u64 {
    clock(libc::CLOCK_PROCESS_CPUTIME_ID)
}

/// CPU time of this thread, in nanoseconds; cheaper to read than the process's, for single operations.
pub fn thread_ns() -> u64 {
    clock(libc::CLOCK_THREAD_CPUTIME_ID)
}

fn clock(id: libc::clockid_t) -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `t` is a valid place for the result; the clocks above exist on every Linux.
    let rc = unsafe { libc::clock_gettime(id, &mut t) };
    assert_eq!(rc, 0, "this system has no CPU-time clock");
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// Resident bytes of this process.
pub fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").expect("/proc is mounted");
    let pages: u64 = text.split(' ').nth(1).and_then(|v| v.parse().ok()).expect("statm has a second number");
    // SAFETY: no preconditions.
    pages * unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as u64
}

/// `n` tokens that are a pure function of `seed`; different seeds share no page.
pub fn tokens(seed: u64, n: usize) -> Vec<u32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x2545_f491_4f6c_dd1d;
    (0..n)
        .map(|_| {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = state;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            ((z ^ (z >> 31)) % 151_936) as u32
        })
        .collect()
}

/// A chain key that is a pure function of `n`.
pub fn key(n: u64) -> [u8; 32] {
    let mut key = [0; 32];
    for (i, word) in key.chunks_exact_mut(8).enumerate() {
        let mut x = (n * 4 + i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word.copy_from_slice(&(x ^ (x >> 27)).to_le_bytes());
    }
    key
}

/// Middle value.
pub fn median(values: &[f64]) -> f64 {
    let mut v = values.to_vec();
    v.sort_by(f64::total_cmp);
    let n = v.len();
    if n % 2 == 1 { v[n / 2] } else { (v[n / 2 - 1] + v[n / 2]) / 2.0 }
}

/// A figure from several runs: median, and spread = (largest - smallest) / median.
pub fn figure(name: &str, unit: &str, runs: &[f64]) -> Value {
    let m = median(runs);
    let (low, high) = runs.iter().fold((f64::MAX, f64::MIN), |(l, h), &v| (l.min(v), h.max(v)));
    let spread = if m == 0.0 { 0.0 } else { (high - low) / m };
    json!({"name": name, "unit": unit, "value": m, "median": m, "spread": spread})
}
