//! Processes that are killed or stopped at random points: this test binary starts itself again as a child.
//!
//! `MIMO_SOAK` multiplies the rounds, `MIMO_SEED` moves them. What was committed, and not given up for deletion, must be
//! there when the next process attaches; what was deleted must not; nothing may be torn.
#![cfg(all(feature = "gcache", target_os = "linux"))]

mod shm;

use mimo_cache::shm::{BootId, ReadFault, Reader, SharedRef, Store, StoreConfig};
use shm::*;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

const JOB: &str = "MIMO_TEST_SHM_JOB";
const THREADS: u64 = 3;

fn child(job: &str, path: &Path, more: &str) -> (Child, ChildStdin, BufReader<ChildStdout>) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_process", "--nocapture", "--test-threads=1"])
        .env(JOB, format!("{job} {} {more}", path.display()))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    (child, input, BufReader::new(output))
}

fn signal(child: &Child, signal: i32) {
    // SAFETY: a plain call; the child was started here and was not waited for.
    assert_eq!(unsafe { libc::kill(child.id() as i32, signal) }, 0);
}

/// Does nothing but in a child.
#[test]
fn child_process() {
    let Ok(job) = std::env::var(JOB) else { return };
    let words: Vec<&str> = job.split(' ').collect();
    match words[0] {
        "write" => write_until_killed(Path::new(words[1]), words[2].parse().unwrap(), words[3].parse().unwrap()),
        "read" => read_again_and_again(Path::new(words[1])),
        "attach" => {
            let config = config(Path::new(words[1]), words[2].parse().unwrap());
            say(&Store::open(&config, BOOT).map_or_else(|e| e.to_string(), |_| "attached".into()));
        }
        other => panic!("{other}"),
    }
}

/// One line, at once: a pipe takes short writes whole, also from several threads.
fn say(line: &str) {
    std::io::stdout().write_all(format!("@{line}\n").as_bytes()).unwrap();
    std::io::stdout().flush().unwrap();
}

fn len_of(seed: u64) -> usize {
    1 + (mix(seed, 4) % [3000, 20_000, 200_000][(seed % 3) as usize]) as usize
}

fn write_until_killed(path: &Path, size: u64, seed: u64) {
    let (store, _) = open(&config(path, size));
    say("ready");
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let store = store.clone();
            scope.spawn(move || {
                for step in 0.. {
                    // Each thread has objects of its own, so that what it says of one is in order.
                    let n = thread + THREADS * (mix(seed, mix(thread, step)) % 40);
                    if mix(seed, step).is_multiple_of(4) {
                        say(&format!("deleting {n}"));
                        store.delete(1, &[id(n, 0)]);
                        say(&format!("deleted {n}"));
                    } else {
                        let fresh = mix(seed, 1000 + step);
                        let bytes = value(fresh, len_of(fresh));
                        if put(&store, &meta(n, bytes.len() as u64), &bytes) == Done::Stored {
                            say(&format!("committed {n} {fresh}"));
                        }
                    }
                }
            });
        }
    });
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    There(u64),
    Deleting,
    Gone,
}

/// Follows what a child says until its end.
fn listen(output: impl BufRead, fates: &mut BTreeMap<u64, Fate>, stop_after: u64, mut stop: impl FnMut()) -> u64 {
    let mut count = 0;
    for line in output.split(b'\n').map(|l| String::from_utf8(l.unwrap()).unwrap()) {
        let Some((_, line)) = line.split_once('@') else { continue };
        let words: Vec<&str> = line.split(' ').collect();
        let number = |n: usize| words[n].parse::<u64>().unwrap();
        match words[0] {
            "committed" => fates.insert(number(1), Fate::There(number(2))),
            "deleting" => fates.insert(number(1), Fate::Deleting),
            "deleted" => fates.insert(number(1), Fate::Gone),
            _ => None,
        };
        count += 1;
        if count == stop_after {
            stop();
        }
    }
    count
}

/// Compares the store with what the child said. Objects may only be missing when `evicted` says so. A put whose word was
/// not heard may be there; it has some value of this test then.
fn compare(store: &Store, fates: &mut BTreeMap<u64, Fate>, evictions: bool) -> usize {
    store.check_integrity().unwrap();
    let mut there = 0;
    for n in 0..THREADS * 40 {
        let found = store.get(1, &id(n, 0));
        assert!(found.as_ref().is_none_or(|f| f.verify()), "object {n} is torn");
        there += usize::from(found.is_some());
        match (fates.get(&n).copied(), found) {
            (Some(Fate::There(seed)), Some(f)) => {
                let expected = value(seed, len_of(seed));
                assert!(evictions || *f == expected, "object {n} has other bytes than were committed");
            }
            (Some(Fate::There(_)), None) => assert!(evictions, "object {n} was committed and is lost"),
            (_, Some(f)) => assert_eq!(store.delete(1, &[*f.id()]), 1),
            (_, None) => {}
        }
    }
    fates.retain(|_, fate| matches!(fate, Fate::There(_)));
    there
}

