//! A million operations (`make soak`); ignored otherwise. `MIMO_SOAK` multiplies the number, `MIMO_SEED` moves the
//! start. A failure is made short before it is told.

mod model;

use model::memory::mix;
use model::{Op, Setup, World};
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};

/// Operations of one world; more worlds see more layouts, longer ones see more history.
const LENGTH: u64 = 2_000;

/// Runs a world; the words of its failure, if it fails.
fn failure(layout: [u8; 10], ops: &[Op], thorough: bool) -> Option<String> {
    let run = AssertUnwindSafe(|| {
        let mut world = World::new(Setup::decode(layout));
        world.thorough = thorough;
        ops.iter().for_each(|op| world.apply(*op));
        world.close();
    });
    let panic = catch_unwind(run).err()?;
    let text = panic.downcast_ref::<String>().cloned();
    Some(text.or_else(|| panic.downcast_ref::<&str>().map(|s| s.to_string())).unwrap_or_default())
}

/// Leaves operations out as long as what is left still fails.
fn shorten(layout: [u8; 10], mut ops: Vec<Op>) -> Vec<Op> {
    let mut chunk = ops.len() / 2;
    while chunk > 0 {
        let mut at = 0;
        while at < ops.len() {
            let mut fewer = ops.clone();
            fewer.drain(at..(at + chunk).min(ops.len()));
            if failure(layout, &fewer, true).is_some() { ops = fewer } else { at += chunk }
        }
        chunk /= 2;
    }
    ops
}

#[test]
#[ignore = "minutes long; run with --ignored or `make soak`"]
fn a_million_operations() {
    let number = |name: &str, default: u64| std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default);
    let (total, seed) = (1_000_000 * number("MIMO_SOAK", 1), number("MIMO_SEED", 1));
    let hook = take_hook();
    set_hook(Box::new(|_| {}));
    let mut failed = None;
    for world in 0..total.div_ceil(LENGTH) {
        let byte = |n: u64| mix(mix(seed, world), n).to_le_bytes();
        let [[a, b, c, d, e, f, g, h], [i, j, ..]] = [byte(0), byte(1)];
        let layout = [a, b, c, d, e, f, g, h, i, j];
        let op = |n| byte(2 + n).first_chunk().copied().map(Op::decode).expect("six of eight bytes");
        let ops: Vec<Op> = (0..LENGTH).map(op).collect();
        if failure(layout, &ops, world % 16 == 0).is_some() {
            let ops = shorten(layout, ops);
            failed = failure(layout, &ops, true).map(|text| (world, layout, ops, text));
            break;
        }
        if world % 50 == 49 {
            println!("{} operations in {} worlds", (world + 1) * LENGTH, world + 1);
        }
    }
    set_hook(hook);
    if let Some((world, layout, ops, text)) = failed {
        let ops: Vec<String> = ops.iter().map(|op| format!("{op:?},")).collect();
        panic!("world {world} of seed {seed}, {:?} = {layout:?}:\n{}\n{text}", Setup::decode(layout), ops.join("\n"));
    }
}
