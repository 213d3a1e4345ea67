//! Counts and sizes of a store.

use super::ledger::Ledger;

/// What has happened since the store was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Values committed.
    pub committed: u64,
    /// `begin` answered `Present`.
    pub present: u64,
    /// `begin` answered `Busy`.
    pub busy: u64,
    /// `begin` answered `NoRoom`.
    pub no_room: u64,
    /// Writers dropped without a commit.
    pub aborted: u64,
    /// `get` found the value.
    pub hits: u64,
    /// `get` found none.
    pub misses: u64,
    /// Values evicted.
    pub evicted_objects: u64,
    /// Bytes of their slots.
    pub evicted_bytes: u64,
    /// Of them those that went because whole slabs were needed.
    pub reclaimed_objects: u64,
    /// Values deleted on request.
    pub deleted: u64,
    /// Values dropped because their header no longer passed its checks.
    pub damaged_headers: u64,
    /// Values dropped because their bytes no longer match their CRCs.
    pub damaged_values: u64,
    /// Entries of the slab table that had changed and were written anew; no value was lost.
    pub damaged_entries: u64,
}

impl Totals {
    /// Everything that was found damaged.
    pub fn damaged(&self) -> u64 {
        self.damaged_headers + self.damaged_values + self.damaged_entries
    }
}

/// What is there now, and the totals.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Size of the file.
    pub file_bytes: u64,
    /// Bytes of all slabs: the most that values can take.
    pub slab_bytes: u64,
    /// Bytes of slabs that belong to no span.
    pub free_slab_bytes: u64,
    /// Keys with at least one part.
    pub keys: u64,
    /// Values that lookups find.
    pub objects: u64,
    /// Bytes of all slots in use: of those values, of writers, and of values deleted while pinned.
    pub slot_bytes: u64,
    /// Slots in use that cannot be evicted now: pinned, leased or being written.
    pub held_slots: u64,
    /// Leases.
    pub leases: u64,
    /// Bytes of slots under lease, counted once for each owner.
    pub lease_bytes: u64,
    /// Writers that have neither committed nor aborted.
    pub writers: u64,
    /// Bytes of this process that keys, objects, extents and spans take.
    pub index_bytes: u64,
    /// What has happened.
    pub totals: Totals,
}

impl Ledger {
    /// Counts and sizes, all of them kept up to date.
    pub fn stats(&self) -> Stats {
        let g = &self.map.geometry;
        Stats {
            file_bytes: g.file_bytes,
            slab_bytes: u64::from(g.slabs) * u64::from(g.slab_bytes),
            free_slab_bytes: u64::from(self.spans.runs.free()) * u64::from(g.slab_bytes),
            keys: self.index.keys() as u64,
            objects: self.listed,
            slot_bytes: self.slot_bytes,
            held_slots: self.held,
            leases: self.leases.len() as u64,
            lease_bytes: self.leases.bytes(),
            writers: self.writing.len() as u64,
            index_bytes: self.index.bytes() + self.extents.bytes() + self.spans.bytes(),
            totals: self.totals,
        }
    }
}
