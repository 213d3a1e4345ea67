//! What calls take and return.

use super::copy::append_crc;
use crate::rpc::ids::ChainKey;
use crate::rpc::limits::{CHUNK_BYTES, MAX_VALUE_BYTES, PARTS};
use crate::rpc::v1;
use crate::shm::copy_crc32c_append;
use smallvec::SmallVec;
use std::sync::Arc;

/// One part of one page, and where it belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectId {
    /// Chain key of the page.
    pub key: ChainKey,
    /// group x 32 + shard, 0 to 63; group 0 for full pages, 1 for SWA pages.
    pub part: u8,
    /// Chain key of the first page of its extent: decides which node owns it.
    pub extent: ChainKey,
}

/// Consecutive keys of one extent.
#[derive(Debug, Clone, Copy)]
pub struct KeyRun<'a> {
    /// Chain key of the extent's first page.
    pub extent: ChainKey,
    /// Keys of any of its pages.
    pub keys: &'a [ChainKey],
}

/// Why there are no bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Miss {
    /// The node has no such object for this tenant.
    Absent,
    /// The bytes did not match their CRC32C, at the node or here; the node drops them.
    Damaged,
    /// The node did not answer within the deadline.
    Late,
    /// The node is down: no connection, or it broke.
    Unreachable,
    /// The node was down, hung or slow a moment ago and is left alone.
    Refused,
    /// The node has too much to do.
    Overloaded,
    /// The node is fresh, and this bucket's turn has not come.
    Ramp,
    /// There is no node.
    NoNode,
    /// This process has no memory for its bytes.
    NoMemory,
}

/// What a node says to a request that it refuses for what it asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Name of the node.
    pub node: String,
    /// Number of the gRPC status.
    pub code: i32,
    /// Its sentence.
    pub sentence: String,
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "node {} refused the request (status {}): {}", self.node, self.code, self.sentence)
    }
}

/// A storage tier of a node, the fastest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Source {
    /// Its memory.
    Memory,
    /// Its disks.
    Disk,
    /// The object store below them.
    Remote,
}

impl Source {
    /// Its name in the contract's statistics.
    pub fn name(self) -> &'static str {
        match self {
            Source::Memory => "memory",
            Source::Disk => "disk",
            Source::Remote => "remote",
        }
    }
}

impl From<v1::Source> for Source {
    fn from(said: v1::Source) -> Source {
        match said {
            v1::Source::Memory => Source::Memory,
            v1::Source::Disk => Source::Disk,
            v1::Source::Remote => Source::Remote,
        }
    }
}

/// What became of one object of a get.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Got {
    /// All bytes are in the destination, and match the CRCs of their writer.
    Hit {
        /// Bytes of the value.
        length: u64,
        /// Layout number of the bytes.
        layout: u32,
        /// Where the node had it; `None` from a node of version 1, which does not say.
        source: Option<Source>,
    },
    /// No bytes. The destination holds anything.
    Miss(Miss),
    /// The value is longer than its destination.
    TooLong {
        /// Bytes of the value.
        length: u64,
    },
    /// The node refused the request.
    Failed(Arc<Refusal>),
}

impl Got {
    /// Whether all bytes are there.
    pub fn is_hit(&self) -> bool {
        matches!(self, Got::Hit { .. })
    }
}

/// What became of one object of a put.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stored {
    /// Committed: it survives the node's process.
    Stored,
    /// It was there already, with the bytes of its first writer.
    Present,
    /// Another writer is at it.
    Busy,
    /// The node's memory is held by pins, leases and writers.
    NoRoom,
    /// Bytes changed on the way; nothing was stored.
    Corrupt,
    /// Not sent, or not known to be stored. After [`Miss::Late`] or [`Miss::Unreachable`] it may have been stored all the same.
    Dropped(Miss),
    /// The node refused the request.
    Failed(Arc<Refusal>),
}

/// Memory for one value: the caller's, in one or more segments, or a vector that grows with the bytes that arrive.
#[derive(Debug)]
pub enum Destination<'a> {
    /// Filled one after the other. A value shorter than all of them leaves the rest as it is.
    Segments(SmallVec<[&'a mut [u8]; 1]>),
    /// Replaced by the value.
    Grow(Vec<u8>),
}

impl Destination<'_> {
    /// The longest value that fits.
    pub fn room(&self) -> u64 {
        match self {
            Destination::Segments(s) => s.iter().map(|s| s.len() as u64).sum(),
            Destination::Grow(_) => MAX_VALUE_BYTES,
        }
    }
}

impl Destination<'_> {
    /// Bytes to reckon with: the room, or a guess where it is not known.
    pub(super) fn expected(&self) -> u64 {
        match self {
            Destination::Segments(_) => self.room(),
            Destination::Grow(_) => 1 << 20,
        }
    }
}

