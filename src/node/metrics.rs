//! Counters of the wire, and everything as Prometheus text. Names end in `_total`, `_seconds` or `_bytes` where they count,
//! time or measure.

use super::state::State;
use crate::disk::DiskStats;
use crate::remote::RemoteStats;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};

/// Calls that are counted, by path.
pub const CALLS: [&str; 8] = ["Hello", "Exists", "Get", "Put", "Touch", "Delete", "Verify", "Stats"];

/// Upper ends of the buckets of call times in seconds, without infinity.
const BUCKETS: [f64; 8] = [0.0001, 0.0005, 0.002, 0.01, 0.05, 0.25, 1.0, 10.0];

/// Times and ends of one call.
#[derive(Debug, Default)]
pub struct CallMetrics {
    /// Calls that ended, in a refusal or not.
    pub ended: AtomicU64,
    /// Of those, refusals.
    pub refused: AtomicU64,
    micros: AtomicU64,
    buckets: [AtomicU64; BUCKETS.len()],
}

/// All counters.
#[derive(Debug, Default)]
pub struct Metrics {
    /// As [`CALLS`].
    pub calls: [CallMetrics; CALLS.len()],
    /// Bytes of values that were given to the network.
    pub get_bytes: AtomicU64,
    /// Bytes of values that were stored.
    pub put_bytes: AtomicU64,
    /// Values that were stored.
    pub puts: AtomicU64,
    /// Chunks that did not match their CRC on arrival.
    pub corrupt_chunks: AtomicU64,
    /// Connections that are open.
    pub connections: AtomicU64,
    /// Connections that were accepted, and those closed at once because there were too many.
    pub accepted: AtomicU64,
    /// See `accepted`.
    pub refused_connections: AtomicU64,
    /// Connections closed because a stream stalled, or nothing was ever asked.
    pub stalled: AtomicU64,
    /// Calls that run.
    pub running: AtomicU64,
    /// Connections of the same-host path that are open.
    pub fast_connections: AtomicU64,
    /// Values handed out over the same-host path.
    pub fast_hits: AtomicU64,
    /// Values asked for over the same-host path that were not there.
    pub fast_misses: AtomicU64,
    /// Bytes of those handed out.
    pub fast_bytes: AtomicU64,
}

impl Metrics {
    /// Adds to a counter.
    pub fn add(counter: &AtomicU64, n: u64) {
        counter.fetch_add(n, Ordering::Relaxed);
    }

    /// Takes from a state.
    pub fn sub(counter: &AtomicU64, n: u64) {
        counter.fetch_sub(n, Ordering::Relaxed);
    }

    /// A value was stored.
    pub fn put(&self, bytes: u64) {
        Metrics::add(&self.puts, 1);
        Metrics::add(&self.put_bytes, bytes);
    }

    /// A chunk did not match.
    pub fn corrupt(&self) {
        Metrics::add(&self.corrupt_chunks, 1);
    }

    /// A call ended.
    pub fn ended(&self, call: usize, micros: u64, refused: bool) {
        let of = &self.calls[call];
        Metrics::add(&of.ended, 1);
        Metrics::add(&of.refused, refused.into());
        Metrics::add(&of.micros, micros);
        if let Some(bucket) = BUCKETS.iter().position(|end| micros as f64 <= end * 1e6) {
            Metrics::add(&of.buckets[bucket], 1);
        }
    }
}

