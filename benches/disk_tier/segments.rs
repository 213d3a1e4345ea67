//! What a put costs with the number of segments: each put of these takes a segment of its own, and has one sealed and one
//! reclaimed. On a device in memory, since thousands of files take long to make; the times are processor time.

use super::{Puts, Settings};
use crate::common::{cpu_ns, figure};
use mimo_cache::disk::memory::Memory;
use mimo_cache::disk::{Disk, DiskConfig};
use serde_json::Value;
use std::sync::Arc;

/// The smallest segment.
const SEGMENT: u32 = 64 << 10;
/// A value that fits into it once.
const LEN: usize = 32 << 10;
/// Puts of a run.
const TIMED: u64 = 1_000;

pub fn run(settings: &Settings) -> Vec<Value> {
    let counts: &[u64] = if settings.quick { &[64, 256] } else { &[64, 1_024, 8_192] };
    let mut figures = Vec::new();
    for &count in counts {
        let config = DiskConfig { segment_bytes: SEGMENT, ..DiskConfig::new("memory", count * u64::from(SEGMENT)) };
        let (disk, _) = Disk::open_on(&config, Arc::new(Memory::new())).expect("a device in memory");
        let mut puts = Puts::new(0, LEN);
        puts.fill(&disk, count * 5 / 4);
        let mut runs = Vec::new();
        for _ in 0..settings.runs.min(3) {
            let start = cpu_ns();
            puts.fill(&disk, TIMED);
            runs.push((cpu_ns() - start) as f64 / TIMED as f64 / 1e3);
        }
        figures.push(figure(&format!("segments_put_{count}"), "us", &runs));
    }
    figures
}
