//! When a chunk of a shared region should change pools: what one pool drops, against what the other one would drop next.
//!
//! A byte belongs where it is worth most. The worth of the last bytes of a pool is that of what it drops for want of
//! room: the policy says what a thing promises, in hits per byte and time. So every drop is evidence: as much as its
//! value is above that of what the other pool would drop next, as a part of the greater of both, it was wrong, and its
//! pages count by that part for a chunk more; as much as it is below, it was right, and they count against it. A chunk
//! changes when the sum is a chunk's worth of pages. So a pool gets a chunk at the price of at least as many pages that
//! it dropped before: chunks change the slower the more alike the pools are, and never faster than pages are written.

use crate::cache::types::Group;

/// See the module's text.
#[derive(Debug, Clone, Default)]
pub struct Balance {
    /// Chunks' worth of pages for the full pool; below zero for the SWA pool.
    sum: f32,
    /// Evidence that moves a chunk.
    patience: f32,
    last: Option<Group>,
}

fn knob(name: &str, default: f32) -> f32 {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default)
}

impl Balance {
    /// A pool dropped such a part of a chunk, which had `value`; the other one would have dropped something of `other`.
    pub fn dropped(&mut self, by: Group, part: f32, value: f32, other: f32) {
        let most = value.max(other);
        if most <= 0.0 {
            return;
        }
        let mut gain = (value - other) / most;
        if gain.abs() < knob("DEAD", 0.2) {
            gain = 0.0;
        }
        if gain < 0.0 {
            gain *= knob("CON", 1.0);
        }
        let sign = if by == Group::Full { 1.0 } else { -1.0 };
        self.sum = (self.sum + sign * part * gain).clamp(-4.0, 4.0);
    }

    /// The pool that should get a chunk.
    pub fn due(&self) -> Option<Group> {
        let patience = if self.patience == 0.0 { knob("PAT", 1.0) } else { self.patience };
        if self.sum.abs() < patience {
            return None;
        }
        Some(if self.sum > 0.0 { Group::Full } else { Group::Swa })
    }

    /// A pool gets a chunk: evidence is gathered anew.
    pub fn moved(&mut self, to: Option<Group>) {
        self.sum = 0.0;
        if let Some(to) = to {
            let (least, most) = (knob("PMIN", 0.25), knob("PMAX", 2.0));
            let p = if self.patience == 0.0 { knob("PAT", 1.0) } else { self.patience };
            self.patience = match self.last {
                Some(last) if last == to => (p / 2.0).max(least),
                Some(_) => (p * 2.0).clamp(knob("PBACK", 1.0), most),
                None => p,
            };
            self.last = Some(to);
        }
    }
}
