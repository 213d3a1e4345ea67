//! Memory of the caller seen through the buffer protocol: what is read as tokens, and what `fill` writes page tables to.

use super::args::type_name;
use super::errors::invalid;
use pyo3::ffi;
use pyo3::prelude::*;
use std::ffi::CStr;

/// A buffer export, released when dropped. Boxed, because exporters may point into the structure itself.
pub(super) struct Buffer<'py> {
    view: Box<ffi::Py_buffer>,
    py: Python<'py>,
}

/// Why an object has no usable buffer: the exporter's own words.
pub(super) struct Refused(pub(super) String);

impl<'py> Buffer<'py> {
    /// Asks for a strided buffer with its format.
    pub(super) fn new(value: &Bound<'py, PyAny>, writable: bool) -> Result<Self, Refused> {
        let py = value.py();
        let mut view = Box::new(ffi::Py_buffer::new());
        let mut flags = ffi::PyBUF_STRIDES | ffi::PyBUF_FORMAT;
        if writable {
            flags |= ffi::PyBUF_WRITABLE;
        }
        // SAFETY: `view` is a fresh structure for the exporter to fill in; on failure it owns nothing.
        let rc = unsafe { ffi::PyObject_GetBuffer(value.as_ptr(), &mut *view, flags) };
        if rc != 0 {
            let error = PyErr::fetch(py);
            return Err(Refused(error.value(py).to_string()));
        }
        let buffer = Buffer { view, py };
        if buffer.view.ndim != 0 && buffer.view.shape.is_null() {
            return Err(Refused("its buffer has no shape".to_string()));
        }
        Ok(buffer)
    }

    /// Whether the object's type exports buffers at all.
    pub(super) fn offered(value: &Bound<'_, PyAny>) -> bool {
        // SAFETY: a check on a live object.
        unsafe { ffi::PyObject_CheckBuffer(value.as_ptr()) != 0 }
    }

    pub(super) fn shape(&self) -> &[isize] {
        // SAFETY: `new` refused a missing `shape`; it has `ndim` entries that live as long as the view.
        if self.view.ndim == 0 {
            &[]
        } else {
            unsafe { std::slice::from_raw_parts(self.view.shape, self.view.ndim as usize) }
        }
    }

    /// Bytes from one element to the next along the first axis. Exporters of dense memory (ctypes) may leave the strides
    /// out even where they were asked for.
    pub(super) fn stride(&self) -> isize {
        match self.shape() {
            [] => 0,
            [_, inner @ ..] if self.view.strides.is_null() => inner.iter().product::<isize>() * self.view.itemsize,
            // SAFETY: not null, so that it has `ndim` entries that live as long as the view.
            _ => unsafe { *self.view.strides },
        }
    }

    pub(super) fn item_size(&self) -> usize {
        self.view.itemsize.max(0) as usize
    }

    pub(super) fn pointer(&self) -> *const u8 {
        self.view.buf.cast::<u8>()
    }

    /// Bytes of all elements.
    pub(super) fn len(&self) -> usize {
        self.view.len.max(0) as usize
    }

    /// The `struct` format of one element.
    pub(super) fn format(&self) -> &str {
        if self.view.format.is_null() {
            return "B";
        }
        // SAFETY: a NUL-terminated string of the exporter that lives as long as the view.
        unsafe { CStr::from_ptr(self.view.format) }.to_str().unwrap_or("?")
    }

    pub(super) fn c_contiguous(&self) -> bool {
        // SAFETY: a filled-in view.
        unsafe { ffi::PyBuffer_IsContiguous(&*self.view, b'C' as std::ffi::c_char) != 0 }
    }

    /// "of type numpy.ndarray, float64, shape [2, 3]".
    pub(super) fn words(&self, value: &Bound<'_, PyAny>) -> String {
        let dtype = match value.getattr("dtype") {
            Ok(dtype) => dtype.to_string(),
            Err(_) => format!("format '{}'", self.format()),
        };
        format!("{}, {dtype}, shape {:?}", type_name(value), self.shape())
    }
}

impl Drop for Buffer<'_> {
    fn drop(&mut self) {
        let _ = self.py;
        // SAFETY: filled in by PyObject_GetBuffer and released once, with the GIL held (`py`).
        unsafe { ffi::PyBuffer_Release(&mut *self.view) };
    }
}

/// The kind of integer a format stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct IntFormat {
    pub(super) signed: bool,
    /// Bytes are in the other order than this machine's.
    pub(super) swapped: bool,
}

