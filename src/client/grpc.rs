//! One HTTP/2 connection to a node and the framing of gRPC on it.
//!
//! The client speaks gRPC through `h2` itself instead of a generated stub: only so can a piece go from the connection's
//! buffer into the caller's memory in one copy, and a deadline end without anything left behind.

use super::call::{CallError, code};
use crate::rpc::check::{self, Checked};
use crate::rpc::frame::put_message;
use crate::rpc::limits::COMMON_VERSION;
use crate::rpc::pieces::{PREFIX, message_length};
use bytes::{Bytes, BytesMut};
use h2::client::{ResponseFuture, SendRequest};
use h2::{RecvStream, SendStream};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Version};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// A byte stream to a node.
pub trait Io: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// Bytes that one call, and all calls of a connection, may have under way towards the client.
const STREAM_WINDOW: u32 = 4 << 20;
const CONNECTION_WINDOW: u32 = 8 << 20;
/// Longest HTTP/2 frame: a piece and its head.
const FRAME: u32 = (1 << 20) + (16 << 10);
/// Bytes that one call may have waiting in the connection to be sent.
const SEND_BUFFER: usize = 4 << 20;
/// A connection that is given up may still finish what it has under way, for so long.
const LINGER: std::time::Duration = std::time::Duration::from_secs(10);
const HEADERS: u32 = 16 << 10;

/// A connection, shared by its calls.
#[derive(Debug)]
pub struct Connection {
    send: SendRequest<Bytes>,
    authority: String,
    token: Option<HeaderValue>,
    /// Of the protocol, that the node chose; before its answer the one that every node takes.
    version: AtomicU32,
    /// Calls under way.
    calls: AtomicUsize,
    broken: Arc<AtomicBool>,
    driver: Mutex<Option<JoinHandle<()>>>,
}

impl Connection {
    /// Speaks HTTP/2 on `io`. Must be called within the runtime that drives the connection.
    pub async fn open(io: Box<dyn Io>, authority: String, token: Option<&str>) -> Result<Connection, CallError> {
        let token = match token {
            None => None,
            Some(token) => {
                let mut value = HeaderValue::try_from(format!("Bearer {token}"))
                    .map_err(|_| CallError::Connect("the token is no header value".to_string()))?;
                value.set_sensitive(true);
                Some(value)
            }
        };
        let shaken = h2::client::Builder::new()
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_frame_size(FRAME)
            .max_header_list_size(HEADERS)
            .max_send_buffer_size(SEND_BUFFER)
            .enable_push(false)
            .handshake(io)
            .await;
        let (send, driver) = shaken.map_err(|e| CallError::Connect(e.to_string()))?;
        let broken = Arc::new(AtomicBool::new(false));
        let flag = broken.clone();
        let driver = tokio::spawn(async move {
            // Its error reaches the calls.
            let _ = driver.await;
            flag.store(true, Ordering::Release);
        });
        Ok(Connection {
            send,
            authority,
            token,
            version: AtomicU32::new(COMMON_VERSION),
            calls: AtomicUsize::new(0),
            broken,
            driver: Mutex::new(Some(driver)),
        })
    }

    /// Whether new calls can use it.
    pub fn is_open(&self) -> bool {
        !self.broken.load(Ordering::Acquire)
    }

    /// The version of the protocol to use on it.
    pub fn version(&self) -> u32 {
        self.version.load(Ordering::Relaxed)
    }

    /// The node has chosen a version.
    pub fn agreed(&self, version: u32) {
        self.version.store(version, Ordering::Relaxed);
    }

    /// Calls under way.
    pub fn calls(&self) -> usize {
        self.calls.load(Ordering::Relaxed)
    }

    /// No new calls. What is under way may end, within a bound.
    pub fn retire(&self) {
        self.broken.store(true, Ordering::Release);
        let driver = self.driver.lock().unwrap_or_else(|e| e.into_inner()).take();
        if let Some(driver) = driver {
            let stop = driver.abort_handle();
            tokio::spawn(async move {
                let _ = tokio::time::timeout(LINGER, driver).await;
                stop.abort();
            });
        }
    }

