//! Placement: which node owns a bucket.
//!
//! A fixed table of buckets, each owned by the node that wins a weighted rendezvous: every node draws a cost for every
//! bucket, and the lowest cost wins. A node of twice the weight owns twice the buckets, and a node that joins or leaves
//! moves only the buckets it wins or had. Everything is integer arithmetic, so that every implementation finds the same
//! owners; `docs/placement.md` is the specification, `tests/vectors/ring.json` its vectors. A table never changes: a
//! change of membership makes the next *epoch*, and a [`Ring`] keeps the one before, for readers to fall back on.

mod cost;
mod epoch;
mod extent;
mod table;

pub use cost::{draw, node_seed};
pub use epoch::{Owners, Ring};
pub use extent::{bucket_of, extent_of};
pub use table::{DEFAULT_BUCKETS, MAX_BUCKETS, MAX_NODES, MAX_WEIGHT, Node, Table};
