//! The host region: both pools of the host tier, page-major, in one mapping.
//!
//! Pages of a pool lie one after the other, each a multiple of [`HOST_ALIGN`](super::HOST_ALIGN) bytes; a pool starts at a
//! multiple of 2 MiB. Ids go from 1 to the number of pages; the null page 0 has no memory, since nothing may be copied
//! there. All memory is taken when the region is made, zeroed.
//!
//! The region lives while anybody holds it: jobs do until they are over.

use super::cuda::Registered;
use super::error::TierError;
use super::layout::{Layout, PoolGroup};
use super::mapping::{MAP_ALIGN, Mapping};
use std::sync::Mutex;

/// Whether huge pages are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Hugepages {
    /// Where the system gives them on advice.
    #[default]
    Auto,
    /// Never.
    Off,
}

/// Where a pool lies.
#[derive(Debug, Clone, Copy)]
struct Pool {
    /// Offset of page 1.
    at: usize,
    /// Bytes of a page.
    page: usize,
    /// Bytes of it that are copied; the rest up to `page` stays zero.
    used: usize,
    /// Usable pages.
    pages: u32,
}

/// Memory of the host tier.
pub struct HostRegion {
    pools: [Pool; 2],
    /// Before the mapping, so that it goes first.
    registered: Mutex<Option<Registered>>,
    mapping: Mapping,
}

impl std::fmt::Debug for HostRegion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [full, swa] = self.pools.map(|pool| pool.pages);
        write!(f, "HostRegion({} bytes, {full} full and {swa} SWA pages)", self.mapping.len())
    }
}

impl HostRegion {
    /// Takes the memory for so many usable pages of each group of `layout`.
    ///
    /// # Errors
    /// [`TierError::Invalid`] where a group of the layout gets no page or an absent one gets some, or their bytes exceed
    /// what can be addressed; [`TierError::Memory`] where the memory cannot be had.
    pub fn new(layout: &Layout, full_pages: u32, swa_pages: u32, hugepages: Hugepages) -> Result<Self, TierError> {
        let mut at = 0usize;
        let mut pools = Vec::with_capacity(2);
        for (group, pages) in PoolGroup::BOTH.into_iter().zip([full_pages, swa_pages]) {
            let shape = layout.group(group);
            let present = shape.pages() > 0;
            if present != (pages > 0) || pages == u32::MAX {
                let allowed = if present { "1 to 4294967294" } else { "0, since the layout has no such group" };
                return Err(TierError::invalid("host pages", format!("{pages} ({group})"), allowed));
            }
            let page = shape.host_bytes();
            pools.push(Pool { at, page, used: shape.page_bytes(), pages });
            at = page
                .checked_mul(pages as usize)
                .and_then(|bytes| bytes.checked_add(at)?.checked_next_multiple_of(MAP_ALIGN))
                .filter(|all| *all <= 1 << 60)
                .ok_or_else(|| {
                    TierError::invalid(
                        "host pages",
                        format!("{pages} ({group}, {page} bytes each)"),
                        "at most 2^60 bytes",
                    )
                })?;
        }
        let mapping = Mapping::new(at, hugepages == Hugepages::Auto)?;
        Ok(HostRegion { pools: [pools[0], pools[1]], registered: Mutex::new(None), mapping })
    }

    /// Usable pages of a group: ids are 1 to this.
    pub fn pages(&self, group: PoolGroup) -> u32 {
        self.pools[group.index()].pages
    }

    /// Bytes of a page of a group: a multiple of 4,096.
    pub fn page_bytes(&self, group: PoolGroup) -> usize {
        self.pools[group.index()].page
    }

    /// Bytes of all memory.
    pub fn bytes(&self) -> usize {
        self.mapping.len()
    }

    /// Address and length of a page, valid while the region lives. A write there must not meet a job that names the page.
    pub fn page(&self, group: PoolGroup, id: u32) -> Result<(*mut u8, usize), TierError> {
        let pool = &self.pools[group.index()];
        if id == 0 || id > pool.pages {
            return Err(bad_id("host page", id, group, pool.pages));
        }
        // SAFETY: `new` made room for `pages` pages there.
        Ok((unsafe { self.mapping.base().add(pool.at + (id as usize - 1) * pool.page) }, pool.page))
    }

    /// Whether pages are as `layout` makes them.
    pub(super) fn fits(&self, layout: &Layout) -> bool {
        PoolGroup::BOTH.into_iter().all(|group| {
            let (pool, shape) = (&self.pools[group.index()], layout.group(group));
            (pool.page, pool.used) == (shape.host_bytes(), shape.page_bytes())
        })
    }

    /// Page-locks the region for CUDA; a second call does nothing.
    ///
    /// # Errors
    /// [`TierError::Cuda`] where there is no CUDA runtime or it refuses.
    pub fn register_cuda(&self) -> Result<(), TierError> {
        let mut registered = self.registered.lock().unwrap_or_else(|e| e.into_inner());
        if registered.is_none() {
            *registered = Some(Registered::new(self.mapping.base(), self.mapping.len())?);
        }
        Ok(())
    }
}

/// The error for a page id that a pool of `pages` usable pages does not have.
pub(super) fn bad_id(what: &'static str, id: u32, group: PoolGroup, pages: u32) -> TierError {
    let value = if id == 0 { format!("0, the null page ({group})") } else { format!("{id} ({group})") };
    let allowed = if pages == 0 { "none, the group is absent".to_string() } else { format!("1 to {pages}") };
    TierError::invalid(what, value, allowed)
}
