//! The asynchronous client: what a call asks of which node, and back.
//!
//! A call is one future that borrows the caller's memory. The work of all its nodes is done by whoever polls it; only the
//! reading and writing of sockets belongs to the runtime. When it ends, nothing refers to the caller's memory any more.

use super::chunks::Buffers;
use super::cluster::{Cluster, Route};
use super::config::ClientConfig;
use super::connect::Connect;
use super::fast::FastTransport;
use super::grpc_transport::Grpc;
use super::metrics::Metrics;
use super::node::Node;
use super::pool::PoolConfig;
use super::queue::Queue;
use crate::error::Result;
use crate::member::{Member, Membership, View};
use std::collections::HashMap;
use std::sync::{Arc, RwLock, Weak};
use std::time::Duration;
use tokio::time::Instant;

/// What makes the transport of a node.
pub type MakeTransport = dyn Fn(&Member) -> Arc<dyn super::Transport> + Send + Sync;

/// See the head of this file.
pub struct Core {
    pub(super) config: Arc<ClientConfig>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) queue: Queue,
    cluster: RwLock<Arc<Cluster>>,
    make: Box<MakeTransport>,
    /// Kept, so that its watch goes on.
    membership: Arc<dyn Membership>,
}

impl Core {
    /// A client of the nodes that `membership` names. Must be called within the runtime that drives its connections.
    ///
    /// # Errors
    /// A configuration that makes no sense.
    pub fn new(config: ClientConfig, membership: Arc<dyn Membership>, connect: Arc<dyn Connect>) -> Result<Arc<Core>> {
        let metrics = Arc::new(Metrics::default());
        let (buffers, shared, settings) = (Buffers::default(), metrics.clone(), config.clone());
        let machine = config.fast_path.then(machine).flatten();
        let make = move |member: &Member| -> Arc<dyn super::Transport> {
            let pool = PoolConfig {
                member: member.clone(),
                token: settings.token.clone(),
                client: settings.name.clone(),
                most: settings.connections,
                connect_deadline: settings.connect_deadline,
            };
            let grpc = Grpc::new(pool, connect.clone(), shared.clone(), buffers.clone());
            Arc::new(FastTransport::new(grpc, settings.token.clone(), machine.clone(), settings.threads))
        };
        Core::with_transports(config, membership, metrics, Box::new(make))
    }

    /// As [`Core::new`], with transports of the caller's choice.
    pub fn with_transports(
        config: ClientConfig,
        membership: Arc<dyn Membership>,
        metrics: Arc<Metrics>,
        make: Box<MakeTransport>,
    ) -> Result<Arc<Core>> {
        config.validate()?;
        let config = Arc::new(config);
        let mut views = membership.watch();
        let list = views.borrow_and_update().list.clone();
        let node = |member: &Member| make_node(&config, &metrics, &*make, member, false);
        let cluster = RwLock::new(Arc::new(Cluster::new(config.buckets, &list, node)?));
        let queue = Queue::new(config.clone(), metrics.clone());
        let core = Arc::new(Core { config, metrics, queue, cluster, make, membership });
        tokio::spawn(follow(Arc::downgrade(&core), views, list.epoch()));
        Ok(core)
    }

    /// The nodes of now.
    pub fn cluster(&self) -> Arc<Cluster> {
        self.cluster.read().unwrap_or_else(|e| e.into_inner()).clone()
    }

    /// What membership says.
    pub fn view(&self) -> View {
        self.membership.watch().borrow().clone()
    }

    /// What the client counts.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// The end of a call that begins now.
    pub fn deadline(&self, within: Option<Duration>) -> Instant {
        Instant::now() + within.unwrap_or(self.config.deadline)
    }

    fn set(&self, cluster: Cluster) {
        *self.cluster.write().unwrap_or_else(|e| e.into_inner()) = Arc::new(cluster);
    }
}

fn make_node(
    config: &Arc<ClientConfig>,
    metrics: &Arc<Metrics>,
    make: &MakeTransport,
    member: &Member,
    joined: bool,
) -> Arc<Node> {
    Arc::new(Node::new(member.clone(), make(member), config.clone(), metrics.clone(), joined))
}

