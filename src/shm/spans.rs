//! The spans of the file as this process knows them: which slots are free, which object is in the others.
//!
//! What is in the file follows: the caller stores the words. An object is named by its `u32` id of the index.

use super::layout::{Geometry, PAGE_BYTES};
use super::runs::Runs;
use super::span::SpanShape;
use crate::pool::chunk::Arena;

/// No slot, span or class.
pub const NONE: u32 = u32::MAX;
/// Marks a slot as free; the rest is the next free slot of the span.
const FREE: u32 = 1 << 31;
const END: u32 = FREE - 1;

/// Most objects: ids must leave the mark free.
pub const MAX_OBJECTS: u32 = END;

/// One span.
#[derive(Debug)]
pub struct Span {
    /// First slab.
    pub first: u32,
    /// How it is cut.
    pub shape: SpanShape,
    /// Its entry's word in the file.
    pub word: u64,
    /// Class, or [`NONE`] for a shape that this program does not make: it takes no new values.
    pub class: u32,
    /// Slots in use.
    pub used: u32,
    /// Slots in use that cannot be evicted now.
    pub held: u32,
    /// When a value in it was used last, in ticks of the store.
    pub tick: u64,
    slots: Box<[u32]>,
    free: u32,
    listed: u32,
}

/// A slot, by span and number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot {
    /// Id of the span.
    pub span: u32,
    /// Number within it.
    pub slot: u32,
}

/// All spans, and the slabs that belong to none.
#[derive(Debug)]
pub struct Spans {
    geometry: Geometry,
    spans: Arena<Span>,
    of_slab: Vec<u32>,
    /// For each class the spans with a free slot.
    open: Vec<Vec<u32>>,
    /// For each class the number of spans.
    count: Vec<u32>,
    /// Slots of all spans.
    slots: u64,
    /// Slabs of no span.
    pub runs: Runs,
}

impl Spans {
    /// No spans: every slab is free.
    pub fn new(geometry: Geometry, classes: usize) -> Spans {
        let mut runs = Runs::default();
        runs.give(0, geometry.slabs);
        let of_slab = vec![NONE; geometry.slabs as usize];
        let (open, count) = (vec![Vec::new(); classes], vec![0; classes]);
        Spans { geometry, spans: Arena::default(), of_slab, open, count, slots: 0, runs }
    }

    /// The span with this id.
    pub fn get(&self, span: u32) -> &Span {
        &self.spans[span]
    }

    /// The span with this id.
    pub fn get_mut(&mut self, span: u32) -> &mut Span {
        &mut self.spans[span]
    }

    /// The span that a slab belongs to.
    pub fn at_slab(&self, slab: u32) -> Option<u32> {
        Some(self.of_slab[slab as usize]).filter(|s| *s != NONE)
    }

