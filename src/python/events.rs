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
    /// Consecutive from 1.
    #[getter]
    fn number(&self) -> u64 {
        self.0.number
    }

    /// What happened. "window_safe" and "window_unsafe" speak of the boundaries at the ends of the pages.
    #[getter]
    fn kind(&self) -> &'static str {
        self.name()
    }

    /// The pool of "stored" and "removed".
    #[getter]
    fn group<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyString>> {
        match self.0.kind {
            EventKind::Stored { group, .. } | EventKind::Removed { group, .. } => Some(group_name(py, group)),
            _ => None,
        }
    }

    /// For "stored": the key before `keys[0]`.
    #[getter]
    fn parent<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        match &self.0.kind {
            EventKind::Stored { parent, .. } => Some(PyBytes::new(py, parent)),
            _ => None,
        }
    }

    /// For "stored" and "cleared": the root key of the namespace.
    #[getter]
    fn root<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        match &self.0.kind {
            EventKind::Stored { root, .. } | EventKind::Cleared { root } => Some(PyBytes::new(py, root)),
            _ => None,
        }
    }

    /// 32-byte chain keys; for "stored" consecutive pages of one prefix.
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
    /// Chain key of the page.
    #[getter]
    fn key<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0.key)
    }

    /// Key of its parent page or root.
    #[getter]
    fn parent<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0.parent)
    }

    /// Root key of its namespace.
    #[getter]
    fn root<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0.root)
    }

    /// Has full KV.
    #[getter]
    fn full(&self) -> bool {
        self.0.full
    }

    /// Has SWA KV.
    #[getter]
    fn swa(&self) -> bool {
        self.0.swa
    }

    /// The boundary at its end is window-safe.
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
    /// Number of the last event that is contained.
    #[getter]
    fn number(&self) -> u64 {
        self.0.number
    }

    /// All pages of attached namespaces.
    #[getter]
    fn pages<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let pages = self.0.pages.iter().map(|page| Bound::new(py, PySnapshotPage(page.clone())));
        PyList::new(py, pages.collect::<PyResult<Vec<_>>>()?)
    }

    fn __repr__(&self) -> String {
        format!("<mimo_cache.Snapshot after event {}: {} pages>", self.0.number, self.0.pages.len())
    }
}
