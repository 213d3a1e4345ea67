//! Nodes that are dead, hung, slow or busy: what they cost, and for how long. All in virtual time.

use super::fake_transport::{FakeCluster, Mood, config};
use super::{id, value};
use crate::client::*;
use std::time::Duration;
use tokio::time::Instant;

const SECOND: Duration = Duration::from_secs(1);

/// Gets one object of each node; what became of them, and how long it took.
async fn get(cluster: &FakeCluster, numbers: &[u64], within: Duration) -> (Vec<Got>, Duration) {
    let start = Instant::now();
    let mut gets: Vec<GetItem> = numbers.iter().map(|&n| GetItem::new(id(n), Destination::Grow(vec![]))).collect();
    cluster.core.get(&mut gets, start + within).await.unwrap();
    (gets.into_iter().map(|g| g.got).collect(), start.elapsed())
}

/// Three nodes that have one object each.
fn cluster(config: ClientConfig) -> (FakeCluster, [u64; 3]) {
    let names = ["a", "b", "c"];
    let cluster = FakeCluster::new(config, &names, &names).unwrap();
    let numbers = names.map(|name| {
        let number = cluster.owned_by(name).next().unwrap();
        cluster.nodes[name].hold(&id(number), number, 1000);
        number
    });
    (cluster, numbers)
}

#[tokio::test(start_paused = true)]
async fn a_hung_node_costs_one_deadline_then_is_a_miss_until_it_recovers() {
    let (cluster, numbers) = cluster(config());
    cluster.nodes["b"].set(Mood::Hung);
    let (got, took) = get(&cluster, &numbers, SECOND).await;
    assert!(got[0].is_hit() && got[2].is_hit(), "the others are not held up: {got:?}");
    assert_eq!((got[1].clone(), took), (Got::Miss(Miss::Late), SECOND));
    // From now on nobody waits, for as long as it hangs.
    for _ in 0..100 {
        let (got, took) = get(&cluster, &numbers, SECOND).await;
        assert_eq!((got[1].clone(), took), (Got::Miss(Miss::Refused), Duration::ZERO));
        tokio::time::sleep(SECOND).await;
    }
    assert_eq!(cluster.nodes["b"].count("get"), 1);
    // Probes go on, further apart: within 100 s about a dozen.
    assert!((8..20).contains(&cluster.nodes["b"].count("probe")), "{}", cluster.nodes["b"].count("probe"));
    cluster.nodes["b"].set(Mood::Well);
    tokio::time::sleep(Duration::from_millis(config().breaker.longest_wait_ms) + SECOND).await;
    let (got, took) = get(&cluster, &numbers, SECOND).await;
    assert!(got[1].is_hit() && took == Duration::ZERO, "{got:?}");
}

