//! The disk tier on real files with both backends. Where the kernel refuses io_uring its half is left out, and said.
//!
//! This test binary starts itself again as a child that is killed. `MIMO_SOAK` multiplies the rounds.
#![cfg(all(feature = "gcache", target_os = "linux"))]

mod disk;

use disk::*;
use mimo_cache::disk::{Aligned, Backend, Disk, DiskConfig, DiskError, PutOutcome, State, Target, Worker};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

const JOB: &str = "MIMO_TEST_DISK_JOB";
const MIB: u64 = 1 << 20;

fn real(dir: &Path, backend: Backend) -> DiskConfig {
    DiskConfig { segment_bytes: MIB as u32, backend, ..DiskConfig::new(dir, 24 * MIB) }
}

/// Runs a test with each backend that there is.
fn each(test: impl Fn(Backend, &Path)) {
    for backend in [Backend::Threads, Backend::Ring] {
        let dir = TempDir::new(if backend == Backend::Ring { "ring" } else { "threads" });
        let probe = TempDir::new("probe");
        if backend == Backend::Ring
            && let Err(DiskError::Io { action: "set up io_uring", message, .. }) =
                Disk::open(&real(probe.path(), backend))
        {
            println!("left out: the kernel refuses io_uring ({message})");
            continue;
        }
        test(backend, dir.path());
    }
}

/// Opening fails while callbacks of the last owner still run.
fn open_soon(config: &DiskConfig) -> (Disk, mimo_cache::disk::DiskRecovery) {
    for _ in 0..2000 {
        match Disk::open(config) {
            Err(DiskError::InUse { .. }) => std::thread::sleep(Duration::from_millis(1)),
            other => return other.unwrap(),
        }
    }
    panic!("still in use");
}

#[test]
fn values_come_back_after_a_restart() {
    each(|backend, dir| {
        let config = real(dir, backend);
        let lengths = [1, 4096, 4097, 100_000, 300_000, 900_000, 5000, 12_288];
        for round in 0..3u64 {
            let (disk, report) = open_soon(&config);
            assert_eq!((report.created, report.objects), (round == 0, round * 8), "{report:?}");
            assert_eq!(report.backend, if backend == Backend::Ring { "io_uring" } else { "threads" });
            let batch: Vec<_> = lengths
                .iter()
                .enumerate()
                .map(|(n, &len)| (id(round * 8 + n as u64, (n * 5) as u8), value(round * 8 + n as u64, len)))
                .collect();
            for (name, bytes) in &batch {
                put_soon(&disk, *name, bytes);
            }
            for n in 0..(round + 1) * 8 {
                let (name, len) = (id(n, (n % 8 * 5) as u8), lengths[(n % 8) as usize]);
                for way in 0..3 {
                    assert!(get_as(&disk, &name, way).unwrap().1 == value(n, len), "{len} bytes");
                }
            }
            if round == 1 {
                seal(&disk).unwrap();
            }
            disk.check_integrity().unwrap();
        }
    });
}

#[test]
fn many_threads_put_read_and_delete_while_segments_are_reclaimed() {
    each(|backend, dir| {
        let (disk, _) = Disk::open(&real(dir, backend)).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let disk = &disk;
                scope.spawn(move || {
                    for n in 0..200 {
                        let n = thread * 1_000_000 + n;
                        let len = [4096, 9000, 70_000, 300_000][(mix(n, 1) % 4) as usize];
                        let name = id(n, if n.is_multiple_of(3) { 40 } else { 2 });
                        put_soon(disk, name, &value(n, len));
                        let back = n - mix(n, 2) % 10 % (n % 1_000_000 + 1);
                        let older = id(back, if back.is_multiple_of(3) { 40 } else { 2 });
                        match get_as(disk, &older, mix(n, 3)) {
                            Ok((found, bytes)) => assert!(bytes == value(back, found.len as usize)),
                            Err(e) => assert!(matches!(e, DiskError::Missing), "{e}"),
                        }
                        if n % 5 == 0 {
                            let (send, receive) = channel();
                            disk.delete(TENANT, &[older], move |r| drop(send.send(r)));
                            receive.recv().unwrap().unwrap();
                            assert!(matches!(get_as(disk, &older, 0), Err(DiskError::Missing)));
                        }
                    }
                });
            }
        });
        assert_eq!(disk.state(), State::Serving);
        let stats = disk.stats();
        assert!(stats.totals.reclaimed > 5 && stats.totals.hits > 300 && stats.totals.damaged == 0, "{stats:?}");
        assert_eq!(stats.reads_in_flight, 0);
        disk.check_integrity().unwrap();
    });
}

