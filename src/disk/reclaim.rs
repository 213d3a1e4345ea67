//! Room: new segment files while the capacity allows, else the segment that is missed least.
//!
//! A reclaimed segment's objects are dropped, but for those that were hit since they were written, as far as the allowance
//! goes: a share of the bytes put, which bounds the write amplification whatever the load. They are moved like puts are
//! written, and the index points to the old place until the new one is accepted. When the capacity was made smaller,
//! everything is moved as long as it fits.

use super::calls::PutOutcome;
use super::config::DiskConfig;
use super::core::Core;
use super::device::FileId;
use super::footer::{self, Listed, Trailer};
use super::group::{Entry, Group};
use super::index::flag;
use super::layout::blocks_of;
use super::segment::{Phase, Segment, SegmentId, data_at, file_name};
use super::shared::Shared;
use super::write::Job;
use super::{Aligned, BLOCK, STREAMS};
use crate::shm::chunk_crcs;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::channel;

/// Oldest segments among which the one with the fewest live bytes is reclaimed.
const OLDEST: usize = 8;
/// Bytes that are moved at a time, unless one value is longer.
const MOVE_BYTES: u64 = 4 << 20;
/// Entries for which the lock is taken at once.
const BATCH: usize = 64;

/// What to do next.
enum Next {
    Nothing,
    Create,
    Remove(SegmentId),
    Reclaim { victim: SegmentId, everything: bool },
}

/// An entry to move, as the index and the footer know it.
pub(super) type Chosen = (u16, Listed);

impl Shared {
    /// One step towards enough free segments within the capacity; false when there is nothing to do. Without
    /// `reclaim` it only makes files.
    pub fn prepare_one(self: &Arc<Self>, reclaim: bool) -> bool {
        let Ok(next) = self.with(|core, _| core.next_step()) else { return false };
        match next {
            Next::Nothing => false,
            Next::Create => self.create_segment(),
            _ if !reclaim => false,
            Next::Remove(id) => self.remove_segment(id),
            Next::Reclaim { victim, everything } => {
                self.reclaim(victim, everything);
                true
            }
        }
    }

    fn create_segment(self: &Arc<Self>) -> bool {
        let Ok((number, bytes)) = self.with(|core, _| (core.unused_number(), core.config.segment_bytes)) else {
            return false;
        };
        match self.io.device.create(&file_name(number), u64::from(bytes)) {
            Ok(file) => {
                let segment = Segment::free(file, number, blocks_of(u64::from(bytes)), 0);
                self.with(|core, _| core.add_segment(segment)).is_ok()
            }
            Err(e) if e.raw_os_error() == Some(libc::ENOSPC) || e.raw_os_error() == Some(libc::EDQUOT) => {
                let done = self.with(|core, _| {
                    core.no_space = true;
                    if core.numbers.len() < DiskConfig::FEWEST_SEGMENTS as usize {
                        core.become_read_only(&format!("there is no space for the fewest segments: {e}"));
                    }
                });
                done.is_ok()
            }
            Err(e) => {
                self.write_failed("a segment's file could not be made", &e);
                false
            }
        }
    }

    fn remove_segment(self: &Arc<Self>, id: SegmentId) -> bool {
        let taken = self.with(|core, _| core.take_segment(id));
        let Ok(Some(segment)) = taken else { return false };
        self.io.device.close(segment.file);
        if let Err(e) = self.io.device.remove(&file_name(segment.number)) {
            self.write_failed("a segment's file could not be removed", &e);
            return false;
        }
        let _ = self.with(|core, _| core.no_space = false);
        true
    }

