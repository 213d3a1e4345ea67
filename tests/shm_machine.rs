//! The state machine of the shared-memory store: random operations, crashes between any two stores of one, compared with
//! a model after each step.
//!
//! `MIMO_CASES` sets the number of cases of each test, `MIMO_SOAK` multiplies it.
#![cfg(all(feature = "gcache", target_os = "linux"))]

mod shm;

use proptest::prelude::*;
use proptest::test_runner::{Config, FileFailurePersistence};
use shm::number;
use shm::world::{Op, World};

fn cases(default: u64) -> Config {
    let cases = (number("MIMO_CASES", default) * number("MIMO_SOAK", 1)) as u32;
    let persistence = FileFailurePersistence::Direct("tests/shm_machine.regressions");
    Config { cases, failure_persistence: Some(Box::new(persistence)), ..Config::default() }
}

fn ops(most: usize) -> impl Strategy<Value = Vec<Op>> {
    prop::collection::vec(any::<[u8; 6]>().prop_map(Op::decode), 1..most)
}

fn run(slabs: u64, ops: Vec<Op>) {
    let mut world = World::new(slabs);
    ops.into_iter().for_each(|op| world.apply(op));
}

proptest! {
    #![proptest_config(cases(150))]

    /// Room for most of what is put.
    #[test]
    fn any_size(slabs in 1u64..40, ops in ops(60)) {
        run(slabs, ops);
    }

    /// Room for little: evictions, whole slabs emptied, refusals.
    #[test]
    fn little_room(slabs in 1u64..6, ops in ops(80)) {
        run(slabs, ops);
    }
}

/// Every operation of a history is stopped at each of its stores in turn.
#[test]
fn a_crash_at_every_store_of_every_operation() {
    let put = |name, len, extent, page| Op::Put { name, len, extent, page, superseded: page % 3 == 0 };
    let mut history: Vec<Op> = (0..14).map(|n| put(n * 3, 1000 + u16::from(n) * 777, n % 3, n)).collect();
    history.extend([
        Op::Delete(3, 2),
        Op::Get(6),
        Op::Delete(6, 0),
        put(200, 4, 1, 1),
        put(201, 9, 1, 2),
        Op::Unpin(0),
    ]);
    history.extend([Op::Begin { name: 90, len: 3, extent: 1, page: 1, superseded: false }, Op::Commit(0), Op::Restart]);
    history.extend([
        Op::Begin { name: 95, len: 8, extent: 1, page: 1, superseded: false },
        Op::Abort(0),
        put(99, 14, 0, 0),
    ]);
    for last in 0..history.len() {
        for stores in 0..39 {
            let mut world = World::new(3);
            history[..last].iter().for_each(|op| world.apply(*op));
            world.apply(Op::Crash(stores));
            world.apply(history[last]);
        }
    }
}
