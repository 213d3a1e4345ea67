//! `TierPlanner`: which pages of a cache go to the host tier and which come back. The planner lives beside the cache, under
//! its lock; copies are the caller's.

use super::args;
use super::cache::PyPrefixCache;
use super::call::{Handle, LONG};
use super::errors::{invalid, to_py};
use super::report::{PyStats, PyTierStats, uint32_array};
use super::sequence::{PySequence, seq_number};
use super::tokens::Tokens;
use crate::cache::Cache;
use crate::error::{Error, Result};
use crate::tier::{Cost, Fetch, Prefix, Save, TierConfig, Tiers, Write};
use pyo3::prelude::*;
use pyo3::types::PyList;

const U32: u64 = u32::MAX as u64;

/// Decides what goes from a cache down to a host tier and what comes back; copies nothing.
///
/// - `full_pages`, `swa_pages`: pages of host memory, ids from 1. 0 for a group that the cache does not have.
/// - `write`: when a prefix goes down, "through" (as soon as it is computed) or "hit<n>" (when it was matched n times).
/// - `max_saving`: pages on their way down at once.
///
/// A cache has one planner at most. `clear` and `set_weights` of the cache hold for the host tier as well. What was
/// fetched is told by `fetched`, what was saved by `saved`, whatever became of it: until then both ends are leased.
#[pyclass(frozen, name = "TierPlanner", module = "mimo_cache._core")]
pub(super) struct PyTierPlanner {
    handle: Handle,
    config: TierConfig,
}

impl PyTierPlanner {
    fn call<R: Send>(
        &self,
        py: Python<'_>,
        work: usize,
        f: impl FnOnce(&mut Tiers, &mut Cache) -> Result<R> + Send,
    ) -> PyResult<R> {
        let (handle, now) = (&self.handle, self.handle.now_ms());
        handle.call(py, work, |cache| {
            handle.with_tiers(|tiers| {
                let tiers = tiers.expect("a planner's cache has tiers");
                cache.set_now(now);
                tiers.set_now(now);
                f(tiers, cache)
            })
        })
    }
}

