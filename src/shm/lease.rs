//! Leases: promises to keep objects, bounded in time and in bytes, ended by time or with their owner.

use super::store::LeaseOwner;
use std::collections::{BTreeMap, BTreeSet};

/// All leases. Objects are named by their `u32` id of the index.
#[derive(Debug)]
pub struct Leases {
    /// (object, owner) to the time of its end and the bytes it counts.
    by_object: BTreeMap<(u32, LeaseOwner), (u64, u64)>,
    by_owner: BTreeSet<(LeaseOwner, u32)>,
    by_end: BTreeSet<(u64, u32, LeaseOwner)>,
    bytes: u64,
    limit: u64,
}

impl Leases {
    /// No leases; at most `limit` bytes, where an object counts once for each owner.
    pub fn new(limit: u64) -> Leases {
        let (by_object, by_owner, by_end) = Default::default();
        Leases { by_object, by_owner, by_end, bytes: 0, limit }
    }

    /// Leases objects, given with the bytes of their slots, until `end`: all of them or, when the limit does not allow
    /// it, none (false). One that the owner has already is prolonged, never cut.
    pub fn grant(&mut self, objects: &[(u32, u64)], owner: LeaseOwner, end: u64) -> bool {
        let new = objects.iter().filter(|(object, _)| !self.by_object.contains_key(&(*object, owner)));
        if self.bytes + new.map(|(_, bytes)| bytes).sum::<u64>() > self.limit {
            return false;
        }
        for &(object, bytes) in objects {
            let (old, _) = self.by_object.entry((object, owner)).or_insert_with(|| {
                self.by_owner.insert((owner, object));
                self.by_end.insert((end, object, owner));
                self.bytes += bytes;
                (end, bytes)
            });
            if *old < end {
                self.by_end.remove(&(*old, object, owner));
                self.by_end.insert((end, object, owner));
                *old = end;
            }
        }
        true
    }

    /// Ends one lease whose time is over at `now`. Returns its object, and whether it was that object's last.
    pub fn expire_one(&mut self, now: u64) -> Option<(u32, bool)> {
        let &(end, object, owner) = self.by_end.first()?;
        (end <= now).then(|| (object, self.end(object, owner)))
    }

    /// Ends one lease of an owner. Returns its object, and whether it was that object's last.
    pub fn release_one(&mut self, owner: LeaseOwner) -> Option<(u32, bool)> {
        let &(_, object) = self.by_owner.range((owner, 0)..=(owner, u32::MAX)).next()?;
        Some((object, self.end(object, owner)))
    }

    /// Ends all leases of an object.
    pub fn forget(&mut self, object: u32) {
        let owners: Vec<LeaseOwner> = self.of(object).map(|((_, owner), _)| *owner).collect();
        for owner in owners {
            self.end(object, owner);
        }
    }

    /// Whether an object is leased.
    pub fn has(&self, object: u32) -> bool {
        self.of(object).next().is_some()
    }

    /// Bytes under lease, counted once for each owner.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Number of leases.
    pub fn len(&self) -> usize {
        self.by_object.len()
    }

    fn of(&self, object: u32) -> impl Iterator<Item = (&(u32, LeaseOwner), &(u64, u64))> {
        self.by_object.range((object, LeaseOwner(0))..=(object, LeaseOwner(u64::MAX)))
    }

    fn end(&mut self, object: u32, owner: LeaseOwner) -> bool {
        if let Some((end, bytes)) = self.by_object.remove(&(object, owner)) {
            self.by_owner.remove(&(owner, object));
            self.by_end.remove(&(end, object, owner));
            self.bytes -= bytes;
        }
        !self.has(object)
    }

    /// Compares the three orders and the sum.
    pub fn check(&self) -> Result<(), String> {
        let owners: BTreeSet<_> = self.by_object.keys().map(|(object, owner)| (*owner, *object)).collect();
        let ends: BTreeSet<_> =
            self.by_object.iter().map(|((object, owner), (end, _))| (*end, *object, *owner)).collect();
        let bytes: u64 = self.by_object.values().map(|(_, bytes)| bytes).sum();
        if owners == self.by_owner && ends == self.by_end && bytes == self.bytes && bytes <= self.limit {
            Ok(())
        } else {
            Err(format!("leases differ between their orders, or {bytes} bytes of {} counted", self.bytes))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_end_by_time_and_by_owner_and_stay_within_their_bytes() {
        let (a, b) = (LeaseOwner(1), LeaseOwner(u64::MAX));
        let mut l = Leases::new(100);
        assert!(l.grant(&[(7, 40)], a, 50) && l.grant(&[(7, 40)], b, 20));
        assert!(!l.grant(&[(8, 15), (9, 15)], a, 50) && !l.has(8), "all of them or none");
        assert!(l.grant(&[(7, 40)], a, 30) && l.grant(&[(7, 40)], b, 60), "the same owner counts once");
        assert_eq!((l.bytes(), l.expire_one(49)), (80, None), "a lease is not cut by a shorter one");
        assert_eq!((l.expire_one(50), l.expire_one(50)), (Some((7, false)), None));
        assert!(l.grant(&[(8, 40)], b, 90) && l.has(7) && l.has(8));
        assert_eq!((l.release_one(a), l.release_one(b), l.release_one(b)), (None, Some((7, true)), Some((8, true))));
        assert!(l.grant(&[(9, 1)], a, 9) && l.grant(&[(9, 1)], b, 9));
        l.forget(9);
        assert_eq!((l.bytes(), l.len(), l.has(9)), (0, 0, false));
        l.check().unwrap();
    }
}
