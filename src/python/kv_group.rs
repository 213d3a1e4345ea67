//! `KvGroup`: the layers of one lifetime on one pipeline stage.

use crate::geometry::KvGroup;
use pyo3::prelude::*;

/// The layers of one lifetime on one pipeline stage, and their bytes.
#[pyclass(frozen, eq, name = "KvGroup", module = "mimo_cache")]
#[derive(PartialEq)]
pub(super) struct PyKvGroup(pub(super) KvGroup);

#[pymethods]
impl PyKvGroup {
    #[getter]
    fn layers(&self) -> u32 {
        self.0.layers
    }

    #[getter]
    fn mtp_layers(&self) -> u32 {
        self.0.mtp_layers
    }

    #[getter]
    fn heads(&self) -> u32 {
        self.0.shape.heads
    }

    #[getter]
    fn k_dim(&self) -> u32 {
        self.0.shape.k_dim
    }

    #[getter]
    fn v_dim(&self) -> u32 {
        self.0.shape.v_dim
    }

    #[getter]
    fn rank_heads(&self) -> (u32, u32) {
        let heads = self.0.rank_heads();
        (heads.start, heads.end)
    }

    #[getter]
    fn shards(&self) -> u32 {
        self.0.shards()
    }

    #[getter]
    fn replication(&self) -> u32 {
        self.0.replication()
    }

    #[getter]
    fn trunk_token_bytes(&self) -> u64 {
        self.0.trunk_token_bytes()
    }

    #[getter]
    fn mtp_token_bytes(&self) -> u64 {
        self.0.mtp_token_bytes()
    }

    #[getter]
    fn token_bytes(&self) -> u64 {
        self.0.token_bytes()
    }

    #[getter]
    fn trunk_page_bytes(&self) -> u64 {
        self.0.trunk_page_bytes()
    }

    #[getter]
    fn page_bytes(&self) -> u64 {
        self.0.page_bytes()
    }

    #[getter]
    fn rank_token_bytes(&self) -> u64 {
        self.0.rank_token_bytes()
    }

    #[getter]
    fn rank_page_bytes(&self) -> u64 {
        self.0.rank_page_bytes()
    }

    fn __repr__(&self) -> String {
        let g = &self.0;
        format!(
            "<mimo_cache.KvGroup: {} layers and {} MTP heads, {} KV heads of {} + {}, {} bytes a token>",
            g.layers,
            g.mtp_layers,
            g.shape.heads,
            g.shape.k_dim,
            g.shape.v_dim,
            g.token_bytes()
        )
    }
}
