//! Memory of the file: taken before it is used, or refused with numbers.
#![cfg(all(feature = "gcache", target_os = "linux"))]

mod shm;

use mimo_cache::shm::{Prefault, StoreConfig};
use shm::*;
use std::os::unix::fs::MetadataExt;

const MIB: u64 = 1 << 20;

fn taken(file: &TempFile) -> u64 {
    std::fs::metadata(file.path()).unwrap().blocks() * 512
}

#[test]
fn a_file_that_no_machine_has_memory_for_is_refused_before_any_is_taken() {
    // Should it not be refused, mapping fails: nothing is ever taken.
    let limit = libc::rlimit { rlim_cur: 1 << 40, rlim_max: 1 << 40 };
    // SAFETY: a plain call.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) }, 0);
    let file = TempFile::new("huge");
    let bytes = 2u64 << 40;
    let config = StoreConfig { slab_bytes: 16 << 20, ..StoreConfig::new(file.path(), bytes) };
    let words = refusal(&config);
    assert!(words.contains("its 2199023255552 bytes cannot be had: it takes 2199023255552 more, and "), "{words}");
    assert!(words.contains("configure a smaller size"), "{words}");
    assert_eq!(taken(&file), 0);
}

#[test]
fn holes_of_a_file_that_was_made_without_its_memory_are_filled_when_it_is_attached() {
    let file = TempFile::new("holes");
    let on_use = config(file.path(), 16 * MIB);
    let (store, _) = open(&on_use);
    assert_eq!(put_n(&store, 1, 300_000), Done::Stored);
    drop(store);
    assert!(taken(&file) < 8 * MIB, "its memory is taken on use");
    let whole = StoreConfig { prefault: Prefault::Threads, ..on_use };
    let (store, found) = open(&whole);
    assert!(taken(&file) >= 16 * MIB, "{} bytes are taken", taken(&file));
    assert_eq!((found.created, found.objects), (false, 1));
    assert!(has_n(&store, 1));
    store.check_integrity().unwrap();
}
