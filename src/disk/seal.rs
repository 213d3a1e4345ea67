//! Sealing: after it a segment's entries survive power loss, and the next process reads its footer only.

use super::BLOCK;
use super::core::{Core, Later, SealWaiter};
use super::error::DiskError;
use super::footer;
use super::segment::{Phase, Segment, SegmentId};
use super::shared::Shared;
use std::io;
use std::sync::Arc;

/// Called once when everything accepted before the call is sealed.
pub type SealDone = Box<dyn FnOnce(Result<(), DiskError>) + Send>;

impl Shared {
    /// Seals what is open; see [`super::Disk::seal`].
    pub fn seal(&self, done: SealDone) {
        let mut done = Some(done);
        let outcome = self.with_bell(|core, later| {
            for stream in 0..core.streams.len() {
                if let Some(open) = core.streams[stream].take() {
                    core.set_phase(open, Phase::Sealing);
                }
            }
            let sealing = core.in_phase(Phase::Sealing);
            let segments: Vec<_> = sealing.map(|(id, s)| (id, s.generation)).collect();
            if let Some(done) = done.take() {
                core.seal_waiters.push(SealWaiter { segments, done });
            }
            core.answer_seals(later);
        });
        if let (Err(error), Some(done)) = (outcome, done) {
            done(Err(error));
        }
    }

    /// Seals one segment; false when none is ready.
    pub fn seal_one(self: &Arc<Self>) -> bool {
        let found = self.with(|core, later| {
            core.answer_seals(later);
            if core.state.writable().is_err() {
                return None;
            }
            let (id, _) = core.in_phase(Phase::Sealing).find(|(_, s)| s.is_settled())?;
            let segment = core.segment(id);
            let listed = segment.writing.as_ref().map_or(Vec::new(), |w| w.listed.clone());
            Some((id, segment.file, segment.generation, segment.blocks, listed))
        });
        let Ok(Some((id, file, generation, blocks, listed))) = found else { return false };
        if listed.is_empty() {
            self.free(id);
            let _ = self.with(|core, later| core.answer_seals(later));
            return true;
        }
        let footer = footer::encode(generation, &listed);
        match self.write_footer(file, blocks, &footer) {
            Err(e) => self.write_failed("a segment could not be sealed", &e),
            Ok(()) => {
                let _ = self.with(|core, later| {
                    core.set_phase(id, Phase::Sealed);
                    core.segment_mut(id).writing = None;
                    core.totals.sealed += 1;
                    core.budget.spend(footer.len() as u64);
                    core.answer_seals(later);
                });
            }
        }
        true
    }

    /// Data first, so that a footer vouches for what is there.
    pub fn write_footer(self: &Arc<Self>, file: super::FileId, blocks: u32, footer: &[u8]) -> io::Result<()> {
        self.io.sync_now(file)?;
        self.io.write_now(file, blocks - (footer.len() / BLOCK) as u32, footer)?;
        self.io.sync_now(file)
    }

    /// Makes a segment, to which the index no longer points, hold nothing, on the device first. The header must be there
    /// before the marks go: without them deleted entries would count again.
    pub fn free(self: &Arc<Self>, id: SegmentId) {
        let found = self.with(|core, _| {
            let s = core.segment(id);
            (s.file, s.number, s.blocks, s.generation, core.directory)
        });
        let Ok((file, number, blocks, generation, directory)) = found else { return };
        match self.write_free(file, number, blocks, generation, directory) {
            Err(e) => self.write_failed("a segment could not be freed", &e),
            Ok(()) => {
                let _ = self.with(|core, _| {
                    debug_assert_eq!(core.segment(id).live, 0, "segment {number} is freed");
                    core.set_phase(id, Phase::Free);
                    *core.segment_mut(id) = Segment::free(file, number, blocks, generation);
                });
            }
        }
    }

    /// The writes of [`Shared::free`].
    pub fn write_free(
        self: &Arc<Self>,
        file: super::FileId,
        number: u32,
        blocks: u32,
        generation: u64,
        directory: [u8; 16],
    ) -> io::Result<()> {
        use super::layout::{MARKS_AT, SegmentHeader, Use, mark_blocks};
        let header = SegmentHeader { directory, number, blocks, generation, used: Use::Free, stream: 0 };
        self.io.write_now(file, 0, &header.encode())?;
        self.io.sync_now(file)?;
        self.io.write_now(file, MARKS_AT, &vec![0; mark_blocks(blocks) as usize * BLOCK])
    }
}

impl Core {
    /// Answers the seals that wait for nothing any more, or in vain.
    fn answer_seals(&mut self, later: &mut Later) {
        let failure = self.state.writable().err();
        for mut waiter in std::mem::take(&mut self.seal_waiters) {
            waiter.segments.retain(|&(id, generation)| {
                let segment = self.segments[id as usize].as_ref();
                segment.is_some_and(|s| s.generation == generation && s.phase == Phase::Sealing)
            });
            let outcome = match (&failure, waiter.segments.is_empty()) {
                (_, true) => Ok(()),
                (Some(error), false) => Err(error.clone()),
                (None, false) => {
                    self.seal_waiters.push(waiter);
                    continue;
                }
            };
            later.push(Box::new(move || (waiter.done)(outcome)));
        }
    }
}
