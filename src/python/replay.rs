//! `_core.replay`: a trace through a cache of a given size, with the GIL released.

use super::{args, errors};
use crate::cache::Misses;
use crate::error::{Error, Result};
use crate::policy::{PolicyKind, Retention};
use crate::replay::split::{CHUNKS, Split, SplitOutcome};
use crate::replay::{
    Capacity, HostOptions, KvBytes, MAX_CHUNK, MAX_SAMPLES, Options, Outcome, Progress, Sample, Service, TierOptions,
    run,
};
use crate::tier::{Rules, TierConfig, TierStats, Write};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Time between two calls of the progress function.
const BEAT: Duration = Duration::from_millis(100);
/// When prefixes go down to a tier.
const TIER_WRITE: &str = "through";
/// Output tokens per second of a request when none are named.
const DEFAULT_DECODE: f64 = 50.0;

/// Adds the function and its defaults to the module.
pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add("DEFAULT_RETENTION", Retention::DEFAULT)?;
    m.add("DEFAULT_POLICY", PolicyKind::default().name())?;
    m.add("POLICIES", PyTuple::new(m.py(), PolicyKind::all().map(PolicyKind::name))?)?;
    m.add_function(wrap_pyfunction!(replay, m)?)
}

/// What `replay` and `explain` are told about the cache, as Python objects.
pub(super) struct Given<'a, 'py> {
    pub(super) model: &'a Bound<'py, PyAny>,
    pub(super) capacity: &'a Bound<'py, PyAny>,
    pub(super) swa_share: Option<&'a Bound<'py, PyAny>>,
    pub(super) split: Option<&'a Bound<'py, PyAny>>,
    pub(super) split_chunks: Option<&'a Bound<'py, PyAny>>,
    pub(super) retention: Option<&'a Bound<'py, PyAny>>,
    pub(super) policy: Option<&'a Bound<'py, PyAny>>,
    pub(super) page_size: Option<&'a Bound<'py, PyAny>>,
    pub(super) chunk: Option<&'a Bound<'py, PyAny>>,
    pub(super) seed: Option<&'a Bound<'py, PyAny>>,
    pub(super) skip_bad: Option<&'a Bound<'py, PyAny>>,
    pub(super) samples: Option<&'a Bound<'py, PyAny>>,
    pub(super) host: Option<&'a Bound<'py, PyAny>>,
    pub(super) host_write: Option<&'a Bound<'py, PyAny>>,
    pub(super) gcache: Option<&'a Bound<'py, PyAny>>,
    pub(super) gcache_write: Option<&'a Bound<'py, PyAny>>,
    pub(super) without: Option<&'a Bound<'py, PyAny>>,
    pub(super) prefill_rate: Option<&'a Bound<'py, PyAny>>,
    pub(super) decode_rate: Option<&'a Bound<'py, PyAny>>,
}

