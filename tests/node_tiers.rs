//! Memory and disk as one store: what leaves one is in the other, what is deleted is in neither, whatever the disk does.
#![cfg(all(feature = "gcache", target_os = "linux"))]

mod shm;

use mimo_cache::disk::memory::{Fault, Memory};
use mimo_cache::disk::{Disk, DiskConfig, DiskError};
use mimo_cache::node::state::Clock;
use mimo_cache::node::tiers::{Demoter, Fetch, TierSettings, Tiers};
use mimo_cache::rpc::v1::Source;
use mimo_cache::shm::{Begin, ObjectId, PutMeta, Store, chunk_crcs};
use shm::{BOOT, TempFile, id, key, mix, value};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const TENANT: u64 = 7;
const MIB: u64 = 1 << 20;

/// A directory that goes with it.
struct Folder(std::path::PathBuf);

impl Folder {
    fn new() -> Folder {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = format!("mimo-tiers-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        Folder(std::env::temp_dir().join(name))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Both tiers over files that outlive them, and what was put.
struct World {
    tiers: Arc<Tiers>,
    demoter: Option<Demoter>,
    runtime: tokio::runtime::Runtime,
    file: TempFile,
    known: BTreeMap<ObjectId, Vec<u8>>,
}

fn settings(promote_after: u8) -> TierSettings {
    TierSettings { promote_after, reserve: MIB }
}

fn open_store(file: &TempFile) -> Store {
    Store::open(&shm::config(file.path(), 8 * MIB), BOOT).unwrap().0
}

fn small(dir: &std::path::Path) -> DiskConfig {
    DiskConfig { segment_bytes: 1 << 20, ..DiskConfig::new(dir, 64 * MIB) }
}

/// Opens the directory, which is free once the last operation of the process before has ended.
fn open_disk(folder: &Folder) -> Disk {
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        match Disk::open(&small(&folder.0)) {
            Err(DiskError::InUse { .. }) if Instant::now() < until => std::thread::sleep(Duration::from_millis(5)),
            opened => return opened.unwrap().0,
        }
    }
}

impl World {
    fn new(disks: Vec<Disk>, promote_after: u8) -> World {
        let file = TempFile::new("tiers");
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap();
        let tiers = Tiers::new(open_store(&file), disks, settings(promote_after), Clock::start());
        let demoter = tiers.start().unwrap();
        World { tiers, demoter, runtime, file, known: BTreeMap::new() }
    }

    /// Over a device in memory that fails and hangs as it is told; nothing comes up.
    fn on_memory() -> (Arc<Memory>, World) {
        let device = Arc::new(Memory::new());
        let disk = Disk::open_on(&small(std::path::Path::new("memory")), device.clone()).unwrap().0;
        (device, World::new(vec![disk], 255))
    }

    /// Puts values of one length, and waits until those that leave are on disk.
    fn fill(&mut self, numbers: std::ops::Range<u64>, len: usize) {
        for n in numbers {
            self.put(n, len);
        }
        self.rest();
    }

    /// Puts a value, waiting for room; whether it was new.
    fn put(&mut self, n: u64, len: usize) -> bool {
        let bytes = value(n, len);
        let meta =
            PutMeta { tenant: TENANT, extent: key(n / 4), page_index: (n % 4) as u32, ..shm::meta(n, len as u64) };
        let until = Instant::now() + Duration::from_secs(20);
        loop {
            match self.tiers.begin(&meta, 0).unwrap() {
                Begin::Slot(mut writer) => {
                    writer.bytes().copy_from_slice(&bytes);
                    writer.commit(&chunk_crcs(&bytes)).unwrap();
                    self.known.insert(meta.id, bytes);
                    return true;
                }
                Begin::Present => return false,
                Begin::Busy => panic!("one writer"),
                Begin::NoRoom => {
                    assert!(Instant::now() < until, "no room for {len} bytes");
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        }
    }

    /// The bytes of an object, and whether they came from memory.
    fn get(&self, id: &ObjectId) -> Option<(Vec<u8>, bool)> {
        loop {
            // Only a read brings it up.
            let below = self.tiers.bytes_to_read(TENANT, id) > 0;
            match self.runtime.block_on(self.tiers.clone().fetch(TENANT, *id)) {
                Fetch::InMemory(source) => {
                    assert!(!below || source == Source::Disk, "{source:?}");
                    if let Some(pinned) = self.tiers.memory.get(TENANT, id) {
                        assert!(pinned.verify());
                        return Some((pinned.to_vec(), true));
                    }
                }
                Fetch::OnDisk(found) => {
                    assert_eq!(found.source, Source::Disk);
                    return Some(((*found).as_ref().to_vec(), false));
                }
                Fetch::Absent | Fetch::Crowded => return None,
                Fetch::Damaged => panic!("nothing was damaged"),
            }
        }
    }

    fn delete(&mut self, ids: &[ObjectId]) -> usize {
        let count = self.runtime.block_on(self.tiers.delete(TENANT, ids)).unwrap();
        ids.iter().for_each(|id| drop(self.known.remove(id)));
        count
    }

    /// Waits until nothing is on its way to the disk.
    fn rest(&self) {
        let until = Instant::now() + Duration::from_secs(20);
        while self.tiers.memory.stats().held_slots > 0 || self.tiers.memory.free_bytes() < MIB {
            assert!(Instant::now() < until, "demotion does not come to rest: {:?}", self.tiers.memory.stats());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Every value is there and right; returns how many were in memory.
    fn check(&self) -> usize {
        let mut in_memory = 0;
        for (id, bytes) in &self.known {
            let (found, here) = self.get(id).unwrap_or_else(|| panic!("{id:?} is gone"));
            assert_eq!(&found, bytes);
            in_memory += usize::from(here);
        }
        self.tiers.memory.check_integrity().unwrap();
        in_memory
    }

    /// The process ends without a word and another one begins.
    fn restart(self, disks: impl FnOnce() -> Vec<Disk>, promote_after: u8) -> World {
        let World { tiers, demoter, runtime, file, known } = self;
        drop(demoter);
        assert_eq!(Arc::strong_count(&tiers), 1, "nothing holds the tiers");
        drop(tiers);
        let tiers = Tiers::new(open_store(&file), disks(), settings(promote_after), Clock::start());
        let demoter = tiers.start().unwrap();
        World { tiers, demoter, runtime, file, known }
    }

    fn counted(&self, of: impl Fn(&mimo_cache::node::tiers::TierCounts) -> &AtomicU64) -> u64 {
        of(&self.tiers.counts).load(Ordering::Relaxed)
    }
}

fn length(n: u64) -> usize {
    [1, 4095, 4096, 4097, 65_536, 100_000, 262_144, 900_000][(mix(n, 3) % 8) as usize]
}

#[test]
fn what_does_not_fit_into_memory_is_on_disk_and_survives_the_process() {
    let folder = Folder::new();
    let open = || vec![open_disk(&folder)];
    let mut world = World::new(open(), 255);
    let mut bytes = 0;
    for n in 0..300 {
        bytes += length(n);
        assert!(world.put(n, length(n)));
    }
    assert!(bytes as u64 > 3 * 8 * MIB, "{bytes}");
    world.rest();
    let in_memory = world.check();
    assert!((1..200).contains(&in_memory), "{in_memory}");
    let keys: Vec<_> = (0..400).map(key).collect();
    let masks = world.tiers.exists(TENANT, &keys, None, 0).masks;
    assert_eq!(masks.iter().filter(|m| **m == 1).count(), 300);
    assert!(!world.put(0, length(0)), "the first writer wins on disk too");
    assert_eq!(world.counted(|c| &c.dropped), 0);
    let world = world.restart(open, 255);
    world.check();
    world.tiers.memory.check_integrity().unwrap();
}

#[test]
fn what_is_deleted_comes_back_from_neither_tier() {
    let folder = Folder::new();
    let open = || vec![open_disk(&folder)];
    let mut world = World::new(open(), 1);
    let mut gone: Vec<ObjectId> = Vec::new();
    for n in 0..240 {
        world.put(n, length(n));
        if n % 3 == 0 {
            // What was just put, what is on its way down, and what is down.
            let old = [n, n.saturating_sub(12), n / 2].map(|n| id(n, 0));
            let there =
                old.iter().filter(|id| world.known.contains_key(*id)).collect::<std::collections::BTreeSet<_>>();
            let there = there.len();
            assert_eq!(world.delete(&old), there);
            gone.extend(old);
        }
        if n % 7 == 0 {
            // Comes up while it is deleted.
            let name = id(n / 3, 0);
            let tiers = world.tiers.clone();
            let rising = world.runtime.spawn(tiers.fetch(TENANT, name));
            world.delete(&[name]);
            gone.push(name);
            drop(world.runtime.block_on(rising));
        }
    }
    world.rest();
    world.check();
    let absent = |world: &World| {
        for id in gone.iter().filter(|id| !world.known.contains_key(*id)) {
            assert!(world.get(id).is_none(), "{id:?} came back");
        }
    };
    absent(&world);
    let world = world.restart(open, 1);
    absent(&world);
    world.check();
}

#[test]
fn what_is_used_again_comes_up_and_a_scan_does_not() {
    let folder = Folder::new();
    let mut world = World::new(vec![Disk::open(&small(&folder.0)).unwrap().0], 2);
    world.fill(0..400, 65_536);
    let below: Vec<ObjectId> = (0..200).map(|n| id(n, 0)).filter(|id| world.tiers.disk_bytes(TENANT, id) > 0).collect();
    assert!(below.len() > 150, "{}", below.len());
    for id in &below {
        assert!(!world.get(id).unwrap().1, "once is no reason");
    }
    assert_eq!(world.counted(|c| &c.promoted), 0);
    let hot = below[5];
    assert_eq!(world.get(&hot).unwrap(), (world.known[&hot].clone(), true), "the second use brings it up");
    assert!(world.get(&hot).unwrap().1);
    assert_eq!(world.counted(|c| &c.promoted), 1);
    // It leaves again without a write: the disk has it.
    world.fill(1000..1200, 65_536);
    assert_eq!(world.tiers.memory.exists(TENANT, &[hot.key], None, 0).masks, [0]);
    assert!(world.counted(|c| &c.clean) >= 1);
    let values = world.known.len() as u64;
    assert!(world.counted(|c| &c.demoted) <= values, "a value was written twice");
    world.check();
}

#[test]
fn readers_of_one_value_share_one_read() {
    let (device, mut world) = World::on_memory();
    world.fill(0..200, 65_536);
    let name = id(0, 0);
    assert!(world.tiers.disk_bytes(TENANT, &name) > 0);
    let before = device.counted().1;
    device.hold();
    let reads: Vec<_> = (0..20).map(|_| world.runtime.spawn(world.tiers.clone().fetch(TENANT, name))).collect();
    std::thread::sleep(Duration::from_millis(50));
    device.release_all();
    for read in reads {
        assert!(
            matches!(world.runtime.block_on(read).unwrap(), Fetch::OnDisk(found) if (*found).as_ref() == world.known[&name])
        );
    }
    assert!(device.counted().1 - before <= 4, "{} reads of header and value", device.counted().1 - before);
}

#[test]
fn a_disk_that_fails_leaves_a_node_of_memory() {
    let (device, mut world) = World::on_memory();
    world.fill(0..150, 65_536);
    let (events, _) = device.counted();
    (events..events + 1000).for_each(|event| device.fail(event, Fault::Error(libc::EIO)));
    // What cannot be written any more goes as in a node without disks; nobody waits for ever.
    for n in 1000..1400 {
        world.put(n, 65_536);
    }
    let (_, trouble) = world.tiers.disk_stats().unwrap();
    assert_eq!(trouble.len(), 1);
    assert!(trouble[0].starts_with("read-only: ") || trouble[0].starts_with("offline: "), "{trouble:?}");
    let mut served = 0;
    for (id, bytes) in &world.known {
        if let Some((found, _)) = world.get(id) {
            assert_eq!(&found, bytes);
            served += 1;
        }
    }
    assert!(served > 100, "{served}");
    world.tiers.memory.check_integrity().unwrap();
}

#[test]
fn buffers_of_reads_ahead_are_bounded_and_a_value_in_turn_has_one_of_its_own() {
    let folder = Folder::new();
    let mut world = World::new(vec![Disk::open(&small(&folder.0)).unwrap().0], 255);
    world.fill(0..30, 900_000);
    let name = id(0, 0);
    let bytes = world.tiers.bytes_to_read(TENANT, &name);
    assert!(bytes >= 900_000);
    let ahead = || {
        let _within = world.runtime.enter();
        world.tiers.fetch_ahead(TENANT, name, bytes)
    };
    // Readers that take nothing hold what was read for them.
    let mut held = Vec::new();
    while let Some(read) = ahead() {
        held.push(world.runtime.block_on(read));
        assert!(held.len() as u64 * bytes <= 4 * MIB, "without bound");
    }
    assert!((held.len() as u64 + 1) * bytes > 4 * MIB, "{} buffers", held.len());
    for id in [name, id(1, 0), name] {
        assert_eq!(world.get(&id).unwrap().0, world.known[&id], "a value whose turn it is");
    }
    held.pop();
    assert!(ahead().is_some());
}

#[test]
fn a_value_comes_up_although_its_reader_does_not_look() {
    let folder = Folder::new();
    let mut world = World::new(vec![Disk::open(&small(&folder.0)).unwrap().0], 1);
    world.fill(0..30, 900_000);
    let name = id(0, 0);
    let bytes = world.tiers.bytes_to_read(TENANT, &name);
    let read = {
        let _within = world.runtime.enter();
        world.tiers.fetch_ahead(TENANT, name, bytes).unwrap()
    };
    let until = Instant::now() + Duration::from_secs(20);
    while world.tiers.bytes_to_read(TENANT, &name) > 0 {
        assert!(Instant::now() < until, "its slot is held by a reader who takes nothing");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(world.tiers.memory.stats().writers, 0);
    assert!(matches!(world.runtime.block_on(read), Fetch::InMemory(Source::Disk)));
}

#[test]
fn a_read_that_nobody_took_does_not_outlive_a_delete() {
    let folder = Folder::new();
    let mut world = World::new(vec![Disk::open(&small(&folder.0)).unwrap().0], 255);
    world.fill(0..30, 900_000);
    let name = id(0, 0);
    let bytes = world.tiers.bytes_to_read(TENANT, &name);
    let before = world.tiers.disk_stats().unwrap().0.totals.hits;
    let old = {
        let _within = world.runtime.enter();
        world.tiers.fetch_ahead(TENANT, name, bytes).unwrap()
    };
    let until = Instant::now() + Duration::from_secs(20);
    while world.tiers.disk_stats().unwrap().0.totals.hits == before {
        assert!(Instant::now() < until, "it is not read");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(world.delete(&[name]), 1);
    // Another value gets the name, and goes down.
    assert!(world.put(0, 65_536));
    world.fill(100..130, 900_000);
    assert!(world.tiers.bytes_to_read(TENANT, &name) > 0);
    assert_eq!(world.get(&name).unwrap().0, world.known[&name], "the value that was deleted came back");
    assert!(matches!(world.runtime.block_on(old), Fetch::OnDisk(found) if found.meta().len == 900_000));
    world.check();
}

#[test]
fn more_reads_than_the_disk_takes_at_once_wait_and_miss_nothing() {
    let (device, mut world) = World::on_memory();
    world.fill(0..2000, 16_384);
    let below: Vec<ObjectId> =
        (0..2000).map(|n| id(n, 0)).filter(|id| world.tiers.bytes_to_read(TENANT, id) > 0).collect();
    assert!(below.len() > 1000, "{}", below.len());
    device.hold();
    let reads: Vec<_> = below.iter().map(|id| world.runtime.spawn(world.tiers.clone().fetch(TENANT, *id))).collect();
    std::thread::sleep(Duration::from_millis(50));
    device.release_all();
    for (id, read) in below.iter().zip(reads) {
        let found = world.runtime.block_on(read).unwrap();
        assert!(matches!(&found, Fetch::OnDisk(found) if (**found).as_ref() == world.known[id]), "{found:?}");
    }
}
