//! The exception classes, and how the core's errors become them.
//!
//! All derive from `MimoCacheError`; those for bad values are `ValueError`s as well. The numbers of an error are
//! attributes of the exception, with defaults on the class so that `except` clauses can rely on them.

use crate::error::Error;
use crate::sync::Fault;
use pyo3::exceptions::{PyException, PyKeyboardInterrupt, PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple, PyType};

struct Classes {
    base: Py<PyType>,
    invalid: Py<PyType>,
    out_of_pages: Py<PyType>,
    state: Py<PyType>,
    order: Py<PyType>,
    config: Py<PyType>,
    trace: Py<PyType>,
    io: Py<PyType>,
    integrity: Py<PyType>,
    forked: Py<PyType>,
}

static CLASSES: PyOnceLock<Classes> = PyOnceLock::new();

fn class<'py>(
    py: Python<'py>,
    name: &str,
    doc: &str,
    bases: &[&Bound<'py, PyType>],
    defaults: &[(&str, Py<PyAny>)],
) -> PyResult<Bound<'py, PyType>> {
    let members = PyDict::new(py);
    members.set_item("__module__", "mimo_cache")?;
    members.set_item("__doc__", doc)?;
    for (key, value) in defaults {
        members.set_item(key, value)?;
    }
    let made = py.get_type::<PyType>().call1((name, PyTuple::new(py, bases)?, members))?;
    Ok(made.cast_into::<PyType>()?)
}

fn classes(py: Python<'_>) -> PyResult<&Classes> {
    CLASSES.get_or_try_init(py, || {
        let text = |s: &str| -> PyResult<Py<PyAny>> { Ok(s.into_pyobject(py)?.into_any().unbind()) };
        let zero = || -> PyResult<Py<PyAny>> { Ok(0u64.into_pyobject(py)?.into_any().unbind()) };
        let exception = py.get_type::<PyException>();
        let value_error = py.get_type::<PyValueError>();
        let os_error = py.get_type::<PyOSError>();
        let base = class(py, "MimoCacheError", "Base of every error of this package.", &[&exception], &[])?;
        let invalid = class(
            py,
            "InvalidArgument",
            "A value outside what is allowed: `what` is `value`, allowed is `allowed` (all str).",
            &[&base, &value_error],
            &[("what", text("")?), ("value", text("")?), ("allowed", text("")?)],
        )?;
        let out_of_pages = class(
            py,
            "OutOfPages",
            "Pages that cannot be served now; nothing was changed. `pool` is \"full\", \"swa\" or \"scratch\"; the \
             other attributes count pages. `needed > most` can never succeed.",
            &[&base],
            &[
                ("pool", text("")?),
                ("needed", zero()?),
                ("free", zero()?),
                ("quarantined", zero()?),
                ("evictable", zero()?),
                ("promised", zero()?),
                ("total", zero()?),
                ("most", zero()?),
            ],
        )?;
        let state = class(
            py,
            "SequenceStateError",
            "The call does not fit the state of the sequence or request.",
            &[&base],
            &[("call", text("")?), ("state", text("")?), ("allowed", text("")?)],
        )?;
        let order = class(
            py,
            "StepOrderError",
            "A step or move number out of order: `value` was given, `expected` (str) is allowed.",
            &[&base],
            &[("what", text("")?), ("value", zero()?), ("expected", text("")?)],
        )?;
        let config = class(
            py,
            "ConfigError",
            "A model configuration with missing or contradictory fields.",
            &[&base, &value_error],
            &[],
        )?;
        let trace = class(
            py,
            "TraceError",
            "A trace line that cannot be read; `line` counts from 1.",
            &[&base, &value_error],
            &[("line", zero()?)],
        )?;
        let io = class(py, "FileError", "A file that cannot be read or written.", &[&base, &os_error], &[])?;
        let integrity = class(
            py,
            "IntegrityError",
            "The cache's structures contradict each other, or a call failed inside it: a bug in this package. After \
             such a failure every call on that cache is refused.",
            &[&base],
            &[],
        )?;
        let forked = class(
            py,
            "ForkedProcessError",
            "A cache or client of the parent process was used in a forked child. Create it in the process that uses it.",
            &[&base],
            &[],
        )?;
        Ok(Classes {
            base: base.unbind(),
            invalid: invalid.unbind(),
            out_of_pages: out_of_pages.unbind(),
            state: state.unbind(),
            order: order.unbind(),
            config: config.unbind(),
            trace: trace.unbind(),
            io: io.unbind(),
            integrity: integrity.unbind(),
            forked: forked.unbind(),
        })
    })
}

