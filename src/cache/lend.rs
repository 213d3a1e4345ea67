//! `lend`: pages stay where they are while another tier reads them; and what another tier asks before that.

use super::{Cache, PageKey, Record, SeqId};
use crate::error::{Error, Result};
use crate::key::{Key, Span, spans_before, validate_spans};
use crate::policy::{NIL, kind};
use crate::pool::{Hold, MoveBucket, NONE};
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

/// What another tier must know of a sequence.
#[derive(Debug)]
pub(crate) struct Standing {
    pub(crate) tokens: Vec<u32>,
    pub(crate) key: Key,
    pub(crate) spans: Vec<Span>,
    pub(crate) committed: u64,
    /// Logical SWA pages in its hands.
    pub(crate) held: Range<u64>,
}

impl Cache {
    /// Leases pages of a prefix for another tier to read, until [`Self::move_done`]: full pages `full` and the SWA pages
    /// `swa`, all as logical pages. It is no use by a reader (see [`Self::touch`]). `None` when some of it is not there, or
    /// is written by a step that still runs, or when the lease would take pages that open sequences were promised.
    pub fn lend(
        &mut self,
        (tokens, key, spans): (&[u32], &Key, &[Span]),
        full: Range<u64>,
        swa: &[u64],
    ) -> Result<Option<Lent>> {
        let Some((_, place)) = self.find_prefix(tokens, key, spans)? else { return Ok(None) };
        let end = full.end.max(swa.iter().max().map_or(0, |m| m + 1));
        if u64::from(place.depth) < end || end == 0 {
            return Ok(None);
        }
        let slots: Vec<u32> = swa.iter().map(|&l| self.tree.slot_above(place.node, l as u32)).collect();
        let pages: Vec<u32> = slots.iter().map(|&s| self.tree.slots.swa(s)).collect();
        if pages.contains(&0) {
            return Ok(None);
        }
        let place = self.tree.place_at(place, end as u32);
        if !self.are_written(place, &full, &pages) || !self.may_lend(place, &pages) {
            return Ok(None);
        }
        let tree = &mut self.tree;
        let node = tree.node_ending_at(place.node, end as u32);
        let slot = tree.nodes[node].last_slot();
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
        let id = tree.fence.start_move(MoveBucket { holds, ..MoveBucket::default() });
        let full = if tree.has_full { ids[full.start as usize..full.end as usize].to_vec() } else { Vec::new() };
        self.settle();
        Ok(Some(Lent { id, full, swa: pages, records }))
    }

    /// A request of these tokens is served elsewhere: what is here of its prompt counts as used by it, as if it had been
    /// opened and ended.
    ///
    /// # Errors
    /// As [`Self::match_tokens`].
    pub fn touch(&mut self, tokens: &[u32], key: &Key, spans: &[Span]) -> Result<()> {
        let Some((_, place)) = self.find_prefix(tokens, key, spans)?.filter(|(_, place)| place.depth > 0) else {
            return Ok(());
        };
        let end = (tokens.len() as u64 / self.page()) as u32;
        let limit = (tokens.len() as u64 - 1) / self.page();
        let q = self.tree.usable(place, limit as u32);
        let tree = &mut self.tree;
        let node = tree.node_ending_at(place.node, place.depth);
        tree.lease_path(node);
        tree.history.arrive(tree.now);
        let arrival = tree.arrival(node, place.depth);
        tree.refresh(node, q, end);
        let user = tree.settle_user(&arrival, None, node, place.depth);
        tree.unlease_path(node, NONE, Some(user));
        self.settle();
        Ok(())
    }

    /// No step that still runs writes these pages of the path to `place`.
    fn are_written(&self, place: WalkPlace, full: &Range<u64>, swa: &[u32]) -> bool {
        let tree = &self.tree;
        let retired = |page: &u32| tree.fence.is_retired(tree.swa_meta.get(*page as usize).written);
        if !swa.iter().all(retired) {
            return false;
        }
        let mut at = place.node;
        while at != NIL && u64::from(tree.nodes[at].end()) > full.start && !full.is_empty() {
            if !tree.fence.is_retired(tree.nodes[at].written) {
                return false;
            }
            at = tree.nodes[at].parent;
        }
        true
    }

