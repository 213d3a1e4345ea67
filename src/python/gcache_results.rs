//! What the GCache client returns: the classes of `mimo_cache.gcache.types`, which both clients share.

use crate::client::{Counted, Got, Miss, Refusal, Source, Stored};
use crate::rpc::v1::{StatsReply, TierStats};
use pyo3::exceptions::{PyBufferError, PyMemoryError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyMemoryView, PySlice, PyTuple};
use std::ffi::c_int;
use std::sync::Arc;

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
    type Fields<'py> = (Bound<'py, PyAny>, u64, Option<Bound<'py, PyAny>>, u32, Option<&'static str>);
    let make = |fields: Fields<'py>| c.get_result.bind(py).call1(fields);
    match got {
        Got::Hit { length, layout, source } => {
            let whole = match bytes {
                Where::There(buffer) => Some(PyMemoryView::from(buffer)?),
                Where::Here(value) => Some(PyMemoryView::from(Bound::new(py, Value(value))?.as_any())?),
                Where::Spread => None,
            };
            // Of element types that only numpy knows there is no view as bytes; the caller has the buffer.
            let flat = whole.and_then(|whole| whole.call_method1("cast", ("B",)).ok());
            let view = flat.map(|flat| flat.get_item(PySlice::new(py, 0, *length as isize, 1))).transpose()?;
            make((status("HIT")?, *length, view, *layout, source.map(Source::name)))
        }
        Got::TooLong { length } => make((status("TOO_LONG")?, *length, None, 0, None)),
        Got::Failed(_) => make((status("REFUSED")?, 0, None, 0, None)),
        Got::Miss(Miss::NoMemory) => Err(no_memory()),
        Got::Miss(miss) => {
            let name = match miss {
                Miss::Absent => "ABSENT",
                Miss::Damaged => "DAMAGED",
                Miss::Late => "LATE",
                _ => "UNREACHABLE",
            };
            make((status(name)?, 0, None, 0, None))
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
        Stored::Dropped(Miss::NoMemory) => return Err(no_memory()),
        Stored::Dropped(Miss::Late) => "LATE",
        Stored::Dropped(_) => "UNREACHABLE",
        Stored::Failed(_) => "REFUSED",
    };
    classes(py)?.put_status.bind(py).getattr(name)
}

fn no_memory() -> PyErr {
    PyMemoryError::new_err("no memory for the bytes of a value")
}

/// The refusal to raise: of the first object, where all of them were refused. A node that refuses takes nothing from what the
/// others have answered.
pub(super) fn unless_all_refused<'a>(
    py: Python<'_>,
    mut each: impl Iterator<Item = Option<&'a Arc<Refusal>>>,
) -> PyResult<()> {
    let Some(Some(first)) = each.next() else { return Ok(()) };
    if each.all(|one| one.is_some()) { Err(refused(py, first)) } else { Ok(()) }
}

/// What a get says that was refused.
pub(super) fn refusal_of_got(got: &Got) -> Option<&Arc<Refusal>> {
    match got {
        Got::Failed(refusal) => Some(refusal),
        _ => None,
    }
}

/// What a put says that was refused.
pub(super) fn refusal_of_stored(stored: &Stored) -> Option<&Arc<Refusal>> {
    match stored {
        Stored::Failed(refusal) => Some(refusal),
        _ => None,
    }
}

/// Names of the nodes that refused.
fn names<'py>(py: Python<'py>, refused: &[Arc<Refusal>]) -> PyResult<Bound<'py, PyTuple>> {
    PyTuple::new(py, refused.iter().map(|refusal| &refusal.node))
}

/// A `Deleted`.
pub(super) fn deleted<'py>(py: Python<'py>, counted: Counted) -> PyResult<Bound<'py, PyAny>> {
    let counted = accepted(py, counted)?;
    let refused = names(py, &counted.refused)?;
    classes(py)?.deleted.bind(py).call1((counted.count, PyTuple::new(py, counted.unanswered)?, refused))
}

/// A `Verified`.
pub(super) fn verified<'py>(py: Python<'py>, counted: Counted) -> PyResult<Bound<'py, PyAny>> {
    let counted = accepted(py, counted)?;
    let (refused, silent) = (names(py, &counted.refused)?, PyTuple::new(py, counted.unanswered)?);
    classes(py)?.verified.bind(py).call1((counted.count, counted.dropped, silent, refused))
}

/// What was counted, unless everything was refused.
pub(super) fn accepted(py: Python<'_>, counted: Counted) -> PyResult<Counted> {
    match counted.refused.first() {
        Some(refusal) if counted.all_refused => Err(refused(py, refusal)),
        _ => Ok(counted),
    }
}

/// A `Closed`.
pub(super) fn closed(py: Python<'_>) -> PyErr {
    let made = py.import("mimo_cache.gcache.errors").and_then(|errors| errors.getattr("Closed")?.call0());
    made.map_or_else(|error| error, PyErr::from_value)
}

/// A `Refused`, to raise.
pub(super) fn refused(py: Python<'_>, refusal: &Refusal) -> PyErr {
    refusal_object(py, refusal).map_or_else(|error| error, PyErr::from_value)
}

/// A `Refused`.
pub(super) fn refusal_object<'py>(py: Python<'py>, refusal: &Refusal) -> PyResult<Bound<'py, PyAny>> {
    let code = match refusal.code {
        3 => "INVALID_ARGUMENT",
        7 => "PERMISSION_DENIED",
        9 => "FAILED_PRECONDITION",
        11 => "OUT_OF_RANGE",
        12 => "UNIMPLEMENTED",
        16 => "UNAUTHENTICATED",
        _ => "UNKNOWN",
    };
    classes(py)?.refused.bind(py).call1((&refusal.node, code, &refusal.sentence))
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
