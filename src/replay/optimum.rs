//! What no cache can beat, beside what a plain one gets: Belady's rule and leaf-first LRU over one pool of pages.
//!
//! Both work on stretches of a prompt, not on pages. Because ids are prefix-chained, the pages of a prompt that have
//! the same next (or last) use are one stretch of it, and so are those of them that are cached. One pass over the trace
//! from its end finds the next uses, one from its start the last uses; after that a capacity costs one operation a
//! stretch.
//!
//! **Belady** ([`Optimum::belady`]): evict what is used again last, of equal ones the deepest; what is never used again
//! is not kept at all. For pages of one size and one cost no order of eviction hits more (Belady, IBM Systems Journal
//! 5(2), 1966; with a cache that may refuse a page as here). A parent is never used later than its child, so that what
//! is cached is prefix-closed by itself. With all bytes given to full pages it is an upper bound of every hybrid cache,
//! whose windows take bytes as well.
//!
//! **LRU** ([`Optimum::lru`]): leaf-first, a request's pages in use together with the root as the youngest. All
//! capacities at once, from the stack distance of each stretch (Mattson et al., IBM Systems Journal 9(2), 1970).

use crate::error::{Error, Result};
use crate::replay::spans::SpanMap;
use crate::replay::trace::{Line, TraceReader, TraceRequest};
use std::collections::BTreeMap;

/// No request.
const NEVER: u32 = u32::MAX;
/// Most runs of ids, and most stretches, that are held in memory: 8 bytes each.
const MAX_RUNS: usize = 1 << 27;
/// Requests between two calls of the function that may stop the work.
const ASK_EVERY: u32 = 1 << 12;
/// Histograms of reuse have a bucket for every power of two.
pub const BUCKETS: usize = 48;

/// Blocks of a prompt up to `end` that have the same next use.
#[derive(Debug, Clone, Copy)]
struct Stretch {
    end: u32,
    next: u32,
}

/// How far apart the uses of a token are: tokens by powers of two. Bucket k counts distances from 2^k to 2^(k+1) - 1,
/// bucket 0 also 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reuse {
    /// Distinct tokens that were used since, itself counted: the smallest LRU that hits it.
    pub tokens: [u64; BUCKETS],
    /// Milliseconds since its last use.
    pub ms: [u64; BUCKETS],
}

/// A trace, ready to be asked about any capacity.
#[derive(Debug)]
pub struct Optimum {
    /// Blocks of all prompts.
    blocks: u64,
    block_size: u32,
    /// Stretches of all requests, one after another, and where each request's begin.
    stretches: Vec<Stretch>,
    starts: Vec<u32>,
    /// Arrival of each request, in milliseconds.
    times: Vec<u64>,
}

/// Runs of ids of all requests.
#[derive(Default)]
struct Runs {
    runs: Vec<(u32, u32)>,
    starts: Vec<u32>,
    times: Vec<u64>,
    blocks: u64,
}

impl Optimum {
    /// Reads a trace to its end. The reader must check ids; `go_on` is asked now and then, and `None` is what comes of a
    /// no.
    pub fn read(mut reader: TraceReader, mut go_on: impl FnMut() -> bool) -> Result<Option<Self>> {
        let block_size = reader.header().block_size;
        let mut all = Runs::default();
        let mut request = TraceRequest::default();
        let mut lines = 0u32;
        loop {
            let line = reader.next_line(&mut request)?;
            lines = lines.wrapping_add(1);
            if lines.is_multiple_of(ASK_EVERY) && !go_on() {
                return Ok(None);
            }
            match line {
                Line::Request => {}
                Line::Skipped => continue,
                Line::End => break,
            }
            if all.runs.len() + request.blocks.len() > MAX_RUNS || all.starts.len() >= MAX_RUNS {
                let message = format!("the optimum needs the whole trace in memory: at most {MAX_RUNS} runs of ids");
                return Err(Error::Trace { line: reader.line(), message });
            }
            all.starts.push(all.runs.len() as u32);
            all.times.push(request.t_ms);
            all.blocks += request.block_count();
            all.runs.extend_from_slice(&request.blocks);
        }
        all.starts.push(all.runs.len() as u32);
        let line = reader.line();
        drop(reader);
        Self::from_runs(all, block_size, line, go_on)
    }

    fn from_runs(all: Runs, block_size: u32, line: u64, mut go_on: impl FnMut() -> bool) -> Result<Option<Self>> {
        let requests = all.times.len();
        // From the last request to the first, so that the map has every id's next use.
        let mut next = SpanMap::new();
        let (mut stretches, mut starts) = (Vec::new(), vec![0u32; requests + 1]);
        for r in (0..requests).rev() {
            let runs = &all.runs[all.starts[r] as usize..all.starts[r + 1] as usize];
            let from = stretches.len();
            let mut end = 0u32;
            for &(first, count) in runs {
                next.replace(first, count, r as u32, |count, was| {
                    end += count;
                    let next = was.unwrap_or(NEVER);
                    match stretches[from..].last_mut() {
                        Some(Stretch { end: e, next: n }) if *n == next => *e = end,
                        _ => stretches.push(Stretch { end, next }),
                    }
                });
            }
            if stretches.len() > MAX_RUNS {
                let message = format!("prompts branch too often for the optimum: at most {MAX_RUNS} stretches");
                return Err(Error::Trace { line, message });
            }
            // Written backwards: the whole is turned round at the end.
            stretches[from..].reverse();
            starts[r] = stretches.len() as u32;
            if (r as u32).is_multiple_of(ASK_EVERY) && !go_on() {
                return Ok(None);
            }
        }
        stretches.reverse();
        let total = stretches.len() as u32;
        starts.iter_mut().for_each(|s| *s = total - *s);
        starts[requests] = total;
        Ok(Some(Optimum { blocks: all.blocks, block_size, stretches, starts, times: all.times }))
    }

