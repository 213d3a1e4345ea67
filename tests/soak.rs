//! A million operations (`make soak`); ignored otherwise. `MIMO_SOAK` multiplies the number, `MIMO_SEED` moves the
//! start.

mod model;

use model::memory::mix;
use model::{Op, Setup, World};

#[test]
#[ignore = "minutes long; run with --ignored or `make soak`"]
fn a_million_operations() {
    let number = |name: &str, default: u64| std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default);
    let (total, seed) = (1_000_000 * number("MIMO_SOAK", 1), number("MIMO_SEED", 1));
    let (mut done, mut world_number) = (0, 0);
    while done < total {
        world_number += 1;
        let state = mix(seed, world_number);
        let byte = |n: u64| mix(state, n).to_le_bytes();
        let [a, b] = [byte(0), byte(1)];
        let layout = [a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], b[0], b[1]];
        // Told before it runs, so that a failure names its world.
        println!("world {world_number} of seed {seed}: {layout:?}");
        let mut world = World::new(Setup::decode(layout));
        world.thorough = world_number % 16 == 0;
        for n in 0..2_000 {
            let o = byte(2 + n);
            world.apply(Op::decode([o[0], o[1], o[2], o[3], o[4], o[5]]));
        }
        world.close();
        done += 2_000;
    }
    println!("{done} operations in {world_number} worlds");
}
