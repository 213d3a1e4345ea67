//! Bits that flip anywhere in the shared-memory file: never a panic, never a wrong byte, never an object that was not
//! there. `MIMO_SOAK` multiplies the number of cases, `MIMO_SEED` moves them.
#![cfg(all(feature = "gcache", target_os = "linux"))]

mod shm;

use mimo_cache::shm::{Begin, PutMeta, Store, StoreConfig, Writer};
use shm::*;
use std::os::unix::fs::FileExt;

const SIZE: u64 = 3 << 20;
const OBJECTS: u64 = 40;

fn len_of(n: u64) -> usize {
    [100, 5000, 20_000, 70_000, 300_000, 4096][(n % 6) as usize]
}

/// Objects of several classes, two of which were deleted; the last one is still being written.
fn fill(store: &Store) -> Writer {
    for n in 0..OBJECTS {
        put_n(store, n, len_of(n));
    }
    store.delete(1, &[id(4, 0), id(7, 0)]);
    let Begin::Slot(mut writer) = store.begin(&meta(OBJECTS, 9000), 0).unwrap() else { panic!("no slot") };
    writer.bytes().fill(7);
    writer
}

/// Reads all objects: each is right, or missing, or known to be damaged.
fn read_all(store: &Store) -> u64 {
    let mut right = 0;
    for n in 0..=OBJECTS {
        let Some(found) = store.get(1, &id(n, 0)) else { continue };
        assert!(n != 4 && n != 7 && n != OBJECTS, "object {n} was deleted or never committed");
        if found.verify() {
            assert_eq!(
                (&*found, found.meta().put),
                (&value(n, len_of(n))[..], meta(n, len_of(n) as u64)),
                "object {n}"
            );
            right += 1;
        } else {
            drop(found);
            assert!(store.drop_if_damaged(1, &id(n, 0)));
        }
    }
    right
}

/// Flips 1 to 4 bits of the file; three quarters of them where structure is.
fn flip(seed: u64, structure: u64, mut at: impl FnMut(u64, u8)) {
    for n in 0..1 + mix(seed, 0) % 4 {
        let random = mix(seed, 10 + n);
        let end = if !random.is_multiple_of(4) { structure } else { SIZE };
        at(mix(seed, 20 + n) % end, 1 << ((random >> 32) % 8));
    }
}

#[test]
fn flips_in_a_file_at_rest() {
    let file = TempFile::new("flips");
    let config = config(file.path(), SIZE);
    let (store, _) = open(&config);
    let writer = fill(&store);
    let structure = store.get(1, &id(0, 0)).map_or(64 << 10, |p| p.shared_ref().offset.next_multiple_of(64 << 10));
    let whole = std::fs::read(file.path()).unwrap();
    drop((writer, store));
    let copy = TempFile::new("flips-copy");
    let config = StoreConfig { path: copy.path().into(), ..config };
    let (mut refused, mut damaged) = (0, 0);
    for case in 0..250 * number("MIMO_SOAK", 1) {
        let seed = mix(number("MIMO_SEED", 1), case);
        let mut bytes = whole.clone();
        flip(seed, structure, |at, bit| bytes[at as usize] ^= bit);
        std::fs::write(copy.path(), &bytes).unwrap();
        match Store::open(&config, BOOT) {
            Err(error) => {
                assert!(
                    error.to_string().contains("remove the file") || error.to_string().contains("its own"),
                    "{error}"
                );
                assert_eq!(std::fs::read(copy.path()).unwrap(), bytes, "a file that is refused is left as it is");
                refused += 1;
            }
            Ok((store, found)) => {
                store.check_integrity().unwrap();
                damaged += found.damaged_headers + found.damaged_spans;
                let right = read_all(&store);
                assert!(right <= found.objects);
                assert!((100..120).all(|n| put_n(&store, n, 30_000) == Done::Stored && has_n(&store, n)));
                store.check_integrity().unwrap();
            }
        }
    }
    assert!(refused > 0 && damaged > 0, "{refused} files refused, {damaged} damages found");
}

#[test]
fn flips_under_a_running_store() {
    for case in 0..60 * number("MIMO_SOAK", 1) {
        let seed = mix(number("MIMO_SEED", 2), case);
        let file = TempFile::new("live");
        let config = config(file.path(), SIZE);
        let (store, _) = open(&config);
        let writer = fill(&store);
        let disk = std::fs::File::options().read(true).write(true).open(file.path()).unwrap();
        for round in 0..12 {
            flip(mix(seed, round), 256 << 10, |at, bit| {
                let mut byte = [0];
                disk.read_exact_at(&mut byte, at).unwrap();
                disk.write_all_at(&[byte[0] ^ bit], at).unwrap();
            });
            read_all(&store);
            let n = 1000 + mix(seed, round) % 50;
            let len = 1 + mix(n, 3) % 200_000;
            if let Begin::Slot(mut writer) = store.begin(&PutMeta { tenant: 2, ..meta(n, len) }, 0).unwrap() {
                writer.bytes().fill(1);
                writer.commit(&[0]).unwrap();
            }
            store.delete(2, &[id(1000 + mix(seed, round + 99) % 50, 0)]);
            store.exists(1, &(0..OBJECTS).map(key).collect::<Vec<_>>(), None, 0);
            store.touch(1, &[id(1, 0), id(2, 0)]);
        }
        drop((writer, store));
        if let Ok((store, _)) = Store::open(&config, BOOT) {
            read_all(&store);
            store.check_integrity().unwrap();
        }
    }
}
