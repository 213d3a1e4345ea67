//! The queue of puts that nobody waits for: bounded, and empty in the end.

use super::fake_transport::{FakeCluster, Mood, config};
use super::{id, value};
use crate::client::*;
use std::time::Duration;
use tokio::time::Instant;

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn queued_values_arrive() {
    let names = ["a", "b"];
    let cluster = FakeCluster::new(config(), &names, &names).unwrap();
    let core = &cluster.core;
    let values: Vec<Vec<u8>> = (0..100).map(|n| value(n, 1000)).collect();
    let items: Vec<PutItem> = values.iter().zip(0..).map(|(v, n)| PutItem::new(id(n), v)).collect();
    assert_eq!(core.put_later(&items).unwrap(), 100);
    assert!(core.flush(core.deadline(None)).await);
    assert_eq!((cluster.count("put_stored"), cluster.count("queue_bytes")), (100, 0));
    for n in 0..100 {
        assert_eq!(cluster.owner(&id(n)).values.lock().unwrap()[&(id(n).key, id(n).part)], values[n as usize]);
    }
}

#[tokio::test(start_paused = true)]
async fn the_queue_is_bounded_and_never_makes_the_caller_wait() {
    const BOUND: usize = 1 << 20;
    let names = ["a", "b"];
    let cluster = FakeCluster::new(ClientConfig { queue_bytes: BOUND, ..config() }, &names, &names).unwrap();
    let core = &cluster.core;
    cluster.nodes["a"].set(Mood::Hung);
    let numbers: Vec<u64> = cluster.owned_by("a").take(40).collect();
    let bytes = value(1, 100_000);
    let items: Vec<PutItem> = numbers.iter().map(|&n| PutItem::new(id(n), &bytes)).collect();
    let start = Instant::now();
    let taken = core.put_later(&items).unwrap();
    assert_eq!((taken, start.elapsed()), (10, Duration::ZERO));
    assert!(cluster.count("queue_bytes") as usize <= BOUND);
    assert_eq!((cluster.count("queue_full"), cluster.count("put_dropped")), (30, 30));
    // Another node's values do not wait for this one, once there is room.
    tokio::time::sleep(3 * SECOND).await;
    assert_eq!(cluster.count("queue_bytes"), 0, "one deadline, then the node is left alone and its queue dropped");
    assert_eq!(core.put_later(&items).unwrap(), 0, "its breaker is open");
    let other = cluster.owned_by("b").next().unwrap();
    assert_eq!(core.put_later(&[PutItem::new(id(other), &bytes)]).unwrap(), 1);
    assert!(core.flush(core.deadline(None)).await);
    let totals = ["put_stored", "put_dropped"].map(|name| cluster.count(name));
    assert_eq!((totals, cluster.count("put_objects")), ([1, 80], 81));
}

#[tokio::test(start_paused = true)]
async fn what_waits_too_long_is_dropped() {
    let config = ClientConfig { queue_deadline: SECOND, deadline: 10 * SECOND, ..config() };
    let cluster = FakeCluster::new(config, &["a"], &["a"]).unwrap();
    let core = &cluster.core;
    cluster.nodes["a"].set(Mood::Slow(3 * SECOND));
    let bytes = value(1, 10);
    core.put_later(&[PutItem::new(id(1), &bytes)]).unwrap();
    tokio::time::sleep(SECOND / 10).await;
    // The first is on its way; this one waits for it.
    core.put_later(&[PutItem::new(id(2), &bytes)]).unwrap();
    assert!(!core.flush(core.deadline(Some(SECOND))).await, "not within its deadline");
    assert!(core.flush(core.deadline(None)).await);
    assert_eq!((cluster.count("put_stored"), cluster.count("queue_late")), (1, 1));
}
