//! Values on their way to the store, and names whose last write may take effect yet. No I/O.

use super::header::{Crcs, Header};
use super::{Name, Names};
use crate::disk::Aligned;
use crate::shm::PutMeta;
use bytes::Bytes;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use tokio::time::Instant;

/// Names that may be remembered as unsettled. Beyond them nothing new is taken, until some have settled.
const UNSETTLED: usize = 4096;

/// A value that waits to be written, or is being written.
#[derive(Debug)]
pub struct Queued {
    /// As it was put.
    pub meta: PutMeta,
    /// CRC32C of each of its chunks.
    pub crcs: Crcs,
    value: Aligned,
}

impl Queued {
    /// Of memory whose first bytes are the value.
    pub(super) fn new(meta: PutMeta, crcs: Crcs, value: Aligned) -> Queued {
        debug_assert!(value.len() as u64 >= meta.len, "a value shorter than its length");
        Queued { meta, crcs, value }
    }

    /// Its name.
    pub fn name(&self) -> Name {
        (self.meta.tenant, self.meta.id)
    }

    /// Bytes of memory that it holds.
    fn held(&self) -> u64 {
        self.value.len() as u64
    }

    /// Name in the store, and the two parts of the object.
    pub(super) fn object(self: &Arc<Self>, names: &Names) -> (String, [Bytes; 2]) {
        let header = Header { meta: self.meta, crcs: self.crcs.clone() };
        (names.of(&self.name()), [header.encode().into(), Bytes::from_owner(Shared(self.clone()))])
    }
}

impl AsRef<[u8]> for Queued {
    fn as_ref(&self) -> &[u8] {
        &self.value[..self.meta.len as usize]
    }
}

struct Shared(Arc<Queued>);

impl AsRef<[u8]> for Shared {
    fn as_ref(&self) -> &[u8] {
        (*self.0).as_ref()
    }
}

/// Where a name stands.
enum Stand {
    /// With the number of its place in the order.
    Waiting(u64, Arc<Queued>),
    Writing(Arc<Queued>),
    /// A try of its last write was given up, and may take effect until then.
    Unsettled(Instant),
}

/// See the file.
pub struct Queue {
    stands: HashMap<Name, Stand>,
    /// Places, numbered; those whose value was taken back count for nothing.
    order: VecDeque<(u64, Name)>,
    next: u64,
    bytes: u64,
    /// Unsettled names, those first that settle first.
    unsettled: VecDeque<(Instant, Name)>,
    most: u64,
}

/// How a write ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// Nothing of it will take effect any more.
    Settled,
    /// A try was given up, and may take effect until then.
    Until(Instant),
}

impl Queue {
    /// An empty one for so many bytes.
    pub fn new(most: u64) -> Queue {
        Queue { stands: HashMap::new(), order: VecDeque::new(), next: 0, bytes: 0, unsettled: VecDeque::new(), most }
    }

    /// Bytes of memory held, and values.
    pub fn size(&self) -> (u64, u64) {
        (self.bytes, (self.stands.len() - self.unsettled.len()) as u64)
    }

    /// Whether a value of so many bytes may be added.
    pub fn has_room(&self, bytes: u64) -> bool {
        (self.bytes == 0 || self.bytes + bytes <= self.most) && self.unsettled.len() < UNSETTLED
    }

    /// Whether a value of this name is in it.
    pub fn has(&self, name: &Name) -> bool {
        matches!(self.stands.get(name), Some(Stand::Waiting(..) | Stand::Writing(_)))
    }

    /// The value of a name.
    pub fn get(&self, name: &Name) -> Option<Arc<Queued>> {
        match self.stands.get(name)? {
            Stand::Waiting(_, queued) | Stand::Writing(queued) => Some(queued.clone()),
            Stand::Unsettled(_) => None,
        }
    }

    /// Adds a value; false where there is no room, or its name is there or unsettled.
    pub fn add(&mut self, queued: Queued) -> bool {
        let name = queued.name();
        // A name that is unsettled is refused as well: its next write would hide that the last one may take effect yet.
        if !self.has_room(queued.held()) || self.stands.contains_key(&name) {
            return false;
        }
        self.bytes += queued.held();
        if self.order.len() > 2 * self.stands.len() + 1024 {
            self.order.retain(|(n, name)| matches!(self.stands.get(name), Some(Stand::Waiting(at, _)) if at == n));
        }
        self.next += 1;
        self.stands.insert(name, Stand::Waiting(self.next, Arc::new(queued)));
        self.order.push_back((self.next, name));
        true
    }

    /// The value whose turn it is; it is being written from now on.
    pub fn take(&mut self) -> Option<Arc<Queued>> {
        loop {
            let (number, name) = self.order.pop_front()?;
            if let Some(stand) = self.stands.get_mut(&name)
                && let Stand::Waiting(at, queued) = stand
                && *at == number
            {
                let queued = queued.clone();
                *stand = Stand::Writing(queued.clone());
                return Some(queued);
            }
        }
    }

    /// A write has ended.
    pub fn ended(&mut self, queued: &Queued, ended: Ended) {
        self.bytes -= queued.held();
        match ended {
            Ended::Settled => drop(self.stands.remove(&queued.name())),
            Ended::Until(until) => {
                self.unsettled.push_back((until, queued.name()));
                self.stands.insert(queued.name(), Stand::Unsettled(until));
            }
        }
    }

