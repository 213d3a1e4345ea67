//! The shared-memory store, one rule a test: what is visible to whom, what is refused.
#![cfg(all(feature = "gcache", target_os = "linux"))]

mod shm;

use mimo_cache::shm::{
    Begin, BootId, CHUNK_BYTES, MAX_VALUE_BYTES, Prefault, PutMeta, ReadFault, Reader, SharedRef, Store, StoreConfig,
    chunk_crcs,
};
use shm::*;
use std::os::unix::fs::FileExt;
const MIB: u64 = 1 << 20;

fn fresh(name: &str, bytes: u64) -> (TempFile, Store) {
    let file = TempFile::new(name);
    let store = open(&config(file.path(), bytes)).0;
    (file, store)
}

#[test]
fn values_of_all_lengths_come_back_after_a_restart() {
    let lengths = [1, 4095, 4096, 4097, 70_000, 1 << 20, (1 << 20) + 1, 3_333_333];
    let file = TempFile::new("lengths");
    let config = config(file.path(), 16 * MIB);
    for round in 0..2 {
        let (store, found) = open(&config);
        assert_eq!((found.created, found.objects), (round == 0, round * lengths.len() as u64), "{found:?}");
        for (n, len) in lengths.into_iter().enumerate() {
            let expected = if round == 0 { Done::Stored } else { Done::Present };
            assert_eq!(put_n(&store, n as u64, len), expected, "{len} bytes");
            let pinned = store.get(1, &id(n as u64, 0)).unwrap();
            assert_eq!((&*pinned, pinned.meta().put), (&value(n as u64, len)[..], meta(n as u64, len as u64)));
            assert_eq!(pinned.crcs(), &chunk_crcs(&pinned)[..]);
            let mut copy = vec![0; len];
            assert!(pinned.copy_to(&mut copy) && copy == *pinned);
        }
        store.check_integrity().unwrap();
        assert_eq!(store.stats().objects, lengths.len() as u64);
    }
}

#[test]
fn a_file_with_memory_taken_by_threads_works_the_same() {
    let file = TempFile::new("threads");
    let config = StoreConfig { prefault: Prefault::Threads, ..StoreConfig::new(file.path(), 96 * MIB) };
    for round in 0..3 {
        let (store, found) = open(&config);
        assert_eq!(found.objects, round);
        put_n(&store, round, 5_000_000);
        assert!((0..=round).all(|n| has_n(&store, n)));
        store.check_integrity().unwrap();
    }
    let taken = std::os::unix::fs::MetadataExt::blocks(&std::fs::metadata(file.path()).unwrap()) * 512;
    assert!(taken >= 96 * MIB, "{taken} bytes of memory");
}

#[test]
fn lengths_and_parts_outside_the_limits_are_refused_in_words() {
    let (_file, store) = fresh("limits", 2 * MIB);
    let refuse = |meta: PutMeta| store.begin(&meta, 0).map(drop).unwrap_err().to_string();
    assert_eq!(refuse(meta(1, 0)), "value length is 0, allowed is 1 to 134217728 bytes");
    assert!(refuse(meta(1, MAX_VALUE_BYTES + 1)).starts_with("value length is 134217729, allowed"));
    assert!(refuse(meta(1, u64::MAX)).contains("allowed is 1 to 134217728"));
    let most = store.max_value_bytes();
    assert_eq!(
        refuse(meta(1, most + 1)),
        format!("value length is {}, allowed is at most {most} bytes in this file", most + 1)
    );
    assert_eq!(refuse(PutMeta { id: id(1, 64), ..meta(1, 5) }), "part is 64, allowed is 0 to 63");
    assert!(store.get(1, &id(1, 64)).is_none() && store.get(1, &id(1, 255)).is_none());
    assert_eq!((store.touch(1, &[id(1, 200)]), store.delete(1, &[id(1, 200)])), (0, 0));
    assert_eq!(put_n(&store, 1, most as usize), Done::Stored);
    let Begin::Slot(writer) = store.begin(&meta(2, 5000), 0).unwrap() else { panic!("no slot") };
    let wrong = writer.commit(&[1, 2]).unwrap_err().to_string();
    assert!(wrong.contains("number of CRCs is 2, allowed is 1"), "{wrong}");
    store.check_integrity().unwrap();
    assert_eq!(store.stats().writers, 0);
}

