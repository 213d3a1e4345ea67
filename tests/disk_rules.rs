//! The disk tier, one rule a test, on a device in memory.
#![cfg(all(feature = "gcache", target_os = "linux"))]

mod disk;

#[path = "disk/heir.rs"]
mod heir;

use disk::*;
use mimo_cache::disk::memory::{Crash, Fault, Memory};
use mimo_cache::disk::{Aligned, Buffer, Disk, DiskConfig, DiskError, Put, PutOutcome, State, Target, Worker};
use mimo_cache::shm::{PutMeta, chunk_crcs};
use std::sync::Arc;
use std::sync::mpsc::channel;

fn fresh(segments: u64) -> (Arc<Memory>, DiskConfig, Disk) {
    let (device, config) = (Arc::new(Memory::new()), config(segments));
    let disk = open(&config, &device).0;
    work(&disk);
    (device, config, disk)
}

fn reopened(device: &Memory, config: &DiskConfig, crash: Crash) -> Disk {
    let device = Arc::new(device.after(crash));
    open(config, &device).0
}

#[test]
fn values_of_all_lengths_come_back_by_every_way_of_reading() {
    let device = Arc::new(Memory::new());
    let config = DiskConfig { segment_bytes: 8 << 20, capacity_bytes: 64 << 20, ..config(8) };
    let (disk, _) = open(&config, &device);
    let lengths = [1, 4095, 4096, 4097, 70_000, (1 << 18) - 1, 1 << 18, 1 << 20, (1 << 20) + 1, 3_333_333];
    for (n, len) in lengths.into_iter().enumerate() {
        assert_eq!(put(&disk, id(n as u64, n as u8), &value(n as u64, len)), PutOutcome::Stored);
    }
    for disk in [disk, reopened(&device, &config, Crash::Kill)] {
        for (n, len) in lengths.into_iter().enumerate() {
            let name = id(n as u64, n as u8);
            for way in 0..3 {
                let (found, bytes) = get_as(&disk, &name, way).unwrap();
                assert!(found == meta(name, len) && bytes == value(n as u64, len), "{len} bytes");
            }
        }
        disk.check_integrity().unwrap();
    }
}

#[test]
fn short_values_share_headers_and_a_batch_is_few_writes() {
    let device = Arc::new(Memory::new());
    let config = DiskConfig { segment_bytes: 4 << 20, capacity_bytes: 64 << 20, ..config(8) };
    let (disk, _) = open(&config, &device);
    let before = (device.counted().0, disk.stats().totals.written_bytes);
    let batch: Vec<_> = (0..400).map(|n| (id(n, 0), value(n, 4096))).collect();
    assert!(put_all(&disk, &batch).iter().all(|o| *o == PutOutcome::Stored));
    // 40 values a group, and the segment's header.
    assert_eq!(device.counted().0 - before.0, 11);
    assert_eq!(disk.stats().totals.written_bytes - before.1, 411 * 4096);
}

#[test]
fn the_first_writer_wins_and_names_are_of_a_tenant_and_a_part() {
    let (_device, _config, disk) = fresh(16);
    let name = id(1, 3);
    assert_eq!(put(&disk, name, &value(1, 100)), PutOutcome::Stored);
    assert_eq!(put(&disk, name, &value(2, 100)), PutOutcome::Present);
    assert_eq!(put(&disk, id(1, 4), &value(3, 100)), PutOutcome::Stored);
    assert_eq!(put(&disk, id(1, 63), &value(4, 100)), PutOutcome::Stored);
    assert_eq!(disk.exists(TENANT, &[name.key, key(2)]), [1 << 3 | 1 << 4 | 1 << 63, 0]);
    assert_eq!(disk.exists(TENANT + 1, &[name.key]), [0]);
    assert_eq!(get(&disk, &name), Some(value(1, 100)));
    assert_eq!(delete(&disk, &[name, id(9, 9)]).unwrap(), 1);
    assert_eq!(disk.exists(TENANT, &[name.key]), [1 << 4 | 1 << 63]);
    assert_eq!(put(&disk, name, &value(5, 200)), PutOutcome::Stored);
    assert_eq!(get(&disk, &name), Some(value(5, 200)));
    let batch = [(id(7, 0), value(7, 10)), (id(7, 0), value(8, 10))];
    assert_eq!(put_all(&disk, &batch), [PutOutcome::Stored, PutOutcome::Busy]);
}

