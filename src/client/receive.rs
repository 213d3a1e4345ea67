//! Puts the pieces of one `Get` into the destinations of its objects, and checks what the protocol promises of them.

use super::transport::GetBatch;
use super::types::{Destination, Fill, GetItem, Got, Miss, NoMemory, Source};
use crate::rpc::frame::PieceHead;
use crate::rpc::limits::{CHUNK_BYTES, MAX_PIECE_BYTES, MAX_VALUE_BYTES, SOURCE_VERSION};
use crate::rpc::pieces::Pieces;
use crate::rpc::v1::{self, GetReply, MissReason};

/// What a node did that the protocol does not allow.
pub type Breach = String;

/// The objects of one request, and the value that is arriving.
pub struct Receive<'r, 'b, 'a> {
    items: &'r mut [&'b mut GetItem<'a>],
    got: &'r mut [Option<Got>],
    damaged: &'r mut Vec<usize>,
    /// Positions in `items` of the objects that were asked for, in this order.
    asked: Vec<usize>,
    /// The version of the protocol that was agreed upon.
    version: u32,
    /// Index in `asked` of the object whose turn it is. Nothing else may come: its number is not under any CRC.
    next: usize,
    current: Option<Current>,
    piece: PieceHead,
}

/// The value that is arriving.
struct Current {
    index: u32,
    position: usize,
    length: u64,
    layout: u32,
    source: Option<Source>,
    fill: Fill,
    too_long: bool,
    damaged: bool,
    /// There was no memory for its bytes.
    short: bool,
}

impl<'r, 'b, 'a> Receive<'r, 'b, 'a> {
    /// Nothing has come yet; the objects at `asked` were asked for, in this order, in a request of `version`.
    pub fn new(batch: &'r mut GetBatch<'b, 'a>, asked: Vec<usize>, version: u32) -> Self {
        let GetBatch { items, got, damaged, .. } = batch;
        Receive { items, got, damaged, asked, version, next: 0, current: None, piece: PieceHead::default() }
    }

    /// Whether every object asked for has come or will not.
    pub fn is_complete(&self) -> bool {
        self.next == self.asked.len()
    }

    /// The position of the object whose turn it is, if that is the one at `index`.
    fn position(&self, index: u32) -> Result<usize, Breach> {
        match self.asked.get(self.next) {
            Some(&position) if index as usize == self.next => Ok(position),
            _ => Err(format!("object {index} when object {} of {} was due", self.next, self.asked.len())),
        }
    }

    fn settle(&mut self, position: usize, got: Got) {
        self.got[position] = Some(got);
        self.next += 1;
        self.current = None;
    }

    fn miss(&mut self, index: u32, reason: MissReason) -> Result<(), Breach> {
        let position = self.position(index)?;
        // What has come of the value before is void.
        let miss = match reason {
            MissReason::Damaged => Miss::Damaged,
            MissReason::Absent | MissReason::Unspecified => Miss::Absent,
        };
        self.settle(position, Got::Miss(miss));
        Ok(())
    }

    fn start(&mut self, head: &PieceHead) -> Result<Current, Breach> {
        let position = self.position(head.index)?;
        if !(1..=MAX_VALUE_BYTES).contains(&head.length) {
            return Err(format!("a value of {} bytes, allowed is 1 to {MAX_VALUE_BYTES}", head.length));
        }
        let source = self.source(head.source)?;
        let into = &mut self.items[position].into;
        let too_long = into.room() < head.length;
        if let Destination::Grow(value) = into {
            value.clear();
        }
        let PieceHead { index, length, layout, .. } = *head;
        let fill = Fill::default();
        Ok(Current { index, position, length, layout, source, fill, too_long, damaged: false, short: false })
    }

    /// Where the node says it had a value. One of version 1 says nothing.
    fn source(&self, said: i32) -> Result<Option<Source>, Breach> {
        match v1::Source::try_from(said) {
            Ok(source) if self.version >= SOURCE_VERSION => Ok(Some(source.into())),
            Ok(v1::Source::Memory) => Ok(None),
            _ => Err(format!("a value from tier {said} in version {}, allowed is 0 to 2 from version 2 on", self.version)),
        }
    }
}

impl Pieces for Receive<'_, '_, '_> {
    type Message = GetReply;
    type Error = Breach;

    fn begin(&mut self, head: PieceHead, bytes: usize) -> Result<(), Breach> {
        if self.current.is_none() {
            self.current = Some(self.start(&head)?);
        }
        let Some(current) = &self.current else { return Ok(()) };
        let at = current.fill.at;
        let end = at + bytes as u64;
        let in_chunk = at as usize % CHUNK_BYTES + bytes;
        let sizes_fit = (1..=MAX_PIECE_BYTES).contains(&bytes) && end <= current.length && in_chunk <= CHUNK_BYTES;
        if current.index != head.index || head.offset != at || !sizes_fit {
            return Err(format!(
                "{bytes} bytes at {} of object {}, after {at} of {} bytes of object {}",
                head.offset, head.index, current.length, current.index
            ));
        }
        let ends_chunk = in_chunk == CHUNK_BYTES || end == current.length;
        if head.crc32c.is_some() != ends_chunk {
            return Err(format!("at {end} of object {} a CRC within a chunk, or none at its end", head.index));
        }
        self.piece = head;
        Ok(())
    }

    fn data(&mut self, bytes: &[u8]) {
        let Some(current) = &mut self.current else { return };
        if current.too_long || current.damaged || current.short {
            current.fill.at += bytes.len() as u64;
            return;
        }
        let into = &mut self.items[current.position].into;
        if let (Err(NoMemory), Destination::Grow(value)) = (current.fill.push(into, bytes), into) {
            current.short = true;
            *value = Vec::new();
        }
    }

    fn end(&mut self) -> Result<(), Breach> {
        let Some(current) = &mut self.current else { return Ok(()) };
        let copied = !(current.too_long || current.damaged || current.short);
        if copied && self.piece.crc32c.is_some_and(|crc| crc != current.fill.crc) {
            current.damaged = true;
            self.damaged.push(current.position);
        }
        if current.fill.at < current.length {
            return Ok(());
        }
        let &mut Current { position, length, layout, source, .. } = current;
        let got = match current {
            Current { too_long: true, .. } => Got::TooLong { length },
            Current { damaged: true, .. } => Got::Miss(Miss::Damaged),
            Current { short: true, .. } => Got::Miss(Miss::NoMemory),
            _ => Got::Hit { length, layout, source },
        };
        self.settle(position, got);
        Ok(())
    }

    fn message(&mut self, message: GetReply, _: u32) -> Result<(), Breach> {
        message.misses.iter().try_for_each(|miss| self.miss(miss.index, miss.reason()))
    }
}