    fn reclaim(self: &Arc<Self>, victim: SegmentId, everything: bool) {
        let Ok((file, generation, blocks)) = self.with(|core, _| {
            core.whole_moves -= usize::from(everything);
            core.set_phase(victim, Phase::Reclaiming);
            let segment = core.segment(victim);
            (segment.file, segment.generation, segment.blocks)
        }) else {
            return;
        };
        // Without a footer it cannot be told what is there to move; the index knows what to drop.
        if let Ok(Some(listed)) = self.read_footer(file, generation, blocks) {
            let (chosen, left) = self.choose(victim, &listed, everything);
            let at = (file, generation, blocks);
            self.hand_over(victim, at, &left);
            let moved = chosen.clone();
            if !self.move_all(victim, file, generation, blocks, chosen) {
                // What was not moved stays where it is.
                let _ = self.with(|core, _| core.set_phase(victim, Phase::Sealed));
                return;
            }
            self.hand_over(victim, at, &moved);
        }
        let _ = self.with(|core, _| core.drop_all(victim));
        self.free(victim);
        let _ = self.with(|core, _| core.totals.reclaimed += 1);
    }

    /// The footer's entries; none if it is damaged.
    pub fn read_footer(
        self: &Arc<Self>,
        file: FileId,
        generation: u64,
        blocks: u32,
    ) -> io::Result<Option<Vec<Listed>>> {
        let data = data_at(blocks);
        let block = self.io.read_block(file, blocks - 1)?;
        let Some(trailer) = Trailer::decode(&block, generation, data, blocks) else { return Ok(None) };
        let count = Trailer::record_blocks(trailer.entries as usize);
        let at = blocks - 1 - count;
        let records = if count == 0 { Aligned::new(0) } else { self.io.read_now(file, at, count)? };
        Ok(footer::decode(&trailer, &records[..count as usize * BLOCK], (data, at)).ok())
    }

    /// Says what is to be moved, and what the heir gets; without one that is dropped at once.
    fn choose(&self, victim: SegmentId, listed: &[Listed], everything: bool) -> (Vec<Chosen>, Vec<Chosen>) {
        let (mut chosen, mut left) = (Vec::new(), Vec::new());
        let inherits = self.heir.get().is_some();
        for (n, batch) in listed.chunks(BATCH).enumerate() {
            let _ = self.with(|core, _| {
                for (k, entry) in batch.iter().enumerate() {
                    let number = (n * BATCH + k) as u16;
                    let hash = core.index.hash(entry.tenant, &entry.key);
                    let Some(at) = core.index.find(hash, entry.part) else { continue };
                    let record = *core.index.get(at);
                    if (record.segment, record.number) != (victim, number) {
                        continue;
                    }
                    let cost = i64::from(record.blocks) * 100;
                    let hit = record.flags & flag::HIT != 0 && core.allowance >= cost;
                    if everything || hit {
                        core.allowance -= if everything { 0 } else { cost };
                        chosen.push((number, *entry));
                    } else if inherits {
                        left.push((number, *entry));
                    } else {
                        core.drop_object(hash, entry.part);
                        core.totals.evicted += 1;
                    }
                }
            });
        }
        (chosen, left)
    }

    /// Moves entries; false when it is time to end, or the device is gone.
    fn move_all(
        self: &Arc<Self>,
        victim: SegmentId,
        file: FileId,
        generation: u64,
        blocks: u32,
        chosen: Vec<Chosen>,
    ) -> bool {
        let mut rest = chosen.into_iter().peekable();
        let mut header: Option<Group> = None;
        while rest.peek().is_some() {
            if self.stopping() {
                return false;
            }
            let (mut jobs, mut bytes) = (Vec::new(), 0);
            let (send, receive) = channel();
            while let Some((number, listed)) =
                rest.next_if(|(_, l)| bytes == 0 || bytes + u64::from(l.len) <= MOVE_BYTES)
            {
                bytes += u64::from(listed.len);
                let found = self.read_listed(file, generation, blocks, &listed, &mut header);
                let Some((entry, value)) = found else { continue };
                let send = send.clone();
                jobs.push(Job {
                    meta: entry.meta,
                    crcs: entry.crcs,
                    value: Box::new(value),
                    from: Some((victim, number)),
                    done: Box::new(move |outcome: PutOutcome, _| drop(send.send(Ok(outcome)))),
                });
            }
            let count = jobs.len();
            self.write(jobs, None);
            // Whatever was not moved is dropped with the rest of the segment.
            for _ in 0..count {
                if self.io.wait(&receive).is_err() {
                    return false;
                }
            }
            // Deletes do not wait for the whole segment, nor for a segment that the moves have filled.
            while self.write_marks() {}
        }
        true
    }

