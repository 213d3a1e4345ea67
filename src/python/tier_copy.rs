//! `KvCopier` and `CopyJob`: copies between device memory and the host region, with the GIL released in every wait.

use super::args::{self, int, items, shown, type_name};
use super::buffers::{Buffer, Refused, int_format, shared_view};
use super::errors::{forked, invalid};
use super::tier_errors::{broken, cancelled, closed, failed, tier_to_py};
use super::tier_layout::{Owners, PyHostRegion, device_layout};
use crate::tier::{Copier, CopierConfig, Direction, Job, Outcome, Pair, TierError};
use pyo3::exceptions::PyTimeoutError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};

const PAIRS: &str = "an integer array of shape [n, 2] or a list of tuples, (device page, host page) each";
/// Pairs from which a submission releases the GIL.
const LONG: usize = 256;
/// How long a wait sleeps before it looks for signals.
const STEP: Duration = Duration::from_millis(100);
/// Longest timeout, in seconds.
const MOST_SECONDS: f64 = 1e6;

/// Copies pages between the device memory of a layout and a host region, on threads of its own.
///
/// `threads`: 1 to 64. `max_jobs`, `max_bytes`: what may be in flight; a job beyond it raises `CopyBusy` and copies
/// nothing. Jobs run in the order of their submission, loads before saves. While a job runs nobody else writes what it
/// reads or touches what it writes.
#[pyclass(frozen, name = "KvCopier", module = "mimo_cache._core")]
pub(super) struct PyKvCopier {
    /// `None` once it is closed.
    copier: RwLock<Option<Arc<Copier>>>,
    owners: Arc<Owners>,
    process: u32,
}

impl PyKvCopier {
    fn copier(&self, py: Python<'_>) -> PyResult<Arc<Copier>> {
        if self.process != std::process::id() {
            return Err(forked(py, "copier"));
        }
        self.copier.read().unwrap_or_else(|e| e.into_inner()).clone().ok_or_else(|| closed(py))
    }

    fn submit(
        &self,
        py: Python<'_>,
        direction: Direction,
        full: Option<&Bound<'_, PyAny>>,
        swa: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<PyCopyJob> {
        let copier = self.copier(py)?;
        let (full, swa) = (pairs(full, "full")?, pairs(swa, "swa")?);
        let submit = || {
            let job = catch_unwind(AssertUnwindSafe(|| copier.submit(direction, &full, &swa)));
            // Its last holder joins the threads.
            drop(copier);
            job
        };
        let job = if full.len() + swa.len() >= LONG { py.detach(submit) } else { submit() };
        let job = job.map_err(|_| broken(py, "copier"))?.map_err(|error| tier_to_py(py, error))?;
        Ok(PyCopyJob { job, owners: Arc::clone(&self.owners), process: self.process })
    }
}

#[pymethods]
impl PyKvCopier {
    #[new]
    #[pyo3(
        signature = (layout, region, *, threads=None, max_jobs=None, max_bytes=None),
        text_signature = "(layout, region, *, threads=1, max_jobs=64, max_bytes=None)"
    )]
    fn new(
        layout: &Bound<'_, PyAny>,
        region: &Bound<'_, PyAny>,
        threads: Option<&Bound<'_, PyAny>>,
        max_jobs: Option<&Bound<'_, PyAny>>,
        max_bytes: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let py = layout.py();
        let layout = device_layout(layout)?.get();
        let region =
            region.cast::<PyHostRegion>().map_err(|_| invalid(py, "region", type_name(region), "a HostRegion"))?.get();
        let config = CopierConfig {
            threads: args::int_or(threads, 1, "threads", 0, u64::from(u32::MAX))? as usize,
            max_jobs: args::int_or(max_jobs, 64, "max_jobs", 0, u64::from(u32::MAX))? as usize,
            max_bytes: args::int_or(max_bytes, u64::MAX, "max_bytes", 0, u64::MAX)?,
        };
        let copier = Copier::new(Arc::clone(&layout.memory), Arc::clone(&region.0), config);
        let copier = copier.map_err(|error| tier_to_py(py, error))?;
        Ok(PyKvCopier {
            copier: RwLock::new(Some(Arc::new(copier))),
            owners: Arc::clone(&layout.owners),
            process: std::process::id(),
        })
    }

    /// Copies pages from host to device memory, layer by layer: `full` and `swa` list (device page, host page), as
    /// an integer array of shape [n, 2] or a list of tuples. Raises `InvalidArgument` or `CopyBusy`, with nothing
    /// copied.
    #[pyo3(signature = (full=None, swa=None))]
    fn load(
        &self,
        py: Python<'_>,
        full: Option<&Bound<'_, PyAny>>,
        swa: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<PyCopyJob> {
        self.submit(py, Direction::Load, full, swa)
    }

    /// Copies pages from device to host memory; arguments and errors as `load`.
    #[pyo3(signature = (full=None, swa=None))]
    fn save(
        &self,
        py: Python<'_>,
        full: Option<&Bound<'_, PyAny>>,
        swa: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<PyCopyJob> {
        self.submit(py, Direction::Save, full, swa)
    }

    /// Jobs and bytes in flight.
    fn in_flight(&self, py: Python<'_>) -> PyResult<(usize, u64)> {
        Ok(self.copier(py)?.in_flight())
    }

    /// Cancels what is in flight and ends the threads. Calls after it raise `CopierClosed`; waits raise
    /// `CopyCancelled`.
    fn close(&self, py: Python<'_>) {
        let copier = self.copier.write().unwrap_or_else(|e| e.into_inner()).take();
        py.detach(|| drop(copier));
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_args))]
    fn __exit__(&self, py: Python<'_>, _args: &Bound<'_, PyTuple>) {
        self.close(py);
    }
}

