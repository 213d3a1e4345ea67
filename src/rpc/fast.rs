//! Messages of the same-host path, fixed in size and little-endian: `docs/protocol.md` has the tables.
//!
//! A client says [`Kind::Hello`] with its token and gets a read-only descriptor of the node's shared-memory file. Then it
//! asks for objects ([`Kind::Get`]), copies them out of its mapping, compares the two words and the CRCs, and, where they
//! were pinned, says [`Kind::Release`]. A connection's pins end with it.

use super::ids::{self, ChainKey};
use super::limits::{ID_BYTES, MAX_VALUE_BYTES};

/// Version of the messages.
pub const VERSION: u32 = 1;
/// First four bytes of every message.
pub const MAGIC: [u8; 4] = *b"gcf1";
/// Bytes of a request before its entries.
pub const REQUEST_BYTES: usize = 24;
/// Bytes of one object in a `Get`.
pub const ASK_BYTES: usize = 40;
/// Most objects of one `Get`.
pub const MAX_ASKS: usize = 256;
/// Longest token.
pub const MAX_TOKEN_BYTES: usize = 4096;
/// `Get`s of one connection whose pins are not released.
pub const MAX_OPEN: usize = 64;
/// Bytes of a reply before its body.
pub const REPLY_BYTES: usize = 24;
/// Bytes of the body of an answer to `Hello`.
pub const HELLO_BYTES: usize = 32;
/// Bytes of one object in an answer to `Get`, before the CRCs.
pub const FOUND_BYTES: usize = 64;
/// Longest body of a reply: 256 objects of 128 chunks.
pub const MAX_BODY_BYTES: usize = MAX_ASKS * (FOUND_BYTES + 4 * (MAX_VALUE_BYTES >> 20) as usize);
/// Longest request.
pub const MAX_REQUEST_BYTES: usize = REQUEST_BYTES + MAX_ASKS * ASK_BYTES;

/// What a message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// First message: `count` bytes of token follow. Answered with a [`HelloReply`] and the descriptor.
    Hello = 1,
    /// `count` objects follow. Answered with as many [`Found`], then their CRCs.
    Get = 2,
    /// Unpins what the `Get` with this sequence number pinned. Not answered.
    Release = 3,
    /// The node refuses and closes; the body is a sentence.
    Refused = 4,
}

impl Kind {
    fn of(byte: u8) -> Option<Kind> {
        [Kind::Hello, Kind::Get, Kind::Release, Kind::Refused].into_iter().find(|k| *k as u8 == byte)
    }
}

/// Head of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// What it is.
    pub kind: Kind,
    /// Entries or bytes that follow.
    pub count: u16,
    /// Tenant of a `Get`.
    pub tenant: u64,
    /// The client's number for a `Get`, any that is not open.
    pub sequence: u64,
    /// Whether a `Get` pins what it finds, until its `Release`.
    pub pins: bool,
}

/// Byte 5 of a `Get` that pins nothing.
const UNPINNED: u8 = 1;

impl Request {
    /// Bytes of the message after its head.
    pub fn body_bytes(&self) -> usize {
        match self.kind {
            Kind::Hello => usize::from(self.count),
            Kind::Get => usize::from(self.count) * ASK_BYTES,
            Kind::Release | Kind::Refused => 0,
        }
    }

    /// Appends the head.
    pub fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&[self.kind as u8, if self.pins { 0 } else { UNPINNED }]);
        out.extend_from_slice(&self.count.to_le_bytes());
        out.extend_from_slice(&self.tenant.to_le_bytes());
        out.extend_from_slice(&self.sequence.to_le_bytes());
    }

    /// # Errors
    /// A sentence: another magic or kind, a byte that means nothing, or more entries than allowed.
    pub fn read(head: &[u8; REQUEST_BYTES]) -> Result<Request, String> {
        if head[..4] != MAGIC {
            return Err(format!("the message starts with {:02x?}, allowed is {MAGIC:02x?}", &head[..4]));
        }
        let kind = Kind::of(head[4]).filter(|k| *k != Kind::Refused);
        let kind = kind.ok_or_else(|| format!("the message is of kind {}, allowed is 1 to 3", head[4]))?;
        let count = u16::from_le_bytes([head[6], head[7]]);
        let most = match kind {
            Kind::Hello => MAX_TOKEN_BYTES,
            Kind::Get => MAX_ASKS,
            Kind::Release | Kind::Refused => 0,
        };
        if usize::from(count) > most || kind == Kind::Get && count == 0 {
            return Err(format!("count of a {kind:?} is {count}, allowed is at most {most}, and 1 for Get"));
        }
        let pins = match (kind, head[5]) {
            (_, 0) => true,
            (Kind::Get, UNPINNED) => false,
            (_, found) => {
                return Err(format!("byte 5 of a {kind:?} is {found}, allowed is 0, and {UNPINNED} for Get"));
            }
        };
        Ok(Request { kind, count, tenant: word(head, 8), sequence: word(head, 16), pins })
    }
}