    /// An entry and its value, if both pass their checks; `header` is the last group's that was read.
    pub(super) fn read_listed(
        self: &Arc<Self>,
        file: FileId,
        generation: u64,
        blocks: u32,
        listed: &Listed,
        header: &mut Option<Group>,
    ) -> Option<(Entry, Aligned)> {
        if header.as_ref().is_none_or(|g| g.block != listed.header) {
            let block = self.io.read_block(file, listed.header).ok();
            *header = block.and_then(|b| Group::decode(&b, generation, listed.header, blocks).ok());
        }
        let entry = header.as_ref()?.entries.iter().find(|e| e.at == listed.at)?;
        Some((entry.clone(), self.read_checked(file, entry)?))
    }

    fn read_checked(self: &Arc<Self>, file: FileId, entry: &Entry) -> Option<Aligned> {
        let value = self.io.read_now(file, entry.at, blocks_of(entry.meta.len)).ok()?;
        (chunk_crcs(&value[..entry.meta.len as usize]) == entry.crcs).then_some(value)
    }
}

impl Core {
    fn next_step(&self) -> Next {
        if self.state.writable().is_err() {
            return Next::Nothing;
        }
        let segment = u64::from(self.config.segment_bytes);
        let (free, spare) = (self.count(Phase::Free), self.config.spare_segments());
        let excess = self.file_bytes > self.config.capacity_bytes;
        let strange = self.in_phase(Phase::Free).find(|(_, s)| s.bytes() != segment);
        let fits = self.file_bytes + segment <= self.config.capacity_bytes && !self.no_space;
        if let Some((id, _)) = strange.filter(|_| free > 1 || fits || excess) {
            return Next::Remove(id);
        }
        let any_free = self.in_phase(Phase::Free).next();
        match any_free {
            Some((id, _)) if excess && free > spare => return Next::Remove(id),
            _ if free >= spare && !excess => return Next::Nothing,
            _ if fits && free < spare => return Next::Create,
            _ => {}
        }
        let Some(victim) = self.victim(excess) else { return Next::Nothing };
        let everything = excess && self.whole_moves > 0 && self.all_fits();
        // Moves need somewhere to go, for a moment beyond the capacity.
        if everything && free == 0 && !self.no_space {
            return Next::Create;
        }
        Next::Reclaim { victim, everything }
    }

    /// Whether the capacity holds all objects, with what headers and open segments take.
    fn all_fits(&self) -> bool {
        let live: u64 = self.each().map(|(_, s)| s.live_blocks).sum::<u64>() * BLOCK as u64;
        let segment = u64::from(self.config.segment_bytes);
        let kept = (self.config.spare_segments() + STREAMS + 1) as u64 * segment;
        live + live / 16 + kept <= self.config.capacity_bytes
    }

    fn victim(&self, least: bool) -> Option<SegmentId> {
        let of = |(id, s): (SegmentId, &Segment)| (s.generation, id, s.live_blocks);
        let mut sealed: Vec<(u64, SegmentId, u64)> = self.in_phase(Phase::Sealed).map(of).collect();
        if sealed.len() > OLDEST {
            // The oldest first, the others in any order.
            sealed.select_nth_unstable(OLDEST - 1);
        }
        let empty = sealed.iter().filter(|s| s.2 == 0).min();
        let among = if least { &sealed[..] } else { &sealed[..sealed.len().min(OLDEST)] };
        empty.or_else(|| among.iter().min_by_key(|s| (s.2, s.0))).map(|s| s.1)
    }

    /// Drops all objects of a segment; linear in all objects where there are any.
    fn drop_all(&mut self, id: SegmentId) {
        if self.segment(id).live == 0 {
            return;
        }
        let left: Vec<(u64, u8)> = self.index.iter().filter(|r| r.segment == id).map(|r| (r.hash, r.part)).collect();
        for (hash, part) in left {
            self.drop_object(hash, part);
            self.totals.evicted += 1;
        }
    }
}