/// Reads a format of one integer; `None` for anything else (bool, float, char, structures).
pub(super) fn int_format(format: &str) -> Option<IntFormat> {
    let (order, code) = match format.as_bytes() {
        [code] => (b'@', *code),
        [order, code] => (*order, *code),
        _ => return None,
    };
    let swapped = match order {
        b'@' | b'=' => false,
        b'<' => cfg!(target_endian = "big"),
        b'>' | b'!' => cfg!(target_endian = "little"),
        _ => return None,
    };
    match code {
        b'b' | b'h' | b'i' | b'l' | b'q' | b'n' => Some(IntFormat { signed: true, swapped }),
        b'B' | b'H' | b'I' | b'L' | b'Q' | b'N' => Some(IntFormat { signed: false, swapped }),
        _ => None,
    }
}

/// Whether a format is one number (or bool, or byte): what any bytes may be written to, and read from. Pointers (`O`, `P`) and
/// structures, which may have some in them, are not.
pub(super) fn is_number(format: &str) -> bool {
    let code = format.strip_prefix(['@', '=', '<', '>', '!']).unwrap_or(format);
    // Complex numbers of numpy.
    let code = code.strip_prefix('Z').filter(|c| matches!(*c, "f" | "d" | "g")).unwrap_or(code);
    matches!(code.as_bytes(), [code] if b"?cbBhHiIlLqQnNefdg".contains(code))
}

/// The object whose buffer stands for `value`: itself, or the numpy view of a torch CPU tensor (shared memory).
pub(super) fn shared_view<'py>(value: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
    if Buffer::offered(value) {
        return Ok(Some(value.clone()));
    }
    let module = value.get_type().module()?;
    let root = module.to_cow()?;
    if root == "torch" || root.starts_with("torch.") {
        return value.call_method0("numpy").map(Some);
    }
    Ok(None)
}

/// A writable C-contiguous int32 array of the caller.
pub(super) struct OutBuffer<'py> {
    buffer: Buffer<'py>,
    width: usize,
    len: usize,
}

impl<'py> OutBuffer<'py> {
    /// `rows` rows; two axes when `wide`, else one.
    pub(super) fn new(value: &Bound<'py, PyAny>, what: &'static str, rows: usize, wide: bool) -> PyResult<Self> {
        let py = value.py();
        let shape = if wide { format!("[{rows}, width]") } else { format!("[{rows}]") };
        let allowed = format!(
            "a writable C-contiguous int32 array of shape {shape} (numpy, torch CPU tensor or buffer), one row for each sequence"
        );
        let view = match shared_view(value) {
            Ok(Some(view)) => view,
            Ok(None) => return Err(invalid(py, what, type_name(value), allowed)),
            Err(error) => {
                return Err(invalid(py, what, format!("{} ({})", type_name(value), error.value(py)), allowed));
            }
        };
        let buffer = Buffer::new(&view, true)
            .map_err(|Refused(words)| invalid(py, what, format!("{} ({words})", type_name(value)), &allowed))?;
        let int32 = int_format(buffer.format()) == Some(IntFormat { signed: true, swapped: false })
            && buffer.item_size() == 4
            && buffer.pointer().align_offset(4) == 0;
        let fits = match buffer.shape() {
            [n] => !wide && *n == rows as isize,
            [n, _] => wide && *n == rows as isize,
            _ => false,
        };
        if !int32 || !fits || !buffer.c_contiguous() {
            let strided = if buffer.c_contiguous() { "" } else { ", not C-contiguous" };
            return Err(invalid(py, what, format!("{}{strided}", buffer.words(&view)), allowed));
        }
        let width = if wide { buffer.shape()[1] as usize } else { 1 };
        Ok(OutBuffer { buffer, width, len: rows * width })
    }

    pub(super) fn width(&self) -> usize {
        self.width
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Address range in bytes, to find overlaps.
    pub(super) fn range(&self) -> std::ops::Range<usize> {
        let start = self.buffer.pointer() as usize;
        start..start + self.len * 4
    }

    /// The memory.
    ///
    /// # Safety
    /// No other slice of overlapping memory may be alive; the caller checks `range` first.
    #[allow(clippy::mut_from_ref)]
    pub(super) unsafe fn slice(&self) -> &mut [i32] {
        if self.len == 0 {
            return &mut [];
        }
        // SAFETY: writable, aligned, contiguous and of `len` int32, as checked in `new`; alive while the export is held.
        unsafe { std::slice::from_raw_parts_mut(self.buffer.pointer() as *mut i32, self.len) }
    }
}
