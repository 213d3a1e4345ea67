//! The node: a daemon that serves a memory tier, and a disk tier below it, over gRPC, and the memory to readers on the same
//! machine.
//!
//! - [`Node::start`] opens the store and listens; [`Node::stop`] lets running calls end, then closes.
//! - [`service`] answers the calls of the contract over [`crate::shm::Store`]; `get` and `put` are the two that stream.
//! - [`tiers`] makes one store of memory, disk and an object store.
//! - [`server`] accepts connections and bounds them; [`aside`] has the standard services; [`fast`] is the same-host path; [`http`] serves metrics and health.
//! - [`ctl`] is what `gcachectl` does.
//! - [`config`], [`config_disk`] and [`remote`] read settings, [`listen`] refuses those that would let strangers in, [`auth`]
//!   checks tokens.
//! - Memory is bounded whatever arrives: by the limits of [`config::LimitConfig`] (`docs/operations.md` adds them up).
//!   Nothing is allocated on the word of a peer.
//! - Time enters as milliseconds of one monotonic clock ([`state::Clock`]).

pub mod aside;
pub mod auth;
pub mod config;
pub mod config_disk;
pub mod ctl;
pub mod deadline;
pub mod fast;
pub mod get;
pub mod http;
pub mod listen;
pub mod metrics;
pub mod put;
pub mod put_stream;
pub mod remote;
pub mod server;
pub mod service;
pub mod state;
pub mod tiers;
pub mod unary;
pub mod units;

pub use config::NodeConfig;
pub use server::Node;
