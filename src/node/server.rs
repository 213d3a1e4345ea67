//! Listeners, connections and the end of a node.
//!
//! One task for each connection. It ends when the peer goes, when a stream on it stalls, when nothing was ever asked, or
//! when the node stops and its calls are done; then the connection's leases end. HTTP/2 pings find peers that are gone
//! without a word.

use super::aside::Aside;
use super::auth::Tokens;
use super::config::NodeConfig;
use super::fast::FastPath;
use super::listen::Address;
use super::metrics::Metrics;
use super::state::{Connection, State};
use super::tiers::Demoter;
use super::{http, service};
use crate::disk::{Disk, DiskConfig};
use crate::shm::{BootId, Recovery, Store};
use ::http::{Request, Response};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use std::convert::Infallible;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{Semaphore, watch};
use tonic::body::Body;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

/// Longest frame of a peer: a connection may hold one while it arrives.
const MAX_FRAME_BYTES: u32 = 256 << 10;
/// Longest headers of a request.
const MAX_HEADER_BYTES: u32 = 16 << 10;
/// What may wait to be sent on one stream before its body is asked for more.
const SEND_BUFFER_BYTES: usize = 1 << 20;
/// A peer that does not answer a ping for so long is gone.
const PING_EVERY: Duration = Duration::from_secs(20);
const PING_TIMEOUT: Duration = Duration::from_secs(10);
/// How long running calls may take after a node was told to stop.
pub const STOP_GRACE: Duration = Duration::from_secs(10);
/// Name of the service, for health.
const SERVICE: &str = "gcache.v1.GCache";

/// A node that serves.
pub struct Node {
    state: Arc<State>,
    addresses: Vec<String>,
    metrics: Option<String>,
    stopping: watch::Sender<bool>,
    /// All of its permits are there when every connection has ended.
    connections: Arc<Semaphore>,
    health: HealthReporter,
    fast: Option<FastPath>,
    demoter: Option<Demoter>,
    sockets: Vec<PathBuf>,
}

/// What every connection of a node needs.
#[derive(Clone)]
struct Shared {
    state: Arc<State>,
    stopping: watch::Receiver<bool>,
    connections: Arc<Semaphore>,
    next_id: Arc<AtomicU64>,
    aside: Aside,
}

enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Node {
    /// Opens the store and listens. Inside a tokio runtime.
    ///
    /// # Errors
    /// A sentence: the store, a token file or an address.
    pub async fn start(config: NodeConfig) -> Result<(Node, Recovery), String> {
        let tokens = Tokens::load(&config.tokens)?;
        let remote = super::remote::open(&config)?;
        let machine = BootId::current().map_err(|e| e.to_string())?;
        let (store, recovery) = Store::open(&config.store(), machine).map_err(|e| e.to_string())?;
        let disks = config.disks().iter().map(open_disk).collect::<Result<Vec<_>, _>>()?;
        if let Some(remote) = &remote {
            tracing::info!(store = ?remote, "what the disks reclaim goes to an object store");
        }
        let state = Arc::new(State::with_tiers(config, store, disks, remote, machine, tokens));
        let demoter = state.tiers.start()?;
        let config = &state.config;
        let (stopping, stop) = watch::channel(false);
        let connections = Arc::new(Semaphore::new(config.limits.connections));
        let health = HealthReporter::new();
        health.set_service_status(SERVICE, ServingStatus::Serving).await;
        let shared = Shared {
            state: state.clone(),
            stopping: stop,
            connections: connections.clone(),
            next_id: Arc::new(AtomicU64::new(1)),
            aside: Aside::new(health.clone()),
        };
        let (mut addresses, mut sockets) = (Vec::new(), Vec::new());
        let mut listeners = Vec::new();
        for address in &config.listen {
            let (listener, shown) = bind(address).await?;
            addresses.push(shown);
            sockets.extend(path_of(address));
            listeners.push(listener);
        }
        let metrics = match &config.metrics {
            None => None,
            Some(address) => {
                let (listener, shown) = bind(address).await?;
                sockets.extend(path_of(address));
                tokio::spawn(serve_http(listener, shared.clone()));
                Some(shown)
            }
        };
        let fast = match &config.fast_path {
            None => None,
            Some(path) => {
                free(path)?;
                sockets.push(path.clone());
                Some(FastPath::start(state.clone(), path)?)
            }
        };
        // Nothing is answered before everything could be bound.
        for listener in listeners {
            tokio::spawn(accept(listener, shared.clone()));
        }
        tokio::spawn(sweep(shared));
        Ok((Node { state, addresses, metrics, stopping, connections, health, fast, demoter, sockets }, recovery))
    }

    /// Where gRPC is spoken, with the port that was given for port 0.
    pub fn addresses(&self) -> &[String] {
        &self.addresses
    }

    /// Where metrics are served.
    pub fn metrics_address(&self) -> Option<&str> {
        self.metrics.as_deref()
    }

    /// The state, for tests and tools.
    pub fn state(&self) -> &Arc<State> {
        &self.state
    }

    /// Says so to health checks, takes no new connections and values, and waits for running calls, at most
    /// [`STOP_GRACE`]. Values stay in the file.
    pub async fn stop(mut self) {
        self.state.draining.store(true, Ordering::Relaxed);
        self.health.set_service_status(SERVICE, ServingStatus::NotServing).await;
        let _ = self.stopping.send(true);
        let all = self.state.config.limits.connections as u32;
        let ended = tokio::time::timeout(STOP_GRACE, self.connections.acquire_many(all)).await;
        if ended.is_err() {
            tracing::warn!(grace_seconds = STOP_GRACE.as_secs(), "calls are still running, and are cut");
        }
        if let Some(fast) = self.fast.take() {
            fast.stop();
        }
        self.state.tiers.drain().await;
        self.demoter.take();
        if tokio::time::timeout(STOP_GRACE, self.state.tiers.seal()).await.is_err() {
            tracing::warn!("the disk tier does not seal its last values; they survive all but power loss");
        }
        for socket in &self.sockets {
            let _ = std::fs::remove_file(socket);
        }
    }
}

