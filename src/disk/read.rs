//! Reads: the entry's header and the value, at once or one after the other, into the caller's memory.
//!
//! No segment is held while it is read. A segment that becomes another one meanwhile has another generation, so what was
//! read is then missing, not damaged.

use super::buffer::{bytes_of, fits_directly};
use super::calls::{Chooser, Raw, Target, Value};
use super::core::Later;
use super::device::{Action, Done, FileId, Piece};
use super::error::DiskError;
use super::group::{Entry, Group};
use super::index::flag;
use super::shared::Shared;
use super::{Aligned, BLOCK, Buffer};
use crate::shm::{ObjectId, PutMeta, chunk_crcs, copy_verified};
use smallvec::{SmallVec, smallvec};
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

/// Reads that the device fails one after the other until the tier goes offline.
const MOST_ERRORS: u32 = 32;

/// Where an object was when its read began.
#[derive(Debug, Clone, Copy)]
pub struct Place {
    tenant: u64,
    id: ObjectId,
    hash: u64,
    segment: u32,
    generation: u64,
    file: FileId,
    segment_blocks: u32,
    header: u32,
    at: u32,
    blocks: u32,
    number: u16,
}

/// What a read ends with.
pub type GetDone<B> = Box<dyn FnOnce(Result<Fetched<B>, DiskError>) + Send>;

/// A value that was read and not verified yet.
pub struct Fetched<B> {
    shared: Arc<Shared>,
    place: Place,
    raw: Raw,
    buffer: B,
}

impl<B: Buffer> Fetched<B> {
    /// What its header says of the value.
    pub fn meta(&self) -> &PutMeta {
        &self.raw.meta
    }

    /// Compares the bytes with their CRCs; takes as long as reading the value from memory.
    ///
    /// # Errors
    /// [`DiskError::Damaged`], and the object is dropped; [`DiskError::Missing`] when its segment became another one while it
    /// was read.
    pub fn verify(self) -> Result<Value<B>, DiskError> {
        let Fetched { shared, place, raw, buffer } = self;
        let len = raw.meta.len as usize;
        let right = match &raw.bounce {
            // SAFETY: the buffer has `len` bytes, which was checked, and is owned here.
            Some(bounce) => {
                copy_verified(unsafe { std::slice::from_raw_parts_mut(buffer.start(), len) }, &bounce[..len], &raw.crcs)
            }
            None => chunk_crcs(bytes_of(&buffer, len)) == raw.crcs,
        };
        if !right {
            return Err(shared.damaged(&place));
        }
        shared.with(|core, _| {
            core.totals.hits += 1;
            core.totals.hit_bytes += len as u64;
        })?;
        Ok(Value { meta: raw.meta, crcs: raw.crcs, buffer })
    }
}

/// The two halves of a read that run at once.
struct Join<B> {
    left: u8,
    header: Option<Aligned>,
    failure: Option<io::Error>,
    value: Option<(B, Option<Aligned>)>,
    done: Option<GetDone<B>>,
}

impl Shared {
    /// Reads an object; see [`super::Disk::get`].
    pub fn get<B: Buffer>(self: &Arc<Self>, tenant: u64, id: &ObjectId, target: Target<B>, done: GetDone<B>) {
        match self.begin_read(tenant, id) {
            Err(error) => done(Err(error)),
            Ok(place) => match target {
                Target::Buffer(buffer) => self.read_both(place, buffer, done),
                Target::Place(choose) => {
                    let shared = self.clone();
                    self.io.read(place.file, place.header, Aligned::new(BLOCK), move |result| {
                        shared.read_after_header(place, result, choose, done);
                    });
                }
            },
        }
    }

    fn begin_read(&self, tenant: u64, id: &ObjectId) -> Result<Place, DiskError> {
        let mut core = self.lock()?;
        core.state.readable()?;
        let hash = core.index.hash(tenant, &id.key);
        let Some(at) = core.index.find(hash, id.part) else {
            core.totals.misses += 1;
            return Err(DiskError::Missing);
        };
        if core.reads >= core.config.reads_in_flight {
            return Err(DiskError::Busy { most: core.config.reads_in_flight });
        }
        core.reads += 1;
        core.index.get_mut(at).flags |= flag::HIT;
        let record = *core.index.get(at);
        let segment = core.segment(record.segment);
        Ok(Place {
            tenant,
            id: *id,
            hash,
            segment: record.segment,
            generation: segment.generation,
            file: segment.file,
            segment_blocks: segment.blocks,
            header: record.at - u32::from(record.back),
            at: record.at,
            blocks: u32::from(record.blocks),
            number: record.number,
        })
    }

