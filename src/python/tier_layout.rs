//! `DeviceLayout` and `HostRegion`: where pages lie in device memory, and the memory of the host tier.

use super::args::{self, int, items, shown, text};
use super::errors::invalid;
use super::tier_errors::tier_to_py;
use crate::tier::{DeviceMemory, HostRegion, Hugepages, Layout, Part, PoolGroup};
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyMemoryView, PyTuple};
use std::ffi::c_int;
use std::sync::Arc;

const U32: u64 = u32::MAX as u64;
const PART: &str = "a tuple (address, page_stride, bytes, layer, owner)";

/// The objects whose memory a layout describes, by layer. Copy threads may drop the last hold: PyO3 then keeps the
/// references until a thread has the GIL, so that no copy thread waits for it.
pub(super) struct Owners(Vec<(u32, Py<PyAny>)>);

impl Owners {
    /// What was given for one layer, in the order of the layout.
    pub(super) fn of<'py>(&self, py: Python<'py>, layer: u32) -> PyResult<Bound<'py, PyTuple>> {
        let own = self.0.iter().filter(|(of, _)| *of == layer).map(|(_, owner)| owner.bind(py));
        PyTuple::new(py, own.collect::<Vec<_>>())
    }
}

/// Where the pages of a cache lie in device memory. `mimo_cache.tiers.device_layout` makes one from tensors.
///
/// `full` and `swa`: parts `(address, page_stride, bytes, layer, owner)` with ascending layers. Page i of a part is
/// `bytes` bytes at `address + i * page_stride`; page 0 is the null page, which is never touched. `owner` keeps the
/// memory alive and is what `CopyJob.layer` returns. The memory must be writable by this process at these addresses,
/// without a device in between: nobody can check that.
#[pyclass(frozen, name = "DeviceLayout", module = "mimo_cache._core")]
pub(super) struct PyDeviceLayout {
    pub(super) memory: Arc<DeviceMemory>,
    pub(super) owners: Arc<Owners>,
}

fn parts(
    value: Option<&Bound<'_, PyAny>>,
    what: &'static str,
    owners: &mut Vec<(u32, Py<PyAny>)>,
) -> PyResult<Vec<Part>> {
    let Some(value) = value else { return Ok(Vec::new()) };
    let one = |item: Bound<'_, PyAny>| {
        let bad = || invalid(item.py(), what, shown(&item), PART);
        let fields = item.cast::<PyTuple>().map_err(|_| bad())?;
        if fields.len() != 5 {
            return Err(bad());
        }
        let size = |n, what| int(&fields.get_item(n)?, what, 0, usize::MAX as u64).map(|v| v as usize);
        let part = Part {
            base: size(0, "address of a part")?,
            page_stride: size(1, "page stride of a part")?,
            bytes: size(2, "bytes of a part")?,
            layer: int(&fields.get_item(3)?, "layer of a part", 0, U32)? as u32,
        };
        owners.push((part.layer, fields.get_item(4)?.unbind()));
        Ok(part)
    };
    items(value, what, PART)?.into_iter().map(one).collect()
}

#[pymethods]
impl PyDeviceLayout {
    #[new]
    #[pyo3(
        signature = (*, full=None, swa=None, full_pages=None, swa_pages=None),
        text_signature = "(*, full=None, swa=None, full_pages=0, swa_pages=0)"
    )]
    fn new(
        py: Python<'_>,
        full: Option<&Bound<'_, PyAny>>,
        swa: Option<&Bound<'_, PyAny>>,
        full_pages: Option<&Bound<'_, PyAny>>,
        swa_pages: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let mut owners = Vec::new();
        let full = parts(full, "full", &mut owners)?;
        let swa = parts(swa, "swa", &mut owners)?;
        let full_pages = args::int_or(full_pages, 0, "full_pages", 0, U32)? as u32;
        let swa_pages = args::int_or(swa_pages, 0, "swa_pages", 0, U32)? as u32;
        let layout = Layout::new(full, full_pages, swa, swa_pages).map_err(|error| tier_to_py(py, error))?;
        let owners = Arc::new(Owners(owners));
        // SAFETY: whoever makes a layout from addresses vouches for them; the owners keep the memory.
        let memory = unsafe { DeviceMemory::new(layout, Arc::clone(&owners) as _) };
        Ok(PyDeviceLayout { memory: Arc::new(memory), owners })
    }

    /// Layers that have parts, ascending.
    #[getter]
    fn layers(&self) -> Vec<u32> {
        self.memory.layout().steps().iter().map(|step| step.layer).collect()
    }

    /// Pages of the full group in device memory, the null page included; 0 without the group.
    #[getter]
    fn full_pages(&self) -> u32 {
        self.memory.layout().group(PoolGroup::Full).pages()
    }

    /// Pages of the SWA group in device memory, the null page included; 0 without the group.
    #[getter]
    fn swa_pages(&self) -> u32 {
        self.memory.layout().group(PoolGroup::Swa).pages()
    }

    /// 32 bytes that stand for the order of bytes in host pages: layers and sizes of all parts.
    #[getter]
    fn digest<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.memory.layout().digest())
    }

    /// Bytes of a full page, over all parts.
    #[getter]
    fn full_page_bytes(&self) -> usize {
        self.memory.layout().group(PoolGroup::Full).page_bytes()
    }

    /// Bytes of an SWA page, over all parts.
    #[getter]
    fn swa_page_bytes(&self) -> usize {
        self.memory.layout().group(PoolGroup::Swa).page_bytes()
    }
}

