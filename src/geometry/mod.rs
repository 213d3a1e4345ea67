//! Shape of a model's KV: layers, groups, heads, page size, and how many bytes all of it takes.
//!
//! A [`Geometry`] is a checked [`Model`] (what `config.json` says) under a checked [`Deployment`] (what the operator
//! chose: page size, KV dtype, tensor-parallel rank, pipeline stage). It is immutable and knows no pool and no cache.
//! Every figure is a whole number of bytes in `u64`; the limits below keep each of them far from overflow.
//!
//! Figures without "rank" in their name count every KV head once. Figures with "rank" are what one tensor-parallel rank
//! keeps: its shard of the heads, or a replica of one head when there are more ranks than heads. KV and the stored hidden
//! state are separate figures.

mod check;
mod config;
mod dtype;
mod fields;
mod fingerprint;
mod group;
mod presets;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_config;

pub use config::ConfigOptions;
pub use dtype::{Fp8, KvDtype, Scales};
pub use group::{KvGroup, KvShape};
pub use presets::PRESETS;

use crate::error::{Error, Result};
use std::fmt;

/// Most trunk layers of a model.
pub const MAX_LAYERS: u32 = 1024;
/// Most KV heads of one layer, and most tensor-parallel ranks.
pub const MAX_HEADS: u32 = 1024;
/// Largest K or V dimension of one head.
pub const MAX_HEAD_DIM: u32 = 65_536;
/// Largest hidden size.
pub const MAX_HIDDEN: u32 = 1 << 20;
/// Largest W, in tokens.
pub const MAX_WINDOW: u32 = 1 << 20;
/// Largest page, in tokens.
pub const MAX_PAGE: u32 = 1024;
/// Most MTP heads.
pub const MAX_MTP: u32 = 8;

/// Whether a trunk layer attends to everything or to a sliding window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LayerKind {
    /// Full attention.
    Full,
    /// Sliding-window attention.
    Swa,
}

/// What is fixed by the model itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Model {
    /// Identity, part of the fingerprint: two models of one shape (another RoPE base, say) need different names.
    pub name: String,
    /// Kind of every trunk layer.
    pub layers: Vec<LayerKind>,
    /// KV of a full-attention layer; needed when `layers` has one.
    pub full: Option<KvShape>,
    /// KV of an SWA layer, MTP heads included; needed when `layers` has one.
    pub swa: Option<KvShape>,
    /// Keys an SWA query sees, itself included; ignored without SWA layers.
    pub window_keys: u32,
    /// MTP heads. They are SWA layers, so they need `swa`.
    pub mtp_heads: u32,
    /// Width of the trunk's hidden state; needed with MTP heads.
    pub hidden_size: u32,
    /// KV dtype unless the deployment chooses another.
    pub dtype: KvDtype,
}

/// What the operator chooses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deployment {
    /// Tokens per page, a power of two from 1 to [`MAX_PAGE`].
    pub page_size: u32,
    /// KV dtype; `None` for the model's own.
    pub dtype: Option<KvDtype>,
    /// Tensor-parallel ranks that share the KV heads.
    pub tp_size: u32,
    /// This rank, below `tp_size`.
    pub tp_rank: u32,
    /// First and one past the last trunk layer of this pipeline stage; `None` for all.
    pub layers: Option<(u32, u32)>,
    /// Number of the byte layout of a page (order of K, V, heads and layers), chosen by the runner.
    pub layout: u32,
    /// Pages that a remote tier places together; part of the namespace.
    pub extent_pages: u32,
}

impl Default for Deployment {
    /// Pages of 64 tokens, one rank, every layer.
    fn default() -> Self {
        Deployment { page_size: 64, dtype: None, tp_size: 1, tp_rank: 0, layers: None, layout: 1, extent_pages: 16 }
    }
}

/// A model under a deployment; see the module's contract.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Geometry {
    model: Model,
    deployment: Deployment,
    fingerprint: [u8; 32],
}

/// "config: {field} is {value}, allowed is {allowed}".
pub(crate) fn bad(field: impl fmt::Display, value: impl fmt::Display, allowed: impl fmt::Display) -> Error {
    Error::Config(format!("{field} is {value}, allowed is {allowed}"))
}

impl Geometry {
    /// Checks every field; [`Error::Config`] names the first that is wrong, its value and what is allowed.
    pub fn new(mut model: Model, deployment: Deployment) -> Result<Self> {
        check::model(&mut model)?;
        check::deployment(&model, &deployment)?;
        let fingerprint = fingerprint::of(&model, &deployment);
        Ok(Geometry { model, deployment, fingerprint })
    }

    /// From the text of a hub `config.json`; `docs/design.md` lists the spellings.
    pub fn from_config(text: &str, options: &ConfigOptions, deployment: Deployment) -> Result<Self> {
        Self::new(config::read(text, options)?, deployment)
    }

