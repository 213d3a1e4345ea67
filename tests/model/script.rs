//! Whole turns in a call, for tests that tell a story.

use super::runner::Step;
use super::story::Story;
use super::world::World;
use mimo_cache::cache::{Match, Report};

/// `n` tokens that no other `topic` has.
pub fn words(topic: u32, n: usize) -> Vec<u32> {
    (0..n as u32).map(|i| topic * 100_000 + i).collect()
}

/// Tokens one after the other.
pub fn join(parts: &[&[u32]]) -> Vec<u32> {
    parts.concat()
}

impl World {
    fn plain(chunk: u64) -> Step {
        Step { chunk, accept: 1, seed: 3, compact: true, many: true }
    }

    /// Opens a prompt that must be accepted; the sequence's index and its report.
    pub fn start(&mut self, tokens: &[u32], credit: u64) -> (usize, Report) {
        let i = self.open_tokens(tokens.to_vec(), credit).expect("room for this prompt");
        self.audit();
        (i, self.cache.report(self.seqs[i].id).expect("an open sequence"))
    }

    /// Computes a prompt to its end in chunks, every step retired at once.
    pub fn prefill(&mut self, i: usize, chunk: u64) {
        while self.seqs[i].committed < self.seqs[i].prompt {
            let before = self.seqs[i].committed;
            self.step(&[i], Self::plain(chunk));
            self.retire();
            self.audit();
            assert!(self.seqs[i].committed > before, "no progress at {before}: {}", self.cache.dump_text());
        }
    }

    /// Rounds of decoding.
    pub fn decode(&mut self, i: usize, rounds: usize) {
        for _ in 0..rounds {
            self.step(&[i], Self::plain(1));
            self.retire();
            self.audit();
        }
    }

    /// A whole turn: open, prefill, decode, finish. The report of its `open`.
    pub fn turn(&mut self, tokens: &[u32], rounds: usize) -> Report {
        let (i, report) = self.start(tokens, 8 * rounds as u64);
        self.prefill(i, 16 * u64::from(self.setup.page));
        self.decode(i, rounds);
        self.finish(i);
        self.audit();
        report
    }

    /// A lookup in the first namespace, checked against the brute force.
    pub fn find(&self, tokens: &[u32]) -> Match {
        let story = Story { tokens: tokens.to_vec(), ..Story::default() };
        let found = self.cache.match_tokens(tokens, &super::story::key(0), &[]).expect("a valid prompt");
        assert_eq!(found, self.residency().lookup(&self.setup, &story, self.generations), "matching and brute force");
        found
    }
}
