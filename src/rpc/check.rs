//! The check of a message: a CRC32C over all that it says, so that a flipped bit in a name, a tenant, a mask or a stream's
//! number is noticed before it becomes another object's value. `docs/protocol.md`, "Checks", is the rule; its vectors are
//! `tests/vectors/wire_checks.json`.
//!
//! - Every request and answer is [`Checked`]. [`seal`] sets the check, [`verify`] compares it.
//! - The seed of a call's first request is 0; that of everything else in the call is the check of that request, in both
//!   directions. So what belongs to another call does not fit.
//! - A number that a later version has added counts only where it is not 0, so that all versions have one rule.
//! - The bytes of a piece count with their length alone: they have a CRC of their own, which need not be computed twice.

use super::frame::PieceHead;
use super::v1::{self, GetReply, Piece, PutRequest};
use crate::shm::crc32c_append;

/// Seed of the first request of a call.
pub const FIRST: u32 = 0;

/// Bytes that are gathered before the CRC runs over them.
const GATHER_BYTES: usize = 256;

/// The sum so far.
struct Sum {
    crc: u32,
    held: [u8; GATHER_BYTES],
    len: usize,
}

impl Sum {
    fn new(name: &str, seed: u32) -> Sum {
        let mut sum = Sum { crc: 0, held: [0; GATHER_BYTES], len: 0 };
        sum.raw(name.as_bytes());
        sum.raw(&seed.to_le_bytes());
        sum
    }

    fn raw(&mut self, bytes: &[u8]) {
        if self.len + bytes.len() > GATHER_BYTES {
            self.crc = crc32c_append(self.crc, &self.held[..self.len]);
            self.len = 0;
        }
        match bytes.len() {
            n if n > GATHER_BYTES => self.crc = crc32c_append(self.crc, bytes),
            n => {
                self.held[self.len..self.len + n].copy_from_slice(bytes);
                self.len += n;
            }
        }
    }

    fn int(&mut self, value: u64) {
        self.raw(&value.to_le_bytes());
    }

    fn text(&mut self, bytes: &[u8]) {
        self.int(bytes.len() as u64);
        self.raw(bytes);
    }

    /// A number that version 1 did not have. It is sent where a later version was agreed upon, and counts where it is sent:
    /// so the rule is one rule for all versions.
    fn later(&mut self, value: u64) {
        if value != 0 {
            self.int(value);
        }
    }

    fn maybe(&mut self, value: Option<u32>) {
        self.int(u64::from(value.is_some()));
        value.into_iter().for_each(|value| self.int(value.into()));
    }

    fn many<M: Fields>(&mut self, messages: &[M]) {
        self.int(messages.len() as u64);
        messages.iter().for_each(|message| message.add(self));
    }

    fn one<M: Fields>(&mut self, message: &Option<M>) {
        self.many(message.as_slice());
    }

    /// A piece with `data_len` bytes.
    fn piece(&mut self, head: &PieceHead, data_len: usize) {
        self.int(head.index.into());
        self.int(head.length);
        self.int(head.layout.into());
        self.int(head.offset);
        self.maybe(head.crc32c);
        self.later(head.source as u64);
        self.int(data_len as u64);
    }

    fn end(self) -> u32 {
        crc32c_append(self.crc, &self.held[..self.len])
    }
}

/// A message whose fields can be added up, in the order of their numbers.
trait Fields {
    fn add(&self, sum: &mut Sum);
}

/// A request or an answer.
#[allow(private_bounds)]
pub trait Checked: Fields + prost::Message {
    /// Full name in the contract.
    const NAME: &'static str;
    /// What it carries.
    fn check(&self) -> Option<u32>;
    /// Sets what it carries.
    fn set_check(&mut self, check: u32);
}

/// A message that is not what was sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Altered {
    /// It carries none.
    #[error("{0} has no check")]
    None(&'static str),
    /// It carries another one.
    #[error("the check of {name} is {said:08x}, that of its fields {found:08x}: they were altered on their way")]
    Other {
        /// Of the message.
        name: &'static str,
        /// What it carries.
        said: u32,
        /// What it should carry.
        found: u32,
    },
}

/// What the check of a message must be.
pub fn of<M: Checked>(message: &M, seed: u32) -> u32 {
    let mut sum = Sum::new(M::NAME, seed);
    message.add(&mut sum);
    sum.end()
}

/// Sets the check of a message, and returns it.
pub fn seal<M: Checked>(message: &mut M, seed: u32) -> u32 {
    let check = of(message, seed);
    message.set_check(check);
    check
}

