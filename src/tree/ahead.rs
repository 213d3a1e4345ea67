//! The way from a node to the next one on a query's path, asked for ahead of its use.
//!
//! To one of many children it leads over four loads that depend on each other: the query's tokens behind the node, the
//! head of their chain in the child table, the child, and the child's tokens. One or two children are tried as they are:
//! the child, its tokens, and the same for its sibling. A walk takes one of these steps after each part of a node's
//! tokens that it compared, so that the loads overlap with the comparison. Nothing here decides anything: the walk looks
//! the child up as if none of this had happened.

use super::Tree;
use super::slots::Run;
use super::walk::{Place, Query};

/// What is known so far.
#[derive(Debug, Clone, Copy)]
pub(super) enum Ahead<'a> {
    /// No child, or no whole page of the query left.
    Nothing,
    /// The query's page behind a node with several children.
    Page(&'a [u32]),
    /// Its hash.
    Hash(u64),
    /// Its hash, and a node that may be the child.
    Near(u64, u32),
    /// The first of one or two children; its lines were asked for.
    NearChild(u32),
    /// The same; its tokens were asked for too.
    Child(u32),
}

/// How to find the child.
#[derive(Debug, Clone, Copy)]
pub(super) enum Lead {
    /// There is none.
    Nothing,
    /// It is this one or its sibling.
    Child(u32),
    /// By the hash of its first page.
    Hash(u64),
}

impl<'a> Ahead<'a> {
    /// The way on from the end of `at`'s node.
    pub(super) fn new(tree: &Tree, at: Place, query: Query<'a>) -> Self {
        let node = &tree.nodes[at.node];
        let page = tree.page as usize;
        let end = (at.depth + (node.len - at.offset)) as usize * page;
        match (node.children, query.tokens.get(end..end + page)) {
            (0, _) | (_, None) => Ahead::Nothing,
            (1 | 2, _) => {
                tree.nodes.get(node.first_child).inspect(|first| prefetch(*first));
                Ahead::NearChild(node.first_child)
            }
            (_, Some(tokens)) => {
                prefetch(tokens);
                Ahead::Page(tokens)
            }
        }
    }

    /// One step further.
    pub(super) fn fetch(self, tree: &Tree, parent: u32) -> Self {
        match self {
            Ahead::Page(tokens) => {
                let hash = tree.page_hash(tokens);
                prefetch(tree.chain_head(parent, hash));
                Ahead::Hash(hash)
            }
            Ahead::Hash(hash) => {
                let child = *tree.chain_head(parent, hash);
                tree.nodes.get(child).inspect(|node| prefetch(*node)).map_or(self, |_| Ahead::Near(hash, child))
            }
            Ahead::Near(_, child) => {
                fetch_tokens(tree, child);
                self
            }
            Ahead::NearChild(child) => {
                fetch_tokens(tree, child);
                tree.nodes.get(tree.nodes[child].next_sibling).inspect(|sibling| prefetch(*sibling));
                Ahead::Child(child)
            }
            Ahead::Child(_) | Ahead::Nothing => self,
        }
    }

    /// How the child is found now.
    pub(super) fn lead(self, tree: &Tree) -> Lead {
        match self {
            Ahead::Nothing => Lead::Nothing,
            Ahead::Child(child) | Ahead::NearChild(child) => Lead::Child(child),
            Ahead::Page(tokens) => Lead::Hash(tree.page_hash(tokens)),
            Ahead::Hash(hash) | Ahead::Near(hash, _) => Lead::Hash(hash),
        }
    }
}

fn fetch_tokens(tree: &Tree, node: u32) {
    if let Some(run) = tree.nodes.get(node).and_then(|node| node.runs.first()) {
        prefetch(tree.slots.tokens(Run { start: run.start, len: 1 }));
    }
}

/// Asks the processor for the memory lines of `value` and goes on.
fn prefetch<T: ?Sized>(value: &T) {
    #[cfg(target_arch = "x86_64")]
    for line in (0..size_of_val(value).min(256)).step_by(64) {
        // SAFETY: a prefetch reads nothing, and the address is inside `value`.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>((&raw const *value).cast::<i8>().add(line));
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = value;
}
