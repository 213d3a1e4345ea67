//! `_core.replay`: a trace through a cache of a given size, with the GIL released.

use super::{args, errors};
use crate::error::{Error, Result};
use crate::policy::{PolicyKind, Retention};
use crate::replay::split::{CHUNKS, Split, SplitOutcome};
use crate::replay::{Capacity, KvBytes, MAX_CHUNK, Options, Outcome, Progress, run};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Time between two calls of the progress function.
const BEAT: Duration = Duration::from_millis(100);

/// Adds the function to the module.
pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(replay, m)?)
}

/// Replays a trace and returns what it found as a dict of numbers; `misses` is a dict of tokens by cause.
///
/// `progress(done, total, prompt_tokens, hit_tokens)` is called about ten times a second; what it raises ends the
/// replay and is raised here, and so is the exception of a signal handler. `swa_share=None`: 0 for a model without an
/// SWA group, else 0.1. With `split="adaptive"` it is only the start, and the key `split` says where chunks went.
#[pyfunction]
#[pyo3(signature = (trace, *, model, capacity, swa_share=None, split=None, split_chunks=None, retention=None, policy=None, page_size=None, chunk=None,
    seed=None, progress=None))]
#[pyo3(text_signature = "(trace, *, model, capacity, swa_share=None, split='fixed', split_chunks=64, \
    retention='prompt_end+branch', policy='lru', page_size=64, chunk=8192, seed=0, progress=None)")]
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
    progress: Option<Py<PyAny>>,
) -> PyResult<Bound<'py, PyDict>> {
    let path: PathBuf = trace
        .extract()
        .map_err(|_| errors::invalid(py, "trace", args::type_name(trace), "a path (str or PathLike)"))?;
    let share: Option<f64> = match swa_share {
        None => None,
        Some(value) => Some(
            value.extract().map_err(|_| errors::invalid(py, "swa_share", args::shown(value), "a number or None"))?,
        ),
    };
    let model = args::text(Some(model), "", "model")?;
    let capacity = args::text(Some(capacity), "", "capacity")?;
    let split = args::text(split, "fixed", "split")?;
    let split_chunks = args::int_or(split_chunks, u64::from(CHUNKS), "split_chunks", 0, u64::from(u32::MAX))? as u32;
    let retention = args::text(retention, "prompt_end+branch", "retention")?;
    let policy = args::text(policy, "lru", "policy")?;
    let page_size = args::int_or(page_size, 64, "page_size", 1, 1024)? as u32;
    let chunk = args::int_or(chunk, 8192, "chunk", 1, u64::from(MAX_CHUNK))? as u32;
    let seed = args::int_or(seed, 0, "seed", 0, u64::MAX)?;
    let options = (|| -> Result<Options> {
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
        })
    })()
    .map_err(|e| errors::to_py(py, e))?;

    let mut raised: Option<PyErr> = None;
    let mut last = Instant::now();
    let outcome = py.detach(|| {
        let on_progress = |now: Progress| {
            if last.elapsed() < BEAT {
                return true;
            }
            last = Instant::now();
            let result = Python::attach(|py| -> PyResult<()> {
                py.check_signals()?;
                if let Some(progress) = &progress {
                    progress.call1(py, (now.done, now.total, now.prompt_tokens, now.hit_tokens))?;
                }
                Ok(())
            });
            raised = result.err();
            raised.is_none()
        };
        // Whatever a trace made the core do, no panic may reach Python.
        catch_unwind(AssertUnwindSafe(|| run(&path, &options, on_progress)))
            .unwrap_or_else(|_| Err(Error::Integrity("the replay panicked".into())))
    });
    if let Some(error) = raised {
        return Err(error);
    }
    match outcome {
        Ok(Some(outcome)) => to_dict(py, &options, &outcome),
        Ok(None) => Err(errors::to_py(py, Error::Integrity("the replay stopped without being asked to".into()))),
        Err(error) => Err(errors::to_py(py, error)),
    }
}

fn to_dict<'py>(py: Python<'py>, options: &Options, outcome: &Outcome) -> PyResult<Bound<'py, PyDict>> {
    let (totals, pools) = (&outcome.totals, &outcome.pools);
    let misses = PyDict::new(py);
    for (cause, tokens) in outcome.misses.items() {
        // Partial blocks are outside a replay.
        if cause != "partial_page" {
            misses.set_item(cause, tokens)?;
        }
    }
    let out = PyDict::new(py);
    out.set_item("token_hit_rate", outcome.token_hit_rate())?;
    out.set_item("ceiling", totals.ceiling())?;
    out.set_item("full_kv_hit_rate", outcome.full_kv_hit_rate())?;
    out.set_item("requests_per_second", outcome.requests_per_second())?;
    out.set_item("swa_bytes_share", pools.swa_bytes_share())?;
    out.set_item("misses", misses)?;
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
    out.set_item("seconds", outcome.seconds)?;
    out.set_item("split", outcome.split.as_ref().map(|split| split_dict(py, split)).transpose()?)?;
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
