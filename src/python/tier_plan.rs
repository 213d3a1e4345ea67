//! `TierPlanner`: which pages of a cache go to the host tier and which come back. The planner lives beside the cache, under
//! its lock; copies are the caller's.

use super::args;
use super::cache::PyPrefixCache;
use super::call::{Handle, LONG};
use super::errors::{invalid, to_py};
use super::report::{PyStats, PyTierStats, uint32_array};
use super::request::PyKey;
use super::sequence::PySequence;
use super::tier_moves::{self as moves, PyFetch, PyLoan, PyReceive, PySave};
use super::tokens::Tokens;
use crate::cache::{Cache, Record};
use crate::error::{Error, Result};
use crate::tier::{Cost, Prefix, Rules, TierConfig, Tiers, Write};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

const U32: u64 = u32::MAX as u64;

/// Decides what goes from a cache down to a host tier and what comes back; copies nothing.
///
/// - `full_pages`, `swa_pages`: pages of host memory, ids from 1. 0 for a group that the cache does not have.
/// - `write`: when a prefix goes down, "through" (as soon as it is computed), "back" (when newer ones push it out) or
///   "hit<n>" (when it was matched n times).
/// - `max_saving`: pages on their way down at once.
/// - `layout`: 32 bytes for the order of bytes in host pages (`DeviceLayout.digest`), part of the pages' names.
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

