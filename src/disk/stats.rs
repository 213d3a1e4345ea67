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
    fn add(&mut self, other: &DiskTotals) {
        self.stored += other.stored;
        self.stored_bytes += other.stored_bytes;
        self.present += other.present;
        self.busy += other.busy;
        self.no_room += other.no_room;
        self.over_budget += other.over_budget;
        self.failed += other.failed;
        self.hits += other.hits;
        self.hit_bytes += other.hit_bytes;
        self.misses += other.misses;
        self.read_errors += other.read_errors;
        self.damaged += other.damaged;
        self.deleted += other.deleted;
        self.evicted += other.evicted;
        self.reinserted += other.reinserted;
        self.reinserted_bytes += other.reinserted_bytes;
        self.sealed += other.sealed;
        self.reclaimed += other.reclaimed;
        self.written_bytes += other.written_bytes;
        self.read_bytes += other.read_bytes;
    }

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
    /// The file system had no space for another segment: the files there are must do, whatever the capacity.
    pub no_space: bool,
    /// Whether direct I/O is used.
    pub direct: bool,
    /// What has happened.
    pub totals: DiskTotals,
}

impl DiskStats {
    /// Adds another tier's, for sums over directories.
    pub fn add(&mut self, other: &DiskStats) {
        self.capacity_bytes += other.capacity_bytes;
        self.file_bytes += other.file_bytes;
        self.objects += other.objects;
        self.block_bytes += other.block_bytes;
        self.free_segments += other.free_segments;
        self.sealed_segments += other.sealed_segments;
        self.open_segments += other.open_segments;
        self.index_bytes += other.index_bytes;
        self.write_bytes_in_flight += other.write_bytes_in_flight;
        self.reads_in_flight += other.reads_in_flight;
        self.no_space |= other.no_space;
        self.direct &= other.direct;
        self.totals.add(&other.totals);
    }
}
