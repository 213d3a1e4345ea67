//! The Python extension `mimo_cache._core`: converts values and errors, and decides when the GIL is released.
//!
//! Nothing here knows how the cache works, and the core never imports it. Classes are exposed as they are, without a
//! layer of Python around them. Every error is one of `errors`; no panic crosses the border (see `crate::sync`).

mod args;
mod buffers;
mod cache;
mod call;
mod checksum;
mod errors;
mod events;
#[cfg(target_os = "linux")]
mod gcache;
#[cfg(target_os = "linux")]
mod gcache_args;
#[cfg(target_os = "linux")]
mod gcache_results;
mod gcache_wait;
mod geometry;
mod geometry_args;
mod kv_group;
mod options;
mod region;
mod replay;
mod report;
mod request;
mod sequence;
mod step;
#[cfg(target_os = "linux")]
mod tier_copy;
#[cfg(target_os = "linux")]
mod tier_errors;
#[cfg(target_os = "linux")]
mod tier_layout;
#[cfg(target_os = "linux")]
mod tier_moves;
#[cfg(target_os = "linux")]
mod tier_plan;
mod tokens;
mod trace;

use pyo3::prelude::*;

#[pymodule]
fn _core(m: &Bound<'_, PyModule>) -> PyResult<()> {
    errors::register(m)?;
    m.add("__version__", env!("CARGO_PKG_VERSION"))?;
    m.add_class::<geometry::PyGeometry>()?;
    m.add_class::<kv_group::PyKvGroup>()?;
    m.add_class::<region::PyRegion>()?;
    m.add_class::<cache::PyPrefixCache>()?;
    m.add_class::<request::PyKey>()?;
    m.add_class::<request::PyRequest>()?;
    m.add_class::<sequence::PySequence>()?;
    m.add_class::<sequence::PyPlan>()?;
    m.add_class::<report::PyMatch>()?;
    m.add_class::<report::PyReport>()?;
    m.add_class::<report::PyCheckpoint>()?;
    m.add_class::<report::PyExplanation>()?;
    m.add_class::<report::PyPoolStats>()?;
    m.add_class::<report::PySplitStats>()?;
    m.add_class::<report::PyStats>()?;
    m.add_class::<events::PyEvent>()?;
    m.add_class::<events::PySnapshotPage>()?;
    m.add_class::<events::PySnapshot>()?;
    checksum::register(m)?;
    #[cfg(target_os = "linux")]
    m.add_class::<gcache::PyGCacheClient>()?;
    #[cfg(target_os = "linux")]
    {
        m.add_class::<tier_layout::PyDeviceLayout>()?;
        m.add_class::<tier_layout::PyHostRegion>()?;
        m.add_class::<tier_copy::PyKvCopier>()?;
        m.add_class::<tier_copy::PyCopyJob>()?;
        m.add_class::<tier_plan::PyTierPlanner>()?;
        m.add_class::<tier_moves::PyFetch>()?;
        m.add_class::<tier_moves::PySave>()?;
        m.add_class::<tier_moves::PyReceive>()?;
        m.add_class::<tier_moves::PyLoan>()?;
        m.add_class::<report::PyTierStats>()?;
    }
    replay::register(m)?;
    trace::register(m)?;
    // The package says what is public; a second list here could only disagree.
    m.delattr("__all__")
}
