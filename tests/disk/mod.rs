//! What the tests of the disk tier have in common: small directories, values that can be told apart, calls that wait.
#![allow(dead_code)] // each binary uses its part

pub mod script;
#[path = "../values/mod.rs"]
mod values;
pub mod world;

pub use values::*;

use mimo_cache::disk::memory::Memory;
use mimo_cache::disk::{Aligned, Buffer, Disk, DiskConfig, DiskError, DiskRecovery, Put, PutOutcome, Target, Worker};
use mimo_cache::shm::{ObjectId, PutMeta, chunk_crcs};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, channel};

/// Smallest segments: 16 blocks, of which 2 are header and marks and 1 or more the footer.
pub const SEGMENT: u32 = 64 << 10;
pub const TENANT: u64 = 1;

/// Segments of 64 KiB, and the test does the worker's work.
pub fn config(segments: u64) -> DiskConfig {
    let base = DiskConfig::new("nowhere", segments * u64::from(SEGMENT));
    DiskConfig { segment_bytes: SEGMENT, worker: Worker::Caller, fingerprint: [7; 32], ..base }
}

pub fn open(config: &DiskConfig, device: &Arc<Memory>) -> (Disk, DiskRecovery) {
    Disk::open_on(config, device.clone()).unwrap()
}

pub fn work(disk: &Disk) {
    while disk.work() {}
}

/// A directory that goes away.
pub struct TempDir(PathBuf);

impl TempDir {
    pub fn new(name: &str) -> TempDir {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        TempDir(std::env::temp_dir().join(format!("mimo-disk-{}-{name}-{number}", std::process::id())))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub fn meta(id: ObjectId, len: usize) -> PutMeta {
    PutMeta {
        id,
        tenant: TENANT,
        bucket: 5,
        len: len as u64,
        extent: key(900),
        page_index: 3,
        superseded: id.part > 40,
        layout: 2,
    }
}

/// Outcomes in the order of the batch.
pub type Outcomes = Receiver<(usize, PutOutcome)>;

/// Puts in one batch, without waiting.
pub fn begin_puts(disk: &Disk, batch: Vec<(PutMeta, Box<dyn Buffer>)>, crcs_of: &[Vec<u8>]) -> Outcomes {
    let (send, receive) = channel();
    let puts = batch.into_iter().zip(crcs_of).enumerate().map(|(n, ((meta, value), bytes))| {
        let send = send.clone();
        Put { meta, crcs: chunk_crcs(bytes), value, done: Box::new(move |o, _| drop(send.send((n, o)))) }
    });
    disk.put(puts.collect(), 0);
    receive
}

/// Puts values in one batch and waits; every third one is not aligned.
pub fn put_all(disk: &Disk, values: &[(ObjectId, Vec<u8>)]) -> Vec<PutOutcome> {
    let batch = values.iter().enumerate().map(|(n, (id, bytes))| {
        let buffer: Box<dyn Buffer> =
            if n % 3 == 2 { Box::new(bytes.clone()) } else { Box::new(Aligned::copy_of(bytes)) };
        (meta(*id, bytes.len()), buffer)
    });
    let bytes: Vec<Vec<u8>> = values.iter().map(|v| v.1.clone()).collect();
    let outcomes = begin_puts(disk, batch.collect(), &bytes);
    let mut all = vec![PutOutcome::NoRoom; values.len()];
    for _ in 0..values.len() {
        let (n, outcome) = outcomes.recv().unwrap();
        all[n] = outcome;
    }
    all
}

pub fn put(disk: &Disk, id: ObjectId, bytes: &[u8]) -> PutOutcome {
    put_all(disk, &[(id, bytes.to_vec())]).remove(0)
}

/// Puts until there is room, with the worker's work in between.
pub fn put_soon(disk: &Disk, id: ObjectId, bytes: &[u8]) {
    for _ in 0..10_000 {
        match put(disk, id, bytes) {
            PutOutcome::Stored => return,
            PutOutcome::NoRoom => {
                if !disk.work() {
                    std::thread::sleep(std::time::Duration::from_millis(1));
                }
            }
            other => panic!("{other:?}"),
        }
    }
    panic!("no room");
}

/// Reads into aligned memory at once, header and value in two reads, or into memory that is not aligned.
pub fn get_as(disk: &Disk, id: &ObjectId, way: u64) -> Result<(PutMeta, Vec<u8>), DiskError> {
    let blocks = disk.value_blocks(TENANT, id).unwrap_or(4096) as usize;
    match way % 3 {
        0 => get_to(disk, id, Target::Buffer(Aligned::new(blocks))),
        1 => get_to(disk, id, Target::Buffer(vec![0u8; blocks])),
        _ => get_to(disk, id, Target::Place(Box::new(|meta: &PutMeta| Some(vec![0u8; meta.len as usize])))),
    }
}

/// Reads and verifies.
pub fn get_to<B: Buffer>(disk: &Disk, id: &ObjectId, target: Target<B>) -> Result<(PutMeta, Vec<u8>), DiskError> {
    let (send, receive) = channel();
    disk.get(TENANT, id, target, move |r| drop(send.send(r)));
    receive.recv().unwrap()?.verify().map(|v| (v.meta, v.bytes().to_vec()))
}

pub fn get(disk: &Disk, id: &ObjectId) -> Option<Vec<u8>> {
    get_as(disk, id, u64::from(id.part) + u64::from(id.key[0])).ok().map(|(_, bytes)| bytes)
}

pub fn has(disk: &Disk, id: &ObjectId) -> bool {
    disk.exists(TENANT, &[id.key])[0] >> id.part & 1 == 1
}

/// Deletes; with the test as the worker it does the work.
pub fn delete(disk: &Disk, ids: &[ObjectId]) -> Result<usize, DiskError> {
    let (send, receive) = channel();
    disk.delete(TENANT, ids, move |r| drop(send.send(r)));
    wait(disk, &receive)
}

pub fn seal(disk: &Disk) -> Result<(), DiskError> {
    let (send, receive) = channel();
    disk.seal(move |r| drop(send.send(r)));
    wait(disk, &receive)
}

fn wait<T>(disk: &Disk, receive: &Receiver<Result<T, DiskError>>) -> Result<T, DiskError> {
    loop {
        if let Ok(result) = receive.try_recv() {
            return result;
        }
        if !disk.work() {
            return receive.recv_timeout(std::time::Duration::from_secs(20)).expect("an answer");
        }
    }
}

/// A number from the environment.
pub fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default)
}
