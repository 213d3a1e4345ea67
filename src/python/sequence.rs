//! `Sequence`, a request's hold on the cache, and `Plan`, what the caller must run before a step.

use super::args;
use super::call::Handle;
use super::errors::invalid;
use super::report::{PyReport, uint32_array};
use super::tokens::Tokens;
use crate::cache::{Cache, Group, Plan, Report, SeqId, SeqInfo};
use crate::sync::Guarded;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyString};
use std::sync::atomic::{AtomicBool, Ordering};

/// The number Python knows a sequence by.
pub(super) fn seq_number(seq: SeqId) -> u64 {
    seq.number()
}

/// The tokens of one commit: `None` for none.
pub(super) fn commit_tokens<'py>(value: Option<&Bound<'py, PyAny>>) -> PyResult<Option<Tokens<'py>>> {
    match value {
        None => Ok(None),
        Some(value) if value.is_none() => Ok(None),
        Some(value) => Tokens::new(value, "tokens").map(Some),
    }
}

/// A request's hold on the cache. Dropping it aborts it; as a context manager it finishes when the block ends
/// normally and aborts when an exception leaves it.
///
/// Row rules: the runner computes positions from `committed` on, but writes full KV only from `full_write_from` and
/// SWA KV only from `swa_write_from`; pages before those belong to the tree.
#[pyclass(frozen, weakref, name = "Sequence", module = "mimo_cache")]
pub(super) struct PySequence {
    pub(super) handle: Handle,
    pub(super) id: SeqId,
    report: Guarded<Report>,
    /// Set when `finish` or `abort` succeeded, so that the destructor has nothing to do.
    ended: AtomicBool,
}

impl PySequence {
    pub(super) fn new(handle: Handle, id: SeqId, report: Report) -> Self {
        PySequence { handle, id, report: Guarded::new(report), ended: AtomicBool::new(false) }
    }

    fn info(&self, py: Python<'_>) -> PyResult<SeqInfo> {
        let id = self.id;
        self.handle.call(py, 0, |cache| cache.info(id))
    }

    /// What a host tier delivered since `open` is in the report now.
    fn keep_report(cache: &Cache, id: SeqId, kept: &Guarded<Report>) {
        if let Ok(now) = cache.report(id) {
            kept.with(|report| *report = now);
        }
    }

    fn opening(&self, py: Python<'_>) -> PyResult<Report> {
        self.handle.check_process(py)?;
        Ok(self.report.with(|report| *report))
    }

    /// Tokens a call on the whole sequence may touch.
    fn work(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.info(py)?.known as usize)
    }
}

impl Drop for PySequence {
    fn drop(&mut self) {
        if !*self.ended.get_mut() {
            self.handle.abandon(self.id);
        }
    }
}

#[pymethods]
impl PySequence {
    /// The number that `Plan.rebuilds` uses.
    #[getter]
    fn id(&self) -> u64 {
        seq_number(self.id)
    }

