//! The store's bookkeeping, single-threaded: which object is where, who holds it, what goes next. [`super::store`] puts a
//! lock around it. Each method leaves file and memory consistent; the order of its stores is that of `docs/format.md`.

use super::header::{Header, NAME_WORDS};
use super::index::{Index, NIL, Object, flag};
use super::layout::{LONG_HEADER_BYTES, Word, state};
use super::lease::Leases;
use super::leaving::Wanted;
use super::mapped::Mapped;
use super::object::{ChainKey, ObjectId, PutMeta};
use super::order::Extents;
use super::span::Damaged;
use super::spans::{Slot, Spans};
use super::stats::Totals;
use super::store::LeaseOwner;
use super::superblock::{EPOCH_AT, MAX_EPOCH, epoch_word};
use foldhash::HashSet;
use smallvec::SmallVec;
use std::sync::Arc;

/// Everything behind the store's lock.
#[derive(Debug)]
pub struct Ledger {
    pub(super) map: Arc<Mapped>,
    pub(super) spans: Spans,
    pub(super) index: Index,
    pub(super) extents: Extents,
    pub(super) leases: Leases,
    /// Objects that have a writer.
    pub(super) writing: HashSet<(u64, ObjectId)>,
    pub(super) totals: Totals,
    pub(super) epoch: u32,
    counter: u32,
    tick: u64,
    /// Objects that lookups find.
    pub(super) listed: u64,
    /// Bytes of slots in use.
    pub(super) slot_bytes: u64,
    /// Slots in use that cannot be evicted now.
    pub(super) held: u64,
    /// Nothing is evicted to make room; see [`super::leaving`].
    pub(super) keep: bool,
    /// What found no room since then.
    pub(super) wanted: Option<Wanted>,
}

/// Where an object is in the file.
#[derive(Debug, Clone, Copy)]
pub struct Place {
    /// Its slot.
    pub slot: Slot,
    /// Position of the slot's header.
    pub header_at: u64,
    /// Position of the value.
    pub value_at: u64,
    /// Distance to the next header.
    pub stride: u64,
    /// Bytes of the slot.
    pub slot_bytes: u64,
}

/// A slot that was given to a writer.
#[derive(Debug, Clone, Copy)]
pub struct Opened {
    /// The object's id.
    pub object: u32,
    /// Where it is.
    pub place: Place,
    /// Its generation.
    pub generation: u64,
}

/// Answer of [`Ledger::begin`].
#[derive(Debug)]
pub enum Answer {
    /// It is there.
    Present,
    /// It has a writer.
    Busy,
    /// No slot can be had now.
    NoRoom,
    /// A slot.
    Opened(Opened),
}

impl Ledger {
    /// An empty ledger over a file of this epoch.
    pub fn new(map: Arc<Mapped>, epoch: u32, lease_bytes: u64) -> Ledger {
        let spans = Spans::new(map.geometry, map.classes.len());
        let (leases, extents) = (Leases::new(lease_bytes), Extents::new());
        let (index, writing, totals) = (Index::new(), HashSet::default(), Totals::default());
        let (counter, tick, listed, slot_bytes, held, keep, wanted) = (0, 0, 0, 0, 0, false, None);
        Ledger {
            map,
            spans,
            index,
            extents,
            leases,
            writing,
            totals,
            epoch,
            counter,
            tick,
            listed,
            slot_bytes,
            held,
            keep,
            wanted,
        }
    }

    /// A number that the file has not seen.
    pub(super) fn next_generation(&mut self) -> u64 {
        if self.counter == u32::MAX {
            // Attaching is refused while a thousand epochs are left, each good for four billion generations.
            assert!(self.epoch < MAX_EPOCH, "generations of the file are used up");
            self.epoch += 1;
            self.counter = 0;
            self.map.region.store(EPOCH_AT, epoch_word(self.epoch));
        }
        self.counter += 1;
        u64::from(self.epoch) << 32 | u64::from(self.counter)
    }

    /// Where an object is.
    pub fn place(&self, object: &Object) -> Place {
        let slot = self.spans.slot_of(object.at);
        let span = self.spans.get(slot.span);
        let g = &self.map.geometry;
        Place {
            slot,
            header_at: span.shape.header_at(g, span.first, slot.slot),
            value_at: span.shape.slot_at(g, span.first, slot.slot),
            stride: span.shape.stride(),
            slot_bytes: span.shape.slot_bytes(),
        }
    }

    /// Reads and checks the header of a slot.
    pub fn header(&self, place: &Place) -> Result<Header, Damaged> {
        let mut bytes = [0; LONG_HEADER_BYTES as usize];
        let bytes = &mut bytes[..place.stride as usize];
        self.map.region.read(place.header_at, bytes);
        Header::decode(bytes, place.slot_bytes)
    }