    /// Begins a call of `method`. The returned guard counts it.
    pub async fn begin(self: &Arc<Self>, method: &'static str, deadline: Instant) -> Result<Stream, CallError> {
        let mut send = self.send.clone();
        poll_fn(|cx| send.poll_ready(cx)).await.map_err(|e| self.failed(e))?;
        let left = deadline.saturating_duration_since(Instant::now());
        let uri = http::Uri::builder()
            .scheme("http")
            .authority(self.authority.as_str())
            .path_and_query(format!("/gcache.v1.GCache/{method}"))
            .build()
            .map_err(|e| CallError::Connect(format!("{}: {e}", self.authority)))?;
        let mut request = Request::new(());
        *request.method_mut() = Method::POST;
        *request.uri_mut() = uri;
        *request.version_mut() = Version::HTTP_2;
        let headers = request.headers_mut();
        headers.insert("te", HeaderValue::from_static("trailers"));
        headers.insert("content-type", HeaderValue::from_static("application/grpc"));
        headers.insert("user-agent", HeaderValue::from_static(concat!("mimo-cache/", env!("CARGO_PKG_VERSION"))));
        // At most 8 digits: an hour in microseconds has 10.
        let (number, unit) = match left.as_micros() {
            micros @ 0..100_000_000 => (micros, 'u'),
            micros => (micros / 1000, 'm'),
        };
        let timeout = HeaderValue::try_from(format!("{number}{unit}"));
        headers.insert("grpc-timeout", timeout.unwrap_or_else(|_| HeaderValue::from_static("1S")));
        if let Some(token) = &self.token {
            headers.insert("authorization", token.clone());
        }
        let (response, body) = send.send_request(request, false).map_err(|e| self.failed(e))?;
        self.calls.fetch_add(1, Ordering::Relaxed);
        Ok(Stream {
            connection: self.clone(),
            response: Some(response),
            send: body,
            receive: None,
            held: BytesMut::new(),
            unsent: None,
        })
    }

    /// One request and one answer.
    pub async fn unary<Rep: Checked + Default>(
        self: &Arc<Self>,
        method: &'static str,
        request: &Sealed,
        deadline: Instant,
    ) -> Result<Rep, CallError> {
        let mut stream = self.begin(method, deadline).await?;
        stream.send_now(request.bytes.clone(), true);
        let message = stream.message().await?.ok_or_else(|| CallError::Breach("an answer without a message".into()))?;
        let reply = opened(message, request.check)?;
        match stream.message().await? {
            None => Ok(reply),
            Some(_) => Err(CallError::Breach("a second answer".into())),
        }
    }

    fn failed(&self, error: h2::Error) -> CallError {
        if error.is_io() || error.is_go_away() {
            self.broken.store(true, Ordering::Release);
        }
        let taken = !(error.reason() == Some(h2::Reason::REFUSED_STREAM)
            || error.is_go_away() && error.is_remote() && error.reason() == Some(h2::Reason::NO_ERROR));
        if taken { CallError::Broken(error.to_string()) } else { CallError::NotTaken(error.to_string()) }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // No call is left: each holds the connection.
        if let Some(driver) = self.driver.get_mut().unwrap_or_else(|e| e.into_inner()) {
            driver.abort();
        }
    }
}

/// The first request of a call, ready to be sent.
pub struct Sealed {
    /// With gRPC's prefix.
    pub bytes: Bytes,
    /// Its check, with which all other checks of the call begin.
    pub check: u32,
}

impl Sealed {
    /// Seals a request.
    pub fn new(mut request: impl Checked) -> Sealed {
        let check = check::seal(&mut request, check::FIRST);
        let mut bytes = BytesMut::new();
        put_message(&mut bytes, &request);
        Sealed { bytes: bytes.freeze(), check }
    }
}

/// An answer to the request with this check.
///
/// # Errors
/// It cannot be read, or was altered on its way.
pub fn opened<Rep: Checked + Default>(message: Bytes, check: u32) -> Result<Rep, CallError> {
    let reply = Rep::decode(message).map_err(|e| CallError::Breach(format!("an answer that cannot be read: {e}")))?;
    check::verify(&reply, check).map_err(|e| CallError::Breach(e.to_string()))?;
    Ok(reply)
}

/// One call under way. Dropped, it is cancelled.
#[derive(Debug)]
pub struct Stream {
    connection: Arc<Connection>,
    response: Option<ResponseFuture>,
    send: SendStream<Bytes>,
    receive: Option<RecvStream>,
    held: BytesMut,
    /// Why bytes could not be handed over.
    unsent: Option<CallError>,
}

impl Stream {
    /// Hands bytes to the connection, which sends them as the node's windows allow. A node that refuses answers before it
    /// has read the request, and closes the stream: then the answer is the error, and not that nothing could be sent.
    pub fn send_now(&mut self, bytes: Bytes, end: bool) {
        if let Err(e) = self.send.send_data(bytes, end) {
            self.unsent = Some(self.connection.failed(e));
        }
    }

    /// The next bytes of the answer's messages; `None` at their end, when the status is fine.
    pub async fn data(&mut self) -> Result<Option<Bytes>, CallError> {
        poll_fn(|cx| self.poll_data(cx)).await
    }

    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, CallError>> {
        match (self.poll_answer(cx), &self.unsent) {
            (Poll::Pending, Some(unsent)) => Poll::Ready(Err(unsent.clone())),
            (answer, _) => answer,
        }
    }

