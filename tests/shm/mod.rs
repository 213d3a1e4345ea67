//! What the tests of the shared-memory store have in common: files that go away, and values that can be told apart.
#![allow(dead_code)]

pub mod world;

use mimo_cache::shm::{Begin, BootId, ChainKey, ObjectId, Prefault, PutMeta, Recovery, Store, StoreConfig, chunk_crcs};
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

pub fn mix(a: u64, b: u64) -> u64 {
    let mut x = a.wrapping_add(b.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_add(0x1234_5678);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

pub fn key(n: u64) -> ChainKey {
    let mut key = [0; 32];
    for (i, word) in key.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&mix(n, i as u64).to_le_bytes());
    }
    key
}

pub fn id(n: u64, part: u8) -> ObjectId {
    ObjectId { key: key(n), part }
}

/// Bytes that depend on the seed everywhere.
pub fn value(seed: u64, len: usize) -> Vec<u8> {
    let words = (0..len.div_ceil(8) as u64).flat_map(|n| mix(seed, n).to_le_bytes());
    words.take(len).collect()
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
