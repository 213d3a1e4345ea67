//! Roots: one for every namespace with pages or sequences, and `clear`, which detaches them.

use super::node::Node;
use super::{Root, Tree};
use crate::cache::types::PageKey;
use crate::key::{Key, root_key};

/// Cleared namespaces that are remembered one by one; one more clears them all, so that their memory is bounded.
const MAX_GENERATIONS: usize = 1 << 20;

impl Tree {
    /// Root key of a namespace now, `clear` counted.
    pub(crate) fn current_key(&self, base: &PageKey, weights: &[u8], key: &Key) -> PageKey {
        let generation = self.generations.get(base).copied().unwrap_or(0) + self.cleared_all;
        if generation == 0 { *base } else { root_key(&self.fingerprint, weights, key, generation) }
    }

    /// The attached root with this key.
    pub(crate) fn find_root(&self, key: &PageKey) -> Option<u32> {
        self.by_key.get(key).copied()
    }

    /// The attached root with this key, made when absent.
    pub(crate) fn ensure_root(&mut self, key: PageKey) -> u32 {
        if let Some(&root) = self.by_key.get(&key) {
            return root;
        }
        let root = self.roots.insert(Root { key, node: 0, attached: true });
        self.roots[root].node = self.nodes.insert(Node::new(crate::policy::NIL, root, 0, 0));
        self.by_key.insert(key, root);
        root
    }

    /// Forgets a root without pages and sequences.
    pub(super) fn prune_root(&mut self, root: u32) {
        let r = &self.roots[root];
        let node = &self.nodes[r.node];
        if !node.is_leaf() || node.is_leased() {
            return;
        }
        let r = self.roots.remove(root);
        self.nodes.remove(r.node);
        if r.attached {
            self.by_key.remove(&r.key);
        } else {
            self.detached.retain(|&d| d != root);
        }
    }

    pub(super) fn detach(&mut self, root: u32) {
        self.unpin_root(root);
        // Without a full group nothing may be left once the pins are gone.
        if self.roots.get(root).is_none() {
            return;
        }
        let r = &mut self.roots[root];
        r.attached = false;
        self.by_key.remove(&r.key);
        self.events.cleared(r.key);
        self.detached.push(root);
        self.prune_root(root);
    }

    /// Detaches one namespace: O(1) in its pages.
    pub(crate) fn clear(&mut self, base: &PageKey, weights: &[u8], key: &Key) {
        if let Some(root) = self.find_root(&self.current_key(base, weights, key)) {
            self.detach(root);
        }
        let generation = self.generations.entry(*base).or_insert(0);
        *generation += 1;
        self.highest = self.highest.max(*generation);
        for _ in 0..4 {
            self.outdated.pop_first();
        }
        if self.generations.len() >= MAX_GENERATIONS {
            self.clear_all();
        }
    }

    /// Detaches every namespace. Generations of single ones start anew, above all there were.
    pub(crate) fn clear_all(&mut self) {
        for root in self.by_key.values().copied().collect::<Vec<_>>() {
            self.detach(root);
        }
        self.cleared_all += 1;
        if self.outdated.is_empty() {
            self.cleared_all += std::mem::take(&mut self.highest);
            self.outdated = std::mem::take(&mut self.generations);
        }
    }

    /// False after `clear`: nothing below is published, matched or announced any more.
    pub(crate) fn is_attached(&self, node: u32) -> bool {
        self.roots[self.nodes[node].root].attached
    }
}
