//! Leases: what keeps pages from eviction.
//!
//! A path lease is a count on the node at whose end it was taken; its receipt is that node's last slot, which stays the
//! last slot of its node while the lease lives. An SWA lease is a count on the page itself.

use super::Tree;
use crate::policy::User;
use crate::pool::{Full, Hold, MoveBucket, Page, Quarantined, Stamp, Swa};

impl Tree {
    /// Protects `id` to its end and everything above. Costs the nodes that were not leased yet.
    pub(crate) fn lease_path(&mut self, id: u32) {
        let mut at = id;
        let mut direct = true;
        loop {
            let was = self.nodes[at].is_leased();
            if !was {
                self.take_from_order(at);
                self.leased_full += u64::from(self.nodes[at].len) * u64::from(self.has_full);
            }
            let node = &mut self.nodes[at];
            if direct {
                node.leases += 1
            } else {
                node.leased_children += 1
            }
            if was || node.is_root() {
                return;
            }
            direct = false;
            at = node.parent;
        }
    }

    /// Ends a path lease whose holder's newest step is `stamp`. Nodes that become free take their place in the order as
    /// used by `user`, deepest first, and are joined with a parent that nothing tells apart from them. Without a user it
    /// is the node's last one.
    pub(crate) fn unlease_path(&mut self, id: u32, stamp: Stamp, user: Option<User>) {
        let user = user.unwrap_or(self.nodes[id].last);
        let mut at = id;
        let mut direct = true;
        let mut carry = stamp;
        let mut below = None;
        loop {
            let node = &mut self.nodes[at];
            if direct {
                node.leases -= 1
            } else {
                node.leased_children -= 1
            }
            node.stamp = node.stamp.max(carry);
            carry = node.stamp;
            node.take_user(&user);
            if node.is_leased() {
                return;
            }
            let (parent, root) = (node.parent, node.root);
            if node.is_root() {
                self.prune_root(root);
                return;
            }
            node.uses = node.uses.saturating_add(1);
            self.leased_full -= u64::from(node.len) * u64::from(self.has_full);
            self.put_in_order(at);
            let joined = below.is_some_and(|b| self.try_join(at, b));
            if !joined {
                below = Some(at);
            }
            direct = false;
            at = parent;
            if !self.has_full && !joined && self.trim_tail(below.expect("set above")) {
                below = None;
            }
        }
    }

    /// Moves one path lease from `from` to the new leaf `to` below it.
    pub(crate) fn move_lease_down(&mut self, from: u32, to: u32) {
        self.lease_path(to);
        let node = &mut self.nodes[from];
        node.leases -= 1;
        debug_assert!(node.is_leased());
    }

    /// Protects a cached SWA page.
    pub(crate) fn lease_swa(&mut self, page: u32) {
        let meta = self.swa_meta.get_mut(page as usize);
        meta.leases += 1;
        if meta.leases == 1 {
            self.swa_leased += 1;
            if meta.waiting {
                meta.waiting = false;
                self.swa_waiting -= 1;
            }
        }
    }

    /// Ends a lease on a cached SWA page; without checkpoint or lease the page is free.
    pub(crate) fn unlease_swa(&mut self, page: u32, stamp: Stamp) {
        let meta = self.swa_meta.get_mut(page as usize);
        meta.stamp = meta.stamp.max(stamp);
        meta.leases -= 1;
        if meta.leases > 0 {
            return;
        }
        self.swa_leased -= 1;
        if meta.refs == 0 {
            self.drop_swa(page);
        } else if !self.fence.is_retired(meta.stamp) {
            meta.waiting = true;
            let stamp = meta.stamp;
            self.swa_waiting += 1;
            self.fence.bucket(stamp).swa_wait.push(page);
        }
    }

    /// One checkpoint less needs the page.
    pub(super) fn unref_swa(&mut self, page: u32) {
        let meta = self.swa_meta.get_mut(page as usize);
        meta.refs -= 1;
        if meta.refs > 0 {
            return;
        }
        let (slot, leases) = (meta.slot, meta.leases);
        let node = self.slots.node(slot);
        self.nodes[node].loose += 1;
        if leases == 0 {
            self.counters.swa += 1;
            self.drop_swa(page);
        }
    }

