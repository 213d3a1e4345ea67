//! Copies the values of one answer out of the node's memory, a large batch by several threads.
//!
//! Threads take one value after the other from a common queue, so that large and small ones even out. The caller is one of
//! them: when the system gives no more threads, it does the work alone.

use crate::client::call::CallError;
use crate::client::transport::GetBatch;
use crate::client::types::{Destination, Got, Miss, Source, make_room};
use crate::rpc::fast::Found;
use crate::shm::{ReadFault, Reader, SharedRef};
use std::sync::Mutex;
use tokio::time::Instant;

/// Bytes from which a second thread is worth its start, some 20 us.
const SHARED_BYTES: u64 = 2 << 20;

/// A value that the node has pinned for us.
#[derive(Debug, Clone, Copy)]
pub struct Job<'f> {
    /// Where in the batch it belongs.
    pub position: usize,
    /// Where in the node's memory it is.
    pub found: &'f Found,
    /// The CRC32C of each of its chunks.
    pub crcs: &'f [u32],
}

/// Copies the values of `jobs`, which are in order of position, with up to `threads` threads, and notes what became of each;
/// one that is not what it was has no answer then.
///
/// # Errors
/// The deadline passed, or a value lies where none can be.
pub fn copy_all(
    reader: &Reader,
    jobs: &[Job<'_>],
    deadline: Instant,
    threads: usize,
    batch: &mut GetBatch<'_, '_>,
) -> Result<(), CallError> {
    let bytes: u64 = jobs.iter().map(|j| j.found.len).sum();
    let most = usize::try_from(bytes / SHARED_BYTES).unwrap_or(usize::MAX);
    let helpers = threads.min(jobs.len()).min(most).saturating_sub(1);
    let mut next = jobs.iter().peekable();
    let places = batch.items.iter_mut().enumerate();
    let queue = places.filter_map(|(i, item)| Some((next.next_if(|j| j.position == i)?, &mut item.into)));
    let done = if helpers == 0 {
        queue.map(|(job, into)| (job.position, copy(reader, job, into, deadline))).collect()
    } else {
        let (queue, done) = (Mutex::new(queue.collect::<Vec<_>>().into_iter()), Mutex::new(Vec::new()));
        let work = || loop {
            let Some((job, into)) = queue.lock().unwrap_or_else(|e| e.into_inner()).next() else { return };
            let copied = copy(reader, job, into, deadline);
            done.lock().unwrap_or_else(|e| e.into_inner()).push((job.position, copied));
        };
        std::thread::scope(|scope| {
            for _ in 0..helpers {
                // Without a thread the others have more to do.
                let _ = std::thread::Builder::new().name("gcache-copy".into()).spawn_scoped(scope, work);
            }
            work();
        });
        done.into_inner().unwrap_or_else(|e| e.into_inner())
    };
    for (position, copied) in done {
        let got = match copied {
            Ok(got) => got,
            // It has no answer yet.
            Err(ReadFault::Gone) => continue,
            Err(ReadFault::Damaged) => {
                batch.damaged.push(position);
                Got::Miss(Miss::Damaged)
            }
            Err(ReadFault::Stopped) => return Err(CallError::Late),
            Err(fault @ ReadFault::Invalid) => return Err(CallError::Breach(fault.to_string())),
        };
        batch.fast_hits += u64::from(matches!(got, Got::Hit { .. }));
        batch.got[position] = Some(got);
    }
    Ok(())
}

/// Copies one value, unless it is longer than its destination.
fn copy(reader: &Reader, job: &Job<'_>, into: &mut Destination<'_>, deadline: Instant) -> Result<Got, ReadFault> {
    let &Found { layout, offset, len, header_at, header_word, span_at, span_word, .. } = job.found;
    if into.room() < len {
        return Ok(Got::TooLong { length: len });
    }
    let at = SharedRef { offset, len, header_at, header_word, span_at, span_word };
    let proceed = || Instant::now() < deadline;
    match into {
        Destination::Segments(segments) => reader.copy(&at, job.crcs, segments, proceed),
        Destination::Grow(value) => {
            value.clear();
            if make_room(value, len as usize).is_err() {
                return Ok(Got::Miss(Miss::NoMemory));
            }
            value.resize(len as usize, 0);
            reader.copy(&at, job.crcs, &mut [value], proceed)
        }
    }?;
    Ok(Got::Hit { length: len, layout, source: Some(Source::Memory) })
}