    /// The read is over, well or not.
    fn end_read<B: Buffer>(&self, done: GetDone<B>, result: Result<Fetched<B>, DiskError>) {
        let _ = self.with(|core, _| core.reads -= 1);
        done(result);
    }

    /// A buffer that takes the value's blocks in place, or memory to read them into first.
    fn bounce(place: &Place, buffer: &dyn Buffer) -> (Option<Aligned>, Piece) {
        let len = place.blocks as usize * BLOCK;
        if fits_directly(buffer, len) {
            return (None, Piece { start: buffer.start(), len });
        }
        let bounce = Aligned::new(len);
        let piece = Piece { start: bounce.as_ptr().cast_mut(), len };
        (Some(bounce), piece)
    }

    fn read_both<B: Buffer>(self: &Arc<Self>, place: Place, buffer: B, done: GetDone<B>) {
        let needed = u64::from(place.blocks - 1) * BLOCK as u64 + 1;
        if (buffer.capacity() as u64) < needed {
            let error = DiskError::TooSmall { capacity: buffer.capacity() as u64, needed };
            return self.end_read(done, Err(error));
        }
        let (bounce, piece) = Self::bounce(&place, &buffer);
        let header = Aligned::new(BLOCK);
        let head = Piece { start: header.as_ptr().cast_mut(), len: BLOCK };
        let shared = self.clone();
        if place.header + 1 == place.at {
            let owner: Done = Box::new(move |result| {
                shared.both_read(place, result.map(|()| header), buffer, bounce, done);
            });
            // SAFETY: `owner` owns header, buffer and bounce.
            unsafe { self.io.start(place.file, Action::Read, place.header, smallvec![head, piece], owner) }
            return;
        }
        let join = Arc::new(Mutex::new(Join { left: 2, header: None, failure: None, value: None, done: Some(done) }));
        let other = (join.clone(), self.clone());
        let value_owner: Done =
            Box::new(move |result| shared.half_read(place, &join, result, None, Some((buffer, bounce))));
        // SAFETY: `value_owner` owns buffer and bounce.
        unsafe { self.io.start(place.file, Action::Read, place.at, smallvec![piece], value_owner) }
        let header_owner: Done = Box::new(move |result| other.1.half_read(place, &other.0, result, Some(header), None));
        // SAFETY: `header_owner` owns the header.
        unsafe { self.io.start(place.file, Action::Read, place.header, smallvec![head], header_owner) }
    }

    fn half_read<B: Buffer>(
        self: &Arc<Self>,
        place: Place,
        join: &Mutex<Join<B>>,
        result: io::Result<()>,
        header: Option<Aligned>,
        value: Option<(B, Option<Aligned>)>,
    ) {
        let mut join = join.lock().unwrap_or_else(PoisonError::into_inner);
        join.left -= 1;
        join.header = join.header.take().or(header);
        join.value = join.value.take().or(value);
        if let Err(e) = result {
            join.failure.get_or_insert(e);
        }
        if join.left > 0 {
            return;
        }
        let (header, value, done) = (join.header.take(), join.value.take(), join.done.take());
        let failure = join.failure.take();
        drop(join);
        if let (Some(header), Some((buffer, bounce)), Some(done)) = (header, value, done) {
            self.both_read(place, failure.map_or(Ok(header), Err), buffer, bounce, done);
        }
    }

    fn both_read<B: Buffer>(
        self: &Arc<Self>,
        place: Place,
        result: io::Result<Aligned>,
        buffer: B,
        bounce: Option<Aligned>,
        done: GetDone<B>,
    ) {
        let outcome = self.header_of(&place, result).and_then(|entry| {
            let (len, capacity) = (entry.meta.len, buffer.capacity() as u64);
            if capacity < len {
                return Err(DiskError::TooSmall { capacity, needed: len });
            }
            let raw = Raw { meta: entry.meta, crcs: entry.crcs, bounce };
            Ok(Fetched { shared: self.clone(), place, raw, buffer })
        });
        self.end_read(done, outcome);
    }

