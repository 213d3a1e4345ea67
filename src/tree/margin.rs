//! What a pool drops, weighed against what the other one would drop next. Only with a region that balances itself.

use super::Tree;
use crate::cache::types::Group;
use crate::policy::Balance;

/// Weighings per chunk of dropped pages, at least: between them drops are only counted.
const WEIGHINGS: u32 = 64;

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Margin {
    balance: Balance,
    /// Pages of a chunk.
    full_pages: u32,
    swa_pages: u32,
    /// Pages dropped since the last weighing.
    full_dropped: u32,
    swa_dropped: u32,
    /// Drops count: not while a chunk changes hands, which takes pages from one pool.
    counts: bool,
}

impl Margin {
    /// For chunks of so many pages.
    pub(super) fn new(full_pages: u32, swa_pages: u32) -> Self {
        Margin {
            balance: Balance::default(),
            full_pages,
            swa_pages,
            full_dropped: 0,
            swa_dropped: 0,
            counts: true,
        }
    }
}

impl Tree {
    /// A leaf that the policy chose is about to lose up to `pages` pages.
    pub(super) fn weigh_leaf(&mut self, id: u32, pages: u32) {
        let Some(m) = self.margin.as_mut().filter(|m| m.counts) else { return };
        m.full_dropped += pages.min(self.nodes[id].len);
        if m.full_dropped < m.full_pages.div_ceil(WEIGHINGS) {
            return;
        }
        let part = std::mem::take(&mut m.full_dropped) as f32 / m.full_pages as f32;
        let value = self.leaf_value(id);
        let other = self.next_ckpt_value();
        if let Some((m, other)) = self.margin.as_mut().zip(other) {
            m.balance.dropped(Group::Full, part, value, other);
        }
    }

    /// The same for a checkpoint; `pages` of the SWA pool became free, `value` was asked for before.
    pub(super) fn weigh_ckpt(&mut self, value: f32, pages: u32) {
        let Some(m) = self.margin.as_mut().filter(|m| m.counts) else { return };
        m.swa_dropped += pages;
        if m.swa_dropped < m.swa_pages.div_ceil(WEIGHINGS) {
            return;
        }
        let part = std::mem::take(&mut m.swa_dropped) as f32 / m.swa_pages as f32;
        let now = self.history.ask(self.now);
        let other = self.order.victim(now);
        if let Some(other) = other.map(|id| self.leaf_value(id))
            && let Some(m) = &mut self.margin
        {
            m.balance.dropped(Group::Swa, part, value, other);
        }
    }

    fn leaf_value(&self, id: u32) -> f32 {
        self.order.value(id, self.history.ask(self.now))
    }

    /// What a checkpoint promises per byte of full pages; asked only when drops count.
    pub(super) fn ckpt_value(&self, id: u32) -> f32 {
        let Some(m) = self.margin.as_ref().filter(|m| m.counts) else { return 0.0 };
        let value = self.ckpt_order.value(id, self.history.ask(self.now));
        if self.weighs { value * m.swa_pages as f32 / m.full_pages as f32 } else { value }
    }

    fn next_ckpt_value(&mut self) -> Option<f32> {
        let id = self.ckpt_order.victim(self.history.ask(self.now))?;
        Some(self.ckpt_value(id))
    }

    /// The pool that should get a chunk.
    pub(crate) fn balance_due(&self) -> Option<Group> {
        self.margin.as_ref()?.balance.due()
    }

    /// A chunk begins to change hands, or is done with it.
    pub(crate) fn balance_counts(&mut self, counts: bool) {
        if let Some(m) = &mut self.margin {
            (m.counts, m.full_dropped, m.swa_dropped) = (counts, 0, 0);
        }
    }

    /// Evidence is gathered anew, after a chunk began to go to a pool by it.
    pub(crate) fn balance_anew(&mut self, to: Option<Group>) {
        if let Some(m) = &mut self.margin {
            m.balance.moved(to);
        }
    }
}
