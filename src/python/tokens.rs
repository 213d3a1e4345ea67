//! Token ids from Python: lists and tuples of ints, and one-dimensional integer arrays of any width.
//!
//! Contiguous int32 and uint32 memory is used where it lies; anything else is converted. Negative ids are refused. For
//! int32 that check reads every token once more, so that a lookup which copies nothing may put it off: what matched
//! equals tokens of the tree, and only the rest is left to check (see [`Tokens::unchecked`]).

use super::args::type_name;
use super::buffers::{Buffer, IntFormat, Refused, int_format, shared_view};
use super::errors::invalid;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyByteArray, PyBytes, PyInt, PyList, PyString, PyTuple};

/// Tokens whose copy or conversion takes long enough to release the GIL.
const LONG_COPY: usize = 1 << 16;

const ALLOWED: &str = "ids from 0 to 4294967295 as a list or tuple of ints, or as a one-dimensional integer array (numpy, \
                       torch CPU tensor or buffer)";

/// Token ids, borrowed or converted.
pub(super) enum Tokens<'py> {
    Owned(Vec<u32>),
    /// Contiguous, aligned 4-byte integers of the caller.
    Borrowed {
        buffer: Buffer<'py>,
        len: usize,
        signed: bool,
    },
}

impl<'py> Tokens<'py> {
    /// Reads `value`; `what` names it in errors.
    pub(super) fn new(value: &Bound<'py, PyAny>, what: &'static str) -> PyResult<Self> {
        if let Ok(list) = value.cast::<PyList>() {
            return from_items(list.py(), list.iter(), list.len(), what);
        }
        if let Ok(tuple) = value.cast::<PyTuple>() {
            return from_items(tuple.py(), tuple.iter(), tuple.len(), what);
        }
        // Bytes would be read as one token a byte, which is hardly ever what was meant.
        let raw = value.is_instance_of::<PyBytes>() || value.is_instance_of::<PyByteArray>();
        if raw || value.is_instance_of::<PyString>() {
            return Err(invalid(value.py(), what, type_name(value), ALLOWED));
        }
        let view = match shared_view(value) {
            Ok(Some(view)) => view,
            Ok(None) if value.hasattr("__array__")? => as_array(value, what)?,
            Ok(None) => return Err(invalid(value.py(), what, type_name(value), ALLOWED)),
            Err(error) => return Err(refused(value, what, &error.value(value.py()).to_string())),
        };
        from_buffer(&view, what)
    }

    /// The ids, negative int32 among them if [`Tokens::unchecked`].
    pub(super) fn raw(&self) -> &[u32] {
        match self {
            Tokens::Owned(ids) => ids,
            Tokens::Borrowed { len: 0, .. } => &[],
            // SAFETY: aligned, contiguous, `len` elements of 4 bytes (`from_buffer`), alive while the export is held.
            // Python code that writes the array during a call races with it, as with any extension.
            Tokens::Borrowed { buffer, len, .. } => unsafe {
                std::slice::from_raw_parts(buffer.pointer().cast::<u32>(), *len)
            },
        }
    }

    /// Whether negative ids are still to be looked for.
    pub(super) fn unchecked(&self) -> bool {
        matches!(self, Tokens::Borrowed { signed: true, .. })
    }

    /// The ids as a vector, and whether one of them is 2^31 or more.
    pub(super) fn into_vec(self, py: Python<'_>, what: &'static str) -> PyResult<(Vec<u32>, bool)> {
        let ids = self.raw();
        let (high, copied) = match &self {
            Tokens::Owned(_) => (any_high(ids), None),
            Tokens::Borrowed { .. } => released(py, ids.len(), || (any_high(ids), Some(ids.to_vec()))),
        };
        if high && self.unchecked() {
            return Err(negative(py, what, ids, 0));
        }
        match (self, copied) {
            (Tokens::Owned(ids), _) | (Tokens::Borrowed { .. }, Some(ids)) => Ok((ids, high)),
            (Tokens::Borrowed { .. }, None) => unreachable!("borrowed ids were copied above"),
        }
    }

