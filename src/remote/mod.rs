//! The remote tier of a GCache node: values that the disk tier lets go, one object each in an S3-compatible store.
//!
//! - **Write-behind.** What is offered waits in a queue that is bounded in bytes, and can be read from there. What finds the
//!   queue full, or cannot be written after a bounded number of tries, is dropped and counted: it is a miss later, nothing
//!   else. The first writer wins: an object that is there is not replaced.
//! - **Read on miss.** There is no index: an object is asked for by its name ([`name`]), so that it is found again after any
//!   restart. Names that were not there a moment ago, or that the node has written, are remembered in a table of a fixed
//!   size ([`recent`]).
//! - **What is reported to exist** is what this process has written or read ([`record`]), and what a listing after the start
//!   has shown ([`listing`]); nothing while the tier rests.
//! - **Every read is verified**: length, version and checksum of the header, the name in it, and the CRC32C of each chunk.
//!   Nothing is allocated on the word of the store before its length was compared with the limit of a value.
//! - **A delete** answers when the store has confirmed it ([`delete`]). Where it does not, or where an earlier write of the
//!   object may still take effect, the caller is told with a sentence that the object may come back.
//! - **Faults.** Every call has a timeout. After failures in a row the tier rests ([`rest`]): reads are misses at once, and
//!   what waits to be written waits on. Nothing here keeps the node from serving.
//! - Names belong to one node. Two nodes that write under one name at the same time are not told from each other, and one's
//!   delete would not end what the other has in its queue.
//! - Time is tokio's clock, since all waiting is tokio's.

mod bucket;
mod config;
mod delete;
mod header;
#[cfg(feature = "remote")]
mod limit;
mod listing;
mod name;
mod queue;
mod read;
mod recent;
mod record;
mod rest;
#[cfg(feature = "remote")]
mod s3;
mod stats;
mod tier;
mod write;

pub use bucket::{Answer, Bucket, Kept, Refused};
pub use config::RemoteConfig;
pub use delete::Forgotten;
pub use header::{Header, MAX_HEADER_BYTES};
pub use name::{Name, Names};
pub use queue::Queued;
pub use read::{Found, Guard, Lost, Opened};
#[cfg(feature = "remote")]
pub use s3::{S3Config, Store};
pub use stats::{RemoteStats, RemoteTotals};
pub use tier::Remote;
pub use write::Writers;
