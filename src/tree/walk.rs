//! Matching: one walk down for p. `usable` goes back from there for q.

use super::Tree;
use super::slots::Run;
use crate::key::Span;
use smallvec::SmallVec;

/// What is looked up.
#[derive(Debug, Clone, Copy)]
pub struct Query<'a> {
    /// Tokens from the start of the prompt.
    pub tokens: &'a [u32],
    /// Multimodal spans, sorted.
    pub spans: &'a [Span],
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

    /// Goes down from `at` while pages match; `visit` gets every node with the depth reached in it.
    pub(crate) fn walk_down(&self, at: Place, query: Query<'_>, mut visit: impl FnMut(&Tree, u32, u32)) -> Place {
        let page = self.page as usize;
        let mut at = at;
        loop {
            let node = &self.nodes[at.node];
            if at.offset < node.len {
                let pages = self.match_in_node(at, query);
                at.offset += pages;
                at.depth += pages;
                if at.offset < self.nodes[at.node].len {
                    visit(self, at.node, at.depth);
                    return at;
                }
            }
            visit(self, at.node, at.depth);
            let rest = &query.tokens[at.depth as usize * page..];
            if rest.len() < page {
                return at;
            }
            let next = |child: u32| Place { node: child, offset: 0, depth: at.depth };
            let hit = match node.children {
                0 => None,
                1 => Some(node.first_child).filter(|&c| self.starts_with(next(c), query)),
                _ => {
                    let hash = self.page_hash(&rest[..page]);
                    self.children_with(at.node, hash).find(|&c| self.starts_with(next(c), query))
                }
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

    fn match_in_node(&self, at: Place, query: Query<'_>) -> u32 {
        let page = self.page as usize;
        let node = &self.nodes[at.node];
        let mut skip = at.offset;
        let mut matched = 0;
        for &run in &node.runs {
            if skip >= run.len {
                skip -= run.len;
                continue;
            }
            let rest = Run { start: run.start + skip, len: run.len - skip };
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