/// Appends one object of a `Get`.
pub fn put_ask(out: &mut Vec<u8>, key: &ChainKey, part: u8) {
    out.extend_from_slice(&ids::pack(key, part));
    out.extend_from_slice(&[0; ASK_BYTES - ID_BYTES]);
}

/// The objects of a `Get`.
///
/// # Errors
/// A sentence: a part above 63.
pub fn asks(body: &[u8]) -> Result<Vec<(ChainKey, u8)>, String> {
    body.chunks_exact(ASK_BYTES).map(|ask| ids::object(&ask[..ID_BYTES])).collect()
}

/// Head of a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reply {
    /// Of the request, or [`Kind::Refused`].
    pub kind: Kind,
    /// Entries of the body.
    pub count: u16,
    /// Of the request.
    pub sequence: u64,
    /// Bytes that follow.
    pub body_bytes: u32,
}

impl Reply {
    /// Appends the head.
    pub fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&[self.kind as u8, 0]);
        out.extend_from_slice(&self.count.to_le_bytes());
        out.extend_from_slice(&self.sequence.to_le_bytes());
        out.extend_from_slice(&self.body_bytes.to_le_bytes());
        out.extend_from_slice(&[0; 4]);
    }

    /// # Errors
    /// A sentence: another magic or kind, or a body longer than allowed.
    pub fn read(head: &[u8; REPLY_BYTES]) -> Result<Reply, String> {
        let kind = Kind::of(head[4]).filter(|_| head[..4] == MAGIC);
        let kind = kind.ok_or_else(|| format!("a reply starts with {:02x?}", &head[..5]))?;
        let body_bytes = u32::from_le_bytes([head[16], head[17], head[18], head[19]]);
        if body_bytes as usize > MAX_BODY_BYTES {
            return Err(format!("a reply has {body_bytes} bytes, allowed is {MAX_BODY_BYTES}"));
        }
        Ok(Reply { kind, count: u16::from_le_bytes([head[6], head[7]]), sequence: word(head, 8), body_bytes })
    }
}

/// Body of the answer to `Hello`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HelloReply {
    /// Bytes of the file whose descriptor comes with the message.
    pub file_bytes: u64,
    /// Bytes that this connection may pin.
    pub pin_bytes: u64,
    /// Version of the messages.
    pub version: u32,
    /// Pins end after so many milliseconds, released or not.
    pub pin_ms: u32,
    /// Start of the node, as its gRPC greeting says: a path can lead to another node's socket.
    pub start_id: u64,
}

impl HelloReply {
    /// Appends it.
    pub fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.file_bytes.to_le_bytes());
        out.extend_from_slice(&self.pin_bytes.to_le_bytes());
        out.extend_from_slice(&self.version.to_le_bytes());
        out.extend_from_slice(&self.pin_ms.to_le_bytes());
        out.extend_from_slice(&self.start_id.to_le_bytes());
    }

    /// Reads it.
    pub fn read(body: &[u8; HELLO_BYTES]) -> HelloReply {
        let last = word(body, 16);
        HelloReply {
            file_bytes: word(body, 0),
            pin_bytes: word(body, 8),
            version: last as u32,
            pin_ms: (last >> 32) as u32,
            start_id: word(body, 24),
        }
    }
}

/// What became of one object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Outcome {
    /// Pinned; the other fields hold.
    Hit = 0,
    /// Not there.
    Absent = 1,
    /// There, but this connection has pinned all that it may: release, and ask again.
    NoPin = 2,
    /// There, but not in memory: ask over gRPC.
    Elsewhere = 3,
}

