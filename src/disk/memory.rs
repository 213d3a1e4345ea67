//! A device in memory that fails as it is told, for tests. Not part of the library's interface.
//!
//! - Each write, sync and change of a name is a numbered *event*. A test has one fail, end short, or be the last one: a
//!   crash leaves a part of it, and everything later fails.
//! - [`Memory::after`] is what the next process finds: after `kill -9` everything that was written, after power loss what
//!   was synced and, of every 512-byte sector written since, any version at all.

use super::device::{Action, Device, FileId, Op, Step};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

const SECTOR: usize = 512;

/// How an event goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It fails with this error number and changes nothing.
    Error(i32),
    /// A write does so many bytes, then the system is asked again.
    Short(usize),
    /// A part of it is done and the machine or process ends.
    Crash,
}

/// What ended the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Crash {
    /// `kill -9`.
    Kill,
    /// Power loss; the number decides what of the unsynced survives.
    Power(u64),
}

#[derive(Debug, Clone, Default)]
struct Inode {
    now: Vec<u8>,
    durable: Vec<u8>,
    /// Positions and bytes written since the last sync.
    since: Vec<(usize, Vec<u8>)>,
}

#[derive(Debug, Clone)]
enum Rename {
    Set(String, usize),
    Gone(String),
}

#[derive(Default)]
struct World {
    names: BTreeMap<String, usize>,
    durable_names: BTreeMap<String, usize>,
    names_since: Vec<Rename>,
    inodes: Vec<Inode>,
    open: HashMap<FileId, usize>,
    next: u32,
    events: u64,
    reads: u64,
    faults: BTreeMap<u64, Fault>,
    read_faults: BTreeMap<u64, i32>,
    /// Bytes of files that may be made.
    space: Option<u64>,
    crashed: bool,
    gone: bool,
    holding: bool,
    held: VecDeque<Op>,
}

/// See above.
#[derive(Default)]
pub struct Memory {
    world: Mutex<World>,
}

fn failed(code: i32) -> io::Error {
    io::Error::from_raw_os_error(code)
}

