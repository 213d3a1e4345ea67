//! Bytes that may be written in a day: a token bucket that holds an hour's share, with time passed in.

const DAY_MS: u128 = 24 * 3600 * 1000;

/// The bucket.
#[derive(Debug, Clone)]
pub struct Budget {
    per_day: Option<u64>,
    /// Bytes left; below zero after a write that was let through with fewer left.
    tokens: i128,
    last: Option<u64>,
}

impl Budget {
    /// A full bucket, or no limit.
    pub fn new(per_day: Option<u64>) -> Budget {
        Budget { per_day, tokens: i128::from(per_day.unwrap_or(0) / 24), last: None }
    }

    /// Fills the bucket up to `now`, milliseconds. A clock that goes back fills nothing.
    pub fn fill(&mut self, now: u64) {
        let Some(per_day) = self.per_day else { return };
        let last = *self.last.get_or_insert(now);
        if now > last {
            let earned = u128::from(now - last) * u128::from(per_day) / DAY_MS;
            // Time that has earned no whole byte yet is kept.
            if earned > 0 {
                self.tokens = (self.tokens + earned as i128).min(i128::from(per_day / 24));
                self.last = Some(now);
            }
        }
    }

    /// Whether something may be written. One write may overdraw the bucket, so that a value larger than an hour's share is
    /// not refused for ever.
    pub fn allows(&self) -> bool {
        self.per_day.is_none() || self.tokens > 0
    }

    /// Takes note of bytes written.
    pub fn spend(&mut self, bytes: u64) {
        if self.per_day.is_some() {
            self.tokens -= i128::from(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_day_of_writes_stays_within_the_budget_and_an_hours_share() {
        let mut budget = Budget::new(Some(24_000_000));
        let mut spent = 0u64;
        for second in 0..24 * 3600 {
            budget.fill(second * 1000);
            while budget.allows() {
                budget.spend(4096);
                spent += 4096;
            }
        }
        assert!((24_900_000..25_010_000).contains(&spent), "{spent}");
        budget.fill(0);
        assert!(!budget.allows());
    }

    #[test]
    fn without_a_budget_everything_is_allowed() {
        let mut budget = Budget::new(None);
        budget.spend(u64::MAX);
        budget.fill(5);
        assert!(budget.allows());
    }
}