#[tokio::test(start_paused = true)]
async fn a_dead_node_costs_nothing_and_comes_back() {
    let (cluster, numbers) = cluster(config());
    cluster.nodes["a"].set(Mood::Dead);
    let (got, took) = get(&cluster, &numbers, SECOND).await;
    assert_eq!((got[0].clone(), took), (Got::Miss(Miss::Unreachable), Duration::ZERO));
    assert_eq!(get(&cluster, &numbers, SECOND).await.0[0], Got::Miss(Miss::Refused));
    cluster.nodes["a"].set(Mood::Well);
    tokio::time::sleep(SECOND).await;
    assert!(get(&cluster, &numbers, SECOND).await.0[0].is_hit());
    assert_eq!(cluster.count("breaker_opened"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_slow_node_is_as_a_hung_one() {
    let (cluster, numbers) = cluster(config());
    cluster.nodes["c"].set(Mood::Slow(2 * SECOND));
    assert_eq!(get(&cluster, &numbers, SECOND).await.0[2], Got::Miss(Miss::Late));
    assert_eq!(
        get(&cluster, &numbers, SECOND).await,
        (
            vec![Got::Hit { length: 1000, layout: 0, source: Some(Source::Memory) }, Got::Hit { length: 1000, layout: 0, source: Some(Source::Memory) }, Got::Miss(Miss::Refused),],
            Duration::ZERO
        )
    );
}

#[tokio::test(start_paused = true)]
async fn a_node_that_only_answers_probes_costs_a_deadline_for_each_wait() {
    let (cluster, numbers) = cluster(config());
    cluster.nodes["a"].set(Mood::Pretends);
    let mut waited = Duration::ZERO;
    let start = Instant::now();
    while start.elapsed() < 300 * SECOND {
        waited += get(&cluster, &numbers[..1], SECOND).await.1;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    // Waits double to 10 s: about one second of waiting in each eleven.
    assert!(waited > 20 * SECOND && waited < 45 * SECOND, "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn a_deadline_too_short_for_any_node_is_not_the_nodes_fault() {
    let (cluster, numbers) = cluster(config());
    let short = Duration::from_millis(5);
    cluster.nodes["a"].set(Mood::Slow(Duration::from_millis(10)));
    for _ in 0..3 {
        assert_eq!(get(&cluster, &numbers[..1], short).await.0[0], Got::Miss(Miss::Late));
    }
    // A caller with time gets its answer, and the count of late calls starts anew.
    assert!(get(&cluster, &numbers[..1], SECOND).await.0[0].is_hit());
    for _ in 0..4 {
        assert_eq!(cluster.count("breaker_opened"), 0);
        assert_eq!(get(&cluster, &numbers[..1], short).await.0[0], Got::Miss(Miss::Late));
    }
    // Four in a row without a success: nobody gets anything from it.
    assert_eq!(cluster.count("breaker_opened"), 1);
}

#[tokio::test(start_paused = true)]
async fn many_callers_wait_for_a_hung_node_once_each_at_most() {
    let (cluster, numbers) = cluster(config());
    cluster.nodes["b"].set(Mood::Hung);
    let start = Instant::now();
    let calls: Vec<_> = (0..50).map(|_| get(&cluster, &numbers, SECOND)).collect();
    for (got, took) in futures_util::future::join_all(calls).await {
        assert!(got[0].is_hit() && took == SECOND);
    }
    assert_eq!(start.elapsed(), SECOND);
    assert_eq!(cluster.count("breaker_opened"), 1);
}

#[tokio::test(start_paused = true)]
async fn every_call_ends_at_its_deadline() {
    let (cluster, numbers) = cluster(ClientConfig { connections: 1, ..config() });
    for node in cluster.nodes.values() {
        node.set(Mood::Hung);
    }
    let core = &cluster.core;
    // More than one slice for each node: they are not worth a deadline each.
    let ids: Vec<ObjectId> = cluster.owned_by("a").take(35).map(id).collect();
    let bytes = value(1, 10);
    let items: Vec<PutItem> = ids.iter().map(|id| PutItem::new(*id, &bytes)).collect();
    let start = Instant::now();
    let stored = core.put(&items, start + SECOND).await.unwrap();
    assert_eq!(start.elapsed(), SECOND);
    assert!(stored.iter().all(|s| matches!(s, Stored::Dropped(Miss::Late | Miss::Refused))), "{stored:?}");
    let deleted = core.delete(&ids, core.deadline(Some(SECOND))).await.unwrap();
    assert_eq!((deleted.count, deleted.unanswered, start.elapsed()), (0, vec!["a".to_string()], 2 * SECOND));
    let stats = core.stats(core.deadline(Some(SECOND))).await;
    assert!(stats.len() == 3 && stats.iter().all(|(_, s)| s.is_none()) && start.elapsed() == 3 * SECOND);
    let keys = numbers.map(|n| [id(n).key]);
    let runs: Vec<KeyRun> = keys.iter().map(|k| KeyRun { extent: k[0], keys: k }).collect();
    let presence = core.exists(&runs, !0, 0, core.deadline(Some(SECOND))).await;
    assert!(start.elapsed() <= 4 * SECOND && presence.unanswered.iter().all(Option::is_some));
}

#[tokio::test(start_paused = true)]
async fn a_busy_node_is_left_alone_after_some_refusals() {
    let (cluster, numbers) = cluster(config());
    cluster.nodes["a"].set(Mood::Busy);
    for _ in 0..4 {
        assert_eq!(get(&cluster, &numbers[..1], SECOND).await.0[0], Got::Miss(Miss::Overloaded));
    }
    assert_eq!(get(&cluster, &numbers[..1], SECOND).await.0[0], Got::Miss(Miss::Refused));
}
