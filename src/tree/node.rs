//! Nodes: edges of the radix tree, as runs of slots between branching points.

use super::slots::Run;
use crate::policy::{NIL, User};
use smallvec::SmallVec;

/// Longest edge, in pages: bounds what a split or merge has to relabel.
pub const MAX_PAGES: u32 = 4096;
/// Most runs of an edge.
pub const MAX_RUNS: usize = 1024;

/// Where a node stands in the order of eviction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Leased, or a root: not evictable.
    None,
    /// Waits for its step.
    Pending,
    /// In the policy's order.
    Evictable,
    /// Soft-pinned: goes after everything else.
    Pinned,
}

/// An edge: pages `[depth, depth + len)` of the prefixes below it.
#[derive(Debug)]
pub struct Node {
    /// Node above; [`NIL`] for a root.
    pub parent: u32,
    /// Root record.
    pub root: u32,
    /// Pages before this edge.
    pub depth: u32,
    /// Pages of this edge; 0 only for a root.
    pub len: u32,
    /// Its slots.
    pub runs: SmallVec<[Run; 2]>,
    /// Edges that leave at its end.
    pub children: u32,
    /// One of them, or [`NIL`].
    pub first_child: u32,
    /// Other children of its parent.
    pub prev_sibling: u32,
    /// Other children of its parent.
    pub next_sibling: u32,
    /// Next node in its chain of the child table.
    pub chain: u32,
    /// Hash of its first page.
    pub hash: u64,
    /// Leases that end at its end.
    pub leases: u32,
    /// Children that are leased.
    pub leased_children: u32,
    /// Soft pins that end at its end.
    pub pins: u32,
    /// Children that are pinned.
    pub pinned_children: u32,
    /// Newest step that may still read its pages.
    pub stamp: u64,
    /// Newest step that may still write its pages: rows of steps that run are final for later steps, not for other tiers.
    pub written: u64,
    /// Order of eviction.
    pub place: Place,
    /// Order of the last uses, and of the first one since it is cached; 0 before.
    pub rank: u64,
    /// See `rank`.
    pub born: u64,
    /// The newest user whose lease ended.
    pub last: User,
    /// Deepest end of a prompt inside it, in pages, and its turn; 0 without.
    pub prompt: (u32, u16),
    /// How often prompts parted at its end; those of the end below count when it is split.
    pub shared: u8,
    /// Uses since it is cached; one more when its pages had been evicted shortly before.
    pub uses: u8,
    /// Its valid entry in a step's bucket.
    pub ticket: u64,
    /// Checkpoints inside it, shallow first.
    pub ckpts: SmallVec<[u32; 1]>,
    /// Slots with SWA KV.
    pub swa: u32,
    /// Those of them that no checkpoint references.
    pub loose: u32,
    /// Owner of its pages.
    pub tenant: u32,
}

impl Node {
    /// An edge without pages.
    pub fn new(parent: u32, root: u32, depth: u32, tenant: u32) -> Self {
        Node {
            parent,
            root,
            depth,
            len: 0,
            runs: SmallVec::new(),
            children: 0,
            first_child: NIL,
            prev_sibling: NIL,
            next_sibling: NIL,
            chain: NIL,
            hash: 0,
            leases: 0,
            leased_children: 0,
            pins: 0,
            pinned_children: 0,
            stamp: 0,
            written: 0,
            rank: 0,
            born: 0,
            last: User::default(),
            prompt: (0, 0),
            shared: 0,
            uses: 0,
            place: Place::None,
            ticket: 0,
            ckpts: SmallVec::new(),
            swa: 0,
            loose: 0,
            tenant,
        }
    }

    /// A lease of `user` ended here or below.
    pub fn take_user(&mut self, user: &User) {
        if user.time < self.last.time {
            return;
        }
        self.last = *user;
        if self.depth < user.end && user.end <= self.end() && user.end >= self.prompt.0 {
            self.prompt = (user.end, user.turn);
        }
    }

    /// Held by a sequence at or below.
    pub fn is_leased(&self) -> bool {
        self.leases > 0 || self.leased_children > 0
    }

    /// Pinned at or below.
    pub fn is_pinned(&self) -> bool {
        self.pins > 0 || self.pinned_children > 0
    }

    /// Nothing leaves at its end.
    pub fn is_leaf(&self) -> bool {
        self.children == 0
    }

    /// True for a root.
    pub fn is_root(&self) -> bool {
        self.parent == NIL
    }

    /// Boundary at its end, in pages.
    pub fn end(&self) -> u32 {
        self.depth + self.len
    }

    /// Last slot.
    pub fn last_slot(&self) -> u32 {
        self.runs.last().map_or(NIL, |r| r.start + r.len - 1)
    }

    /// Slot of its page `offset`. Linear in the runs, from the nearer end.
    pub fn slot(&self, offset: u32) -> u32 {
        if offset >= self.len / 2 {
            let mut end = self.len;
            for r in self.runs.iter().rev() {
                end -= r.len;
                if offset >= end {
                    return r.start + (offset - end);
                }
            }
        } else {
            let mut start = 0;
            for r in &self.runs {
                if offset < start + r.len {
                    return r.start + (offset - start);
                }
                start += r.len;
            }
        }
        NIL
    }

    /// Adds slots at the end; `joins` tells that they follow the last run inside its chunk.
    pub fn push_run(&mut self, run: Run, joins: bool) {
        self.len += run.len;
        match self.runs.last_mut() {
            Some(r) if joins => r.len += run.len,
            _ => self.runs.push(run),
        }
    }
}