/// Compares the check of a message with its fields, and returns it.
///
/// # Errors
/// It has none, or another one.
pub fn verify<M: Checked>(message: &M, seed: u32) -> Result<u32, Altered> {
    compare(M::NAME, message.check(), of(message, seed))
}

/// The check of a [`GetReply`] that is one piece.
pub fn of_get_piece(head: &PieceHead, data_len: usize, seed: u32) -> u32 {
    let mut sum = Sum::new(GetReply::NAME, seed);
    sum.int(1);
    sum.piece(head, data_len);
    // No misses.
    sum.int(0);
    sum.end()
}

/// The check of a [`PutRequest`] that is one piece.
pub fn of_put_piece(head: &PieceHead, data_len: usize, seed: u32) -> u32 {
    let mut sum = Sum::new(PutRequest::NAME, seed);
    // Version, tenant, and no offers.
    [0, 0, 0, 1].into_iter().for_each(|value| sum.int(value));
    sum.piece(head, data_len);
    sum.end()
}

/// Compares the check that a message carries with the one that was found.
///
/// # Errors
/// It has none, or another one.
pub fn compare(name: &'static str, said: Option<u32>, found: u32) -> Result<u32, Altered> {
    match said {
        None => Err(Altered::None(name)),
        Some(said) if said != found => Err(Altered::Other { name, said, found }),
        Some(said) => Ok(said),
    }
}

impl Fields for Piece {
    fn add(&self, sum: &mut Sum) {
        sum.piece(&PieceHead::of(self), self.data.len());
    }
}

/// Names the fields of a message in the order of their numbers, each with its kind.
macro_rules! fields {
    (@ int $sum:ident $value:expr) => { $sum.int($value as u64) };
    (@ ints $sum:ident $value:expr) => {{ $sum.int($value.len() as u64); $value.iter().for_each(|v| $sum.int(*v)) }};
    (@ text $sum:ident $value:expr) => { $sum.text($value.as_ref()) };
    (@ one $sum:ident $value:expr) => { $sum.one(&$value) };
    (@ many $sum:ident $value:expr) => { $sum.many(&$value) };
    ($($message:ident { $($kind:ident $field:ident),* })*) => {$(
        impl Fields for v1::$message {
            fn add(&self, sum: &mut Sum) {
                $(fields!(@ $kind sum self.$field);)*
            }
        }
    )*};
}

fields! {
    HelloRequest { int min_version, int max_version, text client }
    HelloReply {
        int version, int min_version, int max_version, text node, text program, int start_id, text machine, one limits,
        one fast_path
    }
    Limits {
        int keys, int objects, int value_bytes, int message_bytes, int lease_ms, int streams, int put_bytes, int stall_ms
    }
    FastPath { text socket, int version }
    KeyRun { int bucket, text keys }
    ObjectRun { int bucket, text ids }
    ExistsRequest { int version, int tenant, int lease_ms, many runs }
    ExistsReply { ints masks, int leased_keys }
    TouchRequest { int version, int tenant, many runs }
    TouchReply { int present }
    DeleteRequest { int version, int tenant, many runs }
    DeleteReply { int deleted }
    VerifyRequest { int version, int tenant, many runs }
    VerifyReply { int sound, int dropped }
    GetRequest { int version, int tenant, int piece_bytes, many runs }
    GetReply { one piece, many misses }
    Miss { int index, int reason }
    Offer {
        text id, int bucket, int length, text extent, int page_index, int superseded, int layout
    }
    PutRequest { int version, int tenant, many offers, one piece }
    PutReply { many answers }
    Answer { int index, int outcome }
    StatsRequest { int version, int tenant }
    StatsReply {
        text node, text program, int start_id, int uptime_ms, int draining, int connections, int streams, many tiers
    }
    TierStats {
        text name, int capacity_bytes, int used_bytes, int keys, int objects, int held_slots, int leases, int lease_bytes,
        int writers, int index_bytes, int hits, int misses, int committed, int present, int busy, int no_room,
        int aborted, int evicted_objects, int evicted_bytes, int deleted, int damaged, int written_bytes, int read_bytes,
        int demoted, int promoted, text trouble
    }
}

macro_rules! checked {
    ($($message:ident)*) => {$(
        impl Checked for v1::$message {
            const NAME: &'static str = concat!("gcache.v1.", stringify!($message));
            fn check(&self) -> Option<u32> {
                self.check
            }
            fn set_check(&mut self, check: u32) {
                self.check = Some(check);
            }
        }
    )*};
}

checked! {
    HelloRequest HelloReply ExistsRequest ExistsReply TouchRequest TouchReply DeleteRequest DeleteReply VerifyRequest
    VerifyReply GetRequest GetReply PutRequest PutReply StatsRequest StatsReply
}
