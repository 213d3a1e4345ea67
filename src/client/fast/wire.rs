//! Messages of the fast path, as `docs/fast-path.md` has them.

use crate::client::reply::Breach;
use crate::rpc::ids::{ChainKey, pack};
use crate::rpc::limits::{CHUNK_BYTES, ID_BYTES, MAX_VALUE_BYTES};

/// The version spoken here.
pub const VERSION: u32 = 1;
/// First bytes of a hello.
pub const MAGIC: [u8; 8] = *b"mimofast";
/// Bytes of a message's header.
pub const HEADER_BYTES: usize = 16;
/// Longest body towards the node.
pub const MAX_REQUEST: usize = 512 << 10;
/// Longest body towards the client.
pub const MAX_ANSWER: usize = 1 << 20;
/// Most objects in one get.
pub const MAX_OBJECTS: usize = 4096;
/// Longest token.
pub const MAX_TOKEN: usize = 4096;
/// Longest sentence of a refusal.
pub const MAX_SENTENCE: usize = 1024;
/// Bytes of one object in an answer.
const RECORD_BYTES: usize = 64;

/// Kinds of messages.
pub mod kind {
    /// First message of a client.
    pub const HELLO: u16 = 1;
    /// Its answer, with the descriptor.
    pub const WELCOME: u16 = 2;
    /// The node ends the connection.
    pub const REFUSED: u16 = 3;
    /// Where are these objects?
    pub const GET: u16 = 4;
    /// There.
    pub const FOUND: u16 = 5;
    /// The pins of the last get are not needed any more.
    pub const RELEASE: u16 = 6;
}

/// What precedes every body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Length of the body.
    pub length: usize,
    /// See [`kind`].
    pub kind: u16,
    /// Repeated in an answer.
    pub number: u64,
}

impl Header {
    /// The header's bytes.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..4].copy_from_slice(&(self.length as u32).to_le_bytes());
        bytes[4..6].copy_from_slice(&self.kind.to_le_bytes());
        bytes[8..].copy_from_slice(&self.number.to_le_bytes());
        bytes
    }

    /// Reads a header.
    ///
    /// # Errors
    /// A body longer than `most`, or bytes that must be zero and are not.
    pub fn decode(bytes: &[u8; HEADER_BYTES], most: usize) -> Result<Header, Breach> {
        let length = u32_at(bytes, 0) as usize;
        let kind = u16::from_le_bytes([bytes[4], bytes[5]]);
        if length > most {
            return Err(format!("a body of {length} bytes, allowed is at most {most}"));
        }
        if bytes[6..8] != [0, 0] {
            return Err("a header whose bytes 6 and 7 are not zero".to_string());
        }
        Ok(Header { length, kind, number: u64_at(bytes, 8) })
    }
}

/// A whole message.
pub fn message(kind: u16, number: u64, body: &[u8]) -> Vec<u8> {
    let mut bytes = Header { length: body.len(), kind, number }.encode().to_vec();
    bytes.extend_from_slice(body);
    bytes
}

/// Body of a hello.
pub fn hello(token: Option<&str>) -> Vec<u8> {
    let token = token.unwrap_or_default().as_bytes();
    let mut body = MAGIC.to_vec();
    body.extend_from_slice(&VERSION.to_le_bytes());
    body.extend_from_slice(&VERSION.to_le_bytes());
    body.extend_from_slice(&(token.len() as u16).to_le_bytes());
    body.extend_from_slice(token);
    body
}

/// What a node says to a hello.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Welcome {
    /// Version to use.
    pub version: u32,
    /// Most objects in one get.
    pub objects: usize,
    /// Start id of the node.
    pub start_id: u64,
    /// Size of the file.
    pub file_bytes: u64,
    /// Bytes that the connection may pin.
    pub pin_bytes: u64,
    /// Longest time of a pin.
    pub pin_ms: u32,
}

impl Welcome {
    /// Bytes of the body.
    pub const BYTES: usize = 40;

    /// The body.
    pub fn encode(&self) -> Vec<u8> {
        let mut body = Vec::with_capacity(Self::BYTES);
        body.extend_from_slice(&self.version.to_le_bytes());
        body.extend_from_slice(&(self.objects as u32).to_le_bytes());
        body.extend_from_slice(&self.start_id.to_le_bytes());
        body.extend_from_slice(&self.file_bytes.to_le_bytes());
        body.extend_from_slice(&self.pin_bytes.to_le_bytes());
        body.extend_from_slice(&self.pin_ms.to_le_bytes());
        body.extend_from_slice(&[0; 4]);
        body
    }

    /// Reads a body.
    ///
    /// # Errors
    /// Another length, version or limit than allowed.
    pub fn decode(body: &[u8]) -> Result<Welcome, Breach> {
        if body.len() != Self::BYTES {
            return Err(format!("a welcome of {} bytes, allowed is {}", body.len(), Self::BYTES));
        }
        let welcome = Welcome {
            version: u32_at(body, 0),
            objects: u32_at(body, 4) as usize,
            start_id: u64_at(body, 8),
            file_bytes: u64_at(body, 16),
            pin_bytes: u64_at(body, 24),
            pin_ms: u32_at(body, 32),
        };
        if welcome.version != VERSION || !(1..=MAX_OBJECTS).contains(&welcome.objects) || welcome.file_bytes == 0 {
            return Err(format!("a welcome that makes no sense: {welcome:?}"));
        }
        Ok(welcome)
    }
}