#[test]
fn a_second_owner_is_refused_and_says_why() {
    each(|backend, dir| {
        let first = Disk::open(&real(dir, backend)).unwrap();
        let words = Disk::open(&real(dir, backend)).map(drop).unwrap_err().to_string();
        assert!(words.contains("is in use by another process; stop it, or give"), "{words}");
        let mut child = child("open", dir);
        let lines: Vec<String> = said(&mut child).collect();
        child.wait().unwrap();
        let line = &lines[0];
        assert!(line.contains("is in use by another process"), "{line}");
        drop(first);
        open_soon(&real(dir, backend));
    });
}

#[test]
fn a_foreign_directory_is_left_as_it_is() {
    each(|backend, dir| {
        std::fs::create_dir_all(dir).unwrap();
        let foreign = dir.join("photo.jpg");
        std::fs::write(&foreign, b"holiday").unwrap();
        let words = Disk::open(&real(dir, backend)).map(drop).unwrap_err().to_string();
        assert!(words.contains("photo.jpg") && words.contains("empty directory"), "{words}");
        assert_eq!(std::fs::read_dir(dir).unwrap().count(), 1);
        assert_eq!(std::fs::read(&foreign).unwrap(), b"holiday");
        let words = Disk::open(&real(&dir.join("no/parent"), backend)).map(drop).unwrap_err().to_string();
        assert!(words.contains("cannot make the directory"), "{words}");
    });
}

#[test]
fn a_directory_that_is_removed_is_noticed_and_a_file_that_is_cut_is_an_error() {
    each(|backend, dir| {
        let config = DiskConfig { worker: Worker::Caller, ..real(dir, backend) };
        let (disk, _) = Disk::open(&config).unwrap();
        put_soon(&disk, id(1, 0), &value(1, 100_000));
        let segment = |n: u32| dir.join(format!("segment-{n:08x}"));
        for n in 0..3 {
            std::fs::OpenOptions::new().write(true).open(segment(n)).unwrap().set_len(4096).unwrap();
        }
        assert!(matches!(get_as(&disk, &id(1, 0), 0), Err(DiskError::Io { .. } | DiskError::Damaged)));
        std::fs::remove_dir_all(dir).unwrap();
        disk.tick(1);
        work(&disk);
        assert!(matches!(disk.state(), State::Offline(why) if why.contains("directory is gone")));
        assert!(matches!(put(&disk, id(2, 0), &value(2, 10)), PutOutcome::Failed(DiskError::Offline(_))));
    });
}

#[test]
fn reads_and_writes_are_direct_where_the_file_system_allows() {
    each(|backend, dir| {
        let (disk, _) = Disk::open(&real(dir, backend)).unwrap();
        put_soon(&disk, id(1, 0), &value(1, 500_000));
        let (send, receive) = channel();
        let target = Aligned::new(500_000);
        let start = target.as_ptr() as usize;
        disk.get(TENANT, &id(1, 0), Target::Buffer(target), move |r| drop(send.send(r)));
        let found = receive.recv().unwrap().unwrap().verify().unwrap();
        assert!(found.bytes() == value(1, 500_000) && found.buffer.as_ptr() as usize == start);
        println!("direct: {}", disk.stats().direct);
    });
}

