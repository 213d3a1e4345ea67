//! `check_integrity`: everything that can be recomputed, recomputed, and the file compared with what this process knows.

use super::index::{NIL, flag};
use super::layout::{Word, state};
use super::ledger::Ledger;
use super::span::SpanShape;
use super::spans::Slot;

macro_rules! ensure {
    ($cond:expr, $($arg:tt)*) => {
        if !$cond { return Err(format!($($arg)*)); }
    };
}

impl Ledger {
    pub(super) fn check(&self) -> Result<(), String> {
        self.spans.check()?;
        self.leases.check()?;
        self.extents.check(&self.index.objects)?;
        let listed = self.index.check()?;
        let (mut writers, mut slot_bytes, mut held, mut count) = (0, 0, 0, 0);
        for (id, o) in self.index.objects.iter() {
            let place = self.place(o);
            ensure!(self.spans.object(place.slot) == Some(id), "object {id} is not in its slot {:?}", place.slot);
            ensure!(o.flags & flag::LEASED == 0 || self.leases.has(id), "object {id} is marked as leased");
            ensure!((o.extent == NIL) != o.is_listed(), "object {id} has extent {}, flags {:b}", o.extent, o.flags);
            writers += usize::from(o.flags & flag::WRITING != 0);
            slot_bytes += place.slot_bytes;
            held += u64::from(o.is_held());
            count += 1;
            self.check_header(id, &place)?;
        }
        ensure!(count == self.index.objects.len(), "{count} objects, {} records", self.index.objects.len());
        ensure!(writers == self.writing.len(), "{writers} slots being written, {} writers", self.writing.len());
        ensure!(listed as u64 == self.listed, "{listed} objects under keys, {} counted", self.listed);
        ensure!(slot_bytes == self.slot_bytes, "{slot_bytes} bytes of slots, {} counted", self.slot_bytes);
        ensure!(held == self.held, "{held} slots held, {} counted", self.held);
        self.check_spans()?;
        self.check_table()
    }

    fn check_header(&self, id: u32, place: &super::ledger::Place) -> Result<(), String> {
        let o = &self.index.objects[id];
        let word = Word(self.map.region.load(place.header_at));
        let expected = match (o.flags & flag::WRITING != 0, o.flags & flag::DELETED != 0) {
            (true, _) => state::WRITING,
            (_, true) => state::FREE,
            _ => state::COMMITTED,
        };
        ensure!(word.state() == expected, "object {id} has state {:x} in the file, not {expected:x}", word.state());
        if expected == state::COMMITTED {
            let h = self.header(place).map_err(|_| format!("the header of object {id} is damaged"))?;
            let put = &h.meta.put;
            ensure!(self.find(put.tenant, &put.id) == Some(id), "object {id} is not found by its header's name");
            ensure!((put.id.part, put.page_index) == (o.part, o.page), "object {id} and its header differ");
            ensure!(h.meta.generation >> 32 <= u64::from(self.epoch), "object {id} is of a later epoch");
        }
        Ok(())
    }

    /// Counts of the spans, and the words of slots without an object.
    fn check_spans(&self) -> Result<(), String> {
        for (id, span) in self.spans.iter() {
            let held = self.spans.objects(id).filter(|o| self.index.objects[*o].is_held()).count() as u32;
            ensure!(held == span.held, "span {id} counts {} slots held and has {held}", span.held);
            for slot in 0..span.shape.slots {
                let at = span.shape.header_at(&self.map.geometry, span.first, slot);
                let word = Word(self.map.region.load(at));
                let taken = self.spans.object(Slot { span: id, slot }).is_some();
                ensure!(
                    taken || word.state() == state::FREE,
                    "free slot {slot} of span {id} has state {:x}",
                    word.state()
                );
            }
        }
        Ok(())
    }

    /// The slab table of the file.
    fn check_table(&self) -> Result<(), String> {
        let g = &self.map.geometry;
        for slab in 0..g.slabs {
            let words = std::array::from_fn(|n| self.map.region.load(g.entry_at(slab) + 8 * n as u64));
            let found =
                SpanShape::decode(words, g, slab).map_err(|_| format!("the entry of slab {slab} is damaged"))?;
            let known = self.spans.at_slab(slab).map(|s| self.spans.get(s)).filter(|s| s.first == slab);
            let same = found == known.map(|s| s.shape) && known.is_none_or(|s| s.word == words[0]);
            ensure!(same, "slab {slab} has {found:?} in the file and {known:?} here");
        }
        Ok(())
    }
}
