//! What grows with the number of objects: opening a directory, the index, and the processor time of single operations.
//!
//! Objects have one block, the least there is. Opening reads no values, so once they are sealed their bytes are given back
//! to the file system (holes in the segments' files): 10^6 objects need 100 MB for headers and footers instead of 4 GiB.

use super::{Dice, Puts, Settings, gets, id, place, seal, segments};
use crate::common::{cpu_ns, figure, resident_bytes};
use mimo_cache::disk::{Disk, DiskConfig};
use mimo_cache::shm::ChainKey;
use serde_json::Value;
use std::fs::OpenOptions;
use std::os::fd::AsRawFd;
use std::path::Path;

const BLOCK: u64 = 4096;
/// Objects whose bytes are on disk at the same time.
const PASS: u64 = 250_000;
/// With so many the goals are meant.
const JUDGED: u64 = 1_000_000;
/// Objects that single operations are timed with, the last ones put.
const TIMED: u64 = 10_000;
/// Blocks before the first group of a segment of 64 MiB (`docs/format.md`).
const HEAD_BLOCKS: u64 = 5;
/// Most blocks of its footer: 64 bytes for each of 16,384 blocks, and one.
const FOOT_BLOCKS: u64 = 257;

pub fn run(settings: &Settings) -> Vec<Value> {
    let most = settings.entries;
    // A fortieth for headers, a 64th for footers, and what is free or open.
    let capacity = most * BLOCK / 20 * 21 + (1 << 30);
    let config = DiskConfig::new(settings.root.path().join("growing"), capacity);
    let mut disk = Disk::open(&config).expect("a new directory").0;
    let mut puts = Puts::new(0, BLOCK as usize);
    let mut figures = Vec::new();
    let steps = (0..).map(|n| 10u64.pow(4 + n)).take_while(|n| *n < most).chain([most]);
    for count in steps {
        while puts.next + TIMED < count {
            let pass = (count - TIMED - puts.next).min(PASS);
            puts.fill(&disk, pass);
            punch(&config.dir);
        }
        let cpu = |per: u64, work: &mut dyn FnMut()| {
            let start = cpu_ns();
            work();
            (cpu_ns() - start) as f64 / per as f64 / 1e3
        };
        let put = cpu(TIMED, &mut || {
            puts.run(&disk, |given, _| given >= TIMED);
        });
        seal(&disk);
        let (mut dice, first) = (Dice(3), count - TIMED);
        let get = cpu(TIMED, &mut || {
            gets(&disk, BLOCK as usize, 32, || first + dice.below(TIMED), |got, _| got >= TIMED);
        });
        let keys: Vec<ChainKey> = (0..TIMED).map(|_| id(dice.below(count)).key).collect();
        let exists = cpu(TIMED, &mut || assert!(disk.exists(1, &keys).iter().all(|mask| *mask == 1)));
        for (name, value) in [("put", put), ("get", get), ("exists", exists)] {
            figures.push(figure(&format!("growth_{name}_{count}"), "us", &[value]));
        }
        drop(disk);
        let (opened, seen) = reopen(settings.runs, &config, count);
        disk = opened;
        if count == most.min(JUDGED) {
            for (figure, name) in seen.iter().zip(["recovery", "index_bytes"]) {
                let mut judged = figure.clone();
                judged["name"] = name.into();
                figures.push(judged);
            }
        }
        figures.extend(seen);
    }
    drop(disk);
    place::remove(&config.dir);
    figures
}

/// Opens the directory some times, the last time to stay.
fn reopen(runs: usize, config: &DiskConfig, count: u64) -> (Disk, Vec<Value>) {
    let (mut times, mut resident, mut last) = (Vec::new(), 0.0, None);
    for _ in 0..runs {
        drop(last.take());
        trim();
        let before = resident_bytes();
        let (disk, found) = Disk::open(config).expect("the directory it was");
        assert_eq!((found.objects, found.walked, found.damaged.len()), (count, 0, 0), "{found:?}");
        times.push(found.elapsed.as_secs_f64());
        trim();
        resident = resident_bytes().saturating_sub(before) as f64 / count as f64;
        last = Some(disk);
    }
    let disk = last.expect("there is one run at least");
    let counted = disk.stats().index_bytes as f64 / count as f64;
    let figures = vec![
        figure(&format!("recovery_{count}"), "s", &times),
        figure(&format!("index_bytes_{count}"), "B", &[counted]),
        figure(&format!("index_resident_{count}"), "B", &[resident]),
    ];
    (disk, figures)
}

/// Memory that was given back must not serve anybody unseen.
fn trim() {
    #[cfg(target_env = "gnu")]
    // SAFETY: no preconditions.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Gives the bytes of values in all segments back to the file system.
fn punch(dir: &Path) {
    for path in segments(dir) {
        let file = OpenOptions::new().write(true).open(path).expect("a segment");
        let len = file.metadata().expect("a file").len();
        let (from, until) = (HEAD_BLOCKS * BLOCK, len - FOOT_BLOCKS * BLOCK);
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: a plain call on an open file.
        let done = unsafe { libc::fallocate(file.as_raw_fd(), mode, from as i64, (until - from) as i64) };
        assert_eq!(done, 0, "a file system that takes holes: {}", std::io::Error::last_os_error());
    }
}
