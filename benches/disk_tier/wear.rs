//! Write amplification: a mixed load that keeps four fifths of the capacity alive.
//!
//! Half of the operations are puts and half gets, four fifths of which go to one fifth of the objects. Lengths are spread
//! evenly over the powers of two from 16 KiB to 1 MiB and are no whole blocks; a quarter of the objects are checkpoints.
//! Deletes take random objects, 16 at a time, whenever more than 80 % is alive. What the tier evicts goes beside that.

use super::{Dice, PAUSE, Settings, Tier, again, meta, noise, seal};
use crate::common::figure;
use mimo_cache::disk::{Aligned, Disk, DiskConfig, DiskError, Put, PutOutcome, Target};
use mimo_cache::shm::{ObjectId, PutMeta, chunk_crcs};
use serde_json::Value;
use std::sync::mpsc::channel;

const SEGMENT: u32 = 16 << 20;
const LONGEST: usize = 1 << 20;
/// Operations that are in flight together.
const ROUND: u64 = 32;
/// Percent of the capacity that may be alive.
const ALIVE: u64 = 80;
/// Objects deleted at once.
const DELETED: usize = 16;
/// One of so many objects is hot.
const HOT: u64 = 5;

struct Load<'a> {
    disk: &'a Disk,
    dice: Dice,
    next: u64,
    value: Aligned,
    /// Hot and other objects that were put and not deleted since; some are evicted.
    there: [Vec<ObjectId>; 2],
    gets: u64,
    misses: u64,
}

pub fn run(settings: &Settings) -> Vec<Value> {
    let capacity = if settings.quick { 20 * u64::from(SEGMENT) } else { 1 << 30 };
    let tier = Tier::open(DiskConfig {
        segment_bytes: SEGMENT,
        ..DiskConfig::new(settings.root.path().join("tier"), capacity)
    });
    let mut load = Load {
        disk: &tier.disk,
        dice: Dice(4),
        next: 0,
        value: noise(LONGEST),
        there: Default::default(),
        gets: 0,
        misses: 0,
    };
    let alive = |load: &Load| load.disk.stats().block_bytes * 100 / capacity;
    let stored = |load: &Load| load.disk.stats().totals.stored_bytes;
    // Filled, and written over once.
    while stored(&load) < capacity {
        load.round(alive(&load) > ALIVE);
    }
    seal(&tier.disk);
    let (before, misses, gets) = (tier.disk.stats().totals, load.misses, load.gets);
    let mut occupancy = Vec::new();
    while stored(&load) < before.stored_bytes + 2 * capacity {
        occupancy.push(alive(&load) as f64);
        load.round(alive(&load) > ALIVE);
    }
    seal(&tier.disk);
    let after = tier.disk.stats().totals;
    let put = (after.stored_bytes - before.stored_bytes) as f64;
    let mean = occupancy.iter().sum::<f64>() / occupancy.len() as f64;
    let missed = 100.0 * (load.misses - misses) as f64 / (load.gets - gets) as f64;
    let reinserted = (after.reinserted_bytes - before.reinserted_bytes) as f64 / put;
    vec![
        figure("write_amplification", "1", &[(after.written_bytes - before.written_bytes) as f64 / put]),
        figure("wear_reinserted", "1", &[reinserted]),
        figure("wear_occupancy", "%", &[mean]),
        figure("wear_misses", "%", &[missed]),
    ]
}

impl Load<'_> {
    /// Some puts, some gets, and a delete if asked for; all of them complete.
    fn round(&mut self, delete: bool) {
        let mut puts: Vec<(PutMeta, usize)> = Vec::new();
        let (send, receive) = channel();
        let mut reads = Vec::new();
        for _ in 0..ROUND {
            if self.dice.below(2) == 0 {
                let len = LONGEST >> self.dice.below(7);
                let len = len - self.dice.below(len as u64 / 2) as usize;
                let mut meta = meta(self.next, len);
                meta.id.part = if self.next % 4 == 3 { 32 } else { 0 };
                puts.push((meta, len));
                self.next += 1;
            } else if let Some(at) = self.pick() {
                reads.push(at);
            }
        }
        for (set, n) in &reads {
            let send = send.clone();
            let at = (*set, *n, self.there[*set][*n]);
            let buffer = Aligned::new(LONGEST);
            self.disk.get(1, &at.2, Target::Buffer(buffer), move |result| {
                drop(send.send((at, result.and_then(|fetched| fetched.verify()).map(drop))));
            });
        }
        self.put(puts);
        self.gets += reads.len() as u64;
        let mut gone: Vec<(usize, usize, ObjectId)> = Vec::new();
        for _ in reads {
            match receive.recv().expect("a get calls back") {
                (_, Ok(())) => {}
                (at, Err(DiskError::Missing)) => gone.push(at),
                (_, Err(error)) => panic!("a get of the bench: {error}"),
            }
        }
        self.misses += gone.len() as u64;
        gone.sort_unstable_by_key(|at| std::cmp::Reverse((at.0, at.1)));
        gone.dedup();
        for (set, n, _) in gone {
            self.there[set].swap_remove(n);
        }
        if delete {
            self.delete();
        }
    }

    /// An object to use.
    fn pick(&mut self) -> Option<(usize, usize)> {
        let set = usize::from(self.dice.below(HOT) == 0);
        let count = self.there[set].len() as u64;
        (count > 0).then(|| (set, self.dice.below(count) as usize))
    }

    fn put(&mut self, mut puts: Vec<(PutMeta, usize)>) {
        while !puts.is_empty() {
            let (send, receive) = channel();
            let count = puts.len();
            let batch = puts.drain(..).map(|(meta, len)| {
                let value = Aligned::copy_of(&self.value[..len]);
                let crcs = chunk_crcs(&value[..len]).iter().copied().collect();
                let send = send.clone();
                let done = Box::new(move |outcome, value| {
                    drop(again(value));
                    drop(send.send((outcome, meta, len)));
                });
                Put { meta, crcs, value: Box::new(value), done }
            });
            self.disk.put(batch.collect(), 0);
            for _ in 0..count {
                match receive.recv().expect("a put calls back") {
                    (PutOutcome::Stored, meta, _) => {
                        // Which ones are hot does not follow from their length.
                        let set = usize::from(u64::from(meta.id.key[0]) % HOT != 0);
                        self.there[set].push(meta.id);
                    }
                    (PutOutcome::NoRoom, meta, len) => puts.push((meta, len)),
                    (other, ..) => panic!("a put of the bench ended with {other:?}"),
                }
            }
            if !puts.is_empty() {
                std::thread::sleep(PAUSE);
            }
        }
    }

    fn delete(&mut self) {
        let mut ids = Vec::new();
        for _ in 0..DELETED {
            // In proportion, so that hot ones do not outlive the others by being fewer.
            let all = self.there.iter().map(|t| t.len() as u64).sum::<u64>();
            if all == 0 {
                break;
            }
            let n = self.dice.below(all) as usize;
            let (set, n) = if n < self.there[0].len() { (0, n) } else { (1, n - self.there[0].len()) };
            ids.push(self.there[set].swap_remove(n));
        }
        let (send, receive) = channel();
        self.disk.delete(1, &ids, move |outcome| drop(send.send(outcome)));
        receive.recv().expect("a delete calls back").expect("a device that writes");
    }
}
