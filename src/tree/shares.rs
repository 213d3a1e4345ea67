//! Orders of eviction within a tenant: what a tenant with a share may let go of its own, oldest first, however much of
//! others is older. Linked lists over ids with common links, since an id has one tenant; every operation O(1) but for
//! finding the tenant.

use super::Tree;
use super::ghost::Why;
use super::node::Place;
use crate::policy::NIL;
use crate::pool::chunk::ChunkVec;
use std::collections::BTreeMap;

/// `prev` of an id that is in no list.
const ABSENT: u32 = u32::MAX - 1;
/// Entries looked at per call; those that cannot go now move to the young end.
const LOOKS: usize = 256;
/// Pages beyond those wanted that one call takes from a tenant whose share was cut.
const SHARE_STEP: u64 = 2_048;

/// See the module's text.
#[derive(Debug)]
pub(super) struct TenantLists {
    links: ChunkVec<(u32, u32)>,
    /// Oldest and youngest id.
    ends: BTreeMap<u32, (u32, u32)>,
}

impl Default for TenantLists {
    fn default() -> Self {
        TenantLists { links: ChunkVec::new((ABSENT, NIL)), ends: BTreeMap::new() }
    }
}

impl TenantLists {
    pub(super) fn contains(&self, id: u32) -> bool {
        self.links.get(id as usize).0 != ABSENT
    }

    /// Puts `id` at the young end.
    pub(super) fn insert(&mut self, tenant: u32, id: u32) {
        let (_, tail) = *self.ends.entry(tenant).or_insert((NIL, NIL));
        self.link(tenant, tail, id, NIL);
    }

    /// Puts `id`, split off `older`, after it.
    pub(super) fn insert_after(&mut self, tenant: u32, older: u32, id: u32) {
        let next = self.links.get(older as usize).1;
        self.link(tenant, older, id, next);
    }

    fn link(&mut self, tenant: u32, prev: u32, id: u32, next: u32) {
        debug_assert!(!self.contains(id));
        *self.links.get_mut(id as usize) = (prev, next);
        let ends = self.ends.get_mut(&tenant).expect("a tenant with a list");
        match prev {
            NIL => ends.0 = id,
            p => self.links.get_mut(p as usize).1 = id,
        }
        match next {
            NIL => ends.1 = id,
            n => self.links.get_mut(n as usize).0 = id,
        }
    }

    /// Takes `id` out; does nothing when it is in no list.
    pub(super) fn remove(&mut self, tenant: u32, id: u32) {
        let (prev, next) = *self.links.get(id as usize);
        if prev == ABSENT {
            return;
        }
        let ends = self.ends.get_mut(&tenant).expect("a tenant with a list");
        match prev {
            NIL => ends.0 = next,
            p => self.links.get_mut(p as usize).1 = next,
        }
        match next {
            NIL => ends.1 = prev,
            n => self.links.get_mut(n as usize).0 = prev,
        }
        if *ends == (NIL, NIL) {
            self.ends.remove(&tenant);
        }
        *self.links.get_mut(id as usize) = (ABSENT, NIL);
    }

    fn oldest(&self, tenant: u32) -> Option<u32> {
        self.ends.get(&tenant).map(|e| e.0)
    }

    fn after(&self, id: u32) -> Option<u32> {
        Some(self.links.get(id as usize).1).filter(|&id| id != NIL)
    }

    /// Every listed id with its tenant.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.ends.iter().flat_map(|(&tenant, &(head, _))| {
            std::iter::successors(Some(head), |&id| self.after(id)).map(move |id| (tenant, id))
        })
    }
}

impl Tree {
    fn is_limited(&self, tenant: u32) -> bool {
        self.tenants.get(&tenant).is_some_and(|t| (t.max_full, t.max_swa) != (u64::MAX, u64::MAX))
    }

    /// A node became evictable.
    pub(super) fn order_node(&mut self, id: u32) {
        self.update_leaf(id);
        let tenant = self.nodes[id].tenant;
        if self.is_limited(tenant) {
            self.own_nodes.insert(tenant, id);
        }
    }

