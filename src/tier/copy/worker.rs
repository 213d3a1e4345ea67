//! What a copy thread does with a job: takes units until none is left, or until it should do something else.

use super::Direction;
use super::job::Inner;
use super::plan::Held;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Works on a job. Returns when it is spent or, for a save, when `loads_wait` says so after some pages.
pub(super) fn work(job: &Inner, loads_wait: impl Fn() -> bool) {
    // A job with a thread at work is not over, so that it holds its memory.
    let Some(held) = job.held() else { return };
    let worked = catch_unwind(AssertUnwindSafe(|| {
        while !job.spent() && take(job, &held) {
            if job.plan.direction() == Direction::Save && loads_wait() {
                return;
            }
        }
    }));
    if let Err(payload) = worked {
        let words = payload.downcast_ref::<String>().map(String::as_str);
        let words = words.or_else(|| payload.downcast_ref::<&str>().copied());
        job.fail(words.unwrap_or("a panic without words").to_string());
    }
}

/// Takes some units and copies them. False: there were none, or the job was stopped.
fn take(job: &Inner, held: &Held) -> bool {
    let plan = &job.plan;
    let first = job.next.fetch_add(plan.claim, Ordering::Relaxed);
    let end = first.saturating_add(plan.claim).min(plan.units());
    let mut unit = first;
    while unit < end {
        let step = plan.step_of(unit);
        let until = plan.units_of(step).end.min(end);
        let (start, from) = (Instant::now(), unit);
        let mut copied = 0;
        while unit < until {
            if job.stop.load(Ordering::Acquire) {
                return false;
            }
            // SAFETY: made for this memory; the contract of `DeviceMemory` covers the rest.
            copied += unsafe { plan.copy(held, step, unit) };
            unit += 1;
        }
        job.copied.fetch_add(copied as u64, Ordering::Relaxed);
        job.count(step, until - from, start.elapsed().as_nanos() as u64);
    }
    first < end
}
