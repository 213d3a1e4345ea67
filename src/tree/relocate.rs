//! Pages that move inside their pool, out of a chunk that drains.
//!
//! An unleased cached page is copied to a new page of the same pool, and its slot names the new one at once; the copy is
//! in the plan that is being handed out. So nobody finds the page before its copy is ordered. The old page waits in
//! quarantine for the plan's step or move like any freed page. The new one *lands*: it may be leased and read by later
//! steps, but if it leaves the tree before the plan is over, it waits too.

use super::node::Place;
use super::{SwaMeta, Tree};
use crate::pool::{Full, Page, Published, Quarantined, Reserved, Stamp, Swa};
use std::collections::BTreeMap;

/// When a plan is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Until {
    /// When this step is retired.
    Step(Stamp),
    /// When this move is done.
    Move(u64),
}

/// New pages of copies that may still run.
#[derive(Debug, Default)]
pub struct Landing {
    full: BTreeMap<u32, Until>,
    swa: BTreeMap<u32, Until>,
}

impl Landing {
    /// Full pages among them that are cached.
    pub fn full(&self) -> u64 {
        self.full.len() as u64
    }

    /// SWA pages likewise.
    pub fn swa(&self) -> u64 {
        self.swa.len() as u64
    }

    /// Takes out those for whom it is over.
    pub fn settle(&mut self, over: impl Fn(Until) -> bool) {
        for pages in [&mut self.full, &mut self.swa] {
            if !pages.is_empty() {
                pages.retain(|_, until| !over(*until));
            }
        }
    }
}

impl Tree {
    /// Moves full page `page`, if nobody holds it or may still read it and there is another page for it. Returns the new
    /// page and the handle of the old one.
    pub(crate) fn relocate_full(&mut self, page: u32, until: Until) -> Option<(u32, Page<Full, Quarantined>)> {
        if !self.is_idle_full(page) {
            return None;
        }
        let slot = self.full_slot(page);
        let new: Page<Full, Reserved> = self.full.allocate()?;
        let new = self.full.publish(new.computed()).into_id();
        self.slots.set_full(slot, new);
        self.set_full_slot(new, slot);
        self.landing.full.insert(new, until);
        let old = self.full.take_back(page);
        Some((new, self.full.drop_cached(old)))
    }

    /// True when the tree alone has the page and neither a lease nor a step nor a copy needs it.
    pub(crate) fn is_idle_full(&self, page: u32) -> bool {
        self.full.is_cached(page)
            && !self.landing.full.contains_key(&page)
            && matches!(self.nodes[self.slots.node(self.full_slot(page))].place, Place::Evictable | Place::Pinned)
    }

    /// As [`Self::relocate_full`]; the page's MTP record goes with it.
    pub(crate) fn relocate_swa(&mut self, page: u32, until: Until) -> Option<(u32, Page<Swa, Quarantined>)> {
        if !self.is_idle_swa(page) {
            return None;
        }
        let new: Page<Swa, Reserved> = self.swa.allocate()?;
        let new = self.swa.publish(new.computed()).into_id();
        let meta = *self.swa_meta.get(page as usize);
        let record: smallvec::SmallVec<[u32; 8]> = self.record(page).collect();
        *self.swa_meta.get_mut(new as usize) = meta;
        self.set_record(new, &record);
        *self.swa_meta.get_mut(page as usize) = SwaMeta::default();
        self.slots.set_swa(meta.slot, new);
        self.landing.swa.insert(new, until);
        let old = self.swa.take_back(page);
        Some((new, self.swa.drop_cached(old)))
    }

    /// As [`Self::is_idle_full`].
    pub(crate) fn is_idle_swa(&self, page: u32) -> bool {
        let meta = self.swa_meta.get(page as usize);
        self.swa.is_cached(page) && meta.leases == 0 && !meta.waiting && !self.landing.swa.contains_key(&page)
    }

    /// An evicted full page is free, unless a copy into it may still run.
    pub(super) fn free_full(&mut self, page: Page<Full, Published>) {
        let landing = self.landing.full.remove(&page.id());
        let page = self.full.drop_cached(page);
        match landing {
            None => self.full.release(page),
            Some(Until::Step(stamp)) => self.settle_full(page, stamp, &[]),
            Some(Until::Move(id)) => self.settle_full(page, crate::pool::NONE, &[id]),
        }
    }

    /// The same for an SWA page that steps up to `stamp` may read.
    pub(super) fn free_swa(&mut self, page: Page<Swa, Published>, stamp: Stamp) {
        let landing = self.landing.swa.remove(&page.id());
        let page = self.swa.drop_cached(page);
        match landing {
            None => self.settle_swa(page, stamp, &[]),
            Some(Until::Step(copied)) => self.settle_swa(page, stamp.max(copied), &[]),
            Some(Until::Move(id)) => self.settle_swa(page, stamp, &[id]),
        }
    }

    /// Steps up to the last retired one, and the moves that `over` names, need nothing any more.
    pub(crate) fn settle_landing(&mut self, done: Option<u64>) {
        let fence = &self.fence;
        self.landing.settle(|until| match until {
            Until::Step(stamp) => fence.is_retired(stamp),
            Until::Move(id) => done == Some(id),
        });
    }

    /// Slot of a cached full page; remembered only where pages can be asked to move.
    fn full_slot(&self, page: u32) -> u32 {
        *self.full_slots.as_ref().expect("a tree with chunks").get(page as usize)
    }

    /// Remembers it.
    pub(super) fn set_full_slot(&mut self, page: u32, slot: u32) {
        if let Some(slots) = &mut self.full_slots {
            *slots.get_mut(page as usize) = slot;
        }
    }

    /// What must hold of moved pages: they are cached, and every full page's slot is known.
    pub(super) fn check_relocated(&self) -> Result<(), String> {
        if let Some(page) = self.landing.full.keys().find(|&&p| !self.full.is_cached(p)) {
            return Err(format!("full page {page} lands and is not cached"));
        }
        if let Some(page) = self.landing.swa.keys().find(|&&p| !self.swa.is_cached(p)) {
            return Err(format!("SWA page {page} lands and is not cached"));
        }
        Ok(())
    }

    /// Checks the remembered slot of a cached full page.
    pub(super) fn check_full_slot(&self, page: u32, slot: u32) -> Result<(), String> {
        if self.full_slots.is_some() && self.full_slot(page) != slot {
            return Err(format!("full page {page} is in slot {slot}, remembered is {}", self.full_slot(page)));
        }
        Ok(())
    }
}
