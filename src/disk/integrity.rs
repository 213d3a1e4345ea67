//! Everything compared with everything.

use super::core::Core;
use super::error::DiskError;
use super::layout::{is_marked, mark_blocks};
use super::segment::{PHASES, Phase, SegmentId, file_name};
use super::shared::Shared;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

impl Shared {
    /// See [`super::Disk::check_integrity`]. Nothing else may call the tier meanwhile, or segments may be reclaimed under it.
    pub fn check_integrity(self: &Arc<Self>) -> Result<(), DiskError> {
        let sealed = {
            let core = self.lock()?;
            core.check().map_err(DiskError::Integrity)?;
            let sealed = core.in_phase(Phase::Sealed);
            sealed.map(|(id, s)| (id, s.file, s.generation, s.blocks)).collect::<Vec<_>>()
        };
        for (id, file, generation, blocks) in sealed {
            // A footer that the device does not give is the device's fault, not a contradiction.
            let Ok(Some(listed)) = self.read_footer(file, generation, blocks) else { continue };
            let core = self.lock()?;
            let same = core.segments.get(id as usize).and_then(Option::as_ref);
            let Some(segment) = same.filter(|s| s.generation == generation && s.phase == Phase::Sealed) else {
                continue;
            };
            let name = file_name(segment.number);
            let wrong = |what: String| Err(DiskError::Integrity(format!("{name}: {what}")));
            if listed.len() != segment.entries() {
                return wrong(format!("{} entries in its footer and {} in memory", listed.len(), segment.entries()));
            }
            for (number, entry) in listed.iter().enumerate() {
                let hash = core.index.hash(entry.tenant, &entry.key);
                let record = core.index.find(hash, entry.part).map(|at| *core.index.get(at));
                let here =
                    record.is_some_and(|r| (r.segment, usize::from(r.number)) == (id, number) && r.at == entry.at);
                if here == is_marked(segment.marks[number]) {
                    return wrong(format!(
                        "entry {number} is {}",
                        if here { "marked and in the index" } else { "neither" }
                    ));
                }
            }
        }
        Ok(())
    }
}

impl Core {
    fn check(&self) -> Result<(), String> {
        let mut live: BTreeMap<SegmentId, (u32, u64)> = BTreeMap::new();
        for r in self.index.iter() {
            let segment = self.segments.get(r.segment as usize).and_then(Option::as_ref);
            let Some(segment) = segment else {
                return Err(format!("an object in segment {}, which is gone", r.segment));
            };
            if segment.phase == Phase::Free || segment.is_marked(r.number) {
                return Err(format!("an object in {}, which is free or has it marked", file_name(segment.number)));
            }
            let sum = live.entry(r.segment).or_default();
            *sum = (sum.0 + 1, sum.1 + u64::from(r.blocks));
        }
        let (mut bytes, mut pending) = (0, 0);
        for (id, s) in self.each() {
            let name = file_name(s.number);
            let sum = live.get(&id).copied().unwrap_or_default();
            if sum != (s.live, s.live_blocks) {
                return Err(format!(
                    "{name}: {sum:?} objects and blocks in the index, {:?} counted",
                    (s.live, s.live_blocks)
                ));
            }
            let groups = s.writing.iter().flat_map(|w| &w.groups);
            let (mut items, mut flying) = (0, 0);
            groups.for_each(|g| (items, flying) = (items + g.items.len(), flying + g.bytes));
            let unmarked = s.marks.iter().filter(|m| !is_marked(**m)).count();
            if unmarked != s.live as usize + items {
                return Err(format!(
                    "{name}: {unmarked} entries without a mark, {} objects, {items} in flight",
                    s.live
                ));
            }
            if (s.phase == Phase::Free) && (s.entries() > 0 || !s.dirty.is_empty() || s.writing.is_some()) {
                return Err(format!("{name}: free and not empty"));
            }
            if s.dirty.iter().any(|b| *b >= mark_blocks(s.blocks)) {
                return Err(format!("{name}: marks beyond their blocks"));
            }
            if matches!(s.phase, Phase::Open) != self.streams.contains(&Some(id)) {
                return Err(format!("{name}: {:?}, and the streams say otherwise", s.phase));
            }
            bytes += flying;
            pending += items;
        }
        if bytes != self.write_bytes || pending != self.pending.len() {
            return Err(format!(
                "{bytes} bytes of {pending} entries in flight, counted {} of {}",
                self.write_bytes,
                self.pending.len()
            ));
        }
        let mut phases: [BTreeSet<SegmentId>; PHASES] = Default::default();
        for (id, s) in self.each() {
            phases[s.phase as usize].insert(id);
        }
        if phases != self.phases {
            return Err(format!("segments by phase are {phases:?}, noted {:?}", self.phases));
        }
        let numbers: BTreeSet<u32> = self.each().map(|(_, s)| s.number).collect();
        let bytes: u64 = self.each().map(|(_, s)| s.bytes()).sum();
        if (&numbers, bytes) != (&self.numbers, self.file_bytes) {
            return Err(format!(
                "{bytes} bytes of segments {numbers:?}, noted {} of {:?}",
                self.file_bytes, self.numbers
            ));
        }
        let waiting: usize = self.tickets.values().map(|t| t.waiting).sum();
        let doomed: usize =
            self.pending.values().flat_map(|p| &p.doomed_by).filter(|t| self.tickets.contains_key(t)).count();
        if waiting != doomed {
            return Err(format!("deletes wait for {waiting} writes, and {doomed} are waited for"));
        }
        Ok(())
    }
}
