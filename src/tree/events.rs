//! Events: what lookups can find, told as numbered changes. Changes are collected per core call and compared with what
//! was announced before, so that what came and went inside one call is not told.

use super::Tree;
use super::slots::flag;
use crate::cache::types::{Drained, Event, EventKind, Group, PageKey, Snapshot, SnapshotPage};
use crate::policy::NIL;
use smallvec::SmallVec;
use std::collections::VecDeque;

/// Most keys in one event.
const KEYS: usize = 256;

/// The ring of events.
#[derive(Debug)]
pub struct Events {
    on: bool,
    capacity: usize,
    ring: VecDeque<Event>,
    keys: usize,
    next: u64,
    lost: u64,
    dirty: Vec<u32>,
    released: Vec<u32>,
    /// Buffers of `settle`, kept from call to call.
    first: Vec<PageKey>,
    second: Vec<PageKey>,
}

fn size(kind: &EventKind) -> usize {
    match kind {
        EventKind::Stored { keys, .. }
        | EventKind::Removed { keys, .. }
        | EventKind::WindowSafe { keys }
        | EventKind::WindowUnsafe { keys } => keys.len() + 1,
        EventKind::Cleared { .. } => 1,
    }
}

impl Events {
    pub(super) fn new(capacity: u32) -> Self {
        Events {
            on: capacity > 0,
            capacity: capacity as usize,
            ring: VecDeque::new(),
            keys: 0,
            next: 1,
            lost: 0,
            dirty: Vec::new(),
            released: Vec::new(),
            first: Vec::new(),
            second: Vec::new(),
        }
    }

    fn push(&mut self, kind: EventKind) {
        self.keys += size(&kind);
        self.ring.push_back(Event { number: self.next, kind });
        self.next += 1;
        while self.keys > self.capacity {
            let Some(old) = self.ring.pop_front() else { break };
            self.keys -= size(&old.kind);
            self.lost += 1;
        }
    }

    pub(super) fn cleared(&mut self, root: PageKey) {
        if self.on {
            self.push(EventKind::Cleared { root });
        }
    }

    /// Takes up to `max` events.
    pub(crate) fn drain(&mut self, max: usize) -> Drained {
        let n = max.min(self.ring.len());
        let events: Vec<Event> = self.ring.drain(..n).collect();
        self.keys -= events.iter().map(|e| size(&e.kind)).sum::<usize>();
        Drained { events, lost: std::mem::take(&mut self.lost) }
    }

    /// True between calls: nothing waits to be told.
    pub(super) fn is_settled(&self) -> bool {
        self.dirty.is_empty() && self.released.is_empty()
    }
}

impl Tree {
    /// The residency of a slot is about to change.
    pub(super) fn touch_slot(&mut self, slot: u32) {
        if !self.events.on || self.slots.flags(slot) & flag::DIRTY != 0 || !self.is_attached(self.slots.node(slot)) {
            return;
        }
        self.slots.change_flags(slot, flag::DIRTY, 0);
        self.events.dirty.push(slot);
    }

    /// A slot left the tree; its key is needed until its removal was told.
    pub(super) fn release_slot(&mut self, slot: u32) {
        if self.slots.flags(slot) & flag::DIRTY != 0 {
            self.slots.set_node(super::Run { start: slot, len: 1 }, NIL);
            self.events.released.push(slot);
        } else {
            self.slots.free(slot);
        }
    }

    /// Ends a core call: tells what changed and frees the slots that left.
    pub(crate) fn settle(&mut self) {
        if self.events.is_settled() {
            return;
        }
        let dirty = std::mem::take(&mut self.events.dirty);
        self.tell_residency(&dirty);
        self.tell_safety(&dirty);
        for &slot in &dirty {
            self.slots.change_flags(slot, 0, flag::DIRTY);
        }
        let mut released = std::mem::take(&mut self.events.released);
        for slot in released.drain(..) {
            self.slots.free(slot);
        }
        self.events.released = released;
        self.events.dirty = dirty;
        self.events.dirty.clear();
    }

    fn tell_residency(&mut self, dirty: &[u32]) {
        for (group, bit) in [(Group::Full, flag::FULL), (Group::Swa, flag::SWA)] {
            // Told after what was removed: one call may drop a page and publish the same prefix again in another slot.
            let mut runs: SmallVec<[EventKind; 2]> = SmallVec::new();
            let mut stored = std::mem::take(&mut self.events.first);
            let mut removed = std::mem::take(&mut self.events.second);
            let (mut root, mut parent) = ([0; 32], [0; 32]);
            let mut last = NIL;
            for &slot in dirty {
                let live = self.slots.node(slot) != NIL;
                let now = live
                    && match group {
                        Group::Full => self.slots.full(slot) != 0,
                        Group::Swa => self.slots.swa(slot) != 0,
                    };
                let before = self.slots.flags(slot) & bit != 0;
                if now == before {
                    continue;
                }
                if now {
                    self.slots.change_flags(slot, bit, 0);
                    let follows = last != NIL && self.slot_before(slot) == last;
                    if !follows || stored.len() >= KEYS {
                        if !stored.is_empty() {
                            runs.push(EventKind::Stored { group, root, parent, keys: stored.to_vec() });
                            stored.clear();
                        }
                        parent = self.parent_key(slot);
                        root = self.roots[self.nodes[self.slots.node(slot)].root].key;
                    }
                    stored.push(*self.slots.key(slot));
                    last = slot;
                } else {
                    self.slots.change_flags(slot, 0, bit);
                    removed.push(*self.slots.key(slot));
                }
            }
            if !stored.is_empty() {
                runs.push(EventKind::Stored { group, root, parent, keys: stored.to_vec() });
            }
            for keys in removed.chunks(KEYS) {
                self.events.push(EventKind::Removed { group, keys: keys.to_vec() });
            }
            runs.into_iter().for_each(|e| self.events.push(e));
            stored.clear();
            removed.clear();
            (self.events.first, self.events.second) = (stored, removed);
        }
    }