    fn is_named(&self, object: &Object, tenant: u64, key: &ChainKey) -> bool {
        let at = self.place(object).header_at;
        let name = std::iter::once(tenant)
            .chain(key.chunks_exact(8).map(|b| u64::from_le_bytes(b.try_into().expect("eight bytes"))));
        NAME_WORDS.zip(name).all(|(n, word)| self.map.region.load(at + 8 * n as u64) == word)
    }

    /// The entry of a key.
    pub fn key(&self, tenant: u64, key: &ChainKey) -> Option<u32> {
        self.index.find(self.index.hash(tenant, key), |o| self.is_named(o, tenant, key))
    }

    /// The object of this name.
    pub fn find(&self, tenant: u64, id: &ObjectId) -> Option<u32> {
        if id.part >= super::object::MAX_PARTS {
            return None;
        }
        self.index.part(self.key(tenant, &id.key)?, id.part)
    }

    /// The object of this name with its header.
    ///
    /// # Errors
    /// Its header is damaged; it was dropped and counted.
    pub fn find_checked(&mut self, tenant: u64, id: &ObjectId) -> Result<Option<(u32, Place, Header)>, Damaged> {
        let Some(object) = self.find(tenant, id) else { return Ok(None) };
        let place = self.place(&self.index.objects[object]);
        match self.header(&place) {
            Ok(h) if h.meta.put.id == *id && h.meta.put.tenant == tenant => Ok(Some((object, place, h))),
            _ => {
                self.totals.damaged_headers += 1;
                self.delete(object);
                Err(Damaged)
            }
        }
    }

    /// An object was used now.
    pub fn refresh(&mut self, object: u32) {
        let record = &mut self.index.objects[object];
        record.flags &= !flag::LEAVING;
        let Object { at, extent, .. } = *record;
        self.tick += 1;
        let span = self.spans.slot_of(at).span;
        self.spans.get_mut(span).tick = self.tick;
        self.extents.refresh(extent);
    }

    /// A slot for a new object, after making room where needed. `class` is that of its length.
    pub fn begin(&mut self, meta: &PutMeta, class: u32) -> Answer {
        if let Some(object) = self.find(meta.tenant, &meta.id) {
            if meta.superseded {
                self.supersede(object);
            }
            self.refresh(object);
            self.totals.present += 1;
            return Answer::Present;
        }
        if self.writing.contains(&(meta.tenant, meta.id)) {
            self.totals.busy += 1;
            return Answer::Busy;
        }
        let Some(opened) = self.find_room(class).and_then(|span| self.open_slot(span)) else {
            self.totals.no_room += 1;
            return Answer::NoRoom;
        };
        self.writing.insert((meta.tenant, meta.id));
        Answer::Opened(opened)
    }

    fn open_slot(&mut self, span: u32) -> Option<Opened> {
        let at = self.spans.page_of(self.spans.next_free(span));
        let record = Object::new(at, flag::LIVE | flag::WRITING);
        let object = self.index.objects.insert(record)?;
        self.spans.occupy(span, object);
        self.slot_bytes += self.spans.get(span).shape.slot_bytes();
        self.tick += 1;
        self.spans.get_mut(span).tick = self.tick;
        self.hold(span);
        let generation = self.next_generation();
        let place = self.place(&record);
        self.map.region.store(place.header_at, Word::new(generation, state::WRITING).0);
        Some(Opened { object, place, generation })
    }

    /// Publishes an object whose bytes and header, but for the word, are stored.
    pub fn publish(&mut self, opened: &Opened, meta: &PutMeta) {
        let word = Word::new(opened.generation, state::COMMITTED).0;
        self.map.region.store(opened.place.header_at, word);
        self.writing.remove(&(meta.tenant, meta.id));
        self.enter(opened.object, meta, self.name(meta));
        self.change(opened.object, |o| o.flags &= !flag::WRITING);
        self.refresh(opened.object);
        self.totals.committed += 1;
    }

    /// The hash of an object's key, and the key's entry where there is one.
    pub(super) fn name(&self, meta: &PutMeta) -> (u64, Option<u32>) {
        let hash = self.index.hash(meta.tenant, &meta.id.key);
        (hash, self.index.find(hash, |o| self.is_named(o, meta.tenant, &meta.id.key)))
    }

    /// Lists an object under its name and extent. It is not in the order yet.
    pub(super) fn enter(&mut self, object: u32, meta: &PutMeta, (hash, key): (u64, Option<u32>)) {
        let extent = self.extents.enter(self.index.hash(meta.tenant, &meta.extent));
        let record = &mut self.index.objects[object];
        (record.part, record.page, record.extent) = (meta.id.part, meta.page_index, extent);
        if meta.superseded {
            record.flags |= flag::SUPERSEDED;
        }
        self.index.list(hash, key, object);
        self.listed += 1;
    }

