//! Puts and moves: a place in the open segment of their stream, a group's header before them, one write for each group.

use super::buffer::fits_directly;
use super::calls::{Put, PutDone, PutOutcome};
use super::config::DiskConfig;
use super::core::{Core, Later, Pending, stream_of};
use super::device::{Action, Done, FileId, Piece};
use super::error::DiskError;
use super::footer::Listed;
use super::group::{Crcs, Entry, Group, has_room};
use super::layout::{SegmentHeader, Use, blocks_of};
use super::segment::{InFlight, Item, Phase, SegmentId, Writing, Written, data_at, fits};
use super::shared::Shared;
use super::{Aligned, BLOCK, Buffer, STREAMS};
use crate::shm::{CHUNK_BYTES, PutMeta, chunks_of};
use smallvec::{SmallVec, smallvec};
use std::io;
use std::sync::Arc;

/// A value of so many blocks has a group of its own, so that one read gets header and value; the header costs 1/64.
const LONE_BLOCKS: u32 = 64;

/// What is to be written: a put, or a move of what is there.
pub struct Job {
    pub(super) meta: PutMeta,
    pub(super) crcs: Crcs,
    pub(super) value: Box<dyn Buffer>,
    pub(super) from: Option<(SegmentId, u16)>,
    pub(super) done: PutDone,
}

/// A group that still takes entries.
struct Building {
    segment: SegmentId,
    entries: Vec<Entry>,
    items: Vec<Item>,
    values: Vec<Box<dyn Buffer>>,
    record_bytes: usize,
    blocks: u32,
}

/// A write to start when the lock is released.
enum Start {
    Group { id: SegmentId, file: FileId, group: Group, values: Vec<Box<dyn Buffer>> },
    Header { id: SegmentId, file: FileId, header: SegmentHeader },
}

/// Longest value that fits into a segment of so many bytes.
pub fn max_value_bytes(config: &DiskConfig) -> u64 {
    let blocks = blocks_of(u64::from(config.segment_bytes));
    let most = (blocks - data_at(blocks)).saturating_sub(3);
    (u64::from(most) * BLOCK as u64).min(crate::shm::MAX_VALUE_BYTES)
}

impl Shared {
    /// Stores values; see [`super::Disk::put`].
    pub fn put(self: &Arc<Self>, batch: Vec<Put>, now: u64) {
        let jobs =
            batch.into_iter().map(|p| Job { meta: p.meta, crcs: p.crcs, value: p.value, from: None, done: p.done });
        self.write(jobs.collect(), Some(now));
    }

    /// Stores or moves values. Moves are not held up by the budget, only counted.
    pub fn write(self: &Arc<Self>, jobs: Vec<Job>, now: Option<u64>) {
        let mut starts = Vec::new();
        let mut rest = jobs.into_iter();
        let placed = self.with_bell(|core, later| {
            if let Some(now) = now {
                core.budget.fill(now);
            }
            let mut building: [Option<Building>; STREAMS] = Default::default();
            for job in rest.by_ref() {
                match core.admit(&job) {
                    Some(outcome) => refuse(core, job, outcome, later),
                    None => core.place(job, &mut building, &mut starts, later),
                }
            }
            for group in building.into_iter().flatten() {
                core.close(group, &mut starts);
            }
        });
        if let Err(error) = placed {
            rest.for_each(|job| (job.done)(PutOutcome::Failed(error.clone()), job.value));
        }
        for start in starts {
            self.start(start);
        }
    }

    fn start(self: &Arc<Self>, start: Start) {
        let shared = self.clone();
        match start {
            Start::Header { id, file, header } => {
                let bytes = Aligned::copy_of(&header.encode());
                let done = move |result| shared.named(id, header.generation, result);
                self.io.write(file, 0, bytes, Box::new(done));
            }
            Start::Group { id, file, group, values } => {
                let head = Aligned::copy_of(&group.encode());
                let mut pieces: SmallVec<[Piece; 2]> = smallvec![Piece { start: head.as_ptr().cast_mut(), len: BLOCK }];
                let mut copies = Vec::new();
                for (entry, value) in group.entries.iter().zip(&values) {
                    let len = entry.meta.len as usize;
                    let whole = len.next_multiple_of(BLOCK);
                    if fits_directly(&**value, len) {
                        pieces.push(Piece { start: value.start(), len: whole });
                    } else {
                        let copy = Aligned::copy_of(super::buffer::bytes_of(&**value, len));
                        pieces.push(Piece { start: copy.as_ptr().cast_mut(), len: whole });
                        copies.push(copy);
                    }
                }
                let (generation, block) = (group.generation, group.block);
                let done: Done = Box::new(move |result| {
                    drop((head, copies));
                    shared.group_written(id, generation, block, result, values);
                });
                // SAFETY: `done` owns header, values and copies.
                unsafe { self.io.start(file, Action::Write, block, pieces, done) }
            }
        }
    }

