//! Deletes: an entry's mark is on the device and synced before the callback is called.
//!
//! Marks lie in the segment of their entry, so they live and go with it: there is no tombstone to keep. Deletes that wait
//! at the same time share one round of writes and syncs. A round writes every mark that is not on disk yet, also those of
//! entries that were evicted, moved or found twice: a delete must not leave an older copy of its object.

use super::core::{Core, Ticket};
use super::device::FileId;
use super::error::DiskError;
use super::shared::Shared;
use crate::shm::ObjectId;
use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::channel;

/// Called once with the number of objects that were there, when none of them can come back.
pub type DeleteDone = Box<dyn FnOnce(Result<usize, DiskError>) + Send>;

/// Marks to write: file, block of the segment, bytes.
type Block = (FileId, u32, Vec<u8>);

impl Shared {
    /// Forgets objects; see [`super::Disk::delete`].
    pub fn delete(&self, tenant: u64, ids: &[ObjectId], done: DeleteDone) {
        let mut done = Some(done);
        let outcome = self.with_bell(|core, later| {
            let ticket = core.next_ticket;
            let (found, waiting) = core.forget(tenant, ids, ticket);
            let Some(done) = done.take() else { return };
            if let Err(error) = core.state.writable() {
                later.push(Box::new(move || done(Err(error))));
                return;
            }
            core.next_ticket += 1;
            core.tickets.insert(ticket, Ticket { waiting, found, done });
        });
        if let (Err(error), Some(done)) = (outcome, done) {
            done(Err(error));
        }
    }

    /// One round; false when no delete is ready for it.
    pub fn write_marks(self: &Arc<Self>) -> bool {
        let taken = self.with(|core, later| {
            if let Err(error) = core.state.writable() {
                // Those in flight as well: nobody knows whether they will ever complete.
                for (_, ticket) in std::mem::take(&mut core.tickets) {
                    let error = error.clone();
                    later.push(Box::new(move || (ticket.done)(Err(error))));
                }
                return None;
            }
            let ready: Vec<u64> = core.tickets.iter().filter(|(_, t)| t.waiting == 0).map(|(&n, _)| n).collect();
            if ready.is_empty() {
                return None;
            }
            let tickets: Vec<Ticket> = ready.iter().filter_map(|n| core.tickets.remove(n)).collect();
            Some((tickets, core.take_dirty_marks()))
        });
        let Ok(Some((tickets, blocks))) = taken else { return false };
        let outcome = self.put_marks(blocks);
        if let Err(e) = &outcome {
            self.write_failed("deletes could not be written", e);
        }
        let found: usize = tickets.iter().map(|t| t.found).sum();
        let _ = self.with(|core, _| core.totals.deleted += if outcome.is_ok() { found as u64 } else { 0 });
        for ticket in tickets {
            let path = self.io.device.path();
            (ticket.done)(outcome.as_ref().map(|()| ticket.found).map_err(|e| DiskError::io(path, "write deletes", e)));
        }
        true
    }

    /// Writes and syncs marks, all files at the same time.
    fn put_marks(self: &Arc<Self>, blocks: Vec<Block>) -> io::Result<()> {
        let files: HashSet<FileId> = blocks.iter().map(|b| b.0).collect();
        let (send, receive) = channel();
        let count = blocks.len();
        for (file, block, bytes) in blocks {
            let send = send.clone();
            let bytes = super::Aligned::copy_of(&bytes);
            self.io.write(file, block, bytes, Box::new(move |result| drop(send.send(result))));
        }
        (0..count).try_for_each(|_| self.io.wait(&receive))?;
        for &file in &files {
            let send = send.clone();
            self.io.sync(file, Box::new(move |result| drop(send.send(result))));
        }
        files.iter().try_for_each(|_| self.io.wait(&receive))
    }
}

impl Core {
    /// Forgets objects in memory: how many were there, and how many writes in flight `ticket` must wait for.
    fn forget(&mut self, tenant: u64, ids: &[ObjectId], ticket: u64) -> (usize, usize) {
        let (mut found, mut waiting) = (0, 0);
        for id in ids {
            let hash = self.index.hash(tenant, &id.key);
            let was_there = self.drop_object(hash, id.part).is_some();
            let in_flight = self.pending.get_mut(&(hash, id.part)).is_some_and(|pending| {
                let first = !pending.doomed_by.contains(&ticket);
                if first {
                    pending.doomed_by.push(ticket);
                }
                first
            });
            waiting += usize::from(in_flight);
            found += usize::from(was_there || in_flight);
        }
        (found, waiting)
    }

    /// The marks that are not on disk; from now on they count as written.
    fn take_dirty_marks(&mut self) -> Vec<Block> {
        let mut blocks = Vec::new();
        for segment in self.segments.iter_mut().flatten() {
            for block in std::mem::take(&mut segment.dirty) {
                let (at, bytes) = segment.mark_block(block);
                blocks.push((segment.file, at, bytes));
            }
        }
        blocks
    }
}