/// Opens a directory of the disk tier, and tells what was found.
fn open_disk(config: &DiskConfig) -> Result<Disk, String> {
    let (disk, found) = Disk::open(config).map_err(|e| e.to_string())?;
    for sentence in &found.damaged {
        tracing::warn!(sentence, "something of the disk tier is set aside");
    }
    tracing::info!(
        path = %config.dir.display(),
        created = found.created,
        objects = found.objects,
        bytes = found.block_bytes,
        sealed_segments = found.sealed,
        walked_segments = found.walked,
        backend = found.backend,
        ring_refused = found.ring_refused,
        millis = found.elapsed.as_millis() as u64,
        "the disk tier is open"
    );
    Ok(disk)
}

fn path_of(address: &Address) -> Option<PathBuf> {
    match address {
        Address::Unix(path) => Some(path.clone()),
        Address::Tcp(_) => None,
    }
}

/// Makes way for a socket: removes one that nobody listens on any more.
///
/// # Errors
/// Something else is there, or another process listens.
fn free(path: &Path) -> Result<(), String> {
    let Ok(found) = std::fs::symlink_metadata(path) else { return Ok(()) };
    if !found.file_type().is_socket() {
        return Err(format!("{} is there and no socket; remove it or choose another path", path.display()));
    }
    if std::os::unix::net::UnixStream::connect(path).is_ok() {
        return Err(format!("another process listens on {}", path.display()));
    }
    std::fs::remove_file(path).map_err(|e| format!("{}: {e}", path.display()))
}

async fn bind(address: &Address) -> Result<(Listener, String), String> {
    match address {
        Address::Unix(path) => {
            free(path)?;
            let listener = UnixListener::bind(path).map_err(|e| format!("{address}: {e}"))?;
            Ok((Listener::Unix(listener), address.to_string()))
        }
        Address::Tcp(_) => {
            let addresses = address.resolve()?;
            let listener = TcpListener::bind(&addresses[..]).await.map_err(|e| format!("{address}: {e}"))?;
            let shown = listener.local_addr().map_err(|e| format!("{address}: {e}"))?.to_string();
            Ok((Listener::Tcp(listener), shown))
        }
    }
}

/// Waits until the node is told to stop, or its last handle is gone.
async fn told(stopping: &mut watch::Receiver<bool>) {
    let _ = stopping.wait_for(|stop| *stop).await;
}

