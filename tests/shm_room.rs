//! The shared-memory store, one rule a test: what goes when room is needed, and what stays.
#![cfg(all(feature = "gcache", target_os = "linux"))]

mod shm;

use mimo_cache::shm::{Begin, Lease, LeaseOwner, ObjectId, PutMeta, Store, StoreConfig};
use shm::*;

const MIB: u64 = 1 << 20;

fn fresh(name: &str, bytes: u64) -> (TempFile, Store) {
    let file = TempFile::new(name);
    let store = open(&config(file.path(), bytes)).0;
    (file, store)
}

/// Puts pages of one extent, each of a slab, and returns the ids.
fn extent(store: &Store, number: u64, pages: &[(u32, bool)]) -> Vec<ObjectId> {
    let put_page = |&(page, superseded): &(u32, bool)| {
        let n = number * 1000 + u64::from(page);
        let meta = PutMeta { extent: key(number), page_index: page, superseded, ..meta(n, 65_536) };
        assert_eq!(put(store, &meta, &value(n, 65_536)), Done::Stored);
        meta.id
    };
    pages.iter().map(put_page).collect()
}

fn left(store: &Store, ids: &[ObjectId]) -> Vec<bool> {
    ids.iter().map(|id| store.exists(1, &[id.key], None, 0).masks[0] != 0).collect()
}

#[test]
fn superseded_windows_go_first_then_the_tail_before_the_head_of_the_oldest_extent() {
    let (_file, store) = fresh("order", 1200 << 10);
    let slabs = store.stats().slab_bytes >> 16;
    let old = extent(&store, 1, &[(0, false), (1, true), (2, false), (3, false)]);
    let young = extent(&store, 2, &(0..slabs as u32 - 4).map(|p| (p, p == 5)).collect::<Vec<_>>());
    for n in 0..5 {
        assert_eq!(put_n(&store, 90_000 + n, 65_536), Done::Stored);
        match n {
            0 => assert_eq!(left(&store, &old), [true, false, true, true], "the superseded window"),
            1 => assert_eq!(left(&store, &old), [true, false, true, false], "the tail"),
            2 => assert_eq!(left(&store, &old), [true, false, false, false]),
            3 => assert_eq!(left(&store, &old), [false; 4], "the head last"),
            _ => assert!(!left(&store, &young)[5], "then the superseded window of the next extent"),
        }
        store.check_integrity().unwrap();
    }
    assert_eq!(left(&store, &young).iter().filter(|l| !**l).count(), 1);
    assert_eq!(store.stats().totals.reclaimed_objects, 0);
}

#[test]
fn use_makes_an_extent_young_and_a_put_of_what_is_there_can_supersede_it() {
    let (_file, store) = fresh("young", 1200 << 10);
    let slabs = (store.stats().slab_bytes >> 16) as u32;
    let a = extent(&store, 1, &[(0, false), (1, false)]);
    let b = extent(&store, 2, &[(0, false), (1, false)]);
    let rest = extent(&store, 3, &(0..slabs - 4).map(|p| (p, false)).collect::<Vec<_>>());
    let head = PutMeta { extent: key(2), page_index: 0, superseded: true, ..meta(2000, 65_536) };
    assert_eq!(put(&store, &head, &value(2000, 65_536)), Done::Present);
    assert_eq!(store.touch(1, &[a[1], a[0]]), 2);
    drop(store.get(1, &rest[0]).unwrap());
    // Each extent was used since; the second one first.
    put_n(&store, 90_000, 65_536);
    assert_eq!(
        (left(&store, &a), left(&store, &b)),
        (vec![true; 2], vec![false, true]),
        "superseded goes, not the tail"
    );
    store.check_integrity().unwrap();
}

#[test]
fn what_is_pinned_leased_or_being_written_stays() {
    let (_file, store) = fresh("held", 1200 << 10);
    let slabs = store.stats().slab_bytes >> 16;
    (0..slabs).for_each(|n| assert_eq!(put_n(&store, n, 65_536), Done::Stored));
    let pins: Vec<_> = (0..slabs - 4).map(|n| store.get(1, &id(n, 0)).unwrap()).collect();
    let lease = Lease { owner: LeaseOwner(9), millis: 1000 };
    let keys: Vec<_> = (slabs - 4..slabs - 1).map(key).collect();
    assert_eq!(store.exists(1, &keys, Some(lease), 500).leased_keys, 3);
    let Begin::Slot(writer) = store.begin(&meta(1000, 65_536), 500).unwrap() else { panic!("one could be evicted") };
    store.check_integrity().unwrap();
    assert!(matches!(store.begin(&meta(1001, 4096), 500).unwrap(), Begin::NoRoom));
    assert!(pins.iter().enumerate().all(|(n, p)| **p == value(n as u64, 65_536)));
    assert!(matches!(store.begin(&meta(1001, 4096), 1499).unwrap(), Begin::NoRoom), "until the lease ends");
    assert!(matches!(store.begin(&meta(1001, 4096), 1500).unwrap(), Begin::Slot(_)));
    drop((pins, writer));
    assert_eq!(store.stats().held_slots, 0);
    store.check_integrity().unwrap();
}

