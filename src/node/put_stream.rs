//! A `Put` on the network: bytes in, answers out.
//!
//! - Data of pieces goes from the connection's buffer into its slot ([`PutSession`]); no message with a piece is put together
//!   first.
//! - What has come already is read before answers are sent: many small values, one message of answers.
//! - A stream that does not bring a message to its end within `limits.stall` is ended.

use super::auth::Grant;
use super::get::trailers;
use super::put::PutSession;
use super::service::{Frames, stalled};
use super::state::{Connection, Progress, State};
use super::unary::check_version;
use crate::rpc::frame::{PieceHead, put_sealed};
use crate::rpc::pieces::{Malformed, Pieces, PiecesReader};
use crate::rpc::v1::{Answer, PutReply, PutRequest};
use bytes::{Bytes, BytesMut};
use http_body::Frame;
use http_body_util::BodyExt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout, timeout_at};
use tonic::Status;
use tonic::codegen::StdError;

/// How long offers wait for room in memory, where values leave it for the disk tier, until one of them finds some.
const ROOM_WAIT: Duration = Duration::from_secs(2);
/// Answers that wait while more is there to be read.
const MOST_ANSWERS: usize = 256;

/// A stream whose first message was read.
pub struct PutStream<B> {
    body: Pin<Box<B>>,
    reader: PiecesReader,
    talk: Talk,
    progress: Arc<Progress>,
    stall: Duration,
    /// When the last message ended, or an offer was answered that had to wait.
    moved: Instant,
    /// Since when offers wait for room, and none has found any.
    blocked: Option<Instant>,
}

/// What the messages of a stream mean.
struct Talk {
    state: Arc<State>,
    grant: Grant,
    /// From the first message on.
    session: Option<PutSession>,
    /// Check of the first message.
    check: u32,
    answers: Vec<Answer>,
    /// Messages so far.
    count: u64,
}

impl Talk {
    fn session(&mut self) -> Result<&mut PutSession, Status> {
        // A piece has no version.
        self.session.as_mut().ok_or_else(|| check_version(0).err().unwrap_or_else(|| Status::internal("no version")))
    }
}

impl Talk {
    /// Tries the offer that waits for room again, or gives it up; whether it has an answer.
    fn answered(&mut self, give_up: bool) -> Result<bool, Status> {
        let (now, before) = (self.state.clock.now(), self.answers.len());
        let Some(session) = &mut self.session else { return Ok(true) };
        match give_up {
            true => session.give_up(now, &mut self.answers)?,
            false => session.admit(now, &mut self.answers)?,
        }
        Ok(self.answers.len() > before || !session.is_blocked())
    }
}

impl Pieces for Talk {
    type Message = PutRequest;
    type Error = Status;

    fn begin(&mut self, head: PieceHead, bytes: usize) -> Result<(), Status> {
        self.session()?.begin(&head, bytes)
    }

    fn data(&mut self, bytes: &[u8]) {
        if let Some(session) = &mut self.session {
            session.data(bytes);
        }
    }

    fn end(&mut self) -> Result<(), Status> {
        self.count += 1;
        let now = self.state.clock.now();
        self.session.as_mut().map_or(Ok(()), |session| session.end(now, &mut self.answers))
    }

    fn message(&mut self, message: PutRequest, check: u32) -> Result<(), Status> {
        self.count += 1;
        if self.session.is_none() {
            check_version(message.version)?;
            self.grant.check(message.tenant)?;
            if self.state.draining.load(Ordering::Relaxed) {
                return Err(Status::unavailable("this node is about to stop and takes no new values"));
            }
            self.check = check;
        }
        let now = self.state.clock.now();
        let PutRequest { version, tenant, .. } = message;
        let session = self.session.get_or_insert_with(|| PutSession::new(self.state.clone(), version, tenant));
        session.offers(&message, now, &mut self.answers)
    }
}