#[test]
fn an_object_is_visible_to_its_tenant_only() {
    let (_file, store) = fresh("tenants", 2 * MIB);
    for tenant in [0, 1, u64::MAX] {
        assert_eq!(put(&store, &PutMeta { tenant, ..meta(7, 100) }, &value(tenant, 100)), Done::Stored);
    }
    for tenant in [0, 1, u64::MAX] {
        assert_eq!(&*store.get(tenant, &id(7, 0)).unwrap(), value(tenant, 100));
    }
    assert!(store.get(2, &id(7, 0)).is_none());
    assert_eq!(store.exists(2, &[key(7)], None, 0).masks, [0]);
    assert_eq!((store.delete(2, &[id(7, 0)]), store.delete(1, &[id(7, 0)])), (0, 1));
    assert_eq!((store.touch(1, &[id(7, 0)]), store.touch(0, &[id(7, 0), id(7, 1)])), (0, 1));
    store.check_integrity().unwrap();
}

#[test]
fn one_mask_over_the_parts_of_each_key_duplicates_included() {
    let (_file, store) = fresh("masks", 2 * MIB);
    for part in [0, 5, 32, 63] {
        put(&store, &PutMeta { id: id(1, part), ..meta(1, 9) }, &value(part.into(), 9));
    }
    let mask = 1 | 1 << 5 | 1 << 32 | 1 << 63;
    assert_eq!(store.exists(1, &[key(1), key(2), key(1)], None, 0).masks, [mask, 0, mask]);
    store.delete(1, &[id(1, 32), id(1, 32)]);
    assert_eq!(store.exists(1, &[key(1)], None, 0).masks, [mask & !(1 << 32)]);
    assert_eq!((store.stats().keys, store.stats().objects), (1, 3));
    assert!([0, 5, 63].into_iter().all(|p| *store.get(1, &id(1, p)).unwrap() == value(p.into(), 9)));
    store.check_integrity().unwrap();
}

#[test]
fn the_first_writer_wins_and_a_second_one_is_told() {
    let (_file, store) = fresh("busy", 2 * MIB);
    let begin = |n| store.begin(&meta(n, 3000), 0).unwrap();
    let Begin::Slot(mut first) = begin(1) else { panic!("no slot") };
    assert!(matches!(begin(1), Begin::Busy));
    assert!(store.get(1, &id(1, 0)).is_none(), "not visible before the commit");
    drop(first);
    let Begin::Slot(writer) = begin(1) else { panic!("a writer that was dropped still counts") };
    first = writer;
    first.bytes().copy_from_slice(&value(1, 3000));
    first.commit(&chunk_crcs(&value(1, 3000))).unwrap();
    assert!(matches!(begin(1), Begin::Present) && has_n(&store, 1));
    let t = store.stats().totals;
    assert_eq!((t.busy, t.present, t.aborted, t.committed), (1, 1, 1, 1));
}

#[test]
fn delete_forgets_at_once_and_leaves_pinned_bytes_alone() {
    let file = TempFile::new("delete");
    let config = config(file.path(), 2 * MIB);
    let (store, _) = open(&config);
    put_n(&store, 1, 100_000);
    let (a, b) = (store.get(1, &id(1, 0)).unwrap(), store.get(1, &id(1, 0)).unwrap());
    assert_eq!(store.delete(1, &[id(1, 0)]), 1);
    assert!(store.get(1, &id(1, 0)).is_none());
    store.check_integrity().unwrap();
    let copy = TempFile::new("delete-copy");
    std::fs::copy(file.path(), copy.path()).unwrap();
    let (after_kill, found) = open(&StoreConfig { path: copy.path().into(), ..config.clone() });
    assert!(found.objects == 0 && !has_n(&after_kill, 1), "a crash now does not bring it back");
    assert_eq!(put(&store, &meta(1, 100_000), &value(2, 100_000)), Done::Stored);
    drop(a);
    assert_eq!(*b, value(1, 100_000));
    assert_eq!(*store.get(1, &id(1, 0)).unwrap(), value(2, 100_000));
    drop(b);
    store.check_integrity().unwrap();
    assert_eq!((store.stats().objects, store.stats().held_slots), (1, 0));
}