    /// Ids and spans.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &Span)> {
        self.spans.iter()
    }

    /// Whether a class has spans.
    pub fn has(&self, class: u32) -> bool {
        self.count[class as usize] > 0
    }

    /// Enters a span whose slabs were taken from the runs; all its slots are free.
    pub fn add(&mut self, first: u32, shape: SpanShape, class: u32, word: u64) -> u32 {
        let next = |n: u32| FREE | if n + 1 < shape.slots { n + 1 } else { END };
        let slots = (0..shape.slots).map(next).collect();
        let span = Span { first, shape, word, class, used: 0, held: 0, tick: 0, slots, free: 0, listed: NONE };
        let id = self.spans.insert(span);
        self.slots += u64::from(shape.slots);
        self.of_slab[first as usize..(first + shape.slabs) as usize].fill(id);
        if class != NONE {
            self.count[class as usize] += 1;
        }
        self.list(id);
        id
    }

    /// Takes an empty span out and gives its slabs back.
    pub fn remove(&mut self, id: u32) {
        self.unlist(id);
        let span = self.spans.remove(id);
        self.slots -= u64::from(span.shape.slots);
        debug_assert_eq!((span.used, span.held), (0, 0));
        if span.class != NONE {
            self.count[span.class as usize] -= 1;
        }
        self.of_slab[span.first as usize..(span.first + span.shape.slabs) as usize].fill(NONE);
        self.runs.give(span.first, span.shape.slabs);
    }

    /// A span of a class with a free slot.
    pub fn open(&self, class: u32) -> Option<u32> {
        self.open[class as usize].last().copied()
    }

    /// The next free slot of a span that has one.
    pub fn next_free(&self, span: u32) -> Slot {
        Slot { span, slot: self.spans[span].free }
    }

    /// Puts an object into the next free slot of a span that has one.
    pub fn occupy(&mut self, id: u32, object: u32) -> Slot {
        let span = &mut self.spans[id];
        let slot = span.free;
        span.free = span.slots[slot as usize] & !FREE;
        span.slots[slot as usize] = object;
        span.used += 1;
        if span.free == END {
            self.unlist(id);
        }
        Slot { span: id, slot }
    }

    /// Puts an object into any slot, on recovery; [`Spans::relink`] must follow.
    pub fn place(&mut self, at: Slot, object: u32) {
        let span = &mut self.spans[at.span];
        span.slots[at.slot as usize] = object;
        span.used += 1;
    }

    /// Links the free slots of a span anew, the first one first.
    pub fn relink(&mut self, id: u32) {
        self.unlist(id);
        let span = &mut self.spans[id];
        span.free = END;
        for (n, slot) in span.slots.iter_mut().enumerate().rev().filter(|(_, s)| **s & FREE != 0) {
            *slot = FREE | span.free;
            span.free = n as u32;
        }
        if span.free != END {
            self.list(id);
        }
    }

    /// Frees a slot. The caller removes a span that is empty then.
    pub fn vacate(&mut self, at: Slot) {
        let span = &mut self.spans[at.span];
        debug_assert!(span.slots[at.slot as usize] & FREE == 0);
        let was_full = span.free == END;
        span.slots[at.slot as usize] = FREE | span.free;
        span.free = at.slot;
        span.used -= 1;
        if was_full {
            self.list(at.span);
        }
    }

    /// The object in a slot.
    pub fn object(&self, at: Slot) -> Option<u32> {
        Some(self.spans[at.span].slots[at.slot as usize]).filter(|o| o & FREE == 0)
    }

    /// The objects in a span.
    pub fn objects(&self, span: u32) -> impl Iterator<Item = u32> + '_ {
        self.spans[span].slots.iter().copied().filter(|o| o & FREE == 0)
    }

    /// The page of the file at which a slot starts: its short name.
    pub fn page_of(&self, at: Slot) -> u32 {
        let span = &self.spans[at.span];
        (span.shape.slot_at(&self.geometry, span.first, at.slot) / PAGE_BYTES) as u32
    }

    /// The slot that starts at a page.
    pub fn slot_of(&self, page: u32) -> Slot {
        let from_slabs = page - (self.geometry.slabs_at / PAGE_BYTES) as u32;
        let id = self.of_slab[(from_slabs / self.geometry.slab_pages()) as usize];
        let span = &self.spans[id];
        let in_span = from_slabs - span.first * self.geometry.slab_pages() - u32::from(span.shape.header_pages);
        Slot { span: id, slot: in_span / span.shape.slot_pages }
    }

    /// Bytes of this process that the spans take.
    pub fn bytes(&self) -> u64 {
        self.spans.bytes() + size_of::<u32>() as u64 * (self.slots + self.of_slab.len() as u64)
    }

    fn list(&mut self, id: u32) {
        let class = self.spans[id].class;
        if class != NONE && self.spans[id].listed == NONE {
            self.spans[id].listed = self.open[class as usize].len() as u32;
            self.open[class as usize].push(id);
        }
    }

    fn unlist(&mut self, id: u32) {
        let (class, listed) = (self.spans[id].class, self.spans[id].listed);
        if listed == NONE {
            return;
        }
        let open = &mut self.open[class as usize];
        open.swap_remove(listed as usize);
        if let Some(&moved) = open.get(listed as usize) {
            self.spans[moved].listed = listed;
        }
        self.spans[id].listed = NONE;
    }

    /// Compares lists, counts and slabs.
    pub fn check(&self) -> Result<(), String> {
        self.runs.check()?;
        let mut owner = vec![NONE; self.of_slab.len()];
        let mut count = vec![0; self.count.len()];
        for (id, span) in self.spans.iter() {
            let slabs = span.first as usize..(span.first + span.shape.slabs) as usize;
            if !span.shape.fits(&self.geometry, span.first) || owner[slabs.clone()].iter().any(|o| *o != NONE) {
                return Err(format!("span {id} at slab {} overlaps another or does not fit", span.first));
            }
            owner[slabs].fill(id);
            let (mut free, mut at) = (0, span.free);
            while at != END && free <= span.shape.slots {
                free += 1;
                let link = *span.slots.get(at as usize).ok_or(format!("span {id} lists slot {at} as free"))?;
                if link & FREE == 0 {
                    return Err(format!("span {id} lists slot {at} as free, which has object {link}"));
                }
                at = link & !FREE;
            }
            let used = span.slots.iter().filter(|o| **o & FREE == 0).count() as u32;
            if (used, used + free) != (span.used, span.shape.slots) || span.held > used || used == 0 {
                return Err(format!("span {id} has {used} objects, {free} free slots and counts {span:?}"));
            }
            let open = span.class != NONE && free > 0;
            let listed = span.class != NONE
                && self.open[span.class as usize].get(span.listed as usize).is_some_and(|s| *s == id);
            if open != listed || (span.listed == NONE) == open {
                return Err(format!("span {id} has {free} free slots; listed as open: {listed}"));
            }
            if span.class != NONE {
                count[span.class as usize] += 1;
            }
        }
        for (start, len) in self.runs.iter() {
            let slabs = start as usize..(start + len) as usize;
            if slabs.end > owner.len() || owner[slabs.clone()].iter().any(|o| *o != NONE) {
                return Err(format!("the free run at slab {start} of {len} overlaps a span"));
            }
        }
        let taken = owner.iter().filter(|o| **o != NONE).count() as u32;
        if owner != self.of_slab || count != self.count || taken + self.runs.free() != self.geometry.slabs {
            return Err(format!("{taken} slabs in spans and {} free of {}", self.runs.free(), self.geometry.slabs));
        }
        let listed: usize = self.open.iter().map(Vec::len).sum();
        let open = self.spans.iter().filter(|(_, s)| s.listed != NONE).count();
        if listed == open { Ok(()) } else { Err(format!("{listed} spans listed as open, {open} know of it")) }
    }
}