impl<B> PutStream<B>
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<StdError>,
{
    /// Reads the first message.
    ///
    /// # Errors
    /// It breaks a rule, or does not come in time.
    pub async fn begin(
        state: &Arc<State>,
        connection: &Arc<Connection>,
        grant: Grant,
        body: B,
    ) -> Result<PutStream<B>, Status> {
        let state = state.clone();
        let progress = state.watch(connection);
        let stall = state.config.limits.stall.0;
        let talk = Talk { state, grant, session: None, check: 0, answers: Vec::new(), count: 0 };
        let (body, reader, moved) = (Box::pin(body), PiecesReader::of_requests(), Instant::now());
        let mut stream = PutStream { body, reader, talk, progress, stall, moved, blocked: None };
        while stream.talk.session.is_none() {
            let data = stream.data().await?.ok_or_else(|| Status::invalid_argument("the request has no message"))?;
            stream.feed(&data)?;
        }
        Ok(stream)
    }

    /// Runs it to its end.
    ///
    /// # Errors
    /// Why it ended before; what was stored stays.
    pub async fn run(mut self, send: &mpsc::Sender<Frames>) -> Result<(), Status> {
        loop {
            let ready = tokio::select! {
                biased;
                data = self.data() => Some(data?),
                () = std::future::ready(()) => None,
            };
            if (ready.is_none() || self.talk.answers.len() >= MOST_ANSWERS) && !self.talk.answers.is_empty() {
                let sent = timeout(self.stall, send.send(Ok(self.answers()))).await;
                if !matches!(sent, Ok(Ok(()))) {
                    return Err(Status::cancelled("the client reads no answers"));
                }
                self.moved = Instant::now();
            }
            let data = match ready {
                Some(data) => data,
                None if self.talk.session()?.is_blocked() => match self.data_or_room().await? {
                    Some(data) => data,
                    None => continue,
                },
                None => self.data().await?,
            };
            let Some(data) = data else { break };
            self.feed(&data)?;
        }
        if !self.talk.answers.is_empty() {
            let _ = send.send(Ok(self.answers())).await;
        }
        if !self.reader.is_between_messages() {
            return Err(Status::internal("the stream ended within a message"));
        }
        match self.talk.session()?.settled() {
            true => Ok(()),
            false => Err(Status::invalid_argument(
                "the stream ended before all wanted objects were whole; those that were are stored",
            )),
        }
    }

    /// Waits for room for the offer that has none, and for bytes; after [`ROOM_WAIT`] the offer is answered that there is
    /// none, and those after it at once until one finds room: a batch waits once. `None` where an answer was made.
    async fn data_or_room(&mut self) -> Result<Option<Option<Bytes>>, Status> {
        let tiers = self.talk.state.tiers.clone();
        let mut freed = std::pin::pin!(tiers.room.notified());
        // Before it is tried again, so that nothing is missed in between.
        freed.as_mut().enable();
        let until = *self.blocked.get_or_insert_with(Instant::now) + ROOM_WAIT;
        let late = until <= Instant::now();
        if self.talk.answered(late)? {
            self.moved = Instant::now();
            if !(late && self.talk.session()?.is_blocked()) {
                self.blocked = None;
            }
            return Ok(None);
        }
        tokio::select! {
            biased;
            data = self.data() => data.map(Some),
            () = freed => Ok(None),
            () = tokio::time::sleep_until(until) => Ok(None),
        }
    }

    /// The next bytes; `None` at the end.
    async fn data(&mut self) -> Result<Option<Bytes>, Status> {
        loop {
            let late = |_| stalled(self.stall);
            match timeout_at(self.moved + self.stall, self.body.frame()).await.map_err(late)? {
                None => return Ok(None),
                Some(Err(error)) => return Err(Status::from_error(error.into())),
                Some(Ok(frame)) => {
                    // Trailers of a request mean nothing.
                    if let Ok(data) = frame.into_data() {
                        return Ok(Some(data));
                    }
                }
            }
        }
    }

    fn feed(&mut self, data: &[u8]) -> Result<(), Status> {
        let before = self.talk.count;
        self.reader.feed(data, &mut self.talk)?;
        if self.talk.count > before {
            self.moved = Instant::now();
            self.progress.moved(self.talk.state.clock.now());
        }
        Ok(())
    }

    /// A message with the answers so far.
    fn answers(&mut self) -> Frame<Bytes> {
        let reply = PutReply { answers: std::mem::take(&mut self.talk.answers), ..PutReply::default() };
        let mut message = BytesMut::new();
        put_sealed(&mut message, reply, self.talk.check);
        Frame::data(message.freeze())
    }
}

/// The end of a stream, with what it came to.
pub fn end(outcome: &Result<(), Status>) -> Frame<Bytes> {
    Frame::trailers(trailers(outcome.as_ref().err()))
}

impl From<Malformed> for Status {
    fn from(malformed: Malformed) -> Status {
        let sentence = malformed.to_string();
        match malformed {
            Malformed::Compressed(_) => Status::unimplemented(sentence),
            Malformed::TooLong(_) => Status::out_of_range(sentence),
            Malformed::Unreadable(..) => Status::internal(sentence),
            Malformed::Altered(_) => Status::data_loss(sentence),
        }
    }
}
