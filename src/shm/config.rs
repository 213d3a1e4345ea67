//! What a store is opened with, and what opening it found.

use super::error::ShmError;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// One boot of a machine, from Linux' `/proc/sys/kernel/random/boot_id`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BootId(pub [u8; 16]);

impl BootId {
    /// This boot.
    pub fn current() -> Result<BootId, ShmError> {
        const PATH: &str = "/proc/sys/kernel/random/boot_id";
        let failed = |message: String| ShmError::Io { path: PATH.into(), action: "read the boot id", message };
        let text = std::fs::read_to_string(PATH).map_err(|e| failed(e.to_string()))?;
        let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
        let pair = |two: &[u8]| u8::from_str_radix(std::str::from_utf8(two).ok()?, 16).ok();
        let bytes: Option<Vec<u8>> = digits.chunks(2).map(pair).collect();
        let id = bytes.and_then(|b| <[u8; 16]>::try_from(b).ok());
        id.map(BootId).ok_or_else(|| failed(format!("{:?} are not 32 hexadecimal digits", text.trim())))
    }
}

/// When the file's memory is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Prefault {
    /// At once, by several threads, when the file is made, or is attached and lacks some of its memory; refused where that
    /// cannot be had. Where its memory is there already and only the mapping is missing, in the background.
    #[default]
    Threads,
    /// At the first use of each page. A file system or machine that is full then ends the process with a signal (SIGBUS), so
    /// this is for tests and benches.
    OnUse,
}

/// Called after every store that the layout orders, for tests that stop the world between two of them.
#[derive(Clone, Default)]
pub struct Probe(pub Option<Arc<dyn Fn() + Send + Sync>>);

impl std::fmt::Debug for Probe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0.is_some() { "Probe(set)" } else { "Probe(none)" })
    }
}

/// How to open a store.
#[derive(Debug, Clone)]
pub struct StoreConfig {
    /// The file, in tmpfs or hugetlbfs.
    pub path: PathBuf,
    /// Its size in bytes: a multiple of 4,096, on hugetlbfs of the huge page. A file of another size is refused.
    pub size_bytes: u64,
    /// Size of a slab: a power of two, 64 KiB to 16 MiB.
    pub slab_bytes: u32,
    /// What the file is for; a file with another one is refused.
    pub fingerprint: [u8; 32],
    /// Most bytes of slots under a lease, counted once for each owner.
    pub lease_bytes: u64,
    /// Longest lease in milliseconds; longer ones are cut.
    pub max_lease_ms: u32,
    /// When memory is taken.
    pub prefault: Prefault,
    /// For tests.
    pub probe: Probe,
}

impl StoreConfig {
    /// Slabs of 1 MiB, leases over an eighth of the file for at most a minute, no fingerprint.
    pub fn new(path: impl Into<PathBuf>, size_bytes: u64) -> Self {
        StoreConfig {
            path: path.into(),
            size_bytes,
            slab_bytes: 1 << 20,
            fingerprint: [0; 32],
            lease_bytes: size_bytes / 8,
            max_lease_ms: 60_000,
            prefault: Prefault::default(),
            probe: Probe::default(),
        }
    }
}

/// What opening a file found. Everything dropped is lost; everything else is served.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recovery {
    /// The file was empty, or its making had been interrupted.
    pub created: bool,
    /// The file was from another boot of the machine, so its values were dropped unseen.
    pub other_boot: bool,
    /// Values found.
    pub objects: u64,
    /// Their bytes.
    pub value_bytes: u64,
    /// Slots whose writer did not commit.
    pub unfinished: u64,
    /// Slot headers that failed a check; their values are dropped.
    pub damaged_headers: u64,
    /// Entries of the slab table that failed a check; the values of their spans are dropped.
    pub damaged_spans: u64,
    /// Values found twice; one is kept.
    pub duplicates: u64,
    /// Time until the store could serve.
    pub elapsed: Duration,
}