    /// The ids where they lie, checked, and whether one of them is 2^31 or more.
    pub(super) fn checked(&self, py: Python<'_>, what: &'static str) -> PyResult<(&[u32], bool)> {
        let ids = self.raw();
        let high = any_high(ids);
        if high && self.unchecked() { Err(negative(py, what, ids, 0)) } else { Ok((ids, high)) }
    }
}

/// Runs `f` with the GIL released when it works on very many tokens.
fn released<R: Send>(py: Python<'_>, tokens: usize, f: impl FnOnce() -> R + Send) -> R {
    if tokens >= LONG_COPY { py.detach(f) } else { f() }
}

/// Whether an id of 2^31 or more is there; as int32 it would be negative.
pub(super) fn any_high(ids: &[u32]) -> bool {
    // In blocks, so that the inner loop has no branch and the outer one stops early.
    ids.chunks(1024).any(|block| block.iter().fold(0, |all, id| all | id) >> 31 != 0)
}

/// The error for the first negative id at or after `from`, which exists.
pub(super) fn negative(py: Python<'_>, what: &'static str, ids: &[u32], from: usize) -> PyErr {
    let at = ids[from..].iter().position(|id| id >> 31 != 0).map_or(from, |i| from + i);
    invalid(py, what, format!("{} at index {at}", ids[at] as i32), ALLOWED)
}

fn from_items<'py>(
    py: Python<'py>,
    items: impl Iterator<Item = Bound<'py, PyAny>>,
    len: usize,
    what: &'static str,
) -> PyResult<Tokens<'py>> {
    let mut ids = Vec::with_capacity(len);
    for (at, item) in items.enumerate() {
        match read_id(&item) {
            Some(id) => ids.push(id),
            None => return Err(invalid(py, what, format!("{} at index {at}", super::args::shown(&item)), ALLOWED)),
        }
    }
    Ok(Tokens::Owned(ids))
}

#[inline]
fn read_id(item: &Bound<'_, PyAny>) -> Option<u32> {
    if item.is_exact_instance_of::<PyInt>() {
        let mut overflow = 0;
        // SAFETY: `item` is an int, for which this call cannot fail; overflow is reported aside, with -1.
        let v = unsafe { ffi::PyLong_AsLongLongAndOverflow(item.as_ptr(), &mut overflow) };
        return u32::try_from(v).ok();
    }
    if item.is_instance_of::<PyBool>() {
        return None;
    }
    super::args::read_int(item).and_then(|v| u32::try_from(v).ok())
}

fn as_array<'py>(value: &Bound<'py, PyAny>, what: &'static str) -> PyResult<Bound<'py, PyAny>> {
    let array = value.py().import("numpy")?.call_method1("asarray", (value,));
    array.map_err(|error| refused(value, what, &error.value(value.py()).to_string()))
}

fn refused(value: &Bound<'_, PyAny>, what: &'static str, words: &str) -> PyErr {
    invalid(value.py(), what, format!("{} ({words})", type_name(value)), ALLOWED)
}

