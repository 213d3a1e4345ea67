//! Reading segments back: footers of sealed ones, group headers of the others, no values. Whatever fails a check is set
//! aside or left out, never trusted and never reused; nothing that is read decides a size before it was checked.

use super::core::Core;
use super::device::FileId;
use super::footer::{self, Listed};
use super::group::Group;
use super::index::Record;
use super::io::Io;
use super::layout::{
    Damaged, MARKS_AT, MAX_SEGMENT_BYTES, MIN_SEGMENT_BYTES, SegmentHeader, Use, blocks_of, is_marked, mark_blocks,
};
use super::segment::{Phase, Segment, SegmentId, data_at, fits, footer_blocks, number_of};
use super::shared::Shared;
use super::{BLOCK, DiskRecovery};
use std::io;
use std::sync::Arc;

/// A segment as it was found.
struct Found {
    file: FileId,
    header: SegmentHeader,
    entries: Vec<Listed>,
    marks: Vec<u8>,
    /// It has no footer that counts.
    walked: bool,
}

/// Why a segment is not used.
enum Bad {
    Damaged(String),
    Io(io::Error),
}

impl From<Damaged> for Bad {
    fn from(damaged: Damaged) -> Bad {
        Bad::Damaged(damaged.0.to_string())
    }
}

impl From<io::Error> for Bad {
    fn from(error: io::Error) -> Bad {
        Bad::Io(error)
    }
}

impl Shared {
    /// Enters what all segments hold into an empty index. Files that cannot be used are renamed, so that what they hold
    /// cannot come back when they can be read again.
    pub fn recover(self: &Arc<Self>, names: &[(String, u64)], report: &mut DiskRecovery) -> io::Result<()> {
        let mut found = Vec::new();
        let (directory, epoch) = self.with(|core, _| (core.directory, core.epoch)).map_err(io::Error::other)?;
        for (name, len) in names {
            let Some(number) = number_of(name) else { continue };
            let file = self.io.device.open(name)?;
            match self.read_segment(file, number, *len, directory, epoch, report) {
                Ok(Some(segment)) => found.push(segment),
                Ok(None) => {
                    let segment = Segment::free(file, number, blocks_of(*len), 0);
                    self.with(|core, _| core.add_segment(segment)).map_err(io::Error::other)?;
                }
                Err(bad) => {
                    self.io.device.close(file);
                    let why = match bad {
                        Bad::Damaged(why) => why,
                        Bad::Io(e) => format!("it cannot be read ({e})"),
                    };
                    let aside = self.set_aside(name, names)?;
                    report.damaged.push(format!(
                        "{name} was set aside as {aside} because {why}; remove it when it is not needed"
                    ));
                }
            }
        }
        // Of an object that is found twice the newest counts.
        found.sort_unstable_by_key(|f| f.header.generation);
        for segment in found {
            self.enter_segment(segment, report);
        }
        Ok(())
    }

    fn set_aside(&self, name: &str, names: &[(String, u64)]) -> io::Result<String> {
        let free = (0..).map(|n| format!("damaged-{n}-{name}")).find(|to| names.iter().all(|(n, _)| n != to));
        let to = free.unwrap_or_default();
        self.io.device.rename(name, &to)?;
        Ok(to)
    }

    /// None: it holds nothing.
    fn read_segment(
        self: &Arc<Self>,
        file: FileId,
        number: u32,
        len: u64,
        directory: [u8; 16],
        epoch: u32,
        report: &mut DiskRecovery,
    ) -> Result<Option<Found>, Bad> {
        if !(MIN_SEGMENT_BYTES..=MAX_SEGMENT_BYTES).contains(&len) || !len.is_multiple_of(BLOCK as u64) {
            return Err(Bad::Damaged(format!("it has {len} bytes, which no segment has")));
        }
        let blocks = blocks_of(len);
        let first = self.io.read_now(file, 0, MARKS_AT + mark_blocks(blocks))?;
        let block = first[..BLOCK].try_into().expect("a block");
        let marks = &first[MARKS_AT as usize * BLOCK..];
        let header = SegmentHeader::decode(block, blocks)?;
        if let Some(h) = header {
            if h.directory != directory || h.number != number {
                return Err(Bad::Damaged("it belongs to another directory, or was renamed".into()));
            }
            // This process raised the epoch, so everything in the directory is older.
            if h.generation >> 32 >= u64::from(epoch) {
                return Err(Bad::Damaged("its generation is newer than the manifest".into()));
            }
        }
        let Some(header) = header.filter(|h| h.used == Use::Taken) else {
            // Freed, or only made: the marks of its last life may still be there.
            if marks.iter().any(|b| *b != 0) {
                self.io.write_now(file, MARKS_AT, &vec![0; marks.len()])?;
            }
            return Ok(None);
        };
        let listed = self.read_footer(file, header.generation, blocks)?;
        let walked = listed.is_none();
        let entries = match listed {
            Some(entries) => entries,
            None => {
                let (entries, next) = walk(&self.io, file, header.generation, blocks)?;
                if !fits(blocks, next, entries.len(), 0) {
                    return Err(Bad::Damaged("its groups leave no room for a footer".into()));
                }
                entries
            }
        };
        *(if walked { &mut report.walked } else { &mut report.sealed }) += 1;
        let marks = marks.get(..entries.len()).ok_or(Damaged("it has more entries than marks"))?.to_vec();
        Ok(Some(Found { file, header, entries, marks, walked }))
    }

