//! Requests that overlap in virtual time: what arrives while another is computed or still decodes.
//!
//! Prompts are computed at one rate for all, chunk by chunk in turn; a sequence stays open, with its leases and its
//! window, until its output has come at another rate. Output has no tokens in a trace, so nothing of it is cached. A
//! request for which the pools have no room waits for the next end. Everything follows from the trace and the rates: no
//! clock is read and nothing is drawn by chance.

use super::Engine;
use crate::cache::{Request, SeqId};
use crate::error::{Error, Result};
use crate::replay::trace::TraceRequest;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Most sequences that are open at once; more requests wait.
pub const MAX_OPEN: usize = 1024;

/// How fast a replayed engine works.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Service {
    /// Prompt tokens computed per second, over all requests.
    pub prefill: f64,
    /// Output tokens per second of a request.
    pub decode: f64,
}

/// What is to happen to an open sequence.
#[derive(Debug, Clone, Copy)]
struct Open {
    seq: SeqId,
    /// Tokens committed, and tokens of the prompt with the one of its own.
    at: u64,
    len: u64,
    output: u64,
}

/// The sequences that are open, by what happens next: time in microseconds, order of arrival, place in `open`.
#[derive(Debug)]
pub(super) struct Clock {
    service: Service,
    events: BinaryHeap<Reverse<(u64, u64, usize)>>,
    open: Vec<Option<Open>>,
    unused: Vec<usize>,
    arrivals: u64,
    /// When the last chunk that was begun will be done.
    busy_until: u64,
    /// Now, in microseconds; never goes back.
    now: u64,
    /// Most sequences that were open at once.
    pub(super) most_open: usize,
    /// Time that requests waited for room, in microseconds.
    pub(super) waited: u64,
}

impl Clock {
    pub(super) fn new(service: Service) -> Result<Self> {
        for (what, rate) in [("prefill rate", service.prefill), ("decode rate", service.decode)] {
            if !(1e-3..=1e12).contains(&rate) {
                return Err(Error::invalid(what, rate, "0.001 to 1e12 tokens per second"));
            }
        }
        Ok(Clock {
            service,
            events: BinaryHeap::new(),
            open: Vec::new(),
            unused: Vec::new(),
            arrivals: 0,
            busy_until: 0,
            now: 0,
            most_open: 0,
            waited: 0,
        })
    }

    fn count(&self) -> usize {
        self.open.len() - self.unused.len()
    }
}

/// Time for `tokens` at `rate` per second, in microseconds.
fn micros(tokens: u64, rate: f64) -> u64 {
    // As a float this saturates, and a trace's times leave room below 2^63.
    (tokens as f64 / rate * 1e6).min(1e17) as u64
}

impl Engine {
    /// One request: everything that is due before its arrival, then its opening.
    pub(super) fn serve_overlapping(&mut self, request: &TraceRequest, mut waiting: Request, head: u64) -> Result<()> {
        let arrival = request.t_ms.min(1 << 53).saturating_mul(1000);
        self.run_until(arrival)?;
        self.move_to(arrival);
        let seq = loop {
            let full = self.clock_mut().count() >= MAX_OPEN;
            let result = if full { None } else { Some(self.cache.open(&mut waiting, 0)) };
            match result {
                Some(Ok(seq)) => break seq,
                Some(Err(Error::OutOfPages(_))) | None if self.step_event()? => {}
                Some(Err(error)) => return Err(error),
                None => return Err(Error::Integrity("no sequence is open, and too many are".into())),
            }
        };
        let report = self.cache.report(seq)?;
        self.account(&report, head)?;
        let at = self.cache.info(seq)?.committed;
        let clock = self.clock_mut();
        clock.waited += clock.now.saturating_sub(arrival);
        clock.arrivals += 1;
        let open = Open { seq, at, len: head + 1, output: request.output_tokens };
        let place = match clock.unused.pop() {
            Some(place) => place,
            None => {
                clock.open.push(None);
                clock.open.len() - 1
            }
        };
        clock.open[place] = Some(open);
        clock.most_open = clock.most_open.max(clock.count());
        self.begin_chunk(place, open);
        Ok(())
    }

    /// Everything to the end.
    pub(super) fn run_to_the_end(&mut self) -> Result<()> {
        while self.clock.is_some() && self.step_event()? {}
        Ok(())
    }

    fn clock_mut(&mut self) -> &mut Clock {
        self.clock.as_mut().expect("requests overlap only with a clock")
    }

    fn move_to(&mut self, micros: u64) {
        let clock = self.clock_mut();
        clock.now = clock.now.max(micros);
        let now = clock.now / 1000;
        self.cache.set_now(now);
    }

    fn run_until(&mut self, micros: u64) -> Result<()> {
        while self.clock_mut().events.peek().is_some_and(|Reverse((time, ..))| *time <= micros) {
            self.step_event()?;
        }
        Ok(())
    }

    /// The next chunk of a sequence, after those that were begun before.
    fn begin_chunk(&mut self, place: usize, open: Open) {
        let n = self.chunk.min(open.len - open.at);
        let clock = self.clock_mut();
        clock.busy_until = clock.busy_until.max(clock.now) + micros(n, clock.service.prefill);
        clock.events.push(Reverse((clock.busy_until, clock.arrivals, place)));
    }

    /// What happens next; `false` when nothing does.
    fn step_event(&mut self) -> Result<bool> {
        let Some(Reverse((time, order, place))) = self.clock_mut().events.pop() else { return Ok(false) };
        self.move_to(time);
        let open = self.clock_mut().open[place].take().expect("an event is of an open sequence");
        if open.at == open.len {
            self.clock_mut().unused.push(place);
            self.cache.finish(open.seq)?;
            return Ok(true);
        }
        let n = self.chunk.min(open.len - open.at);
        self.compute(open.seq, open.at, n)?;
        let open = Open { at: open.at + n, ..open };
        self.clock_mut().open[place] = Some(open);
        if open.at < open.len {
            self.begin_chunk(place, open);
        } else {
            let clock = self.clock_mut();
            let end = clock.now + micros(open.output, clock.service.decode);
            clock.events.push(Reverse((end, order, place)));
        }
        Ok(true)
    }
}

#[cfg(test)]
#[path = "overlap_tests.rs"]
mod tests;
