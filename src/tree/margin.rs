//! What a region's pools lose for want of room. Only with a region that balances itself.

use super::Tree;
use super::ghost::Why;
use crate::cache::types::Group;
use crate::policy::Balance;

fn knob(name: &str, default: f32) -> f32 {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default)
}
fn on(name: &str) -> bool { std::env::var(name).is_ok() }

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Margin {
    balance: Balance,
    /// Pages of a chunk.
    full_pages: u32,
    swa_pages: u32,
}

impl Margin {
    /// For chunks of so many pages.
    pub(super) fn new(full_pages: u32, swa_pages: u32) -> Self {
        Margin { balance: Balance::default(), full_pages, swa_pages }
    }
}

impl Tree {
    fn margin_counts(&self, why: Why) -> bool {
        self.act.why == why && self.detached.is_empty() && self.margin.is_some()
    }

    fn ckpt_price(&self, id: u32) -> f32 {
        let m = self.margin.as_ref().unwrap();
        let ratio = m.swa_pages as f32 / m.full_pages as f32;
        let value = self.ckpt_order.value(id, self.history.ask(self.now));
        let weighed = self.weighs;
        value * ratio * if weighed { 1.0 } else { self.worth(id).min(knob("WHI", 1e9) / ratio) } * knob("B", 1.0)
    }

    /// A leaf is about to lose its last page, and with it the checkpoint `ckpt` at its end.
    pub(super) fn weigh_leaf(&mut self, id: u32, ckpt: u32) {
        if !self.margin_counts(Why::FullPool) {
            return;
        }
        let age = self.order.value(id, self.history.ask(self.now));
        let (node, c) = (&self.nodes[id], &self.ckpts[ckpt]);
        let above = node.ckpts.iter().rev().map(|&o| self.ckpts[o].end).find(|&end| end < c.end);
        let pages = c.end - above.unwrap_or(node.depth);
        if let Some(m) = &mut self.margin {
            let part = pages as f32 / m.full_pages as f32 + c.pages as f32 / m.swa_pages as f32;
            m.balance.lost(Group::Full, part, age);
        }
    }

    /// A checkpoint is about to be dropped for want of SWA pages.
    pub(super) fn weigh_ckpt(&mut self, id: u32) {
        if !self.margin_counts(Why::SwaPool) {
            return;
        }
        let price = self.ckpt_price(id);
        let worth = self.worth(id);
        let pages = self.ckpts[id].pages;
        let now = self.history.ask(self.now);
        let leaf = self.order.victim(now).map_or(0.0, |id| self.order.value(id, now));
        if let Some(m) = &mut self.margin {
            let part = pages as f32 / m.swa_pages as f32 + pages as f32 * worth / m.full_pages as f32;
            m.balance.lost(Group::Swa, part, price);
            m.balance.ok = price >= knob("FP", 1.0) * leaf;
        }
    }

    pub(crate) fn fresh_due(&self) -> Option<Group> { self.margin.as_ref()?.balance.due_fresh() }
    pub(crate) fn fresh_moved(&mut self) { if let Some(m) = &mut self.margin { m.balance.fresh_moved() } }
    /// The pool that should get a chunk.
    pub(crate) fn balance_due(&self) -> Option<Group> {
        self.margin.as_ref()?.balance.due()
    }

    /// Evidence is gathered anew, after a chunk began to go to a pool by it.
    pub(crate) fn balance_anew(&mut self, to: Option<Group>) {
        if let Some(m) = &mut self.margin {
            m.balance.moved(to);
        }
    }
}
