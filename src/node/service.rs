//! Requests of the contract as HTTP/2 brings them: finds the call, checks version, token and tenant, answers.
//!
//! A message whose check does not match is refused before anything is done for it.
//!
//! Written on the HTTP layer and not on generated service code, because that would copy every value once more on its way
//! out. Each call holds one of `limits.calls` permits from before its first byte is read until its last is sent.

use super::auth::Grant;
use super::deadline::Deadline;
use super::get::{Caller, GetBody, trailers};
use super::metrics::{CALLS, Metrics};
use super::put_stream::{self, PutStream};
use super::state::{Connection, State};
use super::unary;
use crate::rpc::check::{self, Checked};
use crate::rpc::frame::put_sealed;
use crate::rpc::limits::{MAX_PIECE_BYTES, PIECE_BYTES};
use crate::rpc::pieces::{self, Malformed, hold};
use crate::rpc::v1::{
    DeleteRequest, ExistsRequest, GetRequest, HelloRequest, StatsRequest, TouchRequest, VerifyRequest,
};
use bytes::{Bytes, BytesMut};
use http::{HeaderValue, Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Instant;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;
use tonic::body::Body;

/// Path of the service.
pub const PREFIX: &str = "/gcache.v1.GCache/";

/// What an answer is made of.
pub(super) type Frames = Result<Frame<Bytes>, Infallible>;

/// Answers of a `Put` that may wait for the network before the stream is read no further.
const ANSWERS_WAITING: usize = 8;

/// A call that runs: counted, and holding its permit.
struct Running {
    state: Arc<State>,
    call: usize,
    since: Instant,
    refused: bool,
    _permit: OwnedSemaphorePermit,
}

impl Drop for Running {
    fn drop(&mut self) {
        Metrics::sub(&self.state.metrics.running, 1);
        self.state.metrics.ended(self.call, self.since.elapsed().as_micros() as u64, self.refused);
    }
}

/// A body that keeps its call running until it was sent or dropped.
struct Held<B> {
    body: B,
    _running: Running,
}

impl<B: http_body::Body<Data = Bytes, Error = Infallible> + Unpin> http_body::Body for Held<B> {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Frames>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }
}

/// Answers one request.
pub async fn answer<B>(state: Arc<State>, connection: Arc<Connection>, request: Request<B>) -> Response<Body>
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<tonic::codegen::StdError>,
{
    let name = request.uri().path().strip_prefix(PREFIX).unwrap_or_default();
    let Some(call) = CALLS.iter().position(|c| *c == name) else {
        return Status::unimplemented(format!("this node has no call {:?}", request.uri().path())).into_http();
    };
    connection.used.store(true, Ordering::Relaxed);
    let deadline = Deadline::of(request.headers(), tokio::time::Instant::now());
    let Ok(Ok(permit)) = tokio::time::timeout(state.config.limits.stall.0, state.calls.clone().acquire_owned()).await
    else {
        let most = state.config.limits.calls;
        return Status::resource_exhausted(format!("{most} calls run on this node, which is all it allows"))
            .into_http();
    };
    Metrics::add(&state.metrics.running, 1);
    let mut running = Running { state: state.clone(), call, since: Instant::now(), refused: false, _permit: permit };
    let answered = match state.tokens.grant(request.headers()) {
        Err(status) => Err(status),
        Ok(grant) => match CALLS[call] {
            "Get" => match deadline.bound(get(&state, &connection, &grant, deadline, request)).await {
                Ok(body) => return ok(Body::new(Held { body, _running: running })),
                Err(status) => Err(status),
            },
            "Put" => match deadline.bound(PutStream::begin(&state, &connection, grant, request.into_body())).await {
                Ok(stream) => {
                    let (send, receive) = mpsc::channel(ANSWERS_WAITING);
                    tokio::spawn(put(running, stream, deadline, send));
                    return ok(Body::new(StreamBody::new(ReceiverStream::new(receive))));
                }
                Err(status) => Err(status),
            },
            _ => deadline.bound(one(&state, &connection, &grant, CALLS[call], request)).await,
        },
    };
    running.refused = answered.is_err();
    match answered {
        Ok(message) => ok(Body::new(StreamBody::new(tokio_stream::iter([
            Ok::<_, Infallible>(Frame::data(message)),
            Ok(Frame::trailers(trailers(None))),
        ])))),
        Err(status) => status.into_http(),
    }
}

