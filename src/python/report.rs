//! What lookups and statistics look like in Python: `Match`, `Report`, `Explanation`, `Checkpoint`, `Stats`, `PoolStats`, `SplitStats`.

use crate::cache::{CheckpointInfo, Explanation, Match, Misses, PoolStats, Report, SplitStats, Stats};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyByteArray, PyDict, PyList};

/// A new numpy uint32 array.
pub(super) fn uint32_array<'py>(py: Python<'py>, values: &[u32]) -> PyResult<Bound<'py, PyAny>> {
    static NUMPY: PyOnceLock<(Py<PyAny>, Py<PyAny>)> = PyOnceLock::new();
    let (frombuffer, uint32) = NUMPY.get_or_try_init(py, || -> PyResult<_> {
        let numpy = py.import("numpy")?;
        Ok((numpy.getattr("frombuffer")?.unbind(), numpy.getattr("uint32")?.unbind()))
    })?;
    // SAFETY: u32 has no padding and every byte pattern is a valid u8.
    let bytes = unsafe { std::slice::from_raw_parts(values.as_ptr().cast::<u8>(), size_of_val(values)) };
    frombuffer.bind(py).call1((PyByteArray::new(py, bytes), uint32))
}

fn misses_dict<'py>(py: Python<'py>, misses: &Misses) -> PyResult<Bound<'py, PyDict>> {
    let out = PyDict::new(py);
    for (cause, tokens) in misses.items() {
        out.set_item(cause, tokens)?;
    }
    Ok(out)
}

/// What a lookup found, in tokens.
#[pyclass(frozen, eq, name = "Match", module = "mimo_cache")]
#[derive(PartialEq)]
pub(super) struct PyMatch(pub(super) Match);

#[pymethods]
impl PyMatch {
    /// Longest run of whole pages with full KV.
    #[getter]
    fn full_kv_match(&self) -> u64 {
        self.0.full_kv_match
    }

    /// Largest boundary up to it that is window-safe and leaves one token to compute.
    #[getter]
    fn usable(&self) -> u64 {
        self.0.usable
    }

    fn __repr__(&self) -> String {
        format!("Match(full_kv_match={}, usable={})", self.0.full_kv_match, self.0.usable)
    }
}

/// Where every prompt token of one `open` came from, in tokens: `usable` hits, and the sum of `misses`.
#[pyclass(frozen, eq, name = "Report", module = "mimo_cache")]
#[derive(PartialEq)]
pub(super) struct PyReport(pub(super) Report);

#[pymethods]
impl PyReport {
    /// Length of the prompt.
    #[getter]
    fn prompt_tokens(&self) -> u64 {
        self.0.prompt_tokens
    }

    /// Longest run of whole pages with full KV.
    #[getter]
    fn full_kv_match(&self) -> u64 {
        self.0.matched.full_kv_match
    }

    /// Largest boundary up to it that is window-safe and leaves one token to compute.
    #[getter]
    fn usable(&self) -> u64 {
        self.0.matched.usable
    }

    /// Usable tokens announced at `open`.
    #[getter]
    fn promised(&self) -> u64 {
        self.0.promised
    }

    /// Usable tokens the sequence really starts from.
    #[getter]
    fn delivered(&self) -> u64 {
        self.0.delivered
    }

    /// Tokens by cause: window, last_token, evicted, in_flight, capacity, never_seen, partial_page.
    #[getter]
    fn misses<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        misses_dict(py, &self.0.misses)
    }

    /// 1 + turn of the checkpoint that was matched, else 1.
    #[getter]
    fn turn(&self) -> u32 {
        self.0.turn
    }

    fn __repr__(&self) -> String {
        let r = &self.0;
        let causes = r.misses.items().into_iter().filter(|(_, tokens)| *tokens > 0);
        let causes = causes.map(|(cause, tokens)| format!("{cause} {tokens}")).collect::<Vec<_>>().join(", ");
        format!(
            "<mimo_cache.Report: {} of {} prompt tokens usable, full-KV match {}, misses: {}>",
            r.delivered,
            r.prompt_tokens,
            r.matched.full_kv_match,
            if causes.is_empty() { "none" } else { &causes }
        )
    }
}

/// A boundary that is kept resumable.
#[pyclass(frozen, eq, name = "Checkpoint", module = "mimo_cache")]
#[derive(PartialEq)]
pub(super) struct PyCheckpoint(CheckpointInfo);

#[pymethods]
impl PyCheckpoint {
    /// Prefix length in tokens.
    #[getter]
    fn boundary(&self) -> u64 {
        self.0.boundary
    }

