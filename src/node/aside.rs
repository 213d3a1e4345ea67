//! The standard services beside the contract: health and reflection.
//!
//! They ask for less than a call of the contract (health for no token), so they share nothing with those: they have permits
//! of their own, and whoever holds all of them keeps no call of the contract waiting.
//!
//! - A message has at most [`MAX_MESSAGE_BYTES`]. The decoder reserves what a prefix says, so that is what a stream can cost.
//! - A check, and a stream of reflection, ends after `limits.stall`; its connection is cut 2 s later where even that cannot be
//!   told, because the peer reads nothing.
//! - A watch of health is meant to last. It ends with its connection; there are [`WATCHES`] on a node and
//!   [`WATCHES_OF_CONNECTION`] on a connection, and more are refused.

use super::get::trailers;
use super::service::stalled;
use super::state::{Connection, Progress, State};
use crate::rpc::DESCRIPTOR_SET;
use bytes::Bytes;
use http::{Request, Response};
use http_body::Frame;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Sleep, sleep, timeout};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::StdError;
use tonic_health::pb::health_server::HealthServer;
use tonic_health::server::{HealthReporter, HealthService};
use tower_service::Service;

/// Longest message: names of services and symbols.
pub const MAX_MESSAGE_BYTES: usize = 4 << 10;
/// Checks and streams of reflection at a time, on one node.
pub const SHORT_CALLS: usize = 64;
/// Watches of health at a time, on one node.
pub const WATCHES: usize = 64;
/// Watches of health at a time, on one connection.
pub const WATCHES_OF_CONNECTION: usize = 4;

const HEALTH: &str = "/grpc.health.v1.Health/";
const REFLECTION: &str = "/grpc.reflection.";

/// The services, and who may use them now.
#[derive(Clone)]
pub struct Aside {
    health: HealthReporter,
    short: Arc<Semaphore>,
    watches: Arc<Semaphore>,
}

impl Aside {
    /// Nothing runs. `health` is what checks are answered from.
    pub fn new(health: HealthReporter) -> Aside {
        Aside { health, short: Arc::new(Semaphore::new(SHORT_CALLS)), watches: Arc::new(Semaphore::new(WATCHES)) }
    }

    /// Whether a path is of one of these services.
    pub fn serves(path: &str) -> bool {
        path.starts_with(HEALTH) || path.starts_with(REFLECTION)
    }

    /// Answers a request whose path is of these services.
    pub async fn answer<B>(
        &self,
        state: &Arc<State>,
        connection: &Arc<Connection>,
        request: Request<B>,
    ) -> Response<Body>
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<StdError> + Send,
    {
        connection.used.store(true, Ordering::Relaxed);
        self.admitted(state, connection, request).await.unwrap_or_else(Status::into_http)
    }

    async fn admitted<B>(
        &self,
        state: &Arc<State>,
        connection: &Arc<Connection>,
        request: Request<B>,
    ) -> Result<Response<Body>, Status>
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<StdError> + Send,
    {
        let stall = state.config.limits.stall.0;
        let path = request.uri().path().to_string();
        if path == format!("{HEALTH}Watch") {
            let permits = [self.watches.clone(), connection.watches.clone()].map(|s| s.try_acquire_owned().ok());
            let [Some(of_node), Some(of_connection)] = permits else {
                return Err(Status::resource_exhausted(format!(
                    "{WATCHES} watches of health run on this node or {WATCHES_OF_CONNECTION} on this connection, \
                     which is all it allows; use Check"
                )));
            };
            let held = Held { _permits: vec![of_node, of_connection], _progress: None };
            let answer = timeout(stall, self.health(request)).await.map_err(|_| stalled(stall))?;
            return Ok(answer.map(|body| Body::new(Bounded::new(body, None, ended, held))));
        }
        let permit = timeout(stall, self.short.clone().acquire_owned()).await;
        let Ok(Ok(permit)) = permit else {
            let sentence =
                format!("{SHORT_CALLS} calls of health and reflection run on this node, which is all it allows");
            return Err(Status::resource_exhausted(sentence));
        };
        // From here on the sweep cuts the connection when the stream has not ended in time.
        let held = Held { _permits: vec![permit], _progress: Some(state.watch(connection)) };
        let nothing = Held { _permits: Vec::new(), _progress: None };
        let request = request.map(|body| Bounded::new(Box::pin(body), Some(stall), broken, nothing));
        let answer = if path.starts_with(HEALTH) {
            timeout(stall, self.health(request)).await.map_err(|_| stalled(stall))?
        } else {
            state.tokens.grant(request.headers())?;
            timeout(stall, reflection(&path, request)).await.map_err(|_| stalled(stall))??
        };
        Ok(answer.map(|body| Body::new(Bounded::new(body, Some(stall), ended, held))))
    }

    async fn health<B>(&self, request: Request<B>) -> Response<Body>
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<StdError> + Send,
    {
        let service = HealthService::from_health_reporter(self.health.clone());
        let Ok(answer) = HealthServer::new(service).max_decoding_message_size(MAX_MESSAGE_BYTES).call(request).await;
        answer
    }
}

async fn reflection<B>(path: &str, request: Request<B>) -> Result<Response<Body>, Status>
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<StdError> + Send,
{
    let builder = tonic_reflection::server::Builder::configure().register_encoded_file_descriptor_set(DESCRIPTOR_SET);
    let failed = |e: tonic_reflection::server::Error| Status::internal(e.to_string());
    let Ok(answer) = match path.starts_with("/grpc.reflection.v1.") {
        true => builder.build_v1().map_err(failed)?.max_decoding_message_size(MAX_MESSAGE_BYTES).call(request).await,
        false => {
            builder.build_v1alpha().map_err(failed)?.max_decoding_message_size(MAX_MESSAGE_BYTES).call(request).await
        }
    };
    Ok(answer)
}

/// What is given back when a stream ends, however it ends.
struct Held {
    _permits: Vec<OwnedSemaphorePermit>,
    _progress: Option<Arc<Progress>>,
}

type Step = Option<Result<Frame<Bytes>, StdError>>;

/// A body that ends at a time, and keeps what its stream holds.
struct Bounded<B> {
    body: B,
    until: Option<Pin<Box<Sleep>>>,
    /// Its last step where that time came first.
    late: fn(Status) -> Step,
    over: bool,
    _held: Held,
}

impl<B> Bounded<B> {
    fn new(body: B, until: Option<Duration>, late: fn(Status) -> Step, held: Held) -> Self {
        Bounded { body, until: until.map(|time| Box::pin(sleep(time))), late, over: false, _held: held }
    }
}

fn broken(status: Status) -> Step {
    Some(Err(Box::new(status)))
}

fn ended(status: Status) -> Step {
    Some(Ok(Frame::trailers(trailers(Some(&status)))))
}

impl<B> http_body::Body for Bounded<B>
where
    B: http_body::Body<Data = Bytes> + Unpin,
    B::Error: Into<StdError>,
{
    type Data = Bytes;
    type Error = StdError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Step> {
        if self.over {
            return Poll::Ready(None);
        }
        // First, so that a body that always has something ends as well.
        if self.until.as_mut().is_some_and(|until| until.as_mut().poll(cx).is_ready()) {
            self.over = true;
            return Poll::Ready((self.late)(Status::deadline_exceeded("the stream has had its time")));
        }
        Pin::new(&mut self.body).poll_frame(cx).map(|step| step.map(|frame| frame.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.over || self.body.is_end_stream()
    }
}
