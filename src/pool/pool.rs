//! One pool: free list, owner of every page, counts by state.

use super::chunk::{ChunkStack, ChunkVec};
use super::fence::Stamp;
use super::page::{Computed, Page, PoolGroup, Published, Quarantined, Reserved};
use std::collections::BTreeMap;
use std::marker::PhantomData;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Free,
    Private,
    Cached,
    Quarantined,
}

/// A flat pool of equal pages with ids 1 to `total`; id 0 is the null page.
#[derive(Debug)]
pub struct Pool<G> {
    total: u32,
    /// Ids from here on were never given out.
    fresh: u32,
    free: ChunkStack,
    state: ChunkVec<State>,
    /// Extra handles of shared private pages.
    shares: BTreeMap<u32, u32>,
    /// What the handles that were given back already would have waited for: the newest step, and moves.
    notes: BTreeMap<u32, (Stamp, Vec<u64>)>,
    private: u32,
    cached: u32,
    quarantined: u32,
    mark: PhantomData<G>,
}

impl<G: PoolGroup> Pool<G> {
    /// A pool of `total` usable pages.
    pub fn new(total: u32) -> Self {
        Pool {
            total,
            fresh: 1,
            free: ChunkStack::default(),
            state: ChunkVec::new(State::Free),
            shares: BTreeMap::new(),
            notes: BTreeMap::new(),
            private: 0,
            cached: 0,
            quarantined: 0,
            mark: PhantomData,
        }
    }

    // Inlined, since both states are constants at every call.
    #[inline(always)]
    fn change(&mut self, id: u32, from: State, to: State) {
        let s = self.state.get_mut(id as usize);
        assert!(*s == from, "{} page {id} is {s:?}, expected {from:?}", G::NAME);
        *s = to;
        if let Some(count) = self.count(from) {
            *count -= 1;
        }
        if let Some(count) = self.count(to) {
            *count += 1;
        }
    }

    #[inline(always)]
    fn count(&mut self, state: State) -> Option<&mut u32> {
        match state {
            State::Free => None,
            State::Private => Some(&mut self.private),
            State::Cached => Some(&mut self.cached),
            State::Quarantined => Some(&mut self.quarantined),
        }
    }

    /// Takes a free page for a sequence.
    pub fn allocate(&mut self) -> Option<Page<G, Reserved>> {
        let id = match self.free.pop() {
            Some(id) => id,
            None if self.fresh <= self.total => {
                self.fresh += 1;
                self.fresh - 1
            }
            None => return None,
        };
        self.change(id, State::Free, State::Private);
        Some(Page::new(id))
    }

    /// A second handle of a private page whose rows are final; each handle is given back on its own.
    pub fn share(&mut self, id_of: &Page<G, Reserved>) -> Page<G, Reserved> {
        assert!(*self.state.get(id_of.id() as usize) == State::Private, "only private pages are shared");
        *self.shares.entry(id_of.id()).or_insert(0) += 1;
        Page::new(id_of.id())
    }

    /// True when any page is shared.
    pub fn has_shares(&self) -> bool {
        !self.shares.is_empty()
    }

    /// True when other handles of this private page exist.
    pub fn is_shared<S>(&self, page: &Page<G, S>) -> bool {
        self.shares.contains_key(&page.id())
    }

    /// Hands a page to the tree.
    pub fn publish(&mut self, page: Page<G, Computed>) -> Page<G, Published> {
        assert!(!self.is_shared(&page) && !self.notes.contains_key(&page.id()), "a shared page is not published");
        self.change(page.id(), State::Private, State::Cached);
        page.into_state()
    }

    /// Makes a handle of a page that the tree gives up.
    pub fn take_back(&mut self, id: u32) -> Page<G, Published> {
        assert!(*self.state.get(id as usize) == State::Cached, "{} page {id} is not the tree's", G::NAME);
        Page::new(id)
    }

    /// Gives up a private handle that waits for a step and moves. The last one brings the page back, with all that any
    /// handle of it waits for.
    pub fn drop_private<S>(
        &mut self,
        page: Page<G, S>,
        stamp: Stamp,
        moves: &[u64],
    ) -> Option<(Page<G, Quarantined>, Stamp, Vec<u64>)> {
        let (newest, mut all) = self.take_note(page.id()).unwrap_or_default();
        all.extend(moves.iter().filter(|m| !all.contains(m)).copied().collect::<Vec<_>>());
        let stamp = newest.max(stamp);
        if let Some(extra) = self.shares.get_mut(&page.id()) {
            *extra -= 1;
            if *extra == 0 {
                self.shares.remove(&page.id());
            }
            if stamp > 0 || !all.is_empty() {
                self.notes.insert(page.id(), (stamp, all));
            }
            return None;
        }
        self.change(page.id(), State::Private, State::Quarantined);
        Some((page.into_state(), stamp, all))
    }

    /// True when any page has lost a handle that waits for something.
    pub fn has_notes(&self) -> bool {
        !self.notes.is_empty()
    }

    /// What earlier handles of a page wait for, for the one that takes over.
    pub fn take_note(&mut self, id: u32) -> Option<(Stamp, Vec<u64>)> {
        if self.notes.is_empty() { None } else { self.notes.remove(&id) }
    }

    /// Takes a page from the tree.
    pub fn drop_cached(&mut self, page: Page<G, Published>) -> Page<G, Quarantined> {
        self.change(page.id(), State::Cached, State::Quarantined);
        page.into_state()
    }

    /// Nothing can touch the page any more.
    pub fn release(&mut self, page: Page<G, Quarantined>) {
        self.change(page.id(), State::Quarantined, State::Free);
        self.free.push(page.id());
    }

    /// Usable ids.
    pub fn total(&self) -> u32 {
        self.total
    }
    /// Free pages.
    pub fn free(&self) -> u32 {
        self.free.len() as u32 + (self.total + 1 - self.fresh)
    }
    /// Pages of sequences.
    pub fn private(&self) -> u32 {
        self.private
    }
    /// Pages of the tree.
    pub fn cached(&self) -> u32 {
        self.cached
    }
    /// Pages that wait for a step or move.
    pub fn quarantined(&self) -> u32 {
        self.quarantined
    }
    /// True when the tree owns page `id`.
    pub fn is_cached(&self, id: u32) -> bool {
        *self.state.get(id as usize) == State::Cached
    }
    /// True when sequences own page `id`.
    pub fn is_private(&self, id: u32) -> bool {
        *self.state.get(id as usize) == State::Private
    }
    /// Handles of private page `id`.
    pub fn handles(&self, id: u32) -> u32 {
        1 + self.shares.get(&id).copied().unwrap_or(0)
    }

    /// Counts by state against the states themselves.
    pub fn check(&self) -> Result<(), String> {
        let mut seen = [0u32; 4];
        (1..self.fresh).for_each(|id| seen[*self.state.get(id as usize) as usize] += 1);
        let want = [self.free.len() as u32, self.private, self.cached, self.quarantined];
        if seen != want {
            return Err(format!(
                "{} pool: states {seen:?}, counts {want:?} (free, private, cached, quarantined)",
                G::NAME
            ));
        }
        if let Some(id) = self.notes.keys().find(|&&id| !self.is_private(id)) {
            return Err(format!("{} pool: page {id} is nobody's and has a note of earlier handles", G::NAME));
        }
        let sum = self.free() + self.private + self.cached + self.quarantined;
        if sum != self.total {
            return Err(format!("{} pool: {sum} pages counted, {} exist", G::NAME, self.total));
        }
        Ok(())
    }
}
