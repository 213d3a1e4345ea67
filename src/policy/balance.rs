//! When a chunk of a shared region should change pools: sums of evidence, for each direction and reach.
//!
//! Every lookup says what 1, 2, 4, 8 and 16 chunks more would have saved in each pool and what so many less would have cost
//! ([`Worth`]). For each direction and *reach*, which is such a number of chunks, the difference per chunk is summed and
//! never falls below nothing, so that a sum tells of the newest stretch in which the change would have paid. Longer
//! reaches see what only several chunks together bring, as with a working set that goes round in a pool that is just too
//! small. And where no gain is seen at all, as with prompts larger than the pool, the next chunk is taken to be worth a
//! quarter of the last one. A change is due when a sum exceeds the *patience*, in mean prompts' worth of tokens; it is of
//! as many chunks as the reach. A change back doubles the patience, a further one in the same direction halves it: the way from a bad start
//! is quick, and around the best split, where both directions look alike, changes die out. There is no clock and no
//! period; the same lookups give the same changes.

use crate::cache::types::Group;

/// A gain counts this much when a loss counts [`LOSS`]: what a change must bring beyond what it costs.
const GAIN: i64 = 4;
const LOSS: i64 = 5;
/// The next chunk is worth at least this part of the last one.
const NEXT: i64 = 4;
/// Sums of evidence in each direction: one for each reach, and one for what the last chunk tells.
const SUMS: usize = REACHES + 1;
/// Patience, in mean prompts.
const LEAST: i64 = 1;
const MOST: i64 = 64;
/// Lookups over which the mean prompt is taken.
const MEAN: i64 = 64;

/// Gains and losses are asked for `1 << i` chunks, i below this.
pub const REACHES: usize = 5;

/// What one lookup says of the pools, in tokens; or sums of that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Worth {
    /// Tokens that `1 << i` chunks more in the full pool would have saved.
    pub full_gain: [u64; REACHES],
    /// Tokens of the hit that `1 << i` chunks less in the full pool would have cost.
    pub full_loss: [u64; REACHES],
    /// As `full_gain`, for the SWA pool.
    pub swa_gain: [u64; REACHES],
    /// As `full_loss`, for the SWA pool.
    pub swa_loss: [u64; REACHES],
}

impl Worth {
    /// Adds another lookup's.
    pub fn add(&mut self, other: &Worth) {
        for i in 0..REACHES {
            self.full_gain[i] += other.full_gain[i];
            self.full_loss[i] += other.full_loss[i];
            self.swa_gain[i] += other.swa_gain[i];
            self.swa_loss[i] += other.swa_loss[i];
        }
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
    sums: [[i64; SUMS]; 2],
    /// Mean prompt, in tokens times [`MEAN`].
    mean: i64,
    patience: i64,
    last: Option<Group>,
}

impl Default for Balance {
    fn default() -> Self {
        Balance { sums: [[0; SUMS]; 2], mean: 0, patience: LEAST, last: None }
    }
}

impl Balance {
    /// Takes one lookup in. Returns the pool that should get chunks, and how many, if one should.
    pub fn observe(&mut self, prompt: u64, worth: &Worth) -> Option<(Group, u32)> {
        let prompt = prompt as i64;
        self.mean += if self.mean == 0 { prompt * MEAN } else { prompt - self.mean / MEAN };
        let limit = (self.mean / MEAN).max(1) * self.patience * GAIN;
        let (full, swa) = ((&worth.full_gain, &worth.full_loss), (&worth.swa_gain, &worth.swa_loss));
        for (sums, ((gains, own), (_, losses))) in self.sums.iter_mut().zip([(full, swa), (swa, full)]) {
            for (i, sum) in sums.iter_mut().enumerate() {
                let new = match gains.get(i) {
                    Some(&gain) => gain as i64 * GAIN - losses[i] as i64 * LOSS >> i,
                    None => own[0] as i64 * GAIN / NEXT - losses[0] as i64 * LOSS,
                };
                // Bounded, so that evidence on which nobody could act is forgotten soon.
                *sum = (*sum + new).clamp(0, 2 * limit);
            }
        }
        let best = |sums: &[i64; SUMS]| (0..SUMS).max_by_key(|&i| (sums[i], SUMS - i)).map(|i| (sums[i], i));
        let [(full, i), (swa, j)] = [best(&self.sums[0])?, best(&self.sums[1])?];
        let (group, reach) = if full > swa { (Group::Full, i) } else { (Group::Swa, j) };
        // A change back is of one chunk, whatever its reach.
        let chunks = if self.last.is_some_and(|last| last != group) { 1 } else { 1 << (reach % REACHES) };
        (full.max(swa) >= limit).then_some((group, chunks))
    }

