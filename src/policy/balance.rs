//! When a chunk of a shared region should change pools: sums of evidence, for each direction and reach.
//!
//! Every lookup says what chunks more would have saved in each pool and what one less would have cost ([`Worth`]). Gains
//! are asked for 1, 2, 4, 8 and 16 chunks and taken per chunk: where only several of them together help, as with a
//! working set that goes round in a pool that is just too small, the first of them is worth its part. For each direction
//! and reach the difference of gain and loss is summed and never falls below nothing, so that a sum tells of the newest
//! stretch in which the change would have paid. A change is due when a sum exceeds the *patience*, in mean prompts' worth
//! of tokens. A change back doubles the patience, a further one in the same direction halves it: the way from a bad start
//! is quick, and around the best split, where both directions look alike, changes die out. There is no clock and no
//! period; the same lookups give the same changes.

use crate::cache::types::Group;

/// A gain counts this much when a loss counts [`LOSS`]: what a change must bring beyond what it costs.
const GAIN: i64 = 4;
const LOSS: i64 = 5;
/// Patience, in mean prompts.
const LEAST: i64 = 1;
const MOST: i64 = 64;
/// Lookups over which the mean prompt is taken.
const MEAN: i64 = 64;

/// Gains are asked for `1 << i` chunks more, i below this.
pub const REACHES: usize = 5;

/// What one lookup says of the pools, in tokens; or sums of that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Worth {
    /// Tokens that `1 << i` chunks more in the full pool would have saved.
    pub full_gain: [u64; REACHES],
    /// Tokens of the hit that one chunk less in the full pool would have cost.
    pub full_loss: u64,
    /// As `full_gain`, for the SWA pool.
    pub swa_gain: [u64; REACHES],
    /// As `full_loss`, for the SWA pool.
    pub swa_loss: u64,
}

impl Worth {
    /// Adds another lookup's.
    pub fn add(&mut self, other: &Worth) {
        for i in 0..REACHES {
            self.full_gain[i] += other.full_gain[i];
            self.swa_gain[i] += other.swa_gain[i];
        }
        self.full_loss += other.full_loss;
        self.swa_loss += other.swa_loss;
    }

    /// The gain per chunk at the reach where it is highest.
    pub fn best(gain: &[u64; REACHES]) -> u64 {
        gain.iter().enumerate().map(|(i, g)| g >> i).max().unwrap_or(0)
    }
}

/// See the module's text.
#[derive(Debug, Clone)]
pub struct Balance {
    /// Evidence for a chunk to the full pool, and to the SWA pool, by reach.
    sums: [[i64; REACHES]; 2],
    /// Mean prompt, in tokens times [`MEAN`].
    mean: i64,
    patience: i64,
    last: Option<Group>,
}

impl Default for Balance {
    fn default() -> Self {
        Balance { sums: [[0; REACHES]; 2], mean: 0, patience: LEAST, last: None }
    }
}

impl Balance {
    /// Takes one lookup in. Returns the pool that should get a chunk, if one should.
    pub fn observe(&mut self, prompt: u64, worth: &Worth) -> Option<Group> {
        let prompt = prompt as i64;
        self.mean += if self.mean == 0 { prompt * MEAN } else { prompt - self.mean / MEAN };
        let limit = (self.mean / MEAN).max(1) * self.patience * GAIN;
        let news = [(&worth.full_gain, worth.swa_loss), (&worth.swa_gain, worth.full_loss)];
        for (sums, (gains, loss)) in self.sums.iter_mut().zip(news) {
            for (i, sum) in sums.iter_mut().enumerate() {
                let new = (gains[i] as i64 * GAIN >> i) - loss as i64 * LOSS;
                // Bounded, so that evidence on which nobody could act is forgotten soon.
                *sum = (*sum + new).clamp(0, 2 * limit);
            }
        }
        let [full, swa] = self.sums.map(|sums| sums.into_iter().max().unwrap_or(0));
        (full.max(swa) >= limit).then_some(if full > swa { Group::Full } else { Group::Swa })
    }

    /// A chunk went to this pool; evidence is gathered anew.
    pub fn moved(&mut self, to: Group) {
        self.sums = [[0; REACHES]; 2];
        match self.last {
            Some(last) if last != to => self.patience = (self.patience * 2).min(MOST),
            Some(_) => self.patience = (self.patience / 2).max(LEAST),
            None => {}
        }
        self.last = Some(to);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first chunk gains all there is.
    fn worth(full_gain: u64, full_loss: u64, swa_gain: u64, swa_loss: u64) -> Worth {
        Worth { full_gain: [full_gain; REACHES], full_loss, swa_gain: [swa_gain; REACHES], swa_loss }
    }

    /// Lookups of 1,000 tokens until a change is due.
    fn lookups(balance: &mut Balance, worth: &Worth) -> Option<(u64, Group)> {
        (1..2000).find_map(|n| balance.observe(1000, worth).map(|to| (n, to)))
    }

    #[test]
    fn the_pool_that_gains_more_than_the_other_loses_gets_a_chunk() {
        let mut b = Balance::default();
        assert_eq!(lookups(&mut b, &worth(0, 20, 100, 0)), Some((14, Group::Swa)));
        b.moved(Group::Swa);
        assert_eq!(lookups(&mut b, &worth(100, 0, 0, 20)), Some((14, Group::Full)));
    }

    #[test]
    fn nothing_moves_where_it_would_not_pay() {
        for w in [worth(100, 100, 100, 100), worth(0, 0, 0, 0), worth(40, 50, 40, 50), worth(0, 500, 400, 0)] {
            assert_eq!(lookups(&mut Balance::default(), &w), None, "{w:?}");
        }
    }

    #[test]
    fn changes_back_and_forth_take_longer_and_longer() {
        let mut b = Balance::default();
        let mut last = 0;
        for n in 0..6 {
            let (to, w) = if n % 2 == 0 {
                (Group::Swa, worth(0, 0, 100, 0))
            } else {
                (Group::Full, worth(100, 0, 0, 0))
            };
            let (took, found) = lookups(&mut b, &w).unwrap();
            assert!(found == to && took > last, "{took} after {last}");
            b.moved(to);
            last = took;
        }
        // A steady direction is quick again.
        for _ in 0..6 {
            lookups(&mut b, &worth(0, 0, 100, 0)).unwrap();
            b.moved(Group::Swa);
        }
        assert_eq!(lookups(&mut b, &worth(0, 0, 100, 0)), Some((10, Group::Swa)));
    }

    #[test]
    fn chunks_that_only_help_together_are_worth_their_part() {
        let mut w = Worth { swa_gain: [0, 0, 0, 800, 800], full_loss: 50, ..Worth::default() };
        // 800 for eight chunks is 100 for each, but 50 for each of sixteen.
        assert_eq!(lookups(&mut Balance::default(), &w), Some((27, Group::Swa)));
        assert_eq!(Worth::best(&w.swa_gain), 100);
        w.full_loss = 90;
        assert_eq!(lookups(&mut Balance::default(), &w), None);
    }

    #[test]
    fn old_evidence_does_not_pile_up() {
        let mut b = Balance::default();
        (0..1000).for_each(|_| _ = b.observe(1000, &worth(0, 0, 100, 0)));
        let against = (0..1000).position(|_| b.observe(1000, &worth(0, 100, 0, 0)).is_none());
        assert!(against.is_some_and(|n| n <= 9), "{against:?}");
    }
}
