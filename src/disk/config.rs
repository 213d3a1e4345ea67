//! What a tier is opened with, and what opening it found.

use super::error::DiskError;
use super::layout::{MAX_SEGMENT_BYTES, MIN_SEGMENT_BYTES};
use super::{BLOCK, STREAMS};
use std::path::PathBuf;
use std::time::Duration;

/// How bytes get to the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Backend {
    /// io_uring where the kernel allows it, else threads.
    #[default]
    Auto,
    /// io_uring or an error.
    Ring,
    /// Threads that call `preadv` and `pwritev`.
    Threads,
}

/// Who seals, deletes and reclaims.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Worker {
    /// A thread of the tier, asleep when there is nothing to do.
    #[default]
    Thread,
    /// Whoever calls [`super::Disk::work`]; for tests that decide when.
    Caller,
}

/// How to open a tier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskConfig {
    /// The directory; made if it is missing. Its parent must be there.
    pub dir: PathBuf,
    /// Most bytes of all segments together; at least [`DiskConfig::FEWEST_SEGMENTS`] segments. May change from one opening
    /// to the next: what still fits is kept.
    pub capacity_bytes: u64,
    /// Size of new segments: a multiple of 4,096, 64 KiB to 1 GiB. A value must fit into one.
    pub segment_bytes: u32,
    /// What the directory is for; one with another fingerprint is refused.
    pub fingerprint: [u8; 32],
    /// How bytes get to the device.
    pub backend: Backend,
    /// Who seals, deletes and reclaims.
    pub worker: Worker,
    /// Most bytes of puts in flight; more answer `NoRoom`.
    pub write_bytes_in_flight: u64,
    /// Most reads in flight; more answer `Busy`.
    pub reads_in_flight: usize,
    /// Most bytes written in a day, all kinds together, as a token bucket that holds an hour's share; none: no limit.
    pub write_bytes_per_day: Option<u64>,
    /// Of the bytes put, the share in percent that reclaiming may write again because they were hit. 0 to 100.
    pub reinsert_percent: u8,
    /// An operation of the device that takes longer than this, by the clock of [`super::Disk::tick`], takes the tier
    /// offline.
    pub io_timeout_ms: u64,
}

impl DiskConfig {
    /// Fewest segments: each stream has one open and one being sealed, some are free, and some hold values.
    pub const FEWEST_SEGMENTS: u64 = 8;

    /// Segments of 64 MiB (fewer bytes where the capacity is small), 64 MiB of puts and 256 reads in flight, 20 percent of
    /// reinsertion, 30 seconds for an operation, no budget, no fingerprint.
    pub fn new(dir: impl Into<PathBuf>, capacity_bytes: u64) -> Self {
        let most = capacity_bytes / (2 * Self::FEWEST_SEGMENTS) / BLOCK as u64 * BLOCK as u64;
        DiskConfig {
            dir: dir.into(),
            capacity_bytes,
            segment_bytes: most.clamp(MIN_SEGMENT_BYTES, 64 << 20) as u32,
            fingerprint: [0; 32],
            backend: Backend::default(),
            worker: Worker::default(),
            write_bytes_in_flight: 64 << 20,
            reads_in_flight: 256,
            write_bytes_per_day: None,
            reinsert_percent: 20,
            io_timeout_ms: 30_000,
        }
    }

    /// Refuses what is outside the limits.
    pub fn validate(&self) -> Result<(), DiskError> {
        let segment = u64::from(self.segment_bytes);
        if !(MIN_SEGMENT_BYTES..=MAX_SEGMENT_BYTES).contains(&segment) || !segment.is_multiple_of(BLOCK as u64) {
            let allowed = format!("a multiple of {BLOCK} from {MIN_SEGMENT_BYTES} to {MAX_SEGMENT_BYTES}");
            return Err(DiskError::invalid("segment size", segment, allowed));
        }
        let segments = self.capacity_bytes / segment;
        if !(Self::FEWEST_SEGMENTS..=1 << 24).contains(&segments) {
            let allowed = format!("{} to {} segments of {segment} bytes", Self::FEWEST_SEGMENTS, 1 << 24);
            return Err(DiskError::invalid("capacity of the disk tier", self.capacity_bytes, allowed));
        }
        if self.reinsert_percent > 100 {
            return Err(DiskError::invalid("reinsert_percent", self.reinsert_percent, "0 to 100"));
        }
        if self.reads_in_flight == 0 {
            return Err(DiskError::invalid("reads_in_flight", 0, "at least 1"));
        }
        Ok(())
    }

    /// Segments that are kept free so that a stream never waits for one.
    pub(super) fn spare_segments(&self) -> usize {
        STREAMS + 1
    }
}

/// What opening a directory found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DiskRecovery {
    /// The directory was empty, or its making had been interrupted.
    pub created: bool,
    /// Objects that lookups find.
    pub objects: u64,
    /// Their bytes, in blocks.
    pub block_bytes: u64,
    /// Segments read by their footers.
    pub sealed: u64,
    /// Segments read by their group headers, because they were open or their footer is damaged; sealed now.
    pub walked: u64,
    /// Objects found more than once; the newest counts.
    pub duplicates: u64,
    /// Objects that are marked as deleted or moved.
    pub marked: u64,
    /// A sentence for each segment that was set aside or of which something is lost.
    pub damaged: Vec<String>,
    /// Name of the backend: `io_uring`, `threads` or `memory`.
    pub backend: &'static str,
    /// Why io_uring is not used although the configuration left the choice; empty otherwise.
    pub ring_refused: String,
    /// Time until the tier could serve.
    pub elapsed: Duration,
}
