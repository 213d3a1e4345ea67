//! A device in memory that fails as it is told, for tests. Not part of the library's interface.
//!
//! - Each write, sync and change of a name is a numbered *event*. A test has one fail, end short, or be the last one: a
//!   crash leaves a part of it, and everything later fails.
//! - [`Memory::after`] is what the next process finds: after `kill -9` everything that was written, after power loss what
//!   was synced and, of every 512-byte sector written since, any version at all.

pub use super::memory_files::{Crash, Fault};

use super::device::{Device, FileId, Op, Step};
use super::memory_files::{Inode, World, failed, mix};
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// See above.
#[derive(Default)]
pub struct Memory {
    world: Mutex<World>,
}

impl Memory {
    /// An empty directory.
    pub fn new() -> Memory {
        Memory::default()
    }

    fn lock(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has event number `event` go wrong, counted from the first of this device.
    pub fn fail(&self, event: u64, fault: Fault) {
        self.lock().faults.insert(event, fault);
    }

    /// Has read number `read` fail.
    pub fn fail_read(&self, read: u64, code: i32) {
        self.lock().read_faults.insert(read, code);
    }

    /// Events and reads so far.
    pub fn counted(&self) -> (u64, u64) {
        let world = self.lock();
        (world.events, world.reads)
    }

    /// Whether a crash has happened.
    pub fn has_crashed(&self) -> bool {
        self.lock().crashed
    }

    /// Bounds the bytes of files that can still be made.
    pub fn limit_space(&self, bytes: u64) {
        self.lock().space = Some(bytes);
    }

    /// The directory disappears.
    pub fn vanish(&self) {
        self.lock().gone = true;
    }

    /// From now on operations hang until they are released.
    pub fn hold(&self) {
        self.lock().holding = true;
    }

    /// Operations that hang.
    pub fn held(&self) -> usize {
        self.lock().held.len()
    }

    /// Carries out the operation that hangs at this place of the queue.
    pub fn release(&self, place: usize) {
        let op = self.lock().held.remove(place);
        if let Some(op) = op {
            self.carry_out(op);
        }
    }

    /// Operations hang no more, and those that did are carried out, in order.
    pub fn release_all(&self) {
        self.lock().holding = false;
        while self.held() > 0 {
            self.release(0);
        }
    }

    /// A file as a process sees it.
    pub fn contents(&self, name: &str) -> Option<Vec<u8>> {
        let world = self.lock();
        world.names.get(name).map(|&n| world.inodes[n].now.clone())
    }

    /// Puts a file there, synced.
    pub fn place(&self, name: &str, bytes: Vec<u8>) {
        let mut world = self.lock();
        world.inodes.push(Inode { now: bytes.clone(), durable: bytes, since: Vec::new() });
        let inode = world.inodes.len() - 1;
        world.names.insert(name.into(), inode);
        world.durable_names.insert(name.into(), inode);
    }

    /// What the next process finds.
    pub fn after(&self, crash: Crash) -> Memory {
        let world = self.lock();
        let mut next = World::default();
        let names = match crash {
            Crash::Kill => world.names.clone(),
            Crash::Power(seed) => world.names_after(seed),
        };
        for (name, inode) in names {
            let bytes = world.inodes[inode].after(crash, mix(inode as u64, 77));
            next.names.insert(name, next.inodes.len());
            next.inodes.push(Inode { now: bytes.clone(), durable: bytes, since: Vec::new() });
        }
        next.durable_names = next.names.clone();
        Memory { world: Mutex::new(next) }
    }

    fn carry_out(&self, mut op: Op) {
        loop {
            let result = self.lock().step(&op);
            if op.advance(result) == Step::Finished {
                break;
            }
        }
        op.finish();
    }
}

impl Device for Memory {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn direct(&self) -> bool {
        false
    }

    fn path(&self) -> String {
        "memory".into()
    }

    fn list(&self) -> io::Result<Vec<(String, u64)>> {
        let world = self.lock();
        Ok(world.names.iter().map(|(name, &n)| (name.clone(), world.inodes[n].now.len() as u64)).collect())
    }

    fn open(&self, name: &str) -> io::Result<FileId> {
        let mut world = self.lock();
        let inode = *world.names.get(name).ok_or_else(|| failed(libc::ENOENT))?;
        Ok(world.enter(inode))
    }

    fn create(&self, name: &str, len: u64) -> io::Result<FileId> {
        let mut world = self.lock();
        if let Some(space) = world.space {
            world.space = Some(space.checked_sub(len).ok_or_else(|| failed(libc::ENOSPC))?);
        }
        if world.names.contains_key(name) {
            return Err(failed(libc::EEXIST));
        }
        let inode = world.make(name, vec![0; len as usize])?;
        Ok(world.enter(inode))
    }

    fn close(&self, file: FileId) {
        self.lock().open.remove(&file);
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut world = self.lock();
        world.whole_event()?;
        let inode = world.drop_name(from)?;
        world.set_name(to, inode);
        world.sync_names()
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut world = self.lock();
        world.whole_event()?;
        let inode = world.drop_name(name)?;
        let len = world.inodes[inode].now.len() as u64;
        world.space = world.space.map(|s| s + len);
        Ok(())
    }

    fn read_file(&self, name: &str, most: usize) -> io::Result<Vec<u8>> {
        let bytes = self.contents(name).ok_or_else(|| failed(libc::ENOENT))?;
        if bytes.len() > most { Err(failed(libc::EFBIG)) } else { Ok(bytes) }
    }

    fn replace_file(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.lock().make(name, bytes.to_vec()).map(drop)
    }

    fn alive(&self) -> io::Result<()> {
        if self.lock().gone { Err(failed(libc::ENOENT)) } else { Ok(()) }
    }

    fn submit(&self, op: Op) {
        let mut world = self.lock();
        if world.holding {
            world.held.push_back(op);
        } else {
            drop(world);
            self.carry_out(op);
        }
    }
}