    /// Evidence is gathered anew.
    pub fn restart(&mut self) {
        self.sums = [[0; SUMS]; 2];
    }

    /// Chunks go to this pool; evidence is gathered anew.
    pub fn moved(&mut self, to: Group) {
        self.restart();
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

    /// The first chunk gains all there is, and each chunk less loses the same.
    fn worth(full_gain: u64, full_loss: u64, swa_gain: u64, swa_loss: u64) -> Worth {
        let each = |tokens| std::array::from_fn(|i: usize| tokens << i);
        let (full_loss, swa_loss) = (each(full_loss), each(swa_loss));
        Worth { full_gain: [full_gain; REACHES], full_loss, swa_gain: [swa_gain; REACHES], swa_loss }
    }

    /// Lookups of 1,000 tokens until a change is due.
    fn lookups(balance: &mut Balance, worth: &Worth) -> Option<(u64, Group)> {
        (1..2000).find_map(|n| balance.observe(1000, worth).map(|(to, _)| (n, to)))
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
        for w in [worth(100, 100, 100, 100), worth(0, 0, 0, 0), worth(40, 50, 40, 50), worth(0, 500, 400, 110)] {
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
        for _ in 0..8 {
            lookups(&mut b, &worth(0, 0, 100, 0)).unwrap();
            b.moved(Group::Swa);
        }
        assert_eq!(lookups(&mut b, &worth(0, 0, 100, 0)), Some((10, Group::Swa)));
    }

    #[test]
    fn chunks_that_only_help_together_change_together() {
        let mut w = Worth { swa_gain: [0, 0, 0, 800, 800], full_loss: [50, 100, 200, 400, 800], ..Worth::default() };
        let mut b = Balance::default();
        // 800 for eight chunks is 100 for each, of which 50 are lost elsewhere.
        assert_eq!((1..2000).find_map(|n| Some((n, b.observe(1000, &w)?))), Some((27, (Group::Swa, 8))));
        assert_eq!(Worth::best(&w.swa_gain), 100);
        w.full_loss[3] = 700;
        w.swa_loss = w.full_loss;
        assert_eq!(lookups(&mut Balance::default(), &w), None);
    }

    #[test]
    fn a_pool_whose_old_end_is_worth_far_more_gets_a_chunk() {
        assert_eq!(lookups(&mut Balance::default(), &worth(0, 400, 0, 0)), Some((10, Group::Full)));
        assert_eq!(lookups(&mut Balance::default(), &worth(0, 40, 0, 400)), Some((20, Group::Swa)));
        assert_eq!(lookups(&mut Balance::default(), &worth(0, 400, 0, 100)), None);
    }

    #[test]
    fn old_evidence_does_not_pile_up() {
        let mut b = Balance::default();
        (0..1000).for_each(|_| _ = b.observe(1000, &worth(0, 0, 100, 0)));
        let against = (0..1000).position(|_| b.observe(1000, &worth(0, 100, 0, 0)).is_none());
        assert!(against.is_some_and(|n| n <= 9), "{against:?}");
    }
}
