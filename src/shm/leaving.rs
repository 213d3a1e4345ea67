//! Values that leave memory for a tier below: chosen as eviction would, but they stay until their new place has them.
//!
//! With [`Store::keep_all`] nothing is evicted to make room. The caller takes what would go next ([`Store::leaving`]), writes
//! it below, and lets it go ([`Leaving::leave`]). A value that was used meanwhile stays. Lookups find it all the time.

use super::index::flag;
use super::ledger::Ledger;
use super::store::{Shared, Store};
use super::values::Pinned;
use std::ops::Deref;
use std::sync::Arc;

/// Values of which one look at the lock takes out.
const BATCH: usize = 32;

/// A value that would be evicted next. It is pinned; dropped without [`Leaving::leave`] it stays, and where nothing else of
/// its extent could go, as if it had been used.
#[derive(Debug)]
pub struct Leaving(Pinned);

impl Leaving {
    /// Forgets it, unless it was used, leased, pinned or deleted since it was chosen. True when its slot is free now.
    pub fn leave(self) -> bool {
        self.0.shared().lock().is_ok_and(|mut ledger| ledger.leave(self.0.object()))
    }
}

impl Deref for Leaving {
    type Target = Pinned;
    fn deref(&self) -> &Pinned {
        &self.0
    }
}

impl Store {
    /// From now on nothing is evicted to make room: `begin` answers `NoRoom` and remembers for which length, and the caller
    /// takes values out. With `false` the store evicts again by itself.
    pub fn keep_all(&self, keep: bool) {
        if let Ok(mut ledger) = self.shared().lock() {
            ledger.keep = keep;
            ledger.wanted = None;
        }
    }

    /// Bytes that no slot takes. As slots have sizes, a value of fewer bytes may find none all the same.
    pub fn free_bytes(&self) -> u64 {
        let capacity = u64::from(self.shared().map.geometry.slabs) * u64::from(self.shared().map.geometry.slab_bytes);
        self.shared().lock().map_or(0, |ledger| capacity.saturating_sub(ledger.slot_bytes))
    }

    /// Whether a value found no room since values were taken out for it.
    pub fn wants_room(&self) -> bool {
        self.shared().lock().is_ok_and(|ledger| ledger.wanted.is_some())
    }

    /// Values that eviction would take next, about `bytes` of them: in order, and where a value found no room although as
    /// much went as it needs, those of whole slabs.
    pub fn leaving(&self, bytes: u64) -> Vec<Leaving> {
        let (mut chosen, mut taken, mut whole) = (Vec::new(), 0, true);
        while whole && taken < bytes {
            let Ok(mut ledger) = self.shared().lock() else { break };
            let before = chosen.len();
            taken += ledger.choose(bytes - taken, BATCH, self.shared(), &mut chosen);
            whole = chosen.len() - before == BATCH;
        }
        chosen
    }
}

/// A length that found no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wanted {
    class: u32,
    /// Bytes that went in order since.
    spent: u64,
}

impl Ledger {
    /// A value of this class found no room.
    pub(super) fn want(&mut self, class: u32) {
        if self.wanted.is_none_or(|wanted| wanted.class != class) {
            self.wanted = Some(Wanted { class, spent: 0 });
        }
    }

    /// A value of this class found room.
    pub(super) fn found(&mut self, class: u32) {
        if self.wanted.is_some_and(|wanted| wanted.class == class) {
            self.wanted = None;
        }
    }

    /// Adds up to `most` values of about `bytes` to `chosen`; returns their bytes.
    fn choose(&mut self, bytes: u64, most: usize, shared: &Arc<Shared>, chosen: &mut Vec<Leaving>) -> u64 {
        if let Some(Wanted { class, spent }) = self.wanted {
            let slabs = self.map.classes.shape(class).slabs;
            if !self.spans.has(class) || spent >= u64::from(slabs) * u64::from(self.map.geometry.slab_bytes) {
                self.wanted = None;
                let objects = self.run_to_empty(slabs).map_or(Vec::new(), |run| self.objects_of_run(run, slabs));
                if !objects.is_empty() {
                    self.totals.reclaimed_objects += objects.len() as u64;
                    return objects.into_iter().filter_map(|object| self.take(object, shared, chosen)).sum();
                }
            }
        }
        let mut taken = 0;
        for _ in 0..most {
            if taken >= bytes {
                break;
            }
            let Some(victim) = self.extents.victim(&self.index.objects) else { break };
            taken += self.take(victim, shared, chosen).unwrap_or(0);
        }
        if let Some(wanted) = &mut self.wanted {
            wanted.spent += taken;
        }
        taken
    }

    /// Pins an object that nothing holds, and marks it; one with a damaged header is dropped.
    fn take(&mut self, object: u32, shared: &Arc<Shared>, chosen: &mut Vec<Leaving>) -> Option<u64> {
        let place = self.place(&self.index.objects[object]);
        let Ok(header) = self.header(&place) else {
            self.totals.damaged_headers += 1;
            self.delete(object);
            return None;
        };
        self.change(object, |o| {
            o.pins += 1;
            o.flags |= flag::LEAVING;
        });
        let span = self.spans.get(place.slot.span);
        let span = (self.map.geometry.entry_at(span.first), span.word);
        chosen.push(Leaving(Pinned::new(shared.clone(), object, header, &place, span)));
        Some(place.slot_bytes)
    }

    /// Whether a pinned object has no name any more.
    pub(super) fn is_deleted(&self, object: u32) -> bool {
        self.index.objects[object].flags & flag::DELETED != 0
    }

    fn leave(&mut self, object: u32) -> bool {
        let record = &mut self.index.objects[object];
        let unused = record.flags & (flag::LEAVING | flag::DELETED | flag::LEASED) == flag::LEAVING && record.pins == 1;
        record.flags &= !flag::LEAVING;
        if unused {
            self.evict(object);
        }
        unused
    }
}
