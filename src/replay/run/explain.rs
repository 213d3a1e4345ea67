//! Stories of single requests: the replay goes on until their turn comes, and then the cache is asked.
//!
//! What the cache itself remembers (matches, checkpoints, evictions and the sequences that caused them) is told in
//! requests of the trace. Beside it stands what the trace knows: which request used each stretch of the prompt last.
//! The two are independent, so that a story can be checked against itself.

use super::{Engine, Options, PROGRESS_EVERY, Progress, begin};
use crate::cache::types::{Explanation, Loss};
use crate::error::{Error, Result};
use crate::key::Key;
use crate::replay::spans::SpanMap;
use crate::replay::trace::{Line, TraceReader, TraceRequest};
use std::collections::HashMap;
use std::path::Path;

/// Most stories of one call: the first of a session.
pub const MAX_STORIES: usize = 4096;
/// Sessions of which the newest request is remembered.
const MAX_SESSIONS: usize = 1 << 20;
/// Stretches of a prompt by last use that a story lists: the first.
const MAX_SEEN: usize = 64;

/// Requests to tell about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which {
    /// The request with this number, from 1 in the order of the trace.
    Request(u64),
    /// All of this session.
    Session(i64),
}

/// A request of the trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Who {
    /// Its number, from 1.
    pub request: u64,
    /// Its arrival, in milliseconds.
    pub t_ms: u64,
    /// Its session, or -1.
    pub session: i64,
}

/// A stretch of a prompt and the newest earlier request that has it, or none when it is new.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// First token.
    pub from: u64,
    /// One past the last token.
    pub to: u64,
    /// Who used it last.
    pub by: Option<Who>,
}

/// A drop that the cache remembers, told in requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lost {
    /// What the cache says.
    pub loss: Loss,
    /// The request whose call dropped it.
    pub by: Option<Who>,
}

/// One request's story.
#[derive(Debug, Clone, PartialEq)]
pub struct Story {
    /// The request.
    pub who: Who,
    /// Tokens of its prompt in full blocks.
    pub prompt_tokens: u64,
    /// Those of them that the pool has no room for, at the end of the prompt.
    pub cut_tokens: u64,
    /// The newest earlier request of its session.
    pub before: Option<Who>,
    /// Stretches of the prompt by last use.
    pub seen: Vec<Seen>,
    /// What the cache says; `None` when it cannot hold a block of the prompt. One token of the request's own stands at
    /// the prompt's end.
    pub told: Option<Explanation>,
    /// One for every stretch of `told`.
    pub stretches: Vec<Option<Lost>>,
    /// One for every lost checkpoint of `told`.
    pub lost: Vec<Option<Lost>>,
    /// Full pages and checkpoints that this request pushed out.
    pub evicted: (u64, u64),
}

/// The stories of a trace in a file; see [`explain_from`].
pub fn explain(
    path: &Path,
    options: &Options,
    which: Which,
    progress: impl FnMut(Progress) -> bool,
) -> Result<Option<Vec<Story>>> {
    explain_from(|| TraceReader::open(path), options, which, progress)
}

/// Replays what `open` opens until the requests asked for are told, at most [`MAX_STORIES`]. `None` when `progress`
/// stopped it.
pub fn explain_from(
    mut open: impl FnMut() -> Result<TraceReader>,
    options: &Options,
    which: Which,
    mut progress: impl FnMut(Progress) -> bool,
) -> Result<Option<Vec<Story>>> {
    let Some((totals, _, engine, mut reader)) = begin(&mut open, options, &mut progress)? else { return Ok(None) };
    if let Which::Request(n) = which
        && !(1..=totals.requests).contains(&n)
    {
        return Err(Error::invalid("request", n, format!("1 to {}", totals.requests)));
    }
    let block = totals.header.block_size;
    let mut teller = Teller {
        engine,
        block,
        opened: Vec::new(),
        times: Vec::new(),
        last: SpanMap::new(),
        newest: HashMap::new(),
        stories: Vec::new(),
    };
    let mut request = TraceRequest::default();
    let mut done = 0;
    let mut lines = 0u64;
    loop {
        lines += 1;
        if lines.is_multiple_of(PROGRESS_EVERY) {
            let (prompt_tokens, hit_tokens) = (teller.engine.prompt_tokens, teller.engine.hit_tokens);
            if !progress(Progress { done, total: totals.requests, prompt_tokens, hit_tokens }) {
                return Ok(None);
            }
        }
        match reader.next_line(&mut request)? {
            Line::Request => done += 1,
            Line::Skipped => continue,
            Line::End => break,
        }
        let wanted = match which {
            Which::Request(n) => n == done,
            Which::Session(s) => s == request.session,
        };
        teller.next(&request, wanted)?;
        if which == Which::Request(done) || teller.stories.len() == MAX_STORIES {
            break;
        }
    }
    match which {
        Which::Session(s) if teller.stories.is_empty() => Err(Error::invalid("session", s, "one of the trace")),
        _ => Ok(Some(teller.stories)),
    }
}

