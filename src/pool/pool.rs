//! One pool: free list, owner of every page, counts by state.

use super::chunk::ChunkVec;
use super::fence::Stamp;
use super::ids::{ChunkedIds, FreeIds, Holding};
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

/// A pool of equal pages; id 0 is the null page.
#[derive(Debug)]
pub struct Pool<G> {
    ids: FreeIds,
    /// First id and number of ids of the chunk that drains; none when the number is 0.
    drain_first: u32,
    drain_len: u32,
    /// Cached pages in that chunk.
    drain_cached: u32,
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
    /// A pool of `total` usable pages with ids from 1.
    pub fn new(total: u32) -> Self {
        Self::over(FreeIds::flat(total))
    }

    /// A pool with `per` ids in each of the `chunks` chunks of a region, of which it has those in `owned`.
    pub fn of_chunks(chunks: u32, per: u32, owned: std::ops::Range<u32>) -> Self {
        Self::over(FreeIds::chunked(chunks, per, owned))
    }

    fn over(ids: FreeIds) -> Self {
        Pool {
            ids,
            drain_first: 0,
            drain_len: 0,
            drain_cached: 0,
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
        if self.is_draining(id) {
            self.drain_cached += u32::from(to == State::Cached);
            self.drain_cached -= u32::from(from == State::Cached);
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
        let id = self.ids.pop()?;
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

    /// Nothing can touch the page any more: it is free, or withdrawn in a chunk that drains.
    pub fn release(&mut self, page: Page<G, Quarantined>) {
        self.change(page.id(), State::Quarantined, State::Free);
        self.ids.push(page.id());
    }

    /// Pages there are now: usable ones, and those of a chunk that drains as far as they are not withdrawn yet.
    pub fn total(&self) -> u32 {
        self.ids.usable() + self.draining()
    }
    /// Pages that promises may count on: those of a chunk that drains left out.
    pub fn usable(&self) -> u32 {
        self.ids.usable()
    }
    /// Free pages.
    pub fn free(&self) -> u32 {
        self.ids.free()
    }
    /// Pages of the chunk that drains that are not withdrawn yet.
    pub fn draining(&self) -> u32 {
        match self.drain_chunk().zip(self.ids.chunks()) {
            Some((chunk, ids)) => ids.live(chunk),
            None => 0,
        }
    }
    /// Cached pages among them.
    pub fn draining_cached(&self) -> u32 {
        self.drain_cached
    }
    /// True when page `id` is in the chunk that drains.
    #[inline(always)]
    pub fn is_draining(&self, id: u32) -> bool {
        id.wrapping_sub(self.drain_first) < self.drain_len
    }
    /// The chunk that drains.
    pub fn drain_chunk(&self) -> Option<u32> {
        let ids = self.ids.chunks()?;
        (self.drain_len > 0).then(|| ids.chunk_of(self.drain_first))
    }
    /// The ids by chunk; `None` for a pool of fixed size.
    pub fn chunks(&self) -> Option<&ChunkedIds> {
        self.ids.chunks()
    }

    /// Begins to take a chunk away: its free pages are withdrawn at once, the others as they are released. Returns its
    /// first id and how many it has. Linear in the pages of a chunk.
    pub fn drain(&mut self, chunk: u32) -> (u32, u32) {
        assert!(self.drain_len == 0, "one chunk drains at a time");
        let ids = self.ids.chunks_mut().expect("a pool with chunks");
        ids.drain(chunk);
        (self.drain_first, self.drain_len) = (ids.first_id(chunk), ids.per());
        let all = self.drain_first..self.drain_first + self.drain_len;
        self.drain_cached = all.filter(|&id| self.is_cached(id)).count() as u32;
        (self.drain_first, self.drain_len)
    }

    /// Stops draining: what was withdrawn is free again.
    pub fn undrain(&mut self) {
        let chunk = self.drain_chunk().expect("a chunk drains");
        self.ids.chunks_mut().expect("a pool with chunks").undrain(chunk);
        (self.drain_first, self.drain_len, self.drain_cached) = (0, 0, 0);
    }

    /// The chunk that drained, all of whose pages are withdrawn, is this pool's no longer.
    pub fn give_up(&mut self) -> u32 {
        let chunk = self.drain_chunk().expect("a chunk drains");
        self.ids.chunks_mut().expect("a pool with chunks").give_up(chunk);
        (self.drain_first, self.drain_len) = (0, 0);
        chunk
    }

    /// A chunk that the other pool gave up is this pool's.
    pub fn take_over(&mut self, chunk: u32) {
        self.ids.chunks_mut().expect("a pool with chunks").take_over(chunk);
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
        let mut draining = (0, 0);
        for id in 1..=self.ids.highest() {
            let state = *self.state.get(id as usize);
            seen[state as usize] += 1;
            if self.is_draining(id) {
                draining.0 += u32::from(state != State::Free);
                draining.1 += u32::from(state == State::Cached);
            }
            let foreign = |c: &ChunkedIds| c.holding(c.chunk_of(id)) == Holding::Other;
            if state != State::Free && self.ids.chunks().is_some_and(foreign) {
                return Err(format!("{} pool: page {id} is {state:?} in a chunk of the other pool", G::NAME));
            }
        }
        if draining != (self.draining(), self.drain_cached) {
            return Err(format!("{} pool: {draining:?} pages in use and cached in the chunk that drains", G::NAME));
        }
        if let Some(ids) = self.ids.chunks() {
            ids.check()?;
            let drains = (0..ids.count()).filter(|&c| ids.holding(c) == Holding::Draining);
            if !drains.eq(self.drain_chunk()) {
                return Err(format!("{} pool: chunk {:?} drains by mistake", G::NAME, self.drain_chunk()));
            }
        }
        let want = [self.private, self.cached, self.quarantined];
        if seen[1..] != want {
            return Err(format!(
                "{} pool: states {seen:?}, counts {want:?} of the last three (free, private, cached, quarantined)",
                G::NAME
            ));
        }
        if let Some(id) = self.notes.keys().find(|&&id| !self.is_private(id)) {
            return Err(format!("{} pool: page {id} is nobody's and has a note of earlier handles", G::NAME));
        }
        let sum = self.free() + self.private + self.cached + self.quarantined;
        if sum != self.total() {
            return Err(format!("{} pool: {sum} pages counted, {} exist", G::NAME, self.total()));
        }
        Ok(())
    }
}
