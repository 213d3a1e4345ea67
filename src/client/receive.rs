//! Puts the pieces of one `Get` into the destinations of its objects, and checks what the protocol promises of them.

use super::reply::{Breach, PieceHead, Pieces};
use super::types::{Fill, GetItem, Got, Miss};
use crate::rpc::limits::{CHUNK_BYTES, MAX_PIECE_BYTES, MAX_VALUE_BYTES};
use crate::rpc::v1::MissReason;

/// The objects of one request, by position. Those that are settled stay so; the others are unset until they come.
pub struct Receive<'r, 'a> {
    items: &'r mut [GetItem<'a>],
    /// Positions in `items` of the objects that were asked for.
    asked: Vec<usize>,
    settled: Vec<bool>,
    current: Option<Current>,
    piece: PieceHead,
    /// Values that did not match their CRC here: the node does not know yet.
    pub damaged: Vec<usize>,
}

/// The value that is arriving.
struct Current {
    index: usize,
    length: u64,
    layout: u32,
    fill: Fill,
    /// Its bytes are of no use any more.
    void: bool,
}

impl<'r, 'a> Receive<'r, 'a> {
    /// Nothing has come yet; the objects at `asked` were asked for, in this order.
    pub fn new(items: &'r mut [GetItem<'a>], asked: Vec<usize>) -> Self {
        let settled = vec![false; asked.len()];
        Receive { items, asked, settled, current: None, piece: PieceHead::default(), damaged: Vec::new() }
    }

    /// Whether every object asked for has come or will not.
    pub fn is_complete(&self) -> bool {
        self.current.is_none() && self.settled.iter().all(|&s| s)
    }

    /// Positions in the items of the objects that neither came nor will.
    pub fn open(&self) -> impl Iterator<Item = usize> + '_ {
        self.asked.iter().zip(&self.settled).filter(|(_, settled)| !**settled).map(|(&at, _)| at)
    }

    fn settle(&mut self, index: usize, got: Got) {
        self.settled[index] = true;
        self.items[self.asked[index]].got = got;
    }

    fn start(&mut self, head: &PieceHead) -> Result<Current, Breach> {
        let index = head.index as usize;
        match self.settled.get(index) {
            None => return Err(format!("object {index} of a batch of {}", self.settled.len())),
            Some(true) => return Err(format!("pieces of object {index}, which was there or missed before")),
            Some(false) => {}
        }
        if !(1..=MAX_VALUE_BYTES).contains(&head.length) {
            return Err(format!("a value of {} bytes, allowed is 1 to {MAX_VALUE_BYTES}", head.length));
        }
        let into = &mut self.items[self.asked[index]].into;
        let void = into.room() < head.length;
        if let super::types::Destination::Grow(value) = into {
            value.clear();
        }
        Ok(Current { index, length: head.length, layout: head.layout, fill: Fill::default(), void })
    }
}

impl Pieces for Receive<'_, '_> {
    fn begin(&mut self, head: PieceHead) -> Result<(), Breach> {
        if self.current.is_none() {
            self.current = Some(self.start(&head)?);
        }
        let Some(current) = &self.current else { return Ok(()) };
        let at = current.fill.at;
        let end = at + head.bytes as u64;
        let in_chunk = at as usize % CHUNK_BYTES + head.bytes;
        let sizes_fit = (1..=MAX_PIECE_BYTES).contains(&head.bytes) && end <= current.length && in_chunk <= CHUNK_BYTES;
        if current.index != head.index as usize || head.offset != at || !sizes_fit {
            return Err(format!(
                "{} bytes at {} of object {}, after {at} of {} bytes of object {}",
                head.bytes, head.offset, head.index, current.length, current.index
            ));
        }
        let ends_chunk = in_chunk == CHUNK_BYTES || end == current.length;
        if head.crc32c.is_some() != ends_chunk {
            return Err(format!("a CRC at {end} of object {} where a chunk does not end, or none where one does", head.index));
        }
        self.piece = head;
        Ok(())
    }

    fn data(&mut self, bytes: &[u8]) {
        let Some(current) = &mut self.current else { return };
        if current.void {
            current.fill.at += bytes.len() as u64;
        } else {
            current.fill.push(&mut self.items[self.asked[current.index]].into, bytes);
        }
    }

    fn end(&mut self) -> Result<(), Breach> {
        let Some(current) = &mut self.current else { return Ok(()) };
        let position = self.asked[current.index];
        let too_long = self.items[position].into.room() < current.length;
        if !current.void && self.piece.crc32c.is_some_and(|crc| crc != current.fill.crc) {
            current.void = true;
            self.damaged.push(position);
        }
        if current.fill.at < current.length {
            return Ok(());
        }
        let (index, length, layout) = (current.index, current.length, current.layout);
        let got = match (too_long, current.void) {
            (true, _) => Got::TooLong { length },
            (_, true) => Got::Miss(Miss::Damaged),
            _ => Got::Hit { length, layout },
        };
        self.current = None;
        self.settle(index, got);
        Ok(())
    }

    fn miss(&mut self, index: u32, reason: MissReason) -> Result<(), Breach> {
        let index = index as usize;
        if self.settled.get(index) != Some(&false) {
            return Err(format!("a miss of object {index}, which was not open"));
        }
        match &self.current {
            Some(current) if current.index == index => self.current = None,
            Some(current) => return Err(format!("a miss of object {index} amid object {}", current.index)),
            None => {}
        }
        let miss = match reason {
            MissReason::Damaged => Miss::Damaged,
            MissReason::Absent | MissReason::Unspecified => Miss::Absent,
        };
        self.settle(index, Got::Miss(miss));
        Ok(())
    }
}
