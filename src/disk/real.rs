//! A directory of real files, and the choice of what carries operations to them.

use super::BLOCK;
use super::config::Backend;
use super::device::{Device, FileId, Op};
use super::error::DiskError;
use super::pool::Pool;
use super::ring::Ring;
use std::collections::HashMap;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// What carries operations to files.
pub trait Engine: Send + Sync {
    /// For reports.
    fn name(&self) -> &'static str;
    /// Starts an operation on an open file, which it keeps open until it completes.
    fn start(&self, op: Op, file: Arc<File>);
}

struct Real {
    dir: PathBuf,
    /// Locked while the device lives; the lock ends with the process, however it ends.
    handle: File,
    direct: bool,
    files: Mutex<(u32, HashMap<FileId, Arc<File>>)>,
    engine: Box<dyn Engine>,
}

/// Locks a directory, made if it is missing, and starts a backend; also why io_uring is not used, if it was tried in vain.
pub fn device(dir: &Path, backend: Backend) -> Result<(Arc<dyn Device>, String), DiskError> {
    let shown = dir.display();
    match DirBuilder::new().mode(0o700).create(dir) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
            return Err(DiskError::io(shown, "make the directory", &e));
        }
        _ => {}
    }
    let handle = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_DIRECTORY | libc::O_CLOEXEC)
        .open(dir)
        .map_err(|e| DiskError::io(dir.display(), "open the directory", &e))?;
    // SAFETY: a plain call on an open file.
    if unsafe { libc::flock(handle.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } != 0 {
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::WouldBlock {
            return Err(DiskError::io(dir.display(), "lock the directory", &error));
        }
        return Err(DiskError::InUse { path: dir.display().to_string() });
    }
    let mut refused = String::new();
    let engine: Box<dyn Engine> = match backend {
        Backend::Threads => Box::new(Pool::new().map_err(|e| DiskError::io(dir.display(), "start I/O threads", &e))?),
        Backend::Auto | Backend::Ring => match Ring::new() {
            Ok(ring) => Box::new(ring),
            Err(e) if backend == Backend::Ring => return Err(DiskError::io(dir.display(), "set up io_uring", &e)),
            Err(e) => {
                refused = e.to_string();
                Box::new(Pool::new().map_err(|e| DiskError::io(dir.display(), "start I/O threads", &e))?)
            }
        },
    };
    let direct = allows_direct(dir).map_err(|e| DiskError::io(dir.display(), "write to the directory", &e))?;
    Ok((Arc::new(Real { dir: dir.into(), handle, direct, files: Mutex::default(), engine }), refused))
}

/// Whether the file system takes direct I/O. The file has no name, so nothing is left of it.
fn allows_direct(dir: &Path) -> io::Result<bool> {
    let open = |flags| OpenOptions::new().read(true).write(true).custom_flags(flags | libc::O_CLOEXEC).open(dir);
    let file = match open(libc::O_TMPFILE | libc::O_DIRECT) {
        Ok(file) => file,
        // No direct I/O, or no files without a name: both work without.
        Err(e) if matches!(e.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP | libc::EISDIR)) => return Ok(false),
        Err(e) => return Err(e),
    };
    Ok(file.write_all_at(&super::Aligned::new(BLOCK), 0).is_ok())
}

impl Real {
    fn enter(&self, file: File) -> FileId {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        files.0 += 1;
        let id = FileId(files.0);
        files.1.insert(id, Arc::new(file));
        id
    }

    fn options(&self) -> OpenOptions {
        let direct = if self.direct { libc::O_DIRECT } else { 0 };
        let mut options = OpenOptions::new();
        options.read(true).write(true).mode(0o600).custom_flags(direct | libc::O_CLOEXEC | libc::O_NOFOLLOW);
        options
    }

    fn make(&self, path: &Path, len: u64) -> io::Result<File> {
        let file = self.options().create(true).truncate(true).open(path)?;
        // SAFETY: a plain call on an open file.
        let taken = unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, len as libc::off_t) };
        if taken != 0 {
            return Err(io::Error::from_raw_os_error(taken));
        }
        file.sync_all()?;
        Ok(file)
    }
}

impl Device for Real {
    fn name(&self) -> &'static str {
        self.engine.name()
    }

    fn direct(&self) -> bool {
        self.direct
    }

    fn path(&self) -> String {
        self.dir.display().to_string()
    }

    fn list(&self) -> io::Result<Vec<(String, u64)>> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&self.dir)? {
            let entry = entry?;
            let facts = entry.metadata()?;
            let len = if facts.is_file() { facts.len() } else { 0 };
            names.push((entry.file_name().to_string_lossy().into_owned(), len));
        }
        names.sort_unstable();
        Ok(names)
    }

    fn open(&self, name: &str) -> io::Result<FileId> {
        Ok(self.enter(self.options().open(self.dir.join(name))?))
    }

    fn create(&self, name: &str, len: u64) -> io::Result<FileId> {
        let (path, begun) = (self.dir.join(name), self.dir.join(format!("{name}.new")));
        if path.exists() {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, format!("{name} is there already")));
        }
        let made = self.make(&begun, len).and_then(|file| {
            std::fs::rename(&begun, &path)?;
            self.handle.sync_all()?;
            Ok(file)
        });
        if made.is_err() {
            // The error that led here is the one to tell.
            let _ = std::fs::remove_file(&begun);
        }
        Ok(self.enter(made?))
    }

    fn close(&self, file: FileId) {
        self.files.lock().unwrap_or_else(PoisonError::into_inner).1.remove(&file);
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        std::fs::rename(self.dir.join(from), self.dir.join(to))?;
        self.handle.sync_all()
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        std::fs::remove_file(self.dir.join(name))
    }

    fn read_file(&self, name: &str, most: usize) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        File::open(self.dir.join(name))?.take(most as u64 + 1).read_to_end(&mut bytes)?;
        if bytes.len() > most {
            return Err(io::Error::new(io::ErrorKind::InvalidData, format!("{name} has more than {most} bytes")));
        }
        Ok(bytes)
    }

    fn replace_file(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let begun = self.dir.join(format!("{name}.new"));
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&begun)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::rename(&begun, self.dir.join(name))?;
        self.handle.sync_all()
    }

    fn alive(&self) -> io::Result<()> {
        let (there, open) = (std::fs::metadata(&self.dir)?, self.handle.metadata()?);
        if (there.dev(), there.ino()) != (open.dev(), open.ino()) {
            return Err(io::Error::new(io::ErrorKind::NotFound, "another directory has its name"));
        }
        Ok(())
    }

    fn submit(&self, op: Op) {
        let file = self.files.lock().unwrap_or_else(PoisonError::into_inner).1.get(&op.file).cloned();
        match file {
            Some(file) => self.engine.start(op, file),
            None => op.fail(io::Error::new(io::ErrorKind::NotFound, "the file was closed")),
        }
    }
}
