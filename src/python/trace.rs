//! What is asked of a trace beside a replay: `_core.optimum`, `_core.explain`, and `_core.BlockIds` for converters.

use super::replay::{Given, misses, path_of, released};
use super::{args, errors};
use crate::cache::{Explanation, Loss, Why};
use crate::error::Error;
use crate::replay::{BlockIds, Lost, Optimum, Story, TraceReader, Which, Who, explain};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use std::sync::Mutex;

/// Adds the functions and the class to the module.
pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(optimum, m)?)?;
    m.add_function(wrap_pyfunction!(explain_trace, m)?)?;
    m.add_class::<PyBlockIds>()
}

/// What no cache of one pool can beat, and what leaf-first LRU gets, at each of `capacities` (pages of `page_size`
/// tokens): lists of hit tokens `belady` and `lru`; `endless`, the hit tokens of an infinite cache; `prompt_tokens`; and
/// `reuse_tokens` and `reuse_ms`, tokens by powers of two of the distance between their uses. Holds the whole trace.
#[pyfunction]
#[pyo3(signature = (trace, *, capacities, page_size=None, skip_bad=None))]
#[pyo3(text_signature = "(trace, *, capacities, page_size=64, skip_bad=False)")]
fn optimum<'py>(
    py: Python<'py>,
    trace: &Bound<'py, PyAny>,
    capacities: &Bound<'py, PyAny>,
    page_size: Option<&Bound<'py, PyAny>>,
    skip_bad: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyDict>> {
    let path = path_of(trace)?;
    let pages = args::items(capacities, "capacities", "page counts")?;
    let pages = pages.iter().map(|p| args::int(p, "capacity", 0, u64::MAX)).collect::<PyResult<Vec<u64>>>()?;
    let page_size = args::int_or(page_size, 64, "page_size", 1, 1024)? as u32;
    let skip_bad = args::flag(skip_bad, false, "skip_bad")?;
    let (best, belady, (lru, reuse)) = released(py, None, |beat| {
        let reader = TraceReader::open(&path)?.skip_bad(skip_bad).check_ids();
        let block = reader.header().block_size;
        if !block.is_multiple_of(page_size) {
            let allowed = format!("one that divides the trace's block of {block} tokens");
            return Err(Error::invalid("page size", page_size, allowed));
        }
        let Some(best) = Optimum::read(reader, || beat(None))? else { return Ok(None) };
        let mut belady = Vec::with_capacity(pages.len());
        for &p in &pages {
            belady.push(best.belady(p, page_size));
            if !beat(None) {
                return Ok(None);
            }
        }
        let lru = best.lru(&pages, page_size);
        Ok(Some((best, belady, lru)))
    })?;
    let out = PyDict::new(py);
    out.set_item("requests", best.requests())?;
    out.set_item("prompt_tokens", best.prompt_tokens())?;
    out.set_item("endless", reuse.tokens.iter().sum::<u64>())?;
    out.set_item("belady", belady)?;
    out.set_item("lru", lru)?;
    out.set_item("reuse_tokens", reuse.tokens)?;
    out.set_item("reuse_ms", reuse.ms)?;
    Ok(out)
}

/// The stories of one request (`request`, from 1) or of a session's requests (`session`) as a list of dicts; the trace
/// is replayed up to them. The other arguments are those of `replay`.
#[pyfunction]
#[pyo3(name = "explain")]
#[pyo3(signature = (trace, *, request=None, session=None, model, capacity, swa_share=None, retention=None, policy=None,
    page_size=None, chunk=None, seed=None, skip_bad=None, prefill_rate=None, decode_rate=None, progress=None))]
#[pyo3(text_signature = "(trace, *, request=None, session=None, model, capacity, swa_share=None, \
    retention='prompt_end+branch+sup2+stride8192+dense2048:4096', policy='hit_density', page_size=64, chunk=8192, \
    seed=0, skip_bad=False, prefill_rate=None, decode_rate=50.0, progress=None)")]
