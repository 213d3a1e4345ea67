//! The copier: jobs of page copies between device and host memory, run by threads of its own.
//!
//! - [`Copier::submit`] checks a job whole, then queues it; it never waits for room but refuses with
//!   [`TierError::Busy`](super::TierError::Busy). Jobs run in the order of their submission, loads before saves; a save
//!   that is under way gives way at its next page. A stream of loads without end therefore holds saves up, and
//!   back-pressure tells their callers.
//! - A load copies layer by layer over both groups and says so per layer ([`Job::wait_layer`]); a save copies page by
//!   page. Several threads share one job.
//! - A cancelled job ends between two pages. Once a wait has said so, nothing of it is written any more.
//! - Until a job is over it holds the device memory's owner and the host region.
//!
//! Nobody else writes a page that a job reads, or touches one that it writes, until the job is over or, for the parts of
//! a loaded layer, until that layer's wait has returned: who submits sees to that, as leases of pages do.

mod bytes;
mod copier;
mod job;
mod plan;
mod worker;

pub use copier::{Copier, CopierConfig};
pub use job::{Job, LayerTimes, Outcome, Progress};

use super::layout::Layout;
use std::any::Any;
use std::sync::Arc;

/// Where bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From host to device memory.
    Load,
    /// From device to host memory.
    Save,
}

/// A page of device memory and one of host memory, of the same group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pair {
    /// Page id in the device pool.
    pub device: u32,
    /// Page id in the host region.
    pub host: u32,
}

/// Device memory as a copier sees it: where pages lie, and what keeps them there.
pub struct DeviceMemory {
    layout: Layout,
    /// Dropped with the last job or copier that holds this, possibly on a copy thread.
    _owner: Arc<dyn Any + Send + Sync>,
}

impl DeviceMemory {
    /// Memory laid out like this, alive while `owner` is.
    ///
    /// # Safety
    /// While `owner` lives, every byte of the pages 1 and up of every part of `layout` is memory of this process, valid
    /// for reads and writes through its address from any thread; and callers of the copier keep to the rule about pages
    /// in flight that this module states.
    pub unsafe fn new(layout: Layout, owner: Arc<dyn Any + Send + Sync>) -> Self {
        DeviceMemory { layout, _owner: owner }
    }

    /// Where pages lie.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }
}

impl std::fmt::Debug for DeviceMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("DeviceMemory").field(&self.layout).finish()
    }
}
