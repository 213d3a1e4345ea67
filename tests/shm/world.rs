//! A model of the store: a map of what was put, who holds it, and in which order it should go. [`World::apply`] runs an
//! operation on both and compares everything; with a crash armed it stops the world between two stores of the operation,
//! opens the bytes as they were then, and goes on from what is found.

use super::{BOOT, TempFile, config, id, key, mix, value};
use mimo_cache::shm::{Begin, Lease, LeaseOwner, Pinned, Probe, PutMeta, Store, StoreConfig, Writer, chunk_crcs};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

const KEYS: u64 = 9;
const PARTS: [u8; 4] = [0, 1, 33, 63];
const TENANTS: [u64; 2] = [0, 77];

/// Tenant, number of the key, part.
pub type Name = (u64, u64, u8);

/// One operation; numbers are taken modulo what there is.
#[derive(Debug, Clone, Copy)]
pub enum Op {
    /// Begin a value and write half of it.
    Begin {
        name: u8,
        len: u16,
        extent: u8,
        page: u8,
        superseded: bool,
    },
    /// Write the other half and commit.
    Commit(u8),
    /// Drop a writer.
    Abort(u8),
    /// Begin, write and commit.
    Put {
        name: u8,
        len: u16,
        extent: u8,
        page: u8,
        superseded: bool,
    },
    Get(u8),
    Unpin(u8),
    Lease {
        keys: u8,
        owner: u8,
        millis: u8,
    },
    Touch(u8, u8),
    Delete(u8, u8),
    Wait(u8),
    ReleaseOwner(u8),
    Restart,
    /// The next operation is stopped after so many stores.
    Crash(u8),
}

