//! `check_integrity`: every count and cross-reference of the tree, recomputed from the structures themselves.

use super::Tree;
use super::node::Place;
use crate::policy::NIL;
use crate::pool::Holding;
use std::collections::{BTreeMap, HashSet};

macro_rules! ensure {
    ($cond:expr, $($arg:tt)*) => {
        if !$cond { return Err(format!($($arg)*)); }
    };
}

impl Tree {
    pub(crate) fn check(&self) -> Result<(), String> {
        self.full.check()?;
        self.swa.check()?;
        self.check_relocated()?;
        if let Some((full, swa)) = self.full.chunks().zip(self.swa.chunks()) {
            let others = |c: &u32| (full.holding(*c) == Holding::Other) == (swa.holding(*c) == Holding::Other);
            if let Some(c) = (0..full.count()).find(others) {
                return Err(format!(
                    "chunk {c} is {:?} to the full pool and {:?} to the SWA pool",
                    full.holding(c),
                    swa.holding(c)
                ));
            }
        }
        ensure!(self.events.is_settled(), "events wait outside a call");
        let mut sums = Sums::default();
        for (rid, root) in self.roots.iter() {
            let node = &self.nodes[root.node];
            ensure!(node.is_root() && node.root == rid && node.len == 0, "root {rid} has no root node");
            ensure!(!root.attached || self.by_key.get(&root.key) == Some(&rid), "attached root {rid} is not found");
            ensure!(root.attached || self.detached.contains(&rid), "root {rid} is neither attached nor detached");
            ensure!(!node.is_leaf() || node.is_leased(), "root {rid} is empty and stays");
            self.check_below(root.node, rid, &mut sums)?;
        }
        ensure!(sums.nodes == self.nodes.len(), "{} nodes reached, {} exist", sums.nodes, self.nodes.len());
        ensure!(sums.slots == self.slots.live(), "{} slots reached, {} live", sums.slots, self.slots.live());
        ensure!(sums.ckpts == self.ckpts.len(), "{} checkpoints reached, {} exist", sums.ckpts, self.ckpts.len());
        ensure!(
            sums.full.len() as u32 == self.full.cached(),
            "{} full pages in slots, {} cached",
            sums.full.len(),
            self.full.cached()
        );
        ensure!(
            sums.swa.len() as u32 == self.swa.cached(),
            "{} SWA pages in slots, {} cached",
            sums.swa.len(),
            self.swa.cached()
        );
        ensure!(
            sums.leased_full == self.leased_full,
            "{} full pages leased, counted {}",
            sums.leased_full,
            self.leased_full
        );
        ensure!(sums.pending == self.pending_full, "{} full pages wait, counted {}", sums.pending, self.pending_full);
        ensure!(
            sums.swa_leased == self.swa_leased,
            "{} SWA pages leased, counted {}",
            sums.swa_leased,
            self.swa_leased
        );
        ensure!(
            sums.swa_waiting == self.swa_waiting,
            "{} SWA pages wait, counted {}",
            sums.swa_waiting,
            self.swa_waiting
        );
        let listed = self.order.ids().len();
        ensure!(sums.listed == listed, "{} leaves may go, {listed} in order", sums.listed);
        ensure!(sums.pinned == self.pinned.len(), "{} nodes pinned, {} listed", sums.pinned, self.pinned.len());
        self.order.ids().check()?;
        self.ckpt_order.ids().check()?;
        ensure!(sums.dead == self.dead.len(), "{} dead ends, {} listed", sums.dead, self.dead.len());
        for (tenant, id) in self.own_nodes.iter() {
            let known = self.nodes.get(id).is_some_and(|n| n.tenant == tenant && n.place == Place::Evictable);
            ensure!(known, "node {id} is in the order of tenant {tenant} by mistake");
        }
        for (tenant, id) in self.own_ckpts.iter() {
            let known =
                self.ckpts.get(id).is_some_and(|c| c.tenant == tenant && self.ckpt_order.ids().get(id).is_some());
            ensure!(known, "checkpoint {id} is in the order of tenant {tenant} by mistake");
        }
        ensure!(
            self.ckpt_order.ids().len() + self.ckpt_pinned.len() == self.ckpts.len(),
            "a checkpoint is in no order"
        );
        for (id, c) in self.ckpts.iter() {
            for page in self
                .window_pages(self.slots.node(c.slot), c.end, c.pages)
                .ok_or(format!("checkpoint {id} has a hole"))?
            {
                *sums.refs.entry(page).or_insert(0) += 1;
            }
            ensure!(
                c.pages >= self.need_at(c.end),
                "checkpoint {id} keeps {} pages, its window has {}",
                c.pages,
                self.need_at(c.end)
            );
            ensure!(c.kinds != 0, "checkpoint {id} has no kind");
        }
        for &page in &sums.swa {
            let meta = self.swa_meta.get(page as usize);
            let refs = sums.refs.get(&page).copied().unwrap_or(0);
            ensure!(meta.refs == refs, "SWA page {page} counts {} references, has {refs}", meta.refs);
            ensure!(meta.refs > 0 || meta.leases > 0, "SWA page {page} is cached without reference or lease");
        }
        let mut tenants = self.tenants.clone();
        for (t, (full, swa)) in &sums.tenants {
            let have = tenants.remove(t).map_or((0, 0), |t| (t.full, t.swa));
            ensure!(have == (*full, *swa), "tenant {t} counts {have:?} pages, has {full}, {swa}");
        }
        ensure!(tenants.values().all(|t| t.full == 0 && t.swa == 0), "a tenant counts pages it does not have");
        Ok(())
    }

