//! Where the files are, and that none of them stays.

use std::path::{Path, PathBuf};

/// A directory of this process, removed when dropped.
pub struct Root(PathBuf);

impl Root {
    /// A new one under `dir`.
    pub fn new(dir: Option<&str>) -> Root {
        let dir = dir.map_or_else(std::env::temp_dir, PathBuf::from);
        let root = dir.join(format!("mimo-bench-{}", std::process::id()));
        std::fs::create_dir(&root).unwrap_or_else(|e| panic!("cannot make {}: {e}", root.display()));
        Root(root)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        remove(&self.0);
    }
}

/// Removes a directory with all that is in it.
pub fn remove(dir: &Path) {
    if let Err(e) = std::fs::remove_dir_all(dir) {
        eprintln!("disk: {} could not be removed: {e}", dir.display());
    }
}

/// On SIGINT, SIGTERM and SIGHUP the directory goes, and the process with it. To be called before any thread is started:
/// they inherit that these signals are blocked.
pub fn remove_when_interrupted(root: &Path) {
    // SAFETY: `set` is a valid place, and initialised by the first call.
    let set = unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
            libc::sigaddset(&mut set, signal);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
        set
    };
    let root = root.to_path_buf();
    std::thread::spawn(move || {
        let mut signal = 0;
        // SAFETY: both are valid places.
        unsafe { libc::sigwait(&set, &mut signal) };
        // Files that are made meanwhile end the first try; nothing makes them for long.
        while root.exists() && std::fs::remove_dir_all(&root).is_err() {}
        std::process::exit(128 + signal);
    });
}