    /// Requests.
    pub fn requests(&self) -> u64 {
        self.times.len() as u64
    }

    /// Prompt tokens in full blocks.
    pub fn prompt_tokens(&self) -> u64 {
        self.blocks * u64::from(self.block_size)
    }

    fn stretches(&self, request: usize) -> impl Iterator<Item = (u32, u32, u32)> + '_ {
        let all = &self.stretches[self.starts[request] as usize..self.starts[request + 1] as usize];
        all.iter().scan(0, |from, s| Some((std::mem::replace(from, s.end), s.end, s.next)))
    }

    /// Tokens that Belady's rule hits with a pool of `pages` pages of `page_size` tokens, which must divide the block.
    pub fn belady(&self, pages: u64, page_size: u32) -> u64 {
        let per_block = u64::from(self.block_size / page_size);
        // By next use: the pages of that request's prompt that are cached, from the first with this next use on.
        let mut cached: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
        let (mut used, mut hits) = (0u64, 0u64);
        for r in 0..self.times.len() {
            if let Some((from, to)) = cached.remove(&(r as u32)) {
                debug_assert_eq!(from, 0, "what is above a cached page is cached");
                used -= to - from;
                hits += to;
            }
            for (from, to, next) in self.stretches(r).filter(|s| s.2 != NEVER) {
                let (from, to) = (u64::from(from) * per_block, u64::from(to) * per_block);
                used += to - from;
                // What is cached already of that prompt begins where this stretch ends.
                let entry = cached.entry(next).or_insert((to, to));
                debug_assert_eq!(entry.0, to);
                entry.0 = from;
            }
            while used > pages {
                let mut last = cached.last_entry().expect("something is cached");
                let (from, to) = *last.get();
                let kept = (to - from).saturating_sub(used - pages);
                used -= to - from - kept;
                if kept == 0 {
                    last.remove();
                } else {
                    last.get_mut().1 = from + kept;
                }
            }
        }
        hits * u64::from(page_size)
    }

    /// Tokens that leaf-first LRU hits with each of these pools, in pages of `page_size` tokens, and the distances
    /// between uses.
    pub fn lru(&self, pages: &[u64], page_size: u32) -> (Vec<u64>, Reuse) {
        let per_block = u64::from(self.block_size / page_size);
        let mut hits = vec![0u64; pages.len()];
        let mut reuse = Reuse { tokens: [0; BUCKETS], ms: [0; BUCKETS] };
        // Of each request, the blocks that it used last: how many, and where they end in its prompt.
        let n = self.times.len();
        let mut tails: Vec<(u32, u32)> = vec![(0, 0); n];
        let mut counts = Fenwick::new(n);
        // The last uses of a request's stretches, told to it by the earlier requests.
        let mut told: Vec<Vec<(u32, u32, u32)>> = Vec::new();
        told.resize_with(n, Vec::new);
        for r in 0..n {
            // In order of depth: the shallower, the younger.
            let mut parts = std::mem::take(&mut told[r]);
            parts.sort_unstable();
            for &(from, to, last) in &parts {
                let younger = counts.above(last) * per_block;
                let count = u64::from(to - from) * per_block;
                for (hits, &pages) in hits.iter_mut().zip(pages) {
                    *hits += pages.saturating_sub(younger).min(count) * u64::from(page_size);
                }
                let block = u64::from(self.block_size);
                let (near, far) = (younger * u64::from(page_size), (younger + count) * u64::from(page_size));
                spread(&mut reuse.tokens, near, far);
                let ms = self.times[r] - self.times[last as usize];
                reuse.ms[bucket(ms)] += u64::from(to - from) * block;
            }
            for (_, to, last) in parts {
                let (start, end) = tails[last as usize];
                counts.add(last, i64::from(start) - i64::from(to));
                tails[last as usize] = (to, end);
            }
            let mut end = 0;
            for (from, to, next) in self.stretches(r) {
                end = to;
                if next != NEVER {
                    told[next as usize].push((from, to, r as u32));
                }
            }
            tails[r] = (0, end);
            counts.add(r as u32, i64::from(end));
        }
        (hits, reuse)
    }
}

/// Bucket of a distance.
fn bucket(distance: u64) -> usize {
    (distance.max(1).ilog2() as usize).min(BUCKETS - 1)
}

/// Counts one token for each distance in `near + 1 ..= far`.
fn spread(buckets: &mut [u64; BUCKETS], near: u64, far: u64) {
    let mut at = near;
    while at < far {
        let b = bucket(at + 1);
        let end = if b + 1 < BUCKETS { far.min((2u64 << b) - 1) } else { far };
        buckets[b] += end - at;
        at = end;
    }
}

/// Sums over a row of counts that change.
struct Fenwick(Vec<i64>);

impl Fenwick {
    fn new(n: usize) -> Self {
        Fenwick(vec![0; n + 1])
    }

    fn add(&mut self, at: u32, change: i64) {
        // Kept from the far end, so that a prefix is everything at or after a place.
        let mut i = self.0.len() - 1 - at as usize;
        while i < self.0.len() {
            self.0[i] += change;
            i += i & i.wrapping_neg();
        }
    }

    /// Sum of the counts after `at`.
    fn above(&self, at: u32) -> u64 {
        let mut i = self.0.len() - 2 - at as usize;
        let mut sum = 0;
        while i > 0 {
            sum += self.0[i];
            i -= i & i.wrapping_neg();
        }
        sum as u64
    }
}

#[cfg(test)]
mod tests;