    fn poll_answer(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, CallError>> {
        let connection = self.connection.clone();
        let failed = |e| connection.failed(e);
        if let Some(response) = &mut self.response {
            let response = ready!(Pin::new(response).poll(cx)).map_err(failed)?;
            self.response = None;
            self.receive = Some(accept(response)?);
        }
        let Some(receive) = &mut self.receive else { return Poll::Ready(Ok(None)) };
        match ready!(receive.poll_data(cx)) {
            Some(Ok(bytes)) => {
                // They are used before the next are asked for.
                receive.flow_control().release_capacity(bytes.len()).map_err(failed)?;
                Poll::Ready(Ok(Some(bytes)))
            }
            Some(Err(e)) => Poll::Ready(Err(failed(e))),
            None => {
                let trailers = ready!(receive.poll_trailers(cx)).map_err(failed)?;
                self.receive = None;
                Poll::Ready(status(&trailers.unwrap_or_default()).map(|()| None))
            }
        }
    }

    /// The next message of the answer; `None` at its end, when the status is fine.
    pub async fn message(&mut self) -> Result<Option<Bytes>, CallError> {
        match self.message_or_room(None).await? {
            Event::Message(message) => Ok(message),
            Event::Room(_) => Err(CallError::Breach("room that nobody asked for".into())),
        }
    }

    /// The next message, or room to send up to so many bytes without their piling up in the connection; messages first.
    pub async fn message_or_room(&mut self, most: Option<usize>) -> Result<Event, CallError> {
        if let Some(most) = most {
            self.send.reserve_capacity(most);
        }
        loop {
            if let Some(message) = self.held_message()? {
                return Ok(Event::Message(Some(message)));
            }
            let event = poll_fn(|cx| {
                loop {
                    match self.poll_data(cx) {
                        Poll::Ready(Ok(Some(bytes))) => {
                            self.held.extend_from_slice(&bytes);
                            return Poll::Ready(Ok(None));
                        }
                        Poll::Ready(Ok(None)) if self.held.is_empty() => {
                            return Poll::Ready(Ok(Some(Event::Message(None))));
                        }
                        Poll::Ready(Ok(None)) => {
                            return Poll::Ready(Err(CallError::Breach("the answer ends within a message".into())));
                        }
                        Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                        Poll::Pending => {}
                    }
                    let Some(most) = most else { return Poll::Pending };
                    let room = self.send.capacity();
                    if room > 0 {
                        return Poll::Ready(Ok(Some(Event::Room(room.min(most)))));
                    }
                    self.unsent = match ready!(self.send.poll_capacity(cx)) {
                        Some(Ok(_)) => None,
                        Some(Err(e)) => Some(self.connection.failed(e)),
                        None => Some(CallError::Broken("the stream is closed".into())),
                    };
                }
            });
            if let Some(event) = event.await? {
                return Ok(event);
            }
        }
    }

    /// A message of which all bytes have come.
    fn held_message(&mut self) -> Result<Option<Bytes>, CallError> {
        if self.held.len() < PREFIX {
            return Ok(None);
        }
        let length = message_length(&self.held).map_err(|e| CallError::Breach(e.to_string()))?;
        if self.held.len() < PREFIX + length {
            return Ok(None);
        }
        let _ = self.held.split_to(PREFIX);
        Ok(Some(self.held.split_to(length).freeze()))
    }
}

/// What a stream is ready for.
#[derive(Debug)]
pub enum Event {
    /// A message, or the answer's end.
    Message(Option<Bytes>),
    /// So many bytes can be sent.
    Room(usize),
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.connection.calls.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The body of an answer, if its head is as it must be.
fn accept(response: Response<RecvStream>) -> Result<RecvStream, CallError> {
    if response.status() != StatusCode::OK {
        return Err(CallError::Breach(format!("HTTP status {}", response.status())));
    }
    let kind = response.headers().get("content-type").map(HeaderValue::as_bytes).unwrap_or_default();
    if !kind.starts_with(b"application/grpc") {
        return Err(CallError::Breach("an answer that is not gRPC".into()));
    }
    if response.headers().contains_key("grpc-status") {
        status(response.headers())?;
    }
    Ok(response.into_body())
}

/// The status in trailers, or in the headers of an answer without a body.
fn status(headers: &HeaderMap) -> Result<(), CallError> {
    let number = headers.get("grpc-status").and_then(|v| v.to_str().ok()).and_then(|v| v.parse().ok());
    match number {
        Some(code::OK) => Ok(()),
        Some(code) => {
            let message = headers.get("grpc-message").map(HeaderValue::as_bytes).unwrap_or_default();
            Err(CallError::Status { code, message: percent_decoded(message) })
        }
        None => Err(CallError::Breach("an answer without a status".into())),
    }
}

/// `%41` is `A`, as gRPC has it in `grpc-message`; at most the first 2,000 bytes.
fn percent_decoded(text: &[u8]) -> String {
    let mut bytes = Vec::new();
    let mut rest = &text[..text.len().min(2000)];
    while let Some((&first, others)) = rest.split_first() {
        let coded = others.get(..2).filter(|_| first == b'%').and_then(|hex| std::str::from_utf8(hex).ok());
        match coded.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &others[2..];
            }
            None => {
                bytes.push(first);
                rest = others;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
