//! Arguments of the GCache client: names of objects, and memory of the caller as plain slices.

use super::args::{int, items, shown, type_name};
use super::buffers::{Buffer, Refused, is_number};
use super::errors::{invalid, to_py};
use crate::client::ObjectId;
use crate::member::{Address, Member};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PySequence, PyString, PyTuple};
use std::time::Duration;

const ID: &str = "an ObjectId, or a tuple (key, part, extent) with keys of 32 bytes";

/// 32 bytes.
pub(super) fn key(value: &Bound<'_, PyAny>, what: &'static str) -> PyResult<[u8; 32]> {
    let allowed = "32 bytes";
    let bytes = value.cast::<PyBytes>().map_err(|_| invalid(value.py(), what, type_name(value), allowed))?.as_bytes();
    bytes.try_into().map_err(|_| invalid(value.py(), what, format!("{} bytes", bytes.len()), allowed))
}

/// Keys in a list or tuple.
pub(super) fn keys(value: &Bound<'_, PyAny>, what: &'static str) -> PyResult<Vec<[u8; 32]>> {
    items(value, what, "keys of 32 bytes")?.iter().map(|one| key(one, what)).collect()
}

/// One object.
pub(super) fn id(value: &Bound<'_, PyAny>) -> PyResult<ObjectId> {
    let bad = || invalid(value.py(), "id", shown(value), ID);
    let parts = value.cast::<PyTuple>().map_err(|_| bad())?;
    if parts.len() != 3 {
        return Err(bad());
    }
    let part = int(&parts.get_item(1)?, "part", 0, u64::from(crate::rpc::limits::PARTS) - 1)? as u8;
    let (own, extent) =
        (key(&parts.get_item(0)?, "key of an object")?, key(&parts.get_item(2)?, "extent of an object")?);
    Ok(ObjectId { key: own, part, extent })
}

/// Objects of any iterable.
pub(super) fn ids(value: &Bound<'_, PyAny>) -> PyResult<Vec<ObjectId>> {
    let all = value.try_iter().map_err(|_| invalid(value.py(), "ids", type_name(value), "ObjectIds"))?;
    all.map(|one| id(&one?)).collect()
}

/// A time in seconds; `None`: the client's own.
pub(super) fn seconds(value: Option<&Bound<'_, PyAny>>, what: &'static str) -> PyResult<Option<Duration>> {
    let Some(value) = value else { return Ok(None) };
    let read = value.extract::<f64>().ok().filter(|s| *s > 0.0 && *s <= 3600.0);
    match read {
        Some(seconds) => Ok(Some(Duration::from_secs_f64(seconds))),
        None => Err(invalid(value.py(), what, shown(value), "seconds above 0 and up to 3600")),
    }
}

/// Nodes: text as `Member` reads it, or objects with `name`, `address` and `weight`.
pub(super) fn nodes(value: &Bound<'_, PyAny>) -> PyResult<Vec<Member>> {
    let py = value.py();
    let all = value.try_iter().map_err(|_| invalid(py, "nodes", type_name(value), "an iterable of nodes"))?;
    let read = all.map(|one| {
        let one = one?;
        if let Ok(text) = one.cast::<PyString>() {
            return text.to_cow()?.parse::<Member>().map_err(|error| to_py(py, error));
        }
        let read = || -> PyResult<(String, String, u32)> {
            let field = |name| one.getattr(name);
            Ok((field("name")?.extract()?, field("address")?.extract()?, field("weight")?.extract()?))
        };
        let (name, address, weight) =
            read().map_err(|_| invalid(py, "node", shown(&one), "a Node, or text as 'name=address*weight'"))?;
        let address = address.parse::<Address>().map_err(|error| to_py(py, error))?;
        Ok(Member { name, weight, addresses: vec![address] })
    });
    let members = read.collect::<PyResult<Vec<_>>>()?;
    match members.len() {
        0 => Err(invalid(py, "nodes", 0, "1 or more")),
        _ => Ok(members),
    }
}

/// Contiguous memory of the caller, held until dropped: one buffer, or several in a list or tuple.
pub(super) struct Memory<'py> {
    views: Vec<Bound<'py, PyAny>>,
    buffers: Vec<Buffer<'py>>,
}

