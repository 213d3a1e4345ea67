//! Reads the messages of a `Get` as their bytes come, so that a piece's data goes from the network's buffer into the
//! caller's memory without a stop: no message is put together first.
//!
//! Encoders write fields in the order of their numbers, and `data` has the highest, so a message normally is a few bytes of
//! head and then data to its end. Any other order is valid too and is decoded as a whole. Either way the check of a message
//! is compared before anything is believed.

use crate::rpc::check;
use crate::rpc::frame::PieceHead;
use crate::rpc::limits::MAX_MESSAGE_BYTES;
use crate::rpc::v1::{GetReply, MissReason};
use prost::Message;

/// What a node did that the protocol does not allow.
pub type Breach = String;

/// Takes what the messages mean.
pub trait Pieces {
    /// A piece begins. So many bytes of its data follow in any number of calls of `data`, then `end`.
    fn begin(&mut self, head: PieceHead, bytes: usize) -> Result<(), Breach>;
    /// More of its data.
    fn data(&mut self, bytes: &[u8]);
    /// All of it has come.
    fn end(&mut self) -> Result<(), Breach>;
    /// An object that does not come.
    fn miss(&mut self, index: u32, reason: MissReason) -> Result<(), Breach>;
}

/// Bytes of a message's frame in gRPC: a flag for compression and a length.
pub const PREFIX: usize = 5;
/// No head is longer: the check, five numbers of at most ten bytes, and their tags.
const MOST_HEAD: usize = 64;

/// See the head of this file.
#[derive(Debug)]
pub struct ReplyParser {
    /// The request's check, with which the checks of the answers begin.
    seed: u32,
    state: State,
    /// The start of a message as far as it was not understood yet.
    held: Vec<u8>,
}

#[derive(Debug)]
enum State {
    /// In the prefix.
    Prefix,
    /// In a message of so many bytes, before its data.
    Head(usize),
    /// In the data, of which so many bytes are left.
    Data(usize),
    /// In a message of so many bytes that is decoded as a whole.
    Whole(usize),
}

impl ReplyParser {
    /// Of the answer to a request with this check.
    pub fn new(seed: u32) -> ReplyParser {
        ReplyParser { seed, state: State::Prefix, held: Vec::new() }
    }

