//! Pools in one region: random operations with chunks that change owner, told to or by themselves, checked against the
//! model after each one. The device is one memory that both pools lie over, so a page that is used through the wrong
//! pool, or a moment too early, has somebody else's bytes.
//!
//! `MIMO_CASES` sets the number of cases of each test, `MIMO_SOAK` multiplies it.

mod model;

use mimo_cache::cache::Group;
use mimo_cache::pool::Region;
use model::script::{join, words};
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
    #![proptest_config(cases(1200))]

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

/// The random worlds above do what they are for: chunks change hands in both directions, pages are copied, also while
/// sequences are open.
#[test]
fn random_worlds_move_chunks() {
    let mut sums = [0u64; 5];
    for seed in 0..150u64 {
        let bytes = |n: u64| model::memory::mix(seed, n).to_le_bytes();
        let [a, b] = [bytes(0), bytes(1)];
        let layout = [a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], b[0], b[1]];
        let setup = Setup::decode_region(layout, [b[2], b[3], b[4]]);
        let mut world = World::new(setup);
        for n in 0..60 {
            let op = Op::decode_region(*bytes(2 + n).first_chunk().expect("six of eight bytes"));
            let before = world.cache.stats().split;
            world.apply(op);
            let after = world.cache.stats().split;
            let copied = after.full_relocated + after.swa_relocated - before.full_relocated - before.swa_relocated;
            sums[4] += if world.seqs.iter().any(|s| !s.parked) { copied } else { 0 };
        }
        let split = world.cache.stats().split;
        let seen = [split.to_full, split.to_swa, split.full_relocated, split.swa_relocated];
        sums.iter_mut().zip(seen).for_each(|(sum, seen)| *sum += seen);
        world.close();
    }
    let least = [40, 40, 30, 15, 10];
    assert!(sums.iter().zip(least).all(|(sum, least)| *sum >= least), "{sums:?}, at least {least:?}");
}

/// Changes that are given up because somebody held a page for too long, partway, with copies under way: what was withdrawn
/// is handed out again, and what was copied stays where it went. No random world is long enough for that by chance.
#[test]
fn changes_that_are_given_up_leave_nothing_behind() {
    let mut sums = [0u64; 3];
    for seed in 0..24u64 {
        let mut setup = Setup::roomy(2, 4, 1);
        setup.scratch = 4;
        setup.give_region(Region {
            chunks: 16,
            full_pages: 6,
            swa_pages: 2,
            full_chunks: 6,
            min_full_chunks: 0,
            min_swa_chunks: 0,
            adaptive: seed % 2 == 1,
        });
        let mut w = World::new(setup);
        // Two prompts share chunk 0, and one of them is held.
        w.turn(&words(1, 4), 0);
        w.turn(&words(2, 8), 0);
        let (reader, _) = w.start(&join(&[&words(1, 4), &words(3, 1)]), 0);
        let reader = w.seqs[reader].id;
        let (to_full, chunk) = (seed % 3 == 2, if seed % 3 == 1 { None } else { Some(0) });
        let to = if to_full { Group::Full } else { Group::Swa };
        // The reader's window is in the SWA pool's first chunk.
        let chunk = chunk.map(|c: u32| if to_full { 6 } else { c });
        assert!(w.cache.reassign(to, chunk).expect("a region"));
        w.audit();
        for n in 0..70 {
            let op = Op::decode_region(*model::memory::mix(seed, n).to_le_bytes().first_chunk().expect("six of eight"));
            if matches!(op, Op::TakeCopies | Op::MoveDone { .. } | Op::Retire) {
                w.apply(op);
            }
            w.turn(&words(10 + n as u32 % 5, 3), 0);
        }
        let split = w.cache.stats().split;
        sums[0] += split.kept;
        sums[1] += split.full_relocated + split.swa_relocated;
        sums[2] += u64::from(w.seqs.iter().any(|s| s.id == reader));
        for n in 100..130 {
            let op = Op::decode_region(*model::memory::mix(seed, n).to_le_bytes().first_chunk().expect("six of eight"));
            w.apply(op);
        }
        w.close();
    }
    assert!(sums[0] >= 8 && sums[1] >= 20 && sums[2] == 24, "{sums:?}");
}

/// Chunks that change by themselves, both ways, while sequences hold pages: first long prompts come that need full pages,
/// then many short ones that need checkpoints.
#[test]
fn regions_left_to_themselves_follow_the_traffic() {
    for seed in 0..2u32 {
        let mut setup = Setup::roomy(2, 4, 1);
        setup.scratch = 4;
        setup.give_region(Region {
            chunks: 30,
            full_pages: 6,
            swa_pages: 2,
            full_chunks: 12,
            min_full_chunks: 0,
            min_swa_chunks: 0,
            adaptive: true,
        });
        let mut w = World::new(setup);
        let mut changes = [0; 2];
        for (phase, count) in [400, 800].into_iter().enumerate() {
            let before = w.cache.stats().split;
            for n in 0..count {
                let topic = 1000 * (1 + phase as u32) + (n * 11 + seed) % if phase == 0 { 9 } else { 70 };
                let prompt = words(topic, if phase == 0 { 26 } else { 4 });
                if n % 5 == 0 {
                    // Open until the next one like it.
                    w.apply(Op::Abort { seq: 0 });
                    let (i, _) = w.start(&prompt, 2);
                    w.prefill(i, 4);
                } else {
                    w.turn(&prompt, 0);
                }
            }
            let after = w.cache.stats().split;
            changes[phase] = if phase == 0 { after.to_full - before.to_full } else { after.to_swa - before.to_swa };
        }
        let split = w.cache.stats().split;
        assert!(changes.iter().all(|&n| n >= 2), "{changes:?} {split:?}");
        assert!(split.full_relocated + split.swa_relocated > 0, "{split:?}");
        w.close();
    }
}
