//! `PrefixCache`: making a cache, lookups, requests, and everything that concerns the cache as a whole. The calls of a
//! model step are in `step`.

use super::args;
use super::call::{Handle, LONG};
use super::errors::invalid;
use super::events::{PyEvent, PySnapshot};
use super::options::{Options, build};
use super::report::{PyExplanation, PyMatch, PyStats, uint32_array};
use super::request::PyRequest;
use super::sequence::PyPlan;
use super::tokens::{Tokens, any_high, negative};
use super::{geometry::PyGeometry, region, step};
use crate::cache::{CacheConfig, RequestOptions};
use crate::key::Key;
use crate::sync::Guarded;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyList};

const U32: u64 = u32::MAX as u64;
/// Longest pin, in seconds: some 31 years.
const MAX_TTL: f64 = 1e9;

/// The prefix cache of one engine instance: it names and counts pages, the caller owns their memory.
///
/// - `full_pages`, `swa_pages`: usable page ids of the two pools (id 0 is the null page and comes on top); 0 for a
///   group the model does not have. `scratch_pages`: part of `swa_pages` for chunks longer than a window.
/// - `retention`: parts joined by "+": prompt_end, seq_end, branch, sup<n>, stride<tokens>, dense<tokens>:<until>.
/// - `policy`: order of eviction, "hit_density", "lru", "arc", "s3fifo" or "turn_hazard" (docs/policies.md).
/// - `events`: keys the event ring holds; 0 turns events off. `ghosts`: dropped pages that are remembered to explain
///   misses, default 2 * full_pages. `max_pinned_pages`: full pages under a pin at once, default full_pages / 4.
/// - `seed`: of the hash tables. `weights`: version of the model's weights, part of every namespace.
/// - `region`: both pools in one memory whose chunks change between them; then `full_pages` and `swa_pages` are left
///   out, and read as the ids of all chunks.
#[pyclass(frozen, weakref, name = "PrefixCache", module = "mimo_cache")]
pub(super) struct PyPrefixCache {
    pub(super) handle: Handle,
    pub(super) config: CacheConfig,
    pub(super) geometry: Option<Py<PyGeometry>>,
}

/// The arguments after the shape, for both constructors.
macro_rules! options {
    ($($name:ident),*) => { Options { $($name),* } };
}

