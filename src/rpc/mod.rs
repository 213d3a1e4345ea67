//! The wire: what a GCache node and its clients say to each other. `proto/gcache/v1` is the contract and
//! `docs/protocol.md` its rules; no meaning is added here.
//!
//! - [`v1`] is generated from the contract and committed; `tests/wire_generated.rs` compares.
//! - [`check`] sums messages up, so that none is altered on its way unnoticed.
//! - [`ids`] packs and unpacks keys and object ids, and refuses what has another length.
//! - [`fast`] has the messages of the same-host path.
//! - [`frame`] makes messages around bytes that are not copied.
//! - [`pieces`] reads such messages as their bytes come.
//! - [`limits`] names the numbers that both sides must know.

pub mod awake;
pub mod check;
pub mod fast;
pub mod frame;
pub mod ids;
pub mod limits;
pub mod pieces;

/// Messages and service of the contract, version 1.
#[allow(missing_docs, clippy::all)]
#[rustfmt::skip]
#[path = "gen/gcache.v1.rs"]
pub mod v1;

/// The contract's descriptors, for reflection: a `FileDescriptorSet`.
pub const DESCRIPTOR_SET: &[u8] = include_bytes!("gen/descriptor.bin");
