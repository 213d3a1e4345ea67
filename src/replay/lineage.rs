//! Whether every block id of a trace always has the same blocks before it.
//!
//! Most ids follow the id one below them, so those are a set; the others are a map from id to the id before. Together
//! they are every id that was seen, which also counts the distinct ones.

use crate::replay::ids::IdSet;
use std::collections::BTreeMap;

/// What comes before the first block of a prompt.
const START: u64 = u64::MAX;

/// An id that came after different blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Conflict {
    /// The id.
    pub id: u32,
    /// The id before it now, `None` at the start of a prompt.
    pub parent: Option<u32>,
}

/// Ids seen so far and what comes before each: at most 4 bytes for an id that follows the id one below, about 24 for
/// another.
#[derive(Debug, Default)]
pub struct Lineage {
    /// Ids that follow the id one below.
    follows: IdSet,
    /// The others: as a set, to ask for runs, and with the id before.
    heads: IdSet,
    parents: BTreeMap<u32, u64>,
    /// Runs of the prompt being added.
    sorted: Vec<(u32, u32)>,
}

impl Lineage {
    /// Nothing seen.
    pub fn new() -> Self {
        Self::default()
    }

    /// Distinct ids seen.
    pub fn len(&self) -> u64 {
        self.follows.len() + self.heads.len()
    }

    /// Whether no id was seen.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds a prompt, as runs (first id, at least 1 id). A prompt that contradicts earlier ones, or itself, adds
    /// nothing.
    pub fn add(&mut self, blocks: &[(u32, u32)]) -> Result<(), Conflict> {
        if let Some(id) = self.repeated(blocks) {
            let at = blocks.iter().rposition(|&(first, _)| first == id).unwrap_or(0);
            return Err(Conflict { id, parent: at.checked_sub(1).map(|i| last(blocks[i])) });
        }
        let mut parent = START;
        for &(first, count) in blocks {
            self.check(first, count, parent)?;
            parent = u64::from(last((first, count)));
        }
        let mut parent = START;
        for &(first, count) in blocks {
            if u64::from(first) == parent.wrapping_add(1) && parent != START {
                self.follows.insert_run(first, 1);
            } else if self.heads.insert_run(first, 1) == 1 {
                self.parents.insert(first, parent);
            }
            if count > 1 {
                self.follows.insert_run(first + 1, count - 1);
            }
            parent = u64::from(last((first, count)));
        }
        Ok(())
    }

    /// The first id of a run that meets another run of the same prompt: it would come after itself.
    fn repeated(&mut self, blocks: &[(u32, u32)]) -> Option<u32> {
        self.sorted.clear();
        self.sorted.extend_from_slice(blocks);
        self.sorted.sort_unstable();
        self.sorted.windows(2).find(|w| last(w[0]) >= w[1].0).map(|w| w[1].0)
    }

    fn check(&self, first: u32, count: u32, parent: u64) -> Result<(), Conflict> {
        let follows = parent != START && u64::from(first) == parent + 1;
        let known = match self.parents.get(&first) {
            Some(&before) => before == parent,
            None => follows || self.follows.first_of_run(first, 1).is_none(),
        };
        if !known {
            return Err(Conflict { id: first, parent: shown(parent) });
        }
        match self.heads.first_of_run(first.wrapping_add(1), count - 1) {
            Some(id) => Err(Conflict { id, parent: Some(id - 1) }),
            None => Ok(()),
        }
    }
}

/// The last id of a run of at least one.
fn last((first, count): (u32, u32)) -> u32 {
    first + (count - 1)
}

fn shown(parent: u64) -> Option<u32> {
    u32::try_from(parent).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Ids one by one.
    fn flat(blocks: &[(u32, u32)]) -> Vec<u32> {
        blocks.iter().flat_map(|&(first, count)| first..first + count).collect()
    }

    /// The same rule in a map, one id at a time.
    fn add_slowly(parents: &mut BTreeMap<u32, Option<u32>>, blocks: &[(u32, u32)]) -> bool {
        let ids = flat(blocks);
        let mut trial = parents.clone();
        for (at, &id) in ids.iter().enumerate() {
            let before = at.checked_sub(1).map(|i| ids[i]);
            if ids[..at].contains(&id) || *trial.entry(id).or_insert(before) != before {
                return false;
            }
        }
        *parents = trial;
        true
    }

    #[test]
    fn an_id_keeps_what_comes_before_it() {
        let mut lineage = Lineage::new();
        assert_eq!(lineage.add(&[(5, 3), (20, 2)]), Ok(()));
        assert_eq!(lineage.add(&[(5, 2), (30, 1)]), Ok(()));
        assert_eq!(lineage.add(&[(6, 1)]), Err(Conflict { id: 6, parent: None }));
        assert_eq!(lineage.add(&[(5, 2), (20, 1)]), Err(Conflict { id: 20, parent: Some(6) }));
        assert_eq!(lineage.add(&[(5, 4), (9, 12)]), Err(Conflict { id: 20, parent: Some(19) }));
        assert_eq!(lineage.add(&[(50, 3), (52, 1)]), Err(Conflict { id: 52, parent: Some(52) }));
        assert_eq!(lineage.len(), 6, "what was refused leaves nothing");
        assert_eq!(lineage.add(&[(5, 1), (6, 1), (7, 1), (20, 1), (21, 1)]), Ok(()), "runs may be cut anywhere");
        assert_eq!(lineage.add(&[(u32::MAX, 1)]), Ok(()));
        assert_eq!(lineage.add(&[(0, 1)]), Ok(()), "nothing comes before the first id");
    }

    proptest! {
        #[test]
        fn equals_a_map(prompts in prop::collection::vec(prop::collection::vec((0u32..40, 1u32..6), 0..5), 0..30)) {
            let (mut lineage, mut model) = (Lineage::new(), BTreeMap::new());
            for blocks in prompts {
                prop_assert_eq!(lineage.add(&blocks).is_ok(), add_slowly(&mut model, &blocks), "{:?}", blocks);
                prop_assert_eq!(lineage.len(), model.len() as u64);
            }
        }
    }
}
