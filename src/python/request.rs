//! `Key` and `Request`.

use super::call::Handle;
use super::errors::to_py;
use super::report::PyMatch;
use super::sequence::PySequence;
use super::{args, report};
use crate::cache::Request;
use crate::key::Key;
use crate::sync::Guarded;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};
use std::hash::{DefaultHasher, Hash, Hasher};

/// What the caller adds to a request's namespace. Requests with different keys never share a page.
///
/// `salt` is free bytes (or text, taken as UTF-8), `adapter` the id of a LoRA adapter; each at most 4,096 bytes.
#[pyclass(frozen, eq, name = "Key", module = "mimo_cache")]
#[derive(PartialEq)]
pub(super) struct PyKey {
    pub(super) key: Key,
}

#[pymethods]
impl PyKey {
    #[new]
    #[pyo3(signature = (salt=None, adapter=None), text_signature = "(salt=b\"\", adapter=\"\")")]
    fn new(py: Python<'_>, salt: Option<&Bound<'_, PyAny>>, adapter: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        let read = |value: Option<&Bound<'_, PyAny>>, what| value.map_or(Ok(Vec::new()), |v| args::name(v, what));
        let key = Key { salt: read(salt, "salt")?, adapter: read(adapter, "adapter")? };
        key.validate().map_err(|error| to_py(py, error))?;
        Ok(PyKey { key })
    }

    /// The salt.
    #[getter]
    fn salt<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.key.salt)
    }

    /// The adapter.
    #[getter]
    fn adapter<'py>(&self, py: Python<'py>) -> Bound<'py, PyString> {
        PyString::new(py, &String::from_utf8_lossy(&self.key.adapter))
    }

    fn __hash__(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.key.hash(&mut hasher);
        hasher.finish()
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!("Key(salt={}, adapter={})", self.salt(py).repr()?, self.adapter(py).repr()?))
    }
}

/// A prompt with a cursor into the tree. Holds no lease; looking again costs only what is new.
#[pyclass(frozen, name = "Request", module = "mimo_cache")]
pub(super) struct PyRequest {
    pub(super) handle: Handle,
    pub(super) request: Guarded<Request>,
    pub(super) len: usize,
}

#[pymethods]
impl PyRequest {
    /// What `open` would find now. Neither lease nor recency.
    fn peek(&self, py: Python<'_>) -> PyResult<PyMatch> {
        let request = &self.request;
        let found = self.handle.call(py, self.len, |cache| Ok(request.with(|r| cache.peek(r))))?;
        Ok(PyMatch(found))
    }

    /// Leases what matches and reserves for the prompt and `credit` tokens beyond it.
    ///
    /// Raises `OutOfPages` when either pool cannot serve that; the request may be opened again later.
    #[pyo3(signature = (credit=None), text_signature = "($self, credit=0)")]
    fn open(&self, py: Python<'_>, credit: Option<&Bound<'_, PyAny>>) -> PyResult<PySequence> {
        let credit = args::int_or(credit, 0, "credit", 0, u64::MAX)?;
        let request = &self.request;
        let now = self.handle.now_ms();
        let (seq, found) = self.handle.call(py, self.len, |cache| {
            cache.set_now(now);
            let seq = request.with(|r| cache.open(r, credit))?;
            Ok((seq, cache.report(seq)?))
        })?;
        Ok(PySequence::new(self.handle.clone(), seq, found))
    }

    /// `open` succeeded, which uses the request up.
    #[getter]
    fn opened(&self, py: Python<'_>) -> PyResult<bool> {
        let request = &self.request;
        self.handle.call(py, 0, |_| Ok(request.with(|r| r.is_opened())))
    }

    /// A copy of the prompt; empty once opened.
    fn tokens<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let request = &self.request;
        let ids = self.handle.call(py, self.len, |_| Ok(request.with(|r| r.tokens().to_vec())))?;
        report::uint32_array(py, &ids)
    }

    fn __len__(&self) -> usize {
        self.len
    }

    fn __repr__(&self) -> String {
        format!("<mimo_cache.Request of {} tokens>", self.len)
    }
}