impl Given<'_, '_> {
    pub(super) fn options(&self, py: Python<'_>) -> PyResult<Options> {
        let number = |value: Option<&Bound<'_, PyAny>>, what: &'static str| -> PyResult<Option<f64>> {
            value
                .map(|v| v.extract().map_err(|_| errors::invalid(py, what, args::shown(v), "a number or None")))
                .transpose()
        };
        let share = number(self.swa_share, "swa_share")?;
        let prefill = number(self.prefill_rate, "prefill_rate")?;
        let decode = number(self.decode_rate, "decode_rate")?;
        let host = number(self.host, "host")?;
        let gcache = number(self.gcache, "gcache")?;
        let host_write = args::text(self.host_write, TIER_WRITE, "host_write")?;
        let gcache_write = args::text(self.gcache_write, TIER_WRITE, "gcache_write")?;
        let without = args::text(self.without, "", "without")?;
        let model = args::text(Some(self.model), "", "model")?;
        let capacity = args::text(Some(self.capacity), "", "capacity")?;
        let split = args::text(self.split, "fixed", "split")?;
        let split_chunks =
            args::int_or(self.split_chunks, u64::from(CHUNKS), "split_chunks", 0, u64::from(u32::MAX))? as u32;
        let retention = args::text(self.retention, Retention::DEFAULT, "retention")?;
        let policy = args::text(self.policy, PolicyKind::default().name(), "policy")?;
        let page_size = args::int_or(self.page_size, 64, "page_size", 2, 1024)? as u32;
        let chunk = args::int_or(self.chunk, 8192, "chunk", 1, u64::from(MAX_CHUNK))? as u32;
        let seed = args::int_or(self.seed, 0, "seed", 0, u64::MAX)?;
        let skip_bad = args::flag(self.skip_bad, false, "skip_bad")?;
        let samples = args::int_or(self.samples, 0, "samples", 0, u64::from(MAX_SAMPLES))? as u32;
        (|| -> Result<Options> {
            let kv = KvBytes::of_model(&model, page_size)?;
            Ok(Options {
                kv,
                capacity: Capacity::parse(&capacity)?,
                swa_share: share.unwrap_or_else(|| kv.default_share()),
                split: Split::parse(&split, split_chunks)?,
                retention: Retention::parse(&retention)?,
                policy: PolicyKind::parse(&policy)?,
                page_size,
                chunk,
                seed,
                skip_bad,
                service: prefill.map(|prefill| Service { prefill, decode: decode.unwrap_or(DEFAULT_DECODE) }),
                samples,
                host: match (host, gcache) {
                    (Some(ratio), _) => {
                        let tier = |ratio, write: &str| Ok(TierOptions { ratio, write: Write::parse(write)? });
                        Some(HostOptions {
                            host: tier(ratio, &host_write)?,
                            gcache: gcache.map(|ratio| tier(ratio, &gcache_write)).transpose()?,
                            rules: Rules::without(&without)?,
                        })
                    }
                    (None, Some(ratio)) => return Err(Error::invalid("gcache", ratio, "None without a host tier")),
                    (None, None) => None,
                },
            })
        })()
        .map_err(|e| errors::to_py(py, e))
    }
}

/// A path argument.
pub(super) fn path_of(trace: &Bound<'_, PyAny>) -> PyResult<PathBuf> {
    trace
        .extract()
        .map_err(|_| errors::invalid(trace.py(), "trace", args::type_name(trace), "a path (str or PathLike)"))
}

/// Runs `work` without the GIL. It gets a function to call often, which now and then looks for signals and tells
/// `progress`; when that function says no, `work` should give `None`.
pub(super) fn released<T: Send>(
    py: Python<'_>,
    progress: Option<Py<PyAny>>,
    work: impl FnOnce(&mut (dyn FnMut(Option<Progress>) -> bool + Send)) -> Result<Option<T>> + Send,
) -> PyResult<T> {
    let mut raised: Option<PyErr> = None;
    let mut last = Instant::now();
    let outcome = py.detach(|| {
        let mut beat = |now: Option<Progress>| {
            if last.elapsed() < BEAT {
                return true;
            }
            last = Instant::now();
            let result = Python::attach(|py| -> PyResult<()> {
                py.check_signals()?;
                if let (Some(progress), Some(now)) = (&progress, now) {
                    progress.call1(py, (now.done, now.total, now.prompt_tokens, now.hit_tokens))?;
                }
                Ok(())
            });
            raised = result.err();
            raised.is_none()
        };
        // Whatever a trace made the core do, no panic may reach Python.
        catch_unwind(AssertUnwindSafe(|| work(&mut beat)))
            .unwrap_or_else(|_| Err(Error::Integrity("the replay panicked".into())))
    });
    if let Some(error) = raised {
        return Err(error);
    }
    match outcome {
        Ok(Some(outcome)) => Ok(outcome),
        Ok(None) => Err(errors::to_py(py, Error::Integrity("the replay stopped without being asked to".into()))),
        Err(error) => Err(errors::to_py(py, error)),
    }
}

/// Replays a trace and returns what it found as a dict of numbers; `misses` is a dict of tokens by cause.
///
/// `progress(done, total, prompt_tokens, hit_tokens)` is called about ten times a second; what it raises ends the
/// replay and is raised here, and so is the exception of a signal handler. `swa_share=None`: 0 for a model without an
/// SWA group, else 0.1. With `split="adaptive"` it is only the start, the memory is cut into about
/// `split_chunks` chunks (2 to 2,048; small pools have fewer), and the key `split` says where they went.
/// `skip_bad`: lines that cannot be used are counted and passed over. `samples`: points in time of the result's
/// `samples`. With `prefill_rate` (tokens per second) requests overlap, and each stays open until its
/// output has come at `decode_rate`. `host`, `gcache`: pages of a host tier below, and of GCache below that, as multiples
/// of the cache's; prefixes go down to them by `host_write` and `gcache_write`, moves take no time, and the keys `host` and
/// `gcache` say what moved. `without`: rules between tiers that are off, of mixed, difference, heal and touch.
#[pyfunction]
#[pyo3(signature = (trace, *, model, capacity, swa_share=None, split=None, split_chunks=None, retention=None,
    policy=None, page_size=None, chunk=None, seed=None, skip_bad=None, samples=None, prefill_rate=None, decode_rate=None,
    host=None, host_write=None, gcache=None, gcache_write=None, without=None, progress=None))]
