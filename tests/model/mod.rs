//! A model of an engine and its device, to test the cache against.
//!
//! A [`World`] owns a cache, a fake device whose pages hold canaries instead of KV ([`memory`]), and the sequences of a
//! fake engine ([`story`]). Operations ([`op`]) are small numbers. The engine ([`runner`], [`lifecycle`]) does what a
//! real one does and no more than the contract of `Cache` allows. After every operation the world checks:
//!
//! - every row below a sequence's committed length that its tables name is the KV of exactly its tokens, spans and
//!   namespace, MTP rows included, and so is all that a plan reads;
//! - p and q are what a brute force over a dump of the residency says, token by token ([`brute`]);
//! - hits and misses make up each prompt, pages by state make up each pool, counters make up their parts;
//! - a page is handed out for writing only if nobody else holds it and no running step or move touches it;
//! - SWA pages held are bounded by the window; what was promised at `open` is served;
//! - with a region, every page a sequence holds is in a chunk of its pool, and a page whose bytes the other pool wrote
//!   over holds nothing;
//! - a refused call changes nothing; events, folded, equal a snapshot; `check_integrity` agrees.
//!
//! A broken rule panics, which is what proptest, the fuzzer and the soak look for.

#![allow(dead_code, unused_imports, reason = "every test binary uses a part of the model")]
#![allow(missing_docs, reason = "a test's helpers are documented where their name does not say it all")]

pub mod below;
pub mod brute;
pub mod lifecycle;
pub mod load;
pub mod memory;
pub mod op;
pub mod region;
pub mod remote;
pub mod runner;
pub mod script;
pub mod setup;
pub mod story;
pub mod world;

pub use op::{Op, Prompt};
pub use setup::Setup;
pub use world::World;

/// Runs operations in one world, from bytes: ten name the layout, then six an operation each.
pub fn run_bytes(data: &[u8], thorough: bool) {
    let Some((head, rest)) = data.split_first_chunk::<10>() else { return };
    let mut world = World::new(Setup::decode(*head));
    world.thorough = thorough;
    let (ops, _) = rest.as_chunks::<6>();
    ops.iter().for_each(|op| world.apply(Op::decode(*op)));
    world.close();
}
