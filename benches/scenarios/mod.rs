//! The scenarios of the `tree` bench, one file each: `run(quick)` returns its figures.

pub mod evict;
pub mod growth;
pub mod rematch;
pub mod worst;

/// Runs per figure.
pub const RUNS: usize = 5;
