//! The arguments of `PrefixCache`'s constructors, and what they make.

use super::args;
use super::cache::PyPrefixCache;
use super::call::Handle;
use super::errors::to_py;
use super::geometry::PyGeometry;
use crate::cache::{Cache, CacheConfig};
use crate::policy::{PolicyKind, Retention};
use pyo3::prelude::*;

const U32: u64 = u32::MAX as u64;
/// Most dropped pages and most events that are remembered, as in the core.
const MAX_REMEMBERED: u64 = 1 << 28;

/// Arguments both constructors share.
pub(super) struct Options<'a, 'py> {
    pub(super) full_pages: Option<&'a Bound<'py, PyAny>>,
    pub(super) swa_pages: Option<&'a Bound<'py, PyAny>>,
    pub(super) scratch_pages: Option<&'a Bound<'py, PyAny>>,
    pub(super) retention: Option<&'a Bound<'py, PyAny>>,
    pub(super) policy: Option<&'a Bound<'py, PyAny>>,
    pub(super) events: Option<&'a Bound<'py, PyAny>>,
    pub(super) ghosts: Option<&'a Bound<'py, PyAny>>,
    pub(super) seed: Option<&'a Bound<'py, PyAny>>,
    pub(super) max_pinned_pages: Option<&'a Bound<'py, PyAny>>,
    pub(super) weights: Option<&'a Bound<'py, PyAny>>,
    pub(super) region: Option<&'a Bound<'py, PyAny>>,
}

/// Makes a cache of `(page_size, window, n_mtp)`.
pub(super) fn build(
    py: Python<'_>,
    (page_size, window, n_mtp): (u32, u32, u32),
    fingerprint: [u8; 32],
    options: Options<'_, '_>,
    geometry: Option<Py<PyGeometry>>,
) -> PyResult<PyPrefixCache> {
    let upto = |value, default, what, most| args::int_or(value, default, what, 0, most).map(|v| v as u32);
    let number = |value, default, what| upto(value, default, what, U32);
    let full_pages = number(options.full_pages, 0, "full_pages")?;
    let region = super::region::region(options.region)?;
    // What defaults are taken from: with a region the full pool may have any part of it.
    let most_full = region.as_ref().map_or(full_pages, |r| r.full_ids() as u32);
    let retention = args::text(options.retention, Retention::DEFAULT, "retention")?;
    let policy = args::text(options.policy, PolicyKind::default().name(), "policy")?;
    let config = CacheConfig {
        page_size,
        window,
        n_mtp,
        full_pages,
        swa_pages: number(options.swa_pages, 0, "swa_pages")?,
        scratch_pages: number(options.scratch_pages, 0, "scratch_pages")?,
        retention: Retention::parse(&retention).map_err(|e| to_py(py, e))?,
        policy: PolicyKind::parse(&policy).map_err(|e| to_py(py, e))?,
        event_capacity: upto(options.events, 65536, "events", MAX_REMEMBERED)?,
        ghost_pages: upto(options.ghosts, (2 * u64::from(most_full)).min(MAX_REMEMBERED), "ghosts", MAX_REMEMBERED)?,
        fingerprint,
        seed: args::int_or(options.seed, 0, "seed", 0, u64::MAX)?,
        max_pinned_pages: number(options.max_pinned_pages, u64::from(most_full / 4), "max_pinned_pages")?,
        region,
    };
    let weights = options.weights.map_or(Ok(Vec::new()), |w| args::name(w, "weights"))?;
    let made = py.detach(|| -> crate::error::Result<(Cache, CacheConfig)> {
        // The core's own checks come first; a panic while it allocates is no reason to lose the process.
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut cache = Cache::new(config.clone())?;
            if !weights.is_empty() {
                cache.set_weights(&weights)?;
            }
            // With a region the numbers of ids are known only now.
            let config = cache.config().clone();
            Ok((cache, config))
        }))
        .unwrap_or_else(|_| Err(crate::error::Error::Integrity("making the cache failed".into())))
    });
    let (cache, config) = made.map_err(|e| to_py(py, e))?;
    Ok(PyPrefixCache { handle: Handle::new(cache), config, geometry })
}
