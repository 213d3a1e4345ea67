//! Reading: an object is opened, which tells its length, and then read into memory that the caller has made room for.

use super::Name;
use super::bucket::{Answer, Refused};
use super::header::{Crcs, Header, MAX_HEADER_BYTES, Unfit};
use super::queue::Queued;
use super::recent::Known;
use super::stats::Counters;
use super::tier::{Remote, lock};
use crate::disk::Aligned;
use crate::shm::{MAX_VALUE_BYTES, PutMeta, chunk_crcs};
use futures_util::StreamExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, timeout_at};

/// Longest object.
const MOST: u64 = MAX_VALUE_BYTES + MAX_HEADER_BYTES as u64;

/// A verified value.
#[derive(Debug)]
pub struct Found {
    /// As it was put.
    pub meta: PutMeta,
    /// CRC32C of each of its chunks.
    pub crcs: Crcs,
    /// Its first [`PutMeta::len`] bytes are the value.
    pub value: Aligned,
}

/// Why there is no value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lost {
    /// The store does not have it, or nobody asked because that is known, or because the tier rests.
    Absent,
    /// The object is not what its name says.
    Damaged(&'static str),
    /// The store failed, or was late.
    Failed(String),
}

/// A read that runs: whoever deletes the object meanwhile says so here.
struct Reading {
    remote: Arc<Remote>,
    gone: Arc<AtomicBool>,
    permit: Option<OwnedSemaphorePermit>,
    /// Since when the store is waited for, while it is.
    waits: Option<Instant>,
}

impl std::fmt::Debug for Reading {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Reading(gone: {})", self.gone.load(Ordering::Acquire))
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        lock(&self.remote.busy).reads.retain(|(_, gone)| !Arc::ptr_eq(gone, &self.gone));
        // Who asked has gone before the time was over. Without this a store that hangs would never be left alone, if nobody
        // has as much patience as a read.
        if let Some(waited) = self.waits.map(|since| since.elapsed())
            && waited >= self.remote.config.read_timeout / 2
        {
            self.remote.failed(&Refused::late(waited.as_millis()).sentence);
        }
    }
}

/// An object that can be read. What it holds ends with it.
#[derive(Debug)]
pub struct Opened {
    name: Name,
    reading: Reading,
    from: From,
    until: Instant,
}

#[derive(Debug)]
enum From {
    Store(Answer),
    Queue(Arc<Queued>),
}

/// Keeps the read known until the caller has done with its value what a delete must come before or after.
#[derive(Debug)]
pub struct Guard(Reading);

impl Guard {
    /// The object was deleted since the read began, so nothing may be made of its value.
    pub fn is_gone(&self) -> bool {
        self.0.gone.load(Ordering::Acquire)
    }
}

impl Opened {
    /// Bytes of memory that reading it takes.
    pub fn bytes(&self) -> u64 {
        match &self.from {
            From::Store(answer) => answer.bytes,
            From::Queue(queued) => queued.meta.len,
        }
    }

    /// When the read ends, whatever has come.
    pub fn until(&self) -> Instant {
        self.until
    }

    /// Reads and verifies.
    ///
    /// # Errors
    /// [`Lost`]; of an object that is damaged the tier thinks nothing yet ([`Remote::is_damaged`]).
    pub async fn read(self) -> Result<(Found, Guard), Lost> {
        let Opened { name, mut reading, from, until } = self;
        let remote = reading.remote.clone();
        let read = match from {
            From::Queue(queued) => {
                Counters::add(&remote.counts.queue_hits, 1);
                let value = Aligned::copy_of((*queued).as_ref());
                Ok(Found { meta: queued.meta, crcs: queued.crcs.clone(), value })
            }
            From::Store(answer) => {
                reading.waits = Some(Instant::now());
                let read = timeout_at(until, remote.receive(&name, answer)).await;
                reading.waits = None;
                let read = read.unwrap_or_else(|_| Err(Lost::Failed(remote.late().sentence)));
                let busy = lock(&remote.busy);
                // Under the lock, so that a delete comes before or after.
                if !reading.gone.load(Ordering::Acquire) {
                    match &read {
                        Ok(_) => lock(&remote.record).add(&name),
                        Err(Lost::Absent) => lock(&remote.record).remove(&name),
                        Err(_) => {}
                    }
                }
                drop(busy);
                read
            }
        };
        match &read {
            Ok(found) => {
                Counters::add(&remote.counts.hits, 1);
                Counters::add(&remote.counts.hit_bytes, found.meta.len);
                remote.saw(found.meta.len);
            }
            Err(Lost::Failed(why)) => remote.failed(why),
            Err(_) => {}
        }
        let guard = Guard(reading);
        if guard.is_gone() {
            return Err(Lost::Absent);
        }
        read.map(|found| (found, guard))
    }
}

