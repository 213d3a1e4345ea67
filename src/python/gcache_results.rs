//! What the GCache client returns: the classes of `mimo_cache.gcache.types`, which both clients share.

use crate::client::{Counted, Got, Miss, Refusal, Stored};
use crate::rpc::v1::{StatsReply, TierStats};
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyMemoryView, PySlice, PyTuple};
use std::ffi::c_int;

/// Classes and members of enumerations that are looked up once.
struct Classes {
    get_result: Py<PyAny>,
    get_status: Py<PyAny>,
    put_status: Py<PyAny>,
    deleted: Py<PyAny>,
    verified: Py<PyAny>,
    node_stats: Py<PyAny>,
    tier_stats: Py<PyAny>,
    refused: Py<PyAny>,
}

static CLASSES: PyOnceLock<Classes> = PyOnceLock::new();

fn classes(py: Python<'_>) -> PyResult<&Classes> {
    CLASSES.get_or_try_init(py, || {
        let types = py.import("mimo_cache.gcache.types")?;
        let class = |name: &str| types.getattr(name).map(Bound::unbind);
        Ok(Classes {
            get_result: class("GetResult")?,
            get_status: class("GetStatus")?,
            put_status: class("PutStatus")?,
            deleted: class("Deleted")?,
            verified: class("Verified")?,
            node_stats: class("NodeStats")?,
            tier_stats: class("TierStats")?,
            refused: py.import("mimo_cache.gcache.errors")?.getattr("Refused")?.unbind(),
        })
    })
}

/// Bytes of a value that the caller gave no memory for.
#[pyclass(frozen, module = "mimo_cache._core")]
pub(super) struct Value(Vec<u8>);

#[pymethods]
impl Value {
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("no place for the view"));
        }
        let bytes = &slf.get().0;
        // SAFETY: the bytes never change or move while the object lives, and the view holds a reference to it.
        let rc = unsafe {
            let start = bytes.as_ptr().cast_mut().cast();
            ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start, bytes.len() as ffi::Py_ssize_t, 1, flags)
        };
        if rc == 0 { Ok(()) } else { Err(PyErr::fetch(slf.py())) }
    }
}

/// Where the bytes of a hit are.
pub(super) enum Where<'a, 'py> {
    /// In the caller's buffer.
    There(&'a Bound<'py, PyAny>),
    /// In memory of ours.
    Here(Vec<u8>),
    /// In several buffers of the caller.
    Spread,
}

/// A `GetResult`.
pub(super) fn got<'py>(py: Python<'py>, got: &Got, bytes: Where<'_, 'py>) -> PyResult<Bound<'py, PyAny>> {
    let c = classes(py)?;
    let status = |name: &str| c.get_status.bind(py).getattr(name);
    let make = |args: (Bound<'py, PyAny>, u64, Option<Bound<'py, PyAny>>, u32)| c.get_result.bind(py).call1(args);
    match got {
        Got::Hit { length, layout } => {
            let whole = match bytes {
                Where::There(buffer) => Some(PyMemoryView::from(buffer)?),
                Where::Here(value) => Some(PyMemoryView::from(Bound::new(py, Value(value))?.as_any())?),
                Where::Spread => None,
            };
            // Of element types that only numpy knows there is no view as bytes; the caller has the buffer.
            let flat = whole.and_then(|whole| whole.call_method1("cast", ("B",)).ok());
            let view = flat.map(|flat| flat.get_item(PySlice::new(py, 0, *length as isize, 1))).transpose()?;
            make((status("HIT")?, *length, view, *layout))
        }
        Got::TooLong { length } => make((status("TOO_LONG")?, *length, None, 0)),
        Got::Failed(refusal) => Err(refused(py, refusal)),
        Got::Miss(miss) => {
            let name = match miss {
                Miss::Absent | Miss::Reused => "ABSENT",
                Miss::Damaged => "DAMAGED",
                Miss::Late => "LATE",
                Miss::Unreachable | Miss::Refused | Miss::Overloaded | Miss::Ramp | Miss::NoNode => "UNREACHABLE",
            };
            make((status(name)?, 0, None, 0))
        }
    }
}

