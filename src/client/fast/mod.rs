//! The same-host path: values are copied straight from the node's shared-memory file (`docs/protocol.md`).
//!
//! [`answer`] checks what the node says; [`map`] is the file in this process; [`link`] is one connection;
//! [`copy`] brings the values over. [`FastTransport`]
//! tries this path for reads and leaves everything else, and what it cannot answer, to gRPC.

pub mod answer;
mod copy;
mod link;
mod map;
mod transport;

pub use transport::FastTransport;
