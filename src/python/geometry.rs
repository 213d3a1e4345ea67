//! `Geometry`: a model's KV shape under a deployment, and what it costs in bytes.

use super::args;
use super::errors::{invalid, to_py};
use super::geometry_args::{
    Chosen, config_options, config_text, dtype_arg, kv_shape, layer_kinds, read_text, str_arg, u32_or,
};
use super::kv_group::PyKvGroup;
use crate::geometry::{Geometry, KvDtype, LayerKind, Model, PRESETS};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::path::PathBuf;

/// Shape of a model's KV (layers, groups, heads) under a deployment (page size, KV dtype, rank, stage). Immutable.
///
/// The deployment arguments are those of every constructor:
///
/// - `page_size`: tokens per page, a power of two from 1 to 1024.
/// - `kv_dtype`: dtype of stored KV, else the model's: "bf16", "fp16", "fp32", "fp8_e4m3" or "fp8_e5m2", the last two
///   with ":model", ":token" or ":page" for where their scales live.
/// - `tp_size`, `tp_rank`: tensor-parallel ranks that share the KV heads, and this one.
/// - `layer_range`: first and one past the last trunk layer of this pipeline stage.
/// - `layout`: number of the byte layout of a page. `extent_pages`: pages that a remote tier places together.
#[pyclass(frozen, eq, name = "Geometry", module = "mimo_cache")]
#[derive(PartialEq)]
pub(super) struct PyGeometry(pub(super) Geometry);

macro_rules! chosen {
    ($($name:ident),*) => { Chosen { $($name),* } };
}

fn made(py: Python<'_>, geometry: crate::error::Result<Geometry>) -> PyResult<PyGeometry> {
    geometry.map(PyGeometry).map_err(|error| to_py(py, error))
}

