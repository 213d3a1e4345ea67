//! What `gcachectl` does: each command returns what to print and whether all is well.

mod bench;
mod output;
mod status;
mod verify;

pub use bench::bench;
pub use output::{complain, say};
pub use status::status;
pub use verify::verify;

use super::auth::{NODE_HEADER, node_header};
use super::listen::Address;
use crate::ring::{self, Table, bucket_of};
use crate::rpc::check::{self, Checked};
use crate::rpc::limits::MAX_MESSAGE_BYTES;
use crate::rpc::v1::g_cache_client::GCacheClient;
use serde_json::json;
use std::time::Duration;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Endpoint};

/// Window of a connection: large, since the tool reads at once what comes.
const WINDOW_BYTES: u32 = 8 << 20;
/// Frames of this size are accepted.
const FRAME_BYTES: u32 = 1 << 20;
/// Longest deadline, in seconds.
const MAX_DEADLINE: f64 = 3600.0;

/// A node, and how to ask it.
pub struct Peer {
    /// As placement has it.
    pub node: ring::Node,
    /// Where it listens.
    pub address: Address,
    /// Connects when it is first used.
    pub client: GCacheClient<Channel>,
}

/// The nodes of a cluster, sorted by name.
pub struct Cluster {
    /// The nodes.
    pub peers: Vec<Peer>,
    /// Buckets of the placement table.
    pub buckets: u32,
    /// Tenant to act for.
    pub tenant: u64,
    /// What one node may take.
    pub deadline: Duration,
    token: Option<MetadataValue<Ascii>>,
}

impl Cluster {
    /// The cluster of `name=address*weight` texts. Nothing is asked yet. Inside a runtime.
    ///
    /// # Errors
    /// A sentence.
    pub fn new(
        nodes: &[String],
        buckets: u32,
        tenant: u64,
        token: Option<String>,
        deadline: f64,
    ) -> Result<Cluster, String> {
        if nodes.is_empty() {
            return Err("no node is named; say --node name=host:port, or set GCACHE_NODES".into());
        }
        if !(deadline > 0.0 && deadline <= MAX_DEADLINE) {
            return Err(format!("deadline is {deadline} s, allowed is above 0 and at most {MAX_DEADLINE} s"));
        }
        let token = token.map(|t| format!("Bearer {t}").parse()).transpose();
        let token = token.map_err(|_| "the token has characters that a header cannot carry".to_string())?;
        let deadline = Duration::from_secs_f64(deadline);
        let mut named = nodes.iter().map(|text| parse(text)).collect::<Result<Vec<_>, _>>()?;
        named.sort_by(|(a, _), (b, _)| a.name.cmp(&b.name));
        Ok(Cluster {
            peers: named
                .into_iter()
                .map(|(node, address)| Peer::new(node, address, deadline))
                .collect::<Result<_, _>>()?,
            buckets,
            tenant,
            deadline,
            token,
        })
    }

    /// A sealed request to a peer, as in [`Cluster::request`], and its check.
    pub fn sealed<T: Checked>(&self, peer: Option<&Peer>, mut message: T) -> (tonic::Request<T>, u32) {
        let check = check::seal(&mut message, check::FIRST);
        (self.request(peer, message), check)
    }

    /// A request with the token and the deadline, which a node of another name than the peer's refuses. Without a peer it
    /// is for whoever is there.
    pub fn request<T>(&self, peer: Option<&Peer>, message: T) -> tonic::Request<T> {
        let mut request = tonic::Request::new(message);
        if let Some(name) = peer.and_then(|peer| node_header(&peer.node.name).parse().ok()) {
            request.metadata_mut().insert(NODE_HEADER, name);
        }
        request.set_timeout(self.deadline);
        if let Some(token) = &self.token {
            request.metadata_mut().insert("authorization", token.clone());
        }
        request
    }

    /// The placement table.
    ///
    /// # Errors
    /// A sentence: a name twice, a weight or a number of buckets outside the limits.
    pub fn table(&self) -> Result<Table, String> {
        let nodes: Vec<ring::Node> = self.peers.iter().map(|p| p.node.clone()).collect();
        Table::new(self.buckets, &nodes, 1).map_err(|e| e.to_string())
    }
}

