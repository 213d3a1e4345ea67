//! The two batch calls of a model step: page tables out, computed rows in.

use super::args;
use super::buffers::OutBuffer;
use super::cache::PyPrefixCache;
use super::errors::invalid;
use super::sequence::{PyPlan, commit_tokens, seq_ids};
use crate::cache::{Commit, FillOut};
use pyo3::prelude::*;

/// Words written from which `fill` releases the GIL.
const LONG_FILL: usize = 1 << 16;

/// Starts step `step` and writes the page tables of `seqs` into the caller's buffers.
pub(super) fn fill(
    cache: &PyPrefixCache,
    py: Python<'_>,
    step: &Bound<'_, PyAny>,
    seqs: &Bound<'_, PyAny>,
    [full_out, swa_out, swa_base, lens]: [&Bound<'_, PyAny>; 4],
) -> PyResult<PyPlan> {
    cache.handle.check_process(py)?;
    let step = args::int(step, "step", 0, u64::MAX)?;
    let ids = seq_ids(&cache.handle, &args::items(seqs, "seqs", "mimo_cache.Sequence")?, py)?;
    let rows = ids.len();
    let full = table(full_out, "full_out", rows, cache.config.full_pages)?;
    let swa = table(swa_out, "swa_out", rows, cache.config.swa_pages)?;
    let base = if swa_base.is_none() { None } else { Some(OutBuffer::new(swa_base, "swa_base", rows, false)?) };
    let lens = OutBuffer::new(lens, "lens", rows, false)?;
    let given = [("full_out", &full), ("swa_out", &swa), ("swa_base", &base)];
    let mut given: Vec<_> = given.into_iter().filter_map(|(what, b)| b.as_ref().map(|b| (b.range(), what))).collect();
    given.push((lens.range(), "lens"));
    given.retain(|(range, _)| !range.is_empty());
    given.sort_unstable_by_key(|(range, _)| range.start);
    if let Some(pair) = given.windows(2).find(|pair| pair[1].0.start < pair[0].0.end) {
        let value = format!("memory that overlaps {}", pair[0].1);
        return Err(invalid(py, pair[1].1, value, "memory of its own"));
    }
    let words = full.as_ref().map_or(0, OutBuffer::len) + swa.as_ref().map_or(0, OutBuffer::len);
    let widths = (full.as_ref().map_or(0, OutBuffer::width), swa.as_ref().map_or(0, OutBuffer::width));
    // SAFETY: no two of the buffers overlap, and each is asked for its memory once.
    let out = unsafe {
        FillOut {
            full: full.as_ref().map_or(&mut [][..], |b| b.slice()),
            full_width: widths.0,
            swa: swa.as_ref().map_or(&mut [][..], |b| b.slice()),
            swa_width: widths.1,
            swa_base: base.as_ref().map(|b| b.slice()),
            lens: lens.slice(),
        }
    };
    let work = if words >= LONG_FILL { words } else { 0 };
    cache.handle.call(py, work, |core| core.fill(step, &ids, out)).map(PyPlan)
}

/// A page table's buffer; a group that does not exist needs none.
fn table<'py>(
    value: &Bound<'py, PyAny>,
    what: &'static str,
    rows: usize,
    pages: u32,
) -> PyResult<Option<OutBuffer<'py>>> {
    if value.is_none() && pages == 0 { Ok(None) } else { OutBuffer::new(value, what, rows, true).map(Some) }
}

/// Commits for many sequences, all or nothing.
pub(super) fn commit_many(
    cache: &PyPrefixCache,
    py: Python<'_>,
    seqs: &Bound<'_, PyAny>,
    computed: &Bound<'_, PyAny>,
    tokens: &Bound<'_, PyAny>,
) -> PyResult<()> {
    cache.handle.check_process(py)?;
    let ids = seq_ids(&cache.handle, &args::items(seqs, "seqs", "mimo_cache.Sequence")?, py)?;
    let computed = counts(computed)?;
    let tokens = args::items(tokens, "tokens", "token arrays, one for each sequence")?;
    for (what, len) in [("computed", computed.len()), ("tokens", tokens.len())] {
        if len != ids.len() {
            return Err(invalid(
                py,
                what,
                format!("{len} items long"),
                format!("{} items, one for each sequence", ids.len()),
            ));
        }
    }
    let tokens = tokens.iter().map(|value| commit_tokens(Some(value))).collect::<PyResult<Vec<_>>>()?;
    let mut commits = Vec::with_capacity(ids.len());
    let mut work = 0usize;
    for ((seq, computed), tokens) in ids.into_iter().zip(computed).zip(&tokens) {
        let tokens = match tokens {
            None => &[][..],
            Some(tokens) => {
                let (ids, high) = tokens.checked(py, "tokens")?;
                if high {
                    cache.handle.note_high_tokens();
                }
                ids
            }
        };
        work = work.saturating_add(computed as usize).saturating_add(tokens.len());
        commits.push(Commit { seq, computed, tokens });
    }
    cache.handle.call(py, work, |core| core.commit_many(&commits))
}

/// The numbers of `computed`: a list or tuple of ints, or an integer array.
fn counts(value: &Bound<'_, PyAny>) -> PyResult<Vec<u64>> {
    match args::items(value, "computed", "ints") {
        Ok(items) => items.iter().map(|item| args::int(item, "computed", 0, u64::MAX)).collect(),
        Err(_) => {
            let (counts, _) = super::tokens::Tokens::new(value, "computed")?.into_vec(value.py(), "computed")?;
            Ok(counts.into_iter().map(u64::from).collect())
        }
    }
}