    /// Takes the next bytes of the stream.
    ///
    /// # Errors
    /// What is no message of the contract, or what `pieces` says.
    pub fn feed(&mut self, mut bytes: &[u8], pieces: &mut impl Pieces) -> Result<(), Breach> {
        while !bytes.is_empty() {
            match self.state {
                State::Prefix => {
                    self.hold(&mut bytes, PREFIX);
                    if self.held.len() == PREFIX {
                        self.state = State::Head(message_length(&self.held)?);
                        self.held.clear();
                        self.look(&mut bytes, pieces)?;
                    }
                }
                State::Head(_) => self.look(&mut bytes, pieces)?,
                State::Data(left) => {
                    let n = left.min(bytes.len());
                    pieces.data(&bytes[..n]);
                    bytes = &bytes[n..];
                    self.state = State::Data(left - n);
                    if left == n {
                        pieces.end()?;
                        self.state = State::Prefix;
                    }
                }
                State::Whole(length) => {
                    self.hold(&mut bytes, length);
                    if self.held.len() == length {
                        self.whole(pieces)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Whether the stream may end here.
    pub fn is_between_messages(&self) -> bool {
        matches!(self.state, State::Prefix) && self.held.is_empty()
    }

    fn hold(&mut self, bytes: &mut &[u8], until: usize) {
        let n = (until - self.held.len()).min(bytes.len());
        self.held.extend_from_slice(&bytes[..n]);
        *bytes = &bytes[n..];
    }

    /// Tries to understand the head of a message.
    fn look(&mut self, bytes: &mut &[u8], pieces: &mut impl Pieces) -> Result<(), Breach> {
        let State::Head(length) = self.state else { return Ok(()) };
        let before = self.held.len();
        let rest = *bytes;
        self.hold(bytes, length.min(MOST_HEAD));
        match scan(&self.held, length) {
            Scan::More if self.held.len() < length.min(MOST_HEAD) => {}
            Scan::Piece { check, head, bytes: data, at } => {
                check::verify_get_piece(check, &head, data, self.seed).map_err(|e| e.to_string())?;
                // What was held beyond the head is data; it is taken from `rest` again.
                *bytes = &rest[at - before..];
                self.held.clear();
                self.state = State::Data(data);
                pieces.begin(head, data)?;
            }
            _ => {
                self.state = State::Whole(length);
                if self.held.len() == length {
                    self.whole(pieces)?;
                }
            }
        }
        Ok(())
    }

    fn whole(&mut self, pieces: &mut impl Pieces) -> Result<(), Breach> {
        let reply =
            GetReply::decode(self.held.as_slice()).map_err(|e| format!("a message that is no GetReply: {e}"))?;
        check::verify(&reply, self.seed).map_err(|e| e.to_string())?;
        self.held.clear();
        self.state = State::Prefix;
        if let Some(piece) = reply.piece {
            pieces.begin(PieceHead::of(&piece), piece.data.len())?;
            pieces.data(&piece.data);
            pieces.end()?;
        }
        for miss in &reply.misses {
            pieces.miss(miss.index, miss.reason())?;
        }
        Ok(())
    }
}

/// The length in a message's prefix.
///
/// # Errors
/// A compressed message, or one that is too long.
pub fn message_length(prefix: &[u8]) -> Result<usize, Breach> {
    let length = u32::from_be_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]) as usize;
    if prefix[0] != 0 {
        return Err(format!("a message with compression flag {}, allowed is 0", prefix[0]));
    }
    if length > MAX_MESSAGE_BYTES {
        return Err(format!("a message of {length} bytes, allowed is at most {MAX_MESSAGE_BYTES}"));
    }
    Ok(length)
}

enum Scan {
    /// The bytes end too early to tell.
    More,
    /// A piece whose data starts at `at` and ends with the message.
    Piece { check: Option<u32>, head: PieceHead, bytes: usize, at: usize },
    /// Something else.
    Other,
}

/// Looks at the first bytes of a message of `length` bytes.
fn scan(bytes: &[u8], length: usize) -> Scan {
    let mut at = 0;
    let mut head = PieceHead::default();
    macro_rules! varint {
        () => {
            match varint(bytes, &mut at) {
                Some(Ok(value)) => value,
                Some(Err(())) => return Scan::Other,
                None => return Scan::More,
            }
        };
    }
    macro_rules! fixed32 {
        () => {{
            let Some(word) = bytes.get(at..at + 4) else { return Scan::More };
            at += 4;
            Some(u32::from_le_bytes([word[0], word[1], word[2], word[3]]))
        }};
    }
    // Field 1, the check; then field 2, a piece, to the message's end.
    if length == 0 || varint!() != 0x0d {
        return Scan::Other;
    }
    let check = fixed32!();
    if varint!() != 0x12 {
        return Scan::Other;
    }
    let inner = varint!();
    if inner != (length - at.min(length)) as u64 {
        return Scan::Other;
    }
    loop {
        match varint!() {
            0x08 => head.index = varint!() as u32,
            0x10 => head.length = varint!(),
            0x18 => head.layout = varint!() as u32,
            0x20 => head.offset = varint!(),
            0x2d => head.crc32c = fixed32!(),
            0x7a => {
                let data = varint!();
                if data == 0 || data != (length - at.min(length)) as u64 {
                    return Scan::Other;
                }
                return Scan::Piece { check, head, bytes: data as usize, at };
            }
            _ => return Scan::Other,
        }
    }
}

/// One varint; `None` where the bytes end first, an error where it is too long.
fn varint(bytes: &[u8], at: &mut usize) -> Option<Result<u64, ()>> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = *bytes.get(*at)?;
        *at += 1;
        if shift == 63 && byte > 1 {
            break;
        }
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(Ok(value));
        }
    }
    Some(Err(()))
}
