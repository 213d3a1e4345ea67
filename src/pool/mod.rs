//! Page pools: they count and name pages; the memory behind the names belongs to the caller.
//!
//! A [`Pool`] hands out move-only [`Page`] handles of its group. A page is free, private (a sequence owns its handle),
//! cached (the tree owns it) or quarantined (a step or a move may still touch it); every transition consumes one handle
//! and returns another, and the pool checks the owner of every page it takes back.

pub mod big;
pub mod chunk;
mod fence;
mod ids;
mod page;
#[allow(clippy::module_inception)]
mod pool;
mod region;

pub use fence::{Bucket, Fence, Hold, MoveBucket, NONE, Stamp};
pub use ids::{ChunkedIds, Holding, MAX_CHUNKS};
pub use page::{Computed, Full, Page, PoolGroup, Published, Quarantined, Reserved, Swa};
pub use pool::Pool;
pub use region::{ChunkShape, MAX_CHUNK_PAGES, Memory, Region};
