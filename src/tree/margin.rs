//! What the last bytes of a region's pools are worth: the price of every drop, for [`Balance`]. Only with a region that
//! balances itself.
//!
//! A leaf that loses the page at its end loses the checkpoint there too, and with it every page down to the checkpoint
//! before: the policy says how many uses a page of it promises, and every byte of it is worth that. A checkpoint that
//! goes for want of SWA pages makes the pages resumable no longer that only it did; its bytes are worth as many times what
//! it promises as it unlocks bytes of full pages for each of its own.

use super::Tree;
use super::ghost::Why;
use crate::cache::types::Group;
use crate::policy::Balance;

/// See the module's text.
#[derive(Debug)]
pub(super) struct Margin {
    pub(super) balance: Balance,
    /// Pages of a chunk.
    full_pages: f32,
    swa_pages: f32,
}

impl Margin {
    /// For chunks of so many pages.
    pub(super) fn new(full_pages: u32, swa_pages: u32) -> Self {
        Margin { balance: Balance::default(), full_pages: full_pages as f32, swa_pages: swa_pages as f32 }
    }
}

impl Tree {
    /// True when a drop says what a byte is worth: it is for this reason, and nothing detached would go before.
    fn has_price(&self, why: Why) -> bool {
        self.margin.is_some() && self.act.why == why && self.detached.is_empty()
    }

    /// An evictable leaf is about to lose its last page, and with it the checkpoint `ckpt` at its end.
    pub(super) fn weigh_leaf(&mut self, id: u32, ckpt: u32) {
        if !self.has_price(Why::FullPool) {
            return;
        }
        let price = self.order.value(id, self.history.ask(self.now, self.full.total()));
        let (node, c) = (&self.nodes[id], &self.ckpts[ckpt]);
        let i = node.ckpts.partition_point(|&other| self.ckpts[other].end < c.end);
        let above = i.checked_sub(1).map_or(node.depth, |i| self.ckpts[node.ckpts[i]].end);
        let (pages, window) = ((c.end - above) as f32, c.pages as f32);
        if let Some(m) = &mut self.margin {
            let part = pages / m.full_pages + window / m.swa_pages;
            m.balance.dropped(Group::Full, part, price, 0.0);
        }
    }

    /// A checkpoint is about to be dropped for want of SWA pages.
    pub(super) fn weigh_ckpt(&mut self, id: u32) {
        if !self.has_price(Why::SwaPool) {
            return;
        }
        let (now, later) =
            (self.history.ask(self.now, self.full.total()), self.history.ask(self.now, self.swa.total()));
        let (unlocks, window) = (self.worth(id), self.ckpts[id].pages as f32);
        let value = self.ckpt_order.value(id, later) * if self.weighs { 1.0 } else { unlocks };
        let leaf = self.order.victim(now).map_or(0.0, |leaf| self.order.value(leaf, now));
        if let Some(m) = &mut self.margin {
            let part = window / m.swa_pages + window * unlocks / m.full_pages;
            m.balance.dropped(Group::Swa, part, value * m.swa_pages / m.full_pages, leaf);
        }
    }

    /// What was found of the pools, if the region balances itself.
    pub(crate) fn balance(&mut self) -> Option<&mut Balance> {
        self.margin.as_mut().map(|m| &mut m.balance)
    }
}
