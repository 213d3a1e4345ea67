//! The fence: what must wait until a step is retired or a move is done.
//!
//! Steps are consecutive and retire in order. A [`Stamp`] names a step (`step + 1`); [`NONE`] means that no step ever
//! saw the page. Each running step has a bucket of pages, nodes and leases that wait for it.

use super::page::{Full, Page, Quarantined, Reserved, Swa};
use crate::cache::types::Group;
use crate::error::{Error, Result};
use std::collections::{BTreeMap, VecDeque};

/// A step plus one.
pub type Stamp = u64;
/// No step.
pub const NONE: Stamp = 0;

/// What keeps the source of a copy untouched until the copy has run.
#[derive(Debug)]
pub enum Hold {
    /// A page of the tree: the receipt of its path lease, and the SWA page when it is one (0 for a full page).
    Tree {
        /// Receipt of the path lease.
        slot: u32,
        /// The leased SWA page.
        swa: u32,
    },
    /// A second handle of a sequence's full page.
    Full(Page<Full, Reserved>),
    /// A second handle of a sequence's SWA page.
    Swa(Page<Swa, Reserved>),
    /// While the page is being published: between a handle and a lease.
    Published(Group, u32),
}

/// What waits for one step.
#[derive(Debug, Default)]
pub struct Bucket {
    /// Full pages to free.
    pub full: Vec<Page<Full, Quarantined>>,
    /// SWA pages to free.
    pub swa: Vec<Page<Swa, Quarantined>>,
    /// Nodes that become evictable, with the ticket of their entry.
    pub nodes: Vec<(u32, u64)>,
    /// Cached SWA pages that become evictable.
    pub swa_wait: Vec<u32>,
}

/// What waits for one move.
#[derive(Debug, Default)]
pub struct MoveBucket {
    /// Full pages with the step and the other moves they wait for.
    pub full: Vec<(Page<Full, Quarantined>, Stamp, Vec<u64>)>,
    /// SWA pages likewise.
    pub swa: Vec<(Page<Swa, Quarantined>, Stamp, Vec<u64>)>,
    /// Copy sources to let go.
    pub holds: Vec<Hold>,
    /// Sequences (index, generation) whose copies are in the move.
    pub seqs: Vec<(u32, u32)>,
}

/// Running steps and moves.
#[derive(Debug, Default)]
pub struct Fence {
    /// Newest stamp that was filled.
    filled: Stamp,
    /// All stamps up to here are retired.
    retired: Stamp,
    running: VecDeque<Bucket>,
    moves: BTreeMap<u64, MoveBucket>,
    next_move: u64,
}

impl Fence {
    /// Newest stamp that was filled.
    pub fn filled(&self) -> Stamp {
        self.filled
    }

    /// True when nothing can touch pages of `stamp` any more.
    pub fn is_retired(&self, stamp: Stamp) -> bool {
        stamp <= self.retired
    }

    /// Checks that `step` is the next one to fill; the first is free.
    pub fn check_fill(&self, step: u64) -> Result<()> {
        if step >= u64::MAX - 1 {
            return Err(Error::Order { what: "step to fill", value: step, expected: "at most 2^64 - 3".into() });
        }
        if self.filled != NONE && step != self.filled {
            return Err(Error::Order { what: "step to fill", value: step, expected: self.filled.to_string() });
        }
        Ok(())
    }

    /// Starts a step; [`Self::check_fill`] passed.
    pub fn start(&mut self, step: u64) -> Stamp {
        if self.filled == NONE {
            self.retired = step;
        }
        self.filled = step + 1;
        self.running.push_back(Bucket::default());
        self.filled
    }

    /// Retires the oldest running step and returns what waited for it.
    pub fn retire(&mut self, step: u64) -> Result<Bucket> {
        if self.running.is_empty() || step != self.retired {
            let expected =
                if self.running.is_empty() { "none: no step is running".to_string() } else { self.retired.to_string() };
            return Err(Error::Order { what: "step to retire", value: step, expected });
        }
        self.retired += 1;
        Ok(self.running.pop_front().expect("a running step"))
    }

    /// The bucket of a running stamp.
    pub fn bucket(&mut self, stamp: Stamp) -> &mut Bucket {
        let i = (stamp - self.retired - 1) as usize;
        &mut self.running[i]
    }

    /// Starts a move.
    pub fn start_move(&mut self, bucket: MoveBucket) -> u64 {
        self.next_move += 1;
        self.moves.insert(self.next_move, bucket);
        self.next_move
    }

    /// Takes back the move that was started last, which nobody was told of and nothing waits for.
    pub fn cancel_move(&mut self) {
        self.moves.remove(&self.next_move);
        self.next_move -= 1;
    }

    /// Ends a move and returns what waited for it.
    pub fn end_move(&mut self, id: u64) -> Result<MoveBucket> {
        self.moves.remove(&id).ok_or_else(|| {
            let running: Vec<_> = self.moves.keys().take(8).collect();
            Error::Order { what: "move", value: id, expected: format!("one of the running moves {running:?}") }
        })
    }

    /// The bucket of a running move.
    pub fn move_bucket(&mut self, id: u64) -> Option<&mut MoveBucket> {
        self.moves.get_mut(&id)
    }

    /// Running moves.
    pub fn moves(&self) -> impl Iterator<Item = &MoveBucket> {
        self.moves.values()
    }

    /// Running moves.
    pub fn moves_mut(&mut self) -> impl Iterator<Item = &mut MoveBucket> {
        self.moves.values_mut()
    }
}
