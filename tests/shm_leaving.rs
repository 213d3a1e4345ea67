//! Values that leave memory for a tier below: nothing is lost on the way, whatever their sizes, and what is used stays.
#![cfg(all(feature = "gcache", target_os = "linux"))]

mod shm;

use mimo_cache::shm::{Begin, Lease, LeaseOwner, ObjectId, Store};
use proptest::prelude::*;
use shm::{Done, TempFile, config, open, put_n, value};
use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;

fn fresh(name: &str, bytes: u64) -> (TempFile, Store) {
    let file = TempFile::new(name);
    let store = open(&config(file.path(), bytes)).0;
    (file, store)
}

fn id(n: u64) -> ObjectId {
    shm::id(n, 0)
}

fn is_there(store: &Store, id: &ObjectId) -> bool {
    store.exists(1, &[id.key], None, 0).masks[0] >> id.part & 1 == 1
}

/// Puts slab-sized values until there is no room; returns how many.
fn fill(store: &Store) -> u64 {
    (0..).find(|n| put_n(store, *n, 65_536) != Done::Stored).unwrap()
}

#[test]
fn what_leaves_is_what_eviction_would_take_and_stays_until_it_is_let_go() {
    let (_file, store) = fresh("leave", 1 << 20);
    store.keep_all(true);
    let count = fill(&store);
    assert_eq!(store.stats().objects, count, "nothing is evicted");
    assert!(store.free_bytes() < 65_536);
    let leaving = store.leaving(3 * 65_536);
    let names: Vec<ObjectId> = leaving.iter().map(|l| *l.id()).collect();
    assert_eq!(names, [0, 1, 2].map(id), "the oldest first");
    for (one, n) in leaving.iter().zip(0..) {
        assert_eq!(&one[..], value(n, 65_536));
        assert!(is_there(&store, one.id()), "lookups find it all the time");
    }
    assert_eq!(store.leaving(1)[0].id(), &id(3), "what is chosen is not chosen again");
    for one in leaving {
        assert!(one.leave());
    }
    store.check_integrity().unwrap();
    assert!(names.iter().all(|id| !is_there(&store, id)));
    assert_eq!(store.stats().totals.evicted_objects, 3);
    assert_eq!(put_n(&store, 1000, 65_536), Done::Stored);
    // Three dropped without a word stay, as if used now.
    drop(store.leaving(3 * 65_536));
    store.keep_all(false);
    (2000..2003).for_each(|n| assert_eq!(put_n(&store, n, 65_536), Done::Stored));
    assert!(!is_there(&store, &id(7)), "evicted again, the oldest first");
    assert!([3, 4, 5, 6].map(id).iter().all(|id: &ObjectId| is_there(&store, id)));
    store.check_integrity().unwrap();
}

#[test]
fn what_is_used_pinned_leased_or_deleted_meanwhile_does_not_leave() {
    let (_file, store) = fresh("used", 1 << 20);
    store.keep_all(true);
    fill(&store);
    let mut leaving = store.leaving(6 * 65_536).into_iter();
    let mut next = || leaving.next().unwrap();
    let (touched, pinned, leased, deleted, put, idle) = (next(), next(), next(), next(), next(), next());
    assert_eq!(store.touch(1, &[*touched.id()]), 1);
    let pin = store.get(1, pinned.id()).unwrap();
    let lease = Lease { owner: LeaseOwner(1), millis: 1000 };
    assert_eq!(store.exists(1, &[leased.id().key], Some(lease), 0).leased_keys, 1);
    assert_eq!(store.delete(1, &[*deleted.id()]), 1);
    assert!(deleted.is_deleted() && !idle.is_deleted());
    assert!(matches!(store.begin(&put.meta().put.clone(), 0), Ok(Begin::Present)));
    for (one, leaves) in
        [(touched, false), (pinned, false), (leased, false), (deleted, false), (put, false), (idle, true)]
    {
        let name = *one.id();
        assert_eq!(one.leave(), leaves, "{name:?}");
        store.check_integrity().unwrap();
    }
    drop(pin);
    store.release_owner(LeaseOwner(1));
    store.check_integrity().unwrap();
    assert_eq!(store.stats().held_slots, 0);
}

#[test]
fn a_damaged_header_does_not_leave() {
    let (file, store) = fresh("damaged", 1 << 20);
    store.keep_all(true);
    fill(&store);
    let at = store.get(1, &id(0)).unwrap().shared_ref().header_at;
    let bytes = std::fs::OpenOptions::new().read(true).write(true).open(file.path()).unwrap();
    let mut one = [0];
    bytes.read_exact_at(&mut one, at + 12).unwrap();
    bytes.write_all_at(&[one[0] ^ 1], at + 12).unwrap();
    // What was read last is youngest now, so everything else is touched after it.
    let mut last = 1;
    while store.touch(1, &[id(last)]) == 1 {
        last += 1;
    }
    let leaving = store.leaving(65_536);
    assert_ne!(leaving.first().map(|l| *l.id()), Some(id(0)));
    assert_eq!(store.stats().totals.damaged_headers, 1);
    drop(leaving);
    store.check_integrity().unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Any sizes in any order: each value is in memory or below, and room is always found.
    #[test]
    fn nothing_is_lost_whatever_the_sizes(puts in prop::collection::vec((0u32..9, 0u64..40), 1..80)) {
        let (_file, store) = fresh("sizes", 2 << 20);
        store.keep_all(true);
        let mut below: BTreeMap<ObjectId, Vec<u8>> = BTreeMap::new();
        for (n, (size, extra)) in puts.iter().enumerate() {
            let (n, len) = (n as u64, ((4096u64 << size).min(1 << 20) - extra) as usize);
            let mut tries = 0;
            while put_n(&store, n, len) != Done::Stored {
                tries += 1;
                prop_assert!(tries < 200, "no room for {len} bytes");
                for one in store.leaving(len as u64) {
                    below.insert(*one.id(), one.to_vec());
                    one.leave();
                }
                store.check_integrity().unwrap();
            }
        }
        for (n, (size, extra)) in puts.iter().enumerate() {
            let (n, len) = (n as u64, ((4096u64 << size).min(1 << 20) - extra) as usize);
            let here = store.get(1, &id(n)).map(|pinned| pinned.to_vec());
            prop_assert!(here.is_some() != below.contains_key(&id(n)), "in one place");
            prop_assert_eq!(here.or(below.get(&id(n)).cloned()), Some(value(n, len)));
        }
    }
}