#[test]
fn a_second_process_and_files_that_do_not_fit_are_refused_with_what_to_do() {
    let file = TempFile::new("refused");
    let config = config(file.path(), 2 * MIB);
    let (store, _) = open(&config);
    let words = refusal(&config);
    assert!(words.contains(&format!("process {}", std::process::id())) && words.contains("stop it"), "{words}");
    put_n(&store, 1, 5000);
    let reader = store.reader_file().unwrap();
    drop(store);
    let bigger = StoreConfig { size_bytes: 4 * MIB, ..config.clone() };
    assert!(refusal(&bigger).contains("configure the sizes it has, or remove the file"), "{}", refusal(&bigger));
    let slabs = StoreConfig { slab_bytes: 128 << 10, ..config.clone() };
    assert!(refusal(&slabs).contains("slabs of 65536"), "{}", refusal(&slabs));
    let other = StoreConfig { fingerprint: [1; 32], ..config.clone() };
    assert!(refusal(&other).contains("fingerprint 0000000000000000..., configured is 0101010101010101"));
    let odd = StoreConfig { size_bytes: 2 * MIB + 1, ..config.clone() };
    assert!(refusal(&odd).contains("a multiple of 4096"));
    let (store, found) = open(&config);
    assert!(found.objects == 1 && has_n(&store, 1), "refusals left the file as it was, readers do not keep it locked");
    drop((store, reader));

    std::fs::write(file.path(), vec![b'x'; 2 << 20]).unwrap();
    assert!(refusal(&config).contains("it is not a shared-memory file of this program; give this node a path"));
    std::fs::write(file.path(), vec![0; 1 << 20]).unwrap();
    assert!(refusal(&config).contains("not a shared-memory file"), "zeros, but not of the configured size");
    std::fs::write(file.path(), b"short").unwrap();
    assert!(refusal(&config).contains("not a shared-memory file"));
    assert_eq!(std::fs::read(file.path()).unwrap(), b"short");
    let folder = StoreConfig { path: std::env::temp_dir(), ..config.clone() };
    assert!(refusal(&folder).contains("cannot open the file"), "{}", refusal(&folder));
    let link = TempFile::new("link");
    std::os::unix::fs::symlink(file.path(), link.path()).unwrap();
    assert!(refusal(&StoreConfig { path: link.path().into(), ..config }).contains("cannot open the file"));
}

#[test]
fn other_versions_a_cut_file_and_a_damaged_superblock_are_refused() {
    let file = TempFile::new("versions");
    let config = config(file.path(), 2 * MIB);
    drop(open(&config));
    let whole = std::fs::read(file.path()).unwrap();
    let with = |at: usize, byte: u8| {
        let mut bytes = whole.clone();
        bytes[at] = byte;
        std::fs::write(file.path(), bytes).unwrap();
        refusal(&config)
    };
    assert!(
        with(8, 2).contains("its layout has version 2, and this program reads versions 1 to 1; run the program that")
    );
    assert!(with(20, 9).contains("superblock is damaged: the checksum"), "{}", with(20, 9));
    assert!(with(513, 9).contains("superblock is damaged: the epoch"));
    let mut zero_head = whole.clone();
    zero_head[..4096].fill(0);
    for behind in [4096, 4100, whole.len() / 2, whole.len() - 1] {
        zero_head[behind] = 1;
        std::fs::write(file.path(), &zero_head).unwrap();
        assert!(refusal(&config).contains("is not a shared-memory file of this program"), "byte {behind}");
        assert_eq!(std::fs::read(file.path()).unwrap(), zero_head, "it is left as it is");
        zero_head[behind] = 0;
    }
    std::fs::write(file.path(), &whole[..1 << 20]).unwrap();
    assert!(refusal(&config).contains("it has 1048576 bytes and was made with 2097152"));
}

