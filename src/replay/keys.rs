//! Chain keys of a trace's blocks, each made once.
//!
//! Block ids always have the same blocks before them, so the id says the key. In a pool that thrashes the same blocks are
//! computed again and again; without this most of a replay is SHA-256. The memory is bounded: one place for every id as
//! far as there is room, and of two ids with one place the newer has it.

use crate::key::{PageKeys, page_key};

/// Most keys that are remembered, 40 bytes each.
const MOST: u64 = 1 << 22;
/// A place that nothing has.
const FREE: u64 = u64::MAX;

/// Keys of pages by their number: block id times the pages of a block, plus the page of the block.
#[derive(Debug)]
pub struct KeyBook {
    /// A power of two of places.
    places: Vec<(u64, [u8; 32])>,
    page: usize,
    per_block: u64,
}

impl KeyBook {
    /// For `pages` distinct pages of `page` tokens; blocks are `per_block` of them.
    pub fn new(pages: u64, page: u32, per_block: u32) -> Self {
        let places = pages.clamp(1, MOST).next_power_of_two() as usize;
        KeyBook { places: vec![(FREE, [0; 32]); places], page: page as usize, per_block: u64::from(per_block) }
    }

    /// Keys of the whole pages of `tokens`, the tokens of `blocks`, below the root key.
    pub fn keys(&mut self, root: [u8; 32], blocks: &[(u32, u32)], tokens: &[u32]) -> PageKeys {
        let numbers = blocks.iter().flat_map(|&(first, count)| {
            let first = u64::from(first) * self.per_block;
            first..first + u64::from(count) * self.per_block
        });
        let mask = self.places.len() as u64 - 1;
        let mut parent = root;
        let mut keys = Vec::with_capacity(tokens.len() / self.page);
        for (number, page) in numbers.zip(tokens.chunks_exact(self.page)) {
            let place = &mut self.places[(number & mask) as usize];
            if place.0 != number {
                *place = (number, page_key(&parent, page, std::iter::empty()));
            }
            parent = place.1;
            keys.push(parent);
        }
        PageKeys::new(root, 0, keys)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::tokens;
    use proptest::prelude::*;

    proptest! {
        /// Prompts are paths of one tree of ids, as in a trace; with fewer places than ids too.
        #[test]
        fn keys_are_those_of_the_chain(
            lengths in proptest::collection::vec((0u32..3, 1u32..30), 1..20),
            places in prop_oneof![Just(1u64), Just(8), Just(1 << 10)],
            per_block in prop_oneof![Just(1u32), Just(4)],
        ) {
            let (page, root) = (4u32, [7; 32]);
            let mut book = KeyBook::new(places, page, per_block);
            for (branch, length) in lengths {
                // A trunk of five ids, then a branch of its own.
                let blocks = [(0, length.min(5)), (100 * (branch + 1), length.saturating_sub(5))];
                let mut prompt = Vec::new();
                tokens::append(&blocks, page * per_block, u64::MAX, &mut prompt);
                let keys = book.keys(root, &blocks, &prompt);
                prop_assert_eq!(keys.end(), prompt.len() as u64 / u64::from(page));
                let mut parent = root;
                for (i, tokens) in prompt.chunks_exact(page as usize).enumerate() {
                    parent = page_key(&parent, tokens, std::iter::empty());
                    prop_assert_eq!(keys.get(i as u64), Some(&parent));
                }
            }
        }
    }
}
