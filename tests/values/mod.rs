//! Names and values of the storage tests that can be told apart.
#![allow(dead_code)] // each binary uses its part

use mimo_cache::shm::{ChainKey, ObjectId};

pub fn mix(a: u64, b: u64) -> u64 {
    let mut x = a.wrapping_add(b.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_add(0x1234_5678);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

pub fn key(n: u64) -> ChainKey {
    let mut key = [0; 32];
    for (i, word) in key.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&mix(n, i as u64).to_le_bytes());
    }
    key
}

pub fn id(n: u64, part: u8) -> ObjectId {
    ObjectId { key: key(n), part }
}

/// Bytes that depend on the seed everywhere.
pub fn value(seed: u64, len: usize) -> Vec<u8> {
    let words = (0..len.div_ceil(8) as u64).flat_map(|n| mix(seed, n).to_le_bytes());
    words.take(len).collect()
}