    fn check_below(&self, top: u32, root: u32, sums: &mut Sums) -> Result<(), String> {
        let mut stack = vec![top];
        while let Some(id) = stack.pop() {
            sums.nodes += 1;
            let n = &self.nodes[id];
            ensure!(n.root == root, "node {id} names root {}, hangs below {root}", n.root);
            ensure!(n.runs.iter().map(|r| r.len).sum::<u32>() == n.len, "node {id}: runs and length differ");
            ensure!(n.is_root() || n.len > 0, "node {id} has no pages");
            let kids: Vec<u32> = self.children(id).collect();
            ensure!(kids.len() as u32 == n.children, "node {id} counts {} children, has {}", n.children, kids.len());
            let leased = kids.iter().filter(|&&c| self.nodes[c].is_leased()).count() as u32;
            ensure!(leased == n.leased_children, "node {id}: {leased} children leased, counted {}", n.leased_children);
            let pinned = kids.iter().filter(|&&c| self.nodes[c].is_pinned()).count() as u32;
            ensure!(pinned == n.pinned_children, "node {id}: {pinned} children pinned, counted {}", n.pinned_children);
            let mut firsts = HashSet::new();
            for &c in &kids {
                let child = &self.nodes[c];
                ensure!(child.parent == id && child.depth == n.end(), "node {c} does not continue node {id}");
                ensure!(child.hash == self.first_page_hash(c), "node {c} has another hash than its first page");
                ensure!(self.children_with(id, child.hash).any(|x| x == c), "node {c} is not in the child table");
                let first = child.runs[0].start;
                let tokens = self.slots.tokens(super::Run { start: first, len: 1 });
                let spans: Vec<_> = self.slots.spans(first).iter().map(|s| (s.at, s.offset, s.count, s.hash)).collect();
                ensure!(firsts.insert((tokens, spans)), "node {id} has two children with one first page");
                ensure!(
                    self.nodes[c].stamp <= n.stamp || n.is_leased() || n.is_root(),
                    "node {id} retires before its child"
                );
                stack.push(c);
            }
            let full = u64::from(n.len) * u64::from(self.has_full);
            if n.is_leased() || n.is_root() {
                ensure!(n.place == Place::None, "leased node {id} is {:?}", n.place);
                sums.leased_full += if n.is_leased() { full } else { 0 };
            } else {
                ensure!(n.place != Place::None, "free node {id} is in no order");
            }
            match n.place {
                Place::None => {}
                Place::Pending => sums.pending += full,
                Place::Evictable => {
                    let entry = self.order.ids().get(id);
                    ensure!(entry.is_some() == n.is_leaf() && !n.is_pinned(), "node {id} is {entry:?} in order");
                    let same = |e: &crate::policy::Entry| e.pages == n.len && e.used == n.last.time;
                    ensure!(entry.is_none_or(same), "node {id} stands as {entry:?}");
                    sums.listed += usize::from(n.is_leaf());
                }
                Place::Pinned => {
                    sums.pinned += 1;
                    ensure!(self.pinned.contains(id) && n.is_pinned(), "node {id} is not pinned");
                }
            }
            ensure!(
                matches!(n.place, Place::Pending) != self.fence.is_retired(n.stamp) || n.is_leased() || n.is_root(),
                "node {id} is {:?} at stamp {}",
                n.place,
                n.stamp
            );
            let dead = self.need > 0
                && self.has_full
                && n.place == Place::Evictable
                && kids.is_empty()
                && n.ckpts.last().is_none_or(|&c| self.ckpts[c].end < n.end());
            ensure!(dead == self.dead.contains(id), "node {id} dead {dead}, listed {}", !dead);
            sums.dead += usize::from(dead);
            self.check_slots(id, sums)?;
        }
        Ok(())
    }

