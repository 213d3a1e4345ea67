//! What changed in the cache, and what is in it: `Event`, `Snapshot`, `SnapshotPage`.

use super::sequence::group_name;
use crate::cache::{Event, EventKind, PageKey, Snapshot, SnapshotPage};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString};

fn key_list<'py>(py: Python<'py>, keys: &[PageKey]) -> PyResult<Bound<'py, PyList>> {
    PyList::new(py, keys.iter().map(|key| PyBytes::new(py, key)))
}

/// A numbered change of what lookups can find.
#[pyclass(frozen, eq, name = "Event", module = "mimo_cache")]
#[derive(PartialEq)]
pub(super) struct PyEvent(pub(super) Event);

impl PyEvent {
    fn name(&self) -> &'static str {
        match self.0.kind {
            EventKind::Stored { .. } => "stored",
            EventKind::Removed { .. } => "removed",
            EventKind::WindowSafe { .. } => "window_safe",
            EventKind::WindowUnsafe { .. } => "window_unsafe",
            EventKind::Cleared { .. } => "cleared",
        }
    }

    fn key_slice(&self) -> &[PageKey] {
        match &self.0.kind {
            EventKind::Stored { keys, .. } | EventKind::Removed { keys, .. } => keys,
            EventKind::WindowSafe { keys } | EventKind::WindowUnsafe { keys } => keys,
            EventKind::Cleared { .. } => &[],
        }
    }
}

#[pymethods]
impl PyEvent {
    #[getter]
    fn number(&self) -> u64 {
        self.0.number
    }

    #[getter]
    fn kind(&self) -> &'static str {
        self.name()
    }

    #[getter]
    fn group<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyString>> {
        match self.0.kind {
            EventKind::Stored { group, .. } | EventKind::Removed { group, .. } => Some(group_name(py, group)),
            _ => None,
        }
    }

    #[getter]
    fn parent<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        match &self.0.kind {
            EventKind::Stored { parent, .. } => Some(PyBytes::new(py, parent)),
            _ => None,
        }
    }

    #[getter]
    fn root<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        match &self.0.kind {
            EventKind::Cleared { root } => Some(PyBytes::new(py, root)),
            _ => None,
        }
    }

    #[getter]
    fn keys<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        key_list(py, self.key_slice())
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let group = self.group(py).map(|group| format!(" {group}")).unwrap_or_default();
        format!("<mimo_cache.Event {}: {}{group}, {} keys>", self.0.number, self.name(), self.key_slice().len())
    }
}

/// One resident page.
#[pyclass(frozen, eq, name = "SnapshotPage", module = "mimo_cache")]
#[derive(PartialEq)]
pub(super) struct PySnapshotPage(SnapshotPage);

#[pymethods]
impl PySnapshotPage {
    #[getter]
    fn key<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0.key)
    }

    #[getter]
    fn parent<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0.parent)
    }

    #[getter]
    fn full(&self) -> bool {
        self.0.full
    }

    #[getter]
    fn swa(&self) -> bool {
        self.0.swa
    }

    #[getter]
    fn window_safe(&self) -> bool {
        self.0.window_safe
    }

    fn __repr__(&self) -> String {
        let key = self.0.key[..4].iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let (full, swa, safe) = (self.0.full, self.0.swa, self.0.window_safe);
        format!("<mimo_cache.SnapshotPage {key}: full={full}, swa={swa}, window_safe={safe}>")
    }
}

/// What lookups can find now, parents first; equals the state after event `number`.
#[pyclass(frozen, eq, name = "Snapshot", module = "mimo_cache")]
#[derive(PartialEq)]
pub(super) struct PySnapshot(pub(super) Snapshot);

#[pymethods]
impl PySnapshot {
    #[getter]
    fn number(&self) -> u64 {
        self.0.number
    }

    #[getter]
    fn pages<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let pages = self.0.pages.iter().map(|page| Bound::new(py, PySnapshotPage(page.clone())));
        PyList::new(py, pages.collect::<PyResult<Vec<_>>>()?)
    }

    fn __repr__(&self) -> String {
        format!("<mimo_cache.Snapshot after event {}: {} pages>", self.0.number, self.0.pages.len())
    }
}