struct Teller {
    engine: Engine,
    block: u32,
    /// Number of each opened request, in order of opening: the core numbers its sequences alike.
    opened: Vec<u32>,
    /// Arrival and session of every request.
    times: Vec<(u64, i64)>,
    /// By id, the newest request that has it.
    last: SpanMap,
    newest: HashMap<i64, u32>,
    stories: Vec<Story>,
}

impl Teller {
    fn who(&self, index: u32) -> Who {
        let (t_ms, session) = self.times[index as usize];
        Who { request: u64::from(index) + 1, t_ms, session }
    }

    /// Serves the next request; before it, asks the cache if the request is wanted.
    fn next(&mut self, request: &TraceRequest, wanted: bool) -> Result<()> {
        let index = self.times.len() as u32;
        self.times.push((request.t_ms, request.session));
        let mut seen: Vec<(u64, u64, Option<u32>)> = Vec::new();
        let mut at = 0;
        for &(first, count) in &request.blocks {
            self.last.replace(first, count, index, |blocks, by| {
                let to = at + u64::from(blocks) * u64::from(self.block);
                match seen.last_mut() {
                    Some((_, end, of)) if *of == by => *end = to,
                    _ if wanted => seen.push((at, to, by)),
                    _ => {}
                }
                at = to;
            });
        }
        self.engine.make_room(request, self.block)?;
        let story = wanted.then(|| self.story(request, index, &seen)).transpose()?;
        if request.session >= 0 && (self.newest.len() < MAX_SESSIONS || self.newest.contains_key(&request.session)) {
            self.newest.insert(request.session, index);
        }
        let before = self.engine.cache.stats();
        self.engine.serve(request, self.block)?;
        let after = self.engine.cache.stats();
        if after.opens > before.opens {
            self.opened.push(index);
        }
        if let Some(mut story) = story {
            story.evicted =
                (after.full_evicted - before.full_evicted, after.checkpoints_evicted - before.checkpoints_evicted);
            self.stories.push(story);
        }
        Ok(())
    }

    fn story(&self, request: &TraceRequest, index: u32, seen: &[(u64, u64, Option<u32>)]) -> Result<Story> {
        let prompt = self.engine.prompt(request, self.block);
        let told = match prompt.is_empty() {
            true => None,
            false => Some(self.engine.cache.explain(&prompt, &Key::default(), &[])?),
        };
        let lost = |loss: Option<Loss>| loss.map(|loss| Lost { loss, by: self.culprit(&loss) });
        let prompt_tokens = request.block_count() * u64::from(self.block);
        let seen = seen.iter().take(MAX_SEEN).map(|&(from, to, by)| Seen { from, to, by: by.map(|i| self.who(i)) });
        let all = told.iter();
        Ok(Story {
            who: self.who(index),
            prompt_tokens,
            cut_tokens: prompt_tokens - (prompt.len() as u64).saturating_sub(1),
            before: self.newest.get(&request.session).map(|&i| self.who(i)),
            seen: seen.collect(),
            stretches: all.clone().flat_map(|t| &t.stretches).map(|s| lost(s.loss)).collect(),
            lost: all.flat_map(|t| &t.lost).map(|c| lost(c.loss)).collect(),
            told,
            evicted: (0, 0),
        })
    }

    /// The request of the sequence that dropped something: the core numbers sequences from 1 in order of opening.
    fn culprit(&self, loss: &Loss) -> Option<Who> {
        let ordinal = (loss.by >> 32).checked_sub(1)?;
        self.opened.get(ordinal as usize).map(|&index| self.who(index))
    }
}

#[cfg(test)]
#[path = "explain_tests.rs"]
mod tests;
