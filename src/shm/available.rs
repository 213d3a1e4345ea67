//! How much memory a file can still take: what its file system, the machine and the control groups of this process have left.
//!
//! Asked before memory is taken. tmpfs takes it page by page from the machine, and when the last is gone processes are ended
//! or everything hangs, however large the file system says it is. Whatever cannot be found out does not limit.

use crate::memory::{self, SPARED};
use std::fs::File;
use std::mem::zeroed;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;

const RAMFS_MAGIC: u64 = 0x8584_58f6;

/// Bytes that can be had; `None`: not limited, or not known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Available {
    /// In the file system.
    pub file_system: Option<u64>,
    /// Of the machine's memory, for a file system that lives in it.
    pub machine: Option<u64>,
    /// Below the memory limits of this process's control groups, for such a file system.
    pub group: Option<u64>,
}

impl Available {
    /// What there is for `file` now.
    pub fn now(file: &File) -> Available {
        let in_memory = is_in_memory(file);
        Available {
            file_system: room(file),
            machine: in_memory.then(memory::machine_left).flatten(),
            group: in_memory.then(memory::group_left).flatten(),
        }
    }

    /// Why `bytes` more cannot be taken; `None` if they can.
    pub fn short_of(&self, bytes: u64) -> Option<String> {
        let spared = |left: u64| left.saturating_sub(SPARED);
        let limits = [
            (self.file_system, "its file system has room for"),
            (self.machine.map(spared), "the machine (MemAvailable of /proc/meminfo) can spare"),
            (self.group.map(spared), "the memory limit of this process's control group leaves"),
        ];
        let short = limits.into_iter().find(|(left, _)| left.is_some_and(|left| left < bytes));
        short.map(|(left, who)| format!("it takes {bytes} more, and {who} {}", left.unwrap_or_default()))
    }
}

/// Bytes that a file has taken already.
pub fn taken(file: &File) -> u64 {
    file.metadata().map_or(0, |facts| facts.blocks() * 512)
}

fn room(file: &File) -> Option<u64> {
    // SAFETY: `facts` is plain data that the call fills.
    let facts = unsafe {
        let mut facts: libc::statvfs = zeroed();
        (libc::fstatvfs(file.as_raw_fd(), &mut facts) == 0).then_some(facts)?
    };
    // A tmpfs without a size has no blocks.
    (facts.f_blocks > 0).then(|| (facts.f_bavail as u64).saturating_mul(facts.f_frsize as u64))
}

/// tmpfs and ramfs. Pages of hugetlbfs were set aside before, and are its room.
fn is_in_memory(file: &File) -> bool {
    // SAFETY: as above.
    unsafe {
        let mut facts: libc::statfs = zeroed();
        let asked = libc::fstatfs(file.as_raw_fd(), &mut facts) == 0;
        asked && [libc::TMPFS_MAGIC as u64, RAMFS_MAGIC].contains(&(facts.f_type as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_short_is_named_with_its_numbers() {
        let (ample, gib) = (Some(1 << 40), 1 << 30);
        let all = Available { file_system: ample, machine: ample, group: ample };
        assert_eq!(all.short_of(gib), None);
        assert_eq!(Available::default().short_of(u64::MAX), None, "what is not known does not limit");
        let words = |available: Available| available.short_of(gib).unwrap();
        let exact = Available { file_system: Some(gib), ..all };
        assert_eq!(exact.short_of(gib), None);
        assert_eq!(
            words(Available { file_system: Some(gib - 1), ..all }),
            "it takes 1073741824 more, and its file system has room for 1073741823"
        );
        let spared = Available { machine: Some(gib + SPARED), group: Some(gib + SPARED), ..all };
        assert_eq!(spared.short_of(gib), None);
        assert!(
            words(Available { machine: Some(gib), ..all })
                .ends_with("(MemAvailable of /proc/meminfo) can spare 1006632960")
        );
        assert!(words(Available { group: Some(7), ..all }).ends_with("control group leaves 0"));
    }
}
