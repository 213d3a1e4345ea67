//! What a node is told of its disk tier: `[[disk]]` and `[tiering]`.

use super::units::{Size, Time};
use serde::Deserialize;
use std::path::PathBuf;
use std::time::Duration;

/// A directory of the disk tier.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskTierConfig {
    /// The directory, this node's alone; made if it is missing.
    pub path: PathBuf,
    /// Most bytes of its segments.
    pub size: Size,
    /// Bytes of a segment: what becomes durable at once, and the longest value that goes to disk. By default 64 MiB, less
    /// where `size` is small.
    #[serde(default)]
    pub segment: Option<Size>,
    /// Most bytes written in a day; no limit by default.
    #[serde(default)]
    pub write_per_day: Option<Size>,
    /// `auto`, `io_uring` or `threads`.
    #[serde(default)]
    pub io: DiskIo,
    /// An operation that takes longer takes the directory offline.
    #[serde(default = "DiskTierConfig::timeout")]
    pub timeout: Time,
}

impl DiskTierConfig {
    fn timeout() -> Time {
        Time(Duration::from_secs(30))
    }
}

/// How bytes get to a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DiskIo {
    /// io_uring where the kernel allows it, else threads.
    #[default]
    Auto,
    /// io_uring or an error.
    IoUring,
    /// Threads.
    Threads,
}

/// When values go to disk and come back.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TieringConfig {
    /// With which use, of those remembered, a value on disk comes back into memory.
    pub promote_after: u8,
    /// Bytes of memory kept free for new values; a sixteenth by default.
    pub reserve: Option<Size>,
}

impl Default for TieringConfig {
    fn default() -> Self {
        TieringConfig { promote_after: 2, reserve: None }
    }
}
