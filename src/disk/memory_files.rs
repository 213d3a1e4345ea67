//! The files of a device in memory, and what faults and crashes do to them; see [`super::memory`].

use super::device::{Action, FileId, Op};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io;

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
pub struct Inode {
    pub now: Vec<u8>,
    pub durable: Vec<u8>,
    /// Positions and bytes written since the last sync.
    pub since: Vec<(usize, Vec<u8>)>,
}

#[derive(Debug, Clone)]
pub enum Rename {
    Set(String, usize),
    Gone(String),
}

#[derive(Default)]
pub struct World {
    pub names: BTreeMap<String, usize>,
    pub durable_names: BTreeMap<String, usize>,
    pub names_since: Vec<Rename>,
    pub inodes: Vec<Inode>,
    pub open: HashMap<FileId, usize>,
    pub next: u32,
    pub events: u64,
    pub reads: u64,
    pub faults: BTreeMap<u64, Fault>,
    pub read_faults: BTreeMap<u64, i32>,
    /// Bytes of files that may be made.
    pub space: Option<u64>,
    pub crashed: bool,
    pub gone: bool,
    pub holding: bool,
    pub held: VecDeque<Op>,
}

pub fn failed(code: i32) -> io::Error {
    io::Error::from_raw_os_error(code)
}

/// A number that depends on both everywhere.
pub fn mix(a: u64, b: u64) -> u64 {
    let mut x = a.wrapping_add(b.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_add(0x1234_5678);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

impl Inode {
    pub fn after(&self, crash: Crash, salt: u64) -> Vec<u8> {
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

    pub fn write(&mut self, at: usize, bytes: &[u8]) {
        self.now[at..at + bytes.len()].copy_from_slice(bytes);
        self.since.push((at, bytes.to_vec()));
    }

    pub fn sync(&mut self) {
        self.durable = self.now.clone();
        self.since.clear();
    }
}

impl World {
    pub fn names_after(&self, seed: u64) -> BTreeMap<String, usize> {
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
    pub fn event(&mut self) -> io::Result<Option<Fault>> {
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
    pub fn whole_event(&mut self) -> io::Result<()> {
        match self.event()? {
            Some(Fault::Crash) => Err(failed(libc::EIO)),
            _ => Ok(()),
        }
    }

    pub fn step(&mut self, op: &Op) -> io::Result<usize> {
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

    pub fn set_name(&mut self, name: &str, inode: usize) {
        self.names.insert(name.into(), inode);
        self.names_since.push(Rename::Set(name.into(), inode));
    }

    pub fn drop_name(&mut self, name: &str) -> io::Result<usize> {
        let inode = self.names.remove(name).ok_or_else(|| failed(libc::ENOENT))?;
        self.names_since.push(Rename::Gone(name.into()));
        Ok(inode)
    }

    pub fn sync_names(&mut self) -> io::Result<()> {
        self.whole_event()?;
        self.durable_names = self.names.clone();
        self.names_since.clear();
        Ok(())
    }

    pub fn enter(&mut self, inode: usize) -> FileId {
        self.next += 1;
        self.open.insert(FileId(self.next), inode);
        FileId(self.next)
    }

    /// A new file under a name for the time being, then under its own.
    pub fn make(&mut self, name: &str, bytes: Vec<u8>) -> io::Result<usize> {
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
