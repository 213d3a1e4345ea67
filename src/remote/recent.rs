//! What is known of names without asking: of a fixed number of them, whether they were absent or present lately. A name that
//! another one pushes out of its place is asked for again, nothing worse.

use super::Name;
use foldhash::quality::RandomState;
use std::hash::BuildHasher;
use std::time::Duration;
use tokio::time::Instant;

/// Places; a power of two.
const PLACES: usize = 1 << 16;
/// How long a name is taken to be present. The store may drop objects by rules of its own.
const PRESENT_FOR: Duration = Duration::from_secs(3600);

/// What a name was lately.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Known {
    /// Not in the store.
    Absent,
    /// In the store.
    Present,
}

/// See the file. Two MiB.
pub struct Recent {
    places: Box<[Option<(u64, Known, Instant)>]>,
    hash: RandomState,
    absent_for: Duration,
}

impl Recent {
    /// Nothing is known.
    pub fn new(absent_for: Duration) -> Recent {
        Recent { places: vec![None; PLACES].into(), hash: RandomState::default(), absent_for }
    }

    fn place(&self, name: &Name) -> (u64, usize) {
        let hash = self.hash.hash_one(name);
        (hash, hash as usize % PLACES)
    }

    /// What is known of a name.
    pub fn get(&self, name: &Name, now: Instant) -> Option<Known> {
        let (hash, at) = self.place(name);
        let (of, known, since) = self.places[at]?;
        let keeps = if known == Known::Absent { self.absent_for } else { PRESENT_FOR };
        (of == hash && now.saturating_duration_since(since) < keeps).then_some(known)
    }

    /// It is so now.
    pub fn set(&mut self, name: &Name, known: Known, now: Instant) {
        let (hash, at) = self.place(name);
        self.places[at] = Some((hash, known, now));
    }

    /// Nothing is known of it any more.
    pub fn forget(&mut self, name: &Name) {
        let (hash, at) = self.place(name);
        if self.places[at].is_some_and(|(of, ..)| of == hash) {
            self.places[at] = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::ObjectId;

    #[test]
    fn what_is_known_fades() {
        let mut recent = Recent::new(Duration::from_secs(60));
        let (start, name) = (Instant::now(), (1, ObjectId { key: [1; 32], part: 2 }));
        let other = (2, name.1);
        assert_eq!(recent.get(&name, start), None);
        recent.set(&name, Known::Absent, start);
        assert_eq!(recent.get(&name, start + Duration::from_secs(59)), Some(Known::Absent));
        assert_eq!(recent.get(&other, start), None, "another tenant's is another name");
        assert_eq!(recent.get(&name, start + Duration::from_secs(60)), None);
        recent.set(&name, Known::Present, start);
        recent.forget(&other);
        assert_eq!(recent.get(&name, start + Duration::from_secs(3599)), Some(Known::Present));
        assert_eq!(recent.get(&name, start + Duration::from_secs(3600)), None);
        recent.forget(&name);
        assert_eq!(recent.get(&name, start), None);
    }
}