/// Accepts until the node stops. `limits.connections` are served; more are closed at once.
async fn accept(listener: Listener, shared: Shared) {
    let mut stopping = shared.stopping.clone();
    loop {
        tokio::select! {
            () = told(&mut stopping) => return,
            accepted = next(&listener) => match accepted {
                Ok((Stream::Tcp(stream), peer)) => open(stream, peer, &shared),
                Ok((Stream::Unix(stream), peer)) => open(stream, peer, &shared),
                Err(error) => {
                    // Out of descriptors: others must end first.
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            },
        }
    }
}

enum Stream {
    Tcp(tokio::net::TcpStream),
    Unix(tokio::net::UnixStream),
}

async fn next(listener: &Listener) -> std::io::Result<(Stream, String)> {
    match listener {
        Listener::Tcp(listener) => {
            let (stream, peer) = listener.accept().await?;
            stream.set_nodelay(true)?;
            Ok((Stream::Tcp(stream), peer.to_string()))
        }
        Listener::Unix(listener) => {
            let (stream, _) = listener.accept().await?;
            let user = stream.peer_cred()?.uid();
            Ok((Stream::Unix(stream), format!("unix user {user}")))
        }
    }
}

fn open<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(stream: S, peer: String, shared: &Shared) {
    let metrics = &shared.state.metrics;
    let Ok(permit) = shared.connections.clone().try_acquire_owned() else {
        Metrics::add(&metrics.refused_connections, 1);
        tracing::warn!(%peer, limit = shared.state.config.limits.connections, "too many connections, one is refused");
        return;
    };
    Metrics::add(&metrics.accepted, 1);
    Metrics::add(&metrics.connections, 1);
    let connection = Connection::new(shared.next_id.fetch_add(1, Ordering::Relaxed), peer, shared.state.clone());
    let shared = shared.clone();
    tokio::spawn(async move {
        serve(stream, &connection, shared.clone()).await;
        Metrics::sub(&shared.state.metrics.connections, 1);
        drop(permit);
    });
}

async fn serve<S>(stream: S, connection: &Arc<Connection>, shared: Shared)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let limits = &shared.state.config.limits;
    let window = u32::try_from(limits.window.0).unwrap_or(u32::MAX >> 1);
    let mut builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .initial_stream_window_size(window)
        .initial_connection_window_size(window)
        .max_frame_size(MAX_FRAME_BYTES)
        .max_header_list_size(MAX_HEADER_BYTES)
        .max_concurrent_streams(limits.calls_per_connection)
        .max_send_buf_size(SEND_BUFFER_BYTES)
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_TIMEOUT)
        .auto_date_header(false);
    let (state, owner, aside) = (shared.state.clone(), connection.clone(), shared.aside.clone());
    let routed =
        service_fn(move |request: Request<Incoming>| route(state.clone(), owner.clone(), aside.clone(), request));
    let mut served = pin!(builder.serve_connection(TokioIo::new(stream), routed));
    let mut stopping = shared.stopping.clone();
    let mut stopped = false;
    let mut silent = pin!(tokio::time::sleep(limits.stall.0));
    let mut waiting = true;
    loop {
        tokio::select! {
            ended = &mut served => {
                if let Err(error) = ended {
                    tracing::debug!(connection = connection.id, peer = %connection.peer, %error, "connection ended");
                }
                return;
            }
            () = connection.closed() => {
                tracing::info!(connection = connection.id, peer = %connection.peer, "connection cut: a stream stalled");
                return;
            }
            () = &mut silent, if waiting => {
                waiting = false;
                if !connection.used.load(Ordering::Relaxed) {
                    Metrics::add(&shared.state.metrics.stalled, 1);
                    return;
                }
            }
            () = told(&mut stopping), if !stopped => {
                stopped = true;
                served.as_mut().graceful_shutdown();
            }
        }
    }
}

/// Health, reflection, or the contract.
async fn route(
    state: Arc<State>,
    connection: Arc<Connection>,
    aside: Aside,
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    Ok(match Aside::serves(request.uri().path()) {
        true => aside.answer(&state, &connection, request).await,
        false => service::answer(state, connection, request).await,
    })
}

/// Once a second: stalled streams, and leases whose time is over.
async fn sweep(shared: Shared) {
    let mut stopping = shared.stopping.clone();
    let mut ticks = tokio::time::interval(Duration::from_secs(1));
    loop {
        tokio::select! {
            () = told(&mut stopping) => {
                // Stalled streams must not hold up the stop.
                tokio::time::sleep(Duration::from_secs(1)).await;
                if shared.connections.available_permits() == shared.state.config.limits.connections {
                    return;
                }
            }
            _ = ticks.tick() => {}
        }
        let cut = shared.state.sweep();
        Metrics::add(&shared.state.metrics.stalled, cut as u64);
        shared.state.store.expire(shared.state.clock.now());
    }
}

async fn serve_http(listener: Listener, shared: Shared) {
    let room = Arc::new(Semaphore::new(http::MAX_CONNECTIONS));
    loop {
        let Ok((stream, _)) = next(&listener).await else {
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let Ok(permit) = room.clone().try_acquire_owned() else { continue };
        let state = shared.state.clone();
        tokio::spawn(async move {
            let _permit = permit;
            let answer = service_fn(move |request: Request<Incoming>| {
                let answered = http::answer(&state, &request);
                async move { answered }
            });
            let mut builder = hyper::server::conn::http1::Builder::new();
            builder.timer(TokioTimer::new()).header_read_timeout(Duration::from_secs(10)).max_buf_size(16 << 10);
            let ended = match stream {
                Stream::Tcp(stream) => builder.serve_connection(TokioIo::new(stream), answer).await,
                Stream::Unix(stream) => builder.serve_connection(TokioIo::new(stream), answer).await,
            };
            if let Err(error) = ended {
                tracing::debug!(%error, "metrics connection ended");
            }
        });
    }
}