fn from_buffer<'py>(value: &Bound<'py, PyAny>, what: &'static str) -> PyResult<Tokens<'py>> {
    let py = value.py();
    let buffer = Buffer::new(value, false).map_err(|Refused(words)| refused(value, what, &words))?;
    let (format, [len]) = (int_format(buffer.format()), buffer.shape()) else {
        return Err(invalid(py, what, buffer.words(value), ALLOWED));
    };
    let Some(format) = format else {
        return Err(invalid(py, what, buffer.words(value), ALLOWED));
    };
    let len = *len as usize;
    let dense = len <= 1 || buffer.stride() == buffer.item_size() as isize;
    let aligned = buffer.pointer().align_offset(4) == 0;
    if buffer.item_size() == 4 && dense && aligned && !format.swapped {
        return Ok(Tokens::Borrowed { buffer, len, signed: format.signed });
    }
    let strided = Strided { start: buffer.pointer(), stride: buffer.stride(), len };
    let converted = match (buffer.item_size(), format.signed) {
        (1, true) => gather::<i8>(py, strided, format),
        (1, false) => gather::<u8>(py, strided, format),
        (2, true) => gather::<i16>(py, strided, format),
        (2, false) => gather::<u16>(py, strided, format),
        (4, true) => gather::<i32>(py, strided, format),
        (4, false) => gather::<u32>(py, strided, format),
        (8, true) => gather::<i64>(py, strided, format),
        (8, false) => gather::<u64>(py, strided, format),
        _ => return Err(invalid(py, what, buffer.words(value), ALLOWED)),
    };
    match converted {
        Ok(ids) => Ok(Tokens::Owned(ids)),
        Err((at, id)) => Err(invalid(py, what, format!("{id} at index {at}"), ALLOWED)),
    }
}

/// An integer as it lies in a buffer.
trait Element: Copy + Send {
    fn swap(self) -> Self;
    fn low(self) -> u32;
    fn fits(self) -> bool;
    fn wide(self) -> i128;
}

macro_rules! element {
    ($($t:ty),*) => {$(
        impl Element for $t {
            #[inline]
            fn swap(self) -> Self { self.swap_bytes() }
            #[inline]
            fn low(self) -> u32 { self as u32 }
            #[inline]
            #[allow(unused_comparisons, irrefutable_let_patterns)]
            fn fits(self) -> bool { self >= 0 && self as u64 <= u64::from(u32::MAX) }
            fn wide(self) -> i128 { i128::from(self) }
        }
    )*};
}
element!(i8, u8, i16, u16, i32, u32, i64, u64);

/// A one-dimensional strided buffer whose export is held.
#[derive(Clone, Copy)]
struct Strided {
    start: *const u8,
    stride: isize,
    len: usize,
}

// SAFETY: plain memory that stays where it is while its export is held; whoever converts it only reads.
unsafe impl Send for Strided {}

impl Strided {
    /// # Safety
    /// `i` is below `len`, and elements are of type `T`.
    #[inline]
    unsafe fn read<T: Element>(self, i: usize) -> T {
        // SAFETY: inside the buffer, as the caller promises; any alignment.
        unsafe { self.start.offset(i as isize * self.stride).cast::<T>().read_unaligned() }
    }
}

/// Converts all elements, or names the first that is no token id.
fn gather<T: Element>(py: Python<'_>, from: Strided, format: IntFormat) -> Result<Vec<u32>, (usize, i128)> {
    released(py, from.len, move || {
        // Moved in as a whole: its pointer alone could not be sent.
        let from = from;
        let mut fits = true;
        let mut take = |v: T| {
            fits &= v.fits();
            v.low()
        };
        // SAFETY (all three): `i` is below `len`, and `from_buffer` chose `T` by the size of an element.
        let ids: Vec<u32> = if from.stride == size_of::<T>() as isize && !format.swapped {
            let dense = Strided { stride: size_of::<T>() as isize, ..from };
            (0..from.len).map(|i| take(unsafe { dense.read(i) })).collect()
        } else {
            (0..from.len).map(|i| take(unsafe { element(from, i, format) })).collect()
        };
        if fits {
            return Ok(ids);
        }
        // Memory that another thread changes meanwhile may fit now; name its first element then.
        let value = |i| unsafe { element::<T>(from, i, format) };
        let at = (0..from.len).find(|&i| !value(i).fits()).unwrap_or(0);
        Err((at, value(at).wide()))
    })
}

/// Element `i` in this machine's byte order.
///
/// # Safety
/// As for [`Strided::read`].
unsafe fn element<T: Element>(from: Strided, i: usize, format: IntFormat) -> T {
    // SAFETY: as the caller promises.
    let v = unsafe { from.read::<T>(i) };
    if format.swapped { v.swap() } else { v }
}
