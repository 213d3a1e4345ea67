//! Block hashes, or tokens, to the ids of a trace: an id stands for a block and everything before it.
//!
//! Public traces name blocks by a hash of the block alone or of the whole prefix. Here a block's id depends on the id
//! before it and its hash, so that both become ids with one parent each, given in order of first appearance: new
//! stretches of a prompt become runs of consecutive ids.

use crate::error::{Error, Result};
use foldhash::quality::FixedState;
use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher};

/// No id: before the first block.
const START: u32 = u32::MAX;

/// Ids given so far.
#[derive(Debug)]
pub struct BlockIds {
    /// (id before, hash of the block) to id.
    ids: HashMap<(u32, u64), u32, foldhash::fast::RandomState>,
    most: u64,
    /// Hash of tokens; its seed never changes, so that a conversion gives the same file every time.
    tokens: FixedState,
}

impl BlockIds {
    /// At most `most` ids will be given, and never the last of 32 bits.
    pub fn new(most: u64) -> Self {
        BlockIds {
            ids: HashMap::default(),
            most: most.min(u64::from(START)),
            tokens: FixedState::with_seed(0x6d69_6d6f),
        }
    }

    /// Distinct ids.
    pub fn len(&self) -> u64 {
        self.ids.len() as u64
    }

    /// Whether no id was given.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// Runs (first id, count) of a prompt whose blocks have these hashes.
    pub fn of_hashes(&mut self, hashes: impl IntoIterator<Item = u64>) -> Result<Vec<(u32, u32)>> {
        let mut runs: Vec<(u32, u32)> = Vec::new();
        let mut parent = START;
        for hash in hashes {
            let next = self.ids.len() as u64;
            let id = match self.ids.get(&(parent, hash)) {
                Some(&id) => id,
                None if next < self.most => {
                    self.ids.insert((parent, hash), next as u32);
                    next as u32
                }
                None => {
                    return Err(Error::invalid("distinct blocks", next + 1, format!("at most {}", self.most)));
                }
            };
            match runs.last_mut() {
                Some((first, count)) if u64::from(*first) + u64::from(*count) == u64::from(id) => *count += 1,
                _ => runs.push((id, 1)),
            }
            parent = id;
        }
        Ok(runs)
    }

    /// Runs of the full blocks of `bytes`, `size` bytes each.
    pub fn of_bytes(&mut self, bytes: &[u8], size: usize, salt: u64) -> Result<Vec<(u32, u32)>> {
        let state = self.tokens.clone();
        let hash = move |block: &[u8]| {
            let mut hasher = state.build_hasher();
            hasher.write_u64(salt);
            hasher.write(block);
            hasher.finish()
        };
        self.of_hashes(bytes.chunks_exact(size.max(1)).map(hash))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_a_block_and_what_comes_before() {
        let mut ids = BlockIds::new(100);
        assert_eq!(ids.of_hashes([7, 8, 9]).unwrap(), [(0, 3)]);
        assert_eq!(ids.of_hashes([7, 8, 1, 9]).unwrap(), [(0, 2), (3, 2)], "9 after 1 is not 9 after 8");
        assert_eq!(ids.of_hashes([7, 8, 9, 7]).unwrap(), [(0, 3), (5, 1)]);
        assert_eq!(ids.of_hashes([7, 8, 1]).unwrap(), [(0, 2), (3, 1)]);
        assert_eq!((ids.of_hashes([]).unwrap(), ids.len()), (vec![], 6));
    }

    #[test]
    fn equal_tokens_are_equal_blocks_of_one_salt() {
        let mut ids = BlockIds::new(100);
        let text: Vec<u8> = (0..40).collect();
        assert_eq!(ids.of_bytes(&text, 16, 0).unwrap(), [(0, 2)], "the partial block has no id");
        assert_eq!(ids.of_bytes(&text[..32], 16, 0).unwrap(), [(0, 2)]);
        assert_eq!(ids.of_bytes(&text, 16, 1).unwrap(), [(2, 2)]);
    }

    #[test]
    fn the_number_of_ids_is_bounded() {
        let mut ids = BlockIds::new(2);
        assert!(
            ids.of_hashes([1, 2, 3]).unwrap_err().to_string().contains("distinct blocks is 3, allowed is at most 2")
        );
        assert_eq!(ids.of_hashes([1, 2]).unwrap(), [(0, 2)]);
    }
}
