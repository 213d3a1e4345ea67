//! The same-host path: values are copied straight from the node's shared-memory file (`docs/fast-path.md`).
//!
//! - [`wire`] encodes and decodes messages; [`map`] is the file in this process; [`link`] is one connection.
//! - [`FastTransport`] tries this path for reads and leaves everything else, and what it cannot answer, to gRPC.

mod link;
mod map;
mod transport;
pub mod wire;

pub use transport::FastTransport;