/// Everything as Prometheus text.
pub fn text(state: &State) -> String {
    let mut out = String::with_capacity(8 << 10);
    let m = &state.metrics;
    let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let mut metric = |name: &str, kind: &str, help: &str, samples: &[(&str, f64)]| {
        let _ = writeln!(out, "# HELP gcache_{name} {help}\n# TYPE gcache_{name} {kind}");
        for (labels, value) in samples {
            let _ = writeln!(out, "gcache_{name}{labels} {value}");
        }
    };
    let s = state.store.stats();
    let t = s.totals;
    let memory = |value: u64| [(r#"{tier="memory"}"#, value as f64)];
    metric("hits_total", "counter", "Values found.", &memory(t.hits));
    metric(
        "misses_total",
        "counter",
        "Values not found.",
        &[("", (t.misses + load(&state.tiers.counts.misses)) as f64)],
    );
    metric("capacity_bytes", "gauge", "Most bytes of slots.", &memory(s.slab_bytes));
    metric("used_bytes", "gauge", "Bytes of slots in use.", &memory(s.slot_bytes));
    metric("objects", "gauge", "Values.", &memory(s.objects));
    metric("keys", "gauge", "Keys with a value.", &memory(s.keys));
    metric("held_slots", "gauge", "Slots pinned, leased or being written.", &memory(s.held_slots));
    metric("leased_bytes", "gauge", "Bytes under lease.", &memory(s.lease_bytes));
    metric("writers", "gauge", "Slots being written.", &memory(s.writers));
    metric("index_bytes", "gauge", "Bytes of the index.", &memory(s.index_bytes));
    metric("committed_total", "counter", "Values stored.", &memory(t.committed));
    metric("evicted_total", "counter", "Values evicted.", &memory(t.evicted_objects));
    metric("evicted_bytes_total", "counter", "Bytes of values evicted.", &memory(t.evicted_bytes));
    metric("deleted_total", "counter", "Values deleted.", &memory(t.deleted));
    metric("damaged_total", "counter", "Values dropped because of a check.", &memory(t.damaged()));
    if let Some((d, trouble)) = state.tiers.disk_stats() {
        disk(&mut metric, state, &d, trouble.len());
    }
    if let Some(r) = state.tiers.remote_stats() {
        remote(&mut metric, &r);
    }
    let outcomes = [("present", t.present), ("busy", t.busy), ("no_room", t.no_room), ("aborted", t.aborted)];
    let labels = outcomes.map(|(name, value)| (format!(r#"{{outcome="{name}"}}"#), value as f64));
    let samples: Vec<(&str, f64)> = labels.iter().map(|(l, v)| (l.as_str(), *v)).collect();
    metric("unstored_total", "counter", "Offers that stored nothing, by outcome.", &samples);
    metric("get_bytes_total", "counter", "Bytes of values given to the network.", &[("", load(&m.get_bytes) as f64)]);
    metric("put_bytes_total", "counter", "Bytes of values stored.", &[("", load(&m.put_bytes) as f64)]);
    metric("put_owed_bytes", "gauge", "Bytes that running puts owe.", &[("", state.owed() as f64)]);
    metric("corrupt_chunks_total", "counter", "Chunks that arrived damaged.", &[("", load(&m.corrupt_chunks) as f64)]);
    metric("connections", "gauge", "Connections.", &[("", load(&m.connections) as f64)]);
    metric("accepted_connections_total", "counter", "Connections accepted.", &[("", load(&m.accepted) as f64)]);
    metric(
        "refused_connections_total",
        "counter",
        "Connections beyond the limit.",
        &[("", load(&m.refused_connections) as f64)],
    );
    metric("stalled_total", "counter", "Connections closed for a stall.", &[("", load(&m.stalled) as f64)]);
    metric("fast_connections", "gauge", "Same-host connections.", &[("", load(&m.fast_connections) as f64)]);
    metric("fast_hits_total", "counter", "Values found over the same-host path.", &[("", load(&m.fast_hits) as f64)]);
    metric("fast_misses_total", "counter", "Values not found over it.", &[("", load(&m.fast_misses) as f64)]);
    metric("fast_bytes_total", "counter", "Bytes handed out over it.", &[("", load(&m.fast_bytes) as f64)]);
    metric("running_calls", "gauge", "Calls that run.", &[("", load(&m.running) as f64)]);
    metric("uptime_seconds", "gauge", "Time since the start.", &[("", state.clock.now() as f64 / 1000.0)]);
    calls(&mut out, m);
    out
}

/// The same names with the label of the disk tier, and what it has alone.
fn disk(metric: &mut impl FnMut(&str, &str, &str, &[(&str, f64)]), state: &State, d: &DiskStats, troubled: usize) {
    let (t, c) = (&d.totals, &state.tiers.counts);
    let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed) as f64;
    let one = |value: u64| [("", value as f64)];
    metric("disk_hits_total", "counter", "Values read from disk.", &one(t.hits));
    metric("disk_hit_bytes_total", "counter", "Bytes of values read from disk.", &one(t.hit_bytes));
    metric("disk_capacity_bytes", "gauge", "Most bytes of segments.", &one(d.capacity_bytes));
    metric("disk_used_bytes", "gauge", "Bytes of values on disk, in blocks.", &one(d.block_bytes));
    metric("disk_objects", "gauge", "Values on disk.", &one(d.objects));
    metric("disk_index_bytes", "gauge", "Bytes of memory that the index of the disk takes.", &one(d.index_bytes));
    metric("disk_stored_bytes_total", "counter", "Bytes of values written to disk.", &one(t.stored_bytes));
    metric("disk_written_bytes_total", "counter", "All bytes written to the devices.", &one(t.written_bytes));
    metric("disk_read_bytes_total", "counter", "All bytes read from the devices.", &one(t.read_bytes));
    let amplification = [("", t.write_amplification())];
    metric("disk_write_amplification", "gauge", "Bytes written for each byte of a value.", &amplification);
    metric("disk_over_budget_total", "counter", "Values not written because of the day's budget.", &one(t.over_budget));
    metric("disk_evicted_total", "counter", "Values gone with their segment.", &one(t.evicted));
    metric("disk_reinserted_total", "counter", "Values written anew because they were used.", &one(t.reinserted));
    metric("disk_damaged_total", "counter", "Values dropped because of a check.", &one(t.damaged));
    metric("disk_read_errors_total", "counter", "Reads that a device failed.", &one(t.read_errors));
    metric("disk_sealed_total", "counter", "Segments sealed.", &one(t.sealed));
    metric("disk_reclaimed_total", "counter", "Segments reclaimed.", &one(t.reclaimed));
    metric("disk_troubled", "gauge", "Directories that are read-only or offline.", &one(troubled as u64));
    metric("demoted_total", "counter", "Values written to disk as they left memory.", &[("", load(&c.demoted))]);
    metric("demoted_clean_total", "counter", "Values that left memory and were on disk.", &[("", load(&c.clean))]);
    metric("demoted_dropped_total", "counter", "Values that left memory to no disk.", &[("", load(&c.dropped))]);
    metric("promoted_total", "counter", "Values that came back into memory.", &[("", load(&c.promoted))]);
}

/// What the object store has alone.
fn remote(metric: &mut impl FnMut(&str, &str, &str, &[(&str, f64)]), r: &RemoteStats) {
    let t = &r.totals;
    let one = |value: u64| [("", value as f64)];
    metric("remote_hits_total", "counter", "Values read from the object store or its queue.", &one(t.hits));
    metric("remote_queue_hits_total", "counter", "Of those, values read from the queue.", &one(t.queue_hits));
    metric("remote_hit_bytes_total", "counter", "Bytes of those values.", &one(t.hit_bytes));
    metric("remote_read_bytes_total", "counter", "Bytes that came from the object store.", &one(t.read_bytes));
    metric("remote_misses_total", "counter", "Reads of what the object store does not have.", &one(t.misses));
    metric("remote_known_misses_total", "counter", "Reads not begun: absent a moment ago.", &one(t.known_misses));
    metric("remote_rested_total", "counter", "Reads not begun: the object store fails.", &one(t.rested));
    metric("remote_read_errors_total", "counter", "Reads that failed or were late.", &one(t.read_errors));
    metric("remote_stored_total", "counter", "Values written to the object store.", &one(t.stored));
    metric("remote_stored_bytes_total", "counter", "Bytes of those values.", &one(t.stored_bytes));
    metric("remote_present_total", "counter", "Values that the object store had already.", &one(t.present));
    metric("remote_dropped_total", "counter", "Values dropped because the queue was full.", &one(t.dropped));
    metric("remote_failed_total", "counter", "Values dropped after their last try.", &one(t.failed));
    metric("remote_retries_total", "counter", "Writes and deletes tried again.", &one(t.retries));
    metric("remote_deleted_total", "counter", "Deletes that the object store confirmed.", &one(t.deleted));
    metric("remote_delete_errors_total", "counter", "Deletes that it did not.", &one(t.delete_errors));
    metric("remote_damaged_total", "counter", "Objects removed because of a check.", &one(t.damaged));
    metric("remote_other_version_total", "counter", "Objects of another version.", &one(t.other_version));
    metric("remote_keys", "gauge", "Keys known to be in the object store, at least in part.", &[("", r.keys as f64)]);
    metric("remote_queue_bytes", "gauge", "Bytes of values that wait to be written.", &one(r.queue_bytes));
    metric("remote_troubled", "gauge", "1 while the object store fails.", &one(u64::from(!r.trouble.is_empty())));
}

fn calls(out: &mut String, m: &Metrics) {
    let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let _ = writeln!(out, "# HELP gcache_refused_total Calls refused.\n# TYPE gcache_refused_total counter");
    for (name, of) in CALLS.iter().zip(&m.calls) {
        let _ = writeln!(out, "gcache_refused_total{{call=\"{name}\"}} {}", load(&of.refused));
    }
    let _ = writeln!(out, "# HELP gcache_call_seconds Time of a call.\n# TYPE gcache_call_seconds histogram");
    for (name, of) in CALLS.iter().zip(&m.calls) {
        let mut below = 0;
        for (end, bucket) in BUCKETS.iter().zip(&of.buckets) {
            below += load(bucket);
            let _ = writeln!(out, "gcache_call_seconds_bucket{{call=\"{name}\",le=\"{end}\"}} {below}");
        }
        let ended = load(&of.ended);
        let _ = writeln!(out, "gcache_call_seconds_bucket{{call=\"{name}\",le=\"+Inf\"}} {ended}");
        let _ = writeln!(out, "gcache_call_seconds_sum{{call=\"{name}\"}} {}", load(&of.micros) as f64 / 1e6);
        let _ = writeln!(out, "gcache_call_seconds_count{{call=\"{name}\"}} {ended}");
    }
}