impl Remote {
    /// Begins to read an object. All of the read, and the wait for others' reads before it, has the time of one call.
    ///
    /// # Errors
    /// [`Lost`].
    pub async fn open(self: &Arc<Self>, name: &Name) -> Result<Opened, Lost> {
        let until = Instant::now() + self.config.read_timeout;
        let gone = Arc::new(AtomicBool::new(false));
        {
            let mut busy = lock(&self.busy);
            if busy.deletes.contains_key(name) {
                return Err(Lost::Absent);
            }
            busy.reads.push((*name, gone.clone()));
        }
        let mut reading = Reading { remote: self.clone(), gone, permit: None, waits: None };
        let queued = lock(&self.queue).get(name);
        if let Some(queued) = queued {
            return Ok(Opened { name: *name, reading, from: From::Queue(queued), until });
        }
        let now = Instant::now();
        let known = lock(&self.recent).get(name, now);
        if known == Some(Known::Absent) {
            Counters::add(&self.counts.known_misses, 1);
            lock(&self.record).remove(name);
            return Err(Lost::Absent);
        }
        if lock(&self.rest).until(now).is_some() {
            Counters::add(&self.counts.rested, 1);
            return Err(Lost::Absent);
        }
        // Waiting for one's turn is no failure of the store.
        let Ok(Ok(permit)) = timeout_at(until, self.reading.clone().acquire_owned()).await else {
            Counters::add(&self.counts.read_errors, 1);
            return Err(Lost::Failed(self.late().sentence));
        };
        reading.permit = Some(permit);
        let at = self.names.of(name);
        reading.waits = Some(Instant::now());
        let answer = timeout_at(until, self.bucket.get(&at)).await;
        reading.waits = None;
        match answer.unwrap_or_else(|_| Err(self.late())) {
            Ok(Some(answer)) if answer.bytes > MOST => Err(Lost::Damaged("it is longer than any value")),
            Ok(Some(answer)) => Ok(Opened { name: *name, reading, from: From::Store(answer), until }),
            Ok(None) => {
                self.went_well();
                Counters::add(&self.counts.misses, 1);
                // What was written meanwhile is there.
                let written = known != Some(Known::Present)
                    && lock(&self.recent).get(name, Instant::now()) == Some(Known::Present);
                if !written {
                    self.is_absent(name);
                }
                Err(Lost::Absent)
            }
            Err(refused) => {
                self.failed(&refused.sentence);
                Err(Lost::Failed(refused.sentence))
            }
        }
    }

    fn late(&self) -> Refused {
        Refused::late(self.config.read_timeout.as_millis())
    }

    fn failed(&self, why: &str) {
        Counters::add(&self.counts.read_errors, 1);
        self.went_wrong(why);
    }

    /// The bytes of an object that was opened.
    async fn receive(&self, name: &Name, mut answer: Answer) -> Result<Found, Lost> {
        // As many bytes as are looked at for a header.
        let head = (answer.bytes as usize).min(MAX_HEADER_BYTES);
        let mut first = Vec::with_capacity(head);
        let mut into: Option<(Header, Aligned)> = None;
        let mut got = 0;
        while let Some(bytes) = answer.body.next().await {
            let mut bytes = bytes.map_err(|refused| Lost::Failed(refused.sentence))?;
            Counters::add(&self.counts.read_bytes, bytes.len() as u64);
            if into.is_none() {
                first.extend_from_slice(&bytes.split_to(bytes.len().min(head - first.len())));
                if first.len() < head {
                    continue;
                }
                let header = self.header(name, &first, answer.bytes)?;
                let begun = &first[Header::bytes(header.meta.len)..];
                let mut value = Aligned::new(header.meta.len as usize);
                value[..begun.len()].copy_from_slice(begun);
                got = begun.len();
                into = Some((header, value));
            }
            if let Some((header, value)) = &mut into {
                let end = got + bytes.len();
                if end > header.meta.len as usize {
                    return Err(Lost::Failed("the store sent more than it had said".into()));
                }
                value[got..end].copy_from_slice(&bytes);
                got = end;
            }
        }
        if head == 0 {
            return Err(Lost::Damaged("it is empty"));
        }
        let Some((header, value)) = into.filter(|(header, _)| got == header.meta.len as usize) else {
            return Err(Lost::Failed("the store sent less than it had said".into()));
        };
        self.went_well();
        if chunk_crcs(&value[..got])[..] != header.crcs[..] {
            return Err(Lost::Damaged("its bytes do not match their CRCs"));
        }
        Ok(Found { meta: header.meta, crcs: header.crcs, value })
    }

    fn header(&self, name: &Name, first: &[u8], object: u64) -> Result<Header, Lost> {
        match Header::decode(first, object) {
            Ok(header) if (header.meta.tenant, header.meta.id) == *name => Ok(header),
            Ok(_) => Err(Lost::Damaged("its header has another name")),
            Err(Unfit::Damaged(why)) => Err(Lost::Damaged(why)),
            Err(Unfit::Version(version)) => {
                Counters::add(&self.counts.other_version, 1);
                tracing::debug!(version, "an object of the object store has a version that this program does not read");
                Err(Lost::Absent)
            }
        }
    }

    /// An object failed its checks in two reads, so it is not the way that is bad: it is counted and removed.
    pub async fn is_damaged(&self, name: &Name, why: &str) {
        Counters::add(&self.counts.damaged, 1);
        tracing::warn!(why, object = self.names.of(name), "an object of the object store is damaged, and is removed");
        self.remove_damaged(name).await;
    }
}