#[pymethods]
impl PyTierPlanner {
    #[new]
    #[pyo3(
        signature = (cache, *, full_pages=None, swa_pages=None, write=None, max_saving=None),
        text_signature = "(cache, *, full_pages=0, swa_pages=0, write='through', max_saving=4096)"
    )]
    fn new(
        cache: &Bound<'_, PyAny>,
        full_pages: Option<&Bound<'_, PyAny>>,
        swa_pages: Option<&Bound<'_, PyAny>>,
        write: Option<&Bound<'_, PyAny>>,
        max_saving: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let py = cache.py();
        let Ok(cache) = cache.cast::<PyPrefixCache>() else {
            return Err(invalid(py, "cache", args::type_name(cache), "a mimo_cache.PrefixCache"));
        };
        let write = Write::parse(&args::text(write, "through", "write")?).map_err(|error| to_py(py, error))?;
        let config = TierConfig {
            full_pages: args::int_or(full_pages, 0, "full_pages", 0, U32)? as u32,
            swa_pages: args::int_or(swa_pages, 0, "swa_pages", 0, U32)? as u32,
            write,
            max_saving: args::int_or(max_saving, 4096, "max_saving", 1, U32)? as u32,
        };
        let handle = cache.get().handle.clone();
        let wanted = config.clone();
        handle.call(py, LONG, |cache| {
            let tiers = Tiers::new(cache, wanted)?;
            match handle.put_tiers(tiers) {
                true => Ok(()),
                false => Err(Error::invalid("cache", "one with a tier planner", "one without")),
            }
        })?;
        Ok(PyTierPlanner { handle, config })
    }

    /// Full pages of host memory.
    #[getter]
    fn full_pages(&self) -> u32 {
        self.config.full_pages
    }

    /// SWA pages of host memory.
    #[getter]
    fn swa_pages(&self) -> u32 {
        self.config.swa_pages
    }

    /// The usable prefix of cache and host tier together, in tokens. Neither lease nor recency.
    #[pyo3(signature = (tokens, key=None, spans=None))]
    fn usable(
        &self,
        py: Python<'_>,
        tokens: &Bound<'_, PyAny>,
        key: Option<&Bound<'_, PyAny>>,
        spans: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<u64> {
        let tokens = Tokens::new(tokens, "tokens")?;
        let (tokens, _) = tokens.checked(py, "tokens")?;
        let (key, spans) = (args::key(key)?, args::spans(spans)?);
        self.call(py, tokens.len(), |tiers, cache| {
            tiers.usable(cache, &Prefix { tokens, key: &key, spans: &spans, tenant: 0 })
        })
    }

    /// The number of a fetch on its way whose prefix a request with these tokens would wait for: opened when that fetch
    /// is over it finds the prefix in the cache. `None`: there is none.
    #[pyo3(signature = (tokens, key=None, spans=None))]
    fn awaits(
        &self,
        py: Python<'_>,
        tokens: &Bound<'_, PyAny>,
        key: Option<&Bound<'_, PyAny>>,
        spans: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Option<u64>> {
        let tokens = Tokens::new(tokens, "tokens")?;
        let (tokens, _) = tokens.checked(py, "tokens")?;
        let (key, spans) = (args::key(key)?, args::spans(spans)?);
        self.call(py, tokens.len(), |tiers, cache| {
            tiers.awaits(cache, &Prefix { tokens, key: &key, spans: &spans, tenant: 0 })
        })
    }

    /// What the host tier has for an open sequence beyond what it started from. The sequence stands at `Fetch.end` at
    /// once: it may reserve and be filled, and commit after `fetched`. `None`: there is nothing more, or no room for it.
    ///
    /// Raises `SequenceStateError` for a sequence that has reserved slots, waits for a fetch, is parked or has ended.
    fn fetch(&self, py: Python<'_>, seq: &Bound<'_, PyAny>) -> PyResult<Option<PyFetch>> {
        let Ok(seq) = seq.cast::<PySequence>() else {
            return Err(invalid(py, "seq", args::type_name(seq), "a mimo_cache.Sequence"));
        };
        let seq = seq.get();
        if !self.handle.same(&seq.handle) {
            return Err(invalid(py, "seq", "of another cache", "a sequence of the planner's cache"));
        }
        let id = seq.id;
        self.call(py, LONG, |tiers, cache| tiers.fetch(cache, id)).map(|fetch| fetch.map(PyFetch))
    }

    /// A fetch is over. `ok`: its bytes are there and its rebuilds were run; else nothing of it is written any more, and
    /// its sequence stands where it stood before. True when the sequence goes on from it; false also when it has ended.
    ///
    /// Raises `StepOrderError` for a number that is no fetch on its way.
    fn fetched(&self, py: Python<'_>, id: &Bound<'_, PyAny>, ok: &Bound<'_, PyAny>) -> PyResult<bool> {
        let id = args::int(id, "id", 0, u64::MAX)?;
        let ok = args::flag(Some(ok), true, "ok")?;
        self.call(py, 0, |tiers, cache| tiers.fetched(cache, id, ok))
    }

    /// What of a prefix goes down now, shallow first. To be asked when a prompt is computed and when its sequence ends,
    /// after the steps that wrote it are retired; `tenant` owns it below.
    #[pyo3(
        signature = (tokens, key=None, spans=None, tenant=None),
        text_signature = "($self, tokens, key=None, spans=None, tenant=0)"
    )]
    fn save<'py>(
        &self,
        py: Python<'py>,
        tokens: &Bound<'_, PyAny>,
        key: Option<&Bound<'_, PyAny>>,
        spans: Option<&Bound<'_, PyAny>>,
        tenant: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Bound<'py, PyList>> {
        let tokens = Tokens::new(tokens, "tokens")?;
        let (tokens, _) = tokens.checked(py, "tokens")?;
        let (key, spans) = (args::key(key)?, args::spans(spans)?);
        let tenant = args::int_or(tenant, 0, "tenant", 0, U32)? as u32;
        let saves = self.call(py, tokens.len(), |tiers, cache| {
            tiers.save(cache, &Prefix { tokens, key: &key, spans: &spans, tenant })
        })?;
        PyList::new(py, saves.into_iter().map(|s| Bound::new(py, PySave(s))).collect::<PyResult<Vec<_>>>()?)
    }

    /// A save is over; `ok`: its bytes are there, else nothing of it is written any more.
    ///
    /// Raises `StepOrderError` for a number that is no save on its way.
    fn saved(&self, py: Python<'_>, id: &Bound<'_, PyAny>, ok: &Bound<'_, PyAny>) -> PyResult<()> {
        let id = args::int(id, "id", 0, u64::MAX)?;
        let ok = args::flag(Some(ok), true, "ok")?;
        self.call(py, 0, |tiers, cache| tiers.saved(cache, id, ok))
    }

    /// What computing a token and bringing up pages cost, in nanoseconds: a fetch that costs more than the tokens it saves
    /// is not begun. All 0, as at the start: whatever can be fetched is.
    #[pyo3(
        signature = (token=0.0, full_page=0.0, swa_page=0.0, load=0.0),
        text_signature = "($self, token=0.0, full_page=0.0, swa_page=0.0, load=0.0)"
    )]
    fn set_cost(&self, py: Python<'_>, token: f64, full_page: f64, swa_page: f64, load: f64) -> PyResult<()> {
        for (what, ns) in [("token", token), ("full_page", full_page), ("swa_page", swa_page), ("load", load)] {
            if !(0.0..=1e18).contains(&ns) {
                return Err(invalid(py, what, ns, "nanoseconds from 0 to 1e18"));
            }
        }
        self.call(py, 0, |tiers, _| {
            tiers.set_cost(Cost { token, full_page, swa_page, load });
            Ok(())
        })
    }

    /// Counters of the moves.
    fn stats(&self, py: Python<'_>) -> PyResult<PyTierStats> {
        self.call(py, 0, |tiers, _| Ok(tiers.stats())).map(PyTierStats)
    }

    /// The host tier's own counters.
    fn host_stats(&self, py: Python<'_>) -> PyResult<PyStats> {
        self.call(py, 0, |tiers, _| Ok(tiers.host().stats())).map(PyStats)
    }

    /// Raises `IntegrityError` when the structures of the host tier contradict each other. For tests: it walks everything.
    fn check_integrity(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, LONG, |tiers, _| tiers.check_integrity())
    }
}

