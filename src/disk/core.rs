//! The bookkeeping behind the one lock: index, segments, streams, what waits for what. No I/O.
//!
//! One rule holds between any two calls: of the entries of a segment that is not free, those are unmarked that the index
//! points to or that are on their way to the device. So whatever the index drops is marked in memory, and a delete that
//! writes all marks not yet on disk leaves nothing that could come back, whatever was evicted, moved or found twice before.

use super::STREAMS;
use super::budget::Budget;
use super::calls::PutOutcome;
use super::config::DiskConfig;
use super::error::{DiskError, State};
use super::index::{Index, Record};
use super::layout::{CHECKPOINT_PARTS, blocks_of};
use super::segment::{Item, PHASES, Phase, Segment, SegmentId, Written};
use super::stats::DiskTotals;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// What to call when the lock is released.
pub type Later = Vec<Box<dyn FnOnce() + Send>>;

/// An object on its way to the device.
#[derive(Debug, Default)]
pub struct Pending {
    /// Deletes that came meanwhile and wait for its write.
    pub doomed_by: Vec<u64>,
}

/// A delete that is not on disk yet.
pub struct Ticket {
    /// Writes in flight that it waits for.
    pub waiting: usize,
    /// Objects that were there.
    pub found: usize,
    /// Called with the outcome.
    pub done: Box<dyn FnOnce(Result<usize, DiskError>) + Send>,
}

/// A seal that is waited for.
pub struct SealWaiter {
    /// Segments and their generations that are not sealed yet.
    pub segments: Vec<(SegmentId, u64)>,
    /// Called with the outcome.
    pub done: Box<dyn FnOnce(Result<(), DiskError>) + Send>,
}

/// Everything behind the lock.
pub struct Core {
    pub(super) config: DiskConfig,
    pub(super) directory: [u8; 16],
    pub(super) index: Index,
    /// None where a segment's file was removed.
    pub(super) segments: Vec<Option<Segment>>,
    /// Which ones are in each phase, so that the few of interest are found among many.
    pub(super) phases: [BTreeSet<SegmentId>; PHASES],
    /// Numbers in their names.
    pub(super) numbers: BTreeSet<u32>,
    /// Bytes of their files.
    pub(super) file_bytes: u64,
    pub(super) streams: [Option<SegmentId>; STREAMS],
    pub(super) pending: HashMap<(u64, u8), Pending>,
    pub(super) tickets: BTreeMap<u64, Ticket>,
    pub(super) next_ticket: u64,
    pub(super) seal_waiters: Vec<SealWaiter>,
    pub(super) state: State,
    pub(super) budget: Budget,
    pub(super) epoch: u32,
    pub(super) counter: u32,
    pub(super) write_bytes: u64,
    pub(super) reads: usize,
    pub(super) read_errors_in_a_row: u32,
    /// Creating a file failed for want of space: the files there are must do.
    pub(super) no_space: bool,
    /// Segments that may still be moved whole because the capacity became smaller; bounds the work whatever is packed how.
    pub(super) whole_moves: usize,
    /// A tick asked whether the directory is still there.
    pub(super) look: bool,
    /// Blocks that reclaiming may still write again, times 100.
    pub(super) allowance: i64,
    pub(super) totals: DiskTotals,
}

/// The stream of a part.
pub fn stream_of(part: u8) -> usize {
    usize::from(part >= CHECKPOINT_PARTS)
}

impl Core {
    /// An empty one.
    pub fn new(config: DiskConfig, directory: [u8; 16], epoch: u32) -> Core {
        let budget = Budget::new(config.write_bytes_per_day);
        Core {
            config,
            directory,
            index: Index::new(),
            segments: Vec::new(),
            phases: Default::default(),
            numbers: BTreeSet::new(),
            file_bytes: 0,
            streams: [None; STREAMS],
            pending: HashMap::new(),
            tickets: BTreeMap::new(),
            next_ticket: 0,
            seal_waiters: Vec::new(),
            state: State::Serving,
            budget,
            epoch,
            counter: 0,
            write_bytes: 0,
            reads: 0,
            read_errors_in_a_row: 0,
            no_space: false,
            whole_moves: 0,
            look: false,
            allowance: 0,
            totals: DiskTotals::default(),
        }
    }

