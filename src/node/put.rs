//! One `Put` stream without its network: requests go in, answers come out.
//!
//! - Offers wait in order until the stream owes few enough bytes; only then a slot is taken. So no number of offers can
//!   take the memory from what is cached.
//! - Pieces are copied into the slot and added to the chunk's CRC in one pass, as their bytes come.
//! - Dropped in any state, it gives back every slot that was not committed.

use super::state::State;
use crate::rpc::frame::PieceHead;
use crate::rpc::ids;
use crate::rpc::limits::{CHUNK_BYTES, MAX_OBJECTS, MAX_PIECE_BYTES};
use crate::rpc::v1::{Answer, Offer, PutOutcome, PutRequest};
use crate::shm::{Begin, ChainKey, ObjectId, PutMeta, ShmError, Writer, chunks_of, copy_crc32c_append};
use std::collections::VecDeque;
use std::sync::Arc;
use tonic::Status;

/// A wanted object whose pieces have not all come.
struct Owed {
    index: u32,
    len: usize,
    at: usize,
    crc: u32,
    crcs: Vec<u32>,
    /// CRC of the chunk, as the piece that is coming says.
    said: Option<u32>,
    /// None once a chunk was bad: the rest is thrown away.
    writer: Option<Writer>,
}

/// See the file.
pub struct PutSession {
    state: Arc<State>,
    /// Of the protocol.
    version: u32,
    tenant: u64,
    offered: u32,
    waiting: VecDeque<(u32, PutMeta)>,
    owed: VecDeque<Owed>,
    owed_bytes: u64,
    /// The offer that waits first finds no room yet.
    blocked: bool,
}

impl PutSession {
    /// A stream whose first request was read. The tenant's right is checked by the caller.
    pub fn new(state: Arc<State>, version: u32, tenant: u64) -> PutSession {
        PutSession {
            state,
            version,
            tenant,
            offered: 0,
            waiting: VecDeque::new(),
            owed: VecDeque::new(),
            owed_bytes: 0,
            blocked: false,
        }
    }

    /// Whether every offer has its last answer.
    pub fn settled(&self) -> bool {
        self.waiting.is_empty() && self.owed.is_empty()
    }

