//! Reading a file back: entries of the slab table and slot headers, no values. Whatever fails a check is dropped and
//! counted; nothing that is read decides a size or position before it was checked.

use super::config::Recovery;
use super::header::Header;
use super::index::{Object, flag};
use super::layout::{LONG_HEADER_BYTES, Word, state};
use super::ledger::Ledger;
use super::span::SpanShape;
use super::spans::{NONE, Slot};

impl Ledger {
    /// Enters everything that is committed in the file into an empty ledger, ordered as it was committed.
    pub(super) fn recover(&mut self, found: &mut Recovery) {
        let mut ages: Vec<(u64, u32)> = Vec::new();
        let mut taken = Vec::new();
        let mut slab = 0;
        while slab < self.map.geometry.slabs {
            match self.read_entry(slab) {
                Ok(None) => slab += 1,
                Ok(Some(shape)) => {
                    taken.push((slab, shape));
                    let inside = slab + 1..slab + shape.slabs;
                    let strays = inside.filter(|s| self.read_entry(*s) != Ok(None)).collect::<Vec<_>>();
                    found.damaged_spans += strays.len() as u64;
                    strays.into_iter().for_each(|s| self.free_entry(s));
                    slab += shape.slabs;
                }
                Err(_) => {
                    found.damaged_spans += 1;
                    self.free_entry(slab);
                    slab += 1;
                }
            }
        }
        self.take_slabs(&taken);
        for (first, shape) in taken {
            self.recover_span(first, shape, &mut ages, found);
        }
        ages.sort_unstable();
        for (_, object) in ages {
            self.change(object, |o| o.flags &= !flag::WRITING);
            self.refresh(object);
        }
    }

    fn read_entry(&self, slab: u32) -> Result<Option<SpanShape>, super::span::Damaged> {
        let at = self.map.geometry.entry_at(slab);
        let words = std::array::from_fn(|n| self.map.region.load(at + 8 * n as u64));
        SpanShape::decode(words, &self.map.geometry, slab)
    }

    fn free_entry(&self, slab: u32) {
        self.map.region.store(self.map.geometry.entry_at(slab), Word::new(0, state::FREE).0);
    }

    /// Leaves only slabs outside all spans in the runs. `taken` rises.
    fn take_slabs(&mut self, taken: &[(u32, SpanShape)]) {
        let all = self.map.geometry.slabs;
        self.spans.runs.take(all);
        let mut end = 0;
        for &(first, SpanShape { slabs, .. }) in taken.iter().chain([&(all, END)]) {
            if first > end {
                self.spans.runs.give(end, first - end);
            }
            end = first + slabs;
        }
    }

    fn recover_span(&mut self, first: u32, shape: SpanShape, ages: &mut Vec<(u64, u32)>, found: &mut Recovery) {
        let g = self.map.geometry;
        let class = self.map.classes.of_shape(&shape).unwrap_or(NONE);
        let word = self.map.region.load(g.entry_at(first));
        let span = self.spans.add(first, shape, class, word);
        for slot in 0..shape.slots {
            let at = shape.header_at(&g, first, slot);
            let word = Word(self.map.region.load(at));
            match word.state() {
                state::FREE => continue,
                state::COMMITTED => match self.read_header(at, &shape) {
                    Some(header) if self.recover_object(Slot { span, slot }, &header, ages) => {
                        found.objects += 1;
                        found.value_bytes += header.meta.put.len;
                        continue;
                    }
                    Some(_) => found.duplicates += 1,
                    None => found.damaged_headers += 1,
                },
                state::WRITING => found.unfinished += 1,
                _ => found.damaged_headers += 1,
            }
            self.map.region.store(at, Word::new(word.generation(), state::FREE).0);
        }
        self.spans.relink(span);
        if self.spans.get(span).used == 0 {
            self.dissolve(span);
        }
    }

    fn read_header(&self, at: u64, shape: &SpanShape) -> Option<Header> {
        let mut bytes = [0; LONG_HEADER_BYTES as usize];
        let bytes = &mut bytes[..shape.stride() as usize];
        self.map.region.read(at, bytes);
        let header = Header::decode(bytes, shape.slot_bytes()).ok()?;
        // This process raised the epoch, so everything in the file is older.
        (header.meta.generation >> 32 < u64::from(self.epoch)).then_some(header)
    }

    /// False when an object of this name is there already.
    fn recover_object(&mut self, at: Slot, header: &Header, ages: &mut Vec<(u64, u32)>) -> bool {
        let put = &header.meta.put;
        let name = self.name(put);
        if name.1.is_some_and(|key| self.index.part(key, put.id.part).is_some()) {
            return false;
        }
        // As if a writer were about to publish it, until its turn by age comes.
        let record = Object::new(self.spans.page_of(at), flag::LIVE | flag::WRITING);
        let Some(object) = self.index.objects.insert(record) else { return false };
        self.spans.place(at, object);
        self.hold(at.span);
        self.slot_bytes += self.spans.get(at.span).shape.slot_bytes();
        self.enter(object, put, name);
        ages.push((header.meta.generation, object));
        true
    }
}

/// What comes after the last slab.
const END: SpanShape = SpanShape { slot_pages: 1, slots: 1, slabs: 0, header_pages: 0 };
