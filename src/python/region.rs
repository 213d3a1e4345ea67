//! `Region`: the memory that both pools of a cache share in chunks.

use super::args;
use super::errors::{invalid, to_py};
use super::geometry::PyGeometry;
use crate::cache::{CacheConfig, Group};
use crate::error::Result;
use crate::geometry::Geometry;
use crate::pool::{ChunkShape, Memory, Region};
use pyo3::prelude::*;

const U32: u64 = u32::MAX as u64;
/// Chunks that `fit` aims at when no size of a chunk is given.
const CHUNKS: u64 = 64;
/// Largest region, in bytes.
const MAX_BYTES: u64 = 1 << 50;

/// One memory region that both pools live in, chunk by chunk: a chunk holds `full_pages` full pages or `swa_pages`
/// SWA pages and belongs to one pool at a time.
///
/// Page `id` of a pool with n pages a chunk is page `(id - 1) % n` of chunk `(id - 1) // n`. With pages at even strides
/// (see `layout`) each pool is one strided view over the whole region; page 0 lies before it.
///
/// - `chunks`: 2 to 4,096. `full_pages`, `swa_pages`: pages of each pool that a chunk holds, 1 to 65,536.
/// - `full_chunks`: chunks of the full pool at the start, the first ones; the others are the SWA pool's.
/// - `min_full_chunks`, `min_swa_chunks`: the pools never get smaller. The SWA pool keeps what scratch, a window and
///   a checkpoint take in any case. A prompt longer than the full pool is refused: set `min_full_chunks` to hold the
///   longest one, or `reassign` until it fits.
/// - `adaptive`: chunks change owner by what they are worth; else only by `PrefixCache.reassign`.
#[pyclass(frozen, eq, name = "Region", module = "mimo_cache")]
#[derive(PartialEq, Clone)]
pub(super) struct PyRegion(pub(super) Region);

