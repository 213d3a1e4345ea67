//! Nodes that come, go, and come back empty.

use super::fake_transport::{FakeCluster, Mood, config};
use super::{id, value};
use crate::client::*;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

/// Puts values of the numbers; how many were stored.
async fn put(cluster: &FakeCluster, numbers: &[u64]) -> usize {
    let bytes = value(7, 100);
    let items: Vec<PutItem> = numbers.iter().map(|&n| PutItem::new(id(n), &bytes)).collect();
    let stored = cluster.core.put(&items, cluster.core.deadline(None)).await.unwrap();
    stored.iter().filter(|s| matches!(s, Stored::Stored | Stored::Present)).count()
}

#[tokio::test(start_paused = true)]
async fn a_node_that_comes_back_empty_is_ramped_up() {
    let names = ["a", "b"];
    let cluster = FakeCluster::new(config(), &names, &names).unwrap();
    let numbers: Vec<u64> = cluster.owned_by("a").take(400).collect();
    assert_eq!(put(&cluster, &numbers).await, 400, "at the start nothing is held back");
    cluster.nodes["a"].set(Mood::Dead);
    assert_eq!(put(&cluster, &numbers).await, 0);
    cluster.nodes["a"].values.lock().unwrap().clear();
    *cluster.nodes["a"].start_id.lock().unwrap() += 1;
    cluster.nodes["a"].set(Mood::Well);
    tokio::time::sleep(SECOND).await;
    // The probe has found it empty. From a sixteenth on the share grows with time, and what was stored stays in it.
    let mut stored = 0;
    let mut shares = Vec::new();
    for _ in 0..12 {
        let now = put(&cluster, &numbers).await;
        assert!(now >= stored);
        stored = now;
        shares.push(stored);
        tokio::time::sleep(SECOND).await;
    }
    assert!(shares[0] < 120 && shares[4] > 120 && shares[4] < 320 && stored == 400, "{shares:?}");
    assert_eq!(cluster.count("ramps"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_comes_back_full_is_used_at_once() {
    let cluster = FakeCluster::new(config(), &["a"], &["a"]).unwrap();
    // More than a sixty-fourth of its memory.
    cluster.nodes["a"].hold(&id(0), 0, 17 << 20);
    assert_eq!(put(&cluster, &[1]).await, 1);
    *cluster.nodes["a"].start_id.lock().unwrap() += 1;
    for _ in 0..20 {
        assert_eq!(put(&cluster, &(0..100).collect::<Vec<_>>()).await, 100);
        tokio::time::sleep(SECOND / 10).await;
    }
    assert_eq!((cluster.count("ramps"), cluster.nodes["a"].count("stats")), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn a_new_node_takes_over_by_and_by_and_reads_go_to_who_has_it() {
    let cluster = FakeCluster::new(config(), &["a", "b"], &["a"]).unwrap();
    cluster.change(&["a", "b"]).await;
    let numbers: Vec<u64> = cluster.owned_by("b").take(300).collect();
    numbers.iter().for_each(|&n| cluster.nodes["a"].hold(&id(n), 7, 100));
    for second in 0..12 {
        let mut gets: Vec<GetItem> = numbers.iter().map(|&n| GetItem::new(id(n), Destination::Grow(vec![]))).collect();
        cluster.core.get(&mut gets, cluster.core.deadline(None)).await.unwrap();
        assert!(gets.iter().all(|g| g.got.is_hit()), "in second {second}");
        put(&cluster, &numbers).await;
        tokio::time::sleep(SECOND).await;
    }
    assert_eq!(cluster.nodes["b"].values.lock().unwrap().len(), 300);
}

#[tokio::test(start_paused = true)]
async fn without_nodes_everything_is_a_miss() {
    let cluster = FakeCluster::new(config(), &["a"], &[]).unwrap();
    let core = &cluster.core;
    assert_eq!(put(&cluster, &[1, 2]).await, 0);
    let mut gets = [GetItem::new(id(1), Destination::Grow(vec![]))];
    core.get(&mut gets, core.deadline(None)).await.unwrap();
    assert_eq!(gets[0].got, Got::Miss(Miss::NoNode));
    let keys = [id(1).key];
    let presence = core.exists(&[KeyRun { extent: keys[0], keys: &keys }], 1, 0, core.deadline(None)).await;
    assert_eq!((presence.masks, presence.unanswered), (vec![0], vec![Some(Miss::NoNode)]));
    cluster.change(&["a"]).await;
    // It joined empty, so that it may be held back in part, but not for lack of a node.
    assert_eq!(put(&cluster, &[1]).await, 1);
}

#[tokio::test(start_paused = true)]
async fn what_the_caller_got_wrong_is_refused_whole() {
    let cluster = FakeCluster::new(config(), &["a"], &["a"]).unwrap();
    let core = &cluster.core;
    let bytes = value(1, 4);
    let bad = ObjectId { part: 64, ..id(1) };
    let items = [PutItem::new(id(2), &bytes), PutItem::new(bad, &bytes)];
    assert!(core.put(&items, core.deadline(None)).await.unwrap_err().to_string().contains("part is 64"));
    let empty = [PutItem::new(id(2), &[])];
    assert!(core.put(&empty, core.deadline(None)).await.unwrap_err().to_string().contains("value length is 0"));
    assert!(core.touch(&[bad], core.deadline(None)).await.is_err() && core.put_later(&empty).is_err());
    assert!(cluster.nodes["a"].calls.lock().unwrap().is_empty());
    for config in [
        ClientConfig { buckets: 3, ..config() },
        ClientConfig { connections: 0, ..config() },
        ClientConfig { deadline: Duration::ZERO, ..config() },
        ClientConfig { token: Some("with space".into()), ..config() },
        ClientConfig { name: "n".repeat(257), ..config() },
    ] {
        assert!(FakeCluster::new(config, &["a"], &["a"]).is_err());
    }
}
