//! Counts and sizes of a tier.

/// What has happened since the tier was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DiskTotals {
    /// Puts that were stored.
    pub stored: u64,
    /// Bytes of their values.
    pub stored_bytes: u64,
    /// Puts that answered `Present`.
    pub present: u64,
    /// Puts that answered `Busy`.
    pub busy: u64,
    /// Puts that answered `NoRoom`.
    pub no_room: u64,
    /// Puts that answered `OverBudget`.
    pub over_budget: u64,
    /// Puts and moves that failed.
    pub failed: u64,
    /// Reads that gave a verified value.
    pub hits: u64,
    /// Bytes of those values.
    pub hit_bytes: u64,
    /// Reads of what is not there.
    pub misses: u64,
    /// Reads that the device failed.
    pub read_errors: u64,
    /// Objects dropped because their bytes or header do not match their checksums.
    pub damaged: u64,
    /// Objects deleted on request.
    pub deleted: u64,
    /// Objects dropped because their segment was reclaimed.
    pub evicted: u64,
    /// Objects that reclaiming wrote anew.
    pub reinserted: u64,
    /// Bytes of their values.
    pub reinserted_bytes: u64,
    /// Segments sealed.
    pub sealed: u64,
    /// Segments reclaimed.
    pub reclaimed: u64,
    /// All bytes written to the device: values, padding, headers, footers, marks.
    pub written_bytes: u64,
    /// All bytes read from the device.
    pub read_bytes: u64,
}

impl DiskTotals {
    /// Bytes written to the device for each byte of a value put; 0 where none was.
    pub fn write_amplification(&self) -> f64 {
        if self.stored_bytes == 0 { 0.0 } else { self.written_bytes as f64 / self.stored_bytes as f64 }
    }
}

/// What is there now, and the totals.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DiskStats {
    /// The configured capacity.
    pub capacity_bytes: u64,
    /// Bytes of all segment files.
    pub file_bytes: u64,
    /// Objects that lookups find.
    pub objects: u64,
    /// Bytes of their blocks.
    pub block_bytes: u64,
    /// Segments that hold nothing.
    pub free_segments: u64,
    /// Segments with a footer.
    pub sealed_segments: u64,
    /// Segments that are being written, sealed or reclaimed.
    pub open_segments: u64,
    /// Bytes of this process that the index takes: records and hash table as allocated, without what segments take.
    pub index_bytes: u64,
    /// Bytes of puts in flight.
    pub write_bytes_in_flight: u64,
    /// Reads in flight.
    pub reads_in_flight: u64,
    /// Whether direct I/O is used.
    pub direct: bool,
    /// What has happened.
    pub totals: DiskTotals,
}