#[pymethods]
impl PyRegion {
    #[new]
    #[pyo3(
        signature = (*, chunks, full_pages, swa_pages, full_chunks, min_full_chunks=None, min_swa_chunks=None, adaptive=None),
        text_signature = "(*, chunks, full_pages, swa_pages, full_chunks, min_full_chunks=1, min_swa_chunks=1, adaptive=True)"
    )]
    #[allow(clippy::too_many_arguments)]
    fn new(
        py: Python<'_>,
        chunks: &Bound<'_, PyAny>,
        full_pages: &Bound<'_, PyAny>,
        swa_pages: &Bound<'_, PyAny>,
        full_chunks: &Bound<'_, PyAny>,
        min_full_chunks: Option<&Bound<'_, PyAny>>,
        min_swa_chunks: Option<&Bound<'_, PyAny>>,
        adaptive: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let region = Region {
            chunks: args::int(chunks, "chunks", 0, U32)? as u32,
            full_pages: args::int(full_pages, "full_pages of a chunk", 0, U32)? as u32,
            swa_pages: args::int(swa_pages, "swa_pages of a chunk", 0, U32)? as u32,
            full_chunks: args::int(full_chunks, "full_chunks", 0, U32)? as u32,
            min_full_chunks: args::int_or(min_full_chunks, 1, "min_full_chunks", 0, U32)? as u32,
            min_swa_chunks: args::int_or(min_swa_chunks, 1, "min_swa_chunks", 0, U32)? as u32,
            adaptive: args::flag(adaptive, true, "adaptive")?,
        };
        // Scratch and window are known to the cache alone, which checks again.
        region.checked(0).map(PyRegion).map_err(|error| to_py(py, error))
    }

    /// The region of `size` bytes on the rank of `geometry`, with the chunk of at most `chunk_bytes` (default: a
    /// 64th of the region, at least a page) that wastes least.
    ///
    /// `swa_share` of the bytes, beside those of `scratch_pages` SWA pages, go to the SWA pool at the start. `align` is
    /// what strides are multiples of, in bytes.
    #[staticmethod]
    #[pyo3(
        signature = (geometry, size, *, chunk_bytes=None, swa_share=0.1, scratch_pages=None, align=None, adaptive=None),
        text_signature = "(geometry, size, *, chunk_bytes=None, swa_share=0.1, scratch_pages=0, align=256, adaptive=True)"
    )]
    #[allow(clippy::too_many_arguments)]
    fn fit(
        geometry: &Bound<'_, PyAny>,
        size: &Bound<'_, PyAny>,
        chunk_bytes: Option<&Bound<'_, PyAny>>,
        swa_share: f64,
        scratch_pages: Option<&Bound<'_, PyAny>>,
        align: Option<&Bound<'_, PyAny>>,
        adaptive: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let py = geometry.py();
        let (full_page, swa_page) = page_bytes(geometry)?;
        let size = args::int(size, "size", 1, MAX_BYTES)?;
        let most = chunk_bytes.map(|bytes| args::int(bytes, "chunk_bytes", 1, MAX_BYTES)).transpose()?;
        let scratch = args::int_or(scratch_pages, 0, "scratch_pages", 0, U32)? as u32;
        let align = args::int_or(align, 256, "align", 1, MAX_BYTES)?;
        let adaptive = args::flag(adaptive, true, "adaptive")?;
        let rank = geometry.cast::<PyGeometry>()?.get();
        let (page_size, window, n_mtp) = (rank.0.page_size(), rank.0.window(), rank.0.mtp_heads());
        if !(0.0..1.0).contains(&swa_share) {
            return Err(invalid(py, "swa_share", swa_share, "0 to 1"));
        }
        let made = (|| -> Result<Region> {
            let reserved = CacheConfig::reserved_swa(page_size, window, n_mtp, scratch);
            let memory = Memory { name: "size", bytes: size, full_page, swa_page, align, reserved };
            let (shape, chunks) = match most {
                Some(most) => memory.cut_into(most)?,
                None => memory.cut(size / CHUNKS)?,
            };
            let scratch = f64::from(scratch);
            let cached = (f64::from(chunks) * f64::from(shape.swa_pages) - scratch).max(0.0);
            memory.region(&shape, chunks, cached * swa_share + scratch, adaptive)
        })();
        made.map(PyRegion).map_err(|error| to_py(py, error))
    }

    /// How pages lie in a chunk on the rank of `geometry`: (bytes of a chunk, bytes from one full page to the next,
    /// bytes from one SWA page to the next, unused part of a chunk from 0 to 1). Ranks whose pages have other sizes
    /// have other strides and the same page ids.
    #[pyo3(signature = (geometry, align=None), text_signature = "($self, geometry, align=256)")]
    fn layout(&self, geometry: &Bound<'_, PyAny>, align: Option<&Bound<'_, PyAny>>) -> PyResult<(u64, u64, u64, f64)> {
        let (full, swa) = page_bytes(geometry)?;
        let align = args::int_or(align, 256, "align", 1, MAX_BYTES)?;
        let shape = ChunkShape::with_pages(self.0.full_pages, self.0.swa_pages, full, swa, align)
            .map_err(|error| to_py(geometry.py(), error))?;
        Ok((shape.bytes, shape.full_stride, shape.swa_stride, shape.waste(full, swa)))
    }

    /// Chunks.
    #[getter]
    fn chunks(&self) -> u32 {
        self.0.chunks
    }

    /// Full pages that a chunk holds.
    #[getter]
    fn full_pages(&self) -> u32 {
        self.0.full_pages
    }

    /// SWA pages that a chunk holds.
    #[getter]
    fn swa_pages(&self) -> u32 {
        self.0.swa_pages
    }

    /// Chunks of the full pool at the start.
    #[getter]
    fn full_chunks(&self) -> u32 {
        self.0.full_chunks
    }

    /// The full pool never has fewer.
    #[getter]
    fn min_full_chunks(&self) -> u32 {
        self.0.min_full_chunks
    }

    /// The SWA pool never has fewer.
    #[getter]
    fn min_swa_chunks(&self) -> u32 {
        self.0.min_swa_chunks
    }

    /// Chunks change owner by what they are worth.
    #[getter]
    fn adaptive(&self) -> bool {
        self.0.adaptive
    }

    fn __repr__(&self) -> String {
        let r = &self.0;
        format!(
            "Region(chunks={}, full_pages={}, swa_pages={}, full_chunks={}, min_full_chunks={}, min_swa_chunks={}, adaptive={})",
            r.chunks,
            r.full_pages,
            r.swa_pages,
            r.full_chunks,
            r.min_full_chunks,
            r.min_swa_chunks,
            if r.adaptive { "True" } else { "False" }
        )
    }
}

/// Bytes of one full and one SWA page on the geometry's rank.
fn page_bytes(geometry: &Bound<'_, PyAny>) -> PyResult<(u64, u64)> {
    let py = geometry.py();
    let Ok(geometry) = geometry.cast::<PyGeometry>() else {
        return Err(invalid(py, "geometry", args::type_name(geometry), "a mimo_cache.Geometry"));
    };
    let shape: &Geometry = &geometry.get().0;
    match shape.full().zip(shape.swa()) {
        Some((full, swa)) => Ok((full.rank_page_bytes(), swa.rank_page_bytes() + shape.rank_hidden_page_bytes())),
        None => Err(invalid(py, "geometry", "one with a single group", "one with full and SWA layers, which share")),
    }
}

/// A pool by name.
pub(super) fn group(value: &Bound<'_, PyAny>, what: &'static str) -> PyResult<Group> {
    match &*args::text(Some(value), "", what)? {
        "full" => Ok(Group::Full),
        "swa" => Ok(Group::Swa),
        other => Err(invalid(value.py(), what, crate::error::shown(other), "'full' or 'swa'")),
    }
}

/// The name of a pool.
pub(super) fn name(group: Group) -> &'static str {
    match group {
        Group::Full => "full",
        Group::Swa => "swa",
    }
}

/// The argument `region` of the constructors.
pub(super) fn region(value: Option<&Bound<'_, PyAny>>) -> PyResult<Option<Region>> {
    let Some(value) = value else { return Ok(None) };
    match value.cast::<PyRegion>() {
        Ok(region) => Ok(Some(region.get().0.clone())),
        Err(_) => Err(invalid(value.py(), "region", args::type_name(value), "a mimo_cache.Region or None")),
    }
}
