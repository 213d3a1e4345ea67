//! Requests of the contract as HTTP/2 brings them: finds the call, checks version, token and tenant, answers.
//!
//! Written on the HTTP layer and not on generated service code, because that would copy every value once more on its way
//! out. Each call holds one of `limits.calls` permits from before its first byte is read until its last is sent.

use super::auth::Grant;
use super::get::GetBody;
use super::metrics::{CALLS, Metrics};
use super::put::PutSession;
use super::state::{Connection, Progress, State};
use super::unary;
use crate::rpc::frame::put_message;
use crate::rpc::limits::{MAX_MESSAGE_BYTES, MAX_PIECE_BYTES, PIECE_BYTES};
use crate::rpc::v1::{
    DeleteRequest, ExistsRequest, GetRequest, HelloRequest, PutReply, PutRequest, StatsRequest, TouchRequest,
    VerifyRequest,
};
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body::Frame;
use http_body_util::StreamBody;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Instant;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::body::Body;
use tonic::codec::Streaming;
use tonic::{Code, Status};
use tonic_prost::ProstDecoder;

/// Path of the service.
pub const PREFIX: &str = "/gcache.v1.GCache/";

type Frames = Result<Frame<Bytes>, Infallible>;

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
    B: http_body::Body + Send + 'static,
    B::Error: Into<tonic::codegen::StdError>,
{
    let name = request.uri().path().strip_prefix(PREFIX).unwrap_or_default();
    let Some(call) = CALLS.iter().position(|c| *c == name) else {
        return Status::unimplemented(format!("this node has no call {:?}", request.uri().path())).into_http();
    };
    connection.used.store(true, Ordering::Relaxed);
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
            "Get" => match get(&state, &connection, &grant, request).await {
                Ok(body) => return ok(Body::new(Held { body, _running: running })),
                Err(status) => Err(status),
            },
            "Put" => match put(&state, &connection, &grant, request).await {
                Ok((stream, session, first)) => {
                    let (send, receive) = mpsc::channel(ANSWERS_WAITING);
                    tokio::spawn(put_stream(running, session, first, stream, send));
                    return ok(Body::new(StreamBody::new(ReceiverStream::new(receive))));
                }
                Err(status) => Err(status),
            },
            _ => one(&state, &connection, &grant, CALLS[call], request).await,
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
    B: http_body::Body + Send + 'static,
    B::Error: Into<tonic::codegen::StdError>,
{
    /// Reads the one message and checks what all of them have.
    macro_rules! checked {
        ($kind:ty) => {{
            let (message, _) = first::<$kind, B>(state, request).await?;
            unary::check_version(message.version)?;
            grant.check(message.tenant)?;
            message
        }};
    }
    let mut out = BytesMut::new();
    match call {
        "Hello" => {
            let (message, _) = first::<HelloRequest, B>(state, request).await?;
            put_message(&mut out, &unary::hello(state, connection, &message)?);
        }
        "Exists" => {
            let message = checked!(ExistsRequest);
            put_message(&mut out, &unary::exists(state, connection, &message)?);
        }
        "Touch" => {
            let message = checked!(TouchRequest);
            put_message(&mut out, &unary::touch(state, &message)?);
        }
        "Delete" => {
            let message = checked!(DeleteRequest);
            put_message(&mut out, &unary::delete(state, &message)?);
        }
        "Verify" => {
            let message = checked!(VerifyRequest);
            put_message(&mut out, &unary::verify(state.clone(), message).await?);
        }
        _ => {
            let message = checked!(StatsRequest);
            put_message(&mut out, &unary::stats(state, &message));
        }
    }
    Ok(out.freeze())
}

async fn get<B>(
    state: &Arc<State>,
    connection: &Arc<Connection>,
    grant: &Grant,
    request: Request<B>,
) -> Result<GetBody, Status>
where
    B: http_body::Body + Send + 'static,
    B::Error: Into<tonic::codegen::StdError>,
{
    let (message, _) = first::<GetRequest, B>(state, request).await?;
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
    let progress = state.watch(connection);
    Ok(GetBody::new(state.clone(), progress, message.tenant, ids, piece_bytes))
}

type PutStream = Streaming<PutRequest>;

async fn put<B>(
    state: &Arc<State>,
    connection: &Arc<Connection>,
    grant: &Grant,
    request: Request<B>,
) -> Result<(PutStream, (PutSession, Arc<Progress>), PutRequest), Status>
where
    B: http_body::Body + Send + 'static,
    B::Error: Into<tonic::codegen::StdError>,
{
    let (message, stream) = first::<PutRequest, B>(state, request).await?;
    unary::check_version(message.version)?;
    grant.check(message.tenant)?;
    if state.draining.load(Ordering::Relaxed) {
        return Err(Status::unavailable("this node is about to stop and takes no new values"));
    }
    let session = PutSession::new(state.clone(), message.tenant);
    Ok((stream, (session, state.watch(connection)), message))
}

/// Runs a `Put` to its end, which the trailers tell.
async fn put_stream(
    mut running: Running,
    (session, progress): (PutSession, Arc<Progress>),
    first: PutRequest,
    stream: PutStream,
    send: mpsc::Sender<Frames>,
) {
    let state = running.state.clone();
    let outcome = put_loop(&state, session, &progress, first, stream, &send).await;
    running.refused = outcome.is_err();
    let _ = send.send(Ok(Frame::trailers(trailers(outcome.err().as_ref())))).await;
}

async fn put_loop(
    state: &Arc<State>,
    mut session: PutSession,
    progress: &Progress,
    first: PutRequest,
    mut stream: PutStream,
    send: &mpsc::Sender<Frames>,
) -> Result<(), Status> {
    let stall = state.config.limits.stall.0;
    let mut next = Some(first);
    let mut answers = Vec::new();
    while let Some(request) = next {
        progress.moved(state.clock.now());
        session.request(request, state.clock.now(), &mut answers)?;
        // What has come already is read before answers are sent: many small values, one message of answers.
        let ready = tokio::select! {
            biased;
            message = stream.next() => Some(message),
            () = std::future::ready(()) => None,
        };
        if (ready.is_none() || answers.len() >= 256) && !answers.is_empty() {
            let mut message = BytesMut::new();
            put_message(&mut message, &PutReply { answers: std::mem::take(&mut answers) });
            let sent = tokio::time::timeout(stall, send.send(Ok(Frame::data(message.freeze())))).await;
            if !matches!(sent, Ok(Ok(()))) {
                return Err(Status::cancelled("the client reads no answers"));
            }
        }
        let message = match ready {
            Some(message) => message,
            None => tokio::time::timeout(stall, stream.next()).await.map_err(|_| stalled(stall))?,
        };
        next = message.transpose()?;
    }
    if !answers.is_empty() {
        let mut message = BytesMut::new();
        put_message(&mut message, &PutReply { answers });
        let _ = send.send(Ok(Frame::data(message.freeze()))).await;
    }
    if session.settled() {
        return Ok(());
    }
    Err(Status::invalid_argument("the stream ended before all wanted objects were whole; those that were are stored"))
}

fn stalled(stall: std::time::Duration) -> Status {
    Status::deadline_exceeded(format!("the stream made no progress for {} ms", stall.as_millis()))
}

/// The first message of a call, and what follows it.
async fn first<M, B>(state: &State, request: Request<B>) -> Result<(M, Streaming<M>), Status>
where
    M: prost::Message + Default + 'static,
    B: http_body::Body + Send + 'static,
    B::Error: Into<tonic::codegen::StdError>,
{
    let decoder = ProstDecoder::<M>::new(Default::default());
    let mut stream = Streaming::new_request(decoder, request.into_body(), None, Some(MAX_MESSAGE_BYTES));
    let stall = state.config.limits.stall.0;
    let message = tokio::time::timeout(stall, stream.message()).await.map_err(|_| stalled(stall))??;
    let message = message.ok_or_else(|| Status::invalid_argument("the request has no message"))?;
    Ok((message, stream))
}

fn ok(body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    response.headers_mut().insert(http::header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    response
}

fn trailers(status: Option<&Status>) -> HeaderMap {
    let mut map = HeaderMap::new();
    let ok = Status::new(Code::Ok, "");
    if status.unwrap_or(&ok).add_header(&mut map).is_err() {
        map.insert("grpc-status", HeaderValue::from_static("13"));
    }
    map
}
