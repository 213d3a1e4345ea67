//! Memory, disk and an object store as one: what the disk reclaims is in the store, what is deleted is nowhere, and a store
//! that is gone costs values and nothing else.
#![cfg(all(feature = "gcache", target_os = "linux"))]

mod remote;
mod shm;

use mimo_cache::node::tiers::Fetch;
use mimo_cache::remote::RemoteConfig;
use mimo_cache::shm::ObjectId;
use remote::world::{Where, World, length, object};
use remote::{Call, Fake, Fault, TENANT};
use std::sync::Arc;
use std::time::{Duration, Instant};

fn world(fake: &Fake, promote_after: u8) -> World {
    let config = RemoteConfig {
        timeout: Duration::from_secs(1),
        read_timeout: Duration::from_secs(1),
        ..RemoteConfig::new("kv", "node-1")
    };
    World::new(Arc::new(fake.clone()), config, promote_after)
}

#[test]
fn what_fits_neither_into_memory_nor_on_disk_is_in_the_store_and_is_found_by_the_next_process() {
    let fake = Fake::default();
    let mut world = world(&fake, 255);
    (0..300).for_each(|n| world.put(n, length(n)));
    world.rest();
    let places = world.check();
    assert!(places.iter().all(|count| *count > 5), "{places:?}");
    let totals = world.tiers.remote_stats().unwrap().totals;
    assert_eq!((totals.dropped, totals.failed, totals.damaged), (0, 0, 0), "{totals:?}");
    let mut world = world.restart();
    world.check();
    assert_eq!(world.get(&object(1000)), None);
    // What is in the store alone is reported, since it was listed or read, and can be put again.
    for id in world.known.keys() {
        assert_eq!(world.tiers.exists(TENANT, &[id.key], None, 0).masks, [1], "{id:?}");
    }
    let below = *world.known.keys().find(|id| world.get(id).unwrap().1 == Where::Remote).unwrap();
    let n = (0..300).find(|n| object(*n) == below).unwrap();
    world.put(n, length(n));
    assert_eq!(world.get(&below).unwrap().1, Where::Memory);
}

#[test]
fn what_is_used_again_comes_up_into_memory() {
    let fake = Fake::default();
    let mut world = world(&fake, 2);
    (0..600).for_each(|n| world.put(n, 65_536));
    world.rest();
    let below = world.known.keys().find(|id| !world.tiers.has(TENANT, id)).copied().unwrap();
    assert_eq!(world.get(&below).unwrap().1, Where::Remote, "once is no reason");
    assert_eq!(world.get(&below).unwrap().1, Where::Memory, "the second use brings it up");
    let reads = fake.calls(Call::Get);
    assert_eq!(world.get(&below).unwrap().0, world.known[&below]);
    assert_eq!(fake.calls(Call::Get), reads, "the store is not asked again");
}

#[test]
fn what_is_deleted_comes_back_from_no_tier() {
    let fake = Fake::default();
    let mut world = world(&fake, 1);
    let mut gone = std::collections::BTreeSet::new();
    for n in 0..400 {
        world.put(n, length(n));
        if n % 3 == 0 {
            // What was just put, what is on its way down, and what is down.
            let old = [n, n.saturating_sub(40), n / 2, n / 4].map(object);
            world.delete(&old).unwrap();
            gone.extend(old);
        }
        if n % 7 == 0 {
            // Comes up while it is deleted.
            let id = object(n / 5);
            let rising = world.runtime.spawn(world.tiers.clone().fetch(TENANT, id));
            world.delete(&[id]).unwrap();
            gone.insert(id);
            drop(world.runtime.block_on(rising));
        }
    }
    world.rest();
    world.check();
    let absent = |world: &World| {
        for id in &gone {
            assert!(world.get(id).is_none(), "{id:?} came back");
        }
    };
    absent(&world);
    assert!(fake.calls(Call::Delete) > 50);
    let world = world.restart();
    absent(&world);
    world.check();
}

