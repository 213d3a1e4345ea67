//! The client of a GCache cluster: batches over many nodes, read straight into the caller's memory.
//!
//! - [`Client`] blocks; [`Core`] is the same as futures. A call groups its objects by the node that owns their bucket
//!   (`crate::ring`), cuts each node's share into slices and asks all nodes at once; what the present owner lacks is asked
//!   of the owner before the last change of membership.
//! - A dead, hung or slow node costs one deadline; then its [`Breaker`] makes misses of what it owns until probes find it
//!   well again. A node that comes back empty is ramped up ([`Ramp`]). A failed or late call is a miss with its reason, never
//!   an exception and never wrong bytes.
//! - Every chunk is compared with the CRC32C that its writer computed, while it is copied.
//! - A [`Transport`] carries the calls of one node: gRPC over TCP or a Unix socket, and the same-host path for reads.
//! - Calls are made a second time only where that is safe, on another connection, and never after the deadline.

mod blocking;
mod breaker;
mod call;
mod chunks;
mod cluster;
mod config;
mod connect;
mod copy;
mod core;
pub mod fast;
mod grpc;
mod grpc_transport;
mod metrics;
mod node;
mod pool;
mod put_stream;
mod queue;
mod ramp;
mod reads;
mod receive;
#[cfg(test)]
mod tests;
mod transport;
mod types;
mod writes;

pub use blocking::{Client, FILE_INTERVAL};
pub use breaker::{Admission, Breaker, BreakerConfig, BreakerState, Verdict};
pub use call::{Blame, Call, CallError};
pub use chunks::{Buffers, Copied};
pub use cluster::{Cluster, Route};
pub use config::ClientConfig;
pub use connect::{Connect, Connecting, Sockets};
pub use copy::append_crc;
pub use core::{Core, MakeTransport};
pub use grpc::Io;
pub use metrics::Metrics;
pub use node::Node;
pub use ramp::{Ramp, RampConfig};
pub use receive::Breach;
pub use transport::{Bytes, GetBatch, NodeInfo, Outgoing, Pending, PutBatch, PutHead, Transport};
pub use types::{Counted, Destination, GetItem, Got, KeyRun, Miss, ObjectId, Presence, PutItem, Refusal, Source, Stored};
