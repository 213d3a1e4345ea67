//! Connections of one node: few, each carrying many calls, opened when they are needed.

use super::call::{CallError, code};
use super::connect::Connect;
use super::grpc::{Connection, Sealed};
use super::metrics::Metrics;
use super::transport::NodeInfo;
use crate::member::{Address, Member};
use crate::rpc::limits::VERSIONS;
use crate::rpc::v1::{FastPath, HelloReply, HelloRequest, Limits};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::time::Instant;

/// What a pool needs to know.
#[derive(Clone)]
pub struct PoolConfig {
    /// Name and addresses of the node.
    pub member: Member,
    /// Token for the node.
    pub token: Option<String>,
    /// Name of this client.
    pub client: String,
    /// Most connections.
    pub most: usize,
    /// A connection attempt ends after so long.
    pub connect_deadline: Duration,
}

/// What the node said when a connection was opened. Every call looks at it, so that a clone allocates nothing.
#[derive(Debug, Clone, PartialEq)]
pub struct Greeting {
    /// For the rest of the client.
    pub info: NodeInfo,
    /// Boot id of its machine.
    pub machine: Arc<[u8]>,
    /// The same-host path.
    pub fast_path: Option<Arc<FastPath>>,
}

/// See the head of this file.
pub struct Pool {
    config: PoolConfig,
    connect: Arc<dyn Connect>,
    metrics: Arc<Metrics>,
    open: Mutex<Vec<Arc<Connection>>>,
    greeting: Mutex<Option<Greeting>>,
    /// One attempt at a time: those who need a connection wait for the same one.
    opening: tokio::sync::Mutex<()>,
}

impl Pool {
    /// A pool without connections.
    pub fn new(config: PoolConfig, connect: Arc<dyn Connect>, metrics: Arc<Metrics>) -> Pool {
        Pool {
            config,
            connect,
            metrics,
            open: Mutex::default(),
            greeting: Mutex::default(),
            opening: tokio::sync::Mutex::default(),
        }
    }

    /// Name of the node.
    pub fn node(&self) -> &str {
        &self.config.member.name
    }

    /// The least busy connection. Another one is opened in the background while all are busy.
    pub async fn get(self: &Arc<Self>) -> Result<Arc<Connection>, CallError> {
        if let Some(connection) = self.idlest() {
            return Ok(connection);
        }
        let _one = self.opening.lock().await;
        match self.idlest() {
            Some(connection) => Ok(connection),
            None => self.open().await,
        }
    }

    /// A new connection, whatever there is already.
    pub async fn fresh(&self) -> Result<Arc<Connection>, CallError> {
        let _one = self.opening.lock().await;
        self.open().await
    }

    /// What the node said last.
    pub fn greeting(&self) -> Option<Greeting> {
        lock(&self.greeting).clone()
    }

    /// No new calls on the connections of now.
    pub fn reset(&self) {
        for connection in lock(&self.open).drain(..) {
            connection.retire();
        }
    }

    fn idlest(self: &Arc<Self>) -> Option<Arc<Connection>> {
        let (best, count) = {
            let mut open = lock(&self.open);
            open.retain(|c| c.is_open());
            (open.iter().min_by_key(|c| c.calls())?.clone(), open.len())
        };
        if best.calls() > 0 && count < self.config.most {
            let pool = self.clone();
            tokio::spawn(async move {
                // Whoever is opening one already does it for all.
                if let Ok(_one) = pool.opening.try_lock() {
                    let _ = pool.open().await;
                }
            });
        }
        Some(best)
    }

    async fn open(&self) -> Result<Arc<Connection>, CallError> {
        let late = || CallError::Connect(format!("no answer within {} ms", self.config.connect_deadline.as_millis()));
        let deadline = Instant::now() + self.config.connect_deadline;
        let opened =
            tokio::time::timeout_at(deadline, self.try_addresses(deadline)).await.unwrap_or_else(|_| Err(late()));
        match opened {
            Ok((connection, greeting)) => {
                Metrics::add(&self.metrics.connects, 1);
                *lock(&self.greeting) = Some(greeting);
                let mut open = lock(&self.open);
                open.retain(|c| c.is_open());
                while open.len() >= self.config.most {
                    open.remove(0).retire();
                }
                open.push(connection.clone());
                Ok(connection)
            }
            Err(error) => {
                Metrics::add(&self.metrics.connect_failures, 1);
                Err(error)
            }
        }
    }

    /// Addresses of this machine first. The first that answers as the node is taken.
    async fn try_addresses(&self, deadline: Instant) -> Result<(Arc<Connection>, Greeting), CallError> {
        let mut last = CallError::Connect("the node has no address".to_string());
        let (here, elsewhere): (Vec<_>, Vec<_>) =
            self.config.member.addresses.iter().partition(|a| matches!(a, Address::Unix(_)));
        for address in here.into_iter().chain(elsewhere) {
            match self.try_address(address, deadline).await {
                Ok(opened) => return Ok(opened),
                // What the node itself says is worth more than that a socket is not on this machine.
                Err(error) if error.is_refusal() => return Err(error),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    async fn try_address(
        &self,
        address: &Address,
        deadline: Instant,
    ) -> Result<(Arc<Connection>, Greeting), CallError> {
        let io = self.connect.connect(address).await.map_err(|e| CallError::Connect(format!("{address}: {e}")))?;
        let authority = match address {
            Address::Tcp(at) => at.clone(),
            Address::Unix(_) => "localhost".to_string(),
        };
        let connection = Arc::new(Connection::open(io, authority, self.config.token.as_deref()).await?);
        let hello = HelloRequest {
            min_version: *VERSIONS.start(),
            max_version: *VERSIONS.end(),
            client: self.config.client.clone(),
            ..HelloRequest::default()
        };
        let reply: HelloReply = connection.unary("Hello", &Sealed::new(hello), deadline).await?;
        let version = reply.version;
        let greeting = self.check(address, reply)?;
        connection.agreed(version);
        Ok((connection, greeting))
    }

    fn check(&self, address: &Address, reply: HelloReply) -> Result<Greeting, CallError> {
        if !VERSIONS.contains(&reply.version) {
            return Err(CallError::Breach(format!("it chose version {}, offered were {VERSIONS:?}", reply.version)));
        }
        // A node that is named by its address may call itself what it likes.
        if reply.node != self.config.member.name && address.to_string() != self.config.member.name {
            // It would hold what belongs to others.
            let (name, other) = (&self.config.member.name, crate::error::shown(&reply.node));
            let message = format!("the node at {address} calls itself {other}, expected is {name:?}");
            return Err(CallError::Status { code: code::FAILED_PRECONDITION, message });
        }
        let limits = usable(reply.limits.unwrap_or_default())?;
        let info = NodeInfo { start_id: reply.start_id, limits };
        Ok(Greeting { info, machine: reply.machine[..].into(), fast_path: reply.fast_path.map(Arc::new) })
    }
}

/// Limits that a client can live with.
fn usable(limits: Limits) -> Result<Limits, CallError> {
    if limits.keys == 0 || limits.objects == 0 || limits.value_bytes == 0 {
        return Err(CallError::Breach(format!("its limits allow nothing: {limits:?}")));
    }
    Ok(limits)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}
