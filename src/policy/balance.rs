//! When a chunk of a shared region should change pools: sums of evidence, one for each direction.
//!
//! Every lookup says what one chunk more would have been worth to each pool and what one less would have cost
//! ([`Worth`]). For each direction the difference is summed and never falls below nothing, so that the sum tells of the
//! newest stretch in which the change would have paid. A change is due when a sum exceeds the *patience*, in mean prompts
//! worth of tokens. A change back doubles the patience, a further one in the same direction halves it: the way from a
//! bad start is quick, and around the best split, where both directions look alike, changes die out. There is no clock
//! and no period; the same lookups give the same changes.

use crate::cache::types::Group;

/// A gain counts this much when a loss counts [`LOSS`]: what a change must bring beyond what it costs.
const GAIN: i64 = 4;
const LOSS: i64 = 5;
/// Patience, in mean prompts.
const LEAST: i64 = 1;
const MOST: i64 = 64;
/// Lookups over which the mean prompt is taken.
const MEAN: i64 = 64;

/// What one lookup says of the pools, in tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Worth {
    /// Tokens that one chunk more in the full pool would have saved.
    pub full_gain: u64,
    /// Tokens of the hit that one chunk less in the full pool would have cost.
    pub full_loss: u64,
    /// As `full_gain`, for the SWA pool.
    pub swa_gain: u64,
    /// As `full_loss`, for the SWA pool.
    pub swa_loss: u64,
}

impl Worth {
    /// Adds another lookup's.
    pub fn add(&mut self, other: &Worth) {
        self.full_gain += other.full_gain;
        self.full_loss += other.full_loss;
        self.swa_gain += other.swa_gain;
        self.swa_loss += other.swa_loss;
    }
}

/// See the module's text.
#[derive(Debug, Clone)]
pub struct Balance {
    /// Evidence for a chunk to the full pool, and to the SWA pool.
    sums: [i64; 2],
    /// Mean prompt, in tokens times [`MEAN`].
    mean: i64,
    patience: i64,
    last: Option<Group>,
}

impl Default for Balance {
    fn default() -> Self {
        Balance { sums: [0, 0], mean: 0, patience: LEAST, last: None }
    }
}

impl Balance {
    /// Takes one lookup in. Returns the pool that should get a chunk, if one should.
    pub fn observe(&mut self, prompt: u64, worth: &Worth) -> Option<Group> {
        let prompt = prompt as i64;
        self.mean += if self.mean == 0 { prompt * MEAN } else { prompt - self.mean / MEAN };
        let limit = (self.mean / MEAN).max(1) * self.patience * GAIN;
        let value = |gain: u64, loss: u64| gain as i64 * GAIN - loss as i64 * LOSS;
        let news = [value(worth.full_gain, worth.swa_loss), value(worth.swa_gain, worth.full_loss)];
        for (sum, new) in self.sums.iter_mut().zip(news) {
            // Bounded, so that evidence on which nobody could act is forgotten soon.
            *sum = (*sum + new).clamp(0, 2 * limit);
        }
        let [full, swa] = self.sums;
        (full.max(swa) >= limit).then_some(if full > swa { Group::Full } else { Group::Swa })
    }

    /// A chunk went to this pool; evidence is gathered anew.
    pub fn moved(&mut self, to: Group) {
        self.sums = [0, 0];
        match self.last {
            Some(last) if last != to => self.patience = (self.patience * 2).min(MOST),
            Some(_) => self.patience = (self.patience / 2).max(LEAST),
            None => {}
        }
        self.last = Some(to);
    }
}
