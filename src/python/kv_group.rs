//! `KvGroup`: the layers of one lifetime on one pipeline stage.

use crate::geometry::KvGroup;
use pyo3::prelude::*;

/// The layers of one lifetime on one pipeline stage. Figures without "rank" count every KV head once.
#[pyclass(frozen, eq, name = "KvGroup", module = "mimo_cache")]
#[derive(PartialEq)]
pub(super) struct PyKvGroup(pub(super) KvGroup);

#[pymethods]
impl PyKvGroup {
    /// Trunk layers.
    #[getter]
    fn layers(&self) -> u32 {
        self.0.layers
    }

    /// MTP heads, which are layers beside the trunk.
    #[getter]
    fn mtp_layers(&self) -> u32 {
        self.0.mtp_layers
    }

    /// KV heads of each layer.
    #[getter]
    fn heads(&self) -> u32 {
        self.0.shape.heads
    }

    /// Dimension of K per head.
    #[getter]
    fn k_dim(&self) -> u32 {
        self.0.shape.k_dim
    }

    /// Dimension of V per head.
    #[getter]
    fn v_dim(&self) -> u32 {
        self.0.shape.v_dim
    }

    /// First and one past the last KV head of this rank.
    #[getter]
    fn rank_heads(&self) -> (u32, u32) {
        let heads = self.0.rank_heads();
        (heads.start, heads.end)
    }

    /// Different shards of the heads: ranks, or heads when there are fewer heads than ranks.
    #[getter]
    fn shards(&self) -> u32 {
        self.0.shards()
    }

    /// Ranks that hold the same heads.
    #[getter]
    fn replication(&self) -> u32 {
        self.0.replication()
    }

    /// Bytes per token of the trunk layers.
    #[getter]
    fn trunk_token_bytes(&self) -> u64 {
        self.0.trunk_token_bytes()
    }

    /// Bytes per token of the MTP heads.
    #[getter]
    fn mtp_token_bytes(&self) -> u64 {
        self.0.mtp_token_bytes()
    }

    /// Bytes per token of trunk and MTP.
    #[getter]
    fn token_bytes(&self) -> u64 {
        self.0.token_bytes()
    }

    /// Bytes per page of the trunk layers.
    #[getter]
    fn trunk_page_bytes(&self) -> u64 {
        self.0.trunk_page_bytes()
    }

    /// Bytes per page of trunk and MTP.
    #[getter]
    fn page_bytes(&self) -> u64 {
        self.0.page_bytes()
    }

    /// Bytes per token of trunk and MTP on one tensor-parallel rank.
    #[getter]
    fn rank_token_bytes(&self) -> u64 {
        self.0.rank_token_bytes()
    }

    /// Bytes per page of trunk and MTP on one tensor-parallel rank.
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