pub(super) fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = m.py();
    let c = classes(py)?;
    for class in
        [&c.base, &c.invalid, &c.out_of_pages, &c.state, &c.order, &c.config, &c.trace, &c.io, &c.integrity, &c.forked]
    {
        let class = class.bind(py);
        m.add(class.name()?, class)?;
    }
    Ok(())
}

/// The exception for a core error.
pub(super) fn to_py(py: Python<'_>, error: Error) -> PyErr {
    build(py, error).unwrap_or_else(|failure| failure)
}

/// The exception for a refused call.
pub(super) fn fault_to_py(py: Python<'_>, fault: Fault) -> PyErr {
    match fault {
        Fault::Core(error) => to_py(py, error),
        Fault::Forked => forked(py, "cache"),
    }
}

/// For a call on a `what` of the parent process in a forked child.
pub(super) fn forked(py: Python<'_>, what: &str) -> PyErr {
    let words = format!("this {what} belongs to the parent process; a forked child must create its own");
    match classes(py) {
        Ok(c) => PyErr::from_type(c.forked.bind(py).clone(), words),
        Err(failure) => failure,
    }
}

/// An `InvalidArgument`.
pub(super) fn invalid(
    py: Python<'_>,
    what: &'static str,
    value: impl std::fmt::Display,
    allowed: impl std::fmt::Display,
) -> PyErr {
    to_py(py, Error::invalid(what, value, allowed))
}

fn build(py: Python<'_>, error: Error) -> PyResult<PyErr> {
    let c = classes(py)?;
    let message = error.to_string();
    let make = |class: &Py<PyType>| PyErr::from_type(class.bind(py).clone(), message.clone());
    let err = match &error {
        Error::Invalid { what, value, allowed } => {
            let err = make(&c.invalid);
            let e = err.value(py);
            e.setattr("what", what)?;
            e.setattr("value", value)?;
            e.setattr("allowed", allowed)?;
            err
        }
        Error::OutOfPages(o) => {
            let err = make(&c.out_of_pages);
            let e = err.value(py);
            e.setattr("pool", o.pool.to_string())?;
            e.setattr("needed", o.needed)?;
            e.setattr("free", o.free)?;
            e.setattr("quarantined", o.quarantined)?;
            e.setattr("evictable", o.evictable)?;
            e.setattr("promised", o.promised)?;
            e.setattr("total", o.total)?;
            e.setattr("most", o.most)?;
            err
        }
        Error::State { call, state, allowed } => {
            let err = make(&c.state);
            let e = err.value(py);
            e.setattr("call", call)?;
            e.setattr("state", state)?;
            e.setattr("allowed", allowed)?;
            err
        }
        Error::Order { what, value, expected } => {
            let err = make(&c.order);
            let e = err.value(py);
            e.setattr("what", what)?;
            e.setattr("value", value)?;
            e.setattr("expected", expected)?;
            err
        }
        Error::Config(_) => make(&c.config),
        Error::Trace { line, .. } => {
            let err = make(&c.trace);
            err.value(py).setattr("line", line)?;
            err
        }
        Error::Io { .. } => make(&c.io),
        // Where it comes from knows the exception; this is for whoever does not.
        Error::Interrupted => PyKeyboardInterrupt::new_err(message.clone()),
        Error::Integrity(_) => make(&c.integrity),
    };
    Ok(err)
}
