//! What the scenarios share: a tier in a directory of its own, and loads that keep it busy.

pub mod fio;
pub mod growth;
pub mod place;
pub mod rates;
pub mod segments;
pub mod wear;

use crate::common::key;
use mimo_cache::disk::{Aligned, Buffer, Crcs, Disk, DiskConfig, DiskError, Fetched, Put, PutOutcome, Target};
use mimo_cache::shm::{ObjectId, PutMeta, chunk_crcs};
use place::Root;
use std::any::Any;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

/// Bytes that demotion gives at once, and has in flight (`src/node/tiers/demote.rs`).
const BATCH_BYTES: usize = 8 << 20;
const IN_FLIGHT_BYTES: usize = 32 << 20;
/// Pause after a put found no room, as demotion makes it.
const PAUSE: Duration = Duration::from_millis(5);

/// What the command line says.
pub struct Settings {
    /// Small, to see that it runs.
    pub quick: bool,
    /// Runs of a figure.
    pub runs: usize,
    /// Most objects of `recovery`.
    pub entries: u64,
    /// Directory for everything.
    pub root: Root,
}

/// A tier, whose directory is removed with it.
pub struct Tier {
    pub disk: Disk,
    pub config: DiskConfig,
}

impl Tier {
    pub fn new(settings: &Settings, capacity: u64) -> Tier {
        Tier::open(DiskConfig::new(settings.root.path().join("tier"), capacity))
    }

    pub fn open(config: DiskConfig) -> Tier {
        Tier { disk: Disk::open(&config).expect("a new directory").0, config }
    }

    /// Files of the segments that are full, as long as none was reclaimed: they were made and filled in this order. Of the
    /// others nothing is on the device yet, so reading them would cost nothing.
    pub fn full(&self) -> Vec<PathBuf> {
        let mut files = segments(&self.config.dir);
        files.truncate(self.disk.stats().sealed_segments as usize - 1);
        files
    }
}

/// Files of all segments of a directory, by number; not those that are just being made.
pub fn segments(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).expect("the tier's directory");
    let paths = entries.map(|e| e.expect("an entry").path());
    let is_segment = |path: &PathBuf| {
        let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        name.starts_with("segment-") && !name.ends_with(".new")
    };
    let mut files: Vec<PathBuf> = paths.filter(is_segment).collect();
    files.sort_unstable();
    files
}

impl Drop for Tier {
    fn drop(&mut self) {
        place::remove(&self.config.dir);
    }
}

pub fn id(n: u64) -> ObjectId {
    ObjectId { key: key(n), part: 0 }
}

pub fn meta(n: u64, len: usize) -> PutMeta {
    let id = id(n);
    PutMeta { id, tenant: 1, bucket: 0, len: len as u64, extent: id.key, page_index: 0, superseded: false, layout: 1 }
}

/// Bytes that do not compress.
pub fn noise(len: usize) -> Aligned {
    let mut bytes = Aligned::new(len);
    for (n, word) in bytes.chunks_exact_mut(32).enumerate() {
        word.copy_from_slice(&key(n as u64));
    }
    bytes
}

/// The buffer that a put gave back.
pub fn again(value: Box<dyn Buffer>) -> Aligned {
    let value: Box<dyn Any> = value;
    *value.downcast::<Aligned>().expect("the bench puts nothing else")
}

/// Milliseconds of a clock for budgets, of which there are none here.
const NOW: u64 = 0;

/// Puts values of one length, in batches as demotion does; numbers go up from the first.
pub struct Puts {
    pub next: u64,
    len: usize,
    crcs: Crcs,
    buffers: Vec<Aligned>,
    /// Puts that found no room and were given again.
    pub waited: u64,
}

impl Puts {
    pub fn new(first: u64, len: usize) -> Puts {
        let value = noise(len);
        let crcs = chunk_crcs(&value[..len]).iter().copied().collect();
        let count = (IN_FLIGHT_BYTES / len).max(2);
        let buffers = (0..count).map(|_| Aligned::copy_of(&value)).collect();
        Puts { next: first, len, crcs, buffers, waited: 0 }
    }