impl<'a> From<&'a mut [u8]> for Destination<'a> {
    fn from(whole: &'a mut [u8]) -> Self {
        Destination::Segments(SmallVec::from_buf([whole]))
    }
}

/// One object of a get: its name, where its bytes go, and what became of it.
#[derive(Debug)]
pub struct GetItem<'a> {
    /// Which object.
    pub id: ObjectId,
    /// Where its bytes go.
    pub into: Destination<'a>,
    /// [`Miss::NoNode`] until the call sets it.
    pub got: Got,
}

impl<'a> GetItem<'a> {
    /// An object to get.
    pub fn new(id: ObjectId, into: impl Into<Destination<'a>>) -> Self {
        GetItem { id, into: into.into(), got: Got::Miss(Miss::NoNode) }
    }
}

/// One object of a put.
#[derive(Debug, Clone)]
pub struct PutItem<'a> {
    /// Which object.
    pub id: ObjectId,
    /// Its bytes, in one or more segments.
    pub data: SmallVec<[&'a [u8]; 1]>,
    /// Index of the page in its prefix: a node drops the tail of an extent before its head.
    pub page_index: u32,
    /// An SWA page whose checkpoint has a successor: a node drops it first.
    pub superseded: bool,
    /// Layout number of the bytes.
    pub layout: u32,
}

impl<'a> PutItem<'a> {
    /// A value at page 0, not superseded, of layout 0.
    pub fn new(id: ObjectId, data: &'a [u8]) -> Self {
        PutItem { id, data: SmallVec::from_buf([data]), page_index: 0, superseded: false, layout: 0 }
    }

    /// Bytes of the value.
    pub fn length(&self) -> u64 {
        self.data.iter().map(|s| s.len() as u64).sum()
    }
}

/// Answer of `exists`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Presence {
    /// For each key, in order over all runs, the parts that are there: bit p for part p.
    pub masks: Vec<u64>,
    /// For each run, how many of its first keys are leased in all the parts reported.
    pub leased: Vec<u32>,
    /// For each run, why its node was not asked or did not answer.
    pub unanswered: Vec<Option<Miss>>,
    /// What nodes said that refused their part of the request: one of each.
    pub refused: Vec<Arc<Refusal>>,
    /// Every key was refused, and there was one.
    pub all_refused: bool,
}

/// Answer of `touch`, `delete` and `verify`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Counted {
    /// Touched: how many are there. Deleted: how many were. Verified: how many are sound.
    pub count: u64,
    /// Verified: how many were dropped.
    pub dropped: u64,
    /// Nodes that did not answer, by name.
    pub unanswered: Vec<String>,
    /// What nodes said that refused their part of the request: one of each, by name.
    pub refused: Vec<Arc<Refusal>>,
    /// Every object was refused, and there was one.
    pub all_refused: bool,
}

/// Refuses an object whose part is out of range.
pub(super) fn check_part(part: u8) -> crate::error::Result<()> {
    if part >= PARTS {
        return Err(crate::error::Error::invalid("part", part, format!("0 to {}", PARTS - 1)));
    }
    Ok(())
}

/// There is no memory for bytes whose number the other side, or the caller, has named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoMemory;

/// Makes room for `more` bytes behind `value`: doubled, or just so much where that cannot be had.
pub fn make_room(value: &mut Vec<u8>, more: usize) -> std::result::Result<(), NoMemory> {
    value.try_reserve(more).or_else(|_| value.try_reserve_exact(more)).map_err(|_| NoMemory)
}

/// Copies a value's bytes one piece after the other into its destination, with the CRC32C of each chunk.
#[derive(Debug, Default)]
pub(super) struct Fill {
    /// Bytes so far.
    pub at: u64,
    /// CRC32C of the chunk so far.
    pub crc: u32,
    segment: usize,
    offset: usize,
}

impl Fill {
    /// The next bytes. What lies beyond the room is counted, not copied; the caller has refused such a value.
    ///
    /// # Errors
    /// There is no memory for them; they are counted.
    pub fn push(&mut self, into: &mut Destination<'_>, mut bytes: &[u8]) -> std::result::Result<(), NoMemory> {
        if self.at.is_multiple_of(CHUNK_BYTES as u64) {
            self.crc = 0;
        }
        self.at += bytes.len() as u64;
        match into {
            Destination::Grow(value) => {
                make_room(value, bytes.len())?;
                self.crc = append_crc(value, bytes, self.crc);
            }
            Destination::Segments(segments) => {
                while let Some(segment) = segments.get_mut(self.segment) {
                    let n = bytes.len().min(segment.len() - self.offset);
                    self.crc = copy_crc32c_append(self.crc, &mut segment[self.offset..self.offset + n], &bytes[..n]);
                    bytes = &bytes[n..];
                    self.offset += n;
                    if bytes.is_empty() {
                        break;
                    }
                    (self.segment, self.offset) = (self.segment + 1, 0);
                }
            }
        }
        Ok(())
    }
}