/// One object of an answer to `Get`. Positions count from the start of the file (`docs/format.md`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    /// Without a hit everything else is 0.
    pub outcome: Outcome,
    /// Layout number of the value's bytes.
    pub layout: u32,
    /// First byte of the value.
    pub offset: u64,
    /// Bytes of the value.
    pub len: u64,
    /// Where a word of 8 bytes must still be what it was, after the copy.
    pub header_at: u64,
    /// That word.
    pub header_word: u64,
    /// The same for the span's word.
    pub span_at: u64,
    /// That word.
    pub span_word: u64,
    /// Number of its CRCs, and the index of the first in the list after all objects.
    pub crcs: (u32, u32),
}

impl Found {
    /// One without a hit.
    pub fn miss(outcome: Outcome) -> Found {
        let crcs = (0, 0);
        Found { outcome, layout: 0, offset: 0, len: 0, header_at: 0, header_word: 0, span_at: 0, span_word: 0, crcs }
    }

    /// Appends it.
    pub fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&(self.outcome as u32).to_le_bytes());
        out.extend_from_slice(&self.layout.to_le_bytes());
        let words = [self.offset, self.len, self.header_at, self.header_word, self.span_at, self.span_word];
        words.iter().for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
        out.extend_from_slice(&self.crcs.0.to_le_bytes());
        out.extend_from_slice(&self.crcs.1.to_le_bytes());
    }

    /// # Errors
    /// A sentence: an outcome that is none.
    pub fn read(entry: &[u8; FOUND_BYTES]) -> Result<Found, String> {
        let (first, last) = (word(entry, 0), word(entry, 56));
        let outcome = [Outcome::Hit, Outcome::Absent, Outcome::NoPin, Outcome::Elsewhere]
            .into_iter()
            .find(|o| *o as u32 == first as u32);
        Ok(Found {
            outcome: outcome.ok_or_else(|| format!("an outcome is {}, allowed is 0 to 3", first as u32))?,
            layout: (first >> 32) as u32,
            offset: word(entry, 8),
            len: word(entry, 16),
            header_at: word(entry, 24),
            header_word: word(entry, 32),
            span_at: word(entry, 40),
            span_word: word(entry, 48),
            crcs: (last as u32, (last >> 32) as u32),
        })
    }
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_back() {
        let mut out = Vec::new();
        for pins in [true, false] {
            let request = Request { kind: Kind::Get, count: 256, tenant: 1 << 60, sequence: u64::MAX, pins };
            request.put(&mut out);
            assert_eq!(Request::read(&out[..].try_into().unwrap()), Ok(request));
            out.clear();
        }
        let reply = Reply { kind: Kind::Refused, count: 3, sequence: 9, body_bytes: 77 };
        reply.put(&mut out);
        assert_eq!(Reply::read(&out[..].try_into().unwrap()), Ok(reply));
        out.clear();
        let hello = HelloReply { file_bytes: 1 << 40, pin_bytes: 5, version: 1, pin_ms: 10_000, start_id: 1 << 63 };
        hello.put(&mut out);
        assert_eq!(HelloReply::read(&out[..].try_into().unwrap()), hello);
        out.clear();
        let found = Found {
            outcome: Outcome::NoPin,
            layout: 7,
            offset: 1,
            len: 2,
            header_at: 3,
            header_word: 4,
            span_at: 5,
            span_word: 6,
            crcs: (8, 9),
        };
        found.put(&mut out);
        assert_eq!(Found::read(&out[..].try_into().unwrap()), Ok(found));
        out.clear();
        put_ask(&mut out, &[3; 32], 63);
        assert_eq!(asks(&out), Ok(vec![([3; 32], 63)]));
    }

    #[test]
    fn what_no_client_says_is_refused() {
        let head = |kind: u8, flag: u8, count: u16| {
            let mut out = Vec::new();
            Request { kind: Kind::Get, count, tenant: 0, sequence: 0, pins: true }.put(&mut out);
            (out[4], out[5]) = (kind, flag);
            Request::read(&out[..].try_into().unwrap())
        };
        assert!(head(2, 0, 1).is_ok() && head(2, 1, 1).is_ok() && head(3, 0, 0).is_ok() && head(1, 0, 4096).is_ok());
        for (kind, count) in [(0, 0), (4, 0), (5, 0), (2, 0), (2, 257), (1, 4097), (3, 1)] {
            assert!(head(kind, 0, count).is_err(), "{kind} {count}");
        }
        assert!(head(2, 2, 1).is_err() && head(3, 1, 0).is_err() && head(1, 1, 0).is_err());
        assert!(Request::read(&[0; REQUEST_BYTES]).unwrap_err().contains("67, 63, 66, 31"));
        assert!(asks(&[64; ASK_BYTES]).is_err());
    }
}
