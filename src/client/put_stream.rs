//! One `Put` stream: offers, answers, and the pieces of what the node wants.

use super::call::{Call, CallError};
use super::chunks::{Buffers, Chunk, Source};
use super::grpc::{Connection, Event, Sealed, Stream, opened};
use super::transport::{self, PutBatch};
use super::types::{NoMemory, Stored};
use crate::rpc::frame::{Carrier, PieceHead, put_head};
use crate::rpc::ids::pack;
use crate::rpc::limits::COMMON_VERSION;
use crate::rpc::v1::{self, PutOutcome};
use bytes::{Bytes, BytesMut};
use std::collections::VecDeque;
use std::sync::Arc;

/// The stream's side of one batch.
pub struct PutStream<'p, 'b, 'a> {
    batch: &'p mut PutBatch<'b, 'a>,
    /// Positions of what was offered: those that had no answer when the stream began.
    offered: Vec<usize>,
    answers: Vec<Answered>,
    /// Offers without a first answer.
    unanswered: usize,
    /// Indices of offers to send, in the order in which they were wanted.
    wanted: VecDeque<usize>,
    /// The value being sent.
    sending: Option<Sending<'b, 'a>>,
    /// What remains of the message being sent.
    rest: VecDeque<Bytes>,
    buffers: &'p Buffers,
    /// Check of the first request, with which all others of the call begin.
    check: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answered {
    No,
    Wanted,
    Final,
}

struct Sending<'b, 'a> {
    index: usize,
    offset: u64,
    chunks: Chunks<'b, 'a>,
}

enum Chunks<'b, 'a> {
    Copied(std::slice::Iter<'b, Chunk>),
    Source(Source<'b, 'a>),
}

impl<'p, 'b, 'a> PutStream<'p, 'b, 'a> {
    /// Offers what has no answer yet and sends what is wanted of it.
    pub async fn run(
        connection: &Arc<Connection>,
        call: Call,
        batch: &'p mut PutBatch<'b, 'a>,
        buffers: &'p Buffers,
    ) -> Result<(), CallError> {
        let offered: Vec<usize> = (0..batch.items.len()).filter(|&i| batch.stored[i].is_none()).collect();
        if offered.is_empty() {
            return Ok(());
        }
        let (unanswered, answers) = (offered.len(), vec![Answered::No; offered.len()]);
        let (wanted, rest) = (VecDeque::new(), VecDeque::new());
        let mut put = PutStream { batch, offered, answers, unanswered, wanted, sending: None, rest, buffers, check: 0 };
        let mut stream = connection.begin("Put", call.deadline).await?;
        let first = Sealed::new(put.offers(call.tenant));
        put.check = first.check;
        stream.send_now(first.bytes, false);
        put.talk(&mut stream).await
    }

    fn offers(&self, tenant: u64) -> v1::PutRequest {
        let offer = |&i: &usize| {
            let head = &self.batch.items[i].head;
            v1::Offer {
                id: Bytes::copy_from_slice(&pack(&head.id.key, head.id.part)),
                bucket: head.bucket,
                length: head.length,
                extent: Bytes::copy_from_slice(&head.id.extent),
                page_index: head.page_index,
                superseded: head.superseded,
                layout: head.layout,
            }
        };
        let offers = self.offered.iter().map(offer).collect();
        v1::PutRequest { version: COMMON_VERSION, tenant, offers, ..Default::default() }
    }

    async fn talk(&mut self, stream: &mut Stream) -> Result<(), CallError> {
        let mut ended = false;
        loop {
            if self.rest.is_empty() {
                self.prepare()?;
            }
            let sends = !self.rest.is_empty();
            if !sends && self.unanswered == 0 && !ended {
                stream.send_now(Bytes::new(), true);
                ended = true;
            }
            match stream.message_or_room(sends.then(|| self.rest[0].len())).await? {
                Event::Message(Some(message)) => {
                    let reply: v1::PutReply = opened(message, self.check)?;
                    for answer in reply.answers {
                        self.answer(answer)?;
                    }
                }
                Event::Message(None) => {
                    let open = self.answers.iter().filter(|a| **a != Answered::Final).count();
                    return match open {
                        0 => Ok(()),
                        _ => Err(CallError::Breach(format!("the answer ends with {open} offers open"))),
                    };
                }
                Event::Room(room) => {
                    let bytes = &mut self.rest[0];
                    let part = bytes.split_to(room.min(bytes.len()));
                    if bytes.is_empty() {
                        self.rest.pop_front();
                    }
                    stream.send_now(part, false);
                }
            }
        }
    }

    /// Makes the next message, if there is something to send.
    fn prepare(&mut self) -> Result<(), CallError> {
        loop {
            if self.sending.is_none() {
                let Some(index) = self.wanted.pop_front() else { return Ok(()) };
                let chunks = match self.batch.items[self.offered[index]].bytes {
                    transport::Bytes::Copied(copied) => Chunks::Copied(copied.0.iter()),
                    transport::Bytes::There(item) => Chunks::Source(Source::new(item)),
                };
                self.sending = Some(Sending { index, offset: 0, chunks });
            }
            let Some(sending) = &mut self.sending else { return Ok(()) };
            // A value is sent to its end even if its answer came early: the node reads it and throws it away.
            let next = match &mut sending.chunks {
                Chunks::Copied(chunks) => chunks.next().cloned(),
                Chunks::Source(source) => {
                    source.next(self.buffers).transpose().map_err(|NoMemory| CallError::NoMemory)?
                }
            };
            match next {
                Some((data, crc)) => {
                    let (index, offset) = (sending.index as u32, sending.offset);
                    let mut message = BytesMut::new();
                    let head = PieceHead { index, offset, crc32c: Some(crc), ..PieceHead::default() };
                    put_head(&mut message, Carrier::PutRequest, &head, data.len(), self.check);
                    self.rest.push_back(message.freeze());
                    sending.offset += data.len() as u64;
                    self.rest.push_back(data);
                    return Ok(());
                }
                None => self.sending = None,
            }
        }
    }

    fn answer(&mut self, answer: v1::Answer) -> Result<(), CallError> {
        let index = answer.index as usize;
        let state = *self.answers.get(index).unwrap_or(&Answered::Final);
        let stored = match (state, answer.outcome()) {
            (Answered::No, PutOutcome::Wanted) => {
                self.answers[index] = Answered::Wanted;
                self.unanswered -= 1;
                self.wanted.push_back(index);
                return Ok(());
            }
            (Answered::Wanted, PutOutcome::Stored) => Stored::Stored,
            (Answered::Wanted, PutOutcome::Corrupt) => Stored::Corrupt,
            (Answered::No | Answered::Wanted, PutOutcome::Present) => Stored::Present,
            (Answered::No | Answered::Wanted, PutOutcome::Busy) => Stored::Busy,
            (Answered::No | Answered::Wanted, PutOutcome::NoRoom) => Stored::NoRoom,
            (_, outcome) => {
                return Err(CallError::Breach(format!("answer {outcome:?} to offer {index}, which is {state:?}")));
            }
        };
        if state == Answered::No {
            self.unanswered -= 1;
        }
        self.answers[index] = Answered::Final;
        self.batch.stored[self.offered[index]] = Some(stored);
        Ok(())
    }
}
