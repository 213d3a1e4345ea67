//! Publication: pages of a sequence become the tree's.

use super::node::{MAX_PAGES, MAX_RUNS, Node};
use super::walk::Query;
use super::{SwaMeta, Tree};
use crate::policy::End;
use crate::pool::{Computed, Full, Page, Stamp, Swa};

impl Tree {
    /// Adds `count` pages from page `from` of `query` below `at`, whose end the caller leases; the lease moves to the
    /// end of the returned node. The node is extended in place when nobody else can tell. `pages` yields the full
    /// pages, or nothing without a full group; steps up to `stamp` may still write them. Also tells the deepest of the pages where an earlier prompt ended.
    pub(crate) fn insert(
        &mut self,
        at: u32,
        query: Query<'_>,
        from: u32,
        count: u32,
        (tenant, stamp): (u32, Stamp),
        pages: &mut dyn Iterator<Item = Page<Full, Computed>>,
    ) -> (u32, Option<(u32, End)>) {
        let size = self.page as usize;
        let mut id = at;
        let mut page = from;
        let mut found = None;
        let learns = self.history.learns();
        let mut parent_key = match self.nodes[id].runs.last() {
            Some(_) => *self.slots.key(self.nodes[id].last_slot()),
            None => self.roots[self.nodes[id].root].key,
        };
        while page < from + count {
            let want = (from + count - page).min(MAX_PAGES);
            let node = &self.nodes[id];
            let extend = !node.is_root()
                && node.is_leaf()
                && (node.leases, node.leased_children, node.pins) == (1, 0, 0)
                && node.tenant == tenant
                && node.len < MAX_PAGES
                && node.runs.len() < MAX_RUNS;
            let (target, want) = if extend {
                (id, want.min(MAX_PAGES - node.len))
            } else {
                let (root, depth) = (node.root, node.end());
                (self.nodes.insert(Node::new(id, root, depth, tenant)), want)
            };
            let run = self.slots.allocate(want);
            for i in 0..run.len {
                let slot = run.start + i;
                let tokens = &query.tokens[page as usize * size..][..size];
                self.slots.write(slot, tokens, query.spans, u64::from(page));
                parent_key = query.key(&parent_key, u64::from(page), self.page);
                self.slots.set_key(slot, parent_key);
                if learns && let Some(end) = self.history.end_at(&parent_key) {
                    found = Some((page + 1, end));
                }
                if self.has_full {
                    let handle = pages.next().expect("a full page for every page");
                    let handle = self.full.publish(handle);
                    let full = handle.into_id();
                    self.slots.set_full(slot, full);
                    self.set_full_slot(full, slot);
                }
                page += 1;
            }
            self.slots.set_node(run, target);
            let node = &mut self.nodes[target];
            node.written = node.written.max(stamp);
            let joins = node.runs.last().is_some_and(|&r| self.slots.joins(r, run));
            node.push_run(run, joins);
            if self.has_full {
                self.count_tenant(tenant, i64::from(run.len), 0);
            }
            if extend {
                self.leased_full += u64::from(run.len) * u64::from(self.has_full);
            } else {
                self.nodes[target].hash = self.first_page_hash(target);
                self.add_child(target);
                self.move_lease_down(id, target);
                id = target;
            }
            (run.start..run.start + run.len).for_each(|s| self.touch_slot(s));
        }
        (id, found)
    }

    /// Fills the SWA hole of `slot` with a sequence's page, which keeps a lease on it. `after` are the known tokens
    /// after the page, from which its MTP rows were made; steps up to `stamp` may still write it.
    pub(crate) fn publish_swa(
        &mut self,
        slot: u32,
        page: Page<Swa, Computed>,
        after: &[u32],
        (tenant, stamp): (u32, Stamp),
    ) -> u32 {
        debug_assert!(self.slots.swa(slot) == 0);
        let id = self.swa.publish(page).into_id();
        *self.swa_meta.get_mut(id as usize) =
            SwaMeta { slot, tenant, written: stamp, hint: crate::policy::NIL, ..SwaMeta::default() };
        self.set_record(id, after);
        self.touch_slot(slot);
        self.slots.set_swa(slot, id);
        let node = self.slots.node(slot);
        self.nodes[node].swa += 1;
        self.nodes[node].loose += 1;
        self.count_tenant(tenant, 0, 1);
        self.lease_swa(id);
        id
    }
}