#[pyo3(text_signature = "(trace, *, model, capacity, swa_share=None, split='fixed', split_chunks=64, \
    retention='prompt_end+branch+sup2+stride8192+dense2048:4096', policy='hit_density', \
    page_size=64, chunk=8192, seed=0, skip_bad=False, samples=0, prefill_rate=None, decode_rate=50.0, host=None, \
    host_write='through', gcache=None, gcache_write='through', without='', progress=None)")]
#[allow(clippy::too_many_arguments)]
fn replay<'py>(
    py: Python<'py>,
    trace: &Bound<'py, PyAny>,
    model: &Bound<'py, PyAny>,
    capacity: &Bound<'py, PyAny>,
    swa_share: Option<&Bound<'py, PyAny>>,
    split: Option<&Bound<'py, PyAny>>,
    split_chunks: Option<&Bound<'py, PyAny>>,
    retention: Option<&Bound<'py, PyAny>>,
    policy: Option<&Bound<'py, PyAny>>,
    page_size: Option<&Bound<'py, PyAny>>,
    chunk: Option<&Bound<'py, PyAny>>,
    seed: Option<&Bound<'py, PyAny>>,
    skip_bad: Option<&Bound<'py, PyAny>>,
    samples: Option<&Bound<'py, PyAny>>,
    prefill_rate: Option<&Bound<'py, PyAny>>,
    decode_rate: Option<&Bound<'py, PyAny>>,
    host: Option<&Bound<'py, PyAny>>,
    host_write: Option<&Bound<'py, PyAny>>,
    gcache: Option<&Bound<'py, PyAny>>,
    gcache_write: Option<&Bound<'py, PyAny>>,
    without: Option<&Bound<'py, PyAny>>,
    progress: Option<Py<PyAny>>,
) -> PyResult<Bound<'py, PyDict>> {
    let path = path_of(trace)?;
    let given = Given {
        model,
        capacity,
        swa_share,
        split,
        split_chunks,
        retention,
        policy,
        page_size,
        chunk,
        seed,
        skip_bad,
        samples,
        prefill_rate,
        decode_rate,
        host,
        host_write,
        gcache,
        gcache_write,
        without,
    };
    let options = given.options(py)?;
    let outcome = released(py, progress, |beat| run(&path, &options, |now| beat((now.total > 0).then_some(now))))?;
    to_dict(py, &options, &outcome)
}

fn to_dict<'py>(py: Python<'py>, options: &Options, outcome: &Outcome) -> PyResult<Bound<'py, PyDict>> {
    let (totals, pools) = (&outcome.totals, &outcome.pools);
    let out = PyDict::new(py);
    out.set_item("token_hit_rate", outcome.token_hit_rate())?;
    out.set_item("ceiling", totals.ceiling())?;
    out.set_item("full_kv_hit_rate", outcome.full_kv_hit_rate())?;
    out.set_item("requests_per_second", outcome.requests_per_second())?;
    out.set_item("swa_bytes_share", pools.swa_bytes_share())?;
    out.set_item("misses", misses(py, &outcome.misses)?)?;
    out.set_item("requests", totals.requests)?;
    out.set_item("requests_promised", totals.header.requests)?;
    out.set_item("prompt_tokens", totals.prompt_tokens)?;
    out.set_item("hit_tokens", outcome.hit_tokens)?;
    out.set_item("full_kv_tokens", outcome.full_kv_tokens)?;
    out.set_item("partial_tokens", totals.partial_tokens)?;
    out.set_item("unique_tokens", totals.unique_tokens)?;
    out.set_item("swa_share", options.swa_share)?;
    out.set_item("full_pages", pools.full_pages)?;
    out.set_item("swa_pages", pools.swa_pages)?;
    out.set_item("scratch_pages", pools.scratch_pages)?;
    out.set_item("full_bytes", pools.full_bytes)?;
    out.set_item("swa_bytes", pools.swa_bytes)?;
    out.set_item("scratch_bytes", pools.scratch_bytes)?;
    out.set_item("checkpoints", outcome.checkpoints)?;
    out.set_item("checkpoints_evicted", outcome.checkpoints_evicted)?;
    out.set_item("full_evicted", outcome.full_evicted)?;
    out.set_item("budget_pages", pools.budget_pages)?;
    out.set_item("skipped_lines", totals.skipped.lines)?;
    out.set_item("skipped_first", &totals.skipped.first)?;
    out.set_item("most_open", outcome.most_open)?;
    out.set_item("waited_ms", outcome.waited_ms)?;
    out.set_item("seconds", outcome.seconds)?;
    for (i, name) in ["host", "gcache"].into_iter().enumerate() {
        let tier = outcome.tiers.get(i).map(|(config, stats)| tier_dict(py, config, stats));
        out.set_item(name, tier.transpose()?)?;
    }
    out.set_item("split", outcome.split.as_ref().map(|split| split_dict(py, split)).transpose()?)?;
    if !outcome.samples.is_empty() {
        let samples = outcome.samples.iter().map(|s| sample(py, s)).collect::<PyResult<Vec<_>>>()?;
        out.set_item("samples", PyList::new(py, samples)?)?;
    }
    Ok(out)
}