#[allow(clippy::too_many_arguments)]
fn explain_trace<'py>(
    py: Python<'py>,
    trace: &Bound<'py, PyAny>,
    request: Option<&Bound<'py, PyAny>>,
    session: Option<&Bound<'py, PyAny>>,
    model: &Bound<'py, PyAny>,
    capacity: &Bound<'py, PyAny>,
    swa_share: Option<&Bound<'py, PyAny>>,
    retention: Option<&Bound<'py, PyAny>>,
    policy: Option<&Bound<'py, PyAny>>,
    page_size: Option<&Bound<'py, PyAny>>,
    chunk: Option<&Bound<'py, PyAny>>,
    seed: Option<&Bound<'py, PyAny>>,
    skip_bad: Option<&Bound<'py, PyAny>>,
    prefill_rate: Option<&Bound<'py, PyAny>>,
    decode_rate: Option<&Bound<'py, PyAny>>,
    progress: Option<Py<PyAny>>,
) -> PyResult<Bound<'py, PyList>> {
    let path = path_of(trace)?;
    let most = i64::MAX as u64;
    let which = match (request, session) {
        (Some(n), None) => Which::Request(args::int(n, "request", 1, most)?),
        (None, Some(s)) => Which::Session(args::int(s, "session", 0, most)? as i64),
        _ => return Err(errors::invalid(py, "request and session", "both or neither", "one of them")),
    };
    let given = Given {
        model,
        capacity,
        swa_share,
        split: None,
        split_chunks: None,
        retention,
        policy,
        page_size,
        chunk,
        seed,
        skip_bad,
        samples: None,
        host: None,
        host_write: None,
        gcache: None,
        gcache_write: None,
        without: None,
        prefill_rate,
        decode_rate,
    };
    let options = given.options(py)?;
    let stories =
        released(py, progress, |beat| explain(&path, &options, which, |now| beat((now.total > 0).then_some(now))))?;
    PyList::new(py, stories.iter().map(|s| story(py, s)).collect::<PyResult<Vec<_>>>()?)
}

fn who<'py>(py: Python<'py>, who: &Who) -> PyResult<Bound<'py, PyDict>> {
    let out = PyDict::new(py);
    out.set_item("request", who.request)?;
    out.set_item("t_ms", who.t_ms)?;
    out.set_item("session", who.session)?;
    Ok(out)
}

fn maybe_who<'py>(py: Python<'py>, it: Option<&Who>) -> PyResult<Option<Bound<'py, PyDict>>> {
    it.map(|w| who(py, w)).transpose()
}

fn story<'py>(py: Python<'py>, s: &Story) -> PyResult<Bound<'py, PyDict>> {
    let out = who(py, &s.who)?;
    out.set_item("prompt_tokens", s.prompt_tokens)?;
    out.set_item("cut_tokens", s.cut_tokens)?;
    out.set_item("before", maybe_who(py, s.before.as_ref())?)?;
    let seen = s.seen.iter().map(|part| {
        let out = PyDict::new(py);
        out.set_item("from", part.from)?;
        out.set_item("to", part.to)?;
        out.set_item("by", maybe_who(py, part.by.as_ref())?)?;
        Ok(out)
    });
    out.set_item("seen", seen.collect::<PyResult<Vec<_>>>()?)?;
    out.set_item("evicted_full", s.evicted.0)?;
    out.set_item("evicted_checkpoints", s.evicted.1)?;
    if let Some(told) = &s.told {
        tell(py, &out, s, told)?;
    }
    Ok(out)
}

fn tell<'py>(py: Python<'py>, out: &Bound<'py, PyDict>, s: &Story, told: &Explanation) -> PyResult<()> {
    let r = &told.report;
    out.set_item("full_kv_match", r.matched.full_kv_match)?;
    out.set_item("usable", r.matched.usable)?;
    let by_cause = misses(py, &r.misses)?;
    by_cause.set_item("capacity", r.misses.capacity + s.cut_tokens)?;
    out.set_item("misses", by_cause)?;
    let checkpoints = told.checkpoints.iter().map(|c| {
        let out = PyDict::new(py);
        out.set_item("boundary", c.boundary)?;
        out.set_item("kinds", c.kinds.to_vec())?;
        out.set_item("matched", c.matched)?;
        out.set_item("turn", c.turn)?;
        Ok(out)
    });
    out.set_item("checkpoints", checkpoints.collect::<PyResult<Vec<_>>>()?)?;
    let stretches = told.stretches.iter().zip(&s.stretches).filter(|(part, _)| part.cause != "partial_page");
    let stretches = stretches.map(|(part, lost)| {
        let out = PyDict::new(py);
        out.set_item("from", part.from)?;
        out.set_item("to", part.to)?;
        out.set_item("cause", part.cause)?;
        out.set_item("dropped", dropped(py, lost.as_ref())?)?;
        Ok(out)
    });
    out.set_item("stretches", stretches.collect::<PyResult<Vec<_>>>()?)?;
    let lost = told.lost.iter().zip(&s.lost).map(|(c, lost)| {
        let out = PyDict::new(py);
        out.set_item("boundary", c.boundary)?;
        out.set_item("kinds", c.kinds.to_vec())?;
        out.set_item("dropped", dropped(py, lost.as_ref())?)?;
        Ok(out)
    });
    out.set_item("lost_checkpoints", lost.collect::<PyResult<Vec<_>>>()?)
}

