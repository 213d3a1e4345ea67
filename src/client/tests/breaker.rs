//! The breaker against a model that looks at the whole history instead of keeping counts.

use crate::client::{Admission, Breaker, BreakerConfig, BreakerState, Verdict};
use proptest::prelude::*;

#[derive(Debug, Clone)]
enum Step {
    Admit,
    Settle(usize, Verdict),
    Wait(u64),
    BeginProbe,
    EndProbe(bool),
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Past {
    Settled(Verdict),
    Opened(u64),
    HalfOpened,
    Closed,
}

/// Everything that happened, oldest first.
struct Model {
    config: BreakerConfig,
    past: Vec<Past>,
    probing: bool,
    /// Length of `past` when the calls under way were admitted.
    under_way: Vec<usize>,
}

impl Model {
    /// The last change of state, and what was settled since.
    fn since_change(&self) -> (BreakerState, usize, &[Past]) {
        let change = self.past.iter().rposition(|p| !matches!(p, Past::Settled(_)));
        let state = match change.map(|i| self.past[i]) {
            Some(Past::Opened(_)) => BreakerState::Open,
            Some(Past::HalfOpened) => BreakerState::HalfOpen,
            _ => BreakerState::Closed,
        };
        let start = change.map_or(0, |i| i + 1);
        (state, start, &self.past[start..])
    }

    fn admits(&self) -> bool {
        let (state, start, _) = self.since_change();
        match state {
            BreakerState::Closed => true,
            BreakerState::Open => false,
            BreakerState::HalfOpen => !self.under_way.iter().any(|&at| at >= start),
        }
    }

    fn settle(&mut self, admitted_at: usize, verdict: Verdict, now: u64) {
        let (state, start, _) = self.since_change();
        if admitted_at < start || state == BreakerState::Open {
            return;
        }
        self.past.push(Past::Settled(verdict));
        let (_, _, since) = self.since_change();
        let told: Vec<Verdict> = since
            .iter()
            .filter_map(|p| match p {
                Past::Settled(v) if *v != Verdict::Unknown => Some(*v),
                _ => None,
            })
            .collect();
        let late = told.iter().rev().take_while(|v| **v == Verdict::Late).count() as u32;
        if told.last() == Some(&Verdict::Failure) || late >= self.config.late_calls {
            self.open(now);
        } else if state == BreakerState::HalfOpen {
            let good = told.iter().filter(|v| **v == Verdict::Success).count() as u32;
            if good >= self.config.successes {
                self.past.push(Past::Closed);
            }
        }
    }

    fn open(&mut self, now: u64) {
        let closed = self.past.iter().rposition(|p| *p == Past::Closed).map_or(0, |i| i + 1);
        let openings = self.past[closed..].iter().filter(|p| matches!(p, Past::Opened(_))).count() as i32;
        let wait = (self.config.first_wait_ms as f64 * 2f64.powi(openings)).min(self.config.longest_wait_ms as f64);
        self.past.push(Past::Opened(now + wait as u64));
        self.probing = false;
    }

    fn due(&self) -> Option<u64> {
        match self.past.iter().rev().find(|p| !matches!(p, Past::Settled(_))) {
            Some(Past::Opened(due)) if !self.probing => Some(*due),
            _ => None,
        }
    }
}

fn step() -> impl Strategy<Value = Step> {
    let verdict = prop_oneof![
        5 => Just(Verdict::Success),
        2 => Just(Verdict::Failure),
        3 => Just(Verdict::Late),
        1 => Just(Verdict::Unknown),
    ];
    prop_oneof![
        4 => Just(Step::Admit),
        4 => (any::<usize>(), verdict).prop_map(|(i, v)| Step::Settle(i, v)),
        2 => (0u64..400).prop_map(Step::Wait),
        2 => Just(Step::BeginProbe),
        2 => any::<bool>().prop_map(Step::EndProbe),
    ]
}

proptest! {
    #[test]
    fn does_what_its_history_says(
        steps in prop::collection::vec(step(), 0..200),
        first_wait_ms in 1u64..200,
        longest in 1u64..50,
        successes in 1u32..4,
        late_calls in 1u32..4,
    ) {
        let config = BreakerConfig { first_wait_ms, longest_wait_ms: first_wait_ms * longest, successes, late_calls };
        let mut breaker = Breaker::new(config);
        let mut model = Model { config, past: Vec::new(), probing: false, under_way: Vec::new() };
        let mut calls: Vec<Admission> = Vec::new();
        let mut now = 0;
        for step in steps {
            match step {
                Step::Admit => {
                    let admission = breaker.admit();
                    prop_assert_eq!(admission.is_some(), model.admits());
                    if let Some(admission) = admission {
                        calls.push(admission);
                        model.under_way.push(model.past.len());
                    }
                }
                Step::Settle(which, verdict) if !calls.is_empty() => {
                    let which = which % calls.len();
                    breaker.settle(calls.remove(which), verdict, now);
                    let admitted_at = model.under_way.remove(which);
                    model.settle(admitted_at, verdict, now);
                }
                Step::Settle(..) => {}
                Step::Wait(ms) => now += ms,
                Step::BeginProbe => {
                    let due = model.due().is_some_and(|due| due <= now);
                    prop_assert_eq!(breaker.begin_probe(now), due);
                    model.probing |= due;
                }
                Step::EndProbe(answered) => {
                    breaker.end_probe(answered, now);
                    if model.probing {
                        model.probing = false;
                        if answered { model.past.push(Past::HalfOpened) } else { model.open(now) }
                    }
                }
            }
            prop_assert_eq!(breaker.state(), model.since_change().0);
            prop_assert_eq!(breaker.probe_due(), model.due());
        }
    }
}

#[test]
fn waits_double_up_to_the_longest() {
    let mut breaker =
        Breaker::new(BreakerConfig { first_wait_ms: 100, longest_wait_ms: 1000, ..BreakerConfig::default() });
    let call = breaker.admit().unwrap();
    breaker.settle(call, Verdict::Failure, 0);
    let mut now = 0;
    for wait in [100, 200, 400, 800, 1000, 1000] {
        assert_eq!(breaker.probe_due(), Some(now + wait));
        assert!(!breaker.begin_probe(now + wait - 1));
        now += wait;
        assert!(breaker.begin_probe(now) && !breaker.begin_probe(now));
        breaker.end_probe(false, now);
    }
}
