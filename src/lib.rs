//! KV cache for hybrid sliding-window language models: an SWA-aware prefix tree over two page pools.
//!
//! Start at [`cache::Cache`]. `docs/design.md` has the rules and the reasons.

pub mod cache;
pub mod error;

pub mod key;
pub mod policy;




#[cfg(feature = "python")]
mod python;