#[test]
fn a_store_that_is_gone_leaves_a_node_of_memory_and_disk() {
    let fake = Fake::default();
    let mut world = world(&fake, 255);
    (0..200).for_each(|n| world.put(n, 262_144));
    world.rest();
    fake.always(Fault::Hang);
    // Puts go on, whatever becomes of what is reclaimed.
    (1000..1200).for_each(|n| world.put(n, 262_144));
    let start = Instant::now();
    let (mut here, mut lost) = (0, 0);
    for (id, bytes) in &world.known {
        match world.get(id) {
            Some((found, _)) => {
                assert_eq!(&found, bytes);
                here += 1;
            }
            None => lost += 1,
        }
    }
    assert!(here > 40 && lost > 100, "{here} {lost}");
    assert!(start.elapsed() < Duration::from_secs(30), "not a timeout for each");
    let stats = world.tiers.remote_stats().unwrap();
    assert!(stats.trouble.contains("no answer"), "{stats:?}");
    let below = *world.known.keys().find(|id| !world.tiers.has(TENANT, id)).unwrap();
    assert!(world.delete(&[below]).unwrap_err().contains("may come back"));
    fake.mend();
    // The longest rest has 30 s.
    let until = Instant::now() + Duration::from_secs(60);
    while let Err(why) = world.delete(&[below]) {
        assert!(Instant::now() < until, "the store is used again: {why}");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!((world.get(&below), world.tiers.remote_stats().unwrap().trouble), (None, String::new()));
}

#[test]
fn a_value_that_has_no_room_ahead_of_its_turn_is_read_in_turn() {
    const LEN: usize = 900_000;
    let fake = Fake::default();
    let mut world = world(&fake, 255);
    (0..60).for_each(|n| world.put(n, LEN));
    world.rest();
    let below: Vec<_> = world.known.keys().filter(|id| !world.tiers.has(TENANT, id)).copied().collect();
    // Buffers for reads ahead have 4 MiB here.
    let ahead = |id: &ObjectId, bytes: u64| world.tiers.fetch_ahead(TENANT, *id, bytes);
    let inside = world.runtime.enter();
    let held: Vec<Fetch> =
        below[..4].iter().map(|id| world.runtime.block_on(ahead(id, LEN as u64).expect("there is room"))).collect();
    assert!(held.iter().all(|fetch| matches!(fetch, Fetch::OnDisk(_))), "{held:?}");
    assert!(ahead(&below[4], LEN as u64).is_none(), "it does not begin");
    // It begins, since it is taken for short. Who wants it in turn meanwhile waits for the same read, and then for another.
    fake.always(Fault::Slow(50));
    let early = ahead(&below[4], 4096).expect("there is room for that");
    let in_turn = world.tiers.clone().fetch(TENANT, below[4]);
    let (early, in_turn) = world.runtime.block_on(async { tokio::join!(early, in_turn) });
    assert!(matches!(early, Fetch::Crowded), "{early:?}");
    assert!(matches!(&in_turn, Fetch::OnDisk(found) if (**found).as_ref() == world.known[&below[4]]), "{in_turn:?}");
    assert_eq!(fake.calls(Call::Get), 6);
    drop(held);
    let again = world.runtime.block_on(ahead(&below[4], 4096).unwrap());
    assert!(matches!(again, Fetch::OnDisk(_)), "{again:?}");
    drop(inside);
}

#[test]
fn what_is_damaged_in_the_store_is_one_miss() {
    let fake = Fake::default();
    let mut world = world(&fake, 255);
    (0..100).for_each(|n| world.put(n, 262_144));
    world.rest();
    let below: Vec<_> = world.known.keys().filter(|id| !world.tiers.has(TENANT, id)).copied().collect();
    // An object that is damaged is a miss, is removed, and is not reported any more.
    let name = fake.names()[0].clone();
    fake.change(&name, |bytes| bytes[5000] ^= 1);
    let lost: Vec<_> = below.iter().filter(|id| world.fetch(id).is_none()).collect();
    assert_eq!((lost.len(), fake.names().contains(&name)), (1, false));
    assert_eq!(world.tiers.exists(TENANT, &[lost[0].key], None, 0).masks, [0]);
    assert_eq!(world.tiers.remote_stats().unwrap().totals.damaged, 1);
}