/// A call with one answer.
async fn one<B>(
    state: &Arc<State>,
    connection: &Connection,
    grant: &Grant,
    call: &str,
    request: Request<B>,
) -> Result<Bytes, Status>
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<tonic::codegen::StdError>,
{
    /// Reads the one message and checks what all of them have.
    macro_rules! checked {
        ($kind:ty) => {{
            let First { message, check } = first::<$kind, B>(state, request).await?;
            unary::check_version(message.version)?;
            grant.check(message.tenant)?;
            (message, check)
        }};
    }
    let mut out = BytesMut::new();
    match call {
        "Hello" => {
            let First { message, check } = first::<HelloRequest, B>(state, request).await?;
            put_sealed(&mut out, unary::hello(state, connection, &message)?, check);
        }
        "Exists" => {
            let (message, check) = checked!(ExistsRequest);
            put_sealed(&mut out, unary::exists(state, connection, &message)?, check);
        }
        "Touch" => {
            let (message, check) = checked!(TouchRequest);
            put_sealed(&mut out, unary::touch(state, &message)?, check);
        }
        "Delete" => {
            let (message, check) = checked!(DeleteRequest);
            put_sealed(&mut out, unary::delete(state, &message).await?, check);
        }
        "Verify" => {
            let (message, check) = checked!(VerifyRequest);
            put_sealed(&mut out, unary::verify(state.clone(), message).await?, check);
        }
        _ => {
            let (message, check) = checked!(StatsRequest);
            put_sealed(&mut out, unary::stats(state, &message), check);
        }
    }
    Ok(out.freeze())
}

async fn get<B>(
    state: &Arc<State>,
    connection: &Arc<Connection>,
    grant: &Grant,
    deadline: Deadline,
    request: Request<B>,
) -> Result<GetBody, Status>
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<tonic::codegen::StdError>,
{
    let First { message, check } = first::<GetRequest, B>(state, request).await?;
    unary::check_version(message.version)?;
    grant.check(message.tenant)?;
    let piece_bytes = match message.piece_bytes {
        0 => MAX_PIECE_BYTES,
        n if PIECE_BYTES.contains(&n) => n as usize,
        n => {
            return Err(Status::invalid_argument(format!(
                "piece_bytes is {n}, allowed is 0 or one of {PIECE_BYTES:?}"
            )));
        }
    };
    let ids = unary::objects(&message.runs)?;
    let GetRequest { tenant, version, .. } = message;
    let caller = Caller { progress: state.watch(connection), tenant, version, check, deadline };
    Ok(GetBody::new(state.clone(), caller, ids, piece_bytes))
}

/// Runs a `Put` to its end.
async fn put<B>(mut running: Running, stream: PutStream<B>, deadline: Deadline, send: mpsc::Sender<Frames>)
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<tonic::codegen::StdError>,
{
    let outcome = deadline.bound(stream.run(&send)).await;
    running.refused = outcome.is_err();
    let _ = send.send(Ok(put_stream::end(&outcome))).await;
}

/// The refusal of a stream without progress.
pub(super) fn stalled(stall: std::time::Duration) -> Status {
    Status::deadline_exceeded(format!("the stream made no progress for {} ms", stall.as_millis()))
}

fn altered(error: check::Altered) -> Status {
    Status::data_loss(error.to_string())
}

/// The first message of a call, with its check.
struct First<M> {
    message: M,
    check: u32,
}

async fn first<M, B>(state: &State, request: Request<B>) -> Result<First<M>, Status>
where
    M: Checked + Default + 'static,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<tonic::codegen::StdError>,
{
    let stall = state.config.limits.stall.0;
    let message = tokio::time::timeout(stall, message(request.into_body())).await.map_err(|_| stalled(stall))??;
    let message = message.ok_or_else(|| Status::invalid_argument("the request has no message"))?;
    let message = M::decode(message).map_err(|e| Status::from(Malformed::Unreadable(M::NAME, e)))?;
    let check = check::verify(&message, check::FIRST).map_err(altered)?;
    Ok(First { message, check })
}

/// The bytes of a body's first message; `None` where it has none.
async fn message<B>(body: B) -> Result<Option<Bytes>, Status>
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<tonic::codegen::StdError>,
{
    let (mut body, mut held, mut length) = (Box::pin(body), Vec::new(), None);
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| Status::from_error(error.into()))?;
        // Trailers of a request mean nothing.
        let Ok(data) = frame.into_data() else { continue };
        let mut bytes = &data[..];
        if length.is_none() {
            hold(&mut held, &mut bytes, pieces::PREFIX);
            if held.len() == pieces::PREFIX {
                length = Some(pieces::message_length(&held)?);
                held.clear();
            }
        }
        if let Some(length) = length {
            hold(&mut held, &mut bytes, length);
            if held.len() == length {
                return Ok(Some(held.into()));
            }
        }
    }
    match length.is_none() && held.is_empty() {
        true => Ok(None),
        false => Err(Status::internal("the stream ended within a message")),
    }
}

fn ok(body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    response.headers_mut().insert(http::header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    response
}
