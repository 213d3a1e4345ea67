//! Memory, disk and an object store as one, over files and a bucket that outlive them.

use super::TENANT;
use crate::shm::{self, BOOT, TempFile, id, key, mix, value};
use mimo_cache::disk::{Disk, DiskConfig};
use mimo_cache::node::state::Clock;
use mimo_cache::node::tiers::{Demoter, Fetch, TierSettings, Tiers};
use mimo_cache::remote::{Bucket, Remote, RemoteConfig};
use mimo_cache::rpc::v1::Source;
use mimo_cache::shm::{Begin, ObjectId, PutMeta, Store, chunk_crcs};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;

/// A directory that goes with it.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new() -> Folder {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = format!("mimo-remote-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        Folder(std::env::temp_dir().join(name))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Where a value was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Where {
    Memory,
    Disk,
    Remote,
}

/// 8 MiB of memory, 12 MiB of disk, and what was put.
pub struct World {
    pub tiers: Arc<Tiers>,
    demoter: Option<Demoter>,
    pub runtime: tokio::runtime::Runtime,
    file: TempFile,
    folder: Folder,
    bucket: Arc<dyn Bucket>,
    config: RemoteConfig,
    promote_after: u8,
    pub known: BTreeMap<ObjectId, Vec<u8>>,
}

fn disk(dir: &Path) -> Disk {
    Disk::open(&DiskConfig { segment_bytes: 1 << 20, ..DiskConfig::new(dir, 12 * MIB) }).unwrap().0
}

impl World {
    pub fn new(bucket: Arc<dyn Bucket>, config: RemoteConfig, promote_after: u8) -> World {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        World::open(runtime, TempFile::new("remote"), Folder::new(), bucket, config, promote_after, BTreeMap::new())
    }

    fn open(
        runtime: tokio::runtime::Runtime,
        file: TempFile,
        folder: Folder,
        bucket: Arc<dyn Bucket>,
        config: RemoteConfig,
        promote_after: u8,
        known: BTreeMap<ObjectId, Vec<u8>>,
    ) -> World {
        let memory = Store::open(&shm::config(file.path(), 8 * MIB), BOOT).unwrap().0;
        let remote = Some(Remote::new(bucket.clone(), config.clone()));
        let settings = TierSettings { promote_after, reserve: MIB };
        let tiers = Tiers::with_remote(memory, vec![disk(&folder.0)], remote, settings, Clock::start());
        let demoter = {
            let _inside = runtime.enter();
            tiers.start().unwrap()
        };
        World { tiers, demoter, runtime, file, folder, bucket, config, promote_after, known }
    }

    /// The process ends without a word and another one begins.
    pub fn restart(self) -> World {
        let World { tiers, demoter, runtime, file, folder, bucket, config, promote_after, known } = self;
        drop(demoter);
        let until = Instant::now() + Duration::from_secs(10);
        while Arc::strong_count(&tiers) > 1 {
            assert!(Instant::now() < until, "something holds the tiers");
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(tiers);
        World::open(runtime, file, folder, bucket, config, promote_after, known)
    }

    /// Puts a value, waiting for room.
    pub fn put(&mut self, n: u64, len: usize) {
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
                    return;
                }
                Begin::Present => return,
                Begin::Busy => panic!("one writer"),
                Begin::NoRoom => {
                    assert!(Instant::now() < until, "no room for {len} bytes");
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        }
    }

    /// Bytes of an object in the store, whatever is wrong with it.
    pub fn fetch(&self, id: &ObjectId) -> Option<Vec<u8>> {
        match self.runtime.block_on(self.tiers.clone().fetch(TENANT, *id)) {
            Fetch::OnDisk(found) => Some((*found).as_ref().to_vec()),
            _ => None,
        }
    }

    /// Bytes of an object and where they were.
    pub fn get(&self, id: &ObjectId) -> Option<(Vec<u8>, Where)> {
        loop {
            // Only a read brings it up.
            let below = self.tiers.bytes_to_read(TENANT, id) > 0;
            match self.runtime.block_on(self.tiers.clone().fetch(TENANT, *id)) {
                Fetch::InMemory(source) => {
                    assert!(!below || source != Source::Memory, "{source:?}");
                    if let Some(pinned) = self.tiers.memory.get(TENANT, id) {
                        assert!(pinned.verify());
                        return Some((pinned.to_vec(), Where::Memory));
                    }
                }
                Fetch::OnDisk(found) => {
                    let place = match found.source {
                        Source::Memory => panic!("a value of memory in a buffer of its own"),
                        Source::Disk => Where::Disk,
                        Source::Remote => Where::Remote,
                    };
                    return Some(((*found).as_ref().to_vec(), place));
                }
                Fetch::Absent | Fetch::Crowded => return None,
                Fetch::Damaged => panic!("nothing was damaged"),
            }
        }
    }

    pub fn delete(&mut self, ids: &[ObjectId]) -> Result<usize, String> {
        let count = self.runtime.block_on(self.tiers.delete(TENANT, ids))?;
        ids.iter().for_each(|id| drop(self.known.remove(id)));
        Ok(count)
    }

    /// Waits until nothing is on its way down.
    pub fn rest(&self) {
        let until = Instant::now() + Duration::from_secs(20);
        let busy = || {
            let memory = &self.tiers.memory;
            memory.stats().held_slots > 0
                || memory.free_bytes() < MIB
                || self.tiers.disk_stats().unwrap().0.free_segments < 3
                || self.tiers.remote_stats().unwrap().queued > 0
        };
        while busy() {
            assert!(Instant::now() < until, "it does not come to rest: {:?}", self.tiers.remote_stats());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Every value is there and right; returns how many were in memory, on disk and in the store.
    pub fn check(&self) -> [usize; 3] {
        let mut places = [0; 3];
        for (id, bytes) in &self.known {
            let (found, place) = self.get(id).unwrap_or_else(|| panic!("{id:?} is gone"));
            assert!(&found == bytes, "{id:?} has other bytes");
            places[place as usize] += 1;
        }
        self.tiers.memory.check_integrity().unwrap();
        places
    }
}

/// Lengths of all kinds.
pub fn length(n: u64) -> usize {
    [1, 4095, 4096, 4097, 65_536, 100_000, 262_144, 900_000][(mix(n, 3) % 8) as usize]
}

/// Object `n`.
pub fn object(n: u64) -> ObjectId {
    id(n, 0)
}
