//! ARC-like: what was used once against what was used again (Megiddo and Modha, FAST'03), over leaves.
//!
//! Within each part the order is by last use, deepest page of a prompt first, since a prompt's nodes are let go from the
//! tail to the head. Pages that come back soon after they were evicted move the line between the parts towards the part
//! they went from. Parts are counted in pages of what may be evicted now, so that the line follows a cache most of whose
//! pages are inner ones.

use super::ranked::{Entry, Ranked};
use super::{Now, Policy, Standing};

/// Used once, used again.
const ONCE: u16 = 0;
const AGAIN: u16 = 1;

/// See the module's text.
#[derive(Debug)]
pub struct Arc {
    ids: Ranked,
    /// Pages that the part used once may keep.
    line: u64,
    /// Pages that were evicted from each part and did not come back, halved together.
    gone: [u64; 2],
}

impl Default for Arc {
    fn default() -> Self {
        Arc { ids: Ranked::new(2), line: 0, gone: [0; 2] }
    }
}

impl Arc {
    fn all(&self) -> u64 {
        self.ids.pages(ONCE) + self.ids.pages(AGAIN)
    }
}

impl Policy for Arc {
    fn insert(&mut self, id: u32, at: Standing) {
        self.ids.insert(id, Entry::new(if at.uses > 1 { AGAIN } else { ONCE }, &at));
    }

    fn remove(&mut self, id: u32) {
        self.ids.remove(id);
    }

    fn victim(&mut self, _: Now<'_>) -> Option<u32> {
        let first = if self.ids.pages(ONCE) > self.line { ONCE } else { AGAIN };
        self.ids.oldest(first).or_else(|| self.ids.oldest(ONCE ^ AGAIN ^ first))
    }

    fn ids(&self) -> &Ranked {
        &self.ids
    }

    fn ids_mut(&mut self) -> &mut Ranked {
        &mut self.ids
    }

    fn evicted(&mut self, id: u32, pages: u32) {
        let Some(&entry) = self.ids.get(id) else { return };
        self.gone[usize::from(entry.list)] += u64::from(pages);
        if self.gone[0] + self.gone[1] > self.all().max(1) {
            self.gone.iter_mut().for_each(|g| *g /= 2);
        }
        self.ids.resize(id, entry.pages.saturating_sub(pages));
    }

    fn came_back(&mut self, mark: bool, pages: u32) {
        let [once, again] = self.gone.map(|g| g.max(1));
        let pages = u64::from(pages);
        if mark {
            self.line = self.line.saturating_sub(pages * (once / again).max(1));
        } else {
            self.line = (self.line + pages * (again / once).max(1)).min(self.all());
        }
    }

    fn mark(&self, id: u32) -> bool {
        self.ids.get(id).is_some_and(|e| e.list == AGAIN)
    }
}
