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

/// A model's KV shape under a deployment. Immutable.
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

    #[getter]
    fn name(&self) -> &str {
        &self.0.model().name
    }

    #[getter]
    fn layers(&self) -> Vec<&'static str> {
        let kind = |kind: &LayerKind| if *kind == LayerKind::Full { "full" } else { "swa" };
        self.0.model().layers.iter().map(kind).collect()
    }

    #[getter]
    fn layer_range(&self) -> (u32, u32) {
        self.0.layer_range()
    }

    #[getter]
    fn dtype(&self) -> String {
        self.0.dtype().to_string()
    }

    #[getter]
    fn hidden_size(&self) -> u32 {
        self.0.model().hidden_size
    }

    #[getter]
    fn tp_size(&self) -> u32 {
        self.0.deployment().tp_size
    }

    #[getter]
    fn tp_rank(&self) -> u32 {
        self.0.deployment().tp_rank
    }

    #[getter]
    fn full(&self) -> Option<PyKvGroup> {
        self.0.full().map(PyKvGroup)
    }

    #[getter]
    fn swa(&self) -> Option<PyKvGroup> {
        self.0.swa().map(PyKvGroup)
    }

    #[getter]
    fn fingerprint<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0.fingerprint())
    }

    #[getter]
    fn page_size(&self) -> u32 {
        self.0.page_size()
    }

    #[getter]
    fn window_keys(&self) -> u32 {
        self.0.window_keys()
    }

    #[getter]
    fn window(&self) -> u32 {
        self.0.window()
    }

    #[getter]
    fn mtp_heads(&self) -> u32 {
        self.0.mtp_heads()
    }

    #[getter]
    fn is_last_stage(&self) -> bool {
        self.0.is_last_stage()
    }

    #[getter]
    fn checkpoint_pages(&self) -> u32 {
        self.0.checkpoint_pages()
    }

    #[getter]
    fn hidden_token_bytes(&self) -> u64 {
        self.0.hidden_token_bytes()
    }

    #[getter]
    fn hidden_page_bytes(&self) -> u64 {
        self.0.hidden_page_bytes()
    }

    #[getter]
    fn rank_hidden_page_bytes(&self) -> u64 {
        self.0.rank_hidden_page_bytes()
    }

    #[getter]
    fn stored_full_page_bytes(&self) -> u64 {
        self.0.stored_full_page_bytes()
    }

    #[getter]
    fn stored_swa_page_bytes(&self) -> u64 {
        self.0.stored_swa_page_bytes()
    }

    #[getter]
    fn trunk_token_bytes(&self) -> u64 {
        self.0.trunk_token_bytes()
    }

    #[getter]
    fn checkpoint_bytes(&self) -> u64 {
        self.0.checkpoint_bytes()
    }

    #[getter]
    fn checkpoint_mtp_bytes(&self) -> u64 {
        self.0.checkpoint_mtp_bytes()
    }

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