/// Takes over changes of membership until the client or its source is gone. A lost source changes nothing.
async fn follow(core: Weak<Core>, mut views: tokio::sync::watch::Receiver<View>, mut epoch: u64) {
    let mut settle_at: Option<Instant> = None;
    loop {
        let settles = async {
            match settle_at {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            changed = views.changed() => if changed.is_err() { return },
            () = settles => {
                settle_at = None;
                let Some(core) = core.upgrade() else { return };
                core.set(core.cluster().settled());
                continue;
            }
        }
        let list = views.borrow_and_update().list.clone();
        if list.epoch() == epoch {
            continue;
        }
        epoch = list.epoch();
        let Some(core) = core.upgrade() else { return };
        let runtime = tokio::runtime::Handle::current();
        // A table of many nodes takes a while.
        let changed = tokio::task::spawn_blocking(move || {
            let _in = runtime.enter();
            let node = |member: &Member| make_node(&core.config, &core.metrics, &*core.make, member, true);
            // The list was checked when it was made.
            if let Ok(next) = core.cluster().next(&list, node) {
                Metrics::add(&core.metrics.membership_changes, 1);
                let wait = core.config.previous_owner;
                core.set(next);
                return Some(wait);
            }
            None
        });
        if let Ok(Some(wait)) = changed.await {
            settle_at = Some(Instant::now() + wait);
        }
    }
}

/// Boot id of this machine, 16 bytes: of the kernel, and so the same for all its containers.
pub fn machine() -> Option<Vec<u8>> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let digits: String = text.trim().chars().filter(|c| *c != '-').collect();
    let bytes = (0..digits.len()).step_by(2).map(|i| u8::from_str_radix(digits.get(i..i + 2)?, 16).ok());
    bytes.collect::<Option<Vec<u8>>>().filter(|b| b.len() == 16)
}

/// A node, and the positions of the arguments that it is asked for with their buckets.
pub type Asked<'c> = (&'c Arc<Node>, Vec<(usize, u32)>);

/// Positions of a call's arguments, by the node that is asked for them; each node's in the order of the call.
pub struct Groups<'c> {
    nodes: Vec<Asked<'c>>,
    index: HashMap<usize, usize>,
}

impl<'c> Groups<'c> {
    /// No positions yet.
    pub fn new() -> Self {
        Groups { nodes: Vec::new(), index: HashMap::new() }
    }

    /// Adds a position with its bucket.
    pub fn add(&mut self, node: &'c Arc<Node>, position: usize, bucket: u32) {
        let at = *self.index.entry(Arc::as_ptr(node) as usize).or_insert_with(|| {
            self.nodes.push((node, Vec::new()));
            self.nodes.len() - 1
        });
        self.nodes[at].1.push((position, bucket));
    }

    /// All positions.
    pub fn positions(&self) -> impl Iterator<Item = usize> + '_ {
        self.nodes.iter().flat_map(|(_, share)| share.iter().map(|(i, _)| *i))
    }

    /// Nodes and their positions.
    pub fn into_nodes(self) -> Vec<Asked<'c>> {
        self.nodes
    }
}

/// Whom a read asks first. A node whose turn has not come for a bucket leaves it to the owner before.
pub fn first_asked<'c>(route: &Route<'c>) -> std::result::Result<&'c Arc<Node>, super::Miss> {
    match (route.now, route.before, route.held_back) {
        (Some(now), _, false) => Ok(now),
        (_, Some(before), _) => Ok(before),
        (Some(_), None, true) => Err(super::Miss::Ramp),
        (None, None, _) => Err(super::Miss::NoNode),
    }
}

/// Cuts a node's share of a call into slices of bounded size: at most `objects` each, and at most `bytes` unless it is one.
pub fn slices<T>(share: Vec<T>, objects: usize, bytes: u64, size: impl Fn(&T) -> u64) -> Vec<Vec<T>> {
    let mut slices: Vec<Vec<T>> = Vec::new();
    let mut taken = 0u64;
    for one in share {
        let length = size(&one);
        match slices.last_mut() {
            Some(last) if last.len() < objects.max(1) && taken.saturating_add(length) <= bytes => {
                taken += length;
                last.push(one);
            }
            _ => {
                taken = length;
                slices.push(vec![one]);
            }
        }
    }
    slices
}