/// A number that depends on both everywhere.
fn mix(a: u64, b: u64) -> u64 {
    let mut x = a.wrapping_add(b.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_add(0x1234_5678);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
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

impl Inode {
    fn after(&self, crash: Crash, salt: u64) -> Vec<u8> {
        let Crash::Power(seed) = crash else { return self.now.clone() };
        let mut versions: BTreeMap<usize, Vec<&[u8]>> = BTreeMap::new();
        for (at, bytes) in &self.since {
            // Writes start at blocks, so sectors of writes are sectors of the file.
            for (n, sector) in bytes.chunks(SECTOR).enumerate() {
                versions.entry(at + n * SECTOR).or_default().push(sector);
            }
        }
        let mut bytes = self.durable.clone();
        bytes.resize(self.now.len(), 0);
        for (at, versions) in versions {
            let choice = mix(mix(seed, salt), at as u64) as usize % (versions.len() + 1);
            if let Some(sector) = versions.get(choice) {
                bytes[at..at + sector.len()].copy_from_slice(sector);
            }
        }
        bytes
    }

    fn write(&mut self, at: usize, bytes: &[u8]) {
        self.now[at..at + bytes.len()].copy_from_slice(bytes);
        self.since.push((at, bytes.to_vec()));
    }

    fn sync(&mut self) {
        self.durable = self.now.clone();
        self.since.clear();
    }
}

impl World {
    fn names_after(&self, seed: u64) -> BTreeMap<String, usize> {
        let mut names = self.durable_names.clone();
        let kept = mix(seed, 5) as usize % (self.names_since.len() + 1);
        for change in &self.names_since[..kept] {
            match change {
                Rename::Set(name, inode) => drop(names.insert(name.clone(), *inode)),
                Rename::Gone(name) => drop(names.remove(name)),
            }
        }
        names
    }

    /// Counts an event; what is to go wrong with it.
    fn event(&mut self) -> io::Result<Option<Fault>> {
        if self.crashed {
            return Err(failed(libc::EIO));
        }
        if self.gone {
            return Err(failed(libc::ENOENT));
        }
        let number = self.events;
        self.events += 1;
        match self.faults.get(&number).copied() {
            Some(Fault::Error(code)) => Err(failed(code)),
            Some(Fault::Crash) => {
                self.crashed = true;
                Ok(Some(Fault::Crash))
            }
            other => Ok(other),
        }
    }

    /// An event of which no part can be done.
    fn whole_event(&mut self) -> io::Result<()> {
        match self.event()? {
            Some(Fault::Crash) => Err(failed(libc::EIO)),
            _ => Ok(()),
        }
    }

    fn step(&mut self, op: &Op) -> io::Result<usize> {
        if self.crashed {
            return Err(failed(libc::EIO));
        }
        let inode = *self.open.get(&op.file).ok_or_else(|| failed(libc::EBADF))?;
        let at = op.at() as usize;
        match op.action {
            Action::Sync => {
                self.whole_event()?;
                self.inodes[inode].sync();
                Ok(0)
            }
            Action::Write => {
                let fault = self.event()?;
                let number = self.events;
                let mut bytes = Vec::with_capacity(op.remaining());
                for piece in op.pieces() {
                    // SAFETY: the operation owns the memory.
                    bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(piece.start, piece.len) });
                }
                match fault {
                    Some(Fault::Short(most)) => bytes.truncate(most.clamp(1, bytes.len())),
                    Some(Fault::Crash) => bytes.truncate(mix(number, 9) as usize % (bytes.len() + 1) / SECTOR * SECTOR),
                    _ => {}
                }
                if at + bytes.len() > self.inodes[inode].now.len() {
                    return Err(failed(libc::EFBIG));
                }
                self.inodes[inode].write(at, &bytes);
                if fault == Some(Fault::Crash) { Err(failed(libc::EIO)) } else { Ok(bytes.len()) }
            }
            Action::Read => {
                if self.gone {
                    return Err(failed(libc::ENOENT));
                }
                let number = self.reads;
                self.reads += 1;
                if let Some(&code) = self.read_faults.get(&number) {
                    return Err(failed(code));
                }
                let source = self.inodes[inode].now.get(at..).unwrap_or_default();
                // Now and then fewer bytes than asked for.
                let most = if number % 5 == 4 { op.remaining().div_ceil(2) } else { op.remaining() };
                let mut done = 0;
                for piece in op.pieces() {
                    let part = piece.len.min(most - done).min(source.len().saturating_sub(done));
                    // SAFETY: the operation owns the memory, and `part` is at most the piece's length.
                    unsafe { std::ptr::copy_nonoverlapping(source[done..].as_ptr(), piece.start, part) };
                    done += part;
                    if part < piece.len {
                        break;
                    }
                }
                Ok(done)
            }
        }
    }

    fn set_name(&mut self, name: &str, inode: usize) {
        self.names.insert(name.into(), inode);
        self.names_since.push(Rename::Set(name.into(), inode));
    }

    fn drop_name(&mut self, name: &str) -> io::Result<usize> {
        let inode = self.names.remove(name).ok_or_else(|| failed(libc::ENOENT))?;
        self.names_since.push(Rename::Gone(name.into()));
        Ok(inode)
    }

    fn sync_names(&mut self) -> io::Result<()> {
        self.whole_event()?;
        self.durable_names = self.names.clone();
        self.names_since.clear();
        Ok(())
    }

    fn enter(&mut self, inode: usize) -> FileId {
        self.next += 1;
        self.open.insert(FileId(self.next), inode);
        FileId(self.next)
    }

    /// A new file under a name for the time being, then under its own.
    fn make(&mut self, name: &str, bytes: Vec<u8>) -> io::Result<usize> {
        let begun = format!("{name}.new");
        self.whole_event()?;
        let empty = vec![0; bytes.len()];
        self.inodes.push(Inode { now: empty, durable: Vec::new(), since: Vec::new() });
        let inode = self.inodes.len() - 1;
        self.set_name(&begun, inode);
        self.whole_event()?;
        self.inodes[inode].write(0, &bytes);
        self.whole_event()?;
        self.inodes[inode].sync();
        self.whole_event()?;
        self.drop_name(&begun)?;
        self.set_name(name, inode);
        self.sync_names()?;
        Ok(inode)
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
