//! Copies the values of one answer out of the node's memory, a large batch by several threads.
//!
//! Threads take one value after the other from a common queue, so that large and small ones even out. The caller is one of
//! them: when the system gives no more threads, it does the work alone.

use super::map::Mapping;
use crate::client::call::CallError;
use crate::client::transport::GetBatch;
use crate::client::types::{Destination, Got, Miss};
use crate::rpc::fast::Found;
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

/// What became of a value.
enum Copied {
    Done(Got),
    Damaged,
    Late,
}

/// Copies the values of `jobs`, which are in order of position, with up to `threads` threads, and notes what became of each.
///
/// # Errors
/// The deadline passed.
pub fn copy_all(
    mapping: &Mapping,
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
        queue.map(|(job, into)| (job.position, copy(mapping, job, into, deadline))).collect()
    } else {
        let (queue, done) = (Mutex::new(queue.collect::<Vec<_>>().into_iter()), Mutex::new(Vec::new()));
        let work = || loop {
            let Some((job, into)) = queue.lock().unwrap_or_else(|e| e.into_inner()).next() else { return };
            let copied = copy(mapping, job, into, deadline);
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
            Copied::Late => return Err(CallError::Late),
            Copied::Done(got) => got,
            Copied::Damaged => {
                batch.damaged.push(position);
                Got::Miss(Miss::Damaged)
            }
        };
        batch.fast_hits += u64::from(matches!(got, Got::Hit { .. }));
        batch.got[position] = Some(got);
    }
    Ok(())
}

/// Copies one value, then looks whether it still was there.
fn copy(mapping: &Mapping, job: &Job<'_>, into: &mut Destination<'_>, deadline: Instant) -> Copied {
    let found = job.found;
    if into.room() < found.len {
        return Copied::Done(Got::TooLong { length: found.len });
    }
    let Some(crcs) = mapping.copy(found.offset, found.len, into, || Instant::now() < deadline) else {
        return Copied::Late;
    };
    if mapping.word(found.header_at) != found.header_word || mapping.word(found.span_at) != found.span_word {
        Copied::Done(Got::Miss(Miss::Reused))
    } else if crcs != job.crcs {
        Copied::Damaged
    } else {
        Copied::Done(Got::Hit { length: found.len, layout: found.layout })
    }
}
