//! Reads a stream of messages as their bytes come, so that a piece's data goes from the network's buffer to where it belongs
//! without a stop: no message with a piece is put together first.
//!
//! Encoders write fields in the order of their numbers, and `data` has the highest, so such a message normally is a few bytes
//! of head and then data to its end. Any other order is valid too and is decoded as a whole. Either way the check of a message
//! is compared before anything is believed.

use super::check::{self, Altered, Checked};
use super::frame::PieceHead;
use super::limits::MAX_MESSAGE_BYTES;
use super::v1::{GetReply, Piece, PutRequest};

#[cfg(test)]
#[path = "pieces_tests.rs"]
mod tests;

/// Takes what the messages mean.
pub trait Pieces {
    /// The messages.
    type Message: Carries;
    /// Why it wants no more.
    type Error: From<Malformed>;

    /// A piece begins. So many bytes of its data follow in any number of calls of `data`, then `end`.
    fn begin(&mut self, head: PieceHead, bytes: usize) -> Result<(), Self::Error>;
    /// More of its data.
    fn data(&mut self, bytes: &[u8]);
    /// All of it has come.
    fn end(&mut self) -> Result<(), Self::Error>;
    /// A message that is not just a piece, with its check. Of a piece that is in it nothing was said yet.
    fn message(&mut self, message: Self::Message, check: u32) -> Result<(), Self::Error>;
}

/// A message that can be one piece.
pub trait Carries: Checked + Default {
    /// The tag of the field that holds the piece.
    const PIECE_TAG: u64;
    /// What the check of a message must be that is nothing but a piece.
    fn check_of_piece(head: &PieceHead, data_len: usize, seed: u32) -> u32;
    /// Takes the piece out.
    fn take_piece(&mut self) -> Option<Piece>;
}

impl Carries for GetReply {
    const PIECE_TAG: u64 = 0x12;
    fn check_of_piece(head: &PieceHead, data_len: usize, seed: u32) -> u32 {
        check::of_get_piece(head, data_len, seed)
    }
    fn take_piece(&mut self) -> Option<Piece> {
        self.piece.take()
    }
}

impl Carries for PutRequest {
    const PIECE_TAG: u64 = 0x2a;
    fn check_of_piece(head: &PieceHead, data_len: usize, seed: u32) -> u32 {
        check::of_put_piece(head, data_len, seed)
    }
    fn take_piece(&mut self) -> Option<Piece> {
        self.piece.take()
    }
}

/// What is no message of the contract.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The flag of a compressed message, or no flag.
    #[error("a message with compression flag {0}, allowed is 0")]
    Compressed(u8),
    /// Beyond the limit.
    #[error("a message of {0} bytes, allowed is at most {MAX_MESSAGE_BYTES}")]
    TooLong(usize),
    /// No message.
    #[error("a message that is no {0}: {1}")]
    Unreadable(&'static str, prost::DecodeError),
    /// Not the message that was sent.
    #[error(transparent)]
    Altered(#[from] Altered),
}

impl From<Malformed> for String {
    fn from(malformed: Malformed) -> String {
        malformed.to_string()
    }
}

/// Bytes of a message's frame in gRPC: a flag for compression and a length.
pub const PREFIX: usize = 5;
/// No head of a valid piece is longer: the check, six numbers, a length, and their tags. A longer one is decoded as a whole.
const MOST_HEAD: usize = 72;

/// See the head of this file.
#[derive(Debug)]
pub struct PiecesReader {
    /// The check of the call's first request, with which all others begin; before it was read, none.
    seed: Option<u32>,
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

impl PiecesReader {
    /// Of the answers to a request with this check.
    pub fn of_answers(seed: u32) -> PiecesReader {
        PiecesReader { seed: Some(seed), state: State::Prefix, held: Vec::new() }
    }

    /// Of the requests of a call.
    pub fn of_requests() -> PiecesReader {
        PiecesReader { seed: None, state: State::Prefix, held: Vec::new() }
    }

    /// Takes the next bytes of the stream.
    ///
    /// # Errors
    /// What is no message of the contract, or what `pieces` says.
    pub fn feed<P: Pieces>(&mut self, mut bytes: &[u8], pieces: &mut P) -> Result<(), P::Error> {
        while !bytes.is_empty() {
            match self.state {
                State::Prefix => {
                    hold(&mut self.held, &mut bytes, PREFIX);
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
                    hold(&mut self.held, &mut bytes, length);
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

    /// The check is the one that the message must have.
    fn verified<M: Carries>(&mut self, said: Option<u32>, found: u32) -> Result<u32, Malformed> {
        let check = check::compare(M::NAME, said, found)?;
        self.seed.get_or_insert(check);
        Ok(check)
    }

    /// Tries to understand the head of a message.
    fn look<P: Pieces>(&mut self, bytes: &mut &[u8], pieces: &mut P) -> Result<(), P::Error> {
        let State::Head(length) = self.state else { return Ok(()) };
        let before = self.held.len();
        let rest = *bytes;
        hold(&mut self.held, bytes, length.min(MOST_HEAD));
        match scan(&self.held, length, P::Message::PIECE_TAG) {
            Scan::More if self.held.len() < length.min(MOST_HEAD) => {}
            Scan::Piece { check, head, bytes: data, at } => {
                let seed = self.seed.unwrap_or(check::FIRST);
                self.verified::<P::Message>(check, P::Message::check_of_piece(&head, data, seed))?;
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

    fn whole<P: Pieces>(&mut self, pieces: &mut P) -> Result<(), P::Error> {
        // Its parts are slices of what came, not copies.
        let held = bytes::Bytes::from(std::mem::take(&mut self.held));
        let mut message =
            <P::Message as prost::Message>::decode(held).map_err(|e| Malformed::Unreadable(P::Message::NAME, e))?;
        let check = check::of(&message, self.seed.unwrap_or(check::FIRST));
        let check = self.verified::<P::Message>(message.check(), check)?;
        self.state = State::Prefix;
        let piece = message.take_piece();
        pieces.message(message, check)?;
        if let Some(piece) = piece {
            pieces.begin(PieceHead::of(&piece), piece.data.len())?;
            pieces.data(&piece.data);
            pieces.end()?;
        }
        Ok(())
    }
}

/// Moves bytes from the front of `bytes` behind `held`, until that has so many. Its memory grows with what comes: a length was
/// only said, and never more than that is taken.
pub(crate) fn hold(held: &mut Vec<u8>, bytes: &mut &[u8], until: usize) {
    let n = until.saturating_sub(held.len()).min(bytes.len());
    let least = held.len() + n;
    if held.capacity() < least {
        let room = (2 * held.capacity()).clamp(least, until);
        held.reserve_exact(room - held.len());
    }
    held.extend_from_slice(&bytes[..n]);
    *bytes = &bytes[n..];
}

/// The length in a message's prefix.
///
/// # Errors
/// A compressed message, or one that is too long.
pub fn message_length(prefix: &[u8]) -> Result<usize, Malformed> {
    let length = u32::from_be_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]) as usize;
    match prefix[0] {
        0 if length <= MAX_MESSAGE_BYTES => Ok(length),
        0 => Err(Malformed::TooLong(length)),
        flag => Err(Malformed::Compressed(flag)),
    }
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
fn scan(bytes: &[u8], length: usize, piece_tag: u64) -> Scan {
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
    // Field 1, the check; then the piece, to the message's end.
    if length == 0 || varint!() != 0x0d {
        return Scan::Other;
    }
    let check = fixed32!();
    if varint!() != piece_tag {
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
            0x30 => head.source = varint!() as i32,
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
