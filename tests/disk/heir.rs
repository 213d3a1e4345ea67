//! What reclaiming drops is offered to an heir while it is there.

use crate::disk::{TENANT, config, has, id, open, put_soon, value, work};
use mimo_cache::disk::memory::Memory;
use mimo_cache::disk::{Aligned, Crcs, Disk, Heir};
use mimo_cache::shm::{ObjectId, PutMeta, chunk_crcs};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// Takes what the disk drops, but for those of one part. Those of another are deleted while they are handed over.
struct Taker {
    disk: Disk,
    taken: Mutex<BTreeMap<ObjectId, Vec<u8>>>,
    deleted: Mutex<Vec<ObjectId>>,
}

impl Heir for Taker {
    fn wants(&self, tenant: u64, id: &ObjectId, len: u64) -> bool {
        assert!(tenant == TENANT && len == 8000);
        id.part != 7
    }

    fn take(&self, meta: PutMeta, crcs: Crcs, value: Aligned, is_there: &dyn Fn() -> bool) {
        let value = value[..meta.len as usize].to_vec();
        assert!(crcs[..] == chunk_crcs(&value)[..] && has(&self.disk, &meta.id));
        assert!(is_there(), "it is dropped after it was handed over");
        if meta.id.part == 5 {
            self.disk.delete(TENANT, &[meta.id], |_| ());
            assert!(!is_there() && !has(&self.disk, &meta.id));
            self.deleted.lock().unwrap().push(meta.id);
        } else {
            assert!(self.taken.lock().unwrap().insert(meta.id, value).is_none(), "once");
        }
    }
}

#[test]
fn what_is_dropped_goes_to_the_heir_while_it_is_there() {
    let disk = open(&config(24), &Arc::new(Memory::new())).0;
    work(&disk);
    let name = |n: u64| id(n, (n % 8) as u8);
    let taker = Arc::new(Taker { disk: disk.clone(), taken: Mutex::default(), deleted: Mutex::default() });
    disk.set_heir(taker.clone());
    for n in 0..400 {
        put_soon(&disk, name(n), &value(n, 8000));
        work(&disk);
    }
    let (taken, deleted) = (taker.taken.lock().unwrap(), taker.deleted.lock().unwrap());
    assert!(taken.len() > 150 && deleted.len() > 20, "{} {}", taken.len(), deleted.len());
    for n in 0..400 {
        let (on_disk, found) = (has(&disk, &name(n)), taken.get(&name(n)));
        assert!(found.is_none_or(|found| *found == value(n, 8000)));
        // In one place, and nowhere if it was deleted or not wanted.
        let gone = deleted.contains(&name(n)) || n % 8 == 7 && !on_disk;
        assert_eq!((on_disk, found.is_some()), (!gone && found.is_none(), !gone && !on_disk), "{n}");
    }
    disk.check_integrity().unwrap();
}
