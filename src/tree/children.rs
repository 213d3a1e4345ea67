//! Children of nodes: sibling lists, and one hash table over all nodes by (parent, hash of the first page).
//!
//! The table grows by two buckets per insertion (linear hashing), so that no insertion ever rehashes more than two
//! chains, and a node with a million children costs as little as one with three.

use super::Tree;
use super::slots::Run;
use crate::policy::NIL;
use crate::pool::chunk::ChunkVec;
use std::hash::BuildHasher;

/// Heads of the chains; the links are in the nodes.
#[derive(Debug)]
pub(super) struct ChildTable {
    heads: ChunkVec<u32>,
    /// Buckets before the current round of growth, a power of two.
    base: u64,
    buckets: u64,
    len: u64,
}

impl Default for ChildTable {
    fn default() -> Self {
        ChildTable { heads: ChunkVec::new(NIL), base: 64, buckets: 64, len: 0 }
    }
}

fn mix(parent: u32, hash: u64) -> u64 {
    let h = hash ^ u64::from(parent).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    h ^ (h >> 32)
}

impl ChildTable {
    fn bucket(&self, mixed: u64) -> usize {
        let wide = mixed & (2 * self.base - 1);
        (if wide < self.buckets { wide } else { mixed & (self.base - 1) }) as usize
    }

    pub(super) fn bytes(&self) -> u64 {
        self.heads.bytes()
    }
}

impl Tree {
    pub(super) fn page_hash(&self, tokens: &[u32]) -> u64 {
        // SAFETY: u32 has no padding and every byte pattern is a valid u8.
        let bytes = unsafe { std::slice::from_raw_parts(tokens.as_ptr().cast::<u8>(), size_of_val(tokens)) };
        self.hash.hash_one(bytes)
    }

    pub(super) fn first_page_hash(&self, node: u32) -> u64 {
        let start = self.nodes[node].runs[0].start;
        self.page_hash(self.slots.tokens(Run { start, len: 1 }))
    }

    /// Hangs `child`, whose first page and hash are known, below its parent.
    pub(super) fn add_child(&mut self, child: u32) {
        let parent = self.nodes[child].parent;
        // The oldest child stays the first: what was there before a branch is what most walks go on to.
        let first = self.nodes[parent].first_child;
        let next = if first == NIL { NIL } else { std::mem::replace(&mut self.nodes[first].next_sibling, child) };
        if next != NIL {
            self.nodes[next].prev_sibling = child;
        }
        let c = &mut self.nodes[child];
        (c.prev_sibling, c.next_sibling) = (first, next);
        let mixed = mix(parent, c.hash);
        let p = &mut self.nodes[parent];
        if first == NIL {
            p.first_child = child;
        }
        p.children += 1;
        self.dead.remove(parent);
        self.order.remove(parent);
        let bucket = self.table.bucket(mixed);
        self.nodes[child].chain = *self.table.heads.get(bucket);
        *self.table.heads.get_mut(bucket) = child;
        self.table.len += 1;
        // Two buckets for every node: a chain is hardly ever longer than one, and its nodes lie anywhere in memory.
        for _ in 0..2 {
            if 2 * self.table.len > self.table.buckets {
                self.grow_table();
            }
        }
    }

    fn grow_table(&mut self) {
        let table = &mut self.table;
        let (old, new) = ((table.buckets - table.base) as usize, table.buckets as usize);
        let mut id = std::mem::replace(table.heads.get_mut(old), NIL);
        table.buckets += 1;
        if table.buckets == 2 * table.base {
            table.base *= 2;
        }
        while id != NIL {
            let node = &mut self.nodes[id];
            let bucket = table.bucket(mix(node.parent, node.hash));
            debug_assert!(bucket == old || bucket == new);
            let next = std::mem::replace(&mut node.chain, *table.heads.get(bucket));
            *table.heads.get_mut(bucket) = id;
            id = next;
        }
    }

    /// Takes `child` off its parent; the node itself stays.
    pub(super) fn unhang(&mut self, child: u32) {
        let c = &self.nodes[child];
        let (parent, prev, next, chain) = (c.parent, c.prev_sibling, c.next_sibling, c.chain);
        let bucket = self.table.bucket(mix(parent, c.hash));
        if next != NIL {
            self.nodes[next].prev_sibling = prev;
        }
        match prev {
            NIL => self.nodes[parent].first_child = next,
            p => self.nodes[p].next_sibling = next,
        }
        self.nodes[parent].children -= 1;
        self.table.len -= 1;
        let mut at = *self.table.heads.get(bucket);
        if at == child {
            *self.table.heads.get_mut(bucket) = chain;
            return;
        }
        while self.nodes[at].chain != child {
            at = self.nodes[at].chain;
        }
        self.nodes[at].chain = chain;
    }

    /// Children of `parent` with this hash of their first page.
    pub(super) fn children_with(&self, parent: u32, hash: u64) -> impl Iterator<Item = u32> + '_ {
        let head = *self.table.heads.get(self.table.bucket(mix(parent, hash)));
        let live = |id: u32| (id != NIL).then_some(id);
        std::iter::successors(live(head), move |&id| live(self.nodes[id].chain))
            .filter(move |&id| self.nodes[id].parent == parent && self.nodes[id].hash == hash)
    }

    /// Head of the chain that `children_with` follows.
    pub(super) fn chain_head(&self, parent: u32, hash: u64) -> &u32 {
        self.table.heads.get(self.table.bucket(mix(parent, hash)))
    }

    /// All children.
    pub(super) fn children(&self, parent: u32) -> impl Iterator<Item = u32> + '_ {
        let live = |id: u32| (id != NIL).then_some(id);
        std::iter::successors(live(self.nodes[parent].first_child), move |&id| live(self.nodes[id].next_sibling))
    }
}
