//! The disk tier beside a plain map of what it may and must answer.
//!
//! A model entry is *sealed* when a seal was answered after it was stored, else *accepted*. Reclaiming drops what was not hit
//! and makes the rest accepted, so after work that reclaims the model takes over what is gone, but never what is wrong.

use super::*;
use mimo_cache::disk::memory::Crash;
use std::collections::{BTreeMap, BTreeSet};

/// One step.
#[derive(Debug, Clone, Copy)]
pub enum Op {
    /// Name, length class, values in the batch.
    Put(u8, u8, u8),
    Get(u8),
    Touch(u8),
    /// First name and how many.
    Delete(u8, u8),
    Seal,
    /// So many steps of the worker.
    Work(u8),
    /// New names until segments are reclaimed.
    Fill(u8),
    Kill,
    Power(u8),
    Reopen,
}

impl Op {
    pub fn decode(b: [u8; 4]) -> Op {
        match b[0] % 26 {
            0..=8 => Op::Put(b[1] % 48, b[2], b[3] % 5),
            9..=12 => Op::Get(b[1] % 48),
            13 => Op::Touch(b[1] % 48),
            14..=16 => Op::Delete(b[1] % 48, b[2] % 4),
            17..=18 => Op::Seal,
            19..=20 => Op::Work(b[1] % 4),
            21 => Op::Fill(b[1] % 12),
            22 => Op::Kill,
            23..=24 => Op::Power(b[1]),
            _ => Op::Reopen,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Known {
    bytes: Vec<u8>,
    sealed: bool,
}

pub struct World {
    config: DiskConfig,
    device: Arc<Memory>,
    disk: Disk,
    model: BTreeMap<ObjectId, Known>,
    /// What was stored under a name since it was last deleted: what was evicted may come back after a crash.
    history: BTreeMap<ObjectId, Vec<Vec<u8>>>,
    serial: u64,
}

fn name(n: u8) -> ObjectId {
    // Some names share a key; parts go to both streams.
    id(u64::from(n / 3), [0, 9, 40][usize::from(n % 3)])
}

impl World {
    pub fn new(segments: u64) -> World {
        let (config, device) = (config(segments), Arc::new(Memory::new()));
        let (disk, report) = open(&config, &device);
        assert!(report.created);
        World { config, device, disk, model: BTreeMap::new(), history: BTreeMap::new(), serial: 0 }
    }

    pub fn apply(&mut self, op: Op) {
        match op {
            Op::Put(first, len, more) => {
                let batch: Vec<_> = (0..=more).map(|k| self.fresh((first + k * 5) % 48, len.wrapping_add(k))).collect();
                self.put(batch);
            }
            Op::Fill(most) => {
                for n in 0..most {
                    let id = id(1000 + self.serial, if n % 2 == 0 { 1 } else { 50 });
                    let (_, bytes) = self.fresh(0, n.wrapping_mul(7));
                    self.put(vec![(id, bytes)]);
                    self.work(2);
                }
            }
            Op::Get(n) => self.get(&name(n)),
            Op::Touch(n) => {
                let there = self.disk.touch(TENANT, &[name(n)]) == 1;
                assert_eq!(there, self.model.contains_key(&name(n)));
            }
            Op::Delete(first, more) => {
                let mut ids: Vec<_> = (0..=more).map(|k| name((first + k) % 48)).collect();
                ids.sort();
                ids.dedup();
                let there = ids.iter().filter(|id| self.model.remove(id).is_some()).count();
                let found = delete(&self.disk, &ids).unwrap();
                ids.iter().for_each(|id| drop(self.history.remove(id)));
                assert_eq!(found, there, "{ids:?}");
            }
            Op::Seal => {
                seal(&self.disk).unwrap();
                self.model.values_mut().for_each(|k| k.sealed = true);
            }
            Op::Work(steps) => self.work(steps),
            Op::Kill => self.restart(Crash::Kill),
            Op::Power(seed) => self.restart(Crash::Power(mix(u64::from(seed), self.serial))),
            Op::Reopen => {
                self.work(u8::MAX);
                self.restart(Crash::Kill);
            }
        }
        self.check();
    }

    fn fresh(&mut self, n: u8, len: u8) -> (ObjectId, Vec<u8>) {
        self.serial += 1;
        let len = match len % 8 {
            0 => 1,
            1 => 4096,
            2 => 4097,
            3 => 20_000,
            4 => 30_000,
            _ => 500 + usize::from(len) * 13,
        };
        (name(n), value(self.serial, len))
    }

    fn put(&mut self, mut batch: Vec<(ObjectId, Vec<u8>)>) {
        batch.sort();
        batch.dedup_by(|a, b| a.0 == b.0);
        let outcomes = put_all(&self.disk, &batch);
        for ((id, bytes), outcome) in batch.into_iter().zip(outcomes) {
            match outcome {
                PutOutcome::Stored => {
                    self.history.entry(id).or_default().push(bytes.clone());
                    let before = self.model.insert(id, Known { bytes, sealed: false });
                    assert_eq!(before, None, "{id:?} was there");
                }
                PutOutcome::Present => assert!(self.model.contains_key(&id), "{id:?} is not there"),
                PutOutcome::NoRoom => assert!(!self.model.contains_key(&id)),
                other => panic!("{other:?}"),
            }
        }
    }

    fn get(&mut self, id: &ObjectId) {
        self.serial += 1;
        match (get_as(&self.disk, id, self.serial), self.model.get(id)) {
            (Ok((found, bytes)), Some(known)) => {
                assert!(bytes == known.bytes, "{id:?}: other bytes");
                assert_eq!(found, meta(*id, bytes.len()));
            }
            (Err(DiskError::Missing), None) => {}
            (found, known) => {
                panic!("{id:?}: {:?}, expected {:?}", found.map(|f| f.1.len()), known.map(|k| k.bytes.len()))
            }
        }
    }

    fn work(&mut self, steps: u8) {
        let moved = self.disk.stats().totals.reinserted;
        (0..steps).all(|_| self.disk.work());
        self.lose();
        if self.disk.stats().totals.reinserted != moved {
            self.forget_seals();
        }
    }

    /// What was moved is accepted only; which that was does not show, so it may be anything.
    fn forget_seals(&mut self) {
        self.model.values_mut().for_each(|k| k.sealed = false);
    }

    /// Takes over what was reclaimed.
    fn lose(&mut self) {
        let evicted = self.disk.stats().totals.evicted;
        let before = self.model.len();
        let disk = &self.disk;
        self.model.retain(|id, _| has(disk, id));
        assert!(before - self.model.len() <= evicted as usize, "more is gone than was evicted");
    }

    /// A crash, and the next process: only bytes that were put since the last delete, all that must be there.
    fn restart(&mut self, crash: Crash) {
        let device = Arc::new(self.device.after(crash));
        let (disk, report) = open(&self.config, &device);
        assert_eq!(report.damaged, Vec::<String>::new());
        let before = std::mem::take(&mut self.model);
        let names = self.history.keys().copied().chain((0..48).map(name));
        for id in names.collect::<BTreeSet<_>>() {
            let (known, put) = (before.get(&id), self.history.get(&id).map_or(&[][..], |h| &h[..]));
            match get_as(&disk, &id, self.serial) {
                Ok((found, bytes)) => {
                    assert!(put.contains(&bytes), "{id:?}: bytes that were never put, or deleted");
                    assert_eq!(found, meta(id, bytes.len()));
                    let newest =
                        known.is_none_or(|k| k.bytes == bytes || matches!(crash, Crash::Power(_)) && !k.sealed);
                    assert!(newest, "{id:?}: older bytes");
                    self.model.insert(id, Known { bytes, sealed: true });
                }
                Err(e) => {
                    let kept = known.is_some_and(|k| k.sealed || crash == Crash::Kill);
                    assert!(!kept, "{id:?} is gone after {crash:?}: {e}, sealed: {:?}", known.map(|k| k.sealed));
                }
            }
        }
        (self.disk, self.device) = (disk, device);
    }

    fn check(&mut self) {
        self.disk.check_integrity().unwrap();
        let stats = self.disk.stats();
        assert!(stats.file_bytes <= self.config.capacity_bytes, "{stats:?}");
        for n in 0..48 {
            let id = name(n);
            assert_eq!(has(&self.disk, &id), self.model.contains_key(&id), "{id:?}");
        }
    }
}