impl PyTierPlanner {
    /// A call about a prefix.
    fn ask<R: Send>(
        &self,
        py: Python<'_>,
        tokens: &Bound<'_, PyAny>,
        key: Option<&Bound<'_, PyAny>>,
        spans: Option<&Bound<'_, PyAny>>,
        tenant: Option<&Bound<'_, PyAny>>,
        f: impl FnOnce(&mut Tiers, &mut Cache, &Prefix<'_>) -> Result<R> + Send,
    ) -> PyResult<R> {
        let tokens = Tokens::new(tokens, "tokens")?;
        let (tokens, _) = tokens.checked(py, "tokens")?;
        let (key, spans) = (args::key(key)?, args::spans(spans)?);
        let tenant = args::int_or(tenant, 0, "tenant", 0, U32)? as u32;
        let prefix = Prefix { tokens, key: &key, spans: &spans, tenant };
        self.call(py, tokens.len(), |tiers, cache| f(tiers, cache, &prefix))
    }
}

/// A save with the prompt that it is of.
type WrittenBack<'py> = (PySave, Bound<'py, PyAny>, PyKey, Vec<(u64, u64, Bound<'py, PyBytes>)>);

#[pymethods]
impl PyTierPlanner {
    #[new]
    #[pyo3(
        signature = (cache, *, full_pages=None, swa_pages=None, write=None, max_saving=None, layout=None),
        text_signature = "(cache, *, full_pages=0, swa_pages=0, write='through', max_saving=4096, layout=None)"
    )]
    fn new(
        cache: &Bound<'_, PyAny>,
        full_pages: Option<&Bound<'_, PyAny>>,
        swa_pages: Option<&Bound<'_, PyAny>>,
        write: Option<&Bound<'_, PyAny>>,
        max_saving: Option<&Bound<'_, PyAny>>,
        layout: Option<&Bound<'_, PyAny>>,
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
            rules: Rules::default(),
        };
        let handle = cache.get().handle.clone();
        let wanted = config.clone();
        let layout = layout.map(|layout| moves::name(layout, "layout")).transpose()?.unwrap_or_default();
        handle.call(py, LONG, |cache| {
            let mut tiers = Tiers::new(cache, wanted)?;
            tiers.set_layout(layout);
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

    /// The version of the weights that the cache was told, part of the names of pages; empty at first.
    #[getter]
    fn weights<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let weights = self.call(py, 0, |_, cache| Ok(cache.weights().to_vec()))?;
        Ok(PyBytes::new(py, &weights))
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
        self.ask(py, tokens, key, spans, None, |tiers, cache, prefix| tiers.usable(cache, prefix))
    }

    /// The number of a fetch on its way whose prefix a request with these tokens would wait for: opened when that
    /// fetch is over it finds the prefix in the cache. `None`: there is none.
    #[pyo3(signature = (tokens, key=None, spans=None))]
    fn awaits(
        &self,
        py: Python<'_>,
        tokens: &Bound<'_, PyAny>,
        key: Option<&Bound<'_, PyAny>>,
        spans: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Option<u64>> {
        self.ask(py, tokens, key, spans, None, |tiers, cache, prefix| tiers.awaits(cache, prefix))
    }

    /// What the host tier has for an open sequence beyond what it started from. The sequence stands at
    /// `TierFetch.end` at once: it may reserve and be filled, and commit after `fetched`. `None`: there is nothing
    /// more, or no room for it. Raises `SequenceStateError` for a sequence that has reserved slots, waits for a fetch,
    /// is parked or has ended.
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

    /// A fetch is over. `ok`: its bytes are there and its rebuilds were run; else nothing of it is written any more,
    /// and its sequence stands where it stood before. True when the sequence goes on from it; false also when it has
    /// ended. Raises `StepOrderError` for a number that is no fetch on its way.
    fn fetched(&self, py: Python<'_>, id: &Bound<'_, PyAny>, ok: &Bound<'_, PyAny>) -> PyResult<bool> {
        let id = args::int(id, "id", 0, u64::MAX)?;
        let ok = args::flag(Some(ok), true, "ok")?;
        self.call(py, 0, |tiers, cache| tiers.fetched(cache, id, ok))
    }

    /// What of a prefix goes down first, if anything does; `saved` tells what comes after it. To be asked when a
    /// prompt is computed and when its sequence ends, after the steps that wrote it are retired; `tenant` owns it
    /// below. `start`: the tokens it was opened with; boundaries before are not offered again. `again`: this request
    /// was told before; else it counts as a use of what the host tier has of its prompt.
    #[pyo3(
        signature = (tokens, key=None, spans=None, tenant=None, start=None, again=None),
        text_signature = "($self, tokens, key=None, spans=None, tenant=0, start=0, again=False)"
    )]
    #[allow(clippy::too_many_arguments)]
    fn save(
        &self,
        py: Python<'_>,
        tokens: &Bound<'_, PyAny>,
        key: Option<&Bound<'_, PyAny>>,
        spans: Option<&Bound<'_, PyAny>>,
        tenant: Option<&Bound<'_, PyAny>>,
        start: Option<&Bound<'_, PyAny>>,
        again: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Option<PySave>> {
        let start = args::int_or(start, 0, "start", 0, u64::MAX)?;
        let again = args::flag(again, false, "again")?;
        let save =
            self.ask(py, tokens, key, spans, tenant, |tiers, cache, prefix| tiers.save(cache, prefix, start, again))?;
        Ok(save.map(PySave))
    }

    /// A save is over; `ok`: its bytes are there, else nothing of it is written any more. What goes down next of the
    /// same prompt, if anything does. Raises `StepOrderError` for a number that is no save on its way.
    fn saved(&self, py: Python<'_>, id: &Bound<'_, PyAny>, ok: &Bound<'_, PyAny>) -> PyResult<Option<PySave>> {
        let id = args::int(id, "id", 0, u64::MAX)?;
        let ok = args::flag(Some(ok), true, "ok")?;
        self.call(py, 0, |tiers, cache| tiers.saved(cache, id, ok)).map(|save| save.map(PySave))
    }

    /// With `write` "back": what goes down because newer ones push it out of the cache, if anything has to, and of
    /// which prompt it is: (save, tokens, key, spans). To be asked after every step.
    fn write_back<'py>(&self, py: Python<'py>) -> PyResult<Option<WrittenBack<'py>>> {
        let Some((save, story)) = self.call(py, LONG, |tiers, cache| tiers.write_back(cache))? else { return Ok(None) };
        let spans = story.spans.iter().map(|s| (s.start, s.len, PyBytes::new(py, &s.hash))).collect();
        let key = PyKey { key: story.key };
        Ok(Some((PySave(save), uint32_array(py, &story.tokens)?, key, spans)))
    }

    /// A request that `save` is not told of was served: what the host tier has of its prompt counts as used.
    #[pyo3(signature = (tokens, key=None, spans=None))]
    fn used(
        &self,
        py: Python<'_>,
        tokens: &Bound<'_, PyAny>,
        key: Option<&Bound<'_, PyAny>>,
        spans: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        self.ask(py, tokens, key, spans, None, |tiers, _, prefix| tiers.used(prefix))
    }

    /// Numbers of the fetches, saves and receives on their way, ascending.
    fn moving(&self, py: Python<'_>) -> PyResult<(Vec<u64>, Vec<u64>, Vec<u64>)> {
        self.call(py, 0, |tiers, _| Ok(tiers.moving()))
    }

    /// Names of the whole pages of a prompt in a tier that processes share, 32 bytes each, in the namespace of
    /// now.
    #[pyo3(signature = (tokens, key=None, spans=None))]
    fn names<'py>(
        &self,
        py: Python<'py>,
        tokens: &Bound<'_, PyAny>,
        key: Option<&Bound<'_, PyAny>>,
        spans: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let names = self.ask(py, tokens, key, spans, None, |tiers, cache, prefix| {
            let pages = prefix.tokens.len() as u64 / u64::from(cache.config().page_size);
            tiers.names(cache, prefix, 0..pages)
        })?;
        Ok(names.iter().map(|name| PyBytes::new(py, name)).collect())
    }

    /// The largest boundary, in tokens and above `usable`, that cache, host tier and a tier below make resumable
    /// together; `None` where there is none. `masks`: what the tier below has of the logical pages from `start` on,
    /// bit 0 the full page, bit 32 the SWA page.
    #[pyo3(signature = (tokens, start, masks, key=None, spans=None))]
    fn reachable(
        &self,
        py: Python<'_>,
        tokens: &Bound<'_, PyAny>,
        start: &Bound<'_, PyAny>,
        masks: Vec<u64>,
        key: Option<&Bound<'_, PyAny>>,
        spans: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Option<u64>> {
        let start = args::int(start, "start", 0, U32)?;
        let has = |bit: u32| masks.iter().map(|mask| mask >> bit & 1 == 1).collect::<Vec<bool>>();
        let (full, swa) = (has(0), has(32));
        self.ask(py, tokens, key, spans, None, |tiers, cache, prefix| {
            tiers.reachable(cache, prefix, start, &full, &swa)
        })
    }

    /// Begins to bring the host tier up to `boundary` (tokens) with pages of another process. `name`: that of the
    /// page which ends there, from when its bytes were asked for. `None`: the namespace is another one by now, the
    /// host tier has it, it is on its way, or there is no room.
    #[pyo3(
        signature = (tokens, boundary, name, key=None, spans=None, tenant=None),
        text_signature = "($self, tokens, boundary, name, key=None, spans=None, tenant=0)"
    )]
    #[allow(clippy::too_many_arguments)]
    fn receive(
        &self,
        py: Python<'_>,
        tokens: &Bound<'_, PyAny>,
        boundary: &Bound<'_, PyAny>,
        name: &Bound<'_, PyAny>,
        key: Option<&Bound<'_, PyAny>>,
        spans: Option<&Bound<'_, PyAny>>,
        tenant: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Option<PyReceive>> {
        let at = args::int(boundary, "boundary", 0, u64::MAX)?;
        let name = moves::name(name, "name")?;
        let receive =
            self.ask(py, tokens, key, spans, tenant, |tiers, cache, prefix| tiers.receive(cache, prefix, at, &name))?;
        Ok(receive.map(PyReceive))
    }

    /// A receive is over. `records`: of each of `TierReceive.swa`, and all bytes are there; `None`: they did not
    /// come, and nothing of it is written any more. Raises `StepOrderError` for a number that is no receive on its
    /// way, and `InvalidArgument` for records that do not fit; it goes on then.
    fn received(&self, py: Python<'_>, id: &Bound<'_, PyAny>, records: Option<Vec<Vec<u32>>>) -> PyResult<()> {
        let id = args::int(id, "id", 0, u64::MAX)?;
        let records: Option<Vec<Record>> = records.map(|all| all.into_iter().map(Record::from_vec).collect());
        self.call(py, 0, |tiers, cache| tiers.received(cache, id, records.as_deref()))
    }

    /// Leases what the host tier has of a boundary (tokens), to be read until `returned`. `None`: it is not there,
    /// or open sequences were promised the room.
    #[pyo3(signature = (tokens, boundary, key=None, spans=None))]
    fn lend_down(
        &self,
        py: Python<'_>,
        tokens: &Bound<'_, PyAny>,
        boundary: &Bound<'_, PyAny>,
        key: Option<&Bound<'_, PyAny>>,
        spans: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Option<PyLoan>> {
        let at = args::int(boundary, "boundary", 0, u64::MAX)?;
        let loan = self.ask(py, tokens, key, spans, None, |tiers, cache, prefix| tiers.lend_down(cache, prefix, at))?;
        Ok(loan.map(PyLoan))
    }

    /// Nothing reads the pages of a loan any more. Raises `StepOrderError` for a number that is no loan.
    fn returned(&self, py: Python<'_>, id: &Bound<'_, PyAny>) -> PyResult<()> {
        let id = args::int(id, "id", 0, u64::MAX)?;
        self.call(py, 0, |tiers, _| tiers.returned(id))
    }

    /// The deepest 64 boundaries of a prompt (tokens) that the host tier keeps, of them those that were matched
    /// `hits` times.
    #[pyo3(signature = (tokens, hits, key=None, spans=None))]
    fn kept(
        &self,
        py: Python<'_>,
        tokens: &Bound<'_, PyAny>,
        hits: &Bound<'_, PyAny>,
        key: Option<&Bound<'_, PyAny>>,
        spans: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Vec<u64>> {
        let hits = args::int(hits, "hits", 0, u64::from(u16::MAX))? as u16;
        self.ask(py, tokens, key, spans, None, |tiers, _, prefix| tiers.kept(prefix, hits, 64))
    }

    /// What computing a token and bringing up pages cost, in nanoseconds: a fetch that costs more than the tokens it
    /// saves is not begun. All 0, as at the start: whatever can be fetched is.
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

    /// Raises `IntegrityError` when the structures of the host tier contradict each other. For tests: it walks
    /// everything.
    fn check_integrity(&self, py: Python<'_>) -> PyResult<()> {
        self.call(py, LONG, |tiers, _| tiers.check_integrity())
    }
}
