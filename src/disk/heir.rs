//! What reclaiming drops is offered to an heir first, with its bytes, where there is one ([`super::Disk::set_heir`]).

use super::Aligned;
use super::core::Core;
use super::device::FileId;
use super::footer::Listed;
use super::group::{Crcs, Group};
use super::reclaim::Chosen;
use super::segment::SegmentId;
use super::shared::Shared;
use crate::shm::{ObjectId, PutMeta};
use std::sync::Arc;

/// Who gets what is dropped. Called by the worker, without a lock of the tier, while lookups still find the object; must not
/// wait.
pub trait Heir: Send + Sync {
    /// Whether the value should be read at all.
    fn wants(&self, tenant: u64, id: &ObjectId, len: u64) -> bool;
    /// A value as it was put, the first bytes of `value`, compared with its CRCs. The object may have been deleted while it
    /// was read, and put again: whoever keeps it asks `is_there`, which is about this very copy.
    fn take(&self, meta: PutMeta, crcs: Crcs, value: Aligned, is_there: &dyn Fn() -> bool);
}

impl Shared {
    /// Offers entries of a segment to the heir, where there is one, and drops them from the index. Those that are elsewhere by
    /// now, or deleted, are left alone.
    pub fn hand_over(
        self: &Arc<Self>,
        victim: SegmentId,
        (file, generation, blocks): (FileId, u64, u32),
        left: &[Chosen],
    ) {
        let Some(heir) = self.heir.get() else { return };
        let mut header: Option<Group> = None;
        for (number, listed) in left {
            let id = ObjectId { key: listed.key, part: listed.part };
            let is_there = || self.with(|core, _| core.is_at(listed, (victim, *number)).is_some()).unwrap_or(false);
            if is_there()
                && !self.stopping()
                && heir.wants(listed.tenant, &id, u64::from(listed.len))
                && let Some((entry, value)) = self.read_listed(file, generation, blocks, listed, &mut header)
            {
                heir.take(entry.meta, entry.crcs, value, &is_there);
                // Deletes do not wait for the whole segment.
                while self.write_marks() {}
            }
            let _ = self.with(|core, _| {
                if let Some(hash) = core.is_at(listed, (victim, *number)) {
                    core.drop_object(hash, listed.part);
                    core.totals.evicted += 1;
                }
            });
        }
    }
}

impl Core {
    /// The hash of an entry's key, if the index points to that entry.
    fn is_at(&self, listed: &Listed, place: (SegmentId, u16)) -> Option<u64> {
        let hash = self.index.hash(listed.tenant, &listed.key);
        let record = self.index.get(self.index.find(hash, listed.part)?);
        ((record.segment, record.number) == place).then_some(hash)
    }
}
