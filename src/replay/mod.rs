//! Traces through the real core: what a cache of a given size would have hit.
//!
//! A trace is read twice. The first pass ([`scan`]) counts distinct block ids: that gives the hit rate of an infinite
//! cache and turns a capacity such as `1%` into pages. The second pass ([`run()`] does both) sends every request
//! through [`crate::cache::Cache`] as an engine would: open, reserve, fill and commit in chunks, finish. There is no
//! second model of the cache here: whatever the core does, replay measures.
//!
//! A replayed prompt is the full blocks of the request, turned into tokens by a fixed function ([`tokens`]), plus one
//! token of its own, so that the whole prompt can be a hit. A request is atomic: its output comes back, if at all,
//! inside a later prompt. All rates are tokens over prompt tokens in full blocks; the partial block is outside them.
//! Memory is the cache plus the set of distinct ids and what comes before them, whatever the file holds. Only the
//! optimum ([`optimum`]) holds a whole trace: 16 bytes a run of ids.

pub mod blocks;
pub mod capacity;
pub mod ids;
mod keys;
pub mod lineage;
pub mod optimum;
pub mod run;
mod spans;
pub mod split;
pub mod tokens;
pub mod trace;

pub use blocks::BlockIds;
pub use capacity::{Capacity, KvBytes, Pools};
pub use optimum::{Optimum, Reuse};
pub use run::explain::{Lost, MAX_STORIES, Seen, Story, Which, Who, explain, explain_from};
pub use run::host::{HostOptions, TierOptions};
pub use run::outcome::{MAX_SAMPLES, Outcome, Progress, Sample, Totals};
pub use run::overlap::Service;
pub use run::{MAX_CHUNK, Options, run, run_from, scan};
pub use split::{Split, SplitOutcome};
pub use trace::{Header, Line, Skipped, TraceReader, TraceRequest};
