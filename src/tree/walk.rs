//! Matching: one walk down for p. `usable` goes back from there for q.

use super::Tree;
use super::ahead::{Ahead, Lead};
use super::slots::Run;
use crate::cache::types::PageKey;
use crate::key::{NO_KEYS, PageKeys, Span, page_key, page_spans};
use crate::policy::NIL;
use smallvec::SmallVec;

/// What is looked up.
#[derive(Debug, Clone, Copy)]
pub struct Query<'a> {
    /// Tokens from the start of the prompt.
    pub tokens: &'a [u32],
    /// Multimodal spans, sorted.
    pub spans: &'a [Span],
    /// Keys of its pages that were made already.
    pub known: &'a PageKeys,
}

impl<'a> Query<'a> {
    /// A prompt of which no key is known.
    pub fn new(tokens: &'a [u32], spans: &'a [Span]) -> Self {
        Query { tokens, spans, known: &NO_KEYS }
    }

    /// Key of page `page` of `size` tokens, below the key of the page before it.
    pub fn key(&self, parent: &PageKey, page: u64, size: u32) -> PageKey {
        let made = || {
            let tokens = &self.tokens[page as usize * size as usize..][..size as usize];
            page_key(parent, tokens, page_spans(self.spans, page, size))
        };
        let known = self.known.get(page);
        debug_assert!(known.is_none_or(|k| *k == made()), "the known key of page {page} is another one");
        known.copied().unwrap_or_else(made)
    }
}

/// A place in the tree: the end of page `offset` of `node`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Node.
    pub node: u32,
    /// Pages into it.
    pub offset: u32,
    /// Pages from the root.
    pub depth: u32,
}

#[derive(Debug, Clone, Copy)]
struct Step {
    slot: u32,
    generation: u32,
    depth: u32,
}

/// Where earlier lookups of a request ended: looking again costs only what changed since.
#[derive(Debug, Clone, Default)]
pub struct Cursor {
    /// Last matched slot in every node of the path; removal is leaf first, so that live steps are a prefix.
    steps: SmallVec<[Step; 4]>,
}

impl Cursor {
    /// Forgets the place.
    pub fn reset(&mut self) {
        self.steps.clear();
    }
}

impl Tree {
    /// The deepest place whose pages equal the query's, from the cursor on. Without a full group this is the tree
    /// path; with one, every page in the tree has full KV.
    pub(crate) fn walk(&self, root: u32, query: Query<'_>, cursor: &mut Cursor) -> Place {
        let top = self.roots[root].node;
        let mut at = Place { node: top, offset: 0, depth: 0 };
        while let Some(&s) = cursor.steps.last() {
            if self.slots.is_live(s.slot, s.generation) && self.nodes[self.slots.node(s.slot)].root == root {
                let node = self.slots.node(s.slot);
                at = Place { node, offset: s.depth - self.nodes[node].depth, depth: s.depth };
                break;
            }
            cursor.steps.pop();
        }

        self.walk_down(at, query, |tree, node, depth| {
            let n = &tree.nodes[node];
            if depth > n.depth {
                let slot = n.slot(depth - n.depth - 1);
                let step = Step { slot, generation: tree.slots.generation(slot), depth };
                match cursor.steps.last_mut() {
                    Some(last) if last.depth > n.depth => *last = step,
                    _ => cursor.steps.push(step),
                }
            }
        })
    }

    /// `walk` from the root for a lookup without a cursor.
    pub(crate) fn walk_once(&self, root: u32, query: Query<'_>) -> Place {
        let top = Place { node: self.roots[root].node, offset: 0, depth: 0 };
        self.walk_down(top, query, |_, _, _| {})
    }

    /// Goes down from `at` while pages match; `visit` gets every node with the depth reached in it.
    pub(crate) fn walk_down(&self, at: Place, query: Query<'_>, mut visit: impl FnMut(&Tree, u32, u32)) -> Place {
        let mut at = at;
        loop {
            let node = &self.nodes[at.node];
            let mut ahead = Ahead::new(self, at, query);
            if at.offset < node.len {
                // Compared in four parts; between them the way to the next node is asked for, one load further each
                // time. From cold memory each of these loads would else be waited for, at every node.
                let (start, left) = (at.offset, node.len - at.offset);
                for part in 1..=4 {
                    let stop = start + (u64::from(left) * part / 4) as u32;
                    let pages = self.match_in_node(at, query, stop);
                    at.offset += pages;
                    at.depth += pages;
                    if at.offset < stop {
                        break;
                    }
                    ahead = ahead.fetch(self, at.node);
                }
                if at.offset < node.len {
                    visit(self, at.node, at.depth);
                    return at;
                }
            }
            visit(self, at.node, at.depth);
            let next = |child: u32| Place { node: child, offset: 0, depth: at.depth };
            let hit = match ahead.lead(self) {
                Lead::Nothing => None,
                Lead::Child(c) => {
                    let sibling = Some(self.nodes[c].next_sibling).filter(|&s| s != NIL);
                    [Some(c), sibling].into_iter().flatten().find(|&c| self.starts_with(next(c), query))
                }
                Lead::Hash(hash) => self.children_with(at.node, hash).find(|&c| self.starts_with(next(c), query)),
            };
            match hit {
                Some(c) => at = next(c),
                None => return at,
            }
        }
    }

    fn starts_with(&self, at: Place, query: Query<'_>) -> bool {
        let first = Run { start: self.nodes[at.node].runs[0].start, len: 1 };
        let from = at.depth as usize * self.page as usize;
        self.slots.common(first, &query.tokens[from..], query.spans, u64::from(at.depth)) == 1
    }

    /// Pages that match from `at` on, up to page `stop` of its node.
    fn match_in_node(&self, at: Place, query: Query<'_>, stop: u32) -> u32 {
        let page = self.page as usize;
        let node = &self.nodes[at.node];
        let mut skip = at.offset;
        let mut matched = 0;
        for &run in &node.runs {
            if skip >= run.len {
                skip -= run.len;
                continue;
            }
            if at.offset + matched >= stop {
                break;
            }
            let rest = Run { start: run.start + skip, len: (run.len - skip).min(stop - at.offset - matched) };
            skip = 0;
            let depth = at.depth + matched;
            let same = self.slots.common(rest, &query.tokens[depth as usize * page..], query.spans, u64::from(depth));
            matched += same;
            if same < rest.len {
                break;
            }
        }
        matched
    }
}
