//! Copies that wait to be run: handed out with the next step, or as a move of their own. A hold keeps their sources
//! untouched: until the step is known that retires them, or the move is done.

use super::{Cache, Group, PageCopy, Plan};
use crate::error::{Error, Result};
use crate::pool::{Full, Hold, MoveBucket, NONE, Page, Reserved, Stamp};
use crate::tree::{Tree, Until};

/// A copy that no plan contains yet.
#[derive(Debug)]
pub(super) struct PendingCopy {
    pub(super) copy: PageCopy,
    /// Sequence whose page is written: (index, generation).
    pub(super) owner: (u32, u32),
    /// Sequence whose own page is read.
    pub(super) reads: Option<(u32, u32)>,
    pub(super) hold: Hold,
}

impl Cache {
    /// Pending copies become part of the step `stamp`: from here on the stamps of both sides protect them.
    pub(super) fn plan_for_step(&mut self, stamp: Stamp) -> Plan {
        let moved = self.move_pages(Until::Step(stamp));
        if self.pending.is_empty() && self.rebuilds.is_empty() && moved.copies.is_empty() {
            // Making room to move pages may have dropped some.
            self.settle();
            return Plan::default();
        }
        let mut plan = Plan { copies: Vec::new(), rebuilds: std::mem::take(&mut self.rebuilds) };
        let rebuilt = plan.rebuilds.iter().map(|r| (r.seq.index, r.seq.generation)).collect::<Vec<_>>();
        let pending = std::mem::take(&mut self.pending);
        let both = pending.iter().flat_map(|p| [Some(p.owner), p.reads]).flatten();
        for (index, generation) in both.chain(rebuilt) {
            if let Some(seq) = self.seqs.get_mut(index).filter(|s| s.generation == generation) {
                seq.stamp = stamp;
            }
        }
        let mut holds = Vec::new();
        for p in pending {
            plan.copies.push(p.copy);
            holds.push(p.hold);
        }
        self.release_holds(holds, stamp);
        plan.copies.extend(moved.copies);
        let bucket = self.tree.fence.bucket(stamp);
        bucket.full.extend(moved.full);
        bucket.swa.extend(moved.swa);
        self.rebalance();
        self.settle();
        plan
    }

    /// Takes the pending copies to run outside a step. Pages at both ends stay until [`Self::move_done`].
    pub fn take_copies(&mut self) -> Option<(u64, Plan)> {
        // It runs from here on: room for one page may be what another one has just been moved to.
        let id = self.tree.fence.start_move(MoveBucket::default());
        let moved = self.move_pages(Until::Move(id));
        if self.pending.is_empty() && moved.copies.is_empty() {
            self.tree.fence.cancel_move();
            self.settle();
            return None;
        }
        let mut plan = Plan { copies: moved.copies, rebuilds: std::mem::take(&mut self.rebuilds) };
        let bucket = self.tree.fence.move_bucket(id).expect("started above");
        bucket.full.extend(moved.full.into_iter().map(|page| (page, NONE, Vec::new())));
        bucket.swa.extend(moved.swa.into_iter().map(|page| (page, NONE, Vec::new())));
        for p in std::mem::take(&mut self.pending) {
            plan.copies.push(p.copy);
            bucket.holds.push(p.hold);
            bucket.seqs.push(p.owner);
        }
        bucket.seqs.sort_unstable();
        bucket.seqs.dedup();
        let owners = bucket.seqs.clone();
        for (index, generation) in owners {
            if let Some(seq) = self.seqs.get_mut(index).filter(|s| s.generation == generation) {
                seq.moves.push(id);
            }
        }
        self.settle();
        Some((id, plan))
    }

    /// A move is over on all ranks. Loads have [`Self::load_done`].
    pub fn move_done(&mut self, id: u64) -> Result<()> {
        let loads = self.live.iter().filter_map(|&index| self.seqs[index].load.as_ref());
        if loads.into_iter().any(|load| load.id == id) {
            return Err(Error::Order { what: "move", value: id, expected: "told to load_done, it is a load".into() });
        }
        let bucket = self.tree.fence.end_move(id)?;
        self.tree.settle_landing(Some(id));
        for &(index, generation) in &bucket.seqs {
            if let Some(seq) = self.seqs.get_mut(index).filter(|s| s.generation == generation) {
                seq.moves.retain(|m| *m != id);
            }
        }
        let holds = self.tree.release_moved(bucket);
        self.release_holds(holds, NONE);
        self.rebalance();
        self.settle();
        Ok(())
    }

    /// Lets copy sources go.
    fn release_holds(&mut self, holds: Vec<Hold>, stamp: Stamp) {
        for hold in holds {
            match hold {
                Hold::Tree { slot, swa } => {
                    if swa != 0 {
                        self.copy_holds -= 1;
                        self.tree.unlease_swa(swa, stamp);
                    }
                    let node = self.tree.slots.node(slot);
                    self.tree.unlease_path(node, stamp, None);
                }
                Hold::Published(..) => unreachable!("only inside a publication"),
                Hold::Full(page) => self.tree.free_private_full(page, stamp, &[]),
                Hold::Swa(page) => {
                    self.copy_holds -= 1;
                    self.tree.free_private_swa(page, stamp, &[]);
                }
            }
        }
    }

