//! Arguments of `Geometry`'s constructors.

use super::args;
use super::errors::{invalid, to_py};
use crate::error::Error;
use crate::geometry::{ConfigOptions, Deployment, KvDtype, KvShape, LayerKind};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyString, PyTuple};
use std::io::Read;

/// More bytes of a file than this are not read; the reader of configs refuses them.
const MAX_FILE: u64 = (4 << 20) + 1;

/// Keyword arguments of the deployment, the same for every constructor.
pub(super) struct Chosen<'a, 'py> {
    pub(super) page_size: Option<&'a Bound<'py, PyAny>>,
    pub(super) kv_dtype: Option<&'a Bound<'py, PyAny>>,
    pub(super) tp_size: Option<&'a Bound<'py, PyAny>>,
    pub(super) tp_rank: Option<&'a Bound<'py, PyAny>>,
    pub(super) layer_range: Option<&'a Bound<'py, PyAny>>,
    pub(super) layout: Option<&'a Bound<'py, PyAny>>,
    pub(super) extent_pages: Option<&'a Bound<'py, PyAny>>,
}

pub(super) fn u32_or(value: Option<&Bound<'_, PyAny>>, default: u32, what: &'static str) -> PyResult<u32> {
    args::int_or(value, u64::from(default), what, 0, u64::from(u32::MAX)).map(|v| v as u32)
}

pub(super) fn str_arg(value: &Bound<'_, PyAny>, what: &'static str) -> PyResult<String> {
    let text = value.cast::<PyString>().map_err(|_| invalid(value.py(), what, args::type_name(value), "a str"))?;
    let text = text.to_cow().map_err(|_| invalid(value.py(), what, "text with lone surrogates", "plain text"))?;
    Ok(text.into_owned())
}

pub(super) fn dtype_arg(value: &Bound<'_, PyAny>, what: &'static str) -> PyResult<KvDtype> {
    str_arg(value, what)?.parse().map_err(|error: Error| to_py(value.py(), error))
}

/// A tuple of `N` whole numbers.
pub(super) fn tuple_arg<const N: usize>(
    value: &Bound<'_, PyAny>,
    what: &'static str,
    allowed: &str,
) -> PyResult<[u32; N]> {
    let bad = || invalid(value.py(), what, args::shown(value), allowed);
    let parts = value.cast::<PyTuple>().map_err(|_| bad())?;
    if parts.len() != N {
        return Err(bad());
    }
    let mut out = [0; N];
    for (at, part) in parts.iter().enumerate() {
        out[at] = args::int(&part, what, 0, u64::from(u32::MAX))? as u32;
    }
    Ok(out)
}

impl Chosen<'_, '_> {
    pub(super) fn read(self) -> PyResult<Deployment> {
        let default = Deployment::default();
        let layers =
            self.layer_range.map(|value| tuple_arg::<2>(value, "layer_range", "a tuple (first, end) of layers"));
        Ok(Deployment {
            page_size: u32_or(self.page_size, default.page_size, "page_size")?,
            dtype: self.kv_dtype.map(|value| dtype_arg(value, "kv_dtype")).transpose()?,
            tp_size: u32_or(self.tp_size, default.tp_size, "tp_size")?,
            tp_rank: u32_or(self.tp_rank, default.tp_rank, "tp_rank")?,
            layers: layers.transpose()?.map(|[first, end]| (first, end)),
            layout: u32_or(self.layout, default.layout, "layout")?,
            extent_pages: u32_or(self.extent_pages, default.extent_pages, "extent_pages")?,
        })
    }
}

pub(super) fn layer_kinds(value: &Bound<'_, PyAny>) -> PyResult<Vec<LayerKind>> {
    let mut kinds = Vec::new();
    for item in args::items(value, "layers", "'full' and 'swa'")? {
        kinds.push(match item.extract::<String>().as_deref() {
            Ok("full") => LayerKind::Full,
            Ok("swa") => LayerKind::Swa,
            _ => return Err(invalid(value.py(), "layers", args::shown(&item), "'full' or 'swa' for each layer")),
        });
    }
    Ok(kinds)
}

pub(super) fn kv_shape(value: Option<&Bound<'_, PyAny>>, what: &'static str) -> PyResult<Option<KvShape>> {
    let Some(value) = value else { return Ok(None) };
    let [heads, k_dim, v_dim] = tuple_arg::<3>(value, what, "a tuple (KV heads, K dimension, V dimension) or None")?;
    Ok(Some(KvShape { heads, k_dim, v_dim }))
}

/// The text of a config given as `str`, `bytes` or a mapping.
pub(super) fn config_text(config: &Bound<'_, PyAny>) -> PyResult<String> {
    let py = config.py();
    if config.is_instance_of::<PyString>() {
        return str_arg(config, "config");
    }
    if let Ok(bytes) = config.cast::<PyBytes>() {
        let text = std::str::from_utf8(bytes.as_bytes());
        return text.map(str::to_owned).map_err(|_| to_py(py, Error::Config("the file is not UTF-8 text".into())));
    }
    if !config.is_instance_of::<PyDict>() {
        let allowed = "the text of a config.json (str or bytes) or the dict read from it";
        return Err(invalid(py, "config", args::type_name(config), allowed));
    }
    match py.import("json")?.call_method1("dumps", (config,)) {
        Ok(text) => Ok(text.extract()?),
        Err(error) => Err(to_py(py, Error::Config(format!("the dict is not JSON ({})", error.value(py))))),
    }
}

pub(super) fn config_options(
    name: Option<&Bound<'_, PyAny>>,
    mtp_heads: Option<&Bound<'_, PyAny>>,
    hub_window_plus: Option<&Bound<'_, PyAny>>,
) -> PyResult<ConfigOptions> {
    Ok(ConfigOptions {
        name: name.map(|value| str_arg(value, "name")).transpose()?,
        mtp_heads: mtp_heads.map(|value| u32_or(Some(value), 0, "mtp_heads")).transpose()?,
        hub_window_plus: u32_or(hub_window_plus, 1, "hub_window_plus")?,
    })
}

/// Reads at most a little more than a config may have, so that a wrong path costs no memory.
pub(super) fn read_text(path: &std::path::Path) -> crate::error::Result<String> {
    let failed = |message: String| Error::Io { path: path.display().to_string(), message };
    let file = std::fs::File::open(path).map_err(|error| failed(error.to_string()))?;
    let mut bytes = Vec::new();
    file.take(MAX_FILE).read_to_end(&mut bytes).map_err(|error| failed(error.to_string()))?;
    String::from_utf8(bytes).map_err(|_| Error::Config("the file is not UTF-8 text".into()))
}