    /// A node is not evictable any more.
    pub(super) fn disorder_node(&mut self, id: u32) {
        self.order.remove(id);
        self.own_nodes.remove(self.nodes[id].tenant, id);
    }

    /// A checkpoint may be dropped by the policy.
    pub(super) fn order_ckpt(&mut self, id: u32) {
        let at = self.ckpt_standing(id);
        self.ckpt_order.insert(id, at);
        let tenant = self.ckpts[id].tenant;
        if self.is_limited(tenant) {
            self.own_ckpts.insert(tenant, id);
        }
    }

    /// A checkpoint may not be dropped by the policy, or moves in its order.
    pub(super) fn disorder_ckpt(&mut self, id: u32) {
        self.ckpt_order.remove(id);
        self.own_ckpts.remove(self.ckpts[id].tenant, id);
    }

    /// Drops a tenant's checkpoints, oldest first, until it may publish `want` SWA pages or nothing of its own is left
    /// to drop. Those from before it had a share are found among the oldest of all.
    pub(crate) fn evict_tenant_swa(&mut self, tenant: u32, want: u64) {
        self.act.why = Why::Share;
        let mut at = self.own_ckpts.oldest(tenant);
        for _ in 0..LOOKS {
            let Some(id) = at.filter(|_| self.share_left(tenant).1 < want) else { break };
            at = self.own_ckpts.after(id);
            if !self.evict_own_ckpt(tenant, id) {
                self.own_ckpts.remove(tenant, id);
                self.own_ckpts.insert(tenant, id);
            }
        }
        if self.share_left(tenant).1 < want {
            let looks: Vec<u32> = self.ckpt_order.ids().iter().take(LOOKS).collect();
            for id in looks {
                if self.share_left(tenant).1 >= want {
                    break;
                }
                if self.ckpts.get(id).is_some_and(|c| c.tenant == tenant) {
                    self.evict_own_ckpt(tenant, id);
                }
            }
        }
    }

    /// False when the checkpoint stays, since dropping it would free nothing.
    fn evict_own_ckpt(&mut self, tenant: u32, id: u32) -> bool {
        debug_assert_eq!(self.ckpts[id].tenant, tenant);
        let frees = !self.frees_nothing(id);
        if frees {
            self.counters.checkpoints += 1;
            self.drop_checkpoint(id);
        }
        frees
    }

    /// Frees full pages of a tenant's oldest leaves until it may publish `want` or nothing of its own is left to free.
    pub(crate) fn evict_tenant_full(&mut self, tenant: u32, want: u64) {
        self.act.why = Why::Share;
        // A share that was cut far below what its tenant has is reached over many calls, none of which takes long.
        let mut budget = want + SHARE_STEP;
        let mut at = self.own_nodes.oldest(tenant);
        for _ in 0..LOOKS {
            let Some(id) = at.filter(|_| self.share_left(tenant).0 < want && budget > 0) else { break };
            at = self.own_nodes.after(id);
            if self.nodes[id].is_leaf() {
                self.evict_own_leaf(tenant, id, want, &mut budget);
            } else {
                self.own_nodes.remove(tenant, id);
                self.own_nodes.insert(tenant, id);
            }
        }
        if self.share_left(tenant).0 < want && budget > 0 {
            let looks: Vec<u32> = self.order.ids().iter().take(LOOKS).collect();
            for id in looks {
                // A node whose last child went is a leaf now and may follow.
                let mut at = id;
                while self
                    .nodes
                    .get(at)
                    .is_some_and(|n| n.tenant == tenant && n.place == Place::Evictable && n.is_leaf())
                {
                    let parent = self.nodes[at].parent;
                    self.evict_own_leaf(tenant, at, want, &mut budget);
                    if self.nodes.get(at).is_some() {
                        break;
                    }
                    at = parent;
                }
            }
        }
    }

    fn evict_own_leaf(&mut self, tenant: u32, id: u32, want: u64, budget: &mut u64) {
        let missing = want.saturating_sub(self.share_left(tenant).0).min(*budget);
        *budget -= u64::from(self.evict_tail(id, missing.min(u64::from(u32::MAX)) as u32));
    }
}
