//! The host tier (L2): what goes there and what comes back, its memory, and the copies between it and device memory.
//!
//! [`Tiers`] decides and moves nothing. The rest of this folder moves bytes and decides nothing. A [`Layout`] says how the pages of a cache lie in device memory, part by
//! part; a [`HostRegion`] holds whole pages, page-major, in one mapping; a [`Copier`] loads pages layer by layer and saves
//! them page by page on threads of its own. Which page goes where comes in as pairs of page ids, which are checked before
//! a byte is copied.
//!
//! On a CPU the device is memory of this process, such as torch tensors: the caller vouches for the addresses once
//! ([`DeviceMemory::new`]) and hands over whatever keeps them alive.

#[cfg(target_os = "linux")]
mod back;
#[cfg(target_os = "linux")]
mod copy;
mod cuda;
#[cfg(target_os = "linux")]
mod error;
#[cfg(target_os = "linux")]
mod host;
#[cfg(target_os = "linux")]
mod layout;
#[cfg(target_os = "linux")]
mod mapping;
mod plan;
mod remote;
mod save;
mod tiers;
mod types;

#[cfg(target_os = "linux")]
pub use copy::{Copier, CopierConfig, DeviceMemory, Direction, Job, LayerTimes, Outcome, Pair, Progress};
#[cfg(target_os = "linux")]
pub use error::TierError;
#[cfg(target_os = "linux")]
pub use host::{HostRegion, Hugepages};
#[cfg(target_os = "linux")]
pub use layout::{GroupLayout, HOST_ALIGN, LayerStep, Layout, NULL_PAGE, Part, PoolGroup};
pub use plan::{Cost, Residency, union_boundary};
pub use tiers::Tiers;
pub use types::{Fetch, Loan, Pairs, Prefix, Receive, Rules, Save, Story, TierConfig, TierStats, Write};
