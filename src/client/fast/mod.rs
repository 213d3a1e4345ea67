//! The same-host path: values are copied straight from the node's shared-memory file (`docs/protocol.md`).
//!
//! [`answer`] reads what the node says; [`link`] is one connection, [`socket`] its socket; [`copy`] brings the values over, out of the mapping of
//! a [`Reader`](crate::shm::Reader). [`FastTransport`] tries this path for reads and leaves everything else, and what it
//! cannot answer, to gRPC.

pub mod answer;
mod copy;
mod link;
mod socket;
mod transport;

pub use transport::FastTransport;
