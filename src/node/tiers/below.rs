//! The object store below the disks: gets what they reclaim, and is asked by reads that find nothing else.
//!
//! What reclaiming drops is queued while the disk still has it, in turn with deletes, so that a deleted value is not queued.

use super::fetch::{Landing, OnDisk};
use super::{Fetch, Tiers};
use crate::disk::{Aligned, Crcs, Heir, Value};
use crate::remote::{Lost, Name, Remote, RemoteStats};
use crate::rpc::v1::Source;
use crate::shm::{Begin, ObjectId, PutMeta};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout_at;

/// How long an orderly end waits for what is queued.
const DRAIN: Duration = Duration::from_secs(5);

/// Takes for the object store what a disk drops.
pub struct Below {
    tiers: Weak<Tiers>,
    remote: Arc<Remote>,
}

impl Heir for Below {
    fn wants(&self, tenant: u64, id: &ObjectId, len: u64) -> bool {
        self.remote.wants(&(tenant, *id), len)
    }

    fn take(&self, meta: PutMeta, crcs: Crcs, value: Aligned, is_there: &dyn Fn() -> bool) {
        let Some(tiers) = self.tiers.upgrade() else { return };
        let _turn = tiers.turn();
        if is_there() {
            self.remote.offer(meta, crcs, value);
        }
    }
}

impl Tiers {
    /// What the disks are told to give their values to.
    pub(super) fn heir(self: &Arc<Self>) -> Option<Arc<Below>> {
        let remote = self.remote.clone()?;
        Some(Arc::new(Below { tiers: Arc::downgrade(self), remote }))
    }

    /// The object store's tier.
    pub fn remote(&self) -> Option<&Arc<Remote>> {
        self.remote.as_ref()
    }

    /// Counts and sizes of the object store's tier, where there is one.
    pub fn remote_stats(&self) -> Option<RemoteStats> {
        Some(self.remote.as_ref()?.stats())
    }

    /// Whether an object that is not in memory may be found by a read.
    pub fn may_be_below(&self, tenant: u64, id: &ObjectId) -> bool {
        self.disk_of(tenant, id).is_some() || self.remote.as_ref().is_some_and(|remote| remote.may_have(&(tenant, *id)))
    }

    /// Bytes that reading a value from the object store is likely to take; 0 where no read would be begun.
    pub(super) fn likely_below(&self, tenant: u64, id: &ObjectId) -> u64 {
        let asked = self.remote.as_ref().filter(|remote| remote.may_have(&(tenant, *id)));
        asked.map_or(0, |remote| remote.likely_bytes())
    }

    /// Begins a delete below the disks; for the holder of the turn.
    pub(super) fn forget_below(&self, tenant: u64, ids: &[ObjectId]) -> Option<crate::remote::Forgotten> {
        let remote = self.remote.as_ref()?;
        let mut names: Vec<Name> = ids.iter().map(|id| (tenant, *id)).collect();
        names.sort_unstable();
        names.dedup();
        Some(remote.forget(names))
    }

    /// Waits a while until what is queued is written.
    pub async fn drain(&self) {
        let Some(remote) = &self.remote else { return };
        let left = remote.drain(DRAIN).await;
        if left > 0 {
            tracing::warn!(values = left, "values that the disks dropped were not written to the object store in time");
        }
    }

    /// Reads from the object store. `share`: of the buffers for reads ahead of their turn, if this is one.
    pub(super) async fn read_below(
        &self,
        remote: &Arc<Remote>,
        tenant: u64,
        id: &ObjectId,
        mut share: Option<OwnedSemaphorePermit>,
    ) -> Fetch {
        let name = (tenant, *id);
        if !remote.may_have(&name) {
            return Fetch::Absent;
        }
        let (is_ahead, mut damage) = (share.is_some(), None);
        // A value that is damaged twice was not damaged on its way.
        for _ in 0..2 {
            match self.read_below_once(remote, &name, share.take()).await {
                Ok(fetch) => return fetch,
                // Once more, and that is not ahead of its turn.
                Err(Lost::Damaged(_)) if is_ahead => return Fetch::Crowded,
                Err(Lost::Damaged(why)) => damage = Some(why),
                Err(Lost::Failed(why)) => {
                    tracing::debug!(why, "a read from the object store is a miss");
                    return Fetch::Absent;
                }
                Err(Lost::Absent) => return Fetch::Absent,
            }
        }
        remote.is_damaged(&name, damage.unwrap_or_default()).await;
        Fetch::Damaged
    }

    async fn read_below_once(
        &self,
        remote: &Arc<Remote>,
        name: &Name,
        share: Option<OwnedSemaphorePermit>,
    ) -> Result<Fetch, Lost> {
        let opened = remote.open(name).await?;
        let share = match share {
            Some(share) => match self.shares.fit(share, opened.bytes()) {
                Some(share) => share,
                None => return Ok(Fetch::Crowded),
            },
            None => {
                let share = timeout_at(opened.until(), self.shares.in_turn(opened.bytes())).await;
                let late = || Lost::Failed("no memory to read into came free in time".into());
                share.ok().flatten().ok_or_else(late)?
            }
        };
        let (found, guard) = opened.read().await?;
        let (meta, crcs) = (found.meta, found.crcs);
        if self.uses.count(name.0, &name.1) >= self.settings.promote_after
            && let Ok(Begin::Slot(mut writer)) = self.memory.begin(&meta, self.clock.now())
        {
            writer.bytes().copy_from_slice(&found.value[..meta.len as usize]);
            return match self.bring_up(writer, &crcs, || !guard.is_gone()) {
                true => Ok(Fetch::InMemory(Source::Remote)),
                false => Err(Lost::Absent),
            };
        }
        let value = Value { meta, crcs, buffer: Landing::Heap(found.value) };
        Ok(Fetch::OnDisk(Arc::new(OnDisk::new(Source::Remote, value, share))))
    }
}
