//! Rest after failures in a row: a store that is gone must not cost every reader a timeout. While the tier rests reads are
//! misses and writes wait; after each rest the next calls try again, and the rest is doubled while they fail.

use std::time::Duration;
use tokio::time::Instant;

/// Failures in a row before the first rest.
const FAILURES: u32 = 3;
const SHORTEST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(30);

/// See the file.
#[derive(Debug, Default)]
pub struct Rest {
    failures: u32,
    until: Option<Instant>,
    why: String,
}

impl Rest {
    /// Until when nothing is tried.
    pub fn until(&self, now: Instant) -> Option<Instant> {
        self.until.filter(|until| *until > now)
    }

    /// A call went well; true if that ends a time of failures.
    pub fn went_well(&mut self) -> bool {
        let ended = self.failures >= FAILURES;
        *self = Rest::default();
        ended
    }

    /// A call failed; true if that begins a time of failures.
    pub fn failed(&mut self, why: &str, now: Instant) -> bool {
        // Calls that were under way when the rest began say nothing new.
        if self.until(now).is_some() {
            return false;
        }
        self.failures = self.failures.saturating_add(1);
        self.why = why.to_string();
        if self.failures < FAILURES {
            return false;
        }
        let doubled = SHORTEST * (1 << (self.failures - FAILURES).min(8));
        self.until = Some(now + doubled.min(LONGEST));
        self.failures == FAILURES
    }

    /// Why calls failed lately; empty while they do not.
    pub fn trouble(&self) -> &str {
        if self.failures >= FAILURES { &self.why } else { "" }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rests_grow_while_calls_fail_and_end_when_one_goes_well() {
        let (mut rest, mut now) = (Rest::default(), Instant::now());
        assert!(!rest.failed("x", now) && !rest.failed("x", now));
        assert_eq!((rest.until(now), rest.trouble()), (None, ""));
        let mut rests = Vec::new();
        assert!(rest.failed("gone", now));
        for _ in 0..8 {
            let until = rest.until(now).unwrap();
            assert!(!rest.failed("late news", now), "what was under way changes nothing");
            rests.push((until - now).as_secs());
            now = until;
            assert_eq!(rest.until(now), None);
            rest.failed("gone", now);
        }
        assert_eq!((rests, rest.trouble()), (vec![1, 2, 4, 8, 16, 30, 30, 30], "gone"));
        assert!(rest.went_well() && rest.until(now).is_none() && rest.trouble().is_empty());
        assert!(!rest.went_well());
    }
}