/// "full" or "swa".
fn group(value: &Bound<'_, PyAny>) -> PyResult<PoolGroup> {
    match text(Some(value), "", "group")?.as_ref() {
        "full" => Ok(PoolGroup::Full),
        "swa" => Ok(PoolGroup::Swa),
        _ => Err(invalid(value.py(), "group", shown(value), "\"full\" or \"swa\"")),
    }
}

/// A page of a host region, for a memoryview.
#[pyclass(frozen, module = "mimo_cache._core")]
struct HostPage {
    region: Arc<HostRegion>,
    group: PoolGroup,
    id: u32,
    writable: bool,
}

#[pymethods]
impl HostPage {
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("no place for the view"));
        }
        let page = slf.get();
        let (start, len) = page.region.page(page.group, page.id).map_err(|error| tier_to_py(slf.py(), error))?;
        let readonly = c_int::from(!page.writable);
        // SAFETY: the page stays mapped while the region lives, which this object holds, which the view holds.
        let rc = unsafe {
            ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start.cast(), len as ffi::Py_ssize_t, readonly, flags)
        };
        if rc == 0 { Ok(()) } else { Err(PyErr::fetch(slf.py())) }
    }
}

/// Memory of the host tier: a pool of whole pages for each group of a layout, in one mapping that is taken in full,
/// zeroed.
///
/// `full_pages`, `swa_pages`: usable pages; ids are 1 to that, and the null page 0 has no memory. A page is the
/// concatenation of its parts in the order of the layout, rounded up to 4,096 bytes. `hugepages`: "auto" asks the
/// system for them, "off" does not. The memory is given back when the region, its views and all jobs are gone. Raises
/// `HostMemoryError` where it cannot be had.
#[pyclass(frozen, name = "HostRegion", module = "mimo_cache._core")]
pub(super) struct PyHostRegion(pub(super) Arc<HostRegion>);

#[pymethods]
impl PyHostRegion {
    #[new]
    #[pyo3(
        signature = (layout, *, full_pages=None, swa_pages=None, hugepages=None),
        text_signature = "(layout, *, full_pages=0, swa_pages=0, hugepages='auto')"
    )]
    fn new(
        layout: &Bound<'_, PyAny>,
        full_pages: Option<&Bound<'_, PyAny>>,
        swa_pages: Option<&Bound<'_, PyAny>>,
        hugepages: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let py = layout.py();
        let memory = &device_layout(layout)?.get().memory;
        let full_pages = args::int_or(full_pages, 0, "full_pages", 0, U32)? as u32;
        let swa_pages = args::int_or(swa_pages, 0, "swa_pages", 0, U32)? as u32;
        let huge = match text(hugepages, "auto", "hugepages")?.as_ref() {
            "auto" => Hugepages::Auto,
            "off" => Hugepages::Off,
            other => return Err(invalid(py, "hugepages", format!("{other:?}"), "\"auto\" or \"off\"")),
        };
        let region = py.detach(|| HostRegion::new(memory.layout(), full_pages, swa_pages, huge));
        Ok(PyHostRegion(Arc::new(region.map_err(|error| tier_to_py(py, error))?)))
    }

    /// The bytes of a page where they lie; `writable` for tests and for what fetches pages from elsewhere. Must not
    /// meet a job that names the page.
    #[pyo3(signature = (group, id, *, writable=None), text_signature = "($self, group, id, *, writable=False)")]
    fn page<'py>(
        &self,
        group: &Bound<'py, PyAny>,
        id: &Bound<'py, PyAny>,
        writable: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyMemoryView>> {
        let writable = args::flag(writable, false, "writable")?;
        let (py, group, id) = (group.py(), self::group(group)?, int(id, "host page", 0, U32)? as u32);
        self.0.page(group, id).map_err(|error| tier_to_py(py, error))?;
        let page = HostPage { region: Arc::clone(&self.0), group, id, writable };
        PyMemoryView::from(Bound::new(py, page)?.as_any())
    }

    /// Address and bytes of a page, valid while the region lives.
    fn address(&self, group: &Bound<'_, PyAny>, id: &Bound<'_, PyAny>) -> PyResult<(usize, usize)> {
        let (py, group, id) = (group.py(), self::group(group)?, int(id, "host page", 0, U32)? as u32);
        let (start, len) = self.0.page(group, id).map_err(|error| tier_to_py(py, error))?;
        Ok((start as usize, len))
    }

    /// Page-locks the memory for CUDA. Raises `CudaError` where there is no CUDA runtime or it refuses.
    fn register_cuda(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.0.register_cuda()).map_err(|error| tier_to_py(py, error))
    }

    /// Bytes of all memory.
    #[getter]
    fn bytes(&self) -> usize {
        self.0.bytes()
    }

    /// Usable full pages.
    #[getter]
    fn full_pages(&self) -> u32 {
        self.0.pages(PoolGroup::Full)
    }

    /// Usable SWA pages.
    #[getter]
    fn swa_pages(&self) -> u32 {
        self.0.pages(PoolGroup::Swa)
    }

    /// Bytes of a full page: a multiple of 4,096.
    #[getter]
    fn full_page_bytes(&self) -> usize {
        self.0.page_bytes(PoolGroup::Full)
    }

    /// Bytes of an SWA page: a multiple of 4,096.
    #[getter]
    fn swa_page_bytes(&self) -> usize {
        self.0.page_bytes(PoolGroup::Swa)
    }
}

/// A `DeviceLayout`.
pub(super) fn device_layout<'a, 'py>(value: &'a Bound<'py, PyAny>) -> PyResult<&'a Bound<'py, PyDeviceLayout>> {
    value.cast().map_err(|_| invalid(value.py(), "layout", args::type_name(value), "a DeviceLayout"))
}
