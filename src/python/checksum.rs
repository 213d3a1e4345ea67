//! `_core.crc32c`: the checksum of GCache's chunks, for the client in Python.

use super::buffers::{Buffer, Refused};
use super::errors::invalid;
use pyo3::prelude::*;

/// Adds the function to the module.
pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(checksum, m)?)
}

/// CRC32C (Castagnoli, as in iSCSI) of a buffer of bytes, continued from `value`.
#[pyfunction(name = "crc32c")]
#[pyo3(signature = (data, value=0), text_signature = "(data, value=0)")]
fn checksum(data: &Bound<'_, PyAny>, value: u32) -> PyResult<u32> {
    let py = data.py();
    let refused = |why: String| invalid(py, "data", why, "a buffer of bytes without gaps");
    let buffer = Buffer::new(data, false).map_err(|Refused(why)| refused(why))?;
    let (&[len], 1) = (buffer.shape(), buffer.item_size()) else {
        return Err(refused(format!("{} dimensions of {} bytes", buffer.shape().len(), buffer.item_size())));
    };
    if len == 0 {
        return Ok(value);
    }
    if buffer.stride() != 1 {
        return Err(refused(format!("a buffer with {} bytes from one to the next", buffer.stride())));
    }
    // SAFETY: one dimension of `len` bytes without gaps, held by `buffer`; the interpreter lock keeps Python's writers away.
    let bytes = unsafe { std::slice::from_raw_parts(buffer.pointer(), len as usize) };
    Ok(crc32c::crc32c_append(value, bytes))
}
