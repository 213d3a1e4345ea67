//! Copies between device and host memory against a naive model of bytes: random layouts, jobs and cancels.

use super::world::{Array, Shape, World, assert_done};
use mimo_cache::tier::{Direction, Outcome, Pair};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::subsequence;
use std::time::Duration;

/// What to do with a job once it is submitted.
#[derive(Debug, Clone, Copy)]
enum Then {
    Wait,
    /// Wait for this layer first, then cancel.
    CancelAfter(u32),
}

#[derive(Debug, Clone)]
struct Step {
    load: bool,
    /// Per group: device ids and host ids, each once, cut to the shorter.
    ids: [(Vec<u32>, Vec<u32>); 2],
    then: Then,
}

fn array() -> impl Strategy<Value = (u32, Vec<usize>, usize)> {
    let bytes = prop_oneof![1usize..50, 4000usize..4200, 8000usize..20_000];
    (0u32..3, vec(bytes, 1..3), prop_oneof![Just(0usize), 1usize..100])
}

/// Arrays whose layers ascend, with repeats.
fn arrays(least: usize) -> impl Strategy<Value = Vec<Array>> {
    vec(array(), least..5).prop_map(|arrays| {
        let mut layer = 0;
        let next = |(more, parts, padding)| {
            layer += more;
            Array { layer, parts, padding }
        };
        arrays.into_iter().map(next).collect()
    })
}

fn shape() -> impl Strategy<Value = Shape> {
    let pages = || [2u32..7, 2u32..7];
    (arrays(1), arrays(0), pages(), pages()).prop_map(|(full, swa, mut device_pages, mut host_pages)| {
        if swa.is_empty() {
            (device_pages[1], host_pages[1]) = (0, 0);
        }
        Shape { arrays: [full, swa], device_pages, host_pages }
    })
}

fn ids(pages: u32) -> impl Strategy<Value = Vec<u32>> {
    let all: Vec<u32> = (1..=pages).collect();
    let len = all.len();
    subsequence(all, 0..=len).prop_shuffle()
}

fn step(shape: &Shape) -> impl Strategy<Value = Step> + use<> {
    let of = |g: usize| (ids(shape.device_pages[g].saturating_sub(1)), ids(shape.host_pages[g]));
    let then = prop_oneof![3 => Just(Then::Wait), 1 => (0u32..8).prop_map(Then::CancelAfter)];
    (any::<bool>(), of(0), of(1), then).prop_map(|(load, full, swa, then)| Step { load, ids: [full, swa], then })
}

fn run() -> impl Strategy<Value = (Shape, Vec<Step>, usize)> {
    shape().prop_flat_map(|shape| {
        let steps = vec(step(&shape), 1..8);
        (Just(shape), steps, 1usize..4)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Every job moves the bytes of its pages and no other byte: canaries are everywhere else.
    #[test]
    fn jobs_do_what_the_model_does((shape, steps, threads) in run()) {
        let world = World::new(&shape);
        let copier = world.copier(threads);
        for (n, step) in steps.iter().enumerate() {
            world.fill(10_000 * (n + 1));
            let before = world.snapshot();
            let pairs = step.ids.clone().map(|(device, host)| {
                device.into_iter().zip(host).map(|(device, host)| Pair { device, host }).collect::<Vec<_>>()
            });
            let mut after = before.clone();
            for (group, pairs) in pairs.iter().enumerate() {
                pairs.iter().for_each(|pair| after.apply(&shape, step.load, group, *pair));
            }
            let direction = if step.load { Direction::Load } else { Direction::Save };
            let job = copier.submit(direction, &pairs[0], &pairs[1]).unwrap();
            if let Then::CancelAfter(layer) = step.then {
                if step.load {
                    assert_done(&job.wait_layer(layer, None).unwrap());
                }
                job.cancel();
            }
            match job.wait(None) {
                Outcome::Done => prop_assert!(world.snapshot() == after, "not what the model has"),
                Outcome::Cancelled => {
                    prop_assert!(matches!(step.then, Then::CancelAfter(_)));
                    prop_assert!(world.snapshot().is_between(&before, &after, &shape, &pairs), "half a part");
                }
                other => prop_assert!(false, "{other:?}"),
            }
            let progress = job.progress();
            prop_assert!(progress.copied <= progress.bytes && progress.ready <= progress.layers);
            if job.outcome() == Outcome::Done {
                prop_assert_eq!((progress.copied, progress.ready), (progress.bytes, progress.layers));
                prop_assert!(job.times().iter().all(|layer| layer.ready_ns.is_some()));
            }
            prop_assert_eq!(copier.in_flight(), (0, 0));
        }
    }

    /// After the wait for a layer its bytes are there, whatever else is still under way.
    #[test]
    fn a_waited_layer_is_there((shape, steps, threads) in run()) {
        let world = World::new(&shape);
        let copier = world.copier(threads);
        for (n, step) in steps.iter().enumerate() {
            world.fill(10_000 * (n + 1));
            let pairs = step.ids.clone().map(|(device, host)| {
                device.into_iter().zip(host).map(|(device, host)| Pair { device, host }).collect::<Vec<_>>()
            });
            let job = copier.submit(Direction::Load, &pairs[0], &pairs[1]).unwrap();
            for layer in job.layers() {
                assert_done(&job.wait_layer(*layer, Some(Duration::from_secs(60))).unwrap());
                for group in mimo_cache::tier::PoolGroup::BOTH {
                    let parts = world.device.layout().group(group).parts();
                    for n in (0..parts.len()).filter(|n| parts[*n].layer <= *layer) {
                        for pair in &pairs[group.index()] {
                            let got = world.part(group, n, pair.device);
                            prop_assert!(got == world.host_part(group, n, pair.host), "layer {layer}");
                        }
                    }
                }
            }
            assert_done(&job.wait(None));
        }
    }
}
