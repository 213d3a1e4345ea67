//! The order of eviction: extents by age, and inside an extent superseded windows first, then the tail before the head.
//!
//! Extents are in the core's [`LruList`], eight bytes each; the core's other policies weigh what a node does not see: who
//! asks, and what else the prompt has. An extent is in the list while it has an object that may be evicted; those objects
//! form a treap (a search tree by order, a heap by a mixture of the object's id), so that one
//! extent with very many objects is as quick as many with few.

use super::index::{NIL, Object, Objects, Table};
use crate::policy::LruList;
use crate::pool::chunk::{ChunkStack, ChunkVec};
use std::cmp::Reverse;

/// One extent: 12 bytes. Two whose hashes are equal are one, which costs them nothing but their order; of ten million
/// extents one in a thousand is.
#[derive(Debug, Clone, Copy)]
struct Extent {
    hash: u32,
    root: u32,
    /// Objects, whether they may be evicted or not; 0 in records that are not in use.
    objects: u32,
}

/// All extents.
#[derive(Debug)]
pub struct Extents {
    table: Table,
    records: ChunkVec<Extent>,
    free: ChunkStack,
    made: u32,
    order: LruList,
}

/// 64 bits for the table.
fn spread(hash: u32) -> u64 {
    u64::from(hash).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn rank(id: u32, object: &Object) -> (bool, Reverse<u32>, Reverse<u8>, u32) {
    let superseded = object.flags & super::index::flag::SUPERSEDED != 0;
    (!superseded, Reverse(object.page), Reverse(object.part), id)
}

fn weight(id: u32) -> u32 {
    let mut x = id.wrapping_add(0x9e37_79b9);
    x = (x ^ x >> 16).wrapping_mul(0x85eb_ca6b);
    x = (x ^ x >> 13).wrapping_mul(0xc2b2_ae35);
    x ^ x >> 16
}

impl Extents {
    /// No extents.
    pub fn new() -> Extents {
        let records = ChunkVec::new(Extent { hash: 0, root: NIL, objects: 0 });
        Extents { table: Table::new(), records, free: ChunkStack::default(), made: 0, order: LruList::default() }
    }

    /// The extent with this hash, for one object more.
    pub fn enter(&mut self, hash: u64) -> u32 {
        let (records, hash) = (&self.records, (hash >> 32) as u32);
        let found = self.table.find(spread(hash), |id| records.get(id as usize).hash == hash);
        let id = found.unwrap_or_else(|| {
            let id = self.free.pop().unwrap_or_else(|| {
                self.made += 1;
                self.made - 1
            });
            *self.records.get_mut(id as usize) = Extent { hash, root: NIL, objects: 0 };
            let records = &self.records;
            self.table.insert(spread(hash), id, |id| spread(records.get(id as usize).hash));
            id
        });
        self.records.get_mut(id as usize).objects += 1;
        id
    }

    /// One object less; it is not in the order any more.
    pub fn leave(&mut self, extent: u32) {
        let record = self.records.get_mut(extent as usize);
        record.objects -= 1;
        let Extent { hash, root, objects } = *record;
        if objects == 0 {
            debug_assert_eq!(root, NIL);
            self.table.remove(spread(hash), extent);
            self.free.push(extent);
        }
    }

    /// The object may be evicted from now on. Its extent keeps its age, unless it had no such object.
    pub fn insert(&mut self, objects: &mut Objects, id: u32) {
        let extent = objects[id].extent;
        let record = self.records.get_mut(extent as usize);
        if record.root == NIL {
            self.order.insert(extent);
        }
        let (less, more) = split(objects, record.root, rank(id, &objects[id]));
        (objects[id].left, objects[id].right) = (NIL, NIL);
        let left = merge(objects, less, id);
        record.root = merge(objects, left, more);
    }

    /// The object may not be evicted any more.
    pub fn remove(&mut self, objects: &mut Objects, id: u32) {
        let extent = objects[id].extent;
        let record = self.records.get_mut(extent as usize);
        record.root = without(objects, record.root, id);
        (objects[id].left, objects[id].right) = (NIL, NIL);
        if record.root == NIL {
            self.order.remove(extent);
        }
    }

    /// The extent was used now.
    pub fn refresh(&mut self, extent: u32) {
        if self.order.contains(extent) {
            self.order.remove(extent);
            self.order.insert(extent);
        }
    }

    /// The object to go next.
    pub fn victim(&self, objects: &Objects) -> Option<u32> {
        self.order.oldest().map(|extent| self.first(objects, extent))
    }

    /// The objects that would go next of the extents that would, at most `most` of them.
    pub fn oldest(&self, objects: &Objects, most: usize) -> Vec<u32> {
        self.order.iter().take(most).map(|e| self.first(objects, e)).collect()
    }

    fn first(&self, objects: &Objects, extent: u32) -> u32 {
        let mut at = self.records.get(extent as usize).root;
        while objects[at].left != NIL {
            at = objects[at].left;
        }
        at
    }

    /// Bytes of this process that the extents take; the list's share is eight for each record.
    pub fn bytes(&self) -> u64 {
        self.table.bytes() + self.records.bytes() + 8 * self.records.capacity() as u64 + 4 * self.free.len() as u64
    }

    /// Compares trees, counts and order. `objects` are all that are listed or pinned.
    pub fn check(&self, objects: &Objects) -> Result<(), String> {
        let mut members = vec![0u32; self.made as usize];
        let mut evictable = 0;
        for (_, o) in objects.iter().filter(|(_, o)| o.extent != NIL) {
            *members.get_mut(o.extent as usize).ok_or(format!("no extent for {o:?}"))? += 1;
            evictable += usize::from(!o.is_held());
        }
        let (mut ordered, mut in_order, mut used) = (0, 0, 0);
        for (extent, members) in members.iter().enumerate() {
            let record = self.records.get(extent);
            if record.objects != *members {
                return Err(format!("extent {extent} counts {} objects and has {members}", record.objects));
            }
            if record.objects == 0 {
                continue;
            }
            used += 1;
            let mut inside = Vec::new();
            walk(objects, record.root, &mut inside);
            let sorted = inside.is_sorted_by(|a, b| rank(*a, &objects[*a]) < rank(*b, &objects[*b]));
            let right = inside.iter().all(|o| objects[*o].extent == extent as u32 && !objects[*o].is_held());
            let listed = self.order.contains(extent as u32);
            if !sorted || !right || listed == inside.is_empty() {
                return Err(format!("extent {extent} orders {inside:?}; in the list: {listed}"));
            }
            ordered += inside.len();
            in_order += usize::from(listed);
        }
        if (ordered, in_order, used) != (evictable, self.order.len(), self.table.len()) {
            return Err(format!(
                "{ordered} objects in order of {evictable}, {in_order} extents of {}",
                self.order.len()
            ));
        }
        Ok(())
    }
}

type Rank = (bool, Reverse<u32>, Reverse<u8>, u32);

/// Trees of what ranks below `at` and of the rest.
fn split(objects: &mut Objects, tree: u32, at: Rank) -> (u32, u32) {
    if tree == NIL {
        return (NIL, NIL);
    }
    if rank(tree, &objects[tree]) < at {
        let (less, more) = split(objects, objects[tree].right, at);
        objects[tree].right = less;
        (tree, more)
    } else {
        let (less, more) = split(objects, objects[tree].left, at);
        objects[tree].left = more;
        (less, tree)
    }
}

/// One tree of two, all of whose `less` ranks below all of `more`.
fn merge(objects: &mut Objects, less: u32, more: u32) -> u32 {
    if less == NIL || more == NIL {
        return if less == NIL { more } else { less };
    }
    if weight(less) > weight(more) {
        objects[less].right = merge(objects, objects[less].right, more);
        less
    } else {
        objects[more].left = merge(objects, less, objects[more].left);
        more
    }
}

fn without(objects: &mut Objects, tree: u32, id: u32) -> u32 {
    debug_assert_ne!(tree, NIL, "object {id} is in the order");
    if tree == id {
        return merge(objects, objects[id].left, objects[id].right);
    }
    if rank(id, &objects[id]) < rank(tree, &objects[tree]) {
        objects[tree].left = without(objects, objects[tree].left, id);
    } else {
        objects[tree].right = without(objects, objects[tree].right, id);
    }
    tree
}

fn walk(objects: &Objects, tree: u32, out: &mut Vec<u32>) {
    if tree != NIL {
        walk(objects, objects[tree].left, out);
        out.push(tree);
        walk(objects, objects[tree].right, out);
    }
}
