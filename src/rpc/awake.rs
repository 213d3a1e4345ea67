//! Staying awake for a moment on the same-host path, since to be woken takes longer than most answers.
//!
//! Who stays awake offers the core to others between two looks. Where others have work for all cores that costs more than
//! it saves: each offer is taken, and lasts as long as they like, while a sleeper is woken at once. So two that were taken
//! for long, one soon after the other, put an end to it for a while.

use std::time::{Duration, Instant};

/// How long to stay awake for something.
const AWAKE: Duration = Duration::from_micros(50);
/// After the core was away for [`AWAKE`] in one go, and within this time once more, nobody stays awake for as long again.
const REST: Duration = Duration::from_millis(30);

/// Whether to stay awake. Each thread or connection has its own.
#[derive(Debug, Default)]
pub struct Awake {
    /// When the core was away for long.
    away: Option<Instant>,
    rest_until: Option<Instant>,
}

impl Awake {
    /// Whether to look once more, at once, for what has been awaited since `since`; others were offered the core then.
    /// Else it is time to sleep.
    pub fn look_again(&mut self, since: Instant) -> bool {
        let now = Instant::now();
        if now.saturating_duration_since(since) >= AWAKE || self.rest_until.is_some_and(|end| now < end) {
            return false;
        }
        std::thread::yield_now();
        if now.elapsed() >= AWAKE {
            let before = self.away.replace(now);
            if before.is_some_and(|before| now.saturating_duration_since(before) < REST) {
                self.rest_until = Some(now + REST);
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_soon_time_to_sleep() {
        let mut awake = Awake::default();
        let since = Instant::now();
        while awake.look_again(since) {}
        assert!(since.elapsed() >= AWAKE);
        assert!(!awake.look_again(since));
        let long_ago = Instant::now().checked_sub(2 * AWAKE).unwrap();
        assert!(!Awake::default().look_again(long_ago));
        let mut resting = Awake { away: None, rest_until: Some(Instant::now() + 100 * REST) };
        assert!(!resting.look_again(Instant::now()));
    }
}