/// A `PutStatus`.
pub(super) fn stored<'py>(py: Python<'py>, stored: &Stored) -> PyResult<Bound<'py, PyAny>> {
    let name = match stored {
        Stored::Stored => "STORED",
        Stored::Present => "PRESENT",
        Stored::Busy => "BUSY",
        Stored::NoRoom => "NO_ROOM",
        Stored::Corrupt => "CORRUPT",
        Stored::Dropped(Miss::Late) => "LATE",
        Stored::Dropped(_) => "UNREACHABLE",
        Stored::Failed(refusal) => return Err(refused(py, refusal)),
    };
    classes(py)?.put_status.bind(py).getattr(name)
}

/// A `Deleted`.
pub(super) fn deleted<'py>(py: Python<'py>, counted: Counted) -> PyResult<Bound<'py, PyAny>> {
    let counted = accepted(py, counted)?;
    classes(py)?.deleted.bind(py).call1((counted.count, PyTuple::new(py, counted.unanswered)?))
}

/// A `Verified`.
pub(super) fn verified<'py>(py: Python<'py>, counted: Counted) -> PyResult<Bound<'py, PyAny>> {
    let counted = accepted(py, counted)?;
    classes(py)?.verified.bind(py).call1((counted.count, counted.dropped, PyTuple::new(py, counted.unanswered)?))
}

/// What was counted, unless a node refused.
pub(super) fn accepted(py: Python<'_>, counted: Counted) -> PyResult<Counted> {
    match &counted.refused {
        Some(refusal) => Err(refused(py, refusal)),
        None => Ok(counted),
    }
}

/// A `Refused`.
pub(super) fn refused(py: Python<'_>, refusal: &Refusal) -> PyErr {
    let code = match refusal.code {
        3 => "INVALID_ARGUMENT",
        7 => "PERMISSION_DENIED",
        9 => "FAILED_PRECONDITION",
        11 => "OUT_OF_RANGE",
        12 => "UNIMPLEMENTED",
        16 => "UNAUTHENTICATED",
        _ => "UNKNOWN",
    };
    match classes(py).and_then(|c| c.refused.bind(py).call1((&refusal.node, code, &refusal.sentence))) {
        Ok(error) => PyErr::from_value(error),
        Err(error) => error,
    }
}

/// A `NodeStats`.
pub(super) fn stats<'py>(py: Python<'py>, reply: &StatsReply) -> PyResult<Bound<'py, PyAny>> {
    let c = classes(py)?;
    let tiers = reply.tiers.iter().map(|tier| tier_stats(py, c, tier)).collect::<PyResult<Vec<_>>>()?;
    let fields = PyDict::new(py);
    fields.set_item("node", &reply.node)?;
    fields.set_item("program", &reply.program)?;
    fields.set_item("start_id", reply.start_id)?;
    fields.set_item("uptime_ms", reply.uptime_ms)?;
    fields.set_item("draining", reply.draining)?;
    fields.set_item("connections", reply.connections)?;
    fields.set_item("streams", reply.streams)?;
    fields.set_item("tiers", PyTuple::new(py, tiers)?)?;
    c.node_stats.bind(py).call((), Some(&fields))
}

fn tier_stats<'py>(py: Python<'py>, c: &Classes, tier: &TierStats) -> PyResult<Bound<'py, PyAny>> {
    let fields = PyDict::new(py);
    fields.set_item("name", &tier.name)?;
    fields.set_item("trouble", &tier.trouble)?;
    let numbers = [
        ("capacity_bytes", tier.capacity_bytes),
        ("used_bytes", tier.used_bytes),
        ("keys", tier.keys),
        ("objects", tier.objects),
        ("held_slots", tier.held_slots),
        ("leases", tier.leases),
        ("lease_bytes", tier.lease_bytes),
        ("writers", tier.writers),
        ("index_bytes", tier.index_bytes),
        ("hits", tier.hits),
        ("misses", tier.misses),
        ("committed", tier.committed),
        ("present", tier.present),
        ("busy", tier.busy),
        ("no_room", tier.no_room),
        ("aborted", tier.aborted),
        ("evicted_objects", tier.evicted_objects),
        ("evicted_bytes", tier.evicted_bytes),
        ("deleted", tier.deleted),
        ("damaged", tier.damaged),
        ("written_bytes", tier.written_bytes),
        ("read_bytes", tier.read_bytes),
        ("demoted", tier.demoted),
        ("promoted", tier.promoted),
    ];
    numbers.iter().try_for_each(|(name, value)| fields.set_item(name, value))?;
    c.tier_stats.bind(py).call((), Some(&fields))
}
