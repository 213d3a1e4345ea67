//! Grouping and routing against the plainest way to say the same.

use super::fake_transport::{FakeCluster, config};
use super::{id, id_in, key, value};
use crate::client::core::slices;
use crate::client::*;
use crate::ring::{draw, node_seed};
use proptest::prelude::*;
use std::time::Duration;

/// The owner of an extent among equal nodes: whoever draws least.
fn owner<'n>(names: &[&'n str], extent: &[u8; 32]) -> Option<&'n str> {
    let bucket = u64::from_le_bytes(extent[..8].try_into().unwrap()) % (1 << 10);
    names.iter().copied().min_by_key(|name| (draw(node_seed(name), 1, bucket as u32), *name))
}

proptest! {
    #[test]
    fn slices_are_bounded_whole_and_as_long_as_they_may(
        sizes in prop::collection::vec(0u64..100, 0..60), objects in 1usize..10, bytes in 1u64..200,
    ) {
        let cut = slices(sizes.clone(), objects, bytes, |s| *s);
        prop_assert_eq!(cut.concat(), sizes);
        for (i, slice) in cut.iter().enumerate() {
            let sum: u64 = slice.iter().sum();
            prop_assert!((1..=objects).contains(&slice.len()) && (sum <= bytes || slice.len() == 1));
            if let Some(next) = cut.get(i + 1) {
                prop_assert!(slice.len() == objects || sum + next[0] > bytes, "{slice:?} could take {}", next[0]);
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn routes_are_those_of_the_draws_in_each_epoch() {
    let all = ["a", "b", "c", "d"];
    let cluster = FakeCluster::new(config(), &all, &["a", "b", "c"]).unwrap();
    let epochs: [&[&str]; 5] = [&["a", "b", "c"], &["a", "b", "c", "d"], &["b", "d"], &[], &["c"]];
    let mut before: Option<&[&str]> = None;
    for now in epochs {
        if before.is_some() {
            cluster.change(now).await;
        }
        let client = cluster.core.cluster();
        for n in 0..500 {
            let route = client.route(&key(n));
            let (new, old) = (owner(now, &key(n)), before.and_then(|names| owner(names, &key(n))));
            assert_eq!(route.now.map(|n| n.member.name.as_str()), new);
            assert_eq!(route.before.map(|n| n.member.name.as_str()), old.filter(|old| Some(*old) != new));
        }
        before = Some(now);
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_put_is_found_at_its_owner_and_only_there() {
    let names = ["a", "b", "c"];
    let cluster = FakeCluster::new(config(), &names, &names).unwrap();
    let core = &cluster.core;
    let values: Vec<Vec<u8>> = (0..300).map(|n| value(n, 10 + n as usize)).collect();
    let items: Vec<PutItem> = values.iter().zip(0..).map(|(v, n)| PutItem::new(id_in(n, n / 8), v)).collect();
    let stored = core.put(&items, core.deadline(None)).await.unwrap();
    assert!(stored.iter().all(|s| *s == Stored::Stored));
    assert_eq!(core.put(&items[..20], core.deadline(None)).await.unwrap(), vec![Stored::Present; 20]);
    for (name, node) in &cluster.nodes {
        let held = node.values.lock().unwrap();
        let own = |n: &u64| owner(&names, &key(n / 8)) == Some(name);
        assert_eq!(held.len(), (0..300).filter(own).count());
    }
    let mut buffers = vec![vec![0u8; 400]; 300];
    let mut gets: Vec<GetItem> =
        buffers.iter_mut().zip(0..).map(|(b, n)| GetItem::new(id_in(n, n / 8), &mut b[..])).collect();
    core.get(&mut gets, core.deadline(None)).await.unwrap();
    let got: Vec<Got> = gets.into_iter().map(|g| g.got).collect();
    for ((got, buffer), value) in got.iter().zip(&buffers).zip(&values) {
        assert_eq!(*got, Got::Hit { length: value.len() as u64, layout: 0, source: Some(Source::Memory) });
        assert!(buffer.starts_with(value));
    }
    let ids: Vec<ObjectId> = (0..310).rev().map(|n| id_in(n, n / 8)).collect();
    assert_eq!(core.touch(&ids, core.deadline(None)).await.unwrap().count, 300);
    for node in cluster.nodes.values() {
        let touched = node.touched.lock().unwrap();
        let order = |key: &[u8; 32]| ids.iter().position(|id| id.key == *key);
        assert!(touched.windows(2).all(|pair| order(&pair[0]) < order(&pair[1])), "tail to head, as given");
    }
    assert_eq!(core.delete(&ids, core.deadline(None)).await.unwrap().count, 300);
}

#[tokio::test(start_paused = true)]
async fn exists_puts_masks_where_their_keys_are() {
    let names = ["a", "b", "c"];
    let cluster = FakeCluster::new(config(), &names, &names).unwrap();
    let core = &cluster.core;
    // Runs of different lengths, one of them longer than a node takes in one call.
    let lengths = [1usize, 7, 0, 2500, 64];
    let keys: Vec<Vec<[u8; 32]>> =
        lengths.iter().zip(1u64..).map(|(&n, r)| (0..n as u64).map(|i| key(r << 32 | i)).collect()).collect();
    let runs: Vec<KeyRun> = keys.iter().zip(0..).map(|(keys, r)| KeyRun { extent: key(r), keys }).collect();
    for (keys, r) in keys.iter().zip(0u64..) {
        for (k, i) in keys.iter().zip(0usize..).filter(|(_, i)| i % 3 == 0) {
            let id = ObjectId { key: *k, part: (i % 2) as u8, extent: key(r) };
            cluster.owner(&id).hold(&id, 1, 1);
        }
    }
    let presence = core.exists(&runs, 3, 0, core.deadline(None)).await;
    let wanted = lengths.iter().flat_map(|&n| (0..n).map(|i| if i % 3 == 0 { 1 << (i % 2) } else { 0 }));
    assert_eq!(presence.masks, wanted.collect::<Vec<u64>>());
    assert!(presence.unanswered.iter().all(Option::is_none));
    // A node that is gone makes its runs unanswered, and no others.
    let gone = owner(&names, &key(3)).unwrap();
    cluster.nodes[gone].set(super::fake_transport::Mood::Dead);
    let presence = core.exists(&runs, 3, 0, core.deadline(None)).await;
    for (r, run) in runs.iter().enumerate() {
        let lost = owner(&names, &key(r as u64)) == Some(gone) && !run.keys.is_empty();
        assert_eq!(presence.unanswered[r].is_some(), lost);
    }
}

#[tokio::test(start_paused = true)]
async fn the_owner_before_is_asked_for_what_the_present_one_lacks() {
    let cluster = FakeCluster::new(config(), &["a", "b"], &["a"]).unwrap();
    let core = &cluster.core;
    cluster.change(&["a", "b"]).await;
    let numbers: Vec<u64> = cluster.owned_by("b").take(20).collect();
    let (old, new) = numbers.split_at(10);
    old.iter().for_each(|&n| cluster.nodes["a"].hold(&id(n), n, 100));
    new.iter().for_each(|&n| cluster.nodes["b"].hold(&id(n), n, 100));
    let get = async || {
        let mut gets: Vec<GetItem> = numbers.iter().map(|&n| GetItem::new(id(n), Destination::Grow(vec![]))).collect();
        core.get(&mut gets, core.deadline(None)).await.unwrap();
        gets.iter().filter(|g| g.got.is_hit()).count()
    };
    // "b" is fresh, but is only found out so after the first answer.
    assert_eq!(get().await, 20);
    assert_eq!(cluster.count("previous_hits"), 10);
    let keys: Vec<[[u8; 32]; 1]> = numbers.iter().map(|&n| [id(n).key]).collect();
    let runs: Vec<KeyRun> = keys.iter().zip(&numbers).map(|(k, &n)| KeyRun { extent: id(n).extent, keys: k }).collect();
    let presence = core.exists(&runs, !0, 0, core.deadline(None)).await;
    assert!(presence.masks.iter().all(|m| *m != 0));
    // Later the owner before is forgotten.
    tokio::time::sleep(core.config.previous_owner + Duration::from_secs(1)).await;
    assert_eq!(get().await, 10);
}