/// One job of a copier. Dropping it does not cancel the job.
#[pyclass(frozen, name = "CopyJob", module = "mimo_cache._core")]
pub(super) struct PyCopyJob {
    job: Job,
    owners: Arc<Owners>,
    process: u32,
}

impl PyCopyJob {
    /// Waits in steps, so that signals are seen. False: not within the timeout.
    fn await_outcome(
        &self,
        py: Python<'_>,
        timeout: Option<&Bound<'_, PyAny>>,
        wait: impl Fn(Duration) -> Result<Outcome, TierError> + Sync,
    ) -> PyResult<bool> {
        if self.process != std::process::id() {
            return Err(forked(py, "copier"));
        }
        let until = seconds(timeout)?.map(|timeout| Instant::now() + timeout);
        loop {
            let left = until.map_or(STEP, |until| until.saturating_duration_since(Instant::now()));
            match py.detach(|| wait(left.min(STEP))).map_err(|error| tier_to_py(py, error))? {
                Outcome::Done => return Ok(true),
                Outcome::Cancelled => return Err(cancelled(py)),
                Outcome::Failed(words) => return Err(failed(py, &words)),
                Outcome::Pending if left <= STEP && until.is_some() => return Ok(false),
                Outcome::Pending => py.check_signals()?,
            }
        }
    }

    fn layer_number(&self, layer: &Bound<'_, PyAny>) -> PyResult<u32> {
        int(layer, "layer", 0, u64::from(u32::MAX)).map(|layer| layer as u32)
    }
}

#[pymethods]
impl PyCopyJob {
    /// Waits until the job is over. False: not within `timeout` seconds. Raises `CopyCancelled` or `CopyFailed`;
    /// nothing of the job is written any more then.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<&Bound<'_, PyAny>>) -> PyResult<bool> {
        self.await_outcome(py, timeout, |step| Ok(self.job.wait(Some(step))))
    }

    /// Waits until all parts of the layers up to `layer` are copied. False: not within `timeout` seconds. Raises as
    /// `wait`, and `InvalidArgument` for a save.
    #[pyo3(signature = (layer, timeout=None))]
    fn wait_layer(&self, layer: &Bound<'_, PyAny>, timeout: Option<&Bound<'_, PyAny>>) -> PyResult<bool> {
        let number = self.layer_number(layer)?;
        self.await_outcome(layer.py(), timeout, |step| self.job.wait_layer(number, Some(step)))
    }

    /// Waits as `wait_layer` and returns what the layout was given for the layer, full before SWA. Raises
    /// `TimeoutError` after `timeout` seconds, and `InvalidArgument` for a layer that the layout does not have.
    #[pyo3(signature = (layer, timeout=None))]
    fn layer<'py>(
        &self,
        layer: &Bound<'py, PyAny>,
        timeout: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyTuple>> {
        let (py, number) = (layer.py(), self.layer_number(layer)?);
        if !self.job.layers().contains(&number) && self.job.direction() == Direction::Load {
            return Err(invalid(py, "layer", number, format!("one of the layout: {:?}", self.job.layers())));
        }
        if !self.await_outcome(py, timeout, |step| self.job.wait_layer(number, Some(step)))? {
            return Err(PyTimeoutError::new_err(format!("layer {number} is not there yet")));
        }
        self.owners.of(py, number)
    }

    /// Whether the job is over, however it ended.
    fn done(&self) -> bool {
        self.process == std::process::id() && self.job.done()
    }

    /// Asks the job to end after the pages under way; `wait` tells when it has, and whether it was done before.
    fn cancel(&self, py: Python<'_>) -> PyResult<()> {
        if self.process != std::process::id() {
            return Err(forked(py, "copier"));
        }
        py.detach(|| self.job.cancel());
        Ok(())
    }

    /// How the job stands.
    #[getter]
    fn outcome(&self, py: Python<'_>) -> PyResult<&'static str> {
        if self.process != std::process::id() {
            return Err(forked(py, "copier"));
        }
        Ok(match self.job.outcome() {
            Outcome::Pending => "pending",
            Outcome::Done => "done",
            Outcome::Cancelled => "cancelled",
            Outcome::Failed(_) => "failed",
        })
    }

    /// Where its bytes go: "load" to device memory, "save" to host memory.
    #[getter]
    fn direction(&self) -> &'static str {
        match self.job.direction() {
            Direction::Load => "load",
            Direction::Save => "save",
        }
    }

    /// Layers of a load, ascending; empty for a save.
    #[getter]
    fn layers(&self) -> Vec<u32> {
        self.job.layers().to_vec()
    }

    /// Bytes copied so far.
    #[getter]
    fn copied_bytes(&self) -> u64 {
        self.job.progress().copied
    }

    /// Bytes of the job.
    #[getter]
    fn bytes(&self) -> u64 {
        self.job.progress().bytes
    }

    /// Layers that are ready, counted from the first; of a save 0 or 1.
    #[getter]
    fn ready_layers(&self) -> usize {
        self.job.progress().ready
    }

    /// For each layer of a load (layer, ns spent on copying it over all threads, ns from submission until it was
    /// ready or None, ns spent in waits for it over all callers).
    fn times(&self) -> Vec<(u32, u64, Option<u64>, u64)> {
        self.job.times().into_iter().map(|t| (t.layer, t.copied_ns, t.ready_ns, t.waited_ns)).collect()
    }
}

