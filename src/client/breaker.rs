//! The circuit breaker of one node, without a clock and without I/O: time comes in as milliseconds of one monotonic clock.
//!
//! ```text
//!            a failure, or several late calls in a row            the probe says the node answers
//!   closed ---------------------------------------------> open ----------------------------------> half-open
//!      ^                                                   ^ |  waits, longer each time, then probes   |
//!      |                                                   | +-- the probe fails --> open              |
//!      |                                                   +------------- a failure -------------------+
//!      +----------------------------- several successes, one call at a time --------------------------+
//! ```
//!
//! So a node that is dead, hung or slow costs one deadline (or as many as were being waited for at that moment), then calls
//! are refused at once. Probes are the client's own and cost no caller anything. A node that answers probes and nothing
//! else costs one deadline for each wait, and waits grow.

/// Numbers of a breaker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BreakerConfig {
    /// First wait before a probe, in milliseconds.
    pub first_wait_ms: u64,
    /// Waits double with each failure up to this.
    pub longest_wait_ms: u64,
    /// Successes in a row that close a half-open breaker.
    pub successes: u32,
    /// Calls in a row that ran out of a deadline too short to blame the node for, with no success between them, count as
    /// one failure.
    pub late_calls: u32,
}

impl Default for BreakerConfig {
    fn default() -> Self {
        BreakerConfig { first_wait_ms: 100, longest_wait_ms: 10_000, successes: 2, late_calls: 4 }
    }
}

/// What a breaker is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BreakerState {
    /// Calls pass.
    Closed,
    /// Calls are refused; probes find out when that ends.
    Open,
    /// One call at a time passes.
    HalfOpen,
}

/// Permission for one call, to be given back with its outcome.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "the outcome of the call must be told"]
pub struct Admission {
    era: u64,
}

/// How a call ended, as far as the node is to blame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The node did what it should, be that a miss.
    Success,
    /// It did not answer though there was time, the connection broke, or the answer was against the protocol.
    Failure,
    /// Time was over before a sound node could have answered.
    Late,
    /// Nothing was learned: the caller gave up for its own reasons.
    Unknown,
}

/// See the head of this file.
#[derive(Debug)]
pub struct Breaker {
    config: BreakerConfig,
    state: State,
    /// Raised whenever the state changes; outcomes of calls admitted before are no news.
    era: u64,
    /// Opened so often since it was closed last.
    openings: u32,
}

#[derive(Debug)]
enum State {
    Closed { late: u32 },
    Open { probe_at: u64, probing: bool },
    HalfOpen { successes: u32, late: u32, busy: bool },
}

impl Breaker {
    /// A closed breaker.
    pub fn new(config: BreakerConfig) -> Breaker {
        Breaker { config, state: State::Closed { late: 0 }, era: 0, openings: 0 }
    }

    /// What it is now.
    pub fn state(&self) -> BreakerState {
        match self.state {
            State::Closed { .. } => BreakerState::Closed,
            State::Open { .. } => BreakerState::Open,
            State::HalfOpen { .. } => BreakerState::HalfOpen,
        }
    }

    /// Asks for a call. `None`: do not call.
    pub fn admit(&mut self) -> Option<Admission> {
        match &mut self.state {
            State::Closed { .. } => {}
            State::HalfOpen { busy, .. } if !*busy => *busy = true,
            _ => return None,
        }
        Some(Admission { era: self.era })
    }

    /// Tells how an admitted call ended.
    pub fn settle(&mut self, admission: Admission, verdict: Verdict, now: u64) {
        if admission.era != self.era {
            return;
        }
        let (need, most_late) = (self.config.successes.max(1), self.config.late_calls.max(1));
        match &mut self.state {
            State::Closed { late } => match verdict {
                Verdict::Success => *late = 0,
                Verdict::Failure => self.open(now),
                Verdict::Late => {
                    *late += 1;
                    if *late >= most_late {
                        self.open(now);
                    }
                }
                Verdict::Unknown => {}
            },
            State::HalfOpen { successes, late, busy } => {
                *busy = false;
                match verdict {
                    Verdict::Success => {
                        (*successes, *late) = (*successes + 1, 0);
                        if *successes >= need {
                            self.enter(State::Closed { late: 0 });
                            self.openings = 0;
                        }
                    }
                    Verdict::Failure => self.open(now),
                    Verdict::Late => {
                        *late += 1;
                        if *late >= most_late {
                            self.open(now);
                        }
                    }
                    Verdict::Unknown => {}
                }
            }
            // Calls of this era are refused, so there is none to settle.
            State::Open { .. } => {}
        }
    }

    /// When the next probe is due; `None` if the breaker is not open or a probe is under way.
    pub fn probe_due(&self) -> Option<u64> {
        match self.state {
            State::Open { probe_at, probing: false } => Some(probe_at),
            _ => None,
        }
    }

    /// Takes the probe that is due. False: there is none.
    pub fn begin_probe(&mut self, now: u64) -> bool {
        match &mut self.state {
            State::Open { probe_at, probing } if !*probing && *probe_at <= now => {
                *probing = true;
                true
            }
            _ => false,
        }
    }

    /// Tells how the probe ended.
    pub fn end_probe(&mut self, answered: bool, now: u64) {
        if !matches!(self.state, State::Open { probing: true, .. }) {
            return;
        }
        if answered {
            self.enter(State::HalfOpen { successes: 0, late: 0, busy: false });
        } else {
            self.open(now);
        }
    }

    fn open(&mut self, now: u64) {
        self.openings = self.openings.saturating_add(1);
        let doublings = (self.openings - 1).min(32);
        let wait = self.config.first_wait_ms.saturating_mul(1 << doublings).min(self.config.longest_wait_ms);
        self.enter(State::Open { probe_at: now.saturating_add(wait), probing: false });
    }

    fn enter(&mut self, state: State) {
        self.state = state;
        self.era += 1;
    }
}