/// Where an adaptive split went: shares of the bytes without scratch, chunks and copies.
fn split_dict<'py>(py: Python<'py>, split: &SplitOutcome) -> PyResult<Bound<'py, PyDict>> {
    let out = PyDict::new(py);
    out.set_item("start", split.start)?;
    out.set_item("mean", split.mean)?;
    out.set_item("highest", split.highest)?;
    out.set_item("end", split.end)?;
    out.set_item("chunks", split.carved.region.chunks)?;
    out.set_item("chunk_bytes", split.carved.chunk_bytes)?;
    out.set_item("chunk_full_pages", split.carved.region.full_pages)?;
    out.set_item("chunk_swa_pages", split.carved.region.swa_pages)?;
    out.set_item("to_full", split.stats.to_full)?;
    out.set_item("to_swa", split.stats.to_swa)?;
    out.set_item("full_relocated", split.stats.full_relocated)?;
    out.set_item("swa_relocated", split.stats.swa_relocated)?;
    Ok(out)
}

/// A tier and what it moved.
fn tier_dict<'py>(py: Python<'py>, config: &TierConfig, stats: &TierStats) -> PyResult<Bound<'py, PyDict>> {
    let out = PyDict::new(py);
    out.set_item("full_pages", config.full_pages)?;
    out.set_item("swa_pages", config.swa_pages)?;
    out.set_item("fetches", stats.fetches)?;
    out.set_item("fetched_tokens", stats.fetched_tokens)?;
    out.set_item("fetched_full", stats.fetched_full)?;
    out.set_item("fetched_swa", stats.fetched_swa)?;
    out.set_item("saves", stats.saves)?;
    out.set_item("saved_full", stats.saved_full)?;
    out.set_item("saved_swa", stats.saved_swa)?;
    out.set_item("no_room", stats.no_room_below)?;
    out.set_item("gone", stats.gone)?;
    Ok(out)
}

/// Misses by cause; partial blocks are outside a replay.
pub(super) fn misses<'py>(py: Python<'py>, misses: &Misses) -> PyResult<Bound<'py, PyDict>> {
    let out = PyDict::new(py);
    for (cause, tokens) in misses.items().into_iter().filter(|(cause, _)| *cause != "partial_page") {
        out.set_item(cause, tokens)?;
    }
    Ok(out)
}

fn sample<'py>(py: Python<'py>, s: &Sample) -> PyResult<Bound<'py, PyDict>> {
    let out = PyDict::new(py);
    out.set_item("requests", s.requests)?;
    out.set_item("t_ms", s.t_ms)?;
    out.set_item("prompt_tokens", s.prompt_tokens)?;
    out.set_item("hit_tokens", s.hit_tokens)?;
    out.set_item("full_kv_tokens", s.full_kv_tokens)?;
    out.set_item("misses", misses(py, &s.misses)?)?;
    out.set_item("full_cached", s.full_cached)?;
    out.set_item("swa_cached", s.swa_cached)?;
    out.set_item("checkpoints", s.checkpoints)?;
    Ok(out)
}
