//! Staying awake for a moment on the same-host path, since to be woken takes longer than most answers.
//!
//! Who stays awake offers the core to others between two looks. Where others have work for all cores that costs more than
//! it saves: each offer is taken, and lasts as long as they like, while a sleeper is woken at once. So one that was taken
//! for long puts an end to it for a while.

use std::time::{Duration, Instant};

/// How long to stay awake for something.
const AWAKE: Duration = Duration::from_micros(50);
/// After the core was away for [`AWAKE`] in one go, nobody stays awake for so long.
const REST: Duration = Duration::from_millis(30);

/// Whether to stay awake. Each thread or connection has its own.
#[derive(Debug, Default)]
pub struct Awake {
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
            self.rest_until = Some(now + REST);
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
        assert!(since.elapsed() >= AWAKE || awake.rest_until.is_some());
        assert!(!awake.look_again(since));
        let long_ago = Instant::now().checked_sub(2 * AWAKE).unwrap();
        assert!(!Awake::default().look_again(long_ago));
        let mut resting = Awake { rest_until: Some(Instant::now() + 100 * REST) };
        assert!(!resting.look_again(Instant::now()));
    }
}