impl Op {
    /// Any six bytes are an operation.
    pub fn decode(b: [u8; 6]) -> Op {
        let len = u16::from_le_bytes([b[2], b[3]]);
        let superseded = b[5] & 128 != 0;
        match b[0] % 20 {
            0 => Op::Begin { name: b[1], len, extent: b[4], page: b[5] & 127, superseded },
            1..=6 => Op::Put { name: b[1], len, extent: b[4], page: b[5] & 127, superseded },
            7 => Op::Commit(b[1]),
            8 => Op::Abort(b[1]),
            9 | 10 => Op::Get(b[1]),
            11 => Op::Unpin(b[1]),
            12 => Op::Lease { keys: b[1], owner: b[2], millis: b[3] },
            13 => Op::Touch(b[1], b[2]),
            14 => Op::Delete(b[1], b[2]),
            15 => Op::Wait(b[1]),
            16 => Op::ReleaseOwner(b[1]),
            17 => Op::Restart,
            _ => Op::Crash(b[1]),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Known {
    seed: u64,
    meta: PutMeta,
    extent: (u64, u64),
    begun: u64,
    /// `meta.superseded` as it was put; what comes later is a hint that a restart forgets.
    put_superseded: bool,
    pins: u32,
    leases: BTreeMap<u64, u64>,
}

impl Known {
    fn is_held(&self) -> bool {
        self.pins > 0 || !self.leases.is_empty()
    }

    /// Its turn within its extent.
    fn rank(&self) -> (bool, i64, i16) {
        (!self.meta.superseded, -i64::from(self.meta.page_index), -i16::from(self.meta.id.part))
    }
}

struct Begun {
    writer: Writer,
    name: Name,
    known: Known,
}

pub struct World {
    file: TempFile,
    snapshot: TempFile,
    config: StoreConfig,
    /// Stores until the snapshot is taken; below zero there is none to take.
    countdown: Arc<AtomicI64>,
    store: Option<Store>,
    writers: Vec<Begun>,
    pins: Vec<(Pinned, Name, u64)>,
    known: BTreeMap<Name, Known>,
    /// When the extents with something to evict were used last.
    ages: BTreeMap<(u64, u64), u64>,
    clock: u64,
    now: u64,
    armed: Option<u8>,
}

impl World {
    /// A store over a file of about `slabs` slabs of 64 KiB.
    pub fn new(slabs: u64) -> World {
        let (file, snapshot) = (TempFile::new("world"), TempFile::new("snapshot"));
        let countdown = Arc::new(AtomicI64::new(-1));
        let (left, from, to) = (countdown.clone(), file.path().to_path_buf(), snapshot.path().to_path_buf());
        let probe = Probe(Some(Arc::new(move || {
            if left.fetch_sub(1, Ordering::Relaxed) == 1 {
                std::fs::copy(&from, &to).unwrap();
            }
        })));
        let base = config(file.path(), (slabs << 16) + (80 << 10));
        let config = StoreConfig { lease_bytes: slabs << 14, max_lease_ms: 150, probe, ..base };
        let mut world = World {
            file,
            snapshot,
            config,
            countdown,
            store: None,
            writers: Vec::new(),
            pins: Vec::new(),
            known: BTreeMap::new(),
            ages: BTreeMap::new(),
            clock: 0,
            now: 0,
            armed: None,
        };
        world.open();
        world.check();
        world
    }

    fn open(&mut self) {
        let (store, found) = Store::open(&self.config, BOOT).unwrap();
        let damage = (found.damaged_headers, found.damaged_spans, found.duplicates);
        assert_eq!(damage, (0, 0, 0), "{found:?}");
        self.store = Some(store);
    }

    fn store(&self) -> &Store {
        self.store.as_ref().expect("a store that is open")
    }

    /// Runs one operation on the store and the model, and compares them.
    pub fn apply(&mut self, op: Op) {
        let armed = self.armed.take();
        if let Op::Crash(after) = op {
            self.armed = Some(after);
            return;
        }
        let before = armed.map(|after| {
            self.countdown.store(1 + i64::from(after) % 40, Ordering::Relaxed);
            self.known.clone()
        });
        self.run(op);
        self.check();
        if let Some(before) = before {
            self.crash(before);
        }
    }

    fn run(&mut self, op: Op) {
        match op {
            Op::Begin { name, len, extent, page, superseded } => {
                self.begin(name, len, extent, page, superseded);
            }
            Op::Put { name, len, extent, page, superseded } => {
                let begun = self.begin(name, len, extent, page, superseded);
                if begun {
                    self.commit(self.writers.len() - 1);
                }
            }
            Op::Commit(n) if !self.writers.is_empty() => self.commit(usize::from(n) % self.writers.len()),
            Op::Abort(n) if !self.writers.is_empty() => {
                self.writers.remove(usize::from(n) % self.writers.len());
            }
            Op::Get(n) => self.get(name_of(n)),
            Op::Unpin(n) if !self.pins.is_empty() => {
                let (pinned, name, seed) = self.pins.remove(usize::from(n) % self.pins.len());
                drop(pinned);
                self.release(|other, known| {
                    if *other == name && known.seed == seed {
                        known.pins -= 1;
                    }
                });
            }
            Op::Lease { keys, owner, millis } => self.lease(keys, u64::from(owner % 3), millis),
            Op::Touch(first, count) => {
                let names: Vec<Name> = (0..count % 4).map(|n| name_of(first.wrapping_add(n * 5))).collect();
                for name in &names {
                    let there = self.known.get(name).map(|k| k.extent);
                    assert_eq!(self.store().touch(name.0, &[id(name.1, name.2)]), usize::from(there.is_some()));
                    there.into_iter().for_each(|extent| self.refresh(extent));
                }
            }
            Op::Delete(first, count) => {
                for n in 0..=count % 3 {
                    let name = name_of(first.wrapping_add(n));
                    let there = usize::from(self.known.remove(&name).is_some());
                    assert_eq!(self.store().delete(name.0, &[id(name.1, name.2)]), there);
                }
                self.settle();
            }
            Op::Wait(ms) => {
                self.now += u64::from(ms);
                self.store().expire(self.now);
                self.expire();
            }
            Op::ReleaseOwner(owner) => {
                let owner = u64::from(owner % 3);
                self.store().release_owner(LeaseOwner(owner));
                self.release(|_, known| known.leases.retain(|held_by, _| *held_by != owner));
            }
            Op::Restart => {
                self.close();
                self.open();
                self.reopened();
            }
            _ => {}
        }
    }

    /// True when a writer was added.
    fn begin(&mut self, name: u8, len: u16, extent: u8, page: u8, superseded: bool) -> bool {
        let name = name_of(name);
        self.clock += 1;
        let seed = mix(self.clock, 1);
        // Mostly short values, some of half the file.
        let most = [300, 4096, 9000, 66_000, self.config.size_bytes / 2][usize::from(len % 5)]
            .min(self.store().max_value_bytes());
        let len = 1 + mix(len.into(), 2) % most;
        let extent = (name.0, 1000 + u64::from(extent % 4));
        let meta = PutMeta {
            id: id(name.1, name.2),
            tenant: name.0,
            bucket: page.into(),
            len,
            extent: key(extent.1),
            page_index: u32::from(page % 8),
            superseded,
            layout: 7,
        };
        let evicted = self.store().stats().totals;
        let answer = self.store().begin(&meta, self.now).unwrap();
        self.expire();
        let present = self.known.get_mut(&name);
        match answer {
            Begin::Present => {
                let known = present.expect("present only if it was put");
                known.meta.superseded |= superseded;
                let extent = known.extent;
                self.refresh(extent);
            }
            Begin::Busy => {
                assert!(present.is_none() && self.writers.iter().any(|w| w.name == name));
            }
            Begin::NoRoom => {
                assert!(present.is_none());
                let held = !self.pins.is_empty() || !self.writers.is_empty();
                assert!(held || self.known.values().any(Known::is_held), "there is always room when nothing is held");
            }
            Begin::Slot(mut writer) => {
                assert!(present.is_none() && self.writers.iter().all(|w| w.name != name));
                let bytes = value(seed, len as usize);
                let half = bytes.len() / 2;
                writer.bytes()[..half].copy_from_slice(&bytes[..half]);
                let (begun, leases) = (self.clock, BTreeMap::new());
                let known = Known { seed, meta, extent, begun, put_superseded: superseded, pins: 0, leases };
                self.writers.push(Begun { writer, name, known });
                self.compare_evictions(evicted);
                return true;
            }
        }
        self.compare_evictions(evicted);
        false
    }

    /// Takes what the store evicted out of the model: it must be what was to go first, unless whole slabs were needed.
    fn compare_evictions(&mut self, before: mimo_cache::shm::Totals) {
        let totals = self.store().stats().totals;
        let mut gone: BTreeSet<Name> = self.known.keys().filter(|name| !self.is_there(name)).copied().collect();
        assert_eq!(gone.len() as u64, totals.evicted_objects - before.evicted_objects, "evictions counted and found");
        let in_order = totals.reclaimed_objects == before.reclaimed_objects;
        while let Some(name) = if in_order { self.next_victim(&gone) } else { gone.first().copied() } {
            assert!(!self.known[&name].is_held(), "{name:?} was evicted though it is held");
            gone.remove(&name);
            self.known.remove(&name);
            self.settle();
        }
    }

    /// Of those that are to go next the one that is gone. None when all that are gone were found.
    fn next_victim(&self, gone: &BTreeSet<Name>) -> Option<Name> {
        gone.first()?;
        let age = self.ages.values().min().expect("something to evict");
        let next = |extent: &(u64, u64)| -> Vec<Name> {
            let inside: Vec<_> = self.known.iter().filter(|(_, k)| k.extent == *extent && !k.is_held()).collect();
            let first = inside.iter().map(|(_, k)| k.rank()).min();
            inside.iter().filter(|(_, k)| Some(k.rank()) == first).map(|(name, _)| **name).collect()
        };
        let candidates: Vec<Name> = self.ages.iter().filter(|(_, a)| *a == age).flat_map(|(e, _)| next(e)).collect();
        let found = candidates.iter().find(|name| gone.contains(*name)).copied();
        assert!(found.is_some(), "{gone:?} went before {candidates:?}");
        found
    }

    fn commit(&mut self, n: usize) {
        let Begun { mut writer, name, known } = self.writers.remove(n);
        let bytes = value(known.seed, known.meta.len as usize);
        let half = bytes.len() / 2;
        writer.bytes()[half..].copy_from_slice(&bytes[half..]);
        writer.commit(&chunk_crcs(&bytes)).unwrap();
        let extent = known.extent;
        assert!(self.known.insert(name, known).is_none());
        self.settle();
        self.refresh(extent);
    }

    fn get(&mut self, name: Name) {
        let found = self.store().get(name.0, &id(name.1, name.2));
        assert_eq!(found.is_some(), self.known.contains_key(&name), "get {name:?}");
        if let (Some(pinned), Some(known)) = (found, self.known.get_mut(&name)) {
            known.pins += 1;
            let (seed, extent) = (known.seed, known.extent);
            self.pins.push((pinned, name, seed));
            self.settle();
            self.refresh(extent);
        }
    }

    fn lease(&mut self, keys: u8, owner: u64, millis: u8) {
        let tenant = TENANTS[usize::from(keys >> 7)];
        let numbers: Vec<u64> = (0..u64::from(keys % 5)).map(|n| (u64::from(keys) + n) % KEYS).collect();
        let keys: Vec<_> = numbers.iter().map(|n| key(*n)).collect();
        let lease = Lease { owner: LeaseOwner(owner), millis: millis.into() };
        let found = self.store().exists(tenant, &keys, Some(lease), self.now);
        self.expire();
        let end = self.now + u64::from(millis.min(150));
        for number in &numbers[..found.leased_keys] {
            for (_, known) in self.known.iter_mut().filter(|((t, n, _), _)| (*t, *n) == (tenant, *number)) {
                let old = known.leases.entry(owner).or_insert(end);
                *old = (*old).max(end);
            }
        }
        self.settle();
        assert!(self.store().stats().lease_bytes <= self.config.lease_bytes);
    }

    fn expire(&mut self) {
        let now = self.now;
        self.release(|_, known| known.leases.retain(|_, end| *end > now));
    }

    fn release(&mut self, mut how: impl FnMut(&Name, &mut Known)) {
        self.known.iter_mut().for_each(|(name, known)| how(name, known));
        self.settle();
    }

    /// Extents that have something to evict now, or nothing any more. Those that come in one step have the same age.
    fn settle(&mut self) {
        self.clock += 1;
        let with: BTreeSet<_> = self.known.values().filter(|k| !k.is_held()).map(|k| k.extent).collect();
        self.ages.retain(|extent, _| with.contains(extent));
        for extent in with {
            self.ages.entry(extent).or_insert(self.clock);
        }
    }

    fn refresh(&mut self, extent: (u64, u64)) {
        self.clock += 1;
        if let Some(age) = self.ages.get_mut(&extent) {
            *age = self.clock;
        }
    }

    fn close(&mut self) {
        self.writers.clear();
        self.pins.clear();
        self.store = None;
    }

    /// Nothing is held, and extents are as old as their last value.
    fn reopened(&mut self) {
        self.ages.clear();
        for known in self.known.values_mut() {
            known.pins = 0;
            known.leases.clear();
            known.meta.superseded = known.put_superseded;
            let age = self.ages.entry(known.extent).or_default();
            *age = known.begun.max(*age);
        }
        self.check();
    }

    /// Goes on with the bytes that were there at the store that was counted down to, or at the end of the operation.
    fn crash(&mut self, before: BTreeMap<Name, Known>) {
        if self.countdown.swap(-1, Ordering::Relaxed) > 0 {
            std::fs::copy(self.file.path(), self.snapshot.path()).unwrap();
        }
        self.close();
        std::fs::copy(self.snapshot.path(), self.file.path()).unwrap();
        self.open();
        let after = std::mem::take(&mut self.known);
        for name in before.keys().chain(after.keys()).copied().collect::<BTreeSet<_>>() {
            let (old, new) = (before.get(&name), after.get(&name));
            let both = old.zip(new).is_some_and(|(o, n)| o.seed == n.seed);
            let there = self.is_there(&name);
            assert!(there || !both, "{name:?} was committed, was not touched, and is lost");
            if let Some(known) = new.or(old).filter(|_| there) {
                self.known.insert(name, known.clone());
            }
        }
        self.reopened();
    }

    fn is_there(&self, name: &Name) -> bool {
        self.store().exists(name.0, &[key(name.1)], None, self.now).masks[0] & 1 << name.2 != 0
    }

    /// Compares all that can be seen.
    fn check(&mut self) {
        self.store().check_integrity().unwrap();
        for tenant in TENANTS {
            let keys: Vec<_> = (0..KEYS).map(key).collect();
            let masks = self.store().exists(tenant, &keys, None, self.now).masks;
            self.expire();
            for (n, mask) in (0..).zip(masks) {
                let parts = self.known.keys().filter(|(t, k, _)| (*t, *k) == (tenant, n));
                assert_eq!(mask, parts.fold(0, |m, (.., part)| m | 1 << part), "tenant {tenant}, key {n}");
            }
        }
        for (pinned, name, seed) in &self.pins {
            assert!(**pinned == value(*seed, pinned.len()), "{name:?} changed under a pin");
        }
        let stats = self.store().stats();
        assert_eq!((stats.objects, stats.writers), (self.known.len() as u64, self.writers.len() as u64));
        assert!(stats.slot_bytes <= stats.slab_bytes && stats.file_bytes == self.config.size_bytes);
        self.check_values();
    }

    /// Reads every value without counting it as a use: out of the file.
    fn check_values(&self) {
        let copy = TempFile::new("values");
        if self.clock.is_multiple_of(4) {
            std::fs::copy(self.file.path(), copy.path()).unwrap();
            let config = StoreConfig { path: copy.path().into(), probe: Probe::default(), ..self.config.clone() };
            let (store, found) = Store::open(&config, BOOT).unwrap();
            assert_eq!(found.objects, self.known.len() as u64, "{found:?}");
            for (name, known) in &self.known {
                let pinned = store.get(name.0, &id(name.1, name.2)).expect("it is in the file");
                assert!(pinned.verify() && *pinned == value(known.seed, pinned.len()), "{name:?} has wrong bytes");
                let put = pinned.meta().put;
                assert_eq!(put, PutMeta { superseded: known.put_superseded, ..known.meta });
            }
        }
    }
}

fn name_of(n: u8) -> Name {
    let n = usize::from(n);
    (TENANTS[n % 2], (n / 2) as u64 % KEYS, PARTS[n / 2 / KEYS as usize % PARTS.len()])
}