    /// Takes an SWA page without reference or lease out of the tree.
    fn drop_swa(&mut self, page: u32) {
        let meta = self.swa_meta.get_mut(page as usize);
        if meta.waiting {
            meta.waiting = false;
            self.swa_waiting -= 1;
        }
        let (slot, stamp, tenant) = (meta.slot, meta.stamp, meta.tenant);
        meta.record = 0;
        let node = self.slots.node(slot);
        self.touch_slot(slot);
        self.slots.set_swa(slot, 0);
        self.nodes[node].swa -= 1;
        self.nodes[node].loose -= 1;
        self.count_tenant(tenant, 0, -1);
        let handle = self.swa.take_back(page);
        self.free_swa(handle, stamp);
        if !self.has_full {
            self.trim_tail(node);
        }
    }

    /// Gives up a sequence's full page: at once, or when its step and moves are over.
    pub(crate) fn free_private_full<S>(&mut self, page: Page<Full, S>, stamp: Stamp, moves: &[u64]) {
        if let Some((page, stamp, moves)) = self.full.drop_private(page, stamp, moves) {
            self.settle_full(page, stamp, &moves);
        }
    }

    /// Gives up a sequence's SWA page likewise.
    pub(crate) fn free_private_swa<S>(&mut self, page: Page<Swa, S>, stamp: Stamp, moves: &[u64]) {
        if let Some((page, stamp, moves)) = self.swa.drop_private(page, stamp, moves) {
            self.settle_swa(page, stamp, &moves);
        }
    }

    /// The first of `moves` that still runs, and those after it.
    fn running_move(&mut self, moves: &[u64]) -> Option<(u64, Vec<u64>)> {
        let i = moves.iter().position(|&m| self.fence.move_bucket(m).is_some())?;
        Some((moves[i], moves[i + 1..].to_vec()))
    }

    pub(super) fn settle_full(&mut self, page: Page<Full, Quarantined>, stamp: Stamp, moves: &[u64]) {
        if let Some((id, rest)) = self.running_move(moves) {
            self.fence.move_bucket(id).expect("running").full.push((page, stamp, rest));
        } else if self.fence.is_retired(stamp) {
            self.full.release(page);
        } else {
            self.fence.bucket(stamp).full.push(page);
        }
    }

    pub(super) fn settle_swa(&mut self, page: Page<Swa, Quarantined>, stamp: Stamp, moves: &[u64]) {
        if let Some((id, rest)) = self.running_move(moves) {
            self.fence.move_bucket(id).expect("running").swa.push((page, stamp, rest));
        } else if self.fence.is_retired(stamp) {
            self.swa.release(page);
        } else {
            self.fence.bucket(stamp).swa.push(page);
        }
    }

    /// A move ended: its pages wait for their other moves and steps, or are free. Returns the copy sources.
    pub(crate) fn release_moved(&mut self, bucket: MoveBucket) -> Vec<Hold> {
        for (page, stamp, moves) in bucket.full {
            self.settle_full(page, stamp, &moves);
        }
        for (page, stamp, moves) in bucket.swa {
            self.settle_swa(page, stamp, &moves);
        }
        bucket.holds
    }

    /// Marks a used checkpoint as young.
    pub(super) fn touch_ckpt(&mut self, id: u32) {
        self.ranks += 1;
        let (rank, now) = (self.ranks, self.history.now(self.now));
        let c = &mut self.ckpts[id];
        (c.rank, c.used) = (rank, now);
        if self.ckpt_order.ids().get(id).is_some() {
            self.disorder_ckpt(id);
            self.order_ckpt(id);
        } else if self.ckpt_pinned.contains(id) {
            self.ckpt_pinned.remove(id);
            self.ckpt_pinned.insert(id);
        }
    }
}
