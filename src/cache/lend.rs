//! `lend`: pages stay where they are while another tier reads them; and what another tier asks before that.

use super::{Cache, Record};
use crate::error::Result;
use crate::key::{Key, Span};
use crate::policy::{NIL, kind};
use crate::pool::{Hold, MoveBucket};
use crate::tree::{Cursor, Query, WalkPlace};
use std::ops::Range;

/// Pages under a lease for another tier to read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Lent {
    /// Its number, for [`Cache::move_done`].
    pub id: u64,
    /// Page ids of the full pages that were asked for.
    pub full: Vec<u32>,
    /// Page ids of the SWA pages that were asked for.
    pub swa: Vec<u32>,
    /// Records of the SWA pages.
    pub records: Vec<Record>,
}

/// A resumable boundary that a checkpoint keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Boundary {
    /// In tokens.
    pub at: u64,
    /// Set of [`kind`]s.
    pub kinds: u8,
    /// Matches that ended on it.
    pub hits: u16,
    /// Pages before the boundary that it keeps: its window, or one more.
    pub pages: u32,
}

impl Cache {
    /// Leases pages of a prefix for another tier to read, until [`Self::move_done`]: full pages `full` and the SWA pages
    /// `swa`, all as logical pages. The boundary `at` (in tokens) counts as used. `None` when some of it is not there, or
    /// when the lease would take pages that open sequences were promised.
    pub fn lend(
        &mut self,
        (tokens, key, spans): (&[u32], &Key, &[Span]),
        at: u64,
        full: Range<u64>,
        swa: &[u64],
    ) -> Result<Option<Lent>> {
        let Some((_, place)) = self.find_prefix(tokens, key, spans)? else { return Ok(None) };
        let end = full.end.max(swa.iter().max().map_or(0, |m| m + 1)).max(at / self.page());
        if u64::from(place.depth) < end || end == 0 {
            return Ok(None);
        }
        let slots: Vec<u32> = swa.iter().map(|&l| self.tree.slot_above(place.node, l as u32)).collect();
        let pages: Vec<u32> = slots.iter().map(|&s| self.tree.slots.swa(s)).collect();
        if pages.contains(&0) {
            return Ok(None);
        }
        if !self.may_lend(place, &pages) {
            return Ok(None);
        }
        let tree = &mut self.tree;
        let node = tree.node_ending_at(place.node, end as u32);
        let slot = tree.nodes[node].last_slot();
        tree.history.arrive(tree.now);
        let arrival = tree.arrival(node, end as u32);
        tree.refresh(node, (at / u64::from(tree.page)) as u32, end as u32);
        let user = tree.history.user(&arrival, end as u32, tree.page);
        // As a reader that came and went it is the newest user; the hold itself is nobody's.
        let mut ids = Vec::new();
        tree.path_full_ids(node, end as u32, &mut ids);
        let records = pages.iter().map(|&p| tree.record(p).collect()).collect();
        let mut holds = vec![Hold::Tree { slot, swa: 0 }];
        tree.lease_path(node);
        for &page in &pages {
            tree.lease_path(node);
            tree.lease_swa(page);
            self.copy_holds += 1;
            holds.push(Hold::Tree { slot, swa: page });
        }
        tree.nodes[node].take_user(&user);
        let id = tree.fence.start_move(MoveBucket { holds, ..MoveBucket::default() });
        let full = if tree.has_full { ids[full.start as usize..full.end as usize].to_vec() } else { Vec::new() };
        self.settle();
        Ok(Some(Lent { id, full, swa: pages, records }))
    }

    fn may_lend(&self, place: WalkPlace, pages: &[u32]) -> bool {
        let tree = &self.tree;
        let pinned = tree.unleased_above(place);
        let taken = u64::from(tree.full.private()) + tree.leased_full() + self.promised + pinned;
        let held = self.quota + self.copy_holds + pages.len() as u64;
        (!tree.has_full || taken <= u64::from(tree.full.usable())) && (!tree.has_swa || held <= self.swa_share())
    }

    fn find_prefix(&self, tokens: &[u32], key: &Key, spans: &[Span]) -> Result<Option<(u32, WalkPlace)>> {
        super::check_prompt(tokens)?;
        let base = self.base_key(key);
        let Some(root) = self.tree.find_root(&self.tree.current_key(&base, &self.weights, key)) else {
            return Ok(None);
        };
        let place = self.tree.walk(root, Query::new(tokens, spans), &mut Cursor::default());
        Ok(Some((root, place)))
    }

    /// p of these tokens and which of the logical pages `from..` on the way there have SWA KV, all in pages.
    pub fn window_map(&self, tokens: &[u32], key: &Key, spans: &[Span], from: u64) -> Result<(u64, Vec<bool>)> {
        let Some((_, place)) = self.find_prefix(tokens, key, spans)? else { return Ok((0, Vec::new())) };
        let depth = u64::from(place.depth);
        if from >= depth || !self.tree.has_swa {
            return Ok((depth, Vec::new()));
        }
        let mut map = vec![false; (depth - from) as usize];
        self.tree.path_back(place.node, from as u32, place.depth, |page, slot| {
            map[page as usize - from as usize] = self.tree.slots.swa(slot) != 0;
            true
        });
        Ok((depth, map))
    }

    /// Checkpoints on the path of these tokens at boundaries above `above` tokens, shallow first; at most `most`, the
    /// deepest.
    pub fn boundaries(
        &self,
        tokens: &[u32],
        key: &Key,
        spans: &[Span],
        above: u64,
        most: usize,
    ) -> Result<Vec<Boundary>> {
        let Some((_, place)) = self.find_prefix(tokens, key, spans)? else { return Ok(Vec::new()) };
        let mut out = Vec::new();
        let mut at = place.node;
        while at != NIL && out.len() < most {
            let node = &self.tree.nodes[at];
            let ckpts = node.ckpts.iter().rev().map(|&c| &self.tree.ckpts[c]);
            let wanted = ckpts.filter(|c| c.end <= place.depth && u64::from(c.end) * self.page() > above);
            let told = wanted.map(|c| Boundary {
                at: u64::from(c.end) * self.page(),
                kinds: c.kinds & !kind::PARK,
                hits: c.hits,
                pages: c.pages,
            });
            out.extend(told.take(most - out.len()));
            if node.is_root() || u64::from(node.depth) * self.page() <= above {
                break;
            }
            at = node.parent;
        }
        out.reverse();
        Ok(out)
    }
}