    /// Gives the slot of a writer back.
    pub fn abort(&mut self, opened: &Opened, meta: &PutMeta) {
        self.free_word(opened.place.header_at);
        self.writing.remove(&(meta.tenant, meta.id));
        self.release(opened.place.slot.span);
        self.forget(opened.object);
        self.totals.aborted += 1;
    }

    /// Adds a pin; false when the object has as many as can be counted.
    pub fn pin(&mut self, object: u32) -> bool {
        if self.index.objects[object].pins == u16::MAX {
            return false;
        }
        self.change(object, |o| o.pins += 1);
        true
    }

    /// Takes a pin off. One that was deleted meanwhile goes with its last.
    pub fn unpin(&mut self, object: u32) {
        self.change(object, |o| o.pins -= 1);
        let Object { pins, flags, at, .. } = self.index.objects[object];
        if pins == 0 && flags & flag::DELETED != 0 {
            self.release(self.spans.slot_of(at).span);
            self.forget(object);
        }
    }

    /// Leases all parts of a key; false when the limit does not allow it.
    pub fn lease(&mut self, key: u32, owner: LeaseOwner, end: u64) -> bool {
        let bytes = |object| (object, self.place(&self.index.objects[object]).slot_bytes);
        let parts: SmallVec<[(u32, u64); 4]> = self.index.parts(key).map(bytes).collect();
        let granted = self.leases.grant(&parts, owner, end);
        for (object, _) in parts.into_iter().filter(|_| granted) {
            self.change(object, |o| o.flags |= flag::LEASED);
        }
        granted
    }

    /// Ends up to `most` leases whose time is over; false when there may be more.
    pub fn expire(&mut self, now: u64, most: usize) -> bool {
        self.end_leases(most, |leases| leases.expire_one(now))
    }

    /// Ends up to `most` leases of an owner; false when there may be more.
    pub fn release_owner(&mut self, owner: LeaseOwner, most: usize) -> bool {
        self.end_leases(most, |leases| leases.release_one(owner))
    }

    fn end_leases(&mut self, most: usize, mut end: impl FnMut(&mut Leases) -> Option<(u32, bool)>) -> bool {
        for _ in 0..most {
            let Some((object, last)) = end(&mut self.leases) else { return true };
            if last {
                self.change(object, |o| o.flags &= !flag::LEASED);
            }
        }
        false
    }

    fn supersede(&mut self, object: u32) {
        let held = self.index.objects[object].is_held();
        if self.index.objects[object].flags & flag::SUPERSEDED == 0 {
            if !held {
                self.extents.remove(&mut self.index.objects, object);
            }
            self.index.objects[object].flags |= flag::SUPERSEDED;
            if !held {
                self.extents.insert(&mut self.index.objects, object);
            }
        }
    }

    /// Forgets a listed object, in the file first. Its slot stays until its last pin is gone.
    pub fn delete(&mut self, object: u32) {
        let record = self.index.objects[object];
        let place = self.place(&record);
        self.free_word(place.header_at);
        self.index.unlist(object);
        self.listed -= 1;
        self.leases.forget(object);
        if !record.is_held() {
            self.extents.remove(&mut self.index.objects, object);
        }
        self.extents.leave(record.extent);
        let now = &mut self.index.objects[object];
        now.extent = NIL;
        now.flags &= !flag::LEASED;
        if record.pins > 0 {
            now.flags |= flag::DELETED;
        } else {
            if record.is_held() {
                self.release(place.slot.span);
            }
            self.forget(object);
        }
    }

    /// Changes what holds an object, and its place in the order accordingly.
    pub(super) fn change(&mut self, object: u32, how: impl FnOnce(&mut Object)) {
        let record = &mut self.index.objects[object];
        let before = record.is_held();
        how(record);
        let (after, at) = (record.is_held(), record.at);
        if before != after {
            let span = self.spans.slot_of(at).span;
            if after {
                self.hold(span);
                self.extents.remove(&mut self.index.objects, object);
            } else {
                self.release(span);
                self.extents.insert(&mut self.index.objects, object);
            }
        }
    }

    pub(super) fn hold(&mut self, span: u32) {
        self.spans.get_mut(span).held += 1;
        self.held += 1;
    }

    fn release(&mut self, span: u32) {
        self.spans.get_mut(span).held -= 1;
        self.held -= 1;
    }

    fn free_word(&self, header_at: u64) {
        let generation = Word(self.map.region.load(header_at)).generation();
        self.map.region.store(header_at, Word::new(generation, state::FREE).0);
    }

    /// Gives the record and slot of an object back that nothing refers to any more, and the span when it is empty.
    fn forget(&mut self, object: u32) {
        let slot = self.spans.slot_of(self.index.objects[object].at);
        self.index.objects.remove(object);
        self.slot_bytes -= self.spans.get(slot.span).shape.slot_bytes();
        self.spans.vacate(slot);
        if self.spans.get(slot.span).used == 0 {
            self.dissolve(slot.span);
        }
    }
}