#[test]
fn another_boot_or_an_interrupted_making_starts_empty() {
    let file = TempFile::new("boot");
    let config = config(file.path(), 2 * MIB);
    let (store, _) = open(&config);
    put_n(&store, 1, 5000);
    drop(store);
    let (store, found) = Store::open(&config, BootId([4; 16])).unwrap();
    assert!(found.other_boot && !found.created && found.objects == 0 && !has_n(&store, 1));
    assert_eq!(put_n(&store, 1, 5000), Done::Stored);
    store.check_integrity().unwrap();
    drop(store);
    assert!(open(&config).1.other_boot, "the file belongs to the boot that last attached");
    for (begun, len) in
        [(&b"mimonew\0"[..], 2 * MIB), (b"mimonew\0", 8), (b"", 0), (b"\0", 2 * MIB), (b"mimonew\0", MIB)]
    {
        std::fs::write(file.path(), begun).unwrap();
        std::fs::File::options().write(true).open(file.path()).unwrap().set_len(len).unwrap();
        let (store, found) = open(&config);
        assert!(found.created && put_n(&store, 1, 5000) == Done::Stored, "{begun:?} and {len} bytes");
    }
    let real = BootId::current().unwrap();
    assert!(real == BootId::current().unwrap() && real.0 != [0; 16]);
}

#[test]
fn generations_are_never_given_twice() {
    let file = TempFile::new("generations");
    let config = config(file.path(), 2 * MIB);
    let mut last = 0;
    for _ in 0..5 {
        let (store, _) = open(&config);
        for _ in 0..3 {
            assert_eq!(put_n(&store, 1, 100), Done::Stored);
            let generation = store.get(1, &id(1, 0)).unwrap().meta().generation;
            assert!(generation > last, "{generation} after {last}");
            last = generation;
            store.delete(1, &[id(1, 0)]);
        }
    }
}

#[test]
fn bytes_that_changed_are_a_miss_once_they_are_reported() {
    let file = TempFile::new("damage");
    let (store, _) = open(&config(file.path(), 8 * MIB));
    put_n(&store, 1, CHUNK_BYTES + 5);
    put_n(&store, 2, 5000);
    assert!(!store.drop_if_damaged(1, &id(1, 0)) && !store.drop_if_damaged(1, &id(3, 0)));
    let at = store.get(1, &id(1, 0)).unwrap().shared_ref();
    let disk = std::fs::File::options().write(true).read(true).open(file.path()).unwrap();
    let last = at.offset + at.len - 1;
    disk.write_all_at(&[!value(1, CHUNK_BYTES + 5)[CHUNK_BYTES + 4]], last).unwrap();
    let pinned = store.get(1, &id(1, 0)).unwrap();
    assert!(!pinned.verify() && !pinned.copy_to(&mut vec![0; CHUNK_BYTES + 5]));
    assert!(store.drop_if_damaged(1, &id(1, 0)) && store.get(1, &id(1, 0)).is_none());
    drop(pinned);
    let header = store.get(1, &id(2, 0)).unwrap().shared_ref().header_at;
    disk.write_all_at(&[0xff; 4], header + 84).unwrap();
    assert!(store.get(1, &id(2, 0)).is_none(), "a header that changed is not believed");
    let t = store.stats().totals;
    assert_eq!((t.damaged_values, t.damaged_headers, store.stats().objects), (1, 1, 0));
    assert_eq!(put_n(&store, 2, 5000), Done::Stored);
    store.check_integrity().unwrap();
}

#[test]
fn a_changed_header_counts_as_dropped_for_who_asks_to_compare() {
    let file = TempFile::new("verify");
    let (store, _) = open(&config(file.path(), 8 * MIB));
    put_n(&store, 1, 5000);
    put_n(&store, 2, 5000);
    let header = store.get(1, &id(1, 0)).unwrap().shared_ref().header_at;
    let disk = std::fs::File::options().write(true).open(file.path()).unwrap();
    disk.write_all_at(&[0xff; 4], header + 84).unwrap();
    assert!(store.drop_if_damaged(1, &id(1, 0)), "it was dropped");
    assert!(!store.drop_if_damaged(1, &id(1, 0)), "once");
    assert!(!store.drop_if_damaged(1, &id(2, 0)) && has_n(&store, 2) && !has_n(&store, 1));
    assert_eq!(store.stats().totals.damaged(), 1);
    store.check_integrity().unwrap();
}

