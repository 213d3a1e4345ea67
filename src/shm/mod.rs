//! The memory tier of a GCache node: values in a named shared-memory file that outlives the process.
//!
//! - [`Store::open`] makes the file or attaches to it; after `kill -9` at any instant the next process serves every value
//!   that was committed and nothing torn. `docs/format.md` is the layout.
//! - An *object* is the bytes of one page for one part: [`ObjectId`] is a chain key and a part. It is visible to its tenant
//!   only. A value never changes: the first writer wins.
//! - The store is `Sync`. Locks are held for bookkeeping, never while bytes are copied: a [`Writer`] owns its slot until
//!   it commits, a [`Pinned`] value cannot be evicted until it is dropped.
//! - It never grows past the size of its file. What goes first: of the extent that was not used for longest, superseded
//!   windows, then the tail before the head; nothing that is pinned or leased.
//! - Time comes in as `now`, milliseconds of one monotonic clock of the caller's choice.
//! - No async, no network: the node is built on top.

mod available;
mod classes;
mod config;
mod crc;
mod error;
#[doc(hidden)]
pub mod fuzzing;
mod header;
mod index;
mod integrity;
mod layout;
mod lease;
mod leaving;
mod ledger;
mod mapped;
mod object;
mod open;
mod order;
mod reader;
mod recover;
mod region;
mod room;
mod runs;
mod span;
mod spans;
mod stats;
mod store;
mod superblock;
mod values;

pub use config::{BootId, Prefault, Probe, Recovery, StoreConfig};
pub(crate) use crc::copy_quietly_append;
pub use crc::{chunk_crcs, copy_crc32c, copy_crc32c_append, copy_verified, crc32c, crc32c_append};
pub use error::ShmError;
pub use leaving::Leaving;
pub use object::{
    CHUNK_BYTES, ChainKey, MAX_PARTS, MAX_VALUE_BYTES, ObjectId, ObjectMeta, PutMeta, SharedRef, chunks_of,
};
pub use reader::{ReadFault, Reader};
pub use stats::{Stats, Totals};
pub use store::{Begin, Exists, Lease, LeaseOwner, Store};
pub use values::{Pinned, Writer};