#[pymethods]
impl PyPrefixCache {
    #[new]
    #[pyo3(
        signature = (geometry, *, full_pages=None, swa_pages=None, scratch_pages=None, retention=None, policy=None,
                     events=None, ghosts=None, seed=None, max_pinned_pages=None, weights=None,
                     region=None),
        text_signature = "(geometry, *, full_pages=0, swa_pages=0, scratch_pages=0, \
                          retention='prompt_end+branch+sup2+stride8192+dense2048:4096', \
                          policy='hit_density', events=65536, ghosts=None, seed=0, max_pinned_pages=None, weights=b'', \
                          region=None)"
    )]
    #[allow(clippy::too_many_arguments)]
    fn new(
        geometry: &Bound<'_, PyAny>,
        full_pages: Option<&Bound<'_, PyAny>>,
        swa_pages: Option<&Bound<'_, PyAny>>,
        scratch_pages: Option<&Bound<'_, PyAny>>,
        retention: Option<&Bound<'_, PyAny>>,
        policy: Option<&Bound<'_, PyAny>>,
        events: Option<&Bound<'_, PyAny>>,
        ghosts: Option<&Bound<'_, PyAny>>,
        seed: Option<&Bound<'_, PyAny>>,
        max_pinned_pages: Option<&Bound<'_, PyAny>>,
        weights: Option<&Bound<'_, PyAny>>,
        region: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let py = geometry.py();
        let Ok(geometry) = geometry.cast::<PyGeometry>() else {
            let allowed = "a mimo_cache.Geometry (without a model: PrefixCache.plain)";
            return Err(invalid(py, "geometry", args::type_name(geometry), allowed));
        };
        let shape = &geometry.get().0;
        for (what, pages, present) in
            [("full_pages", full_pages, shape.full().is_some()), ("swa_pages", swa_pages, shape.swa().is_some())]
        {
            let pages = args::int_or(pages, 0, what, 0, U32)?;
            if region.is_some() && !present {
                return Err(invalid(py, "region", "given", "None, as this geometry has one group"));
            }
            if (pages > 0) != present && region.is_none() {
                let allowed =
                    if present { "at least 1 for this geometry" } else { "0, as this geometry has no such group" };
                return Err(invalid(py, what, pages, allowed));
            }
        }
        let n_mtp = if shape.swa().is_some() { shape.mtp_heads() } else { 0 };
        let options = options!(
            full_pages,
            swa_pages,
            scratch_pages,
            retention,
            policy,
            events,
            ghosts,
            seed,
            max_pinned_pages,
            weights,
            region
        );
        let sizes = (shape.page_size(), shape.window(), n_mtp);
        build(py, sizes, shape.fingerprint(), options, Some(geometry.clone().unbind()))
    }

    /// A cache without a model. `window` is W, the number of previous tokens an SWA query needs.
    #[staticmethod]
    #[pyo3(
        signature = (*, page_size, window=None, n_mtp=None, full_pages=None, swa_pages=None, scratch_pages=None,
                     retention=None, policy=None, events=None, ghosts=None, seed=None, max_pinned_pages=None, weights=None,
                     region=None),
        text_signature = "(*, page_size, window=0, n_mtp=0, full_pages=0, swa_pages=0, scratch_pages=0, \
                          retention='prompt_end+branch+sup2+stride8192+dense2048:4096', \
                          policy='hit_density', events=65536, ghosts=None, seed=0, max_pinned_pages=None, weights=b'', \
                          region=None)"
    )]
    #[allow(clippy::too_many_arguments)]
    fn plain(
        py: Python<'_>,
        page_size: &Bound<'_, PyAny>,
        window: Option<&Bound<'_, PyAny>>,
        n_mtp: Option<&Bound<'_, PyAny>>,
        full_pages: Option<&Bound<'_, PyAny>>,
        swa_pages: Option<&Bound<'_, PyAny>>,
        scratch_pages: Option<&Bound<'_, PyAny>>,
        retention: Option<&Bound<'_, PyAny>>,
        policy: Option<&Bound<'_, PyAny>>,
        events: Option<&Bound<'_, PyAny>>,
        ghosts: Option<&Bound<'_, PyAny>>,
        seed: Option<&Bound<'_, PyAny>>,
        max_pinned_pages: Option<&Bound<'_, PyAny>>,
        weights: Option<&Bound<'_, PyAny>>,
        region: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let sizes = (
            args::int(page_size, "page_size", 1, U32)? as u32,
            args::int_or(window, 0, "window", 0, U32)? as u32,
            args::int_or(n_mtp, 0, "n_mtp", 0, U32)? as u32,
        );
        let options = options!(
            full_pages,
            swa_pages,
            scratch_pages,
            retention,
            policy,
            events,
            ghosts,
            seed,
            max_pinned_pages,
            weights,
            region
        );
        build(py, sizes, [0; 32], options, None)
    }

    /// The geometry it was made from.
    #[getter]
    fn geometry(&self, py: Python<'_>) -> Option<Py<PyGeometry>> {
        self.geometry.as_ref().map(|geometry| geometry.clone_ref(py))
    }

    /// Tokens per page.
    #[getter]
    fn page_size(&self) -> u32 {
        self.config.page_size
    }

    /// W: previous tokens an SWA query needs.
    #[getter]
    fn window(&self) -> u32 {
        self.config.window
    }

    /// MTP heads.
    #[getter]
    fn n_mtp(&self) -> u32 {
        self.config.n_mtp
    }

    /// The region at the start; `None` for pools of fixed size.
    #[getter]
    fn region(&self) -> Option<region::PyRegion> {
        self.config.region.clone().map(region::PyRegion)
    }

    /// Usable ids of the full pool.
    #[getter]
    fn full_pages(&self) -> u32 {
        self.config.full_pages
    }

    /// Usable ids of the SWA pool, scratch included.
    #[getter]
    fn swa_pages(&self) -> u32 {
        self.config.swa_pages
    }

    /// Part of `swa_pages` that serves chunk pages beyond the window.
    #[getter]
    fn scratch_pages(&self) -> u32 {
        self.config.scratch_pages
    }

    /// Columns of a compact SWA table for sequences with up to `slots` reserved positions (a chunk, or drafts), the
    /// same at every step: ceil((W + slots) / page_size) + 2, or 0 without an SWA group.
    fn swa_width(&self, slots: &Bound<'_, PyAny>) -> PyResult<u64> {
        let slots = args::int(slots, "slots", 0, U32)?;
        let pages = (u64::from(self.config.window) + slots).div_ceil(u64::from(self.config.page_size));
        Ok(if self.config.swa_pages == 0 { 0 } else { pages + 2 })
    }

    /// A request for a prompt of at least one token, which is copied. `store=False` reads the cache and publishes
    /// nothing. `tenant` owns what the request publishes.
    #[pyo3(
        signature = (tokens, key=None, spans=None, tenant=None, store=None),
        text_signature = "($self, tokens, key=None, spans=None, tenant=0, store=True)"
    )]
    fn request(
        &self,
        py: Python<'_>,
        tokens: &Bound<'_, PyAny>,
        key: Option<&Bound<'_, PyAny>>,
        spans: Option<&Bound<'_, PyAny>>,
        tenant: Option<&Bound<'_, PyAny>>,
        store: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<PyRequest> {
        self.handle.check_process(py)?;
        let (tokens, high) = Tokens::new(tokens, "tokens")?.into_vec(py, "tokens")?;
        if high {
            self.handle.note_high_tokens();
        }
        let options = RequestOptions {
            again: false,
            key: args::key(key)?,
            spans: args::spans(spans)?,
            tenant: args::int_or(tenant, 0, "tenant", 0, U32)? as u32,
            store: args::flag(store, true, "store")?,
        };
        let len = tokens.len();
        let request = self.handle.call(py, 0, |cache| cache.request(tokens, options))?;
        Ok(PyRequest { handle: self.handle.clone(), request: Guarded::new(request), len })
    }

    /// A lookup without a request: no lease, no recency, no copy of contiguous int32 or uint32 tokens.
    #[pyo3(signature = (tokens, key=None, spans=None))]
    fn peek(
        &self,
        py: Python<'_>,
        tokens: &Bound<'_, PyAny>,
        key: Option<&Bound<'_, PyAny>>,
        spans: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<PyMatch> {
        let tokens = Tokens::new(tokens, "tokens")?;
        let (key, spans) = (args::key(key)?, args::spans(spans)?);
        let (ids, unchecked) = (tokens.raw(), tokens.unchecked());
        let handle = &self.handle;
        let (found, checked) = handle.call(py, ids.len(), |cache| {
            let found = cache.match_tokens(ids, &key, &spans)?;
            // What matched equals tokens of the tree, which holds none that would be a negative int32.
            let same = if handle.high_tokens() { 0 } else { (found.full_kv_match as usize).min(ids.len()) };
            Ok((found, (unchecked && any_high(&ids[same..])).then_some(same)))
        })?;
        match checked {
            None => Ok(PyMatch(found)),
            Some(from) => Err(negative(py, "tokens", ids, from)),
        }
    }

    /// Why a lookup finds what it finds.
    #[pyo3(signature = (tokens, key=None, spans=None))]
    fn explain(
        &self,
        py: Python<'_>,
        tokens: &Bound<'_, PyAny>,
        key: Option<&Bound<'_, PyAny>>,
        spans: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<PyExplanation> {
        let tokens = Tokens::new(tokens, "tokens")?;
        let (ids, _) = tokens.checked(py, "tokens")?;
        let (key, spans) = (args::key(key)?, args::spans(spans)?);
        self.handle.call(py, ids.len(), |cache| cache.explain(ids, &key, &spans)).map(PyExplanation)
    }

    /// Evicts what is cached of `tokens` late, for `ttl` seconds; returns the tokens pinned (within
    /// `max_pinned_pages`).
    #[pyo3(signature = (tokens, ttl, key=None, spans=None))]
    fn pin(
        &self,
        py: Python<'_>,
        tokens: &Bound<'_, PyAny>,
        ttl: &Bound<'_, PyAny>,
        key: Option<&Bound<'_, PyAny>>,
        spans: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<u64> {
        let ttl_ms = match ttl.extract::<f64>() {
            Ok(seconds) if (0.0..=MAX_TTL).contains(&seconds) && !ttl.is_instance_of::<PyBool>() => {
                (seconds * 1e3) as u64
            }
            _ => return Err(invalid(py, "ttl", args::shown(ttl), format!("seconds from 0 to {MAX_TTL}"))),
        };
        let tokens = Tokens::new(tokens, "tokens")?;
        let (ids, _) = tokens.checked(py, "tokens")?;
        let (key, spans) = (args::key(key)?, args::spans(spans)?);
        let now = self.handle.now_ms();
        self.handle.call(py, ids.len(), |cache| {
            cache.set_now(now);
            cache.pin(ids, &key, &spans, ttl_ms)
        })
    }

    /// Starts step `step` (consecutive, the first is free) and writes its page tables into the caller's memory.
    ///
    /// With B sequences: `full_out` [B, P] takes the full page ids from logical page 0, `swa_out` [B, S] the SWA page
    /// ids from logical page `swa_base[i]` (or from page 0, with 0 in the holes, when `swa_base` is `None`), `lens` [B]
    /// committed + reserved. The rest of a row is set to 0. `full_out` or `swa_out` may be `None` when the cache has no
    /// such group. Run the plan before the kernels of the step.
    #[allow(clippy::too_many_arguments)]
    fn fill(
        &self,
        py: Python<'_>,
        step: &Bound<'_, PyAny>,
        seqs: &Bound<'_, PyAny>,
        full_out: &Bound<'_, PyAny>,
        swa_out: &Bound<'_, PyAny>,
        swa_base: &Bound<'_, PyAny>,
        lens: &Bound<'_, PyAny>,
    ) -> PyResult<PyPlan> {
        step::fill(self, py, step, seqs, [full_out, swa_out, swa_base, lens])
    }

    /// `Sequence.commit` for many, all or nothing.
    fn commit_many(
        &self,
        py: Python<'_>,
        seqs: &Bound<'_, PyAny>,
        computed: &Bound<'_, PyAny>,
        tokens: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        step::commit_many(self, py, seqs, computed, tokens)
    }

    /// Step `step` has run; pages that waited for it become free. Steps retire in order.
    fn retire(&self, py: Python<'_>, step: &Bound<'_, PyAny>) -> PyResult<()> {
        let step = args::int(step, "step", 0, u64::MAX)?;
        self.handle.call(py, 0, |cache| cache.retire(step))
    }

    /// Pending copies to run outside a step, with a move id; their pages are held until `move_done`.
    fn take_copies(&self, py: Python<'_>) -> PyResult<Option<(u64, PyPlan)>> {
        let taken = self.handle.call(py, 0, |cache| Ok(cache.take_copies()))?;
        Ok(taken.map(|(id, plan)| (id, PyPlan(plan))))
    }

    /// The copies of a move have run.
    #[pyo3(signature = (move_id), text_signature = "($self, move_id)")]
    fn move_done(&self, py: Python<'_>, move_id: &Bound<'_, PyAny>) -> PyResult<()> {
        let id = args::int(move_id, "move_id", 0, u64::MAX)?;
        self.handle.call(py, 0, |cache| cache.move_done(id))
    }

    /// Begins to give a chunk of the region to the pool `to`: this one, or the one with the fewest pages in use.
    /// `False` when one changes already, or when the other pool could not keep its promises, would get smaller than its
    /// least, or was fuller of late.
    #[pyo3(signature = (to, chunk=None))]
    fn reassign(&self, py: Python<'_>, to: &Bound<'_, PyAny>, chunk: Option<&Bound<'_, PyAny>>) -> PyResult<bool> {
        let to = region::group(to, "to")?;
        let chunk = chunk.map(|chunk| args::int(chunk, "chunk", 0, U32).map(|c| c as u32)).transpose()?;
        self.handle.call(py, LONG, |cache| cache.reassign(to, chunk))
    }

    /// The pool of every chunk, and whether it is giving the chunk up; empty without a region.
    fn chunk_owners<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let chunks = self.config.region.as_ref().map_or(0, |r| r.chunks);
        let owners = self
            .handle
            .call(py, LONG, |cache| Ok((0..chunks).filter_map(|c| cache.chunk_owner(c)).collect::<Vec<_>>()))?;
        PyList::new(py, owners.into_iter().map(|(group, drains)| (region::name(group), drains)))
    }

    /// Empties a namespace for later lookups, or every namespace for `None`. Open sequences keep what they hold.
    #[pyo3(signature = (key=None))]
    fn clear(&self, py: Python<'_>, key: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let key: Option<Key> = key.map(|key| args::key(Some(key))).transpose()?;
        let handle = &self.handle;
        handle.call(py, 0, |cache| {
            cache.clear(key.as_ref());
            #[cfg(target_os = "linux")]
            handle.with_tiers(|tiers| tiers.map(|tiers| tiers.clear(key.as_ref())));
            Ok(())
        })
    }

    /// Later requests live in namespaces of this version of the weights; at most 4,096 bytes.
    fn set_weights(&self, py: Python<'_>, version: &Bound<'_, PyAny>) -> PyResult<()> {
        let version = args::name(version, "version")?;
        let handle = &self.handle;
        handle.call(py, 0, |cache| {
            cache.set_weights(&version)?;
            #[cfg(target_os = "linux")]
            handle.with_tiers(|tiers| tiers.map_or(Ok(()), |tiers| tiers.set_weights(&version)))?;
            Ok(())
        })
    }

    /// The most cached pages that a tenant's publications may own.
    fn set_tenant_share(
        &self,
        py: Python<'_>,
        tenant: &Bound<'_, PyAny>,
        full_pages: &Bound<'_, PyAny>,
        swa_pages: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let tenant = args::int(tenant, "tenant", 0, U32)? as u32;
        let full = args::int(full_pages, "full_pages", 0, u64::MAX)?;
        let swa = args::int(swa_pages, "swa_pages", 0, u64::MAX)?;
        self.handle.call(py, 0, |cache| {
            cache.set_tenant_share(tenant, full, swa);
            Ok(())
        })
    }

    /// Takes up to `max` events in order, and how many were lost before the first of them; then resync with
    /// `snapshot`.
    #[pyo3(signature = (max=None))]
    fn drain_events<'py>(
        &self,
        py: Python<'py>,
        max: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<(Bound<'py, PyList>, u64)> {
        let max = usize::try_from(args::int_or(max, u64::MAX, "max", 0, u64::MAX)?).unwrap_or(usize::MAX);
        let drained = self.handle.call(py, max, |cache| Ok(cache.drain_events(max)))?;
        let events = drained.events.into_iter().map(|event| Bound::new(py, PyEvent(event)));
        Ok((PyList::new(py, events.collect::<PyResult<Vec<_>>>()?)?, drained.lost))
    }

    /// Everything lookups can find now.
    fn snapshot(&self, py: Python<'_>) -> PyResult<PySnapshot> {
        self.handle.call(py, LONG, |cache| Ok(cache.snapshot())).map(PySnapshot)
    }

    /// Counters since the start, and the state now.
    fn stats(&self, py: Python<'_>) -> PyResult<PyStats> {
        self.handle.call(py, 0, |cache| Ok(cache.stats())).map(PyStats)
    }

    /// Raises `IntegrityError` when the structures contradict each other. For tests: it walks everything.
    fn check_integrity(&self, py: Python<'_>) -> PyResult<()> {
        self.handle.call(py, LONG, |cache| cache.check_integrity())
    }

    /// The tree for people: text, or Graphviz.
    #[pyo3(signature = (format=None), text_signature = "($self, format='text')")]
    fn dump(&self, py: Python<'_>, format: Option<&Bound<'_, PyAny>>) -> PyResult<String> {
        match &*args::text(format, "text", "format")? {
            "text" => self.handle.call(py, LONG, |cache| Ok(cache.dump_text())),
            "dot" => self.handle.call(py, LONG, |cache| Ok(cache.dump_dot())),
            other => Err(invalid(py, "format", crate::error::shown(other), "'text' or 'dot'")),
        }
    }

    /// The tokens after its end with which a published SWA page's MTP rows were made.
    fn mtp_record<'py>(&self, py: Python<'py>, swa_page: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let page = args::int(swa_page, "swa_page", 0, U32)? as u32;
        let record = self.handle.call(py, 0, |cache| Ok(cache.mtp_record(page)))?;
        record.map(|tokens| uint32_array(py, &tokens)).transpose()
    }

    fn __repr__(&self) -> String {
        let c = &self.config;
        format!(
            "<mimo_cache.PrefixCache: pages of {} tokens, W {}, {} MTP heads, {} full and {} SWA pages ({} scratch)>",
            c.page_size, c.window, c.n_mtp, c.full_pages, c.swa_pages, c.scratch_pages
        )
    }
}
