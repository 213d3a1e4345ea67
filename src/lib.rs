//! KV cache for hybrid sliding-window language models: an SWA-aware prefix tree over two page pools.
//!
//! Start at [`cache::Cache`]. `docs/design.md` has the rules and the reasons.

pub mod cache;
pub mod error;
pub mod geometry;
pub mod key;
pub mod policy;
pub mod pool;
pub mod replay;
pub mod ring;
pub mod sync;
pub mod tree;

#[cfg(feature = "python")]
mod python;
