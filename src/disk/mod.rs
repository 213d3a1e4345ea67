//! The disk tier of a GCache node: values in a log of segments, one directory for each device.
//!
//! - [`Disk::open`] makes a directory or attaches to it; `docs/format.md` is the layout. Names, tenants and checksums are
//!   those of the memory tier ([`crate::shm`]). The first writer wins: putting what is there answers `Present`.
//! - **Durability.** *Accepted* (a put's callback said `Stored`) survives the process, `kill -9` included. *Sealed* (the
//!   segment is full, or [`Disk::seal`] answered) survives power loss. A delete survives both when its callback is called.
//!   Reclaiming writes what was hit anew, which makes it accepted again until the next seal.
//! - **Memory.** Bytes go straight from and into the caller's memory where that is aligned to 4 KiB ([`Buffer`]), else
//!   through a copy. An operation owns its buffer until it completes and then gives it back, so a slot of the memory tier
//!   can be freed when the callback of its put was called. At most 40 bytes of index an object, from 65,536 objects on:
//!   24 for its record, 6 to 12 for its place in the hash table as allocated, 1 for its mark.
//! - **Calls never wait for the device.** Callbacks come from the I/O thread, or from the caller's before the call returns;
//!   they must not block. Seals, deletes and reclaiming run on one worker thread that sleeps when there is nothing to do.
//! - **Every read is verified**: the key against the entry's header, the bytes against their CRC32Cs, by
//!   [`Fetched::verify`] on the thread of the caller's choice.
//! - **Faults.** A device that fails a write makes the tier read-only, one that hangs or disappears takes it offline:
//!   [`State`] says so and why, calls answer a typed error at once, and the node serves on from memory.
//! - Reads of one key at the same time are separate reads: single-flight is for the layer above, which knows who waits.
//! - Time comes in as `now`, milliseconds of one monotonic clock of the caller's choice.
//! - No async, no network.

mod budget;
mod buffer;
mod calls;
mod config;
mod core;
mod delete;
mod device;
mod error;
mod footer;
#[doc(hidden)]
pub mod fuzzing;
mod group;
mod heir;
mod index;
mod integrity;
mod io;
mod layout;
mod manifest;
#[doc(hidden)]
pub mod memory;
mod memory_files;
mod open;
mod pool;
mod read;
mod real;
mod reclaim;
mod recover;
mod ring;
mod seal;
mod segment;
mod shared;
mod stats;
mod tier;
mod write;

pub use buffer::{Aligned, Buffer};
pub use calls::{Chooser, Put, PutDone, PutOutcome, Target, Value};
pub use config::{Backend, DiskConfig, DiskRecovery, Worker};
pub use device::{Action, Device, Done, FileId, MAX_PIECES, Op, Piece, Step};
pub use error::{DiskError, State};
pub use group::Crcs;
pub use heir::Heir;
pub use read::Fetched;
pub use stats::{DiskStats, DiskTotals};
pub use tier::Disk;

/// Bytes of a block: of which everything in a segment is a multiple, and to which direct I/O is aligned.
pub const BLOCK: usize = 4096;

/// Streams, each with an open segment of its own: full pages (parts below 32), and checkpoints (the others).
pub const STREAMS: usize = 2;
