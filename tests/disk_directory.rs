//! Directories of the disk tier: other sizes than before, and what is refused or set aside. On a device in memory.
#![cfg(all(feature = "gcache", target_os = "linux"))]

mod disk;

use disk::*;
use mimo_cache::disk::memory::{Crash, Memory};
use mimo_cache::disk::{Disk, DiskConfig, DiskError};
use std::sync::Arc;

fn fresh(segments: u64) -> (Arc<Memory>, DiskConfig, Disk) {
    let (device, config) = (Arc::new(Memory::new()), config(segments));
    let disk = open(&config, &device).0;
    work(&disk);
    (device, config, disk)
}

#[test]
fn a_smaller_capacity_keeps_what_fits_and_a_larger_one_everything() {
    let (device, config, disk) = fresh(64);
    for n in 0..60 {
        put_soon(&disk, id(n, if n % 2 == 0 { 0 } else { 40 }), &value(n, 9000));
        work(&disk);
    }
    seal(&disk).unwrap();
    work(&disk);
    let all = |disk: &Disk| (0..60).filter(|&n| get(disk, &id(n, if n % 2 == 0 { 0 } else { 40 })).is_some()).count();
    let mut device = Arc::new(device.after(Crash::Kill));
    for (segments, kept) in [(48, 60..=60), (90, 60..=60), (34, 60..=60), (10, 5..=40), (30, 5..=40)] {
        let config = DiskConfig { capacity_bytes: segments * u64::from(SEGMENT), ..config.clone() };
        let disk = open(&config, &device).0;
        work(&disk);
        disk.check_integrity().unwrap();
        assert!(disk.stats().file_bytes <= config.capacity_bytes, "{segments}: {:?}", disk.stats());
        assert!(kept.contains(&all(&disk)), "{} with {segments} segments: {:?}", all(&disk), disk.stats());
        device = Arc::new(device.after(Crash::Power(segments)));
        let disk = open(&config, &device).0;
        work(&disk);
        assert!(seal(&disk).is_ok());
        device = Arc::new(device.after(Crash::Kill));
    }
}

#[test]
fn another_segment_size_is_for_new_segments() {
    let (device, config, disk) = fresh(32);
    (0..20).for_each(|n| put_soon(&disk, id(n, 0), &value(n, 9000)));
    let device = Arc::new(device.after(Crash::Kill));
    let config = DiskConfig { segment_bytes: 2 * SEGMENT, ..config };
    let disk = open(&config, &device).0;
    work(&disk);
    assert!((0..20).all(|n| get(&disk, &id(n, 0)) == Some(value(n, 9000))));
    for n in 20..200 {
        put_soon(&disk, id(n, 0), &value(n, 60_000));
        work(&disk);
        disk.check_integrity().unwrap();
        assert!(disk.stats().file_bytes <= config.capacity_bytes);
    }
    let sizes: std::collections::BTreeSet<usize> =
        (0..64).filter_map(|n| device.contents(&format!("segment-{n:08x}"))).map(|b| b.len()).collect();
    assert_eq!(sizes.into_iter().collect::<Vec<_>>(), [2 * SEGMENT as usize]);
}

#[test]
fn foreign_newer_and_damaged_directories_are_refused_in_words() {
    let (device, config, disk) = fresh(8);
    put(&disk, id(1, 0), &value(1, 10));
    let refusal = |change: &dyn Fn(&Memory), config: &DiskConfig| {
        let left = device.after(Crash::Kill);
        change(&left);
        let error = Disk::open_on(config, Arc::new(left)).map(drop).unwrap_err();
        assert!(matches!(error, DiskError::Refused { .. }), "{error}");
        error.to_string()
    };
    let manifest = |left: &Memory, at: usize, to: u8| {
        let mut bytes = left.contents("manifest").unwrap();
        bytes[at] = to;
        left.place("manifest", bytes);
    };
    let said = refusal(&|left| manifest(left, 8, 2), &config);
    assert!(said.contains("version 2, and this program reads versions 1 to 1; run the program that made it"), "{said}");
    let said = refusal(&|left| manifest(left, 70, 9), &config);
    assert!(said.contains("manifest is damaged") && said.contains("start empty"), "{said}");
    let said = refusal(&|left| manifest(left, 0, 0), &config);
    assert!(said.contains("not one of this program"), "{said}");
    let said = refusal(&|_| {}, &DiskConfig { fingerprint: [8; 32], ..config.clone() });
    assert!(said.contains("fingerprint 0707070707070707..., configured is 0808080808080808..."), "{said}");
    let empty = Memory::new();
    empty.place("segment-00000000", vec![0; SEGMENT as usize]);
    let said = Disk::open_on(&config, Arc::new(empty)).map(drop).unwrap_err().to_string();
    assert!(said.contains("segments and no manifest; restore"), "{said}");
    let foreign = Memory::new();
    foreign.place("letters.txt", vec![1]);
    let said = Disk::open_on(&config, Arc::new(foreign)).map(drop).unwrap_err().to_string();
    assert!(said.contains("\"letters.txt\" is in it; give this node an empty directory"), "{said}");
}

#[test]
fn a_segment_of_another_directory_or_size_is_set_aside_and_never_read_again() {
    let (device, config, disk) = fresh(8);
    put(&disk, id(1, 0), &value(1, 10));
    seal(&disk).unwrap();
    let (other, _, other_disk) = fresh(8);
    put(&other_disk, id(2, 0), &value(2, 10));
    seal(&other_disk).unwrap();
    let left = Arc::new(device.after(Crash::Kill));
    let stranger = (0..8).filter_map(|n| other.contents(&format!("segment-{n:08x}"))).find(|b| b[0] == b'm').unwrap();
    left.place("segment-000000aa", stranger);
    left.place("segment-000000ab", vec![1; 100]);
    for round in 0..2 {
        let (disk, report) = open(&config, &left);
        assert_eq!(report.damaged.len(), if round == 0 { 2 } else { 0 }, "{report:?}");
        assert!(has(&disk, &id(1, 0)) && !has(&disk, &id(2, 0)));
        if round == 0 {
            assert!(report.damaged[0].contains("damaged-0-segment-000000aa because it belongs to another directory"));
            assert!(report.damaged[1].contains("it has 100 bytes, which no segment has"));
        }
        assert!(left.contents("damaged-0-segment-000000aa").is_some());
    }
}
