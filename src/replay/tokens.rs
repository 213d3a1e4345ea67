//! Block ids to tokens, by a fixed function.
//!
//! Token j of block b is `b * A + j * B` modulo 2^32 with odd A. Multiplying by A is a bijection of `u32`, so different
//! blocks differ in their first token already, and a tree over pages of tokens is the tree over ids. The rest is one
//! addition a token, which compilers turn into vector code: replay writes billions of tokens.

/// Odd, so that the product is a bijection; near 2^32 / golden ratio, so that neighbours land far apart.
const A: u32 = 0x9E37_79B1;
/// Odd, so that the tokens of a block of up to 2^32 tokens differ among themselves.
const B: u32 = 0x85EB_CA6B;

/// Appends the tokens of `blocks` (runs of ids: first, count), cut at `limit` tokens, to `out`.
pub fn append(blocks: &[(u32, u32)], block_size: u32, limit: u64, out: &mut Vec<u32>) {
    let size = u64::from(block_size);
    let mut left = limit;
    for &(first, count) in blocks {
        let whole = u64::from(count).min(left / size) as u32;
        let at = out.len();
        out.resize(at + (u64::from(whole) * size) as usize, 0);
        let mut base = first.wrapping_mul(A);
        for block in out[at..].chunks_exact_mut(block_size as usize) {
            write(base, block);
            base = base.wrapping_add(A);
        }
        left -= u64::from(whole) * size;
        if whole < count {
            // Less than one block is left of the limit.
            let at = out.len();
            out.resize(at + left as usize, 0);
            write(base, &mut out[at..]);
            return;
        }
    }
}

/// Writes the first tokens of the block with this base.
fn write(base: u32, out: &mut [u32]) {
    for (j, token) in out.iter_mut().enumerate() {
        *token = base.wrapping_add((j as u32).wrapping_mul(B));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn tokens(blocks: &[(u32, u32)], size: u32, limit: u64) -> Vec<u32> {
        let mut out = Vec::new();
        append(blocks, size, limit, &mut out);
        out
    }

    #[test]
    fn a_run_is_its_blocks_one_after_another() {
        let run = tokens(&[(u32::MAX - 3, 3), (7, 2)], 16, u64::MAX);
        let mut one_by_one = Vec::new();
        for id in [u32::MAX - 3, u32::MAX - 2, u32::MAX - 1, 7, 8] {
            one_by_one.extend(tokens(&[(id, 1)], 16, u64::MAX));
        }
        assert_eq!(run, one_by_one);
    }

    #[test]
    fn different_ids_differ_in_their_first_token() {
        let first: HashSet<u32> = (0..100_000u32).map(|i| tokens(&[(i.wrapping_mul(43_691), 1)], 1, 1)[0]).collect();
        assert_eq!(first.len(), 100_000);
    }

    #[test]
    fn a_limit_cuts_anywhere() {
        let all = tokens(&[(3, 4), (90, 2)], 8, u64::MAX);
        assert_eq!(all.len(), 48);
        for limit in 0..=48u64 {
            assert_eq!(tokens(&[(3, 4), (90, 2)], 8, limit), all[..limit as usize]);
        }
    }
}