    /// Longest run of whole pages with full KV at `open` (or the last `resume`).
    #[getter]
    fn full_kv_match(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.opening(py)?.matched.full_kv_match)
    }

    /// Tokens this sequence started from: the largest window-safe boundary within `full_kv_match`.
    #[getter]
    fn usable(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.opening(py)?.matched.usable)
    }

    /// Where every prompt token came from, with what a host tier delivered since. Stays readable after the sequence
    /// has ended.
    #[getter]
    fn report(&self, py: Python<'_>) -> PyResult<PyReport> {
        let (id, kept) = (self.id, &self.report);
        self.handle.call(py, 0, |cache| {
            Self::keep_report(cache, id, kept);
            Ok(())
        })?;
        Ok(PyReport(self.opening(py)?))
    }

    /// Tokens whose KV is final.
    #[getter]
    fn committed(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.info(py)?.committed)
    }

    /// Tokens whose ids are known; at least `committed`.
    #[getter]
    fn known(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.info(py)?.known)
    }

    /// Slots beyond `committed`.
    #[getter]
    fn reserved(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.info(py)?.reserved)
    }

    /// Do not write full KV before this position.
    #[getter]
    fn full_write_from(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.info(py)?.full_write_from)
    }

    /// Do not write SWA KV before this position.
    #[getter]
    fn swa_write_from(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.info(py)?.swa_write_from)
    }

    /// First logical page of the compact SWA table.
    #[getter]
    fn swa_base(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.info(py)?.swa_base)
    }

    /// SWA pages this sequence holds.
    #[getter]
    fn swa_held(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.info(py)?.swa_held)
    }

    /// Changes whenever a page id of committed tokens changes.
    #[getter]
    fn table_version(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.info(py)?.table_version)
    }

    /// Parked: only tokens and cursor are kept.
    #[getter]
    fn parked(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.info(py)?.parked)
    }

    /// A copy of the known tokens.
    fn tokens<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let (id, work) = (self.id, self.work(py)?);
        let ids = self.handle.call(py, work, |cache| Ok(cache.tokens(id)?.to_vec()))?;
        uint32_array(py, &ids)
    }

    /// Page ids of logical pages 0.. covering committed and reserved positions.
    fn full_table<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let id = self.id;
        let pages = self.handle.call(py, 0, |cache| Ok(cache.full_table(id)?.to_vec()))?;
        uint32_array(py, &pages)
    }

    /// First logical page, and the SWA page ids from there; 0 for none.
    fn swa_table<'py>(&self, py: Python<'py>) -> PyResult<(u64, Bound<'py, PyAny>)> {
        let id = self.id;
        let (first, pages) = self.handle.call(py, 0, |cache| cache.swa_table(id))?;
        Ok((first, uint32_array(py, &pages)?))
    }

    /// Slots for `n` more positions: a prefill chunk, or 1 + k drafts for each step in flight.
    ///
    /// Raises `OutOfPages`, beyond prompt and credit, while pages are quarantined, or when a chunk exceeds the scratch.
    fn reserve(&self, py: Python<'_>, n: &Bound<'_, PyAny>) -> PyResult<()> {
        let n = args::int(n, "n", 0, u64::MAX)?;
        let id = self.id;
        self.handle.call(py, 0, |cache| cache.reserve(id, n))
    }

    /// Largest `n` that `reserve` would accept now.
    fn reservable(&self, py: Python<'_>) -> PyResult<u64> {
        let id = self.id;
        self.handle.call(py, 0, |cache| cache.reservable(id))
    }

    /// Gives back all reserved slots; returns how many.
    fn trim(&self, py: Python<'_>) -> PyResult<u64> {
        let id = self.id;
        self.handle.call(py, 0, |cache| cache.trim(id))
    }

    /// The next `computed` rows (at most `reserved`) are final and `tokens` became known.
    ///
    /// After it `known >= committed`. The prompt is known from the start.
    #[pyo3(signature = (computed, tokens=None), text_signature = "($self, computed, tokens=())")]
    fn commit(&self, py: Python<'_>, computed: &Bound<'_, PyAny>, tokens: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let computed = args::int(computed, "computed", 0, u64::MAX)?;
        let tokens = commit_tokens(tokens)?;
        let ids = match &tokens {
            None => &[][..],
            Some(tokens) => {
                let (ids, high) = tokens.checked(py, "tokens")?;
                if high {
                    self.handle.note_high_tokens();
                }
                ids
            }
        };
        let id = self.id;
        let work = usize::try_from(computed).unwrap_or(usize::MAX).saturating_add(ids.len());
        self.handle.call(py, work, |cache| cache.commit(id, computed, ids))
    }

    /// `m` new sequences at the committed length with nothing reserved, or `OutOfPages` and none.
    #[pyo3(signature = (m, credit=None), text_signature = "($self, m, credit=0)")]
    fn fork<'py>(
        &self,
        py: Python<'py>,
        m: &Bound<'py, PyAny>,
        credit: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyList>> {
        let m = args::int(m, "m", 0, u64::from(u32::MAX))? as usize;
        let credit = args::int_or(credit, 0, "credit", 0, u64::MAX)?;
        let (id, work) = (self.id, self.work(py)?.saturating_mul(m));
        let children = self.handle.call(py, work, |cache| {
            let children = cache.fork(id, m, credit)?;
            children
                .into_iter()
                .map(|child| Ok((child, cache.report(child)?)))
                .collect::<crate::error::Result<Vec<_>>>()
        })?;
        let children = children.into_iter().map(|(child, found)| PySequence::new(self.handle.clone(), child, found));
        PyList::new(py, children.map(|child| Bound::new(py, child)).collect::<PyResult<Vec<_>>>()?)
    }

    /// Publishes as at finish and keeps only tokens and cursor; `store=False` frees everything.
    #[pyo3(signature = (store=None), text_signature = "($self, store=True)")]
    fn park(&self, py: Python<'_>, store: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let store = args::flag(store, true, "store")?;
        let (id, work) = (self.id, self.work(py)?);
        self.handle.call(py, work, |cache| cache.park(id, store))
    }

    /// Opens a parked sequence again on its known tokens; `report` is the new one.
    #[pyo3(signature = (credit=None), text_signature = "($self, credit=0)")]
    fn resume(&self, py: Python<'_>, credit: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let credit = args::int_or(credit, 0, "credit", 0, u64::MAX)?;
        let (id, work, now) = (self.id, self.work(py)?, self.handle.now_ms());
        let found = self.handle.call(py, work, |cache| {
            cache.set_now(now);
            cache.resume(id, credit)?;
            cache.report(id)
        })?;
        self.report.with(|report| *report = found);
        Ok(())
    }

    /// Publishes what is complete and ends the sequence.
    fn finish(&self, py: Python<'_>) -> PyResult<()> {
        let (id, kept) = (self.id, &self.report);
        self.handle.call(py, 0, |cache| {
            Self::keep_report(cache, id, kept);
            cache.finish(id)
        })?;
        self.ended.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Ends the sequence; what was published stays cached.
    fn abort(&self, py: Python<'_>) -> PyResult<()> {
        let (id, kept) = (self.id, &self.report);
        self.handle.call(py, 0, |cache| {
            Self::keep_report(cache, id, kept);
            cache.abort(id)
        })?;
        self.ended.store(true, Ordering::Relaxed);
        Ok(())
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    /// Finishes when the block ended normally, aborts when an exception leaves it; a sequence that ended inside the
    /// block is left alone, and an exception on its way is never replaced.
    fn __exit__(
        &self,
        py: Python<'_>,
        kind: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<bool> {
        if !self.ended.load(Ordering::Relaxed) {
            if kind.is_none() {
                self.finish(py)?;
            } else {
                // The exception in flight matters more than whatever stops the abort.
                let _ = self.abort(py);
            }
        }
        Ok(false)
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let number = self.id();
        if self.handle.in_child() {
            return format!("<mimo_cache.Sequence {number} of the parent process>");
        }
        match self.info(py) {
            Ok(i) => {
                let parked = if i.parked { ", parked" } else { "" };
                let (committed, known, reserved) = (i.committed, i.known, i.reserved);
                format!(
                    "<mimo_cache.Sequence {number}: committed {committed}, known {known}, reserved {reserved}{parked}>"
                )
            }
            Err(_) => format!("<mimo_cache.Sequence {number}, ended>"),
        }
    }
}

/// The `SeqId`s of a list or tuple of sequences of this cache.
pub(super) fn seq_ids(handle: &Handle, seqs: &[Bound<'_, PyAny>], py: Python<'_>) -> PyResult<Vec<SeqId>> {
    let mut ids = Vec::with_capacity(seqs.len());
    for (at, item) in seqs.iter().enumerate() {
        let Ok(seq) = item.cast::<PySequence>() else {
            let value = format!("{} at index {at}", args::type_name(item));
            return Err(invalid(py, "seqs", value, "a list or tuple of mimo_cache.Sequence"));
        };
        let seq = seq.get();
        if !seq.handle.same(handle) {
            let value = format!("a sequence of another cache at index {at}");
            return Err(invalid(py, "seqs", value, "sequences of this cache"));
        }
        ids.push(seq.id);
    }
    Ok(ids)
}

/// What the caller must run before the kernels of a step: copies in order, then rebuilds. False when empty.
#[pyclass(frozen, name = "Plan", module = "mimo_cache")]
pub(super) struct PyPlan(pub(super) Plan);

#[pymethods]
impl PyPlan {
    /// (group, source page, destination page), whole pages of one pool.
    #[getter]
    fn copies<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let copies = self.0.copies.iter().map(|c| (group_name(py, c.group), c.src, c.dst));
        PyList::new(py, copies.collect::<Vec<_>>())
    }

    /// (sequence id, SWA page, first position, end position): MTP rows to rebuild from stored hidden states.
    #[getter]
    fn rebuilds<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let rebuilds = self.0.rebuilds.iter().map(|r| (seq_number(r.seq), r.page, r.start, r.end));
        PyList::new(py, rebuilds.collect::<Vec<_>>())
    }

    fn __bool__(&self) -> bool {
        !self.0.copies.is_empty() || !self.0.rebuilds.is_empty()
    }

    fn __repr__(&self) -> String {
        format!("<mimo_cache.Plan: {} copies, {} rebuilds>", self.0.copies.len(), self.0.rebuilds.len())
    }
}

/// "full" or "swa".
pub(super) fn group_name<'py>(py: Python<'py>, group: Group) -> Bound<'py, PyString> {
    match group {
        Group::Full => pyo3::intern!(py, "full").clone(),
        Group::Swa => pyo3::intern!(py, "swa").clone(),
    }
}