    /// A segment that is there.
    pub fn segment(&self, id: SegmentId) -> &Segment {
        self.segments[id as usize].as_ref().expect("segments that are referred to have a file")
    }

    /// A segment that is there.
    pub fn segment_mut(&mut self, id: SegmentId) -> &mut Segment {
        self.segments[id as usize].as_mut().expect("segments that are referred to have a file")
    }

    /// All segments that are there.
    pub fn each(&self) -> impl Iterator<Item = (SegmentId, &Segment)> {
        self.segments.iter().enumerate().filter_map(|(n, s)| s.as_ref().map(|s| (n as SegmentId, s)))
    }

    /// Segments in a phase, by their place in the table.
    pub fn in_phase(&self, phase: Phase) -> impl Iterator<Item = (SegmentId, &Segment)> {
        self.phases[phase as usize].iter().map(|&id| (id, self.segment(id)))
    }

    /// How many are in a phase.
    pub fn count(&self, phase: Phase) -> usize {
        self.phases[phase as usize].len()
    }

    /// Something else is done with a segment from now on.
    pub fn set_phase(&mut self, id: SegmentId, phase: Phase) {
        let before = std::mem::replace(&mut self.segment_mut(id).phase, phase);
        self.phases[before as usize].remove(&id);
        self.phases[phase as usize].insert(id);
    }

    /// Takes a segment out of the table; its objects must be gone.
    pub fn take_segment(&mut self, id: SegmentId) -> Option<Segment> {
        let segment = self.segments[id as usize].take()?;
        self.phases[segment.phase as usize].remove(&id);
        self.numbers.remove(&segment.number);
        self.file_bytes -= segment.bytes();
        Some(segment)
    }

    /// Enters a segment into the table.
    pub fn add_segment(&mut self, segment: Segment) -> SegmentId {
        let gap = self.numbers.len() < self.segments.len();
        self.numbers.insert(segment.number);
        self.file_bytes += segment.bytes();
        let phase = segment.phase;
        let at = gap.then(|| self.segments.iter().position(Option::is_none)).flatten().unwrap_or(self.segments.len());
        if at == self.segments.len() {
            self.segments.push(None);
        }
        self.segments[at] = Some(segment);
        self.phases[phase as usize].insert(at as SegmentId);
        at as SegmentId
    }

    /// A number that no segment has.
    pub fn unused_number(&self) -> u32 {
        match self.numbers.last() {
            // No gap, as long as no segment was removed or set aside.
            Some(&last) if last as usize + 1 == self.numbers.len() => last + 1,
            _ => (0..).find(|n| !self.numbers.contains(n)).unwrap_or(u32::MAX),
        }
    }

    /// A generation that was never given before.
    pub fn next_generation(&mut self) -> u64 {
        self.counter += 1;
        u64::from(self.epoch) << 32 | u64::from(self.counter)
    }

    /// Nothing is written from now on.
    pub fn become_read_only(&mut self, why: &str) {
        if self.state == State::Serving {
            self.state = State::ReadOnly(why.to_string());
        }
    }

    /// Nothing is done from now on.
    pub fn become_offline(&mut self, why: &str) {
        if !matches!(self.state, State::Offline(_)) {
            self.state = State::Offline(why.to_string());
        }
    }

    /// Forgets an object and marks its entry.
    pub fn drop_object(&mut self, hash: u64, part: u8) -> Option<Record> {
        let record = self.index.remove(hash, part)?;
        self.leave(&record);
        Some(record)
    }