/// Code and sentence of a refusal.
pub fn refusal(body: &[u8]) -> (u32, String) {
    let code = if body.len() >= 4 { u32_at(body, 0) } else { 0 };
    let sentence = body.get(4..).unwrap_or_default();
    (code, String::from_utf8_lossy(&sentence[..sentence.len().min(MAX_SENTENCE)]).into_owned())
}

/// Body of a get.
pub fn get<'k>(tenant: u64, ids: impl ExactSizeIterator<Item = (&'k ChainKey, u8)>) -> Vec<u8> {
    let mut body = Vec::with_capacity(16 + ids.len() * ID_BYTES);
    body.extend_from_slice(&tenant.to_le_bytes());
    body.extend_from_slice(&(ids.len() as u32).to_le_bytes());
    body.extend_from_slice(&[0; 4]);
    for (key, part) in ids {
        body.extend_from_slice(&pack(key, part));
    }
    body
}

/// Where a value lies; positions count from the start of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Layout number of its bytes.
    pub layout: u32,
    /// Bytes of the value.
    pub length: u64,
    /// First byte of the value.
    pub offset: u64,
    /// Position of the slot header's word.
    pub header_at: u64,
    /// What it must be.
    pub header_word: u64,
    /// Position of the word of the span's entry.
    pub span_at: u64,
    /// What it must be.
    pub span_word: u64,
}

/// What is said of one object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// Here, with the CRC32C of each of its chunks.
    Here(Place, Vec<u32>),
    /// Nowhere on the node.
    Absent,
    /// Ask again when the pins are released.
    Later,
    /// On the node, but not in the file.
    Elsewhere,
}

/// The body of an answer to a get, for the node's side.
pub fn encode_found(found: &[Found]) -> Vec<u8> {
    let mut body = (found.len() as u32).to_le_bytes().to_vec();
    body.extend_from_slice(&[0; 4]);
    for one in found {
        let start = body.len();
        match one {
            Found::Here(place, _) => {
                body.extend_from_slice(&0u32.to_le_bytes());
                body.extend_from_slice(&place.layout.to_le_bytes());
                let words = [place.length, place.offset, place.header_at, place.header_word, place.span_at, place.span_word];
                words.iter().for_each(|w| body.extend_from_slice(&w.to_le_bytes()));
            }
            Found::Absent => body.extend_from_slice(&1u32.to_le_bytes()),
            Found::Later => body.extend_from_slice(&2u32.to_le_bytes()),
            Found::Elsewhere => body.extend_from_slice(&3u32.to_le_bytes()),
        }
        body.resize(start + RECORD_BYTES, 0);
    }
    for one in found {
        if let Found::Here(_, crcs) = one {
            crcs.iter().for_each(|crc| body.extend_from_slice(&crc.to_le_bytes()));
        }
    }
    body
}

/// Reads the answer to a get of `asked` objects, whose values lie in a file of `file_bytes`.
///
/// # Errors
/// Another count or length, unknown states, values of no or too many bytes, and positions outside the file.
pub fn decode_found(body: &[u8], asked: usize, file_bytes: u64) -> Result<Vec<Found>, Breach> {
    let records = 8 + asked * RECORD_BYTES;
    if body.len() < records || u32_at(body, 0) as usize != asked {
        return Err(format!("{} bytes for {asked} objects", body.len()));
    }
    let mut crcs = &body[records..];
    let mut found = Vec::with_capacity(asked);
    for (i, record) in body[8..records].chunks_exact(RECORD_BYTES).enumerate() {
        found.push(match u32_at(record, 0) {
            0 => {
                let place = place(record, file_bytes).map_err(|e| format!("object {i}: {e}"))?;
                let chunks = (place.length as usize).div_ceil(CHUNK_BYTES);
                let Some((own, rest)) = crcs.split_at_checked(4 * chunks) else {
                    return Err(format!("object {i}: fewer CRCs than chunks"));
                };
                crcs = rest;
                Found::Here(place, own.chunks_exact(4).map(|c| u32_at(c, 0)).collect())
            }
            1 => Found::Absent,
            2 => Found::Later,
            3 => Found::Elsewhere,
            state => return Err(format!("object {i}: state {state}")),
        });
    }
    let later = found.iter().position(|f| *f == Found::Later).unwrap_or(found.len());
    if !crcs.is_empty() || later == 0 || found[later..].iter().any(|f| *f != Found::Later) {
        return Err("CRCs of no object, the first object later, or one after such that is not".to_string());
    }
    Ok(found)
}

fn place(record: &[u8], file_bytes: u64) -> Result<Place, Breach> {
    let place = Place {
        layout: u32_at(record, 4),
        length: u64_at(record, 8),
        offset: u64_at(record, 16),
        header_at: u64_at(record, 24),
        header_word: u64_at(record, 32),
        span_at: u64_at(record, 40),
        span_word: u64_at(record, 48),
    };
    let word_fits = |at: u64| at % 8 == 0 && at.checked_add(8).is_some_and(|end| end <= file_bytes);
    let value_fits = place.offset.checked_add(place.length).is_some_and(|end| end <= file_bytes);
    if !(1..=MAX_VALUE_BYTES).contains(&place.length) || !value_fits {
        return Err(format!("{} bytes at {} of a file of {file_bytes}", place.length, place.offset));
    }
    if !word_fits(place.header_at) || !word_fits(place.span_at) {
        return Err(format!("words at {} and {} of a file of {file_bytes}", place.header_at, place.span_at));
    }
    Ok(place)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}