    /// Takes a value back that waits.
    pub fn take_back(&mut self, name: &Name) {
        if let Some(Stand::Waiting(_, queued)) = self.stands.get(name) {
            self.bytes -= queued.held();
            self.stands.remove(name);
        }
    }

    /// Whether a value is being written.
    pub fn is_writing(&self, name: &Name) -> bool {
        matches!(self.stands.get(name), Some(Stand::Writing(_)))
    }

    /// Whether a write of this name that was given up may take effect yet.
    pub fn is_unsettled(&self, name: &Name, now: Instant) -> bool {
        matches!(self.stands.get(name), Some(Stand::Unsettled(until)) if *until > now)
    }

    /// Forgets names that have settled.
    pub fn settle(&mut self, now: Instant) {
        while let Some((until, name)) = self.unsettled.front().filter(|(until, _)| *until <= now) {
            debug_assert!(matches!(self.stands.get(name), Some(Stand::Unsettled(at)) if at == until));
            self.stands.remove(name);
            self.unsettled.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::{ObjectId, chunk_crcs};
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use std::time::Duration;

    fn queued(n: u8, len: usize) -> Queued {
        let bytes = vec![n; len];
        let id = ObjectId { key: [n; 32], part: 0 };
        let meta = PutMeta {
            id,
            tenant: 1,
            bucket: 0,
            len: len as u64,
            extent: [n; 32],
            page_index: 0,
            superseded: false,
            layout: 1,
        };
        Queued::new(meta, chunk_crcs(&bytes).iter().copied().collect(), Aligned::copy_of(&bytes))
    }

    #[derive(Debug, Clone)]
    enum Do {
        Add(u8, usize),
        Take,
        End(usize, bool),
        TakeBack(u8),
        Wait(u64),
    }

    fn any_do() -> impl Strategy<Value = Do> {
        prop_oneof![
            3 => (0..12u8, 1..20_000usize).prop_map(|(n, len)| Do::Add(n, len)),
            3 => Just(Do::Take),
            2 => (any::<usize>(), any::<bool>()).prop_map(|(n, unsure)| Do::End(n, unsure)),
            2 => (0..12u8).prop_map(Do::TakeBack),
            1 => (0..50u64).prop_map(Do::Wait),
        ]
    }

    proptest! {
        /// Against a list: order, bytes, what is refused, and what is unsettled for how long.
        #[test]
        fn a_queue_is_a_list_with_a_limit(script in proptest::collection::vec(any_do(), 1..200)) {
            const MOST: u64 = 65_536;
            let (mut queue, start) = (Queue::new(MOST), Instant::now());
            let mut now = start;
            let mut waiting: Vec<(u8, u64)> = Vec::new();
            let mut writing: Vec<Arc<Queued>> = Vec::new();
            let mut unsettled: BTreeMap<u8, Instant> = BTreeMap::new();
            for step in script {
                match step {
                    Do::Add(n, len) => {
                        let new = queued(n, len);
                        let held: u64 = waiting.iter().map(|w| w.1).sum::<u64>() + writing.iter().map(|w| w.held()).sum::<u64>();
                        let taken = waiting.iter().any(|w| w.0 == n) || unsettled.contains_key(&n)
                            || writing.iter().any(|w| w.name() == new.name());
                        let fits = held == 0 || held + new.held() <= MOST;
                        let bytes = new.held();
                        prop_assert_eq!(queue.add(new), fits && !taken);
                        if fits && !taken {
                            waiting.push((n, bytes));
                        }
                    }
                    Do::Take => {
                        let expected = (!waiting.is_empty()).then(|| waiting.remove(0).0);
                        let taken = queue.take();
                        prop_assert_eq!(taken.as_ref().map(|q| q.meta.id.key[0]), expected);
                        writing.extend(taken);
                    }
                    Do::End(n, unsure) if !writing.is_empty() => {
                        let queued = writing.remove(n % writing.len());
                        let until = now + Duration::from_secs(30);
                        queue.ended(&queued, if unsure { Ended::Until(until) } else { Ended::Settled });
                        if unsure {
                            unsettled.insert(queued.meta.id.key[0], until);
                        }
                    }
                    Do::End(..) => {}
                    Do::TakeBack(n) => {
                        queue.take_back(&(1, ObjectId { key: [n; 32], part: 0 }));
                        waiting.retain(|w| w.0 != n);
                    }
                    Do::Wait(seconds) => {
                        now += Duration::from_secs(seconds);
                        queue.settle(now);
                        unsettled.retain(|_, until| *until > now);
                    }
                }
                let held: u64 = waiting.iter().map(|w| w.1).sum::<u64>() + writing.iter().map(|w| w.held()).sum::<u64>();
                prop_assert_eq!(queue.size(), (held, (waiting.len() + writing.len()) as u64));
                for n in 0..12 {
                    let name = (1, ObjectId { key: [n; 32], part: 0 });
                    let is_writing = writing.iter().any(|w| w.name() == name);
                    prop_assert_eq!(queue.is_writing(&name), is_writing);
                    prop_assert_eq!(queue.get(&name).is_some(), is_writing || waiting.iter().any(|w| w.0 == n));
                    prop_assert_eq!(queue.is_unsettled(&name, now), unsettled.contains_key(&n));
                }
            }
        }
    }
}
