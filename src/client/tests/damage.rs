//! The client on gRPC against nodes and ways that cut, stall, flip, truncate and lie: never a wrong byte, never later than
//! the deadline, and the other node is not held up.

use super::fake_node::{FakeNode, Fault, owned_by, pipes};
use super::fake_transport::config;
use super::{id, value};
use crate::client::*;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

const SECOND: Duration = Duration::from_secs(1);

/// Two nodes with `each` values, of growing length.
fn cluster(each: usize) -> (HashMap<String, Arc<FakeNode>>, Arc<Core>, Vec<u64>) {
    let (nodes, core) = pipes(config()).unwrap();
    let mut numbers = Vec::new();
    for (name, node) in &nodes {
        for number in owned_by(&core, name).take(each) {
            node.hold(&id(number), number, length(number));
            numbers.push(number);
        }
    }
    (nodes, core, numbers)
}

/// From a byte to some chunks.
fn length(number: u64) -> usize {
    [1, 4096, 100_000, 1 << 20, (2 << 20) + 5][number as usize % 5]
}

/// Gets the objects into segments of odd sizes; checks every byte of every hit.
async fn get(core: &Core, numbers: &[u64]) -> (Vec<Got>, Duration) {
    let start = Instant::now();
    let mut buffers: Vec<Vec<u8>> = numbers.iter().map(|&n| vec![0; length(n) + 3]).collect();
    let mut gets: Vec<GetItem> = buffers
        .iter_mut()
        .zip(numbers)
        .map(|(buffer, &n)| {
            let cut = buffer.len() / 3;
            let (one, two) = buffer.split_at_mut(cut);
            GetItem::new(id(n), Destination::Segments([one, two].into_iter().collect()))
        })
        .collect();
    core.get(&mut gets, start + SECOND).await.unwrap();
    let took = start.elapsed();
    let got: Vec<Got> = gets.into_iter().map(|g| g.got).collect();
    for ((got, buffer), &n) in got.iter().zip(&buffers).zip(numbers) {
        if let Got::Hit { length: found, .. } = got {
            assert_eq!(*found as usize, length(n));
            assert!(buffer[..length(n)] == value(n, length(n)), "object {n} has wrong bytes");
        }
    }
    assert!(took <= SECOND, "{took:?}");
    (got, took)
}

fn hits(got: &[Got]) -> usize {
    got.iter().filter(|g| g.is_hit()).count()
}