#[test]
fn an_entry_whose_bits_flip_is_written_anew_and_nothing_of_its_span_is_lost() {
    let file = TempFile::new("entry");
    let config = config(file.path(), 4 * MIB);
    let (store, _) = open(&config);
    (1..=3).for_each(|n| assert_eq!(put_n(&store, n, 50_000), Done::Stored));
    let reader = Reader::new(&store.reader_file().unwrap()).unwrap();
    let disk = std::fs::File::options().read(true).write(true).open(file.path()).unwrap();
    let at = store.get(1, &id(1, 0)).unwrap().shared_ref().span_at;
    let mut right = [0; 32];
    disk.read_exact_at(&mut right, at).unwrap();
    for bit in 0..256 {
        let mut bad = right;
        bad[bit / 8] ^= 1 << (bit % 8);
        disk.write_all_at(&bad, at).unwrap();
        let found = store.get(1, &id(1 + bit as u64 % 3, 0)).unwrap();
        let mut copy = vec![0; 50_000];
        assert_eq!(reader.copy(&found.shared_ref(), found.crcs(), &mut [&mut copy], || true), Ok(()), "bit {bit}");
        disk.read_exact_at(&mut bad, at).unwrap();
        assert_eq!(bad, right, "bit {bit}");
    }
    let totals = store.stats().totals;
    assert_eq!((totals.damaged_entries, totals.damaged()), (256, 256));
    store.check_integrity().unwrap();
    drop(store);
    let (_, found) = open(&config);
    assert_eq!((found.objects, found.damaged_spans), (3, 0));
}

#[test]
fn a_reader_notices_that_the_slot_was_reused() {
    let (_file, store) = fresh("reader", 4 * MIB);
    put_n(&store, 1, 300_000);
    let reader = Reader::new(&store.reader_file().unwrap()).unwrap();
    let pinned = store.get(1, &id(1, 0)).unwrap();
    let (at, crcs) = (pinned.shared_ref(), pinned.crcs().to_vec());
    let mut copy = vec![0; 300_000];
    assert_eq!(reader.copy(&at, &crcs, &mut [&mut copy], || true), Ok(()));
    assert_eq!(copy, value(1, 300_000));
    assert_eq!(reader.copy(&at, &[crcs[0] ^ 1], &mut [&mut copy], || true), Err(ReadFault::Damaged));
    for bad in [
        SharedRef { offset: !4095, ..at },
        SharedRef { offset: at.offset + 8, ..at },
        SharedRef { len: 300_001, ..at },
        SharedRef { len: u64::MAX - 4095, ..at },
        SharedRef { offset: (4 << 20) - 4096, ..at },
        SharedRef { header_at: 4 << 20, ..at },
        SharedRef { header_at: 3, ..at },
        SharedRef { span_at: u64::MAX, ..at },
        SharedRef { span_at: u64::MAX - 7, ..at },
    ] {
        assert_eq!(reader.copy(&bad, &crcs, &mut [&mut copy], || true), Err(ReadFault::Invalid), "{bad:?}");
    }
    let short = SharedRef { len: 299_999, ..at };
    assert_eq!(reader.copy(&short, &crcs, &mut [&mut copy], || true), Err(ReadFault::Damaged));
    assert_eq!(reader.copy(&at, &[], &mut [&mut copy], || true), Err(ReadFault::Invalid));
    assert_eq!(reader.copy(&at, &[1, 2], &mut [&mut copy], || true), Err(ReadFault::Invalid));
    drop(pinned);
    store.delete(1, &[id(1, 0)]);
    assert_eq!(reader.copy(&at, &crcs, &mut [&mut copy], || true), Err(ReadFault::Gone), "deleted");
    put_n(&store, 1, 300_000);
    let again = store.get(1, &id(1, 0)).unwrap().shared_ref();
    assert_eq!((again.offset, again.header_at), (at.offset, at.header_at), "the same slot");
    assert_eq!(
        reader.copy(&at, &crcs, &mut [&mut copy], || true),
        Err(ReadFault::Gone),
        "even for the same bytes again"
    );
    assert_eq!(reader.copy(&again, &crcs, &mut [&mut copy], || true), Ok(()));
    assert!(Reader::new(&std::fs::File::open("/dev/null").unwrap()).is_err());
}