/// Pages as a new int32 array of shape [n, 2].
fn pairs<'py>(py: Python<'py>, pairs: &[(u32, u32)]) -> PyResult<Bound<'py, PyAny>> {
    let flat: Vec<u32> = pairs.iter().flat_map(|&(device, host)| [device, host]).collect();
    uint32_array(py, &flat)?.call_method1("reshape", (pairs.len(), 2))
}

/// Pages that come up for a sequence.
#[pyclass(frozen, name = "TierFetch", module = "mimo_cache._core")]
pub(super) struct PyFetch(Fetch);

#[pymethods]
impl PyFetch {
    /// Its number.
    #[getter]
    fn id(&self) -> u64 {
        self.0.id
    }

    /// Full pages to copy, uint32 [n, 2]: (device page, host page).
    #[getter]
    fn full<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        pairs(py, &self.0.pairs.full)
    }

    /// SWA pages to copy, uint32 [n, 2]: (device page, host page).
    #[getter]
    fn swa<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        pairs(py, &self.0.pairs.swa)
    }

    /// (sequence id, SWA page, first position, end position): MTP rows to rebuild when the bytes are there, as
    /// `Plan.rebuilds`.
    #[getter]
    fn rebuilds<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let rebuilds = self.0.rebuilds.iter().map(|r| (seq_number(r.seq), r.page, r.start, r.end));
        PyList::new(py, rebuilds.collect::<Vec<_>>())
    }

    /// Tokens that the sequence had without it.
    #[getter]
    fn start(&self) -> u64 {
        self.0.from
    }

    /// Tokens that it has with it.
    #[getter]
    fn end(&self) -> u64 {
        self.0.to
    }

    fn __repr__(&self) -> String {
        let f = &self.0;
        format!("<TierFetch {}: {} pages for tokens {} to {}>", f.id, f.pairs.len(), f.from, f.to)
    }
}

/// Pages that go down.
#[pyclass(frozen, name = "TierSave", module = "mimo_cache._core")]
pub(super) struct PySave(Save);

#[pymethods]
impl PySave {
    /// Its number.
    #[getter]
    fn id(&self) -> u64 {
        self.0.id
    }

    /// Full pages to copy, uint32 [n, 2]: (device page, host page).
    #[getter]
    fn full<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        pairs(py, &self.0.pairs.full)
    }

    /// SWA pages to copy, uint32 [n, 2]: (device page, host page).
    #[getter]
    fn swa<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        pairs(py, &self.0.pairs.swa)
    }

    /// The boundary that it makes resumable in the host tier, in tokens.
    #[getter]
    fn boundary(&self) -> u64 {
        self.0.at
    }

    fn __repr__(&self) -> String {
        format!("<TierSave {}: {} pages for boundary {}>", self.0.id, self.0.pairs.len(), self.0.at)
    }
}
