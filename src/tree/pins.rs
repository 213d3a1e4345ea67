//! Soft pins: prefixes that go after everything else until their time is over. They never refuse anybody a page.

use super::Tree;
use super::node::Place;
use crate::policy::{NIL, Policy};

/// A pinned prefix.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pin {
    /// Last slot of the node it ends in.
    slot: u32,
    /// Checkpoint that makes it resumable, while there is one.
    ckpt: u32,
    pages: u64,
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
                self.ckpt_order.remove(ckpt);
                self.ckpt_pinned.insert(ckpt);
            }
        }
        let pages = u64::from(self.nodes[node].end());
        self.pinned_pages += pages;
        let pin = Pin { slot: self.nodes[node].last_slot(), ckpt, pages };
        self.change_pins(node, true);
        self.next_pin += 1;
        self.pins.insert((until, self.next_pin), pin);
    }

    /// A pinned checkpoint had to go after all.
    pub(super) fn forget_pinned_ckpt(&mut self, ckpt: u32) {
        self.pins.values_mut().filter(|p| p.ckpt == ckpt).for_each(|p| p.ckpt = NIL);
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

    fn unpin(&mut self, pin: Pin) {
        self.pinned_pages -= pin.pages;
        if pin.ckpt != NIL {
            let c = &mut self.ckpts[pin.ckpt];
            c.pins -= 1;
            if c.pins == 0 {
                self.ckpt_pinned.remove(pin.ckpt);
                self.ckpt_order.insert(pin.ckpt);
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
        let slot = self.nodes[node].last_slot();
        let keys: Vec<_> = self.pins.iter().filter(|(_, p)| p.slot == slot).map(|(&k, _)| k).collect();
        debug_assert!(!keys.is_empty());
        for key in keys {
            let pin = self.pins.remove(&key).expect("listed above");
            self.unpin(pin);
        }
    }

    /// Ends the pins of a namespace that is cleared: they would hold room that nobody profits from.
    pub(super) fn unpin_root(&mut self, root: u32) {
        let below = |p: &Pin| self.nodes[self.slots.node(p.slot)].root == root;
        let keys: Vec<_> = self.pins.iter().filter(|(_, p)| below(p)).map(|(&k, _)| k).collect();
        for key in keys {
            let pin = self.pins.remove(&key).expect("listed above");
            self.unpin(pin);
        }
    }

    /// Time goes on: pins whose time is over end.
    pub(crate) fn set_now(&mut self, now: u64) {
        self.now = self.now.max(now);
        while let Some(entry) = self.pins.first_entry() {
            if entry.key().0 > self.now {
                break;
            }
            let pin = entry.remove();
            self.unpin(pin);
        }
    }
}
