//! The shared-memory store by itself: `cargo bench --bench shm -- [copy] [ops] [restart] [index] [quick]`.
//!
//! Progress goes to stderr; the last line of stdout is one JSON object `{"figures": [...]}`, medians of 5 runs.
//! - `copy`: 32 values of 1 MiB and one of 64 KiB out of a read-only mapping with their checksums compared, as ratios to
//!   `memcpy` of the same bytes, turn by turn.
//! - `ops`: single operations in microseconds.
//! - `restart`: seconds until a file with 8 GiB of values of 1 MiB, or of 4 KiB, serves.
//! - `index`: bytes of this process for each of 10^7 keys, in extents of 16 pages and of 1. Values have headers only.

mod common;

use common::{figure, key, resident_bytes, thread_ns};
use mimo_cache::shm::{
    Begin, BootId, ChainKey, ObjectId, Prefault, PutMeta, Reader, SharedRef, Store, StoreConfig, chunk_crcs,
};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::Instant;

/// Takes `quick`, returns figures.
type Scenario = fn(bool) -> Vec<Value>;

const BOOT: BootId = BootId([1; 16]);
const RUNS: usize = 5;

struct TempFile(PathBuf);

impl TempFile {
    fn new(name: &str) -> TempFile {
        TempFile(PathBuf::from(format!("/dev/shm/mimo-bench-{}-{name}", std::process::id())))
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn meta(n: u64, len: usize, extent_pages: u64) -> PutMeta {
    let id = ObjectId { key: key(n), part: 0 };
    let extent = key(n / extent_pages * extent_pages);
    let page_index = (n % extent_pages) as u32;
    PutMeta { id, tenant: 1, bucket: 0, len: len as u64, extent, page_index, superseded: false, layout: 1 }
}

/// Puts a value; without bytes only its header is written.
fn put(store: &Store, meta: &PutMeta, bytes: Option<&[u8]>) {
    let Begin::Slot(mut writer) = store.begin(meta, 0).expect("a value within the limits") else {
        panic!("no room for {meta:?}")
    };
    let crcs = match bytes {
        Some(bytes) => {
            writer.bytes().copy_from_slice(bytes);
            chunk_crcs(bytes)
        }
        None => std::iter::repeat_n(0, (meta.len as usize).div_ceil(1 << 20)).collect(),
    };
    writer.commit(&crcs).expect("one CRC for each chunk");
}

fn copy(quick: bool) -> Vec<Value> {
    let file = TempFile::new("copy");
    let (store, _) = Store::open(&StoreConfig::new(&file.0, 128 << 20), BOOT).expect("a file in /dev/shm");
    let reader = Reader::new(&store.reader_file().expect("a descriptor")).expect("a file of this version");
    let mut figures = Vec::new();
    for (name, len, count, rounds) in [("batch", 1 << 20, 32, 8), ("single", 64 << 10, 1, 2000)] {
        let bytes: Vec<u8> = (0..len).map(|n| (n * 31 % 251) as u8).collect();
        let places: Vec<(SharedRef, Vec<u32>)> = (0..count)
            .map(|n| {
                let meta = meta(n + len as u64, len, 16);
                put(&store, &meta, Some(&bytes));
                let found = store.get(1, &meta.id).expect("it was just put");
                (found.shared_ref(), found.crcs().to_vec())
            })
            .collect();
        let mut to = vec![0u8; len * count as usize];
        let plain = places.iter().map(|_| bytes.clone()).collect::<Vec<_>>();
        let (mut fused, mut memcpy) = (Vec::new(), Vec::new());
        for _ in 0..RUNS {
            // The best of some turns: what other processes do in between is not of interest here.
            let (mut best, mut best_plain) = (u64::MAX, u64::MAX);
            for _ in 0..if quick { 2 } else { rounds } {
                let start = thread_ns();
                for ((at, crcs), to) in places.iter().zip(to.chunks_exact_mut(len)) {
                    reader.copy(at, crcs, &mut [to], || true).expect("nothing is evicted");
                }
                best = best.min(thread_ns() - start);
                let start = thread_ns();
                for (from, to) in plain.iter().zip(to.chunks_exact_mut(len)) {
                    to.copy_from_slice(std::hint::black_box(from));
                }
                best_plain = best_plain.min(thread_ns() - start);
            }
            fused.push(best as f64 / 1000.0);
            memcpy.push(best_plain as f64 / 1000.0);
        }
        let ratios: Vec<f64> = memcpy.iter().zip(&fused).map(|(m, f)| m / f).collect();
        figures.push(figure(&format!("shm copy {name}: verified copy"), "us", &fused));
        figures.push(figure(&format!("shm copy {name}: memcpy"), "us", &memcpy));
        figures.push(figure(&format!("shm copy {name}: ratio to memcpy"), "x", &ratios));
    }
    figures
}

fn ops(quick: bool) -> Vec<Value> {
    let file = TempFile::new("ops");
    let size = if quick { 64 << 20 } else { 1 << 30 };
    let (store, _) = Store::open(&StoreConfig::new(&file.0, size), BOOT).expect("a file in /dev/shm");
    let count = size / 5000 / 2;
    let mut runs: [Vec<f64>; 4] = Default::default();
    for run in 0..RUNS as u64 {
        let time = |what: &mut dyn FnMut(u64), out: &mut Vec<f64>| {
            let start = thread_ns();
            (0..count).for_each(&mut *what);
            out.push((thread_ns() - start) as f64 / count as f64 / 1000.0);
        };
        let [puts, gets, exists, touches] = &mut runs;
        time(&mut |n| put(&store, &meta(run * count + n, 4096, 16), None), puts);
        time(&mut |n| drop(store.get(1, &meta(run * count + n * 7 % count, 4096, 16).id)), gets);
        let keys: Vec<ChainKey> = (0..count).map(|n| key(run * count + n)).collect();
        let start = thread_ns();
        std::hint::black_box(store.exists(1, &keys, None, 0));
        exists.push((thread_ns() - start) as f64 / count as f64 / 1000.0);
        let ids: Vec<ObjectId> = keys.iter().map(|k| ObjectId { key: *k, part: 0 }).collect();
        let start = thread_ns();
        std::hint::black_box(store.touch(1, &ids));
        touches.push((thread_ns() - start) as f64 / count as f64 / 1000.0);
    }
    let names = ["put without bytes", "get and unpin", "exists, a key", "touch, a page"];
    names.iter().zip(&runs).map(|(name, runs)| figure(&format!("shm ops: {name}"), "us", runs)).collect()
}

fn restart(quick: bool) -> Vec<Value> {
    let bytes: u64 = if quick { 256 << 20 } else { 8 << 30 };
    let mut figures = Vec::new();
    for len in [1usize << 20, 4096] {
        let file = TempFile::new("restart");
        // Values of 4 KiB take 4 % more for their headers.
        let config = StoreConfig::new(&file.0, bytes / 16 * 17);
        let (store, _) = Store::open(&config, BOOT).expect("memory for the file");
        let count = bytes / len as u64;
        let value = vec![5; len];
        (0..count).for_each(|n| put(&store, &meta(n, len, 16), Some(&value)));
        drop(store);
        let mut runs = Vec::new();
        for _ in 0..RUNS {
            let start = Instant::now();
            let (store, found) = Store::open(&config, BOOT).expect("the file it was");
            assert!(store.get(1, &meta(count - 1, len, 16).id).is_some_and(|p| p.verify()));
            runs.push(start.elapsed().as_secs_f64());
            assert_eq!(found.objects, count, "{found:?}");
        }
        figures.push(figure(&format!("shm restart: {} MiB in values of {len}", bytes >> 20), "s", &runs));
    }
    figures
}

fn index(quick: bool) -> Vec<Value> {
    let keys: u64 = if quick { 100_000 } else { 10_000_000 };
    let mut figures = Vec::new();
    for extent_pages in [16, 1] {
        let file = TempFile::new("index");
        // Only pages with headers are ever touched, so the file takes far less memory than its size.
        let size = (keys * 4096 / 15 * 16 + (64 << 20)).next_multiple_of(4096);
        let config = StoreConfig { prefault: Prefault::OnUse, ..StoreConfig::new(&file.0, size) };
        let (store, _) = Store::open(&config, BOOT).expect("a sparse file");
        // Memory that the store before gave back must not serve this one unseen.
        #[cfg(target_env = "gnu")]
        // SAFETY: no preconditions.
        unsafe {
            libc::malloc_trim(0);
        }
        let (before, shared) = (resident_bytes(), resident_shared());
        (0..keys).for_each(|n| put(&store, &meta(n, 1, extent_pages), None));
        let own = (resident_bytes() - before) as i64 - (resident_shared() - shared) as i64;
        let stats = store.stats();
        assert_eq!((stats.keys, stats.totals.evicted_objects), (keys, 0));
        let name = format!("shm index: {keys} keys in extents of {extent_pages}");
        figures.push(figure(&format!("{name}, resident"), "B/key", &[own as f64 / keys as f64]));
        figures.push(figure(&format!("{name}, counted"), "B/key", &[stats.index_bytes as f64 / keys as f64]));
    }
    figures
}

/// Of the resident bytes those of files and shared memory.
fn resident_shared() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").expect("/proc is mounted");
    let pages: u64 = text.split(' ').nth(2).and_then(|v| v.parse().ok()).expect("statm has a third number");
    // SAFETY: no preconditions.
    pages * unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as u64
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    let quick = args.iter().any(|a| a == "quick");
    let chosen = |name: &str| args.iter().all(|a| a == "quick") || args.iter().any(|a| a == name);
    let known: [(&str, Scenario); 4] = [("copy", copy), ("ops", ops), ("restart", restart), ("index", index)];
    let mut figures: Vec<Value> = Vec::new();
    for (name, run) in known.iter().filter(|(name, _)| chosen(name)) {
        eprintln!("shm: {name}");
        figures.extend(run(quick));
    }
    println!("{}", json!({"figures": figures, "quick": quick}));
}