    /// True when the boundary at the end of a live slot is window-safe, counted back from the slot.
    fn safe_run(&self, node: u32, end: u32) -> u32 {
        let want = self.need_at(end);
        let mut run = 0;
        self.path_back(node, end - want, end, |_, slot| {
            let there = self.slots.swa(slot) != 0;
            run += u32::from(there);
            there
        });
        run
    }

    fn tell_safety(&mut self, dirty: &[u32]) {
        let mut safe = std::mem::take(&mut self.events.first);
        let mut not = std::mem::take(&mut self.events.second);
        for &slot in dirty {
            let node = self.slots.node(slot);
            if node == NIL {
                if self.slots.flags(slot) & flag::SAFE != 0 {
                    self.slots.change_flags(slot, 0, flag::SAFE);
                    not.push(*self.slots.key(slot));
                }
                continue;
            }
            let n = &self.nodes[node];
            let offset = self.offset_of(node, slot);
            let end = n.depth + offset + 1;
            let run = self.safe_run(node, end);
            self.tell_slot(slot, run, end, &mut safe, &mut not);
            self.tell_below(node, offset + 1, run, self.need.saturating_sub(1), &mut safe, &mut not);
        }
        for (keys, good) in [(&not, false), (&safe, true)] {
            for part in keys.chunks(KEYS) {
                let keys = part.to_vec();
                self.events.push(if good { EventKind::WindowSafe { keys } } else { EventKind::WindowUnsafe { keys } });
            }
        }
        safe.clear();
        not.clear();
        (self.events.first, self.events.second) = (safe, not);
    }

    fn tell_slot(&mut self, slot: u32, run: u32, end: u32, safe: &mut Vec<PageKey>, not: &mut Vec<PageKey>) {
        let now = run >= self.need_at(end);
        let before = self.slots.flags(slot) & flag::SAFE != 0;
        if now && !before {
            self.slots.change_flags(slot, flag::SAFE, 0);
            safe.push(*self.slots.key(slot));
        } else if !now && before {
            self.slots.change_flags(slot, 0, flag::SAFE);
            not.push(*self.slots.key(slot));
        }
    }

    /// Boundaries up to `left` pages below page `offset` of `node`, whose windows reach back over the change. Stops at
    /// the next changed slot, which tells its own.
    fn tell_below(
        &mut self,
        node: u32,
        offset: u32,
        run: u32,
        left: u32,
        safe: &mut Vec<PageKey>,
        not: &mut Vec<PageKey>,
    ) {
        let mut stack: SmallVec<[(u32, u32, u32, u32); 8]> = SmallVec::from_slice(&[(node, offset, run, left)]);
        while let Some((node, mut offset, mut run, mut left)) = stack.pop() {
            let mut stopped = false;
            while left > 0 && offset < self.nodes[node].len {
                let slot = self.nodes[node].slot(offset);
                if self.slots.flags(slot) & flag::DIRTY != 0 {
                    stopped = true;
                    break;
                }
                run = if self.slots.swa(slot) != 0 { run + 1 } else { 0 };
                let end = self.nodes[node].depth + offset + 1;
                self.tell_slot(slot, run, end, safe, not);
                offset += 1;
                left -= 1;
                if run == 0 && self.slots.flags(slot) & flag::SAFE == 0 {
                    // A hole that was there before: nothing below reaches back over it.
                    stopped = true;
                    break;
                }
            }
            if stopped || left == 0 {
                continue;
            }
            for child in self.children(node) {
                let first = self.nodes[child].runs[0].start;
                if self.slots.swa(first) != 0 || self.slots.flags(first) & flag::SAFE != 0 {
                    stack.push((child, 0, run, left));
                }
            }
        }
    }

    fn offset_of(&self, node: u32, slot: u32) -> u32 {
        let mut start = 0;
        for r in &self.nodes[node].runs {
            if (r.start..r.start + r.len).contains(&slot) {
                return start + slot - r.start;
            }
            start += r.len;
        }
        unreachable!("a slot is in its node")
    }

    /// Everything that lookups can find now.
    pub(crate) fn snapshot(&self) -> Snapshot {
        let mut pages = Vec::new();
        for (_, root) in self.roots.iter().filter(|(_, r)| r.attached) {
            let mut stack = vec![(root.node, root.key, 0u32)];
            while let Some((id, mut parent, mut run)) = stack.pop() {
                let node = &self.nodes[id];
                let mut end = node.depth;
                for r in &node.runs {
                    for slot in r.start..r.start + r.len {
                        end += 1;
                        let swa = self.slots.swa(slot) != 0;
                        run = if swa { run + 1 } else { 0 };
                        let key = *self.slots.key(slot);
                        let full = self.slots.full(slot) != 0;
                        pages.push(SnapshotPage {
                            key,
                            parent,
                            root: root.key,
                            full,
                            swa,
                            window_safe: run >= self.need_at(end),
                        });
                        parent = key;
                    }
                }
                stack.extend(self.children(id).map(|c| (c, parent, run)));
            }
        }
        Snapshot { number: self.events.next - 1, pages }
    }
}