#[test]
fn what_is_outside_the_limits_is_refused_in_words() {
    let (_device, config, disk) = fresh(8);
    let failed = |outcome| match outcome {
        PutOutcome::Failed(e) => e.to_string(),
        other => panic!("{other:?}"),
    };
    let most = disk.max_value_bytes() as usize;
    assert_eq!(most, 11 * 4096);
    assert_eq!(put(&disk, id(1, 0), &value(1, most)), PutOutcome::Stored);
    let long = failed(put(&disk, id(2, 0), &value(2, most + 1)));
    assert!(long.contains("value length is 45057, allowed is at most 45056"), "{long}");
    let part = failed(put(&disk, id(2, 64), &value(2, 10)));
    assert!(part.contains("part is 64"), "{part}");
    let (send, receive) = channel();
    let wrong = Put {
        meta: meta(id(3, 0), 10),
        crcs: chunk_crcs(&value(3, (1 << 20) + 1)),
        value: Box::new(value(3, 10)),
        done: Box::new(move |o, buffer| drop(send.send((o, buffer.capacity())))),
    };
    disk.put(vec![wrong], 0);
    let (outcome, capacity) = receive.recv().unwrap();
    assert!(failed(outcome).contains("number of CRCs is 2") && capacity == 10);
    for (change, words) in [
        (DiskConfig { segment_bytes: 65_537, ..config.clone() }, "segment size is 65537"),
        (DiskConfig { capacity_bytes: 7 << 16, ..config.clone() }, "capacity of the disk tier is 458752"),
        (DiskConfig { reinsert_percent: 101, ..config.clone() }, "reinsert_percent is 101"),
        (DiskConfig { reads_in_flight: 0, ..config.clone() }, "reads_in_flight is 0"),
    ] {
        let error = Disk::open_on(&change, Arc::new(Memory::new())).map(drop).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
    let (send, receive) = channel();
    disk.get(TENANT, &id(1, 0), Target::Buffer(vec![0u8; 4096]), move |r| drop(send.send(r.map(drop))));
    assert!(matches!(receive.recv().unwrap(), Err(DiskError::TooSmall { .. })));
    assert_eq!(get_to::<Aligned>(&disk, &id(1, 0), Target::Place(Box::new(|_| None))), Err(DiskError::Missing));
    assert_eq!(disk.stats().reads_in_flight, 0);
}

fn begin(disk: &Disk, n: u64, len: usize) -> disk::Outcomes {
    let bytes = value(n, len);
    begin_puts(disk, vec![(meta(id(n, 0), len), Box::new(Aligned::copy_of(&bytes)) as Box<dyn Buffer>)], &[bytes])
}

#[test]
fn entries_are_accepted_in_the_order_of_the_log() {
    let (device, config, disk) = fresh(16);
    device.hold();
    let outcomes: Vec<_> = (0..3).map(|n| begin(&disk, n, 5000)).collect();
    assert_eq!(device.held(), 4);
    // The third group, then the second: neither may count before the first, nor any before the segment's header.
    device.release(3);
    device.release(2);
    device.release(1);
    assert!(outcomes.iter().all(|o| o.try_recv().is_err()));
    assert_eq!(put(&disk, id(1, 0), &value(1, 5000)), PutOutcome::Busy);
    assert_eq!(disk.exists(TENANT, &[key(1)]), [0]);
    disk.check_integrity().unwrap();
    device.release(0);
    assert!(outcomes.iter().all(|o| o.try_recv().unwrap().1 == PutOutcome::Stored));
    device.release_all();
    let next = reopened(&device, &config, Crash::Kill);
    assert!((0..3).all(|n| get(&next, &id(n, 0)) == Some(value(n, 5000))));
}

#[test]
fn a_delete_reaches_what_is_still_being_written() {
    let (device, config, disk) = fresh(16);
    device.hold();
    let outcome = begin(&disk, 1, 5000);
    let (send, answer) = channel();
    disk.delete(TENANT, &[id(1, 0)], move |r| drop(send.send(r)));
    work(&disk);
    assert!(answer.try_recv().is_err(), "it waits for the write");
    disk.check_integrity().unwrap();
    device.release_all();
    assert_eq!(outcome.recv().unwrap().1, PutOutcome::Stored);
    assert!(!has(&disk, &id(1, 0)));
    work(&disk);
    assert_eq!(answer.recv().unwrap(), Ok(1));
    disk.check_integrity().unwrap();
    for crash in [Crash::Kill, Crash::Power(1), Crash::Power(2)] {
        assert!(!has(&reopened(&device, &config, crash), &id(1, 0)));
    }
}

#[test]
fn deletes_that_wait_together_share_a_round() {
    let (device, _config, disk) = fresh(16);
    put_all(&disk, &(0..8).map(|n| (id(n, 0), value(n, 100))).collect::<Vec<_>>());
    work(&disk);
    let before = device.counted().0;
    let (send, answers) = channel();
    for n in 0..8 {
        let send = send.clone();
        disk.delete(TENANT, &[id(n, 0)], move |r| drop(send.send(r)));
    }
    work(&disk);
    assert!((0..8).all(|_| answers.recv().unwrap() == Ok(1)));
    assert_eq!(device.counted().0 - before, 2, "one write and one sync");
}

#[test]
fn sealed_survives_power_loss_and_accepted_need_not() {
    let (device, config, disk) = fresh(16);
    put(&disk, id(1, 0), &value(1, 20_000));
    put(&disk, id(2, 40), &value(2, 20_000));
    seal(&disk).unwrap();
    put(&disk, id(3, 0), &value(3, 20_000));
    let mut lost = 0;
    for seed in 0..40 {
        let next = reopened(&device, &config, Crash::Power(seed));
        assert!(get(&next, &id(1, 0)) == Some(value(1, 20_000)) && get(&next, &id(2, 40)) == Some(value(2, 20_000)));
        lost += usize::from(get(&next, &id(3, 0)).is_none());
    }
    assert!(lost > 0);
    assert_eq!(get(&reopened(&device, &config, Crash::Kill), &id(3, 0)), Some(value(3, 20_000)));
}

#[test]
fn damaged_bytes_are_never_served_and_cost_one_object() {
    let (device, config, disk) = fresh(16);
    put_all(&disk, &(0..3).map(|n| (id(n, 0), value(n, 4096))).collect::<Vec<_>>());
    seal(&disk).unwrap();
    let left = device.after(Crash::Kill);
    let (name, mut bytes) = (0..16)
        .map(|n| format!("segment-{n:08x}"))
        .find_map(|name| left.contents(&name).filter(|b| b[2 * 4096] == b'm').map(|b| (name, b)))
        .unwrap();
    bytes[4 * 4096 + 100] ^= 1;
    left.place(&name, bytes);
    let disk = open(&config, &Arc::new(left)).0;
    assert_eq!(disk.exists(TENANT, &[key(0), key(1), key(2)]), [1, 1, 1]);
    for way in 0..3 {
        let expected = if way == 0 { DiskError::Damaged } else { DiskError::Missing };
        assert_eq!(get_as(&disk, &id(1, 0), way).unwrap_err(), expected);
    }
    assert_eq!((get(&disk, &id(0, 0)), get(&disk, &id(2, 0))), (Some(value(0, 4096)), Some(value(2, 4096))));
    assert_eq!(disk.stats().totals.damaged, 1);
    assert_eq!(put(&disk, id(1, 0), &value(1, 4096)), PutOutcome::Stored);
    disk.check_integrity().unwrap();
}

#[test]
fn no_more_is_in_flight_than_configured() {
    let device = Arc::new(Memory::new());
    let config = DiskConfig { write_bytes_in_flight: 20_000, reads_in_flight: 2, ..config(16) };
    let disk = open(&config, &device).0;
    put(&disk, id(9, 0), &value(9, 4096));
    device.hold();
    let outcomes: Vec<_> = (0..3).map(|n| begin(&disk, n, 9000)).collect();
    assert_eq!(outcomes[1].try_recv().map(|o| o.1), Ok(PutOutcome::NoRoom), "12,288 and 9,000 bytes");
    let (send, receive) = channel();
    for _ in 0..3 {
        let send = send.clone();
        disk.get(TENANT, &id(9, 0), Target::Buffer(Aligned::new(4096)), move |r| drop(send.send(r.map(drop))));
    }
    assert_eq!(receive.try_recv(), Ok(Err(DiskError::Busy { most: 2 })));
    device.release_all();
    assert!(receive.recv().unwrap().is_ok() && receive.recv().unwrap().is_ok());
    assert_eq!(outcomes[0].recv().unwrap().1, PutOutcome::Stored);
    assert_eq!((disk.stats().write_bytes_in_flight, disk.stats().reads_in_flight), (0, 0));
}

#[test]
fn a_write_budget_stops_puts_until_time_has_passed() {
    let device = Arc::new(Memory::new());
    let config = DiskConfig { write_bytes_per_day: Some(24 * 50_000), ..config(16) };
    let disk = open(&config, &device).0;
    let at = |n: u64, now: u64| {
        let (send, receive) = channel();
        let bytes = value(n, 8192);
        let done = Box::new(move |o, _| drop(send.send(o)));
        disk.put(vec![Put { meta: meta(id(n, 0), 8192), crcs: chunk_crcs(&bytes), value: Box::new(bytes), done }], now);
        receive.recv().unwrap()
    };
    let stored = (0..20).filter(|&n| at(n, 1000) == PutOutcome::Stored).count();
    assert_eq!(stored, 5, "12,288 bytes each with their header, out of 50,000");
    assert_eq!(at(50, 60_000), PutOutcome::OverBudget);
    assert_eq!(at(50, 3_600_000), PutOutcome::Stored);
    assert_eq!(disk.stats().totals.over_budget, 16);
}

#[test]
fn a_failed_write_makes_the_tier_read_only_and_reads_go_on() {
    let (device, config, disk) = fresh(16);
    put(&disk, id(1, 0), &value(1, 4096));
    device.fail(device.counted().0, Fault::Error(libc::EIO));
    assert!(matches!(put(&disk, id(2, 0), &value(2, 4096)), PutOutcome::Failed(DiskError::ReadOnly(_))));
    let State::ReadOnly(why) = disk.state() else { panic!("{:?}", disk.state()) };
    assert!(why.contains("values could not be written"), "{why}");
    assert_eq!(get(&disk, &id(1, 0)), Some(value(1, 4096)));
    assert!(matches!(put(&disk, id(3, 0), &value(3, 4096)), PutOutcome::Failed(DiskError::ReadOnly(_))));
    assert!(matches!(seal(&disk), Err(DiskError::ReadOnly(_))));
    assert!(matches!(delete(&disk, &[id(1, 0)]), Err(DiskError::ReadOnly(_))));
    assert!(!has(&disk, &id(1, 0)), "forgotten, though it may come back");
    disk.check_integrity().unwrap();
    let next = reopened(&device, &config, Crash::Kill);
    assert_eq!(put(&next, id(2, 0), &value(2, 4096)), PutOutcome::Stored);
}

#[test]
fn reads_that_fail_again_and_again_take_it_offline() {
    let (device, _config, disk) = fresh(16);
    put(&disk, id(1, 0), &value(1, 4096));
    let reads = device.counted().1;
    (reads..reads + 100).for_each(|n| device.fail_read(n, libc::EIO));
    assert!(matches!(get_as(&disk, &id(1, 0), 0), Err(DiskError::Io { code: Some(libc::EIO), .. })));
    assert!(has(&disk, &id(1, 0)), "one error drops nothing");
    (0..31).for_each(|_| assert!(get_as(&disk, &id(1, 0), 0).is_err()));
    let State::Offline(why) = disk.state() else { panic!("{:?}", disk.state()) };
    assert!(why.contains("32 reads failed"), "{why}");
    assert_eq!(disk.exists(TENANT, &[key(1)]), [0]);
    assert!(matches!(get_as(&disk, &id(1, 0), 0), Err(DiskError::Offline(_))));
    assert!(matches!(put(&disk, id(2, 0), &value(2, 10)), PutOutcome::Failed(DiskError::Offline(_))));
    disk.check_integrity().unwrap();
}

#[test]
fn a_device_that_hangs_is_given_up_and_its_buffers_stay_its_own() {
    let device = Arc::new(Memory::new());
    let config = DiskConfig { worker: Worker::Thread, io_timeout_ms: 5000, ..config(16) };
    let disk = open(&config, &device).0;
    put_soon(&disk, id(1, 0), &value(1, 4096));
    device.hold();
    let outcome = begin(&disk, 2, 4096);
    let (send, sealed) = channel();
    disk.seal(move |r| drop(send.send(r)));
    let (send, deleted) = channel();
    disk.delete(TENANT, &[id(1, 0), id(2, 0)], move |r| drop(send.send(r)));
    (0..6).for_each(|s| disk.tick(s * 1000));
    assert_eq!(disk.state(), State::Serving);
    disk.tick(6000);
    let State::Offline(why) = disk.state() else { panic!("{:?}", disk.state()) };
    assert!(why.contains("5000 ms"), "{why}");
    // Those who wait are told, except for who waits for the buffer.
    assert!(matches!(deleted.recv().unwrap(), Err(DiskError::Offline(_))));
    assert!(matches!(sealed.recv().unwrap(), Err(DiskError::Offline(_))));
    assert!(outcome.try_recv().is_err());
    device.release_all();
    assert!(outcome.recv().is_ok());
    drop(disk);
}

#[test]
fn a_directory_that_disappears_is_noticed() {
    let (device, _config, disk) = fresh(16);
    device.vanish();
    disk.tick(1);
    work(&disk);
    assert!(matches!(disk.state(), State::Offline(why) if why.contains("directory is gone")));
}

#[test]
fn a_device_without_space_is_used_as_far_as_it_goes() {
    let device = Arc::new(Memory::new());
    device.limit_space(10 * u64::from(SEGMENT));
    let (disk, _) = open(&config(40), &device);
    for n in 0..80 {
        put_soon(&disk, id(n, 0), &value(n, 20_000));
    }
    let stats = disk.stats();
    assert!(stats.file_bytes == 10 * u64::from(SEGMENT) && stats.totals.evicted > 20, "{stats:?}");
    assert_eq!(disk.state(), State::Serving);
    disk.check_integrity().unwrap();
    let device = Arc::new(Memory::new());
    device.limit_space(4 * u64::from(SEGMENT));
    let (disk, _) = open(&config(40), &device);
    for n in 0..20 {
        put(&disk, id(n, 0), &value(n, 20_000));
        work(&disk);
    }
    assert!(matches!(disk.state(), State::ReadOnly(why) if why.contains("no space for the fewest segments")));
}

#[test]
fn what_was_hit_is_kept_and_the_oldest_goes() {
    let (_device, _config, disk) = fresh(24);
    let keep: Vec<_> = (0..6).map(|n| id(n, 0)).collect();
    for n in 0..400 {
        put_soon(&disk, id(n, 0), &value(n, 8000));
        disk.touch(TENANT, &keep);
        work(&disk);
    }
    assert!(keep.iter().all(|id| get(&disk, id).is_some()), "hit again and again");
    assert!(!has(&disk, &id(7, 0)) && has(&disk, &id(399, 0)));
    disk.check_integrity().unwrap();
}

/// Of 80 percent of the capacity a random half is read again and again while new values come.
#[test]
fn write_amplification_of_a_mixed_load_at_80_percent_is_bounded() {
    let device = Arc::new(Memory::new());
    let config = DiskConfig { segment_bytes: 1 << 20, capacity_bytes: 48 << 20, ..config(48) };
    let (disk, _) = open(&config, &device);
    let name = |n: u64| id(n, if n / 16 % 4 == 3 { 33 } else { 0 });
    for batch in 0..900u64 {
        let values: Vec<_> =
            (batch * 16..batch * 16 + 16).map(|n| (name(n), value(n, 4096 * (1 + mix(n, 1) % 4) as usize))).collect();
        assert!(put_all(&disk, &values).iter().all(|o| *o == PutOutcome::Stored));
        let newest = batch * 16 + 16;
        let young = (0..16).map(|n| name(newest - 1 - mix(newest + n, 2) % newest.min(3000)));
        disk.touch(TENANT, &young.chain((0..64).map(name)).collect::<Vec<_>>());
        work(&disk);
    }
    let stats = disk.stats();
    let amplification = stats.totals.write_amplification();
    let occupied = stats.block_bytes as f64 / stats.capacity_bytes as f64;
    assert!(stats.totals.reinserted > 1000 && stats.totals.reclaimed > 100, "{stats:?}");
    assert!(amplification <= 1.3 && occupied >= 0.8, "amplification {amplification}, occupied {occupied}: {stats:?}");
    disk.check_integrity().unwrap();
}

#[test]
fn a_place_is_asked_with_the_meta_of_the_value() {
    let (_device, _config, disk) = fresh(8);
    let name = id(4, 40);
    put(&disk, name, &value(4, 6000));
    let (send, asked) = channel();
    let place = move |meta: &PutMeta| {
        send.send(*meta).unwrap();
        Some(Aligned::new(meta.len as usize))
    };
    assert_eq!(get_to(&disk, &name, Target::Place(Box::new(place))).unwrap().1, value(4, 6000));
    assert_eq!(asked.recv().unwrap(), meta(name, 6000));
}