    /// Why it is kept: PROMPT_END, SEQ_END, BRANCH, STRIDE, PARK.
    #[getter]
    fn kinds(&self) -> Vec<&'static str> {
        self.0.kinds.to_vec()
    }

    /// A match ended on it.
    #[getter]
    fn matched(&self) -> bool {
        self.0.matched
    }

    /// Turn number of the request that made it.
    #[getter]
    fn turn(&self) -> u32 {
        self.0.turn
    }

    fn __repr__(&self) -> String {
        format!("<mimo_cache.Checkpoint at {}: {}, turn {}>", self.0.boundary, self.0.kinds.join("+"), self.0.turn)
    }
}

/// The story of one lookup; `str()` tells it.
#[pyclass(frozen, name = "Explanation", module = "mimo_cache")]
pub(super) struct PyExplanation(pub(super) Explanation);

#[pymethods]
impl PyExplanation {
    /// The numbers.
    #[getter]
    fn report(&self) -> PyReport {
        PyReport(self.0.report)
    }

    /// Checkpoints on the matched path, shallow first; at most 64, the deepest.
    #[getter]
    fn checkpoints<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let all = self.0.checkpoints.iter().map(|c| Bound::new(py, PyCheckpoint(c.clone())));
        PyList::new(py, all.collect::<PyResult<Vec<_>>>()?)
    }

    /// What missed, in order of position: dicts of `from`, `to` (tokens), `cause`, and for what was evicted
    /// `dropped`: `why`, `sequence` (its `id`), `calls_ago`, or `None` when that is forgotten. At most 64.
    #[getter]
    fn stretches<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let all = self.0.stretches.iter().map(|s| {
            let out = PyDict::new(py);
            out.set_item("from", s.from)?;
            out.set_item("to", s.to)?;
            out.set_item("cause", s.cause)?;
            out.set_item("dropped", super::trace::loss(py, s.loss.as_ref())?)?;
            Ok(out)
        });
        PyList::new(py, all.collect::<PyResult<Vec<_>>>()?)
    }

    /// Checkpoints that would have made more usable and were dropped, deepest first: dicts of `boundary`, `kinds`,
    /// and `dropped` as in `stretches`. At most 64.
    #[getter]
    fn lost_checkpoints<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let all = self.0.lost.iter().map(|c| {
            let out = PyDict::new(py);
            out.set_item("boundary", c.boundary)?;
            out.set_item("kinds", c.kinds.to_vec())?;
            out.set_item("dropped", super::trace::loss(py, c.loss.as_ref())?)?;
            Ok(out)
        });
        PyList::new(py, all.collect::<PyResult<Vec<_>>>()?)
    }

    /// One plain sentence each.
    #[getter]
    fn lines(&self) -> Vec<String> {
        self.0.lines.clone()
    }

    fn __str__(&self) -> String {
        self.0.lines.join("\n")
    }
}