    fn named(&self, id: SegmentId, generation: u64, result: io::Result<()>) {
        let _ = self.with_bell(|core, later| {
            if !Shared::same(core, id, generation) {
                return;
            }
            let Some(writing) = core.segment_mut(id).writing.as_mut() else { return };
            match &result {
                Ok(()) => writing.named = true,
                Err(e) => {
                    let why = format!("a segment's header could not be written: {e}");
                    writing.failed.get_or_insert(why.clone());
                    core.become_read_only(&why);
                }
            }
            core.settle(id, later);
        });
    }

    fn group_written(
        &self,
        id: SegmentId,
        generation: u64,
        block: u32,
        result: io::Result<()>,
        values: Vec<Box<dyn Buffer>>,
    ) {
        let _ = self.with_bell(|core, later| {
            if !Shared::same(core, id, generation) {
                return;
            }
            let Some(writing) = core.segment_mut(id).writing.as_mut() else { return };
            let Some(group) = writing.groups.iter_mut().find(|g| g.block == block) else { return };
            group.written = match result {
                Ok(()) => Written::Yes(values),
                Err(e) => Written::Failed(format!("values could not be written: {e}"), values),
            };
            core.settle(id, later);
        });
    }
}

/// Answers a job that is not placed.
fn refuse(core: &mut Core, job: Job, outcome: PutOutcome, later: &mut Later) {
    let totals = &mut core.totals;
    match &outcome {
        PutOutcome::Present => totals.present += 1,
        PutOutcome::Busy => totals.busy += 1,
        PutOutcome::NoRoom => totals.no_room += 1,
        PutOutcome::OverBudget => totals.over_budget += 1,
        PutOutcome::Failed(_) => totals.failed += 1,
        PutOutcome::Stored => {}
    }
    later.push(Box::new(move || (job.done)(outcome, job.value)));
}

impl Core {
    /// Why a job is not placed; none if it may be.
    fn admit(&self, job: &Job) -> Option<PutOutcome> {
        let len = job.meta.len;
        if let Err(e) = job.meta.validate() {
            return Some(PutOutcome::Failed(DiskError::invalid("put", e, "a part and a length within the limits")));
        }
        let (chunks, most) = (chunks_of(len as usize), max_value_bytes(&self.config));
        let invalid = if job.crcs.len() != chunks {
            let allowed = format!("{chunks}, one for each {CHUNK_BYTES} bytes of {len}");
            Some(DiskError::invalid("number of CRCs", job.crcs.len(), allowed))
        } else if (job.value.capacity() as u64) < len {
            Some(DiskError::invalid("capacity of the value's buffer", job.value.capacity(), format!("at least {len}")))
        } else if len > most && job.from.is_none() {
            Some(DiskError::invalid("value length", len, format!("at most {most} bytes in these segments")))
        } else {
            None
        };
        if let Some(error) = invalid.or_else(|| self.state.writable().err()) {
            return Some(PutOutcome::Failed(error));
        }
        let hash = self.index.hash(job.meta.tenant, &job.meta.id.key);
        if self.pending.contains_key(&(hash, job.meta.id.part)) {
            return Some(PutOutcome::Busy);
        }
        if job.from.is_some() {
            return None;
        }
        if self.index.find(hash, job.meta.id.part).is_some() {
            return Some(PutOutcome::Present);
        }
        if !self.budget.allows() {
            return Some(PutOutcome::OverBudget);
        }
        let full = self.write_bytes > 0 && self.write_bytes + len > self.config.write_bytes_in_flight;
        full.then_some(PutOutcome::NoRoom)
    }