    /// The entry of a record that the index no longer points to.
    pub fn leave(&mut self, record: &Record) {
        let segment = self.segment_mut(record.segment);
        segment.mark(record.number);
        segment.live -= 1;
        segment.live_blocks -= u64::from(record.blocks);
    }

    /// Enters an object, or moves one that is there.
    pub fn enter(&mut self, record: Record) -> bool {
        let moved = self.index.find(record.hash, record.part);
        if let Some(at) = moved {
            let old = *self.index.get(at);
            self.leave(&old);
            *self.index.get_mut(at) = record;
        } else if !self.index.insert(record) {
            return false;
        }
        let segment = self.segment_mut(record.segment);
        segment.live += 1;
        segment.live_blocks += u64::from(record.blocks);
        true
    }

    /// Accepts or fails, in order, the groups of a segment whose turn has come.
    pub fn settle(&mut self, id: SegmentId, later: &mut Later) {
        loop {
            let Some(writing) = self.segment_mut(id).writing.as_mut() else { return };
            let due = writing.named || writing.failed.is_some();
            if !due || writing.groups.front().is_none_or(|g| matches!(g.written, Written::No)) {
                return;
            }
            let group = writing.groups.pop_front().expect("there is a front");
            let (failure, buffers) = match group.written {
                Written::Yes(buffers) => (writing.failed.clone(), buffers),
                Written::Failed(why, buffers) => {
                    writing.failed.get_or_insert_with(|| why.clone());
                    (Some(why), buffers)
                }
                Written::No => return,
            };
            self.write_bytes -= group.bytes;
            for (item, buffer) in group.items.into_iter().zip(buffers) {
                let outcome = match &failure {
                    None => self.accept(id, &item),
                    Some(why) => {
                        self.totals.failed += 1;
                        self.refuse(id, &item);
                        PutOutcome::Failed(DiskError::ReadOnly(why.clone()))
                    }
                };
                later.push(Box::new(move || (item.done)(outcome, buffer)));
            }
            if let Some(why) = failure {
                self.become_read_only(&why);
            }
        }
    }

    /// An entry is on the device.
    fn accept(&mut self, id: SegmentId, item: &Item) -> PutOutcome {
        let doomed = self.pending.remove(&(item.hash, item.part)).is_some_and(|p| {
            let doomed = !p.doomed_by.is_empty();
            self.count_down(&p.doomed_by);
            doomed
        });
        let record = Record {
            hash: item.hash,
            segment: id,
            at: item.at,
            back: item.back,
            blocks: blocks_of(item.len) as u16,
            number: item.number,
            part: item.part,
            flags: 0,
        };
        let old = self.index.find(item.hash, item.part).map(|at| *self.index.get(at));
        // A move counts only while the object is still where it was moved from.
        let wanted = match item.from {
            None => old.is_none(),
            Some(from) => old.is_some_and(|o| (o.segment, o.number) == from),
        };
        if doomed || !wanted || !self.enter(record) {
            self.segment_mut(id).mark(item.number);
        }
        match item.from {
            None => {
                self.totals.stored += 1;
                self.totals.stored_bytes += item.len;
                self.allowance += i64::from(blocks_of(item.len)) * i64::from(self.config.reinsert_percent);
            }
            Some(_) => {
                self.totals.reinserted += 1;
                self.totals.reinserted_bytes += item.len;
            }
        }
        PutOutcome::Stored
    }

    /// An entry is not, or nobody knows; should it be there after all, it is marked.
    fn refuse(&mut self, id: SegmentId, item: &Item) {
        if let Some(pending) = self.pending.remove(&(item.hash, item.part)) {
            self.count_down(&pending.doomed_by);
        }
        self.segment_mut(id).mark(item.number);
    }

    fn count_down(&mut self, tickets: &[u64]) {
        for ticket in tickets {
            if let Some(ticket) = self.tickets.get_mut(ticket) {
                ticket.waiting -= 1;
            }
        }
    }
}