impl<'py> Memory<'py> {
    pub(super) fn new(value: &Bound<'py, PyAny>, what: &'static str, writable: bool) -> PyResult<Self> {
        let parts: Vec<Bound<'py, PyAny>> = match (value.cast::<PyList>(), value.cast::<PyTuple>()) {
            (Ok(list), _) => list.iter().collect(),
            (_, Ok(tuple)) => tuple.iter().collect(),
            _ => vec![value.clone()],
        };
        let mut memory = Memory { views: Vec::new(), buffers: Vec::new() };
        for part in &parts {
            let (view, buffer) = buffer(part, what, writable)?;
            memory.views.push(view);
            memory.buffers.push(buffer);
        }
        Ok(memory)
    }

    /// What exports the only buffer; `None` for several.
    pub(super) fn only(&self) -> Option<&Bound<'py, PyAny>> {
        match &self.views[..] {
            [view] => Some(view),
            _ => None,
        }
    }

    /// Address ranges, to find overlaps.
    pub(super) fn ranges(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        self.buffers.iter().filter(|b| b.len() > 0).map(|b| (b.pointer() as usize, b.pointer() as usize + b.len()))
    }

    /// The memory, to read.
    ///
    /// # Safety
    /// Nobody writes there while the slices live, and they are not used after `self` is gone.
    pub(super) unsafe fn slices<'a>(&self) -> impl Iterator<Item = &'a [u8]> + '_ {
        self.buffers.iter().map(|b| match b.len() {
            0 => &[][..],
            // SAFETY: contiguous memory of so many bytes, alive while the export is held.
            n => unsafe { std::slice::from_raw_parts(b.pointer(), n) },
        })
    }

    /// The memory, to write.
    ///
    /// # Safety
    /// As [`Memory::slices`], it was asked for as writable, and no other slice overlaps (`ranges`).
    pub(super) unsafe fn slices_mut<'a>(&self) -> impl Iterator<Item = &'a mut [u8]> + '_ {
        self.buffers.iter().map(|b| match b.len() {
            0 => &mut [][..],
            // SAFETY: as above, and writable.
            n => unsafe { std::slice::from_raw_parts_mut(b.pointer().cast_mut(), n) },
        })
    }
}

fn buffer<'py>(
    value: &Bound<'py, PyAny>,
    what: &'static str,
    writable: bool,
) -> PyResult<(Bound<'py, PyAny>, Buffer<'py>)> {
    let py = value.py();
    let allowed = match writable {
        true => "writable contiguous memory of plain numbers (numpy, torch CPU tensor or buffer), or a list of such",
        false => "contiguous memory of plain numbers (bytes, numpy, torch CPU tensor or buffer), or a list of such",
    };
    let refuse = |why: String| invalid(py, what, format!("{} ({why})", type_name(value)), allowed);
    let view = bytes_view(value).map_err(|error| refuse(error.value(py).to_string()))?;
    let buffer = Buffer::new(&view, writable).map_err(|Refused(words)| refuse(words))?;
    // Bytes of anything else may be pointers that the interpreter follows.
    if !is_number(buffer.format()) {
        return Err(refuse(format!("its elements, format {:?}, are no plain numbers", buffer.format())));
    }
    if !buffer.c_contiguous() {
        return Err(refuse("not contiguous".to_string()));
    }
    Ok((view, buffer))
}

/// The object whose buffer has the bytes: itself, or the numpy view of a torch tensor, of any dtype.
fn bytes_view<'py>(value: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    if Buffer::offered(value) {
        return Ok(value.clone());
    }
    let module = value.get_type().module()?;
    if module.to_cow()?.split('.').next() != Some("torch") {
        return Ok(value.clone());
    }
    // numpy has no bfloat16, and `view` wants an axis of bytes that lie together.
    let torch = value.py().import("torch")?;
    let flat = value.call_method0("detach")?.call_method1("view", (-1,))?;
    flat.call_method1("view", (torch.getattr("uint8")?,))?.call_method0("numpy")
}

/// Refuses memory that overlaps: two values would be written to the same bytes.
pub(super) fn check_overlaps(py: Python<'_>, all: &[Memory<'_>]) -> PyResult<()> {
    let mut ranges: Vec<(usize, usize)> = all.iter().flat_map(Memory::ranges).collect();
    ranges.sort_unstable();
    if ranges.windows(2).any(|pair| pair[1].0 < pair[0].1) {
        return Err(invalid(py, "into", "buffers that overlap", "memory of its own for each value"));
    }
    Ok(())
}

/// Length of a sequence argument that must match another.
pub(super) fn matching<'py>(
    value: &Bound<'py, PyAny>,
    what: &'static str,
    count: usize,
) -> PyResult<Vec<Bound<'py, PyAny>>> {
    let bad = |given: String| invalid(value.py(), what, given, format!("a sequence of {count}, one for each"));
    let all = value.cast::<PySequence>().map_err(|_| bad(type_name(value)))?;
    if all.len()? != count {
        return Err(bad(format!("{} long", all.len()?)));
    }
    (0..count).map(|i| all.get_item(i)).collect()
}
