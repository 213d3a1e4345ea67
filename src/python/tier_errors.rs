//! Errors of the host tier: the classes of `mimo_cache.tiers.errors`.

use super::errors::{invalid, to_py};
use crate::error::Error;
use crate::tier::TierError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

struct Classes {
    memory: Py<PyAny>,
    busy: Py<PyAny>,
    cancelled: Py<PyAny>,
    failed: Py<PyAny>,
    closed: Py<PyAny>,
    cuda: Py<PyAny>,
}

static CLASSES: PyOnceLock<Classes> = PyOnceLock::new();

fn classes(py: Python<'_>) -> PyResult<&Classes> {
    CLASSES.get_or_try_init(py, || {
        let errors = py.import("mimo_cache.tiers.errors")?;
        let class = |name: &str| errors.getattr(name).map(Bound::unbind);
        Ok(Classes {
            memory: class("HostMemoryError")?,
            busy: class("CopyBusy")?,
            cancelled: class("CopyCancelled")?,
            failed: class("CopyFailed")?,
            closed: class("CopierClosed")?,
            cuda: class("CudaError")?,
        })
    })
}

fn made(py: Python<'_>, class: impl FnOnce(&Classes) -> &Py<PyAny>, words: String) -> PyErr {
    match classes(py).and_then(|c| class(c).bind(py).call1((words,))) {
        Ok(error) => PyErr::from_value(error),
        Err(failure) => failure,
    }
}

/// The exception for an error of the host tier.
pub(super) fn tier_to_py(py: Python<'_>, error: TierError) -> PyErr {
    let words = error.to_string();
    match error {
        TierError::Invalid { what, value, allowed } => invalid(py, what, value, allowed),
        TierError::Memory { .. } => made(py, |c| &c.memory, words),
        TierError::Busy { .. } => made(py, |c| &c.busy, words),
        TierError::Closed(_) => made(py, |c| &c.closed, words),
        TierError::Cuda(_) => made(py, |c| &c.cuda, words),
        TierError::Thread { .. } => made(py, |c| &c.failed, words),
    }
}

/// For a wait on a job that was cancelled.
pub(super) fn cancelled(py: Python<'_>) -> PyErr {
    made(py, |c| &c.cancelled, "the job was cancelled; what it has not copied is as it was".to_string())
}

/// For a wait on a job in which a copy thread failed.
pub(super) fn failed(py: Python<'_>, words: &str) -> PyErr {
    made(py, |c| &c.failed, format!("a copy thread failed ({words}); what the job wrote is anything"))
}

/// For a call on a closed copier.
pub(super) fn closed(py: Python<'_>) -> PyErr {
    tier_to_py(py, TierError::Closed("was closed"))
}

/// For a call that failed inside this crate.
pub(super) fn broken(py: Python<'_>, what: &str) -> PyErr {
    to_py(py, Error::Integrity(format!("a call failed inside the {what}")))
}
