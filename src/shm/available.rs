//! How much memory a file can still take: what its file system, the machine and the control groups of this process have left.
//!
//! Asked before memory is taken. tmpfs takes it page by page from the machine, and when the last is gone processes are ended
//! or everything hangs, however large the file system says it is. Whatever cannot be found out does not limit.

use std::fs::File;
use std::mem::zeroed;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

const RAMFS_MAGIC: u64 = 0x8584_58f6;
/// Kept free for everybody else: a machine or group without any does not work.
const SPARED: u64 = 64 << 20;

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
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        Available {
            file_system: room(file),
            machine: in_memory.then(|| mem_available(&read("/proc/meminfo"))).flatten(),
            group: in_memory.then(|| groups(Path::new("/sys/fs/cgroup"), &read("/proc/self/cgroup"))).flatten(),
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

/// `MemAvailable`, in bytes.
fn mem_available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// The least that the control groups in `list` (`/proc/self/cgroup`) leave, those around them included. Version 2, and the
/// memory controller of version 1.
fn groups(root: &Path, list: &str) -> Option<u64> {
    let mut least = None;
    for line in list.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let (root, files) = match controllers {
            "" => (root.to_path_buf(), &VERSION_2),
            list if list.split(',').any(|c| c == "memory") => (root.join("memory"), &VERSION_1),
            _ => continue,
        };
        let own = root.join(path.trim_start_matches('/'));
        // Within a container the path may be of the world outside; what is mounted at the root then is its own group.
        for group in own.ancestors().take_while(|group| group.starts_with(&root)) {
            if let Some(left) = left_in(group, files) {
                least = Some(least.map_or(left, |least: u64| least.min(left)));
            }
        }
    }
    least
}

struct GroupFiles {
    limit: &'static str,
    usage: &'static str,
    /// Of `memory.stat`: what is given up when memory is short.
    given_up: [&'static str; 2],
}

const VERSION_2: GroupFiles =
    GroupFiles { limit: "memory.max", usage: "memory.current", given_up: ["inactive_file", "active_file"] };
const VERSION_1: GroupFiles = GroupFiles {
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    given_up: ["total_inactive_file", "total_active_file"],
};

fn left_in(group: &Path, files: &GroupFiles) -> Option<u64> {
    let read = |name: &str| std::fs::read_to_string(group.join(name)).ok();
    let number = |name: &str| read(name)?.trim().parse::<u64>().ok();
    // Version 2 says "max" where there is no limit, version 1 a number that no machine has.
    let (limit, usage) = (number(files.limit)?, number(files.usage)?);
    let stat = read("memory.stat").unwrap_or_default();
    let field = |name: &&str| stat.lines().find_map(|l| l.strip_prefix(*name)?.strip_prefix(' ')?.parse::<u64>().ok());
    let given_up: u64 = files.given_up.iter().filter_map(field).sum();
    Some(limit.saturating_sub(usage.saturating_sub(given_up)))
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

    #[test]
    fn the_machine_is_read() {
        let text = "MemTotal:       24683652 kB\nMemFree:         123 kB\nMemAvailable:   23055636 kB\nBuffers: 0 kB\n";
        assert_eq!(mem_available(text), Some(23_055_636 * 1024));
        for text in
            ["", "MemAvailable:", "MemAvailable: x kB", "MemAvailable: 1", "MemAvailable: 99999999999999999999 kB"]
        {
            assert_eq!(mem_available(text), None, "{text:?}");
        }
    }

    #[test]
    fn the_tightest_group_counts() {
        let root = std::env::temp_dir().join(format!("mimo-groups-{}", std::process::id()));
        let write = |group: &str, name: &str, text: &str| {
            let folder = root.join(group);
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join(name), text).unwrap();
        };
        write("pod/node", "memory.max", "max\n");
        write("pod/node", "memory.current", "100\n");
        write("pod", "memory.max", "1000\n");
        write("pod", "memory.current", "700\n");
        write("pod", "memory.stat", "anon 1\ninactive_file 50\nactive_file 30\ninactive_file_of_others 9\n");
        write("memory/old", "memory.limit_in_bytes", "9223372036854771712\n");
        write("memory/old", "memory.usage_in_bytes", "5\n");
        assert_eq!(groups(&root, "0::/pod/node\n"), Some(380));
        assert_eq!(groups(&root, "4:cpu,memory:/old\n3:cpuset:/\n"), Some(9_223_372_036_854_771_707));
        assert_eq!(groups(&root, "4:memory:/old\n0::/pod\n"), Some(380));
        assert_eq!(groups(&root, "0::/elsewhere\nno group\n"), None);
        write("memory", "memory.limit_in_bytes", "40\n");
        write("memory", "memory.usage_in_bytes", "60\n");
        assert_eq!(groups(&root, "4:memory:/outside/of/here\n"), Some(0));
        std::fs::remove_dir_all(root).unwrap();
    }
}
