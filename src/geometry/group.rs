//! One group of layers on one pipeline stage, and its bytes.

use super::KvDtype;
use std::ops::Range;

/// KV of one layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct KvShape {
    /// KV heads.
    pub heads: u32,
    /// Dimension of K per head.
    pub k_dim: u32,
    /// Dimension of V per head.
    pub v_dim: u32,
}

/// The layers of one lifetime on one stage. All figures in bytes; "rank" means one tensor-parallel rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvGroup {
    /// Trunk layers.
    pub layers: u32,
    /// MTP heads, which are layers beside the trunk.
    pub mtp_layers: u32,
    /// KV of each layer.
    pub shape: KvShape,
    /// Element type.
    pub dtype: KvDtype,
    /// Tokens per page.
    pub page_size: u32,
    pub(super) tp_size: u32,
    pub(super) tp_rank: u32,
}

impl KvGroup {
    /// Different shards of the heads: ranks, or heads when there are fewer heads than ranks.
    pub fn shards(&self) -> u32 {
        self.tp_size.min(self.shape.heads)
    }

    /// Ranks that hold the same heads.
    pub fn replication(&self) -> u32 {
        self.tp_size / self.shards()
    }

    /// The heads of this rank.
    pub fn rank_heads(&self) -> Range<u32> {
        let each = self.shape.heads / self.shards();
        let shard = self.tp_rank / self.replication();
        shard * each..(shard + 1) * each
    }

    /// One token of `layers` layers and `heads` heads.
    fn token(&self, layers: u32, heads: u32) -> u64 {
        let dims = u64::from(self.shape.k_dim) + u64::from(self.shape.v_dim);
        u64::from(layers) * u64::from(heads) * (dims * self.dtype.bytes() + self.dtype.token_scale_bytes())
    }

    /// One page of `layers` layers and `heads` heads.
    fn page(&self, layers: u32, heads: u32) -> u64 {
        let scales = u64::from(layers) * u64::from(heads) * self.dtype.page_scale_bytes();
        self.token(layers, heads) * u64::from(self.page_size) + scales
    }

    fn all_layers(&self) -> u32 {
        self.layers + self.mtp_layers
    }

    /// Per token, trunk layers. Scales that live once per page are in the page figures only.
    pub fn trunk_token_bytes(&self) -> u64 {
        self.token(self.layers, self.shape.heads)
    }

    /// Per token, MTP heads.
    pub fn mtp_token_bytes(&self) -> u64 {
        self.token(self.mtp_layers, self.shape.heads)
    }

    /// Per token, trunk and MTP.
    pub fn token_bytes(&self) -> u64 {
        self.token(self.all_layers(), self.shape.heads)
    }

    /// Per page, trunk layers.
    pub fn trunk_page_bytes(&self) -> u64 {
        self.page(self.layers, self.shape.heads)
    }

    /// Per page, trunk and MTP, every head once.
    pub fn page_bytes(&self) -> u64 {
        self.page(self.all_layers(), self.shape.heads)
    }

    /// Per token on one rank, trunk and MTP.
    pub fn rank_token_bytes(&self) -> u64 {
        self.token(self.all_layers(), self.rank_heads().len() as u32)
    }

    /// Per page on one rank, trunk and MTP.
    pub fn rank_page_bytes(&self) -> u64 {
        self.page(self.all_layers(), self.rank_heads().len() as u32)
    }
}
