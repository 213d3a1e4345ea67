//! The state machine over a cache and a host tier below it: what comes up is checked like everything a sequence reads.
//!
//! `MIMO_CASES` sets the number of cases of each test, `MIMO_SOAK` multiplies it.
#![cfg(target_os = "linux")]

mod model;

use model::{Op, Setup, World};
use proptest::prelude::*;
use proptest::test_runner::{Config, FileFailurePersistence};

fn cases(default: u32) -> Config {
    let number = |name: &str| std::env::var(name).ok().and_then(|v| v.parse::<u32>().ok());
    let cases = number("MIMO_CASES").unwrap_or(default) * number("MIMO_SOAK").unwrap_or(1);
    let persistence = FileFailurePersistence::Direct("tests/tiers.regressions");
    Config { cases, failure_persistence: Some(Box::new(persistence)), ..Config::default() }
}

fn ops(most: usize) -> impl Strategy<Value = Vec<Op>> {
    prop::collection::vec(any::<[u8; 6]>().prop_map(Op::decode_below), 1..most)
}

fn run(setup: Setup, below: [u8; 4], ops: Vec<Op>) {
    let mut world = World::new(setup);
    world.put_below(below);
    ops.into_iter().for_each(|op| world.apply(op));
    world.close();
}

proptest! {
    #![proptest_config(cases(1500))]

    /// Every layout, every operation.
    #[test]
    fn any_layout(setup in any::<[u8; 10]>().prop_map(Setup::decode), below in any::<[u8; 4]>(), ops in ops(60)) {
        run(setup, below, ops);
    }

    /// A cache that holds little more than one sequence: nearly all comes from below.
    #[test]
    fn tiny_above(mut layout in any::<[u8; 10]>(), below in any::<[u8; 4]>(), ops in ops(60)) {
        (layout[5], layout[6]) = (layout[5] % 8, layout[6] % 3);
        run(Setup::decode(layout), below, ops);
    }

    /// One page size and one token: everything collides with everything.
    #[test]
    fn one_prompt_many_ways(mut layout in any::<[u8; 10]>(), below in any::<[u8; 4]>(), ops in ops(60)) {
        layout[0] = 1;
        layout[9] = 60;
        run(Setup::decode(layout), below, ops);
    }
}