    fn read_after_header<B: Buffer>(
        self: &Arc<Self>,
        place: Place,
        result: io::Result<Aligned>,
        choose: Chooser<B>,
        done: GetDone<B>,
    ) {
        let chosen = self.header_of(&place, result).and_then(|entry| match choose(&entry.meta) {
            None => Err(DiskError::Missing),
            Some(buffer) if (buffer.capacity() as u64) < entry.meta.len => {
                Err(DiskError::TooSmall { capacity: buffer.capacity() as u64, needed: entry.meta.len })
            }
            Some(buffer) => Ok((entry, buffer)),
        });
        let (entry, buffer) = match chosen {
            Ok(chosen) => chosen,
            Err(error) => return self.end_read(done, Err(error)),
        };
        let (bounce, piece) = Self::bounce(&place, &buffer);
        let pieces: SmallVec<[Piece; 2]> = smallvec![piece];
        let shared = self.clone();
        let owner: Done = Box::new(move |result| {
            let raw = Raw { meta: entry.meta, crcs: entry.crcs, bounce };
            let outcome = match result {
                Ok(()) => Ok(Fetched { shared: shared.clone(), place, raw, buffer }),
                Err(e) => Err(shared.read_failed(&place, &e)),
            };
            shared.end_read(done, outcome);
        });
        // SAFETY: `owner` owns buffer and bounce.
        unsafe { self.io.start(place.file, Action::Read, place.at, pieces, owner) }
    }

    /// The entry of the object in the header that was read for it.
    fn header_of(&self, place: &Place, result: io::Result<Aligned>) -> Result<Entry, DiskError> {
        let bytes = result.map_err(|e| self.read_failed(place, &e))?;
        // Only a read that failed before makes this worth a lock.
        if self.reads_failed.swap(false, Ordering::Relaxed) {
            let _ = self.with(|core, _| core.read_errors_in_a_row = 0);
        }
        let block: &[u8; BLOCK] = bytes[..BLOCK].try_into().expect("a block");
        let group = Group::decode(block, place.generation, place.header, place.segment_blocks);
        let entry = group.ok().and_then(|g| g.entries.into_iter().find(|e| e.at == place.at));
        let Some(entry) = entry else { return Err(self.damaged(place)) };
        if (entry.meta.tenant, entry.meta.id) != (place.tenant, place.id) {
            return Err(DiskError::Missing);
        }
        if super::layout::blocks_of(entry.meta.len) != place.blocks { Err(self.damaged(place)) } else { Ok(entry) }
    }

    /// Drops an object whose bytes are wrong, unless they belong to another generation by now.
    fn damaged(&self, place: &Place) -> DiskError {
        let outcome = self.with(|core, _: &mut Later| {
            if !Shared::same(core, place.segment, place.generation) {
                return DiskError::Missing;
            }
            let found = core.index.find(place.hash, place.id.part).map(|at| *core.index.get(at));
            if found.is_some_and(|r| (r.segment, r.number) == (place.segment, place.number)) {
                core.drop_object(place.hash, place.id.part);
                core.totals.damaged += 1;
            }
            DiskError::Damaged
        });
        outcome.unwrap_or_else(|e| e)
    }

    /// The device failed a read, unless the file was closed because its segment is gone.
    fn read_failed(&self, place: &Place, error: &io::Error) -> DiskError {
        if !self.with(|core, _| Shared::same(core, place.segment, place.generation)).unwrap_or(false) {
            return DiskError::Missing;
        }
        let path = self.io.device.path();
        self.reads_failed.store(true, Ordering::Relaxed);
        let in_a_row = self.with(|core, _| {
            core.totals.read_errors += 1;
            core.read_errors_in_a_row += 1;
            core.read_errors_in_a_row
        });
        if in_a_row.is_ok_and(|n| n >= MOST_ERRORS) {
            self.go_offline(&format!("{MOST_ERRORS} reads failed one after the other, the last with: {error}"));
        }
        DiskError::io(path, "read a value", error)
    }
}
