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
    spare: bool,
}

impl Margin {
    /// For chunks of so many pages.
    pub(super) fn new(full_pages: u32, swa_pages: u32) -> Self {
        Margin { balance: Balance::default(), full_pages, swa_pages, spare: false }
    }
}

impl Tree {
    fn margin_counts(&self, why: Why) -> bool {
        self.act.why == why && self.detached.is_empty() && self.margin.is_some()
    }

    fn is_spare(&self, id: u32) -> bool {
        if on("NOSPARE") { return false }
        let c = &self.ckpts[id];
        let at = self.slots.node(c.slot);
        self.nodes[at].ckpts.last() != Some(&id) || self.has_deeper(at)
    }

    fn ckpt_price(&self, id: u32) -> f32 {
        if self.is_spare(id) && !on("SCORE") { return 0.0 }
        let m = self.margin.as_ref().unwrap();
        let ratio = m.swa_pages as f32 / m.full_pages as f32;
        let value = self.ckpt_order.value(id, self.history.ask(self.now));
        let weighed = self.weighs && on("SCORE");
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
        let m = self.margin.as_ref().unwrap();
        if on("PEEK") {
            let part = pages as f32 / m.full_pages as f32;
            let other = if m.spare { Some(0.0) } else { self.ckpt_order.victim(self.history.ask(self.now)).map(|id| self.ckpt_price(id)) };
            if let Some((m, other)) = self.margin.as_mut().zip(other) {
                m.balance.dropped(Group::Full, part, age, other);
            }
        } else if let Some(m) = &mut self.margin {
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
        if on("PEEK") {
            let now = self.history.ask(self.now);
            let other = self.order.victim(now).map(|id| self.order.value(id, now));
            if let Some((m, other)) = self.margin.as_mut().zip(other) {
                let part = pages as f32 / m.swa_pages as f32;
                m.balance.dropped(Group::Swa, part, price, other);
            }
        } else if let Some(m) = &mut self.margin {
            let part = pages as f32 / m.swa_pages as f32 + pages as f32 * worth / m.full_pages as f32;
            m.balance.lost(Group::Swa, part, price);
        }
    }

    /// Which pools have a whole chunk to spare.
    pub(crate) fn balance_spare(&mut self, swa: bool) {
        if let Some(m) = &mut self.margin {
            m.spare = swa;
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