#[tokio::test(start_paused = true)]
async fn a_value_says_which_tier_it_comes_from() {
    let breaches = |core: &Core| core.metrics().snapshot().iter().find(|c| c.0 == "breaches").unwrap().1;
    let cases = [
        (Fault::None, Ok(Some(Source::Memory))),
        (Fault::Tier(1), Ok(Some(Source::Disk))),
        (Fault::Tier(2), Ok(Some(Source::Remote))),
        // A node of version 1 does not say.
        (Fault::Old, Ok(None)),
        // There are no others: the answer is against the protocol, which costs its objects and is counted.
        (Fault::Tier(3), Err(Miss::Unreachable)),
        (Fault::Tier(-1), Err(Miss::Unreachable)),
        (Fault::Tier(i32::MIN), Err(Miss::Unreachable)),
    ];
    for (fault, wanted) in cases {
        let (nodes, core, numbers) = cluster(5);
        nodes.values().for_each(|node| *node.fault.lock().unwrap() = fault);
        let got = get(&core, &numbers).await.0;
        for got in &got {
            match (&wanted, got) {
                (Ok(source), Got::Hit { source: found, .. }) => assert_eq!(found, source, "{fault:?}"),
                (wanted, got) => assert_eq!(wanted.err().map(Got::Miss).as_ref(), Some(got), "{fault:?}"),
            }
        }
        assert_eq!(breaches(&core) > 0, wanted.is_err(), "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn values_come_whole_and_once() {
    let (nodes, core, mut numbers) = cluster(20);
    numbers.push(1 << 40);
    let (got, took) = get(&core, &numbers).await;
    assert!(got[..40].iter().all(|g| matches!(g, Got::Hit { layout: 9, .. })));
    assert_eq!((hits(&got), got.last(), took), (40, Some(&Got::Miss(Miss::Absent)), Duration::ZERO));
    assert!(nodes.values().all(|n| n.count("connection") == 1));
    // Too small a destination says how much would fit, and does not disturb the others.
    let mut small = [0; 10];
    let mut gets =
        [GetItem::new(id(numbers[1]), &mut small[..]), GetItem::new(id(numbers[2]), Destination::Grow(vec![1]))];
    core.get(&mut gets, core.deadline(None)).await.unwrap();
    let wanted = value(numbers[2], length(numbers[2]));
    assert!(matches!(&gets[1].into, Destination::Grow(v) if *v == wanted));
    if length(numbers[1]) > 10 {
        assert_eq!(gets[0].got, Got::TooLong { length: length(numbers[1]) as u64 });
    }
}

#[tokio::test(start_paused = true)]
async fn faults_of_one_node_cost_one_deadline_and_none_of_the_others_values() {
    let faults = [
        Fault::Refuse,
        Fault::Silent,
        Fault::Hang,
        Fault::Cut(0),
        Fault::Cut(700_000),
        Fault::Stall(0),
        Fault::Stall(700_000),
        Fault::Trickle,
        Fault::Truncate,
        Fault::Shift,
        Fault::Boast,
        Fault::Status(13),
    ];
    for fault in faults {
        let (nodes, core, numbers) = cluster(10);
        *nodes["a"].fault.lock().unwrap() = fault;
        let (got, took) = get(&core, &numbers).await;
        let (sick, well): (Vec<_>, Vec<_>) = got
            .iter()
            .zip(&numbers)
            .partition(|(_, n)| nodes["a"].values.lock().unwrap().contains_key(&(id(**n).key, id(**n).part)));
        assert!(well.iter().all(|(g, _)| g.is_hit()), "{fault:?}: {well:?}");
        assert!(
            sick.iter().any(|(g, _)| matches!(g, Got::Miss(Miss::Late | Miss::Unreachable))),
            "{fault:?}: {sick:?}"
        );
        assert!(took <= SECOND);
        // Left alone now.
        let (again, took) = get(&core, &numbers).await;
        assert_eq!((hits(&again), took), (10, Duration::ZERO), "{fault:?}");
        // And back when it is well, by itself.
        *nodes["a"].fault.lock().unwrap() = Fault::None;
        tokio::time::sleep(15 * SECOND).await;
        assert_eq!(hits(&get(&core, &numbers).await.0), 20, "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_flipped_bit_anywhere_is_never_a_wrong_byte() {
    for at in (0..400_000).step_by(9973).chain(0..200) {
        let (nodes, core, numbers) = cluster(3);
        *nodes["a"].fault.lock().unwrap() = Fault::Flip(at);
        let (got, _) = get(&core, &numbers).await;
        assert!(hits(&got) >= 3, "flip at {at}: {got:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn damaged_values_are_misses_and_reported() {
    let (nodes, core, numbers) = cluster(10);
    *nodes["a"].fault.lock().unwrap() = Fault::Damage;
    let (got, _) = get(&core, &numbers).await;
    assert_eq!(got.iter().filter(|g| **g == Got::Miss(Miss::Damaged)).count(), 10);
    assert_eq!(hits(&got), 10);
    tokio::time::sleep(SECOND).await;
    assert_eq!((nodes["a"].count("Verify"), nodes["b"].count("Verify")), (1, 0));
    // That says nothing against the node.
    assert!(core.cluster().nodes().iter().all(|n| n.breaker() == BreakerState::Closed));
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_told_and_does_not_blame_the_node() {
    let (nodes, core, numbers) = cluster(2);
    for code in [3, 7, 9, 11, 12, 16] {
        *nodes["a"].fault.lock().unwrap() = Fault::Status(code);
        let (got, _) = get(&core, &numbers).await;
        let told = got
            .iter()
            .filter(|g| matches!(g, Got::Failed(r) if (r.code, &*r.sentence) == (code, "a \"sentence\"")))
            .count();
        assert_eq!((told, hits(&got)), (2, 2), "{code}: {got:?}");
    }
    assert!(core.cluster().nodes().iter().all(|n| n.breaker() == BreakerState::Closed));
    // A node under another name would hold what belongs to others.
    let (nodes, core, numbers) = cluster(2);
    *nodes["a"].fault.lock().unwrap() = Fault::Impostor;
    let (got, _) = get(&core, &numbers).await;
    let told =
        got.iter().filter(|g| matches!(g, Got::Failed(r) if r.sentence.contains("calls itself \"else\""))).count();
    assert_eq!((told, hits(&got)), (2, 2), "{got:?}");
}

#[tokio::test(start_paused = true)]
async fn a_restarted_node_is_found_again_within_the_call() {
    let (nodes, core, numbers) = cluster(5);
    assert_eq!(hits(&get(&core, &numbers).await.0), 10);
    // The first connection dies in the middle of the next answer; another one is as good as new.
    *nodes["a"].fault.lock().unwrap() = Fault::Cut(300_000);
    core.cluster().nodes().iter().for_each(|n| n.transport.reset());
    let before = nodes["a"].count("connection");
    let flaky = nodes["a"].clone();
    tokio::spawn(async move {
        while flaky.count("connection") == before {
            tokio::task::yield_now().await;
        }
        *flaky.fault.lock().unwrap() = Fault::None;
    });
    assert_eq!(hits(&get(&core, &numbers).await.0), 10);
    assert_eq!(nodes["a"].count("connection"), before + 2);
}

#[tokio::test(start_paused = true)]
async fn puts_send_what_is_wanted_and_nothing_else() {
    let (nodes, core, numbers) = cluster(5);
    let fresh: Vec<u64> = owned_by(&core, "a").filter(|n| !numbers.contains(n)).take(5).collect();
    let all: Vec<u64> = numbers.iter().chain(&fresh).copied().collect();
    let values: Vec<Vec<u8>> = all.iter().map(|&n| value(n, length(n))).collect();
    let items: Vec<PutItem> = all
        .iter()
        .zip(&values)
        .map(|(&n, v)| {
            let (one, two) = v.split_at(v.len() / 2);
            PutItem { data: [one, two].into_iter().collect(), ..PutItem::new(id(n), &[]) }
        })
        .collect();
    let stored = core.put(&items, core.deadline(None)).await.unwrap();
    assert_eq!(stored[..10], vec![Stored::Present; 10]);
    assert_eq!(stored[10..], vec![Stored::Stored; 5]);
    let pieces: usize = fresh.iter().map(|&n| length(n).div_ceil(1 << 20)).sum();
    assert_eq!((nodes["a"].count("piece"), nodes["b"].count("piece")), (pieces, 0));
    for &n in &fresh {
        assert!(nodes["a"].values.lock().unwrap()[&(id(n).key, id(n).part)] == value(n, length(n)));
    }
}

#[tokio::test(start_paused = true)]
async fn puts_to_a_node_that_fails_are_dropped_with_the_reason() {
    for (fault, reason) in [
        (Fault::Refuse, Stored::Dropped(Miss::Unreachable)),
        (Fault::Hang, Stored::Dropped(Miss::Late)),
        (Fault::Damage, Stored::Corrupt),
        (Fault::Status(8), Stored::Dropped(Miss::Overloaded)),
    ] {
        let (nodes, core) = pipes(config()).unwrap();
        *nodes["a"].fault.lock().unwrap() = fault;
        let bytes = value(1, 3 << 20);
        let number = owned_by(&core, "a").next().unwrap();
        let start = Instant::now();
        let stored = core.put(&[PutItem::new(id(number), &bytes)], start + SECOND).await.unwrap();
        assert_eq!(stored, [reason], "{fault:?}");
        assert!(start.elapsed() <= SECOND);
    }
}
