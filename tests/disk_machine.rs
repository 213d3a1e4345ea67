//! The state machine of the disk tier: random operations and crashes, compared with a model after each step.
//!
//! `MIMO_CASES` sets the number of cases of each test, `MIMO_SOAK` multiplies it.
#![cfg(all(feature = "gcache", target_os = "linux"))]

mod disk;

use disk::number;
use disk::world::{Op, World};
use proptest::prelude::*;
use proptest::test_runner::{Config, FileFailurePersistence};

fn cases(default: u64) -> Config {
    let cases = (number("MIMO_CASES", default) * number("MIMO_SOAK", 1)) as u32;
    let persistence = FileFailurePersistence::Direct("tests/disk_machine.regressions");
    Config { cases, failure_persistence: Some(Box::new(persistence)), ..Config::default() }
}

fn ops(most: usize) -> impl Strategy<Value = Vec<Op>> {
    prop::collection::vec(any::<[u8; 4]>().prop_map(Op::decode), 1..most)
}

fn run(segments: u64, ops: Vec<Op>) {
    let mut world = World::new(segments);
    ops.into_iter().for_each(|op| world.apply(op));
}

proptest! {
    #![proptest_config(cases(200))]

    /// Room for most of what is put.
    #[test]
    fn much_room(segments in 16u64..40, ops in ops(80)) {
        run(segments, ops);
    }

    /// Room for little: segments are reclaimed, and what was hit is moved.
    #[test]
    fn little_room(segments in 8u64..10, ops in ops(120)) {
        run(segments, ops);
    }
}
