//! A small workload that meets every kind of write, what it was promised, and what the next process must and may serve.

use super::*;
use mimo_cache::disk::memory::{Crash, Memory};
use std::collections::{BTreeMap, BTreeSet};

pub struct Script {
    pub config: DiskConfig,
    pub device: Arc<Memory>,
    pub disk: Option<Disk>,
    /// What was given under each name since its last delete that was answered.
    pub given: BTreeMap<ObjectId, Vec<Vec<u8>>>,
    sealed: BTreeSet<ObjectId>,
    hit: BTreeSet<ObjectId>,
    moved: u64,
    serial: u64,
}

impl Script {
    /// Opens an empty device; a fault may keep it from opening.
    pub fn new(device: Memory) -> Script {
        let (config, device) = (config(12), Arc::new(device));
        let disk = Disk::open_on(&config, device.clone()).ok().map(|(disk, _)| disk);
        let (given, sealed, hit) = Default::default();
        Script { config, device, disk, given, sealed, hit, moved: 0, serial: 0 }
    }

    /// The same promises about another device, which was never open.
    pub fn on(&self, device: Memory) -> Script {
        let (config, given) = (self.config.clone(), self.given.clone());
        let (sealed, hit) = Default::default();
        Script { config, device: Arc::new(device), disk: None, given, sealed, hit, moved: 0, serial: 0 }
    }

    /// The whole workload, as far as it comes.
    pub fn run(&mut self) {
        for round in 0..4u64 {
            let base = round * 20;
            self.put(&[(base, 0, 4096), (base + 1, 0, 700), (base + 2, 40, 9000), (base + 3, 0, 5000)]);
            self.put(&[(base + 4, 33, 12_288), (base + 5, 0, 30_000)]);
            self.touch(&[(base, 0), (base + 5, 0)]);
            self.work();
            self.delete(&[(base + 1, 0), (base + 2, 40)]);
            if round % 2 == 0 {
                self.seal();
            }
            // The name of what was deleted, with other bytes.
            self.put(&[(base + 1, 0, 1000)]);
            self.put(&[(base + 6, 1, 35_000), (base + 7, 50, 34_000)]);
            self.work();
            self.touch(&[(base + 1, 0), (base + 6, 1)]);
            self.put(&[(base + 8, 0, 40_000), (base + 9, 45, 36_000)]);
            self.work();
        }
        // What was moved, what is still where it was, and what never was.
        self.delete(&[(0, 0), (1, 0), (6, 1), (61, 0), (999, 3)]);
        self.put(&[(0, 0, 300)]);
        self.seal();
    }

    fn disk(&self) -> Option<&Disk> {
        self.disk.as_ref().filter(|_| !self.device.has_crashed())
    }

    fn put(&mut self, list: &[(u64, u8, usize)]) {
        if self.disk().is_none() {
            return;
        }
        let mut batch = Vec::new();
        for &(n, part, len) in list {
            self.serial += 1;
            let (id, bytes) = (id(n, part), value(self.serial, len));
            self.given.entry(id).or_default().push(bytes.clone());
            batch.push((id, bytes));
        }
        if let Some(disk) = self.disk() {
            let outcomes = put_all(disk, &batch);
            let odd = |o: &&PutOutcome| !matches!(o, PutOutcome::Stored | PutOutcome::NoRoom | PutOutcome::Failed(_));
            assert_eq!(outcomes.iter().find(odd), None);
        }
    }

    fn touch(&mut self, list: &[(u64, u8)]) {
        let ids: Vec<_> = list.iter().map(|&(n, part)| id(n, part)).collect();
        if let Some(disk) = self.disk() {
            disk.touch(TENANT, &ids);
        }
        self.hit.extend(ids);
    }

    fn delete(&mut self, list: &[(u64, u8)]) {
        let ids: Vec<_> = list.iter().map(|&(n, part)| id(n, part)).collect();
        let Some(disk) = self.disk() else { return };
        let answer = delete(disk, &ids);
        assert!(ids.iter().all(|id| !has(disk, id)), "deleted, and still there");
        if answer.is_ok() {
            ids.iter().for_each(|id| drop(self.given.remove(id)));
        }
        self.sealed.retain(|id| !ids.contains(id));
    }

    fn seal(&mut self) {
        let Some(disk) = self.disk() else { return };
        if seal(disk).is_ok() {
            self.sealed = self.given.keys().filter(|id| has(disk, id)).copied().collect();
        }
    }

    fn work(&mut self) {
        let Some(disk) = self.disk.as_ref() else { return };
        while !self.device.has_crashed() && disk.work() {}
        let moved = disk.stats().totals.reinserted;
        if moved != self.moved {
            // What is moved is accepted only, until the next seal.
            self.moved = moved;
            self.sealed = &self.sealed - &self.hit;
        }
    }

    /// Every value is right or missing, in this process.
    pub fn check(&self) {
        let Some(disk) = &self.disk else { return };
        disk.check_integrity().unwrap();
        for (id, given) in &self.given {
            if let Ok((found, bytes)) = get_as(disk, id, self.serial) {
                assert!(given.contains(&bytes), "{id:?}: wrong bytes");
                assert_eq!(found, meta(*id, bytes.len()));
            }
        }
    }

    /// Opens what the crash left and compares. `lenient`: parts of the device were damaged, so things may be missing.
    pub fn check_after(&self, crash: Crash, lenient: bool) -> DiskRecovery {
        let device = Arc::new(self.device.after(crash));
        let (disk, report) = open(&self.config, &device);
        disk.check_integrity().unwrap();
        for round in 0..2 {
            for n in 0..80 {
                for part in [0, 1, 33, 40, 45, 50] {
                    self.check_one(&disk, &id(n, part), crash, lenient || round == 1);
                }
            }
            if round == 0 {
                // It serves on, also where something must go for that.
                let new = (id(5000, 0), value(5000, 6000));
                put_soon(&disk, new.0, &new.1);
                assert_eq!(get(&disk, &new.0), Some(new.1));
                disk.check_integrity().unwrap();
            }
        }
        report
    }

    fn check_one(&self, disk: &Disk, id: &ObjectId, crash: Crash, lenient: bool) {
        let given = self.given.get(id).map_or(&[][..], |g| &g[..]);
        let old = self.disk.as_ref();
        match get_as(disk, id, u64::from(id.part)) {
            Ok((found, bytes)) => {
                assert!(given.contains(&bytes), "{id:?}: deleted, or bytes that were never put");
                assert_eq!(found, meta(*id, bytes.len()));
            }
            Err(e) => {
                let there = old.is_some_and(|old| has(old, id));
                let must = there && (crash == Crash::Kill || self.sealed.contains(id));
                assert!(lenient || !must, "{id:?} is gone after {crash:?}: {e}, sealed: {}", self.sealed.contains(id));
            }
        }
    }
}
