//! Making room: free slots, free slabs, eviction in order, and eviction of whole slabs.
//!
//! Victims in order free slots of any class, in any span. When as many bytes went as a span of the wanted class has and
//! still no slot of it is free, a run of slabs is emptied instead: near the oldest values first, and where those are
//! held, anywhere. So whatever was stored before, a value of any class finds room unless pins, leases and writers hold a
//! slab in every run that is long enough.

use super::layout::{Word, state};
use super::ledger::Ledger;
use super::spans::{NONE, Span};
use std::collections::VecDeque;

/// Extents in whose neighbourhood a run is looked for before the whole file is.
const ANCHORS: usize = 8;

impl Ledger {
    /// A span of the class with a free slot.
    pub(super) fn find_room(&mut self, class: u32) -> Option<u32> {
        let shape = self.map.classes.shape(class);
        let budget = u64::from(shape.slabs) * u64::from(self.map.geometry.slab_bytes);
        let mut spent = 0;
        loop {
            if let Some(span) = self.spans.open(class) {
                self.found(class);
                return Some(span);
            }
            if let Some(first) = self.spans.runs.take(shape.slabs) {
                self.found(class);
                return Some(self.make_span(first, class));
            }
            if self.keep {
                self.want(class);
                return None;
            }
            let in_order = self.spans.has(class) && spent < budget;
            match self.extents.victim(&self.index.objects).filter(|_| in_order) {
                Some(victim) => spent += self.evict(victim),
                None => self.empty_run(shape.slabs)?,
            }
        }
    }

    fn make_span(&mut self, first: u32, class: u32) -> u32 {
        let shape = self.map.classes.shape(class);
        let (g, region) = (self.map.geometry, &self.map.region);
        for slot in 0..shape.slots {
            region.store(shape.header_at(&g, first, slot), Word::new(0, state::FREE).0);
        }
        let words = shape.encode(first, self.next_generation());
        for n in [1, 2, 3, 0] {
            self.map.region.store(g.entry_at(first) + 8 * n as u64, words[n]);
        }
        self.spans.add(first, shape, class, words[0])
    }

    /// Writes the entry of a span anew where the file has something else there: bits flipped, since nobody else writes. What
    /// this process knows of the span is the truth, so nothing of it is lost; the entry is what readers in other processes
    /// compare, and what the next process goes by. Killed in between it leaves an entry that is still damaged, or right.
    pub(super) fn mend_entry(&mut self, span: u32) {
        let &Span { first, shape, word, .. } = self.spans.get(span);
        let at = self.map.geometry.entry_at(first);
        let words = shape.encode(first, Word(word).generation());
        if (0..4).all(|n| self.map.region.load(at + 8 * n as u64) == words[n]) {
            return;
        }
        for n in [1, 2, 3, 0] {
            self.map.region.store(at + 8 * n as u64, words[n]);
        }
        self.totals.damaged_entries += 1;
    }

    /// Takes an empty span apart.
    pub(super) fn dissolve(&mut self, span: u32) {
        let (first, word) = (self.spans.get(span).first, Word(self.spans.get(span).word));
        let free = Word::new(word.generation(), state::FREE);
        self.map.region.store(self.map.geometry.entry_at(first), free.0);
        self.spans.remove(span);
    }

    /// Evicts an object and returns the bytes of its slot.
    pub(super) fn evict(&mut self, object: u32) -> u64 {
        let bytes = self.place(&self.index.objects[object]).slot_bytes;
        self.delete(object);
        self.totals.evicted_objects += 1;
        self.totals.evicted_bytes += bytes;
        bytes
    }

    /// Frees `slabs` neighbours by evicting all that is in them.
    fn empty_run(&mut self, slabs: u32) -> Option<()> {
        let first = self.run_to_empty(slabs)?;
        let objects = self.objects_of_run(first, slabs);
        self.totals.reclaimed_objects += objects.len() as u64;
        // A span goes with its last object.
        for object in objects {
            self.evict(object);
        }
        Some(())
    }

    /// First slab of the run to be emptied next, of which nothing is held.
    pub(super) fn run_to_empty(&self, slabs: u32) -> Option<u32> {
        self.coldest_near_oldest(slabs).or_else(|| self.coldest(0, self.map.geometry.slabs, slabs))
    }

    /// Objects of all spans of a run.
    pub(super) fn objects_of_run(&self, first: u32, slabs: u32) -> Vec<u32> {
        let (mut slab, mut objects) = (first, Vec::new());
        while slab < first + slabs {
            let Some(span) = self.spans.at_slab(slab) else {
                slab += 1;
                continue;
            };
            objects.extend(self.spans.objects(span));
            slab = self.spans.get(span).first + self.spans.get(span).shape.slabs;
        }
        objects
    }

    fn coldest_near_oldest(&self, slabs: u32) -> Option<u32> {
        let all = self.map.geometry.slabs;
        self.extents.oldest(&self.index.objects, ANCHORS).into_iter().find_map(|object| {
            let span = self.spans.get(self.spans.slot_of(self.index.objects[object].at).span);
            let end = span.first + span.shape.slabs;
            if span.shape.slabs >= slabs {
                return (span.held == 0).then_some(span.first);
            }
            self.coldest(end.saturating_sub(slabs), (span.first + slabs).min(all), slabs)
        })
    }

    /// Of the runs of `slabs` slabs within [from, to) with nothing held, the one whose latest use is longest ago.
    fn coldest(&self, from: u32, to: u32, slabs: u32) -> Option<u32> {
        let mut best: Option<(u64, u32)> = None;
        let mut held_before = None;
        // Slabs of the run with falling ticks: the first has the latest use.
        let mut latest: VecDeque<(u32, u64)> = VecDeque::new();
        for slab in from..to {
            let span = self.spans.at_slab(slab).map_or(NONE, |s| s);
            let (held, tick) = match span {
                NONE => (false, 0),
                id => (self.spans.get(id).held > 0, self.spans.get(id).tick),
            };
            if held {
                held_before = Some(slab);
            }
            while latest.back().is_some_and(|(_, t)| *t <= tick) {
                latest.pop_back();
            }
            latest.push_back((slab, tick));
            let Some(first) = (slab + 1).checked_sub(slabs).filter(|first| *first >= from) else { continue };
            while latest.front().is_some_and(|(s, _)| *s < first) {
                latest.pop_front();
            }
            let newest = latest.front().map_or(0, |(_, t)| *t);
            if held_before.is_none_or(|h| h < first) && best.is_none_or(|(t, _)| newest < t) {
                best = Some((newest, first));
            }
        }
        best.map(|(_, first)| first)
    }
}