fn seconds(value: Option<&Bound<'_, PyAny>>) -> PyResult<Option<Duration>> {
    let Some(value) = value else { return Ok(None) };
    match value.extract::<f64>().ok().filter(|s| (0.0..=MOST_SECONDS).contains(s)) {
        Some(seconds) => Ok(Some(Duration::from_secs_f64(seconds))),
        None => Err(invalid(value.py(), "timeout", shown(value), "seconds from 0 to 1000000, or None")),
    }
}

/// Page ids of one group.
fn pairs(value: Option<&Bound<'_, PyAny>>, what: &'static str) -> PyResult<Vec<Pair>> {
    let Some(value) = value else { return Ok(Vec::new()) };
    let py = value.py();
    let view = match shared_view(value) {
        Ok(Some(view)) => view,
        Ok(None) => return listed(value, what),
        Err(error) => return Err(invalid(py, what, format!("{} ({})", type_name(value), error.value(py)), PAIRS)),
    };
    let buffer = Buffer::new(&view, false)
        .map_err(|Refused(words)| invalid(py, what, format!("{} ({words})", type_name(value)), PAIRS))?;
    let format = int_format(buffer.format()).filter(|f| !f.swapped);
    let (Some(format), [_, 2], true) = (format, buffer.shape(), buffer.c_contiguous()) else {
        let strided = if buffer.c_contiguous() { "" } else { ", not C-contiguous" };
        return Err(invalid(py, what, format!("{}{strided}", buffer.words(&view)), PAIRS));
    };
    let size = buffer.item_size();
    let bytes: &[u8] = match buffer.len() {
        0 => &[],
        // SAFETY: contiguous memory of the exporter, held by `buffer`.
        len => unsafe { std::slice::from_raw_parts(buffer.pointer(), len) },
    };
    let id = |bytes: &[u8]| -> PyResult<u32> {
        let wide = match (size, format.signed) {
            (4, true) => i128::from(i32::from_ne_bytes(bytes.try_into()?)),
            (4, false) => i128::from(u32::from_ne_bytes(bytes.try_into()?)),
            (8, true) => i128::from(i64::from_ne_bytes(bytes.try_into()?)),
            (8, false) => i128::from(u64::from_ne_bytes(bytes.try_into()?)),
            _ => return Err(invalid(py, what, buffer.words(&view), "integers of 32 or 64 bits")),
        };
        u32::try_from(wide).map_err(|_| invalid(py, what, wide, "page ids from 0 to 4294967295"))
    };
    let pair = |bytes: &[u8]| Ok(Pair { device: id(&bytes[..size])?, host: id(&bytes[size..])? });
    bytes.chunks_exact(2 * size.max(1)).map(pair).collect()
}

fn listed(value: &Bound<'_, PyAny>, what: &'static str) -> PyResult<Vec<Pair>> {
    let one = |item: Bound<'_, PyAny>| {
        let bad = || invalid(item.py(), what, shown(&item), "tuples (device page, host page)");
        let fields = item.cast::<PyTuple>().map_err(|_| bad())?;
        if fields.len() != 2 {
            return Err(bad());
        }
        let id = |n, what| int(&fields.get_item(n)?, what, 0, u64::from(u32::MAX)).map(|id| id as u32);
        Ok(Pair { device: id(0, "device page")?, host: id(1, "host page")? })
    };
    items(value, what, "tuples (device page, host page)")?.into_iter().map(one).collect()
}
