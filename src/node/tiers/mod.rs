//! The node's storage tiers as one store: memory, below it the directories of the disk tier, where there are any, and below
//! those an object store, where there is one.
//!
//! - A value is looked for in memory first, then on disk. Where it is written is memory only; the first writer wins over
//!   both tiers.
//! - What is about to leave memory is written to disk, and its slot is free when that write has completed ([`demote`]). What
//!   is on disk already leaves at once. Where the disk tier cannot write (full for the day, read-only, offline) values leave
//!   as if there were none.
//! - A value read from disk is sent from a buffer of its own, or comes back into memory with its n-th use ([`fetch`],
//!   [`uses`]).
//! - A deleted value comes back from no tier: deleting, giving values to a lower tier and bringing them back take turns.
//! - A lease keeps values in memory. What is on disk alone is not promised, and is not counted as leased.
//! - The object store is asked by reads alone ([`below`]). What is there alone is reported to exist as far as that is known
//!   without asking, is written anew when it is put again, and a touch does not find it.

mod ahead;
mod below;
mod demote;
mod fetch;
mod uses;

pub use ahead::Ahead;
pub use demote::Demoter;
pub use fetch::{Fetch, Fetched, OnDisk};
pub use uses::Uses;

use super::state::Clock;
use crate::disk::{Disk, DiskStats, State as DiskState};
use crate::remote::Remote;
use crate::shm::{Begin, ChainKey, Exists, Lease, ObjectId, PutMeta, ShmError, Store};
use demote::Demotion;
use fetch::{Flights, Shares};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{Notify, oneshot};

/// What a delete says that a disk could not note.
const FORGOTTEN: &str = "the objects are forgotten, but may come back when the node starts anew";

/// When values go down and come up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TierSettings {
    /// With which use, of those remembered, a value on disk comes back into memory; 1: with every read.
    pub promote_after: u8,
    /// Bytes of memory that are kept free for new values.
    pub reserve: u64,
}

/// What has happened between the tiers.
#[derive(Debug, Default)]
pub struct TierCounts {
    /// Values written to disk when they left memory.
    pub demoted: AtomicU64,
    /// Values that left memory and were on disk already.
    pub clean: AtomicU64,
    /// Values that left memory and are nowhere else: no disk could take them.
    pub dropped: AtomicU64,
    /// Values that were in no tier.
    pub misses: AtomicU64,
    /// Values that came back into memory.
    pub promoted: AtomicU64,
}

impl TierCounts {
    fn add(counter: &AtomicU64, n: u64) {
        counter.fetch_add(n, Ordering::Relaxed);
    }
}

/// See the file.
pub struct Tiers {
    /// The memory tier.
    pub memory: Store,
    disks: Vec<Disk>,
    remote: Option<Arc<Remote>>,
    settings: TierSettings,
    clock: Clock,
    uses: Uses,
    flights: Flights,
    shares: Shares,
    /// Held while values are deleted, given to the disk, or brought back.
    turns: Mutex<()>,
    demotion: Demotion,
    /// Memory has become free.
    pub room: Notify,
    /// What has happened.
    pub counts: TierCounts,
}

impl Tiers {
    /// Over open tiers. With disks nothing leaves memory on its own any more, so [`Tiers::start`] must follow.
    pub fn new(memory: Store, disks: Vec<Disk>, settings: TierSettings, clock: Clock) -> Arc<Tiers> {
        Tiers::with_remote(memory, disks, None, settings, clock)
    }

    /// As [`Tiers::new`], with an object store below the disks. It gets what they reclaim, so without disks it gets nothing.
    pub fn with_remote(
        memory: Store,
        disks: Vec<Disk>,
        remote: Option<Arc<Remote>>,
        settings: TierSettings,
        clock: Clock,
    ) -> Arc<Tiers> {
        memory.keep_all(!disks.is_empty());
        let shares = Shares::new(memory.stats().slab_bytes);
        Arc::new(Tiers {
            memory,
            disks,
            remote,
            settings,
            clock,
            uses: Uses::new(),
            flights: Flights::default(),
            shares,
            turns: Mutex::default(),
            demotion: Demotion::default(),
            room: Notify::new(),
            counts: TierCounts::default(),
        })
    }

    /// Whether there is a disk tier.
    pub fn has_disk(&self) -> bool {
        !self.disks.is_empty()
    }

    fn turn(&self) -> MutexGuard<'_, ()> {
        // Nothing is behind it that a panic could leave half done.
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// As [`Store::exists`], over all tiers, of the object store what is known without asking it. Keys count as leased up to the
    /// first with a part that is not in memory.
    pub fn exists(&self, tenant: u64, keys: &[ChainKey], lease: Option<Lease>, now: u64) -> Exists {
        let mut found = self.memory.exists(tenant, keys, lease, now);
        let on_disks = self.disks.iter().map(|disk| disk.exists(tenant, keys));
        let below = self.remote.iter().map(|remote| remote.present(tenant, keys));
        for masks in on_disks.chain(below) {
            for (n, mask) in masks.into_iter().enumerate() {
                if mask & !found.masks[n] != 0 {
                    found.masks[n] |= mask;
                    found.leased_keys = found.leased_keys.min(n);
                }
            }
        }
        found
    }

