//! Soft pins: prefixes that go after everything else until their time is over. They never refuse anybody a page.

use super::Tree;
use super::node::Place;
use crate::policy::NIL;
use smallvec::SmallVec;
use std::collections::BTreeSet;

/// When a pin ends, and its number.
pub(super) type PinKey = (u64, u64);
/// Pins that end in one call: those of a whole night do not make one operation slow.
const ENDS: usize = 512;

/// A pinned prefix.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pin {
    /// Last slot of the node it ends in.
    slot: u32,
    /// Checkpoint that makes it resumable, while there is one.
    ckpt: u32,
    pages: u64,
    root: u32,
}

impl Tree {
    /// Room for more pinned pages; a pin counts every page of its prefix, shared or not.
    pub(crate) fn pin_room(&self) -> u64 {
        self.max_pinned.saturating_sub(self.pinned_pages)
    }

    /// Pins the path that ends with `node` until `until`, and the checkpoint at boundary `usable` of it.
    pub(crate) fn pin_path(&mut self, node: u32, usable: u32, until: u64) {
        let ckpt_slot = if usable > 0 && self.need > 0 { self.slot_above(node, usable - 1) } else { NIL };
        let ckpt = if ckpt_slot == NIL { NIL } else { self.slots.ckpt(ckpt_slot) };
        if ckpt != NIL {
            let c = &mut self.ckpts[ckpt];
            c.pins += 1;
            if c.pins == 1 {
                self.disorder_ckpt(ckpt);
                self.ckpt_pinned.insert(ckpt);
            }
        }
        let pages = u64::from(self.nodes[node].end());
        self.pinned_pages += pages;
        let root = self.nodes[node].root;
        let pin = Pin { slot: self.nodes[node].last_slot(), ckpt, pages, root };
        self.change_pins(node, true);
        self.next_pin += 1;
        let key = (until, self.next_pin);
        self.pins.insert(key, pin);
        self.pins_at.insert((pin.slot, key));
        self.pins_in.insert((root, key));
        if ckpt != NIL {
            self.pins_on.insert((ckpt, key));
        }
    }

    /// A pinned checkpoint had to go after all.
    pub(super) fn forget_pinned_ckpt(&mut self, ckpt: u32) {
        for key in keys_of(&self.pins_on, ckpt) {
            self.pins_on.remove(&(ckpt, key));
            self.pins.get_mut(&key).expect("an indexed pin").ckpt = NIL;
        }
    }

    fn change_pins(&mut self, node: u32, add: bool) {
        let mut at = node;
        let mut direct = true;
        loop {
            let n = &mut self.nodes[at];
            let was = n.is_pinned();
            let count = if direct { &mut n.pins } else { &mut n.pinned_children };
            *count = if add { *count + 1 } else { *count - 1 };
            let changed = was != n.is_pinned();
            let parent = n.parent;
            if changed && matches!(n.place, Place::Evictable | Place::Pinned) {
                self.take_from_order(at);
                self.put_in_order(at);
            }
            if !changed || parent == NIL {
                return;
            }
            direct = false;
            at = parent;
        }
    }

    fn unpin(&mut self, key: PinKey) {
        let pin = self.pins.remove(&key).expect("a live pin");
        self.pins_at.remove(&(pin.slot, key));
        self.pins_in.remove(&(pin.root, key));
        self.pinned_pages -= pin.pages;
        if pin.ckpt != NIL {
            self.pins_on.remove(&(pin.ckpt, key));
            let c = &mut self.ckpts[pin.ckpt];
            c.pins -= 1;
            if c.pins == 0 {
                self.ckpt_pinned.remove(pin.ckpt);
                self.ranks += 1;
                self.ckpts[pin.ckpt].rank = self.ranks;
                self.order_ckpt(pin.ckpt);
            }
        }
        let node = self.slots.node(pin.slot);
        self.change_pins(node, false);
        if !self.has_full {
            self.trim_tail(node);
        }
    }

    /// Ends the pins on the end of a node that has to go after all.
    pub(super) fn unpin_node(&mut self, node: u32) {
        let keys = keys_of(&self.pins_at, self.nodes[node].last_slot());
        debug_assert!(!keys.is_empty());
        keys.into_iter().for_each(|key| self.unpin(key));
    }

    /// Ends the pins of a namespace that is cleared: they would hold room that nobody profits from.
    pub(super) fn unpin_root(&mut self, root: u32) {
        keys_of(&self.pins_in, root).into_iter().for_each(|key| self.unpin(key));
    }

    /// Time goes on: pins whose time is over end, a bounded number at a time.
    pub(crate) fn set_now(&mut self, now: u64) {
        self.now = self.now.max(now);
        self.end_pins();
    }

    /// Ends some of the pins whose time is over; false when there are none left.
    pub(crate) fn end_pins(&mut self) -> bool {
        for _ in 0..ENDS {
            let Some(key) = self.pins.first_key_value().map(|(&key, _)| key).filter(|key| key.0 <= self.now) else {
                return false;
            };
            self.unpin(key);
        }
        true
    }
}

fn keys_of(index: &BTreeSet<(u32, PinKey)>, id: u32) -> SmallVec<[PinKey; 4]> {
    index.range((id, (0, 0))..=(id, (u64::MAX, u64::MAX))).map(|&(_, key)| key).collect()
}