fn child(job: &str, dir: &Path) -> std::process::Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_process", "--nocapture", "--test-threads=1"])
        .env(JOB, format!("{job} {}", dir.display()))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// What a child says; the test harness writes to the same line.
fn said(child: &mut std::process::Child) -> impl Iterator<Item = String> + use<> {
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    lines.filter_map(|l| l.split_once('@').map(|(_, said)| said.to_string()))
}

fn say(line: &str) {
    std::io::stdout().write_all(format!("@{line}\n").as_bytes()).unwrap();
    std::io::stdout().flush().unwrap();
}

/// Does nothing but in a child.
#[test]
fn child_process() {
    let Ok(job) = std::env::var(JOB) else { return };
    let words: Vec<&str> = job.split(' ').collect();
    let dir = Path::new(words[1]);
    match words[0] {
        "open" => say(&Disk::open(&real(dir, Backend::Auto)).map_or_else(|e| e.to_string(), |_| "opened".into())),
        "ring" => write_until_killed(&real(dir, Backend::Ring)),
        _ => write_until_killed(&real(dir, Backend::Threads)),
    }
}

/// Says what was promised, after it was.
fn write_until_killed(config: &DiskConfig) {
    let (disk, _) = open_soon(config);
    let first = disk.stats().totals.stored + std::process::id() as u64 * 100_000;
    for n in first.. {
        let len = [500, 4096, 40_000, 260_000][(mix(n, 1) % 4) as usize];
        let name = id(n, if n.is_multiple_of(4) { 40 } else { 0 });
        put_soon(&disk, name, &value(n, len));
        say(&format!("put {n} {len}"));
        if n % 3 == 0 && n > first + 3 {
            let old = n - mix(n, 2) % 4;
            let name = id(old, if old.is_multiple_of(4) { 40 } else { 0 });
            say(&format!("deleting {old}"));
            delete(&disk, &[name]).unwrap();
            say(&format!("deleted {old}"));
        }
    }
}

#[test]
fn killed_again_and_again_nothing_accepted_is_lost_and_nothing_deleted_is_back() {
    each(|backend, dir| {
        // Puts of the last rounds: bytes, and whether a delete was begun or answered.
        let mut known: BTreeMap<u64, (usize, &str)> = BTreeMap::new();
        for round in 0..6 * number("MIMO_SOAK", 1) {
            let mut child = child(if backend == Backend::Ring { "ring" } else { "threads" }, dir);
            let stop = 40 + mix(round, 1) % 60;
            let mut saying = said(&mut child);
            let mut lines: Vec<String> = saying.by_ref().take(stop as usize).collect();
            child.kill().unwrap();
            // What it said before it was killed is as true.
            lines.extend(saying);
            child.wait().unwrap();
            for line in lines {
                let words: Vec<&str> = line.split(' ').collect();
                let n: u64 = words[1].parse().unwrap();
                match words[0] {
                    "put" => drop(known.insert(n, (words[2].parse().unwrap(), "put"))),
                    "deleting" => drop(known.get_mut(&n).map(|k| k.1 = "deleting")),
                    _ => drop(known.get_mut(&n).map(|k| k.1 = "deleted")),
                }
            }
            let (disk, report) = open_soon(&DiskConfig { worker: Worker::Caller, ..real(dir, backend) });
            assert_eq!(report.damaged, Vec::<String>::new());
            let newest = known.keys().next_back().copied().unwrap_or(0);
            for (&n, &(len, state)) in &known {
                let name = id(n, if n.is_multiple_of(4) { 40 } else { 0 });
                match get_as(&disk, &name, n) {
                    Ok((_, bytes)) => {
                        assert!(state != "deleted" && bytes == value(n, len), "round {round}: {n} {state}")
                    }
                    // What is older than the tier is large may have been reclaimed.
                    Err(e) => assert!(state != "put" || n + 60 < newest, "round {round}: {n} is gone: {e}"),
                }
            }
            disk.check_integrity().unwrap();
        }
        assert!(known.len() > 100, "{}", known.len());
    });
}
