//! Pools in one region: random operations with chunks that change owner, told to or by themselves, checked against the
//! model after each one. The device is one memory that both pools lie over, so a page that is used through the wrong
//! pool, or a moment too early, has somebody else's bytes.
//!
//! `MIMO_CASES` sets the number of cases of each test, `MIMO_SOAK` multiplies it.

mod model;

use mimo_cache::cache::Group;
use model::{Op, Setup, World};
use proptest::prelude::*;
use proptest::test_runner::{Config, FileFailurePersistence};

fn cases(default: u32) -> Config {
    let number = |name: &str| std::env::var(name).ok().and_then(|v| v.parse::<u32>().ok());
    let cases = number("MIMO_CASES").unwrap_or(default) * number("MIMO_SOAK").unwrap_or(1);
    let persistence = FileFailurePersistence::Direct("tests/region.regressions");
    Config { cases, failure_persistence: Some(Box::new(persistence)), ..Config::default() }
}

fn ops(most: usize) -> impl Strategy<Value = Vec<Op>> {
    prop::collection::vec(any::<[u8; 6]>().prop_map(Op::decode_region), 1..most)
}

fn run(setup: Setup, ops: Vec<Op>) {
    let mut world = World::new(setup);
    ops.into_iter().for_each(|op| world.apply(op));
    world.close();
}

proptest! {
    #![proptest_config(cases(2000))]

    /// Every shape of region, every operation.
    #[test]
    fn any_region(layout in any::<[u8; 10]>(), shape in any::<[u8; 3]>(), ops in ops(60)) {
        run(Setup::decode_region(layout, shape), ops);
    }

    /// A few chunks of which all but one or two are needed, and little variety in prompts.
    #[test]
    fn tight_regions(mut layout in any::<[u8; 10]>(), mut shape in any::<[u8; 3]>(), ops in ops(50)) {
        (layout[0], layout[9], shape[1]) = (layout[0] % 9, 60, shape[1] % 4);
        run(Setup::decode_region(layout, shape), ops);
    }
}
