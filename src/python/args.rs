//! Plain arguments: integers, names, keys and spans, each refused with its name, its value and what is allowed.

use super::errors::invalid;
use super::request::PyKey;
use crate::key::{Key, Span};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyInt, PyList, PyString, PyTuple};
use std::borrow::Cow;

/// The words for a value in an error: its `repr`, cut, or its type when `repr` fails.
pub(super) fn shown(value: &Bound<'_, PyAny>) -> String {
    match value.repr() {
        Ok(text) => {
            let text = text.to_string_lossy();
            if text.chars().count() <= 80 {
                text.into_owned()
            } else {
                text.chars().take(77).chain("...".chars()).collect()
            }
        }
        // For example an int of more digits than Python is willing to print.
        Err(_) => type_name(value),
    }
}

/// "of type str", for errors about a value's type.
pub(super) fn type_name(value: &Bound<'_, PyAny>) -> String {
    let name = value.get_type().fully_qualified_name().map(|n| n.to_string()).unwrap_or_else(|_| "object".into());
    format!("of type {name}")
}

/// An `int` (or anything with `__index__`, but no `bool`) from `min` to `max`.
pub(super) fn int(value: &Bound<'_, PyAny>, what: &'static str, min: u64, max: u64) -> PyResult<u64> {
    let read = if value.is_instance_of::<PyBool>() { None } else { read_int(value) };
    match read {
        Some(v) if (min..=max).contains(&v) => Ok(v),
        _ => Err(invalid(value.py(), what, shown(value), format!("an int from {min} to {max}"))),
    }
}

/// As [`int`], with a default for `None`.
pub(super) fn int_or(
    value: Option<&Bound<'_, PyAny>>,
    default: u64,
    what: &'static str,
    min: u64,
    max: u64,
) -> PyResult<u64> {
    value.map_or(Ok(default), |value| int(value, what, min, max))
}

/// The value of an int-like object that fits u64.
pub(super) fn read_int(value: &Bound<'_, PyAny>) -> Option<u64> {
    let py = value.py();
    let mut overflow = 0;
    if value.is_exact_instance_of::<PyInt>() {
        // SAFETY: `value` is an int, for which this call cannot fail; overflow is reported aside.
        let v = unsafe { ffi::PyLong_AsLongLongAndOverflow(value.as_ptr(), &mut overflow) };
        return if overflow == 0 { u64::try_from(v).ok() } else { value.extract::<u64>().ok() };
    }
    // SAFETY: PyNumber_Index returns a new reference or null with an error set, which is taken.
    let index = unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyNumber_Index(value.as_ptr())) };
    index.ok()?.extract::<u64>().ok()
}

/// `bytes`, or a `str` as UTF-8.
pub(super) fn name(value: &Bound<'_, PyAny>, what: &'static str) -> PyResult<Vec<u8>> {
    if let Ok(bytes) = value.cast::<PyBytes>() {
        return Ok(bytes.as_bytes().to_vec());
    }
    if let Ok(text) = value.cast::<PyString>() {
        let text = text.to_cow().map_err(|_| invalid(value.py(), what, "text with lone surrogates", "bytes or str"))?;
        return Ok(text.as_bytes().to_vec());
    }
    Err(invalid(value.py(), what, type_name(value), "bytes or str"))
}

/// A `Key`, or the default one for `None`.
pub(super) fn key(value: Option<&Bound<'_, PyAny>>) -> PyResult<Key> {
    match value {
        None => Ok(Key::default()),
        Some(value) => match value.cast::<PyKey>() {
            Ok(key) => Ok(key.get().key.clone()),
            Err(_) => Err(invalid(value.py(), "key", type_name(value), "a mimo_cache.Key or None")),
        },
    }
}

const SPANS: &str = "a list or tuple of (start, len, sha256 digest of 32 bytes)";

/// Spans as a list or tuple of `(start, len, digest)`; whether they are disjoint is for the core to say.
pub(super) fn spans(value: Option<&Bound<'_, PyAny>>) -> PyResult<Vec<Span>> {
    let Some(value) = value else { return Ok(Vec::new()) };
    let py = value.py();
    if !value.is_instance_of::<PyList>() && !value.is_instance_of::<PyTuple>() {
        return Err(invalid(py, "spans", type_name(value), SPANS));
    }
    let mut out = Vec::with_capacity(value.len()?);
    for item in value.try_iter()? {
        let item = item?;
        let bad = || invalid(py, "span", shown(&item), "a tuple (start, len, sha256 digest of 32 bytes)");
        let parts = item.cast::<PyTuple>().map_err(|_| bad())?;
        if parts.len() != 3 {
            return Err(bad());
        }
        let start = int(&parts.get_item(0)?, "start of a span", 0, u64::MAX)?;
        let len = int(&parts.get_item(1)?, "length of a span", 1, u64::MAX)?;
        let digest = parts.get_item(2)?;
        let digest = digest.cast::<PyBytes>().map_err(|_| bad())?.as_bytes();
        let hash = digest.try_into().map_err(|_| {
            invalid(py, "digest of a span", format!("{} bytes long", digest.len()), "32 bytes (SHA-256)")
        })?;
        out.push(Span { start, len, hash });
    }
    Ok(out)
}

/// A list or tuple, as its items.
pub(super) fn items<'py>(value: &Bound<'py, PyAny>, what: &'static str, of: &str) -> PyResult<Vec<Bound<'py, PyAny>>> {
    if let Ok(list) = value.cast::<PyList>() {
        return Ok(list.iter().collect());
    }
    if let Ok(tuple) = value.cast::<PyTuple>() {
        return Ok(tuple.iter().collect());
    }
    Err(invalid(value.py(), what, type_name(value), format!("a list or tuple of {of}")))
}

/// A `str`, or a default for `None`.
pub(super) fn text<'a>(
    value: Option<&'a Bound<'_, PyAny>>,
    default: &'static str,
    what: &'static str,
) -> PyResult<Cow<'a, str>> {
    match value {
        None => Ok(default.into()),
        Some(value) => match value.cast::<PyString>() {
            Ok(text) => text.to_cow().map_err(|_| invalid(value.py(), what, "text with lone surrogates", "plain text")),
            Err(_) => Err(invalid(value.py(), what, type_name(value), "a str")),
        },
    }
}

/// A `bool`, or a default for `None`.
pub(super) fn flag(value: Option<&Bound<'_, PyAny>>, default: bool, what: &'static str) -> PyResult<bool> {
    match value {
        None => Ok(default),
        Some(value) => match value.cast::<PyBool>() {
            Ok(flag) => Ok(flag.is_true()),
            Err(_) => Err(invalid(value.py(), what, shown(value), "True or False")),
        },
    }
}