    /// Puts until `enough` says so of the values given and the time, and all are accepted; returns bytes of a second.
    pub fn run(&mut self, disk: &Disk, enough: impl Fn(u64, Duration) -> bool) -> f64 {
        let (send, receive) = channel::<(PutOutcome, PutMeta, Aligned)>();
        let batch = (BATCH_BYTES / self.len).clamp(1, self.buffers.len());
        let (start, first) = (Instant::now(), self.next);
        let (mut in_flight, mut refused) = (0, Vec::new());
        loop {
            let mut puts = Vec::new();
            while puts.len() < batch
                && let Some((meta, value)) = refused.pop()
            {
                puts.push(self.one(meta, value, &send));
            }
            // Whole batches, as long as there are buffers for one.
            while puts.len() < batch
                && (!puts.is_empty() || self.buffers.len() >= batch)
                && !enough(self.next - first, start.elapsed())
            {
                let Some(value) = self.buffers.pop() else { break };
                puts.push(self.one(meta(self.next, self.len), value, &send));
                self.next += 1;
            }
            in_flight += puts.len();
            if !puts.is_empty() {
                disk.put(puts, NOW);
                continue;
            }
            if in_flight == 0 {
                break;
            }
            let mut answer = Some(receive.recv().expect("a put calls back"));
            while let Some((outcome, meta, value)) = answer {
                in_flight -= 1;
                match outcome {
                    PutOutcome::Stored => self.buffers.push(value),
                    PutOutcome::NoRoom => refused.push((meta, value)),
                    other => panic!("a put of the bench ended with {other:?}"),
                }
                answer = receive.try_recv().ok();
            }
            if !refused.is_empty() {
                self.waited += refused.len() as u64;
                std::thread::sleep(PAUSE);
            }
        }
        (self.next - first) as f64 * self.len as f64 / start.elapsed().as_secs_f64()
    }

    fn one(&self, meta: PutMeta, value: Aligned, send: &Sender<(PutOutcome, PutMeta, Aligned)>) -> Put {
        let send = send.clone();
        let done = Box::new(move |outcome, value| drop(send.send((outcome, meta, again(value)))));
        Put { meta, crcs: self.crcs.clone(), value: Box::new(value), done }
    }

    /// Puts so many values, and seals them.
    pub fn fill(&mut self, disk: &Disk, count: u64) {
        self.run(disk, |given, _| given >= count);
        seal(disk);
    }
}

pub fn seal(disk: &Disk) {
    let (send, receive) = channel();
    disk.seal(move |outcome| drop(send.send(outcome)));
    receive.recv().expect("a seal calls back").expect("a device that writes");
}

/// Numbers that look random.
pub struct Dice(pub u64);

impl Dice {
    pub fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % most
    }
}

/// Gets values that are there and verifies them, `depth` in flight, until `enough` says so of their number and the time;
/// returns values of a second.
pub fn gets(
    disk: &Disk,
    len: usize,
    depth: usize,
    mut which: impl FnMut() -> u64,
    enough: impl Fn(u64, Duration) -> bool,
) -> f64 {
    let (send, receive) = channel::<Result<Fetched<Aligned>, DiskError>>();
    let mut start_one = |buffer| {
        let send = send.clone();
        disk.get(1, &id(which()), Target::Buffer(buffer), move |result| drop(send.send(result)));
    };
    let start = Instant::now();
    (0..depth).for_each(|_| start_one(Aligned::new(len)));
    let (mut in_flight, mut count) = (depth, 0);
    while in_flight > 0 {
        let fetched = receive.recv().expect("a get calls back").expect("the value is there");
        let value = fetched.verify().expect("the bytes are right");
        assert_eq!(value.meta.len, len as u64);
        count += 1;
        if enough(count, start.elapsed()) {
            in_flight -= 1;
        } else {
            start_one(value.buffer);
        }
    }
    count as f64 / start.elapsed().as_secs_f64()
}
