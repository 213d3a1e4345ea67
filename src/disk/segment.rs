//! What is known of a segment in memory.

use super::calls::PutDone;
use super::device::FileId;
use super::footer::{Listed, Trailer};
use super::layout::{MARKED, MARKS_AT, MAX_ENTRIES, is_marked, mark_blocks};
use super::{BLOCK, Buffer};
use std::collections::{BTreeSet, VecDeque};

/// Place in the table of segments.
pub type SegmentId = u32;

/// Phases that there are.
pub const PHASES: usize = 5;

/// What is being done with a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Holds nothing, and its header says so.
    Free,
    /// Takes groups.
    Open,
    /// Takes no more; waits for its last groups and its footer.
    Sealing,
    /// Has a footer.
    Sealed,
    /// Its objects are being moved or dropped.
    Reclaiming,
}

/// An entry on its way to the device.
pub struct Item {
    /// Hash of tenant and key.
    pub hash: u64,
    /// Part.
    pub part: u8,
    /// Entry of the segment.
    pub number: u16,
    /// First block of the value.
    pub at: u32,
    /// From the group's header to the value, in blocks.
    pub back: u16,
    /// Bytes of the value.
    pub len: u64,
    /// Where it is moved from: segment and entry; none for a put.
    pub from: Option<(SegmentId, u16)>,
    /// Called when the entry is accepted.
    pub done: PutDone,
}

/// How far a group's write has come.
pub enum Written {
    /// In flight.
    No,
    /// Completed; gives the buffers back, in the order of the items.
    Yes(Vec<Box<dyn Buffer>>),
    /// Failed.
    Failed(String, Vec<Box<dyn Buffer>>),
}

/// A group on its way to the device.
pub struct InFlight {
    /// Block of its header.
    pub block: u32,
    /// Its entries.
    pub items: Vec<Item>,
    /// Bytes that count as in flight.
    pub bytes: u64,
    /// How far it has come.
    pub written: Written,
}

/// What a segment that takes groups needs beyond the rest.
#[derive(Default)]
pub struct Writing {
    /// First block that is free.
    pub next: u32,
    /// Groups that are not accepted yet, by position. They are accepted in this order, since a walk after a crash stops at
    /// the first that is not there.
    pub groups: VecDeque<InFlight>,
    /// The segment's header is written, so groups can be accepted.
    pub named: bool,
    /// A write failed: nothing later is accepted.
    pub failed: Option<String>,
    /// The footer to be.
    pub listed: Vec<Listed>,
}

/// A segment file.
pub struct Segment {
    /// The file.
    pub file: FileId,
    /// Number in its name.
    pub number: u32,
    /// Blocks of the file.
    pub blocks: u32,
    /// Given when it was last opened.
    pub generation: u64,
    /// Whose entries.
    pub stream: u8,
    /// What is being done with it.
    pub phase: Phase,
    /// A byte for each entry: deleted, moved, or never accepted.
    pub marks: Vec<u8>,
    /// Blocks of the marks that are not on disk.
    pub dirty: BTreeSet<u32>,
    /// Objects of the index.
    pub live: u32,
    /// Their blocks.
    pub live_blocks: u64,
    /// While it is open or being sealed.
    pub writing: Option<Box<Writing>>,
}

impl Segment {
    /// A segment that holds nothing.
    pub fn free(file: FileId, number: u32, blocks: u32, generation: u64) -> Segment {
        Segment {
            file,
            number,
            blocks,
            generation,
            stream: 0,
            phase: Phase::Free,
            marks: Vec::new(),
            dirty: BTreeSet::new(),
            live: 0,
            live_blocks: 0,
            writing: None,
        }
    }

    /// First block that groups use.
    pub fn data_at(&self) -> u32 {
        data_at(self.blocks)
    }

    /// Bytes of the file.
    pub fn bytes(&self) -> u64 {
        u64::from(self.blocks) * BLOCK as u64
    }

    /// Entries, accepted or not.
    pub fn entries(&self) -> usize {
        self.marks.len()
    }

    /// Whether a group of so many more entries and blocks still leaves room for the footer.
    pub fn has_room(&self, entries: usize, blocks: u32) -> bool {
        let Some(writing) = &self.writing else { return false };
        fits(self.blocks, writing.next, self.entries() + entries, blocks)
    }

    /// Marks an entry.
    pub fn mark(&mut self, number: u16) {
        let number = usize::from(number);
        if !is_marked(self.marks[number]) {
            self.marks[number] = MARKED;
            self.dirty.insert((number / BLOCK) as u32);
        }
    }

    /// Whether an entry is marked.
    pub fn is_marked(&self, number: u16) -> bool {
        is_marked(self.marks[usize::from(number)])
    }

    /// A block of the marks as it is to be on disk, and its block in the segment.
    pub fn mark_block(&self, block: u32) -> (u32, Vec<u8>) {
        let from = block as usize * BLOCK;
        let mut bytes = self.marks[from..self.marks.len().min(from + BLOCK)].to_vec();
        bytes.resize(BLOCK, 0);
        (MARKS_AT + block, bytes)
    }

    /// Whether nothing of it is on its way to the device.
    pub fn is_settled(&self) -> bool {
        self.writing.as_ref().is_none_or(|w| w.groups.is_empty() && w.named)
    }
}

/// First block that groups use in a segment of so many blocks.
pub fn data_at(blocks: u32) -> u32 {
    MARKS_AT + mark_blocks(blocks)
}

/// Whether `more` blocks from `next` on leave room for a footer of `entries` entries.
pub fn fits(blocks: u32, next: u32, entries: usize, more: u32) -> bool {
    entries <= MAX_ENTRIES && u64::from(next) + u64::from(more) + u64::from(footer_blocks(entries)) <= u64::from(blocks)
}

/// Blocks of a footer.
pub fn footer_blocks(entries: usize) -> u32 {
    Trailer::record_blocks(entries) + 1
}

/// Name of a segment's file.
pub fn file_name(number: u32) -> String {
    format!("segment-{number:08x}")
}

/// The number in a name of [`file_name`].
pub fn number_of(name: &str) -> Option<u32> {
    let digits = name.strip_prefix("segment-").filter(|d| d.len() == 8)?;
    u32::from_str_radix(digits, 16).ok().filter(|&n| file_name(n) == name)
}
