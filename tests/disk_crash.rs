//! Crashes and faults at every write, sync and change of a name of a small workload.
//!
//! After each, the next process serves only whole, right values, everything sealed, after `kill -9` also everything
//! accepted, and nothing that was deleted. `MIMO_SOAK` multiplies the seeds of power losses and flips.
#![cfg(all(feature = "gcache", target_os = "linux"))]

mod disk;

use disk::script::Script;
use disk::{id, mix, number};
use mimo_cache::disk::State;
use mimo_cache::disk::memory::{Crash, Fault, Memory};

fn run(faults: &[(u64, Fault)]) -> Script {
    let device = Memory::new();
    faults.iter().for_each(|&(event, fault)| device.fail(event, fault));
    let mut script = Script::new(device);
    script.run();
    script
}

fn events() -> u64 {
    let script = run(&[]);
    script.check();
    script.device.counted().0
}

#[test]
fn the_workload_meets_what_it_is_for() {
    let script = run(&[]);
    script.check();
    let stats = script.disk.as_ref().unwrap().stats();
    let totals = stats.totals;
    assert!(totals.reclaimed >= 3 && totals.reinserted >= 2 && totals.evicted >= 5, "{totals:?}");
    assert!(totals.deleted >= 8 && totals.sealed >= 8 && totals.no_room == 0, "{totals:?}");
    assert_eq!(script.disk.as_ref().unwrap().state(), State::Serving);
    let report = script.check_after(Crash::Kill, false);
    assert!(report.sealed >= 2 && report.marked >= 1, "{report:?}");
}

#[test]
fn a_crash_at_every_event() {
    let seeds = 3 * number("MIMO_SOAK", 1);
    for event in 0..events() {
        let script = run(&[(event, Fault::Crash)]);
        script.check();
        script.check_after(Crash::Kill, false);
        for seed in 0..seeds {
            script.check_after(Crash::Power(mix(event, seed)), false);
        }
    }
}

#[test]
fn a_power_loss_after_an_error_at_every_event() {
    for event in 0..events() {
        let code = [libc::EIO, libc::ENOSPC][event as usize % 2];
        let script = run(&[(event, Fault::Error(code))]);
        script.check();
        script.check_after(Crash::Kill, false);
        script.check_after(Crash::Power(event), false);
        if let Some(disk) = &script.disk
            && disk.state() != State::Serving
        {
            assert!(matches!(disk.state(), State::ReadOnly(_)), "event {event}: {:?}", disk.state());
        }
    }
}

#[test]
fn short_writes_are_carried_on() {
    for event in 0..events() {
        for most in [1, 512, 4096 + 17] {
            let script = run(&[(event, Fault::Short(most))]);
            script.check();
            assert_eq!(script.disk.as_ref().unwrap().state(), State::Serving);
            script.check_after(Crash::Kill, false);
            script.check_after(Crash::Power(event), false);
        }
    }
}

#[test]
fn an_error_and_then_a_crash() {
    let all = events();
    for case in 0..100 * number("MIMO_SOAK", 1) {
        let first = mix(case, 1) % all;
        let second = first + 1 + mix(case, 2) % 20;
        let script = run(&[(first, Fault::Error(libc::EIO)), (second, Fault::Crash)]);
        script.check();
        script.check_after(Crash::Kill, false);
        script.check_after(Crash::Power(case), false);
    }
}

#[test]
fn an_error_of_every_read() {
    let reads = run(&[]).device.counted().1;
    for read in 0..reads {
        let device = Memory::new();
        device.fail_read(read, libc::EIO);
        let mut script = Script::new(device);
        script.run();
        script.check();
        script.check_after(Crash::Kill, false);
    }
}

#[test]
fn a_read_error_at_every_read_of_a_recovery() {
    let script = run(&[]);
    // Reads of a device that was only opened, and those of the checks.
    for read in 0..40 {
        let device = script.device.after(Crash::Kill);
        device.fail_read(read, libc::EIO);
        let device = std::sync::Arc::new(device);
        let (disk, report) = disk::open(&script.config, &device);
        disk.check_integrity().unwrap();
        let aside = device.after(Crash::Kill);
        drop(disk);
        // A segment that could not be read is set aside for good: what was deleted since does not come back with it.
        assert_eq!(report.damaged.len(), usize::from(read_hits_a_segment(&report)), "{report:?}");
        script.on(aside).check_after(Crash::Kill, true);
    }
}

fn read_hits_a_segment(report: &mimo_cache::disk::DiskRecovery) -> bool {
    report.damaged.iter().any(|d| d.contains("set aside as damaged-0-segment-"))
}

/// A bit of a file: structure is met three times in four.
fn flip(seed: u64, left: &Memory) -> String {
    let names: Vec<String> = (0..12).map(|n| format!("segment-{n:08x}")).collect();
    let name = names[mix(seed, 1) as usize % names.len()].clone();
    let Some(mut bytes) = left.contents(&name) else { return name };
    for n in 0..1 + mix(seed, 2) % 3 {
        let random = mix(seed, 10 + n);
        let at = match random % 4 {
            0 => random / 4 % 128,
            1 => 4096 + random / 4 % 40,
            2 => bytes.len() as u64 - 4096 * (1 + random / 4 % 2) + random / 8 % 700,
            _ => random / 4 % bytes.len() as u64,
        };
        bytes[at as usize] ^= 1 << (random >> 61);
    }
    left.place(&name, bytes);
    name
}

#[test]
fn bits_that_flip_anywhere() {
    let script = run(&[]);
    let (mut aside, mut walked) = (0, 0);
    for seed in 0..1500 * number("MIMO_SOAK", 1) {
        let left = script.device.after(Crash::Kill);
        flip(seed, &left);
        let report = script.on(left).check_after(Crash::Kill, true);
        aside += report.damaged.len();
        walked += report.walked;
    }
    assert!(aside > 25 && walked > 25, "{aside} set aside, {walked} walked");
}

#[test]
fn a_flip_costs_only_what_it_hits() {
    let script = run(&[]);
    let disk = script.disk.as_ref().unwrap();
    let all: Vec<_> = script.given.keys().filter(|id| disk::has(disk, id)).copied().collect();
    for seed in 0..300 {
        let left = script.device.after(Crash::Kill);
        let name = flip(seed, &left);
        let (disk, report) = disk::open(&script.config, &std::sync::Arc::new(left));
        let lost = all.iter().filter(|id| disk::get(&disk, id).is_none()).count();
        assert!(lost <= 8, "{name}: {lost} of {} lost, {report:?}", all.len());
        assert!(!disk::has(&disk, &id(61, 0)), "deleted");
    }
}

#[test]
fn a_manifest_with_a_flipped_bit_is_refused() {
    let script = run(&[]);
    for bit in 0..80 * 8 {
        let left = script.device.after(Crash::Kill);
        let mut bytes = left.contents("manifest").unwrap();
        bytes[bit / 8] ^= 1 << (bit % 8);
        left.place("manifest", bytes);
        let refused = mimo_cache::disk::Disk::open_on(&script.config, std::sync::Arc::new(left));
        let message = refused.map(drop).unwrap_err().to_string();
        assert!(message.contains("manifest") || message.contains("version"), "{message}");
    }
}