    /// Takes the offers of a request; adds the answers that they cause. Its piece is for [`PutSession::begin`].
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` and the like with a sentence; the stream is over. What was stored stays.
    pub fn offers(&mut self, request: &PutRequest, now: u64, answers: &mut Vec<Answer>) -> Result<(), Status> {
        if ![0, self.version].contains(&request.version) || ![0, self.tenant].contains(&request.tenant) {
            return Err(Status::invalid_argument(format!(
                "a later message has version {} and tenant {}, allowed is 0 or those of the first, {} and {}",
                request.version, request.tenant, self.version, self.tenant
            )));
        }
        if self.waiting.len() + request.offers.len() > MAX_OBJECTS {
            return Err(Status::invalid_argument(format!(
                "{} offers wait for an answer, allowed is {MAX_OBJECTS}",
                self.waiting.len() + request.offers.len()
            )));
        }
        for offer in &request.offers {
            let meta =
                self.meta(offer).map_err(|e| Status::invalid_argument(format!("offer {}: {e}", self.offered)))?;
            self.waiting.push_back((self.offered, meta));
            self.offered = self.offered.checked_add(1).ok_or_else(|| Status::invalid_argument("too many offers"))?;
        }
        self.admit(now, answers)
    }

    fn meta(&self, offer: &Offer) -> Result<PutMeta, String> {
        let (key, part) = ids::object(&offer.id)?;
        let extent = ChainKey::try_from(&offer.extent[..])
            .map_err(|_| format!("extent has {} bytes, allowed is 32", offer.extent.len()))?;
        let meta = PutMeta {
            id: ObjectId { key, part },
            tenant: self.tenant,
            bucket: offer.bucket,
            len: offer.length,
            extent,
            page_index: offer.page_index,
            superseded: offer.superseded,
            layout: offer.layout,
        };
        meta.validate().map(|()| meta).map_err(|e| e.to_string())
    }

    /// Whether an offer waits until values have left memory for the disk tier.
    pub fn is_blocked(&self) -> bool {
        self.blocked
    }

    /// Answers the offer that waits for room so, with nothing.
    ///
    /// # Errors
    /// As for offers.
    pub fn give_up(&mut self, now: u64, answers: &mut Vec<Answer>) -> Result<(), Status> {
        if let Some((index, _)) = self.waiting.pop_front().filter(|_| self.blocked) {
            answers.push(Answer { index, outcome: PutOutcome::NoRoom as i32 });
        }
        self.admit(now, answers)
    }

    /// Answers waiting offers in order, as far as the stream may owe bytes and there is room.
    ///
    /// # Errors
    /// As for offers.
    pub fn admit(&mut self, now: u64, answers: &mut Vec<Answer>) -> Result<(), Status> {
        self.blocked = false;
        while let Some((index, meta)) = self.waiting.front() {
            let (index, meta) = (*index, *meta);
            if !self.owed.is_empty() && self.owed_bytes + meta.len > self.state.config.limits.put.0 {
                break;
            }
            let outcome = self.slot(index, &meta, now)?;
            // What this stream is writing itself may be all that is in the way.
            if outcome == PutOutcome::NoRoom && (!self.owed.is_empty() || self.state.tiers.has_disk()) {
                self.blocked = self.owed.is_empty();
                break;
            }
            self.waiting.pop_front();
            answers.push(Answer { index, outcome: outcome as i32 });
        }
        Ok(())
    }

    fn slot(&mut self, index: u32, meta: &PutMeta, now: u64) -> Result<PutOutcome, Status> {
        if !self.state.owe(meta.len) {
            return Ok(PutOutcome::NoRoom);
        }
        let begun = self.state.tiers.begin(meta, now);
        let Ok(Begin::Slot(writer)) = begun else {
            self.state.pay(meta.len);
            return match begun {
                Ok(Begin::Present) => Ok(PutOutcome::Present),
                Ok(Begin::Busy) => Ok(PutOutcome::Busy),
                // A value that no eviction could make room for is refused like one that is too long for the protocol.
                Err(e @ ShmError::Invalid { .. }) => Err(Status::invalid_argument(format!("offer {index}: {e}"))),
                Err(e) => Err(Status::internal(e.to_string())),
                _ => Ok(PutOutcome::NoRoom),
            };
        };
        let len = meta.len as usize;
        self.owed_bytes += meta.len;
        let crcs = Vec::with_capacity(chunks_of(len));
        self.owed.push_back(Owed { index, len, at: 0, crc: 0, crcs, said: None, writer: Some(writer) });
        Ok(PutOutcome::Wanted)
    }

    /// So many bytes of the object that was wanted first begin.
    ///
    /// # Errors
    /// As for offers.
    pub fn begin(&mut self, head: &PieceHead, bytes: usize) -> Result<(), Status> {
        let Some(owed) = self.owed.front_mut() else {
            return Err(Status::invalid_argument(format!("a piece of object {}, and no object is wanted", head.index)));
        };
        let (start, end) = (owed.at, owed.at + bytes);
        let fits = bytes > 0 && end <= owed.len && start % CHUNK_BYTES + bytes <= MAX_PIECE_BYTES;
        if head.index != owed.index || head.offset != start as u64 || !fits {
            return Err(Status::invalid_argument(format!(
                "a piece of object {} at {} with {bytes} bytes, allowed is the next one of object {} at {start} of {}, \
                 within a chunk",
                head.index, head.offset, owed.index, owed.len
            )));
        }
        owed.said = head.crc32c;
        Ok(())
    }

    /// Some of them.
    pub fn data(&mut self, bytes: &[u8]) {
        let Some(owed) = self.owed.front_mut() else { return };
        let (start, end) = (owed.at, owed.at + bytes.len());
        owed.at = end;
        if let Some(writer) = &mut owed.writer {
            owed.crc = copy_crc32c_append(owed.crc, &mut writer.bytes()[start..end], bytes);
        }
    }

    /// All of them have come.
    ///
    /// # Errors
    /// As for offers.
    pub fn end(&mut self, now: u64, answers: &mut Vec<Answer>) -> Result<(), Status> {
        let Some(owed) = self.owed.front_mut() else { return Ok(()) };
        let whole = owed.at == owed.len;
        if (whole || owed.at.is_multiple_of(CHUNK_BYTES)) && owed.writer.is_some() {
            if owed.said == Some(owed.crc) {
                owed.crcs.push(owed.crc);
            } else {
                owed.writer = None;
                answers.push(Answer { index: owed.index, outcome: PutOutcome::Corrupt as i32 });
                self.state.metrics.corrupt();
            }
            owed.crc = 0;
        }
        if whole {
            self.whole(answers)?;
            self.admit(now, answers)?;
        }
        Ok(())
    }

    /// The first owed object has all its bytes.
    fn whole(&mut self, answers: &mut Vec<Answer>) -> Result<(), Status> {
        let Some(owed) = self.owed.pop_front() else { return Ok(()) };
        self.owed_bytes -= owed.len as u64;
        self.state.pay(owed.len as u64);
        if let Some(writer) = owed.writer {
            writer.commit(&owed.crcs).map_err(|e| Status::internal(e.to_string()))?;
            answers.push(Answer { index: owed.index, outcome: PutOutcome::Stored as i32 });
            self.state.metrics.put(owed.len as u64);
        }
        Ok(())
    }
}

impl Drop for PutSession {
    fn drop(&mut self) {
        self.owed.clear();
        self.state.pay(self.owed_bytes);
    }
}