#[pymethods]
impl PyGeometry {
    #[new]
    #[pyo3(
        signature = (*, name, layers, full=None, swa=None, window_keys=None, mtp_heads=None, hidden_size=None,
                     dtype=None, page_size=None, kv_dtype=None, tp_size=None, tp_rank=None, layer_range=None, layout=None, extent_pages=None),
        text_signature = "(*, name, layers, full=None, swa=None, window_keys=0, mtp_heads=0, hidden_size=0, \
                          dtype='bf16', page_size=64, kv_dtype=None, tp_size=1, tp_rank=0, layer_range=None, layout=1, \
                          extent_pages=16)"
    )]
    #[allow(clippy::too_many_arguments)]
    fn new(
        py: Python<'_>,
        name: &Bound<'_, PyAny>,
        layers: &Bound<'_, PyAny>,
        full: Option<&Bound<'_, PyAny>>,
        swa: Option<&Bound<'_, PyAny>>,
        window_keys: Option<&Bound<'_, PyAny>>,
        mtp_heads: Option<&Bound<'_, PyAny>>,
        hidden_size: Option<&Bound<'_, PyAny>>,
        dtype: Option<&Bound<'_, PyAny>>,
        page_size: Option<&Bound<'_, PyAny>>,
        kv_dtype: Option<&Bound<'_, PyAny>>,
        tp_size: Option<&Bound<'_, PyAny>>,
        tp_rank: Option<&Bound<'_, PyAny>>,
        layer_range: Option<&Bound<'_, PyAny>>,
        layout: Option<&Bound<'_, PyAny>>,
        extent_pages: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let model = Model {
            name: str_arg(name, "name")?,
            layers: layer_kinds(layers)?,
            full: kv_shape(full, "full")?,
            swa: kv_shape(swa, "swa")?,
            window_keys: u32_or(window_keys, 0, "window_keys")?,
            mtp_heads: u32_or(mtp_heads, 0, "mtp_heads")?,
            hidden_size: u32_or(hidden_size, 0, "hidden_size")?,
            dtype: dtype.map_or(Ok(KvDtype::Bf16), |value| dtype_arg(value, "dtype"))?,
        };
        let deployment = chosen!(page_size, kv_dtype, tp_size, tp_rank, layer_range, layout, extent_pages).read()?;
        made(py, Geometry::new(model, deployment))
    }

    /// One of `PRESETS`. Raises `ConfigError` for another name.
    #[staticmethod]
    #[pyo3(
        signature = (name, *, page_size=None, kv_dtype=None, tp_size=None, tp_rank=None, layer_range=None, layout=None, extent_pages=None),
        text_signature = "(name, *, page_size=64, kv_dtype=None, tp_size=1, tp_rank=0, layer_range=None, layout=1, extent_pages=16)"
    )]
    #[allow(clippy::too_many_arguments)]
    fn preset(
        name: &Bound<'_, PyAny>,
        page_size: Option<&Bound<'_, PyAny>>,
        kv_dtype: Option<&Bound<'_, PyAny>>,
        tp_size: Option<&Bound<'_, PyAny>>,
        tp_rank: Option<&Bound<'_, PyAny>>,
        layer_range: Option<&Bound<'_, PyAny>>,
        layout: Option<&Bound<'_, PyAny>>,
        extent_pages: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let deployment = chosen!(page_size, kv_dtype, tp_size, tp_rank, layer_range, layout, extent_pages).read()?;
        made(name.py(), Geometry::preset(&str_arg(name, "name")?, deployment))
    }

    /// From the text of a hub `config.json`, or the dict read from it.
    ///
    /// `name` is the model's identity in the fingerprint (default: a digest of the config). `mtp_heads` overrides what
    /// the config says. `hub_window_plus` is what the hub spelling's window leaves out: 1 key, the query's own, or 0.
    /// Raises `ConfigError` that names the field, its value and what is allowed.
    #[staticmethod]
    #[pyo3(
        signature = (config, *, name=None, mtp_heads=None, hub_window_plus=None, page_size=None, kv_dtype=None, tp_size=None, tp_rank=None, layer_range=None, layout=None, extent_pages=None),
        text_signature = "(config, *, name=None, mtp_heads=None, hub_window_plus=1, page_size=64, kv_dtype=None, tp_size=1, tp_rank=0, layer_range=None, layout=1, extent_pages=16)"
    )]
    #[allow(clippy::too_many_arguments)]
    fn from_config(
        config: &Bound<'_, PyAny>,
        name: Option<&Bound<'_, PyAny>>,
        mtp_heads: Option<&Bound<'_, PyAny>>,
        hub_window_plus: Option<&Bound<'_, PyAny>>,
        page_size: Option<&Bound<'_, PyAny>>,
        kv_dtype: Option<&Bound<'_, PyAny>>,
        tp_size: Option<&Bound<'_, PyAny>>,
        tp_rank: Option<&Bound<'_, PyAny>>,
        layer_range: Option<&Bound<'_, PyAny>>,
        layout: Option<&Bound<'_, PyAny>>,
        extent_pages: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let deployment = chosen!(page_size, kv_dtype, tp_size, tp_rank, layer_range, layout, extent_pages).read()?;
        let options = config_options(name, mtp_heads, hub_window_plus)?;
        let text = config_text(config)?;
        made(config.py(), Geometry::from_config(&text, &options, deployment))
    }

    /// As `from_config`, from a file. Raises `FileError` when it cannot be read.
    #[staticmethod]
    #[pyo3(
        signature = (path, *, name=None, mtp_heads=None, hub_window_plus=None, page_size=None, kv_dtype=None, tp_size=None, tp_rank=None, layer_range=None, layout=None, extent_pages=None),
        text_signature = "(path, *, name=None, mtp_heads=None, hub_window_plus=1, page_size=64, kv_dtype=None, tp_size=1, tp_rank=0, layer_range=None, layout=1, extent_pages=16)"
    )]
    #[allow(clippy::too_many_arguments)]
    fn from_file(
        path: &Bound<'_, PyAny>,
        name: Option<&Bound<'_, PyAny>>,
        mtp_heads: Option<&Bound<'_, PyAny>>,
        hub_window_plus: Option<&Bound<'_, PyAny>>,
        page_size: Option<&Bound<'_, PyAny>>,
        kv_dtype: Option<&Bound<'_, PyAny>>,
        tp_size: Option<&Bound<'_, PyAny>>,
        tp_rank: Option<&Bound<'_, PyAny>>,
        layer_range: Option<&Bound<'_, PyAny>>,
        layout: Option<&Bound<'_, PyAny>>,
        extent_pages: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let py = path.py();
        let deployment = chosen!(page_size, kv_dtype, tp_size, tp_rank, layer_range, layout, extent_pages).read()?;
        let options = config_options(name, mtp_heads, hub_window_plus)?;
        let Ok(file) = path.extract::<PathBuf>() else {
            return Err(invalid(py, "path", args::type_name(path), "a str or os.PathLike"));
        };
        let text = py.detach(|| read_text(&file)).map_err(|error| to_py(py, error))?;
        made(py, Geometry::from_config(&text, &options, deployment))
    }

    #[classattr]
    #[pyo3(name = "PRESETS")]
    fn presets() -> (&'static str, &'static str, &'static str, &'static str) {
        PRESETS.into()
    }

    /// Identity of the model.
    #[getter]
    fn name(&self) -> &str {
        &self.0.model().name
    }

    /// Kind of every trunk layer, "full" or "swa".
    #[getter]
    fn layers(&self) -> Vec<&'static str> {
        let kind = |kind: &LayerKind| if *kind == LayerKind::Full { "full" } else { "swa" };
        self.0.model().layers.iter().map(kind).collect()
    }

    /// First and one past the last trunk layer of this stage.
    #[getter]
    fn layer_range(&self) -> (u32, u32) {
        self.0.layer_range()
    }

    /// KV dtype in force.
    #[getter]
    fn dtype(&self) -> String {
        self.0.dtype().to_string()
    }

    /// Width of the trunk's hidden state.
    #[getter]
    fn hidden_size(&self) -> u32 {
        self.0.model().hidden_size
    }

    /// Tensor-parallel ranks.
    #[getter]
    fn tp_size(&self) -> u32 {
        self.0.deployment().tp_size
    }

    /// This rank.
    #[getter]
    fn tp_rank(&self) -> u32 {
        self.0.deployment().tp_rank
    }

    /// The full-attention group on this stage.
    #[getter]
    fn full(&self) -> Option<PyKvGroup> {
        self.0.full().map(PyKvGroup)
    }

    /// The SWA group on this stage with its MTP heads.
    #[getter]
    fn swa(&self) -> Option<PyKvGroup> {
        self.0.swa().map(PyKvGroup)
    }

    /// 32 bytes over everything that decides what a page's bytes mean; never rank, shard or replication.
    #[getter]
    fn fingerprint<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0.fingerprint())
    }

    /// Tokens per page.
    #[getter]
    fn page_size(&self) -> u32 {
        self.0.page_size()
    }

    /// Keys an SWA query sees, itself included; 0 without SWA layers.
    #[getter]
    fn window_keys(&self) -> u32 {
        self.0.window_keys()
    }

    /// W: previous tokens an SWA query needs, `window_keys - 1`; 0 without SWA layers.
    #[getter]
    fn window(&self) -> u32 {
        self.0.window()
    }

    /// MTP heads of the model.
    #[getter]
    fn mtp_heads(&self) -> u32 {
        self.0.mtp_heads()
    }

    /// This stage computes the last trunk layer, and so the MTP heads.
    #[getter]
    fn is_last_stage(&self) -> bool {
        self.0.is_last_stage()
    }

    /// SWA pages that one checkpoint keeps.
    #[getter]
    fn checkpoint_pages(&self) -> u32 {
        self.0.checkpoint_pages()
    }

    /// Bytes per token of the hidden state that SWA pages also hold, over all shards.
    #[getter]
    fn hidden_token_bytes(&self) -> u64 {
        self.0.hidden_token_bytes()
    }

    /// `hidden_token_bytes` of one page.
    #[getter]
    fn hidden_page_bytes(&self) -> u64 {
        self.0.hidden_page_bytes()
    }

    /// One rank's part of `hidden_page_bytes`.
    #[getter]
    fn rank_hidden_page_bytes(&self) -> u64 {
        self.0.rank_hidden_page_bytes()
    }

    /// Bytes of one full page over all shards.
    #[getter]
    fn stored_full_page_bytes(&self) -> u64 {
        self.0.stored_full_page_bytes()
    }

    /// Bytes of one SWA page with MTP heads and hidden state, over all shards.
    #[getter]
    fn stored_swa_page_bytes(&self) -> u64 {
        self.0.stored_swa_page_bytes()
    }

    /// Bytes of one token in a cache with a single pool: every trunk layer.
    #[getter]
    fn trunk_token_bytes(&self) -> u64 {
        self.0.trunk_token_bytes()
    }

    /// Bytes of the SWA trunk layers over one window of W tokens.
    #[getter]
    fn checkpoint_bytes(&self) -> u64 {
        self.0.checkpoint_bytes()
    }

    /// Bytes of the MTP heads over one window of W tokens.
    #[getter]
    fn checkpoint_mtp_bytes(&self) -> u64 {
        self.0.checkpoint_mtp_bytes()
    }

    /// Tokens of full KV that cost as much as `checkpoint_bytes`; `None` without a full group.
    #[getter]
    fn checkpoint_in_full_tokens(&self) -> Option<u64> {
        self.0.checkpoint_in_full_tokens()
    }

    fn __str__(&self) -> String {
        self.0.to_string()
    }

    fn __repr__(&self) -> String {
        format!("<mimo_cache.Geometry {}>", self.0)
    }

    fn __hash__(&self) -> u64 {
        let mut head = [0; 8];
        head.copy_from_slice(&self.0.fingerprint()[..8]);
        u64::from_le_bytes(head)
    }
}