impl Peer {
    fn new(node: ring::Node, address: Address, deadline: Duration) -> Result<Peer, String> {
        let uri = match &address {
            Address::Tcp(text) => format!("http://{text}"),
            Address::Unix(path) => format!("unix://{}", path.display()),
        };
        let endpoint = Endpoint::from_shared(uri).map_err(|e| format!("{address}: {e}"))?;
        let endpoint = endpoint
            .connect_timeout(deadline)
            .tcp_nodelay(true)
            .initial_stream_window_size(WINDOW_BYTES)
            .initial_connection_window_size(WINDOW_BYTES)
            .max_frame_size(FRAME_BYTES);
        let client = GCacheClient::new(endpoint.connect_lazy()).max_decoding_message_size(MAX_MESSAGE_BYTES);
        Ok(Peer { node, address, client })
    }
}

/// The answer to a request with this check.
///
/// # Errors
/// `DATA_LOSS`: it was altered on its way.
pub fn opened<T: Checked>(answer: T, check: u32) -> Result<T, tonic::Status> {
    check::verify(&answer, check).map_err(|e| tonic::Status::data_loss(e.to_string()))?;
    Ok(answer)
}

/// `name=address` or `name=address*weight`.
fn parse(text: &str) -> Result<(ring::Node, Address), String> {
    let bad =
        || format!("node {text:?}: allowed is name=host:port or name=unix:/path, with *weight where weights differ");
    let (name, rest) = text.split_once('=').ok_or_else(bad)?;
    let (address, weight) = match rest.rsplit_once('*') {
        Some((address, weight)) => (address, weight.parse().map_err(|_| bad())?),
        None => (rest, 1),
    };
    let address = Address::parse(address).map_err(|_| bad())?;
    Ok((ring::Node { name: name.to_string(), weight }, address))
}

/// A chain key of 64 hexadecimal digits.
fn key(text: &str) -> Result<[u8; 32], String> {
    let bad = || format!("{text:?} is no chain key, allowed are 64 hexadecimal digits");
    if text.len() != 64 || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Err(bad());
    }
    let mut key = [0; 32];
    for (byte, digits) in key.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        *byte = std::str::from_utf8(digits).ok().and_then(|d| u8::from_str_radix(d, 16).ok()).ok_or_else(bad)?;
    }
    Ok(key)
}

/// Which node owns each extent.
///
/// # Errors
/// A sentence.
pub fn locate(cluster: &Cluster, extents: &[String], json: bool) -> Result<(String, bool), String> {
    let table = cluster.table()?;
    let mut lines = Vec::new();
    for text in extents {
        let bucket = bucket_of(&key(text)?, table.buckets());
        let owner = table.owner(bucket).map_or(0, usize::from);
        let peer = &cluster.peers[owner];
        lines.push(if json {
            json!({"extent": text, "bucket": bucket, "node": peer.node.name, "address": peer.address.to_string()})
                .to_string()
        } else {
            format!("{text} bucket {bucket} node {} at {}", peer.node.name, peer.address)
        });
    }
    Ok((lines.join("\n"), true))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_and_keys_are_read() {
        let (node, address) = parse("a=127.0.0.1:7400*3").unwrap();
        assert_eq!((node.name.as_str(), node.weight, address.to_string().as_str()), ("a", 3, "127.0.0.1:7400"));
        assert_eq!(parse("b=unix:/run/b.sock").unwrap().1.to_string(), "unix:/run/b.sock");
        for text in ["a", "127.0.0.1:7400", "a=", "a=host", "a=host:1*x", "a=host:1*-1"] {
            assert!(parse(text).is_err(), "{text}");
        }
        assert_eq!(key(&"0f".repeat(32)), Ok([15; 32]));
        assert!(key("0f").is_err() && key(&"+f".repeat(32)).is_err() && key(&"ä".repeat(32)).is_err());
    }
}