    /// A sequence gave its pages back before its copies were handed out: they are not needed any more, but for those
    /// that another pending copy reads from. Those go with the last reader, which may be another sequence's.
    pub(super) fn cancel_copies(&mut self, owner: (u32, u32)) {
        self.rebuilds.retain(|r| (r.seq.index, r.seq.generation) != owner);
        self.drop_unowned_copies();
    }

    /// Copies whose target nobody holds any more are not run.
    pub(super) fn drop_unowned_copies(&mut self) {
        loop {
            let tree = &self.tree;
            let held = |c: &PageCopy| match c.group {
                Group::Full => tree.full.is_private(c.dst),
                Group::Swa => tree.swa.is_private(c.dst),
            };
            if self.pending.iter().all(|p| held(&p.copy)) {
                return;
            }
            let (kept, gone): (Vec<_>, Vec<_>) =
                std::mem::take(&mut self.pending).into_iter().partition(|p| held(&p.copy));
            self.pending = kept;
            self.release_holds(gone.into_iter().map(|p| p.hold).collect(), NONE);
        }
    }

    /// How many of the first `most` of a sequence's own full pages it shares with nobody but copies. Those that forks
    /// share by count have no single owner to take them from and are not published while they do.
    pub(super) fn unshared_full(&mut self, index: u32, most: u32) -> u32 {
        if !self.tree.full.has_shares() {
            return most;
        }
        let (tree, pending) = (&mut self.tree, &self.pending);
        let holds = |tree: &mut Tree, page: u32| {
            let is = |h: &Hold| matches!(h, Hold::Full(p) if p.id() == page);
            let waiting = tree.fence.moves_mut().flat_map(|m| &m.holds).filter(|h| is(h)).count();
            (waiting + pending.iter().filter(|p| is(&p.hold)).count()) as u32
        };
        let mut own = self.seqs[index].own.iter().take(most as usize);
        let shared = |p: &Page<Full, Reserved>, tree: &mut Tree| tree.full.handles(p.id()) > 1 + holds(tree, p.id());
        own.position(|p| shared(p, tree)).map_or(most, |i| i as u32)
    }

    /// How many of the first `most` of a sequence's own full pages have no other handle at all.
    pub(super) fn sole_full(&self, index: u32, most: u32) -> u32 {
        if !self.tree.full.has_shares() {
            return most;
        }
        let mut own = self.seqs[index].own.iter().take(most as usize);
        own.position(|p| self.tree.full.is_shared(p)).map_or(most, |i| i as u32)
    }

    /// Holds on the first `count` of a sequence's own full pages are taken off, so that they can be published. Returns
    /// the pages.
    pub(super) fn unhold_full(&mut self, index: u32, count: u32) -> Vec<u32> {
        if !self.tree.full.has_shares() {
            return Vec::new();
        }
        let own = self.seqs[index].own.iter().take(count as usize);
        let shared: Vec<u32> = own.filter(|p| self.tree.full.is_shared(p)).map(|p| p.id()).collect();
        shared.iter().for_each(|&page| self.unhold(Group::Full, page));
        shared
    }

    /// The steps and moves that earlier handles of pages waited for become the sequence's own, which publishes them.
    pub(super) fn inherit(&mut self, index: u32, note: Option<(Stamp, Vec<u64>)>) {
        let Some((stamp, moves)) = note else { return };
        let seq = &mut self.seqs[index];
        seq.stamp = seq.stamp.max(stamp);
        for id in moves {
            let bucket = self.tree.fence.move_bucket(id).filter(|_| !seq.moves.contains(&id));
            if let Some(bucket) = bucket {
                bucket.seqs.push((index, seq.generation));
                seq.moves.push(id);
            }
        }
    }

    /// Takes the holds off a page that is about to be published; [`Self::hold_published`] puts them on again.
    pub(super) fn unhold(&mut self, group: Group, page: u32) {
        let waiting = self.tree.fence.moves_mut().flat_map(|m| m.holds.iter_mut());
        for hold in self.pending.iter_mut().map(|p| &mut p.hold).chain(waiting) {
            match hold {
                Hold::Full(p) if group == Group::Full && p.id() == page => {
                    let old = std::mem::replace(hold, Hold::Published(group, page));
                    if let Hold::Full(p) = old {
                        let last = self.tree.full.drop_private(p, NONE, &[]);
                        debug_assert!(last.is_none());
                    }
                }
                Hold::Swa(p) if group == Group::Swa && p.id() == page => {
                    let old = std::mem::replace(hold, Hold::Published(group, page));
                    if let Hold::Swa(p) = old {
                        let last = self.tree.swa.drop_private(p, NONE, &[]);
                        debug_assert!(last.is_none());
                    }
                }
                _ => {}
            }
        }
    }

    /// The holds that [`Self::unhold`] took off a page become leases: on the path to `node`, and on the SWA page.
    pub(super) fn hold_published(&mut self, group: Group, page: u32, node: u32, swa: u32) {
        let slot = self.tree.nodes[node].last_slot();
        let mut count = 0;
        let waiting = self.tree.fence.moves_mut().flat_map(|m| m.holds.iter_mut());
        for hold in self.pending.iter_mut().map(|p| &mut p.hold).chain(waiting) {
            if matches!(hold, Hold::Published(g, p) if *g == group && *p == page) {
                *hold = Hold::Tree { slot, swa };
                count += 1;
            }
        }
        for _ in 0..count {
            self.tree.lease_path(node);
            if swa != 0 {
                self.tree.lease_swa(swa);
            }
        }
    }
}
