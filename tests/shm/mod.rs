//! What the tests of the shared-memory store have in common: files that go away, and values that can be told apart.
#![allow(dead_code)] // each binary uses its part

#[path = "../values/mod.rs"]
mod values;
pub mod world;

pub use values::*;

use mimo_cache::shm::{Begin, BootId, Prefault, PutMeta, Recovery, Store, StoreConfig, chunk_crcs};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// The boot that tests live in.
pub const BOOT: BootId = BootId([3; 16]);

/// A file in memory where there is such a file system, removed when dropped.
pub struct TempFile(PathBuf);

impl TempFile {
    /// A path that no other test has.
    pub fn new(name: &str) -> TempFile {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let shm = Path::new("/dev/shm");
        let folder = if shm.is_dir() { shm.to_path_buf() } else { std::env::temp_dir() };
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        TempFile(folder.join(format!("mimo-test-{}-{name}-{number}", std::process::id())))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Slabs of 64 KiB and memory on use.
pub fn config(path: &Path, size_bytes: u64) -> StoreConfig {
    let base = StoreConfig::new(path, size_bytes);
    StoreConfig { slab_bytes: 64 << 10, prefault: Prefault::OnUse, lease_bytes: size_bytes / 2, ..base }
}

pub fn open(config: &StoreConfig) -> (Store, Recovery) {
    Store::open(config, BOOT).unwrap()
}

/// Why opening is refused.
pub fn refusal(config: &StoreConfig) -> String {
    Store::open(config, BOOT).map(drop).unwrap_err().to_string()
}

/// An object of `len` bytes in an extent of its own.
pub fn meta(n: u64, len: u64) -> PutMeta {
    PutMeta { id: id(n, 0), tenant: 1, bucket: 5, len, extent: key(n), page_index: 0, superseded: false, layout: 1 }
}

/// What became of a put.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Done {
    Stored,
    Present,
    Busy,
    NoRoom,
}

/// Puts a value in one go.
pub fn put(store: &Store, meta: &PutMeta, bytes: &[u8]) -> Done {
    match store.begin(meta, 0).unwrap() {
        Begin::Present => Done::Present,
        Begin::Busy => Done::Busy,
        Begin::NoRoom => Done::NoRoom,
        Begin::Slot(mut writer) => {
            writer.bytes().copy_from_slice(bytes);
            writer.commit(&chunk_crcs(bytes)).unwrap();
            Done::Stored
        }
    }
}

/// Puts `value(n, len)` under `meta(n, len)`.
pub fn put_n(store: &Store, n: u64, len: usize) -> Done {
    put(store, &meta(n, len as u64), &value(n, len))
}

/// Whether object `n` of [`put_n`] is there; if so its bytes must be right.
pub fn has_n(store: &Store, n: u64) -> bool {
    let Some(found) = store.get(1, &id(n, 0)) else { return false };
    assert!(found.verify(), "object {n} does not match its checksums");
    assert_eq!(&*found, value(n, found.len()), "object {n}");
    true
}

/// A number from the environment.
pub fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default)
}
