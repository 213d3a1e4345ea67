//! What a sequence is about: its tokens, spans and namespace, and the canaries that follow from them.

use super::memory::{HEADS, Memory, Page, Row, STALE, mix};
use super::setup::Setup;
use mimo_cache::cache::{Group, SeqId};
use mimo_cache::key::{Key, Span};

/// The namespaces operations choose from.
pub fn key(n: u8) -> Key {
    let mut key = Key::default();
    match n % 4 {
        1 => key.salt = b"s".to_vec(),
        2 => key.adapter = b"s".to_vec(),
        3 => key.salt = b"other".to_vec(),
        _ => {}
    }
    key
}

/// Tokens of a prompt or of a whole past sequence, with what else makes them unique.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Story {
    pub tokens: Vec<u32>,
    pub spans: Vec<Span>,
    /// Index for [`key`].
    pub key: u8,
    /// Version of the weights that were set when the request was made.
    pub weights: u8,
}

impl Story {
    /// The first `len` tokens; a span that is cut keeps its content, and with it the KV of what is left.
    pub fn cut(&self, len: usize) -> Story {
        let len = len.min(self.tokens.len());
        let keep = |s: &Span| Span { len: s.len.min((len as u64).saturating_sub(s.start)), ..*s };
        let spans = self.spans.iter().map(keep).filter(|s| s.len > 0).collect();
        Story { tokens: self.tokens[..len].to_vec(), spans, ..self.clone() }
    }

    /// `prefixes[i]` stands for all that KV at position i depends on, after a namespace id.
    pub fn prefixes(&self, namespace: u32) -> Vec<u64> {
        let mut state = mix(0x6d69_6d6f, u64::from(namespace));
        let with_spans = |(i, token): (usize, &u32)| {
            state = mix(state, 1 + u64::from(*token));
            let i = i as u64;
            if let Some(s) = self.spans.iter().find(|s| s.start <= i && i < s.start + s.len) {
                state = mix(mix(state, i - s.start), u64::from(s.hash[0]) << 32);
            }
            state
        };
        self.tokens.iter().enumerate().map(with_spans).collect()
    }
}

/// A live or parked sequence as the model knows it.
#[derive(Debug)]
pub struct Seq {
    pub id: SeqId,
    pub story: Story,
    pub namespace: u32,
    pub prefixes: Vec<u64>,
    pub writer: u32,
    /// Tokens known when it was opened or resumed: below is prefill.
    pub prompt: u64,
    /// Slots up to here were promised.
    pub promised: u64,
    pub store: bool,
    pub committed: u64,
    pub reserved: u64,
    /// Rows below this were computed, from known tokens and then from `guess`.
    pub done: u64,
    /// Draft tokens at positions from `known()` on, and the prefixes that follow.
    pub guess: Vec<u32>,
    pub guess_prefixes: Vec<u64>,
    pub full_write_from: u64,
    pub swa_write_from: u64,
    /// No copies are pending for it: its pages hold what they should.
    pub settled: bool,
    /// A load of its rows that was not ended yet.
    pub incoming: Option<u64>,
    /// Not made by a fork: the counters of lookups speak of it.
    pub counted: bool,
    pub parked: bool,
    pub seen: Seen,
}

/// What the last audit saw of a sequence's table.
#[derive(Debug, Default, Clone)]
pub struct Seen {
    pub version: u64,
    pub committed: u64,
    /// Ids of the full pages that were committed as a whole.
    pub full: Vec<u32>,
}

impl Seq {
    pub fn known(&self) -> u64 {
        self.story.tokens.len() as u64
    }

    /// Token at `position`: known, drafted, or nobody's.
    pub fn token(&self, position: u64) -> u32 {
        let position = position as usize;
        let known = self.story.tokens.len();
        let token = if position < known { self.story.tokens.get(position) } else { self.guess.get(position - known) };
        token.copied().unwrap_or(STALE)
    }

    fn prefix(&self, position: u64) -> u64 {
        let (position, known) = (position as usize, self.prefixes.len());
        if position < known { self.prefixes[position] } else { self.guess_prefixes[position - known] }
    }

    /// The row that this sequence's runner writes at `position` now.
    pub fn row(&self, setup: &Setup, group: Group, position: u64) -> Row {
        let mut mtp = [STALE; HEADS];
        if group == Group::Swa {
            (0..setup.n_mtp as usize).for_each(|k| mtp[k] = self.token(position + k as u64 + 1));
        }
        let (namespace, prefix) = (self.namespace, self.prefix(position));
        Row { group, namespace, prefix, position, writer: self.writer, mtp }
    }

    /// Appends known tokens; a guess that came true stays, what follows a wrong one is garbage.
    pub fn learn(&mut self, tokens: &[u32]) {
        let right = tokens.iter().zip(&self.guess).take_while(|(a, b)| a == b).count();
        if right == tokens.len() {
            self.guess.drain(..right);
        } else {
            self.done = self.done.min(self.known() + right as u64);
            self.guess.clear();
        }
        self.story.tokens.extend_from_slice(tokens);
        self.rehash();
    }

    /// Guesses up to `end`.
    pub fn draft(&mut self, end: u64, mut next: impl FnMut(u64) -> u32) {
        while self.known() + (self.guess.len() as u64) < end {
            let position = self.known() + self.guess.len() as u64;
            self.guess.push(next(position));
        }
        self.rehash();
    }

    fn rehash(&mut self) {
        let tokens = self.story.tokens.iter().chain(&self.guess).copied().collect();
        let mut all = Story { tokens, ..self.story.clone() }.prefixes(self.namespace);
        self.guess_prefixes = all.split_off(self.story.tokens.len());
        self.prefixes = all;
    }

    /// Panics unless the row of a page is this sequence's own KV. `mtp` of SWA rows: every head whose token is known.
    pub fn check(&self, setup: &Setup, memory: &Memory, page: Page, position: u64) {
        let want = self.row(setup, page.0, position);
        let Some(found) = memory.row(page, position) else {
            panic!("sequence {} was handed {page:?} for position {position}, which nobody wrote", self.writer);
        };
        let tell = |what: &str| {
            panic!(
                "sequence {} was handed {page:?} with {what} at {position}:\n  found {found:?}\n  want  {want:?}",
                self.writer
            )
        };
        if (found.namespace, found.prefix, found.position) != (want.namespace, want.prefix, want.position) {
            tell("other tokens' KV");
        }
        for k in 0..setup.n_mtp as usize {
            let at = position + k as u64 + 1;
            if page.0 == Group::Swa && at < self.known() && found.mtp[k] != self.story.tokens[at as usize] {
                tell("a stale MTP row");
            }
        }
    }
}