/// The members of a set of counters that are no plain numbers.
trait Nested {
    fn nest(&self, out: &Bound<'_, PyDict>) -> PyResult<()>;
}

impl Nested for PoolStats {
    fn nest(&self, _out: &Bound<'_, PyDict>) -> PyResult<()> {
        Ok(())
    }
}

impl Nested for SplitStats {
    fn nest(&self, out: &Bound<'_, PyDict>) -> PyResult<()> {
        out.set_item("draining", self.draining.map(super::region::name))
    }
}

impl Nested for Stats {
    fn nest(&self, out: &Bound<'_, PyDict>) -> PyResult<()> {
        let py = out.py();
        out.set_item("full", PyPoolStats(self.full).as_dict(py)?)?;
        out.set_item("swa", PyPoolStats(self.swa).as_dict(py)?)?;
        out.set_item("split", PySplitStats(self.split).as_dict(py)?)?;
        out.set_item("misses", misses_dict(py, &self.misses)?)
    }
}

macro_rules! counters {
    ($(#[$doc:meta])* $class:ident($inner:ty) as $name:literal { $($(#[$about:meta])* $field:ident),* $(,)? } $($more:tt)*) => {
        $(#[$doc])*
        #[pyclass(frozen, name = $name, module = "mimo_cache")]
        pub(super) struct $class(pub(super) $inner);

        #[pymethods]
        impl $class {
            $($more)*

            /// All numbers by name, nested ones as dicts.
            fn as_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
                let out = PyDict::new(py);
                self.0.nest(&out)?;
                $(out.set_item(stringify!($field), self.0.$field)?;)*
                Ok(out)
            }

            fn __eq__(&self, py: Python<'_>, other: &Bound<'_, PyAny>) -> PyResult<bool> {
                match other.cast::<$class>() {
                    Ok(other) => self.as_dict(py)?.eq(other.get().as_dict(py)?),
                    Err(_) => Ok(false),
                }
            }

            fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
                Ok(format!("<mimo_cache.{}: {}>", $name, self.as_dict(py)?.repr()?))
            }

            $(
                $(#[$about])*
                #[getter]
                fn $field(&self) -> u64 {
                    self.0.$field
                }
            )*
        }
    };
}

counters! {
    /// What a page pool holds, by state, in pages.
    PyPoolStats(PoolStats) as "PoolStats" {
        /// Pages there are, without the null page; of a chunk that drains those that are not withdrawn yet.
        total,
        /// On the free list.
        free,
        /// Owned by sequences.
        private,
        /// Owned by the tree.
        cached,
        /// Part of `cached` under a lease.
        leased,
        /// Waiting for a step or a move.
        quarantined,
        /// Promised to open sequences and not taken yet (full), or reserved for their windows (swa).
        promised,
        /// SWA only: scratch pages in use.
        scratch_used,
    }
}

counters! {
    /// How a region is split between the pools. All zero without a region.
    PySplitStats(SplitStats) as "SplitStats" {
        /// Chunks of the full pool, one that drains included.
        full_chunks,
        /// Chunks of the SWA pool likewise.
        swa_chunks,
        /// Pages of the chunk that drains that are not withdrawn yet.
        draining_pages,
        /// Chunks that the full pool got so far.
        to_full,
        /// Chunks that the SWA pool got so far.
        to_swa,
        /// Chunks that did not become empty and stayed where they were.
        kept,
        /// Full pages copied out of chunks.
        full_relocated,
        /// SWA pages copied out of chunks.
        swa_relocated,
    }

    /// The pool that gives a chunk up just now.
    #[getter]
    fn draining(&self) -> Option<&'static str> {
        self.0.draining.map(super::region::name)
    }
}

counters! {
    /// Counters since the start, and the state now.
    PyStats(Stats) as "Stats" {
        /// Tree nodes, roots included.
        nodes,
        /// Checkpoints now.
        checkpoints,
        /// Open sequences, parked ones not counted.
        open_sequences,
        /// Parked sequences.
        parked_sequences,
        /// `open` and `resume` that succeeded.
        opens,
        /// Prompt tokens over those.
        prompt_tokens,
        /// Usable tokens over those.
        hit_tokens,
        /// Full-KV match over those.
        full_kv_tokens,
        /// Full pages evicted.
        full_evicted,
        /// Checkpoints evicted.
        checkpoints_evicted,
        /// SWA pages evicted.
        swa_evicted,
        /// Bytes of the tree's own structures, an estimate.
        tree_bytes,
    }

    /// The full pool.
    #[getter]
    fn full(&self) -> PyPoolStats {
        PyPoolStats(self.0.full)
    }

    /// The SWA pool.
    #[getter]
    fn swa(&self) -> PyPoolStats {
        PyPoolStats(self.0.swa)
    }

    /// How the region is split.
    #[getter]
    fn split(&self) -> PySplitStats {
        PySplitStats(self.0.split)
    }

    /// Prompt tokens that missed, by cause, over all opens.
    #[getter]
    fn misses<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        misses_dict(py, &self.0.misses)
    }
}

#[cfg(target_os = "linux")]
impl Nested for crate::tier::TierStats {
    fn nest(&self, _out: &Bound<'_, PyDict>) -> PyResult<()> {
        Ok(())
    }
}

#[cfg(target_os = "linux")]
counters! {
    /// What came of a planner's moves.
    PyTierStats(crate::tier::TierStats) as "TierStats" {
        /// Fetches that were begun.
        fetches,
        /// Of them, those that brought nothing.
        fetches_failed,
        /// Tokens that sequences went on from instead of computing them.
        fetched_tokens,
        /// Full pages that came up.
        fetched_full,
        /// SWA pages that came up.
        fetched_swa,
        /// Fetches that would have cost more than computing.
        declined,
        /// Fetches for which a pool had no room.
        no_room_above,
        /// Boundaries that went down.
        saves,
        /// Of them, those that failed.
        saves_failed,
        /// Full pages that went down.
        saved_full,
        /// SWA pages that went down.
        saved_swa,
        /// Boundaries that did not go down for want of room, or because too many pages were on their way.
        no_room_below,
        /// Boundaries that came from another process.
        receives,
        /// Of them, those that failed.
        receives_failed,
        /// Full pages that came from another process.
        received_full,
        /// SWA pages that came from another process.
        received_swa,
        /// Boundaries that were lent for writing to the tier below.
        lent,
        /// Of them, those that are lent now.
        lending,
        /// Pages on their way down now.
        saving_pages,
        /// Fetches on their way now.
        fetching,
        /// Pages that wait to be written back.
        dirty_pages,
        /// Boundaries that the cache had dropped when their turn to go down came.
        gone,
    }
}