    /// Keys of the pages up to boundary `end` (in pages), 1 or more, on the path of these tokens, as the tree has them.
    pub fn path_keys(
        &self,
        tokens: &[u32],
        key: &Key,
        spans: &[Span],
        end: u64,
    ) -> Result<Option<(PageKey, Vec<PageKey>)>> {
        let found = self.find_prefix(tokens, key, spans)?.filter(|(_, place)| end <= u64::from(place.depth));
        let Some((root, place)) = found else { return Ok(None) };
        let mut keys = vec![[0; 32]; end as usize];
        self.tree.path_back(place.node, 0, end as u32, |page, slot| {
            keys[page as usize] = *self.tree.slots.key(slot);
            true
        });
        Ok(Some((self.tree.roots[root].key, keys)))
    }

    /// Chain keys of logical pages of these tokens in the namespace of now, whether the tree has the pages or not.
    pub fn page_keys(&self, tokens: &[u32], key: &Key, spans: &[Span], pages: Range<u64>) -> Result<Vec<PageKey>> {
        key.validate()?;
        validate_spans(spans, tokens.len() as u64)?;
        let most = tokens.len() as u64 / self.page();
        if pages.start > pages.end || pages.end > most {
            return Err(Error::invalid("pages", format!("{pages:?}"), format!("a range within 0..{most}")));
        }
        let found = self.find_prefix(tokens, key, spans)?;
        let mut parent = self.tree.current_key(&self.base_key(key), &self.weights, key);
        let mut out = vec![PageKey::default(); (pages.end - pages.start) as usize];
        let mut put = |page: u64, key: PageKey| {
            if page >= pages.start {
                out[(page - pages.start) as usize] = key;
            }
        };
        let mut at = 0;
        if let Some((_, place)) = found {
            at = u64::from(place.depth).min(pages.end);
            let from = pages.start.min(at.saturating_sub(1));
            self.tree.path_back(place.node, from as u32, at as u32, |page, slot| {
                let key = *self.tree.slots.key(slot);
                if u64::from(page) + 1 == at {
                    parent = key;
                }
                put(u64::from(page), key);
                true
            });
        }
        let query = Query::new(tokens, spans);
        for page in at..pages.end {
            parent = query.key(&parent, page, self.config.page_size);
            put(page, parent);
        }
        Ok(out)
    }

    /// Where a sequence stands, for the tier below; `None` while it is inside a page, and when its namespace is not the one
    /// that lookups find now.
    pub(crate) fn standing(&self, id: SeqId) -> Result<Option<Standing>> {
        let seq = self.loadable(id)?;
        let current = seq.base == self.base_key(&seq.key) && self.tree.roots[seq.root].attached;
        if !current || !seq.committed.is_multiple_of(self.page()) {
            return Ok(None);
        }
        Ok(Some(Standing {
            tokens: seq.tokens.clone(),
            key: seq.key.clone(),
            spans: seq.spans.clone(),
            committed: seq.committed,
            held: u64::from(seq.swa_first)..u64::from(seq.swa_end()),
        }))
    }

    /// The first `common` tokens of a live sequence are these, in the same namespace.
    pub(crate) fn begins_like(&self, id: SeqId, tokens: &[u32], key: &Key, spans: &[Span], common: u64) -> bool {
        let Ok(seq) = self.seq(id, "compare") else { return false };
        let own = seq.tokens.get(..common as usize);
        // What a sequence that stores nothing brings up is not published.
        seq.store
            && own.is_some()
            && own == tokens.get(..common as usize)
            && seq.base == self.base_key(key)
            && spans_before(&seq.spans, common) == spans_before(spans, common)
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
    /// deepest. Without windows there are none, and the last boundary stands for all.
    pub fn boundaries(
        &self,
        tokens: &[u32],
        key: &Key,
        spans: &[Span],
        above: u64,
        most: usize,
    ) -> Result<Vec<Boundary>> {
        let Some((_, place)) = self.find_prefix(tokens, key, spans)? else { return Ok(Vec::new()) };
        if self.tree.need == 0 {
            // Every boundary is resumable; the last one has all others along.
            let (at, node) = (u64::from(place.depth) * self.page(), &self.tree.nodes[place.node]);
            let hits = u16::from(node.uses).saturating_sub(u16::from(!node.is_leased()));
            let last = Boundary { at, kinds: kind::PROMPT_END, hits, pages: 0 };
            return Ok(if at > above && most > 0 { vec![last] } else { Vec::new() });
        }
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
