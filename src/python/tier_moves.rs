//! What a `TierPlanner` asks for: pages to copy, to write and to read.

use super::args::type_name;
use super::errors::invalid;
use super::report::uint32_array;
use super::sequence::seq_number;
use crate::tier::{Fetch, Loan, Receive, Save};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

/// 32 bytes.
pub(super) fn name(value: &Bound<'_, PyAny>, what: &'static str) -> PyResult<[u8; 32]> {
    let allowed = "32 bytes";
    let Ok(bytes) = value.cast::<PyBytes>() else {
        return Err(invalid(value.py(), what, type_name(value), allowed));
    };
    let bytes = bytes.as_bytes();
    bytes.try_into().map_err(|_| invalid(value.py(), what, format!("{} bytes", bytes.len()), allowed))
}

/// Pages as a new uint32 array of shape [n, 2].
fn pairs<'py>(py: Python<'py>, pairs: &[(u32, u32)]) -> PyResult<Bound<'py, PyAny>> {
    let flat: Vec<u32> = pairs.iter().flat_map(|&(device, host)| [device, host]).collect();
    uint32_array(py, &flat)?.call_method1("reshape", (pairs.len(), 2))
}

/// Pages that come up for a sequence.
#[pyclass(frozen, name = "TierFetch", module = "mimo_cache._core")]
pub(super) struct PyFetch(pub(super) Fetch);

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
pub(super) struct PySave(pub(super) Save);

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

/// Pages that come to the host tier from another process.
#[pyclass(frozen, name = "TierReceive", module = "mimo_cache._core")]
pub(super) struct PyReceive(pub(super) Receive);

#[pymethods]
impl PyReceive {
    /// Its number.
    #[getter]
    fn id(&self) -> u64 {
        self.0.id
    }

    /// Full pages to copy down from the cache, uint32 [n, 2]: (device page, host page).
    #[getter]
    fn full_pairs<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        pairs(py, &self.0.pairs.full)
    }

    /// SWA pages to copy down from the cache, uint32 [n, 2]: (device page, host page).
    #[getter]
    fn swa_pairs<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        pairs(py, &self.0.pairs.swa)
    }

    /// Full pages to write from elsewhere: (logical page, host page).
    #[getter]
    fn full(&self) -> Vec<(u64, u32)> {
        self.0.full.clone()
    }

    /// SWA pages to write from elsewhere: (logical page, host page).
    #[getter]
    fn swa(&self) -> Vec<(u64, u32)> {
        self.0.swa.clone()
    }

    /// The boundary that they make resumable in the host tier, in tokens.
    #[getter]
    fn boundary(&self) -> u64 {
        self.0.at
    }

    fn __repr__(&self) -> String {
        let r = &self.0;
        format!("<TierReceive {}: {} pages for boundary {}>", r.id, r.pairs.len() + r.full.len() + r.swa.len(), r.at)
    }
}

/// Pages of the host tier under a lease.
#[pyclass(frozen, name = "TierLoan", module = "mimo_cache._core")]
pub(super) struct PyLoan(pub(super) Loan);

#[pymethods]
impl PyLoan {
    /// Its number.
    #[getter]
    fn id(&self) -> u64 {
        self.0.id
    }

    /// Names of all pages before the boundary, in order, 32 bytes each.
    #[getter]
    fn names<'py>(&self, py: Python<'py>) -> Vec<Bound<'py, PyBytes>> {
        self.0.keys.iter().map(|name| PyBytes::new(py, name)).collect()
    }

    /// Full pages: (logical page, host page).
    #[getter]
    fn full(&self) -> Vec<(u64, u32)> {
        self.0.full.clone()
    }

    /// SWA pages of the window: (logical page, host page).
    #[getter]
    fn swa(&self) -> Vec<(u64, u32)> {
        self.0.swa.clone()
    }

    /// Of each SWA page the tokens after it with which its MTP rows were made.
    #[getter]
    fn records(&self) -> Vec<Vec<u32>> {
        self.0.records.iter().map(|record| record.to_vec()).collect()
    }

    fn __repr__(&self) -> String {
        format!("<TierLoan {}: {} pages>", self.0.id, self.0.full.len() + self.0.swa.len())
    }
}