    /// The disk that has an object.
    fn disk_of(&self, tenant: u64, id: &ObjectId) -> Option<&Disk> {
        let has = |disk: &&Disk| disk.exists(tenant, &[id.key]).first().is_some_and(|mask| mask >> id.part & 1 == 1);
        self.disks.iter().find(has)
    }

    /// Whether an object is there.
    pub fn has(&self, tenant: u64, id: &ObjectId) -> bool {
        self.in_memory(tenant, id) || self.disk_of(tenant, id).is_some()
    }

    fn in_memory(&self, tenant: u64, id: &ObjectId) -> bool {
        let found = self.memory.exists(tenant, &[id.key], None, 0);
        found.masks.first().is_some_and(|mask| mask >> id.part & 1 == 1)
    }

    /// As [`Store::begin`], over both tiers. With disks `NoRoom` may pass: [`Tiers::room`].
    ///
    /// # Errors
    /// As there.
    pub fn begin(&self, meta: &PutMeta, now: u64) -> Result<Begin, ShmError> {
        meta.validate()?;
        if let Some(disk) = self.disk_of(meta.tenant, &meta.id) {
            disk.touch(meta.tenant, &[meta.id]);
            return Ok(Begin::Present);
        }
        let begun = self.memory.begin(meta, now);
        if self.has_disk() && (matches!(begun, Ok(Begin::NoRoom)) || self.memory.free_bytes() < self.settings.reserve) {
            self.demotion.wake();
        }
        begun
    }

    /// Marks objects as used; returns how many are there.
    pub fn touch(&self, tenant: u64, ids: &[ObjectId]) -> usize {
        if !self.has_disk() {
            return self.memory.touch(tenant, ids);
        }
        let touch = |id: &&ObjectId| {
            self.uses.count(tenant, id);
            let here = self.memory.touch(tenant, std::slice::from_ref(*id)) > 0;
            let below = self.disks.iter().map(|disk| disk.touch(tenant, std::slice::from_ref(*id))).sum::<usize>() > 0;
            here || below
        };
        ids.iter().filter(touch).count()
    }

    /// Forgets objects in all tiers; returns how many were in memory or on disk. They stay forgotten through `kill -9`, and on
    /// disk through power loss.
    ///
    /// # Errors
    /// A sentence: a disk could not note it, so they may come back when the node starts anew, or the object store has not
    /// confirmed it.
    pub async fn delete(&self, tenant: u64, ids: &[ObjectId]) -> Result<usize, String> {
        if !self.has_disk() {
            return Ok(self.memory.delete(tenant, ids));
        }
        let (mut count, mut waiting) = (0, Vec::new());
        let forgotten;
        {
            let _turn = self.turn();
            let mut counted = std::collections::HashSet::new();
            count += ids.iter().filter(|id| counted.insert(**id) && self.has(tenant, id)).count();
            self.memory.delete(tenant, ids);
            for disk in &self.disks {
                let (done, answer) = oneshot::channel();
                disk.delete(tenant, ids, move |outcome| drop(done.send(outcome)));
                waiting.push(answer);
            }
            // What begins from now on finds what was deleted on no disk.
            self.flights.forget(tenant, ids);
            forgotten = self.forget_below(tenant, ids);
        }
        let mut noted = Ok(count);
        for answer in waiting {
            match answer.await {
                Ok(Ok(_)) => {}
                Ok(Err(e)) => noted = noted.and(Err(format!("{FORGOTTEN}: {e}"))),
                Err(_) => noted = noted.and(Err(format!("{FORGOTTEN}: the disk tier ended first"))),
            }
        }
        // Whatever the disks say: it would be found there at once.
        if let Some(forgotten) = forgotten {
            forgotten.delete().await?;
        }
        noted
    }

    /// Seals what is on disk, so that it survives power loss.
    pub async fn seal(&self) {
        for disk in &self.disks {
            let (done, answer) = oneshot::channel();
            disk.seal(move |outcome| drop(done.send(outcome)));
            if let Ok(Err(error)) = answer.await {
                tracing::warn!(%error, "the disk tier could not seal its last values; they survive all but power loss");
            }
        }
    }

    /// Sums over the disks, and what is wrong with them; none without disks.
    pub fn disk_stats(&self) -> Option<(DiskStats, Vec<String>)> {
        let mut sum = self.disks.first()?.stats();
        for disk in &self.disks[1..] {
            sum.add(&disk.stats());
        }
        let named = |disk: &Disk| {
            let what = trouble(disk)?;
            Some(if self.disks.len() == 1 { what } else { format!("{}: {what}", disk.path()) })
        };
        Some((sum, self.disks.iter().filter_map(named).collect()))
    }
}

/// What a disk cannot do and why; none where nothing is wrong.
fn trouble(disk: &Disk) -> Option<String> {
    match disk.state() {
        DiskState::ReadOnly(why) => Some(format!("read-only: {why}")),
        DiskState::Offline(why) => Some(format!("offline: {why}")),
        DiskState::Serving => {
            let stats = disk.stats();
            let (has, size) = (stats.file_bytes >> 20, stats.capacity_bytes >> 20);
            stats
                .no_space
                .then(|| format!("full: the file system has space for {has} MiB of the {size} MiB configured"))
        }
    }
}
