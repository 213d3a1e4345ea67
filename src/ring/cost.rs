//! What a node draws for a bucket: an exponential variable of rate `weight`, in integers.
//!
//! The smallest of independent exponential variables belongs to each with a probability in proportion to its rate, which
//! is what makes rendezvous weighted. -ln(u) / weight needs a logarithm that is the same everywhere, so it is computed in
//! fixed point: base 2, as the base is a common factor.

use sha2::{Digest, Sha256};
use std::sync::OnceLock;

/// Steps of the logarithm's table: linear in between, an error below 2^-26.
const STEPS: usize = 1 << 12;
/// Fraction bits of a logarithm.
const FRACTION: u32 = 52;

/// The number a node enters all its draws with: the first 8 bytes, little-endian, of SHA-256 of its name.
pub fn node_seed(name: &str) -> u64 {
    let digest = Sha256::digest(name.as_bytes());
    u64::from_le_bytes(digest[..8].try_into().expect("a digest has 32 bytes"))
}

/// The finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): a permutation of 64-bit words.
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// log2(1 + i / STEPS) for i from 0 to STEPS, in units of 2^-FRACTION, rounded down: bit by bit, by squaring.
fn logarithms() -> &'static [u64; STEPS + 1] {
    static TABLE: OnceLock<[u64; STEPS + 1]> = OnceLock::new();
    TABLE.get_or_init(|| {
        let mut table = [0; STEPS + 1];
        for (i, entry) in table.iter_mut().enumerate() {
            // 1.0 is 2^62; a square stays below 2^126.
            let mut x = ((STEPS + i) as u128) << (62 - STEPS.trailing_zeros());
            if x == 1 << 63 {
                *entry = 1 << FRACTION;
                continue;
            }
            for _ in 0..FRACTION {
                x = (x * x) >> 62;
                *entry <<= 1;
                if x >= 1 << 63 {
                    x >>= 1;
                    *entry |= 1;
                }
            }
        }
        table
    })
}

/// -log2((x + 1) / 2^64) in units of 2^-FRACTION, between 0 and 64 of them; exact at powers of two.
fn negative_log2(x: u64) -> u64 {
    let Some(x) = x.checked_add(1) else { return 0 };
    let lead = x.leading_zeros();
    // The bits after the leading one: STEPS' worth choose the entry, the next 32 the place between two.
    let rest = if lead == 63 { 0 } else { x << (lead + 1) };
    let table = logarithms();
    let step = (rest >> (64 - STEPS.trailing_zeros())) as usize;
    let part = (rest << STEPS.trailing_zeros()) >> 32;
    let log = table[step] + ((u128::from(table[step + 1] - table[step]) * u128::from(part)) >> 32) as u64;
    (u64::from(lead + 1) << FRACTION) - log
}

/// The cost of `bucket` for a node: lower wins. `weight` is at least 1.
pub fn draw(seed: u64, weight: u32, bucket: u32) -> u64 {
    let word = mix(seed ^ mix(u64::from(bucket).wrapping_add(0x9e37_79b9_7f4a_7c15)));
    (negative_log2(word) << (63 - FRACTION - 6)) / u64::from(weight)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logarithm_is_close_and_falls() {
        for (x, log) in [(u64::MAX, 0.0), ((1 << 63) - 1, 1.0), (0, 64.0), (0xb504_f333_f9de_6483, 0.5)] {
            let found = negative_log2(x) as f64 / (1u64 << FRACTION) as f64;
            assert!((found - log).abs() < 1e-8, "{x}: {found} instead of {log}");
        }
        let mut x = u64::MAX;
        let mut last = negative_log2(x);
        while x > 0 {
            x -= (x / 97).max(1);
            let next = negative_log2(x);
            assert!(next >= last, "at {x}");
            last = next;
        }
    }

    #[test]
    fn logarithm_equals_floating_point_on_random_words() {
        let mut word = 1u64;
        for _ in 0..100_000 {
            word = mix(word.wrapping_add(0x9e37_79b9_7f4a_7c15));
            let exact = 64.0 - (word as f64 + 1.0).log2();
            let found = negative_log2(word) as f64 / (1u64 << FRACTION) as f64;
            assert!((found - exact).abs() < 2e-8, "{word}: {found} instead of {exact}");
        }
    }
}