fn rounds(size: u64, evictions: bool, seed: u64) {
    let file = TempFile::new("kill");
    let mut fates = BTreeMap::new();
    let (mut heard, mut there) = (0, 0);
    for round in 0..10 * number("MIMO_SOAK", 1) {
        let seed = mix(mix(number("MIMO_SEED", 1), seed), round);
        let (mut child, _input, output) = child("write", file.path(), &format!("{size} {seed}"));
        let stop_after = 1 + mix(seed, 1) % 300;
        heard += listen(output, &mut fates, stop_after, || {
            std::thread::sleep(Duration::from_micros(mix(seed, 2) % 3000));
            signal(&child, libc::SIGKILL);
        });
        child.wait().unwrap();
        let (store, found) = open(&config(file.path(), size));
        assert_eq!((found.damaged_headers, found.damaged_spans, found.duplicates), (0, 0, 0), "{found:?}");
        assert!(found.unfinished <= THREADS, "{found:?}");
        there += compare(&store, &mut fates, evictions);
    }
    assert!(heard > 200 && there > 100, "{heard} lines heard, {there} objects found");
}

#[test]
fn a_writer_killed_at_any_point_loses_nothing_that_was_committed() {
    rounds(32 << 20, false, 1);
}

#[test]
fn a_writer_killed_while_it_evicts_leaves_nothing_torn() {
    rounds(2 << 20, true, 2);
}

#[test]
fn a_second_process_is_refused_until_the_first_is_gone() {
    let file = TempFile::new("second");
    let (mut first, _input, mut output) = child("write", file.path(), &format!("{} 1", 8 << 20));
    let mut line = String::new();
    while !line.contains("@ready") {
        line.clear();
        assert!(output.read_line(&mut line).unwrap() > 0);
    }
    let drained = std::thread::spawn(move || output.read_to_end(&mut Vec::new()));
    let attach = || {
        let (mut second, _input, mut output) = child("attach", file.path(), &(8 << 20).to_string());
        let mut said = String::new();
        output.read_to_string(&mut said).unwrap();
        assert!(second.wait().unwrap().success());
        said
    };
    let said = attach();
    assert!(
        said.contains(&format!("in use by another process (the last to attach was process {})", first.id())),
        "{said}"
    );
    signal(&first, libc::SIGKILL);
    first.wait().unwrap();
    drained.join().unwrap().unwrap();
    assert!(attach().contains("@attached"));
}

/// Lines of numbers come in, each names a value; what became of the copy goes out.
fn read_again_and_again(path: &Path) {
    let reader = Reader::new(&std::fs::File::open(path).unwrap()).unwrap();
    say("ready");
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let n: Vec<u64> = line.split(' ').map(|w| w.parse().unwrap()).collect();
        let at =
            SharedRef { offset: n[1], len: n[2], header_at: n[3], header_word: n[4], span_at: n[5], span_word: n[6] };
        let crcs: Vec<u32> = n[7..].iter().map(|c| *c as u32).collect();
        let mut copy = vec![0; n[2] as usize];
        say("copying");
        let outcome = reader.copy(&at, &crcs, &mut [&mut copy], || true);
        let right = copy == value(n[0], copy.len());
        say(&format!("{} {right}", outcome.map_or_else(|f| format!("{f:?}"), |()| "Copied".into())));
    }
}

/// The reader is stopped in the middle of a copy, the slot gets another value, and the reader goes on.
#[test]
fn a_reader_stopped_in_mid_copy_while_its_slot_is_reused_notices() {
    const LEN: usize = 24 << 20;
    let file = TempFile::new("stopped");
    let config = StoreConfig { slab_bytes: 1 << 20, ..config(file.path(), 27 << 20) };
    let (store, _) = Store::open(&config, BootId([3; 16])).unwrap();
    put_n(&store, 0, LEN);
    let (mut reader, mut input, mut output) = child("read", file.path(), "");
    let mut heard = |word: &str| {
        let mut line = String::new();
        while !line.contains(word) {
            line.clear();
            assert!(output.read_line(&mut line).unwrap() > 0, "the reader has ended");
        }
        line
    };
    heard("@ready");
    let mut outcomes = BTreeMap::new();
    for n in 0..12 * number("MIMO_SOAK", 1) {
        let pinned = store.get(1, &id(n, 0)).unwrap();
        let (at, crcs) = (pinned.shared_ref(), pinned.crcs().to_vec());
        drop(pinned);
        let mut line = format!("{n} {} {} {} {}", at.offset, at.len, at.header_at, at.header_word);
        line += &format!(" {} {}", at.span_at, at.span_word);
        crcs.iter().for_each(|c| line += &format!(" {c}"));
        writeln!(input, "{line}").unwrap();
        heard("@copying");
        std::thread::sleep(Duration::from_micros(mix(number("MIMO_SEED", 1), n) % 9000));
        signal(&reader, libc::SIGSTOP);
        let reuse = n % 4 > 0;
        if reuse {
            assert_eq!(put_n(&store, n + 1, LEN), Done::Stored);
            assert_eq!(store.get(1, &id(n + 1, 0)).unwrap().shared_ref().offset, at.offset, "the same slot");
        }
        signal(&reader, libc::SIGCONT);
        let said = heard("@").trim().to_string();
        assert!(said.ends_with("Copied true") || said.contains(&format!("{:?}", ReadFault::Gone)) && reuse, "{said}");
        *outcomes.entry(said).or_insert(0) += 1;
        if !reuse {
            store.delete(1, &[id(n, 0)]);
            assert_eq!(put_n(&store, n + 1, LEN), Done::Stored);
        }
    }
    drop(input);
    reader.wait().unwrap();
    assert!(outcomes.len() > 1, "every copy had the same end: {outcomes:?}");
}