#[test]
fn a_reader_fills_pieces_and_stops_when_told() {
    let (_file, store) = fresh("pieces", 8 * MIB);
    let len = 2 * CHUNK_BYTES + 777;
    put_n(&store, 1, len);
    let reader = Reader::new(&store.reader_file().unwrap()).unwrap();
    let pinned = store.get(1, &id(1, 0)).unwrap();
    let (at, crcs) = (pinned.shared_ref(), pinned.crcs());
    let cuts = [0, 0, 5, CHUNK_BYTES, CHUNK_BYTES + 1, len, len, len + 9];
    let mut owned: Vec<Vec<u8>> = cuts.windows(2).map(|c| vec![7; c[1] - c[0]]).collect();
    let mut pieces: Vec<&mut [u8]> = owned.iter_mut().map(|p| &mut p[..]).collect();
    let mut asked = 0;
    let result = reader.copy(&at, crcs, &mut pieces, || {
        asked += 1;
        true
    });
    assert_eq!((result, asked), (Ok(()), 3));
    assert_eq!(owned.concat(), [value(1, len), vec![7; 9]].concat());
    // The second of three chunks is not begun.
    let mut copy = vec![7; len];
    let mut left = 1;
    let proceed = || std::mem::replace(&mut left, 0) > 0;
    assert_eq!(reader.copy(&at, crcs, &mut [&mut copy], proceed), Err(ReadFault::Stopped));
    assert_eq!(copy[..CHUNK_BYTES], value(1, len)[..CHUNK_BYTES]);
    assert!(copy[CHUNK_BYTES..].iter().all(|b| *b == 7));
    let wrong = [crcs[0], crcs[1] ^ 1, crcs[2]];
    assert_eq!(reader.copy(&at, &wrong, &mut [&mut copy], || true), Err(ReadFault::Damaged));
    assert_eq!(reader.copy(&at, crcs, &mut [&mut copy[1..]], || true), Err(ReadFault::Invalid));
    let other = store.reader_file().unwrap();
    assert!(reader.is_of(&other) && !reader.is_of(&std::fs::File::open("/dev/null").unwrap()));
}

#[test]
fn a_reader_of_a_place_that_became_something_else_notices() {
    let (_file, store) = fresh("places", 1200 << 10);
    let reader = Reader::new(&store.reader_file().unwrap()).unwrap();
    put_n(&store, 1, 3000);
    let old = store.get(1, &id(1, 0)).unwrap();
    let (at, crcs) = (old.shared_ref(), old.crcs().to_vec());
    drop(old);
    store.delete(1, &[id(1, 0)]);
    // The place of the old header becomes part of a value that looks like it.
    let most = store.max_value_bytes();
    let Begin::Slot(mut writer) = store.begin(&meta(2, most), 0).unwrap() else { panic!("no slot") };
    writer.bytes().chunks_exact_mut(8).for_each(|w| w.copy_from_slice(&at.header_word.to_le_bytes()));
    assert_eq!(reader.copy(&at, &crcs, &mut [&mut [0; 3000]], || true), Err(ReadFault::Gone));
}

#[test]
fn threads_share_a_store() {
    let (_file, store) = fresh("threads", 3 * MIB);
    let reader = Reader::new(&store.reader_file().unwrap()).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let (store, reader) = (store.clone(), &reader);
            scope.spawn(move || {
                let mut copy = Vec::new();
                for step in 0..400 {
                    let n = mix(thread, step) % 60;
                    let len = 1000 + (n as usize * 7919) % 90_000;
                    put_n(&store, n, len);
                    let Some(pinned) = store.get(1, &id(n, 0)) else { continue };
                    assert_eq!(*pinned, value(n, len));
                    let (at, crcs) = (pinned.shared_ref(), pinned.crcs().to_vec());
                    drop(pinned);
                    if step % 7 == 0 {
                        store.delete(1, &[id(n, 0)]);
                    }
                    copy.resize(len, 0);
                    match reader.copy(&at, &crcs, &mut [&mut copy], || true) {
                        Ok(()) => assert_eq!(copy, value(n, len)),
                        Err(fault) => assert_eq!(fault, ReadFault::Gone),
                    }
                }
            });
        }
    });
    store.check_integrity().unwrap();
    assert_eq!((store.stats().held_slots, store.stats().writers), (0, 0));
}