    fn enter_segment(self: &Arc<Self>, found: Found, report: &mut DiskRecovery) {
        let Found { file, header, entries, marks, walked } = found;
        let entered = self.with(|core, _| {
            let mut segment = Segment::free(file, header.number, header.blocks, header.generation);
            segment.stream = header.stream;
            segment.phase = if walked { Phase::Sealing } else { Phase::Sealed };
            segment.marks = marks;
            let id = core.add_segment(segment);
            for (number, entry) in entries.iter().enumerate() {
                core.recover_entry(id, number as u16, entry, report);
            }
            id
        });
        let Ok(id) = entered else { return };
        if !walked {
            return;
        }
        if entries.is_empty() {
            self.free(id);
            return;
        }
        let footer = footer::encode(header.generation, &entries);
        match self.write_footer(file, header.blocks, &footer) {
            Ok(()) => drop(self.with(|core, _| core.set_phase(id, Phase::Sealed))),
            Err(e) => self.write_failed("a segment that was open could not be sealed", &e),
        }
    }
}

/// Entries of the groups from the first to the last that is whole, and the block after it.
fn walk(io: &Arc<Io>, file: FileId, generation: u64, blocks: u32) -> io::Result<(Vec<Listed>, u32)> {
    let (mut entries, mut next) = (Vec::new(), data_at(blocks));
    while next < blocks - footer_blocks(entries.len()).min(blocks) {
        let block = io.read_block(file, next)?;
        let Ok(group) = Group::decode(&block, generation, next, blocks) else { break };
        if group.first as usize != entries.len() {
            break;
        }
        entries.extend(Listed::of_group(&group));
        next += group.blocks();
    }
    Ok((entries, next))
}

impl Core {
    fn recover_entry(&mut self, id: SegmentId, number: u16, entry: &Listed, report: &mut DiskRecovery) {
        if is_marked(self.segment(id).marks[usize::from(number)]) {
            // Whole, so that it does not come nearer to no mark.
            self.segment_mut(id).marks[usize::from(number)] = super::layout::MARKED;
            report.marked += 1;
            return;
        }
        self.segment_mut(id).marks[usize::from(number)] = 0;
        let hash = self.index.hash(entry.tenant, &entry.key);
        if self.index.find(hash, entry.part).is_some() {
            report.duplicates += 1;
        }
        let record = Record {
            hash,
            segment: id,
            at: entry.at,
            back: (entry.at - entry.header) as u16,
            blocks: blocks_of(u64::from(entry.len)) as u16,
            number,
            part: entry.part,
            flags: 0,
        };
        if !self.enter(record) {
            self.segment_mut(id).mark(number);
        }
    }

    /// Objects and their blocks, for the report.
    pub fn summed(&self) -> (u64, u64) {
        let blocks: u64 = self.each().map(|(_, s)| s.live_blocks).sum();
        (self.index.len() as u64, blocks * BLOCK as u64)
    }
}

/// Whether a name is one that the tier gives.
pub fn is_ours(name: &str) -> bool {
    let aside = |n: &str| {
        n.strip_prefix("damaged-").is_some_and(|rest| {
            rest.split_once('-').is_some_and(|(d, n)| d.parse::<u32>().is_ok() && number_of(n).is_some())
        })
    };
    number_of(name).is_some()
        || name == super::manifest::NAME
        || name.ends_with(".new")
        || aside(name)
        || name == "lost+found"
}
