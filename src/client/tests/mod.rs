//! The client against nodes that misbehave, mostly in virtual time.

mod breaker;
mod damage;
mod deadlines;
mod fake_node;
mod fake_transport;
mod membership;
mod placement;
mod puts;
mod ramp;
mod refusals;

use super::*;

/// Chain key and part.
pub type Named = ([u8; 32], u8);

/// An object whose name follows from a number, in an extent of its own.
pub fn id(number: u64) -> ObjectId {
    id_in(number, number)
}

/// An object in the extent of another number.
pub fn id_in(number: u64, extent: u64) -> ObjectId {
    ObjectId { key: key(number), part: (number % 64) as u8, extent: key(extent) }
}

/// 32 bytes that look like a hash, the first 8 of which decide the bucket.
pub fn key(number: u64) -> [u8; 32] {
    let mut key = [0; 32];
    for (i, word) in key.chunks_exact_mut(8).enumerate() {
        let x = (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17 * i as u32 + 5);
        word.copy_from_slice(&(x ^ (x >> 29)).to_le_bytes());
    }
    key
}

/// Bytes that differ from those of every other number and length.
pub fn value(number: u64, length: usize) -> Vec<u8> {
    let mut x = number.wrapping_mul(0xd129_0d3e_5f1f_2c4b) ^ length as u64 | 1;
    (0..length)
        .map(|_| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            (x >> 32) as u8
        })
        .collect()
}