    /// Gives a job its place.
    fn place(
        &mut self,
        job: Job,
        building: &mut [Option<Building>; STREAMS],
        starts: &mut Vec<Start>,
        later: &mut Later,
    ) {
        let blocks = blocks_of(job.meta.len);
        let stream = stream_of(job.meta.id.part);
        let joins = building[stream].as_ref().is_some_and(|b| {
            let segment = self.segment(b.segment);
            let fits = segment.has_room(b.entries.len() + 1, b.blocks + blocks);
            fits && blocks < LONE_BLOCKS && has_room(b.record_bytes, job.meta.len)
        });
        if !joins {
            if let Some(group) = building[stream].take() {
                self.close(group, starts);
            }
            let Some(segment) = self.room(stream, blocks, starts) else {
                return refuse(self, job, PutOutcome::NoRoom, later);
            };
            building[stream] = Some(Building {
                segment,
                entries: Vec::new(),
                items: Vec::new(),
                values: Vec::new(),
                record_bytes: 0,
                blocks: 1,
            });
        }
        let group = building[stream].as_mut().expect("there is one now");
        let segment = self.segment(group.segment);
        let head = segment.writing.as_ref().expect("it is open").next;
        let hash = self.index.hash(job.meta.tenant, &job.meta.id.key);
        let part = job.meta.id.part;
        group.items.push(Item {
            hash,
            part,
            number: (segment.entries() + group.entries.len()) as u16,
            at: head + group.blocks,
            back: group.blocks as u16,
            len: job.meta.len,
            from: job.from,
            done: job.done,
        });
        group.record_bytes += Entry::record_bytes(job.meta.len);
        group.entries.push(Entry { meta: job.meta, crcs: job.crcs, at: head + group.blocks });
        group.values.push(job.value);
        group.blocks += blocks;
        self.pending.insert((hash, part), Pending::default());
        self.write_bytes += u64::from(blocks) * BLOCK as u64;
        let lone = blocks >= LONE_BLOCKS;
        if lone && let Some(group) = building[stream].take() {
            self.close(group, starts);
        }
    }

    /// The group takes no more entries and its place in the segment.
    fn close(&mut self, building: Building, starts: &mut Vec<Start>) {
        let segment = self.segment_mut(building.segment);
        let writing = segment.writing.as_mut().expect("it is open");
        let group = Group {
            generation: segment.generation,
            block: writing.next,
            first: segment.marks.len() as u32,
            entries: building.entries,
        };
        let bytes = u64::from(building.blocks - 1) * BLOCK as u64;
        writing.next += building.blocks;
        writing.listed.extend(Listed::of_group(&group));
        segment.marks.resize(segment.marks.len() + building.items.len(), 0);
        writing.groups.push_back(InFlight { block: group.block, items: building.items, bytes, written: Written::No });
        let file = segment.file;
        self.budget.spend(bytes + BLOCK as u64);
        starts.push(Start::Group { id: building.segment, file, group, values: building.values });
    }

    /// The open segment of a stream, with room for a new group with a value of so many blocks. A segment without room is
    /// left to be sealed.
    fn room(&mut self, stream: usize, blocks: u32, starts: &mut Vec<Start>) -> Option<SegmentId> {
        if let Some(open) = self.streams[stream] {
            if self.segment(open).has_room(1, 1 + blocks) {
                return Some(open);
            }
            // Without a free one the open one stays open: shorter values may still fit.
            self.find_free(blocks)?;
            self.set_phase(open, Phase::Sealing);
            self.streams[stream] = None;
        }
        let id = self.find_free(blocks)?;
        let (generation, directory) = (self.next_generation(), self.directory);
        self.set_phase(id, Phase::Open);
        let segment = self.segment_mut(id);
        segment.generation = generation;
        segment.stream = stream as u8;
        segment.writing = Some(Box::new(Writing { next: segment.data_at(), ..Writing::default() }));
        let (file, number) = (segment.file, segment.number);
        let header = SegmentHeader {
            directory,
            number,
            blocks: segment.blocks,
            generation,
            used: Use::Taken,
            stream: stream as u8,
        };
        starts.push(Start::Header { id, file, header });
        self.streams[stream] = Some(id);
        Some(id)
    }

    fn find_free(&self, blocks: u32) -> Option<SegmentId> {
        let found = self.in_phase(Phase::Free).find(|(_, s)| fits(s.blocks, s.data_at(), 1, 1 + blocks));
        found.map(|(id, _)| id)
    }
}
