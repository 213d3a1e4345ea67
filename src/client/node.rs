//! One node as the client sees it: its transport, its breaker, its ramp.

use super::breaker::{Admission, Breaker, BreakerState, Verdict};
use super::call::{Blame, Call, CallError};
use super::config::ClientConfig;
use super::metrics::Metrics;
use super::ramp::Ramp;
use super::transport::{NodeInfo, Pending, Transport};
use super::types::Refusal;
use crate::member::Member;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::time::Instant;

/// A node is fresh while this part of its memory or less is used: 1 / FRESH.
const FRESH: u64 = 64;

/// See the head of this file.
pub struct Node {
    /// Its name and addresses.
    pub member: Member,
    /// What carries its calls.
    pub transport: Arc<dyn Transport>,
    config: Arc<ClientConfig>,
    metrics: Arc<Metrics>,
    /// Zero of the breaker's clock.
    epoch: Instant,
    state: Mutex<State>,
}

struct State {
    breaker: Breaker,
    ramp: Ramp,
    /// Start id of the node when it answered last.
    start_id: Option<u64>,
    /// It joined while the client was running, so that it may be empty.
    joined: bool,
    /// What it said when it refused last, until it answers again.
    refusal: Option<Arc<Refusal>>,
}

impl Node {
    /// A node that nothing is known of. `joined`: the others were there before.
    pub fn new(
        member: Member,
        transport: Arc<dyn Transport>,
        config: Arc<ClientConfig>,
        metrics: Arc<Metrics>,
        joined: bool,
    ) -> Node {
        let (breaker, ramp) = (Breaker::new(config.breaker), Ramp::new(config.ramp));
        let state = Mutex::new(State { breaker, ramp, start_id: None, joined, refusal: None });
        Node { member, transport, config, metrics, epoch: Instant::now(), state }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn now(&self) -> u64 {
        self.epoch.elapsed().as_millis() as u64
    }

    /// Part of the buckets that the node is asked for, in 1/1024.
    pub fn share(&self) -> u32 {
        self.state().ramp.share(self.now())
    }

    /// What its breaker is.
    pub fn breaker(&self) -> BreakerState {
        self.state().breaker.state()
    }

    /// What it said when it refused a call last; `None` once it has answered another.
    pub fn refusal(&self) -> Option<Arc<Refusal>> {
        self.state().refusal.clone()
    }

    /// Whether a call would be refused now.
    pub fn is_left_alone(&self) -> bool {
        self.breaker() == BreakerState::Open
    }

    /// Most objects in one call.
    pub fn most_objects(&self) -> usize {
        let limit = self.transport.info().map_or(usize::MAX, |i| i.limits.objects as usize);
        self.config.slice_objects.min(limit)
    }

    /// Most keys in one call.
    pub fn most_keys(&self) -> usize {
        let limit = self.transport.info().map_or(usize::MAX, |i| i.limits.keys as usize);
        crate::rpc::limits::MAX_KEYS.min(limit)
    }

    /// Makes a call that moves about `bytes`, unless the node is left alone. `anyway`: call it all the same, and learn nothing.
    pub async fn call<T>(
        self: &Arc<Self>,
        bytes: u64,
        deadline: Instant,
        anyway: bool,
        call: Pending<'_, T>,
    ) -> Result<T, CallError> {
        let mut ticket = Ticket { node: self, admission: self.state().breaker.admit() };
        if ticket.admission.is_none() && !anyway {
            return Err(CallError::LeftAlone);
        }
        Metrics::add(&self.metrics.calls, 1);
        let given = deadline.saturating_duration_since(Instant::now());
        let result = tokio::time::timeout_at(deadline, call).await.unwrap_or(Err(CallError::Late));
        ticket.settle(match &result {
            Ok(_) => Verdict::Success,
            Err(error) => match error.blame() {
                Blame::Nothing => Verdict::Success,
                Blame::Node => Verdict::Failure,
                Blame::Time if given >= self.config.fair(bytes) => Verdict::Failure,
                Blame::Time | Blame::Load => Verdict::Late,
            },
        });
        if let Some(info) = self.transport.info() {
            self.learn(&info);
        }
        match &result {
            Ok(_) => self.state().refusal = None,
            Err(error) => {
                if let Some(refusal) = error.refusal(&self.member.name) {
                    self.state().refusal = Some(refusal);
                }
            }
        }
        result
    }

    fn settle(self: &Arc<Self>, admission: Admission, verdict: Verdict) {
        let (before, after) = {
            let mut state = self.state();
            let before = state.breaker.state();
            let now = self.now();
            state.breaker.settle(admission, verdict, now);
            (before, state.breaker.state())
        };
        if verdict == Verdict::Failure {
            self.transport.reset();
        }
        if after == BreakerState::Open && before != BreakerState::Open {
            Metrics::add(&self.metrics.breaker_opened, 1);
            self.transport.reset();
            self.watch();
        }
    }

    /// Probes the node until it answers, in a task that ends with the node.
    fn watch(self: &Arc<Self>) {
        let weak = Arc::downgrade(self);
        tokio::spawn(async move {
            loop {
                let Some(wait) = weak.upgrade().and_then(|n| {
                    let due = n.state().breaker.probe_due()?;
                    Some(Duration::from_millis(due.saturating_sub(n.now())))
                }) else {
                    return;
                };
                tokio::time::sleep(wait).await;
                let Some(node) = weak.upgrade() else { return };
                if !node.begin_probe() {
                    continue;
                }
                Metrics::add(&node.metrics.probes, 1);
                let answer = node.transport.probe(Instant::now() + node.config.connect_deadline).await;
                let now = node.now();
                node.state().breaker.end_probe(answer.is_ok(), now);
                if let Ok(info) = answer {
                    node.learn(&info);
                    return;
                }
            }
        });
    }

    fn begin_probe(&self) -> bool {
        let now = self.now();
        self.state().breaker.begin_probe(now)
    }

    /// Looks whether a node that was started anew, or joined, is empty.
    fn learn(self: &Arc<Self>, info: &NodeInfo) {
        {
            let mut state = self.state();
            if state.start_id == Some(info.start_id) {
                return;
            }
            let news = state.joined || state.start_id.is_some();
            state.start_id = Some(info.start_id);
            if !news {
                return;
            }
        }
        let node = self.clone();
        tokio::spawn(async move {
            let call = Call { tenant: node.config.tenant, deadline: Instant::now() + node.config.connect_deadline };
            let Ok(Ok(stats)) = tokio::time::timeout_at(call.deadline, node.transport.stats(call)).await else {
                return;
            };
            let (used, capacity) = stats.tiers.iter().fold((0u64, 0u64), |(used, capacity), tier| {
                (used.saturating_add(tier.used_bytes), capacity.saturating_add(tier.capacity_bytes))
            });
            if used <= capacity / FRESH {
                Metrics::add(&node.metrics.ramps, 1);
                let now = node.now();
                node.state().ramp.start(now);
            }
        });
    }
}

/// An admission that is given back however the call ends.
struct Ticket<'n> {
    node: &'n Arc<Node>,
    admission: Option<Admission>,
}

impl Ticket<'_> {
    fn settle(&mut self, verdict: Verdict) {
        if let Some(admission) = self.admission.take() {
            self.node.settle(admission, verdict);
        }
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        self.settle(Verdict::Unknown);
    }
}
