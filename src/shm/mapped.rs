//! The file, open, locked and mapped.
//!
//! The lock is `flock` on the descriptor that the store keeps: it ends with the process, however it ends. Readers in other
//! processes get a descriptor of their own ([`Mapped::reader_file`]), since the lock belongs to the open file and would
//! live on in a copy.

use super::classes::Classes;
use super::config::{Prefault, Probe, StoreConfig};
use super::error::ShmError;
use super::layout::Geometry;
use super::region::Region;
use super::superblock::PROCESS_AT;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Most threads that take memory.
const MOST_THREADS: usize = 8;

/// The file of a store.
#[derive(Debug)]
pub struct Mapped {
    /// Its mapping.
    pub region: Region,
    /// How it is laid out.
    pub geometry: Geometry,
    /// How its spans are cut.
    pub classes: Classes,
    file: File,
    path: PathBuf,
}

impl Mapped {
    /// Maps a file that has its full size.
    pub fn new(file: File, path: &Path, geometry: Geometry, probe: Probe) -> Result<Mapped, ShmError> {
        let region =
            Region::map(&file, geometry.file_bytes, true, probe).map_err(|e| io_error(path, "map the file", e))?;
        Ok(Mapped { region, geometry, classes: Classes::of(&geometry), file, path: path.into() })
    }

    /// A descriptor for readers: read only, and without the lock.
    pub fn reader_file(&self) -> Result<File, ShmError> {
        let own = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        File::open(own).map_err(|e| io_error(&self.path, "open the file for a reader", e))
    }

    /// Takes all memory, by several threads.
    pub fn populate(&self) -> Result<(), ShmError> {
        let next = AtomicUsize::new(0);
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get().min(MOST_THREADS));
        let work = || {
            loop {
                let step = next.fetch_add(1, Ordering::Relaxed);
                if step >= self.region.steps() {
                    return Ok(());
                }
                self.region.populate(&self.file, step)?;
            }
        };
        let outcome: io::Result<()> = std::thread::scope(|scope| {
            let running: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            running.into_iter().try_for_each(|t| t.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into())))
        });
        outcome.map_err(|e| {
            let message = format!(
                "{e}; {} bytes are needed: make the file system or the memory limit larger, or configure a smaller size",
                self.geometry.file_bytes
            );
            ShmError::Io { path: self.path.display().to_string(), action: "take the memory of the file", message }
        })
    }

    /// Enters the file's memory into the mapping step by step until told to stop. The memory is there already, so a
    /// failure only means that first uses stay slow.
    pub fn populate_until(&self, stop: &AtomicBool) {
        for step in 0..self.region.steps() {
            if stop.load(Ordering::Relaxed) || self.region.populate(&self.file, step).is_err() {
                return;
            }
        }
    }

    /// Gives the memory of a file back whose making failed.
    pub fn give_up(&self) {
        // The error that led here is the one to tell.
        let _ = self.file.set_len(0);
    }
}

/// Opens the file, or makes an empty one, and locks it.
pub fn open_locked(config: &StoreConfig) -> Result<File, ShmError> {
    let path = &config.path;
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC)
        .open(path)
        .map_err(|e| io_error(path, "open the file", e))?;
    let facts = file.metadata().map_err(|e| io_error(path, "examine the file", e))?;
    // SAFETY: a plain call without arguments.
    let user = unsafe { libc::geteuid() };
    if !facts.is_file() || facts.uid() != user {
        let reason = format!("it is not a regular file of user {user}");
        return Err(refused(path, reason, "give this node a path of its own"));
    }
    // SAFETY: a plain call on an open file.
    if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } != 0 {
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::WouldBlock {
            return Err(io_error(path, "lock the file", error));
        }
        let mut pid = [0; 8];
        let read = file.read_exact_at(&mut pid, PROCESS_AT).is_ok();
        let pid = if read { u64::from_le_bytes(pid) } else { 0 };
        return Err(ShmError::InUse { path: path.display().to_string(), pid });
    }
    check_file_system(&file, config)?;
    Ok(file)
}

fn check_file_system(file: &File, config: &StoreConfig) -> Result<(), ShmError> {
    // SAFETY: `facts` is plain data that the call fills.
    let facts = unsafe {
        let mut facts: libc::statfs = std::mem::zeroed();
        if libc::fstatfs(file.as_raw_fd(), &mut facts) != 0 {
            return Err(io_error(&config.path, "examine the file system", io::Error::last_os_error()));
        }
        facts
    };
    let huge = facts.f_bsize as u64;
    if facts.f_type == libc::HUGETLBFS_MAGIC && !config.size_bytes.is_multiple_of(huge) {
        let allowed = format!("a multiple of the file system's huge page, {huge} bytes");
        return Err(ShmError::invalid("size of the shared-memory file", config.size_bytes, allowed));
    }
    Ok(())
}

/// Whether attaching maps memory in the background.
pub fn in_background(config: &StoreConfig) -> bool {
    config.prefault == Prefault::Threads
}

/// An error of the system.
pub fn io_error(path: &Path, action: &'static str, error: io::Error) -> ShmError {
    ShmError::Io { path: path.display().to_string(), action, message: error.to_string() }
}

/// A file that does not fit.
pub fn refused(path: &Path, reason: impl Into<String>, remedy: impl Into<String>) -> ShmError {
    ShmError::Refused { path: path.display().to_string(), reason: reason.into(), remedy: remedy.into() }
}