    /// One of [`PRESETS`]; case and `_` for `-` do not matter.
    pub fn preset(name: &str, deployment: Deployment) -> Result<Self> {
        Self::new(presets::find(name)?, deployment)
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The deployment.
    pub fn deployment(&self) -> &Deployment {
        &self.deployment
    }

    /// SHA-256 over everything that decides what a page's bytes mean; never rank, shard or replication.
    pub fn fingerprint(&self) -> [u8; 32] {
        self.fingerprint
    }

    /// Tokens per page.
    pub fn page_size(&self) -> u32 {
        self.deployment.page_size
    }

    /// KV dtype in force.
    pub fn dtype(&self) -> KvDtype {
        self.deployment.dtype.unwrap_or(self.model.dtype)
    }

    /// Keys an SWA query sees, itself included; 0 for a model without SWA layers.
    pub fn window_keys(&self) -> u32 {
        if self.model.swa.is_some() { self.model.window_keys } else { 0 }
    }

    /// W: previous tokens an SWA query needs; 0 for a model without SWA layers.
    pub fn window(&self) -> u32 {
        self.window_keys().saturating_sub(1)
    }

    /// MTP heads of the model.
    pub fn mtp_heads(&self) -> u32 {
        self.model.mtp_heads
    }

    /// First and one past the last trunk layer of this stage.
    pub fn layer_range(&self) -> (u32, u32) {
        self.deployment.layers.unwrap_or((0, self.model.layers.len() as u32))
    }

    /// This stage computes the last trunk layer, and so the MTP heads.
    pub fn is_last_stage(&self) -> bool {
        self.layer_range().1 == self.model.layers.len() as u32
    }

    /// The full-attention group on this stage, if it has one.
    pub fn full(&self) -> Option<KvGroup> {
        self.group(LayerKind::Full, self.model.full, 0)
    }

    /// The SWA group on this stage with its MTP heads, if it has one.
    pub fn swa(&self) -> Option<KvGroup> {
        let mtp = if self.is_last_stage() { self.model.mtp_heads } else { 0 };
        self.group(LayerKind::Swa, self.model.swa, mtp)
    }

    fn group(&self, kind: LayerKind, shape: Option<KvShape>, mtp_layers: u32) -> Option<KvGroup> {
        let (first, end) = self.layer_range();
        let layers = self.model.layers[first as usize..end as usize].iter().filter(|l| **l == kind).count() as u32;
        if layers + mtp_layers == 0 {
            return None;
        }
        Some(KvGroup {
            layers,
            mtp_layers,
            shape: shape?,
            dtype: self.dtype(),
            page_size: self.deployment.page_size,
            tp_size: self.deployment.tp_size,
            tp_rank: self.deployment.tp_rank,
        })
    }

    /// Bytes per token of the hidden state that SWA pages also hold, over all shards; 0 without MTP heads and on
    /// every pipeline stage but the last.
    pub fn hidden_token_bytes(&self) -> u64 {
        if self.model.mtp_heads == 0 || !self.is_last_stage() {
            return 0;
        }
        u64::from(self.model.hidden_size) * self.dtype().activation_bytes()
    }

    /// [`Self::hidden_token_bytes`] of one page.
    pub fn hidden_page_bytes(&self) -> u64 {
        self.hidden_token_bytes() * u64::from(self.deployment.page_size)
    }

    /// One rank's part of [`Self::hidden_page_bytes`]: split evenly over the KV shards, so replicas hold the same part.
    pub fn rank_hidden_page_bytes(&self) -> u64 {
        self.swa().map_or(0, |swa| self.hidden_page_bytes() / u64::from(swa.shards()))
    }

    /// Bytes of one full page in a pool, over all shards; 0 without a full group.
    pub fn stored_full_page_bytes(&self) -> u64 {
        self.full().map_or(0, |g| g.page_bytes())
    }

    /// Bytes of one SWA page in a pool with MTP heads and hidden state, over all shards; 0 without an SWA group.
    pub fn stored_swa_page_bytes(&self) -> u64 {
        self.swa().map_or(0, |g| g.page_bytes() + self.hidden_page_bytes())
    }

    /// Bytes one token takes when every trunk layer is stored for it: the cost in a cache with a single pool.
    pub fn trunk_token_bytes(&self) -> u64 {
        self.full().map_or(0, |g| g.trunk_token_bytes()) + self.swa().map_or(0, |g| g.trunk_token_bytes())
    }

    /// SWA pages that one checkpoint keeps: `ceil(W / page)`.
    pub fn checkpoint_pages(&self) -> u32 {
        self.window().div_ceil(self.deployment.page_size)
    }

    /// Bytes of the SWA trunk layers over one window of W tokens.
    pub fn checkpoint_bytes(&self) -> u64 {
        self.swa().map_or(0, |g| g.trunk_token_bytes() * u64::from(self.window()))
    }

    /// Bytes of the MTP heads over one window of W tokens.
    pub fn checkpoint_mtp_bytes(&self) -> u64 {
        self.swa().map_or(0, |g| g.mtp_token_bytes() * u64::from(self.window()))
    }

    /// Tokens of full KV that cost as much as [`Self::checkpoint_bytes`], rounded down; `None` without a full group.
    pub fn checkpoint_in_full_tokens(&self) -> Option<u64> {
        self.full().map(|g| self.checkpoint_bytes() / g.token_bytes())
    }
}

impl fmt::Display for Geometry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (d, (first, end)) = (&self.deployment, self.layer_range());
        let count = |g: Option<KvGroup>| g.map_or(0, |g| g.layers);
        write!(
            f,
            "{}: layers {first} to {end} ({} full, {} SWA, {} MTP), W {}, {}, pages of {} tokens, rank {} of {}",
            self.model.name,
            count(self.full()),
            count(self.swa()),
            self.swa().map_or(0, |g| g.mtp_layers),
            self.window(),
            self.dtype(),
            d.page_size,
            d.tp_rank,
            d.tp_size
        )
    }
}
