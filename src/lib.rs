//! KV cache for hybrid sliding-window language models: an SWA-aware prefix tree over two page pools.
//!
//! Start at [`cache::Cache`]. `docs/design.md` has the rules and the reasons.

pub mod cache;
#[cfg(all(feature = "gcache", target_os = "linux"))]
pub mod client;
#[cfg(all(feature = "gcache", target_os = "linux"))]
pub mod disk;
pub mod error;
pub mod geometry;
pub mod key;
#[cfg(all(feature = "gcache", target_os = "linux"))]
pub mod member;
#[cfg(target_os = "linux")]
mod memory;
#[cfg(all(feature = "gcache", target_os = "linux"))]
pub mod node;
pub mod policy;
pub mod pool;
#[cfg(all(feature = "gcache", target_os = "linux"))]
pub mod remote;
pub mod replay;
pub mod ring;
#[cfg(feature = "gcache")]
pub mod rpc;
#[cfg(all(feature = "gcache", target_os = "linux"))]
pub mod shm;
pub mod sync;
pub mod tier;
pub mod tree;

#[cfg(feature = "python")]
mod python;