fn dropped<'py>(py: Python<'py>, lost: Option<&Lost>) -> PyResult<Option<Bound<'py, PyDict>>> {
    let Some(lost) = lost else { return Ok(None) };
    let out = PyDict::new(py);
    out.set_item("why", why_name(lost.loss.why))?;
    out.set_item("t_ms", lost.loss.at_ms)?;
    out.set_item("by", maybe_who(py, lost.by.as_ref())?)?;
    Ok(Some(out))
}

fn why_name(why: Why) -> &'static str {
    match why {
        Why::FullPool => "full_pool",
        Why::SwaPool => "swa_pool",
        Why::Share => "tenant_share",
        Why::Superseded => "superseded",
        Why::Resumed => "resumed",
        Why::Chunk => "chunk",
    }
}

/// A drop as Python sees it on a live cache.
pub(super) fn loss<'py>(py: Python<'py>, loss: Option<&Loss>) -> PyResult<Option<Bound<'py, PyDict>>> {
    let Some(loss) = loss else { return Ok(None) };
    let out = PyDict::new(py);
    out.set_item("why", why_name(loss.why))?;
    out.set_item("sequence", loss.by)?;
    out.set_item("calls_ago", loss.calls_ago)?;
    Ok(Some(out))
}

/// Turns block hashes, or tokens, into the ids of a trace: an id stands for a block and all blocks before it.
///
/// At most `most` ids are given; about 24 bytes each.
#[pyclass(frozen, name = "BlockIds", module = "mimo_cache")]
struct PyBlockIds(Mutex<BlockIds>);

#[pymethods]
impl PyBlockIds {
    #[new]
    #[pyo3(signature = (most=None))]
    #[pyo3(text_signature = "(most=67108864)")]
    fn new(most: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        let most = args::int_or(most, 1 << 26, "most", 1, 1 << 32)?;
        Ok(PyBlockIds(Mutex::new(BlockIds::new(most))))
    }

    /// The runs [[first id, count], ...] of a prompt whose blocks have these hashes (of at most 64 bits each).
    fn of_hashes(&self, py: Python<'_>, hashes: &Bound<'_, PyAny>) -> PyResult<Vec<[u64; 2]>> {
        let mut words = Vec::new();
        for item in hashes.try_iter()? {
            let item = item?;
            match item.extract::<u64>().or_else(|_| item.extract::<i64>().map(|v| v as u64)) {
                Ok(word) => words.push(word),
                Err(_) => {
                    return Err(errors::invalid(py, "block hash", args::shown(&item), "an int of at most 64 bits"));
                }
            }
        }
        self.runs(py, |ids| ids.of_hashes(words))
    }

    /// The runs of a prompt's full blocks of `block_size` tokens (4 bytes a token). `salt` separates prompts that
    /// must share nothing.
    #[pyo3(signature = (tokens, block_size, salt=0))]
    fn of_tokens(&self, py: Python<'_>, tokens: &[u8], block_size: usize, salt: u64) -> PyResult<Vec<[u64; 2]>> {
        if block_size == 0 {
            return Err(errors::invalid(py, "block_size", "0", "at least 1"));
        }
        self.runs(py, |ids| ids.of_bytes(tokens, block_size.saturating_mul(4), salt))
    }

    /// Distinct ids so far.
    fn __len__(&self) -> usize {
        self.0.lock().map_or(0, |ids| ids.len() as usize)
    }
}

impl PyBlockIds {
    fn runs(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut BlockIds) -> crate::error::Result<Vec<(u32, u32)>>,
    ) -> PyResult<Vec<[u64; 2]>> {
        let mut ids = self.0.lock().map_err(|_| errors::to_py(py, Error::Integrity("a call before failed".into())))?;
        let runs = work(&mut ids).map_err(|e| errors::to_py(py, e))?;
        Ok(runs.into_iter().map(|(first, count)| [u64::from(first), u64::from(count)]).collect())
    }
}