#[test]
fn leases_are_bounded_in_bytes_and_time_and_end_with_their_owner() {
    let file = TempFile::new("leases");
    let config = StoreConfig { lease_bytes: 10 * 4096, max_lease_ms: 100, ..config(file.path(), 2 * MIB) };
    let (store, _) = open(&config);
    (0..12).for_each(|n| assert_eq!(put_n(&store, n, 4096), Done::Stored));
    let keys: Vec<_> = (0..12).map(key).collect();
    let slot = store.stats().slot_bytes / 12;
    let fit = (10 * 4096 / slot) as usize;
    let lease = |owner| Some(Lease { owner: LeaseOwner(owner), millis: u32::MAX });
    let found = store.exists(1, &keys, lease(1), 1000);
    assert_eq!((found.masks, found.leased_keys), (vec![1; 12], fit), "all reported, as many leased as fit");
    assert_eq!(store.exists(1, &keys[..fit], lease(1), 1050).leased_keys, fit, "prolonged");
    assert_eq!(store.exists(1, &keys[..1], lease(2), 1050).leased_keys, 0, "another owner counts by itself");
    store.expire(1149);
    assert_eq!(store.stats().leases, fit as u64);
    store.expire(1150);
    assert_eq!((store.stats().leases, store.stats().lease_bytes, store.stats().held_slots), (0, 0, 0));
    store.exists(1, &keys[..2], lease(1), 2000);
    store.exists(1, &keys[1..4], lease(2), 2000);
    store.delete(1, &[id(1, 0)]);
    store.release_owner(LeaseOwner(2));
    assert_eq!((store.stats().leases, store.stats().held_slots), (1, 1));
    store.check_integrity().unwrap();
    drop(store);
    assert_eq!(open(&config).0.stats().leases, 0, "leases do not outlive the process");
}

#[test]
fn big_values_find_room_whatever_was_stored_before() {
    let (_file, store) = fresh("big", 24 * MIB);
    let most = store.max_value_bytes();
    let mut n = 0;
    for round in 0..4u64 {
        // Small values of many lengths, in an order that leaves a few of them in every slab.
        for _ in 0..3000 {
            n += 1;
            let len = 1 + mix(n, round) % 30_000;
            assert_eq!(put_n(&store, n, len as usize), Done::Stored);
        }
        for len in [65_537, MIB, 5 * MIB, most, 12 * MIB, 3] {
            n += 1;
            assert_eq!(put_n(&store, n, len as usize), Done::Stored, "{len} bytes in round {round}");
            assert!(has_n(&store, n));
            store.check_integrity().unwrap();
        }
    }
    let stats = store.stats();
    assert!(stats.slot_bytes <= stats.slab_bytes && stats.totals.reclaimed_objects > 0, "{stats:?}");
}

#[test]
fn a_pin_in_the_way_is_gone_around() {
    let (_file, store) = fresh("around", 4 * MIB);
    let slabs = store.stats().slab_bytes >> 16;
    (0..slabs).for_each(|n| assert_eq!(put_n(&store, n, 65_536), Done::Stored));
    let pin = store.get(1, &id(slabs / 2, 0)).unwrap();
    let half = (slabs / 2 * 65_536) as usize;
    assert_eq!(put_n(&store, 1000, half), Done::Stored, "half of the file is free of the pin");
    let more = half + 2 * 65_536;
    assert_eq!(put_n(&store, 1001, more), Done::NoRoom, "longer runs all contain it");
    assert!(*pin == value(slabs / 2, 65_536));
    drop(pin);
    assert_eq!(put_n(&store, 1001, more), Done::Stored);
    store.check_integrity().unwrap();
}

#[test]
fn what_was_stored_before_a_restart_ages_by_its_order() {
    let file = TempFile::new("ages");
    let config = config(file.path(), 1200 << 10);
    let (store, _) = open(&config);
    let slabs = store.stats().slab_bytes >> 16;
    let order: Vec<u64> = (0..slabs).map(|n| n * 7 % slabs).collect();
    assert!(slabs % 7 != 0);
    order.iter().for_each(|n| assert_eq!(put_n(&store, *n, 65_536), Done::Stored));
    drop(store);
    let (store, _) = open(&config);
    for (done, n) in order.iter().enumerate().take(6) {
        assert!(store.exists(1, &[key(*n)], None, 0).masks[0] != 0);
        put_n(&store, 1000 + done as u64, 65_536);
        assert_eq!(store.exists(1, &[key(*n)], None, 0).masks, [0], "the oldest goes first");
    }
}