    fn check_slots(&self, id: u32, sums: &mut Sums) -> Result<(), String> {
        let n = &self.nodes[id];
        let (mut page, mut swa_count, mut loose, mut ckpts) = (n.depth, 0, 0, Vec::new());
        for r in &n.runs {
            for slot in r.start..r.start + r.len {
                page += 1;
                sums.slots += 1;
                ensure!(self.slots.node(slot) == id, "slot {slot} names node {}, is in {id}", self.slots.node(slot));
                let (full, swa) = (self.slots.full(slot), self.slots.swa(slot));
                ensure!((full != 0) == self.has_full, "slot {slot} has full page {full}");
                if full != 0 {
                    ensure!(
                        sums.full.insert(full) && self.full.is_cached(full),
                        "full page {full} is not the tree's alone"
                    );
                    self.check_full_slot(full, slot)?;
                    sums.tenants.entry(n.tenant).or_default().0 += 1;
                }
                let (bits, place) = self.slots.swa_bits(slot);
                ensure!((swa != 0) == (bits >> place & 1 == 1), "slot {slot}: SWA bit and page differ");
                if swa != 0 {
                    ensure!(sums.swa.insert(swa) && self.swa.is_cached(swa), "SWA page {swa} is not the tree's alone");
                    let meta = self.swa_meta.get(swa as usize);
                    ensure!(meta.slot == slot, "SWA page {swa} names slot {}, is in {slot}", meta.slot);
                    sums.swa_leased += u64::from(meta.leases > 0);
                    sums.swa_waiting += u64::from(meta.waiting);
                    ensure!(!meta.waiting || meta.leases == 0, "SWA page {swa} waits under a lease");
                    ensure!(
                        meta.leases > 0 || meta.waiting != self.fence.is_retired(meta.stamp),
                        "SWA page {swa} waits wrongly"
                    );
                    sums.tenants.entry(meta.tenant).or_default().1 += 1;
                    swa_count += 1;
                    loose += u32::from(meta.refs == 0);
                }
                let c = self.slots.ckpt(slot);
                if c != NIL {
                    let ck = self.ckpts.get(c).ok_or(format!("slot {slot} names checkpoint {c}, which is gone"))?;
                    ensure!(ck.slot == slot && ck.end == page, "checkpoint {c} is not at slot {slot}");
                    ckpts.push(c);
                }
            }
        }
        ensure!(n.loose == loose, "node {id} counts {} loose SWA pages, has {loose}", n.loose);
        ensure!(n.swa == swa_count, "node {id} counts {} SWA pages, has {swa_count}", n.swa);
        ensure!(n.ckpts.as_slice() == ckpts, "node {id} lists checkpoints {:?}, has {ckpts:?}", n.ckpts);
        let keeps = n.is_root() || self.has_full || n.is_leased() || n.is_pinned() || !n.is_leaf();
        ensure!(keeps || self.slots.swa(n.last_slot()) != 0, "node {id} ends in pages that hold nothing");
        sums.ckpts += ckpts.len();
        Ok(())
    }
}

#[derive(Default)]
struct Sums {
    nodes: usize,
    slots: u64,
    ckpts: usize,
    full: HashSet<u32>,
    swa: HashSet<u32>,
    leased_full: u64,
    pending: u64,
    swa_leased: u64,
    swa_waiting: u64,
    listed: usize,
    pinned: usize,
    dead: usize,
    refs: BTreeMap<u32, u32>,
    tenants: BTreeMap<u32, (u64, u64)>,
}
