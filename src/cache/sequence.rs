//! A sequence: tokens, page tables, and what it holds in the pools and in the tree.

use super::{Cache, Record, Report, SeqId};
use crate::error::{Error, Result};
use crate::key::{Key, PageKeys, Span};
use crate::policy::{Arrival, End, NIL, User};
use crate::pool::{Full, Page, Reserved, Stamp, Swa};
use crate::tree::{Cursor, Query, Tree};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::sync::Arc;

/// How a sequence holds one SWA page.
#[derive(Debug)]
pub(super) enum SwaHold {
    /// Its own page.
    Private(Page<Swa, Reserved>),
    /// The tree's page, leased.
    Leased(u32),
}

impl SwaHold {
    pub(super) fn id(&self) -> u32 {
        match self {
            SwaHold::Private(p) => p.id(),
            SwaHold::Leased(id) => *id,
        }
    }
}

/// A page of ours that the tree also has; used until the sequence may change its table.
#[derive(Debug)]
pub(super) struct Duplicate {
    pub(super) index: u32,
    pub(super) page: Page<Full, Reserved>,
}

/// An SWA page of the sequence whose rows came from another tier.
#[derive(Debug)]
pub(super) struct Loaded {
    pub(super) logical: u32,
    /// All its MTP rows are true: what they were made with is the sequence's, or they keep their record.
    pub(super) whole: bool,
    /// The record that it keeps.
    pub(super) record: Option<Record>,
}

/// Rows are on their way; what is needed to go back when they do not come.
#[derive(Debug)]
pub(super) struct Loading {
    /// The move that its pages wait for.
    pub(super) id: u64,
    /// Committed tokens before.
    pub(super) from: u64,
    /// Boundary that is loaded.
    pub(super) to: u64,
    /// Kinds of the checkpoint to keep there.
    pub(super) kinds: u8,
    pub(super) keep_records: bool,
    /// SWA pages before the new window, from logical page `window_first` on.
    pub(super) window: VecDeque<SwaHold>,
    pub(super) window_first: u32,
    /// Length of the table before.
    pub(super) table: usize,
    pub(super) full_from: u64,
    pub(super) swa_from: u64,
}

/// See the module's text.
#[derive(Debug)]
pub(super) struct Seq {
    pub(super) generation: u32,
    /// Known tokens.
    pub(super) tokens: Vec<u32>,
    pub(super) spans: Vec<Span>,
    pub(super) key: Key,
    pub(super) base: [u8; 32],
    pub(super) weights: Arc<[u8]>,
    pub(super) tenant: u32,
    pub(super) store: bool,
    pub(super) again: bool,
    pub(super) parked: bool,
    /// Its place among the live ones, while it is not parked.
    pub(super) live_at: u32,
    /// Boundary of its PARK checkpoint, in pages.
    pub(super) parked_at: u32,
    pub(super) cursor: Cursor,
    /// Tokens known when it was opened or resumed: commits below are prefill.
    pub(super) prompt: u64,
    /// Last boundary of the request's own prompt, in pages.
    pub(super) prompt_end: u32,
    /// The prompt is an exact multiple of the page.
    pub(super) exact: bool,
    pub(super) committed: u64,
    pub(super) reserved: u64,
    pub(super) root: u32,
    /// Receipt of the path lease; [`NIL`] when it is on the root.
    pub(super) lease: u32,
    /// Leading pages that the path lease covers.
    pub(super) leased: u32,
    /// Leading pages that went through publication.
    pub(super) published: u32,
    /// Full page ids of logical pages from 0.
    pub(super) table: Vec<u32>,
    /// Own full pages, from logical page `leased` on.
    pub(super) own: VecDeque<Page<Full, Reserved>>,
    pub(super) duplicates: Vec<Duplicate>,
    /// SWA pages from logical page `swa_first` on.
    pub(super) swa: VecDeque<SwaHold>,
    pub(super) swa_first: u32,
    pub(super) full_from: u64,
    pub(super) swa_from: u64,
    /// SWA pages reserved for its window.
    pub(super) quota: u64,
    /// SWA pages beyond the quota.
    pub(super) scratch: u64,
    /// Logical pages it was promised at `open`.
    pub(super) budget: u64,
    pub(super) version: u64,
    pub(super) stamp: Stamp,
    pub(super) moves: SmallVec<[u64; 2]>,
    /// Boundary at which a BRANCH checkpoint is due, in pages; 0 for none.
    pub(super) branch: u32,
    pub(super) report: Report,
    /// The counters of lookups speak of its report; those of forks are their parent's.
    pub(super) counted: bool,
    /// Keys of pages that it is going to publish, as far as they were made before.
    pub(super) keys: PageKeys,
    /// Parked: opening it again was refused for want of pages before.
    pub(super) refused: bool,
    /// What was known of it at `open`, and the deepest end of an earlier prompt that it computed again.
    pub(super) arrival: Arrival,
    pub(super) found: Option<(u32, End)>,
    /// Up to here, in pages, it computes what had been evicted shortly before.
    pub(super) back: u32,
    /// As what it leaves its traces; final once its prompt is in the tree.
    pub(super) user: User,
    pub(super) settled: bool,
    pub(super) load: Option<Box<Loading>>,
    /// Those that may still be in the window, ascending.
    pub(super) loaded: Vec<Loaded>,
    /// Boundary at which a checkpoint of a loaded window is due, in pages, and its kinds; 0 for none.
    pub(super) loaded_end: (u32, u8),
}

impl Seq {
    pub(super) fn query(&self) -> Query<'_> {
        Query { tokens: &self.tokens, spans: &self.spans, known: &self.keys }
    }

    /// Node at whose end the path lease sits.
    pub(super) fn node(&self, tree: &Tree) -> u32 {
        if self.lease == NIL { tree.roots[self.root].node } else { tree.slots.node(self.lease) }
    }

    /// Full pages of committed and reserved positions; leased pages beyond them (p > q) are not shown yet.
    pub(super) fn visible_table(&self, page: u64) -> &[u32] {
        let pages = (self.committed + self.reserved).div_ceil(page) as usize;
        &self.table[..pages.min(self.table.len())]
    }

    /// Full pages promised and not taken yet.
    pub(super) fn promised(&self) -> u64 {
        if self.parked { 0 } else { self.budget.saturating_sub(self.table.len() as u64) }
    }

    /// An error while rows are on their way.
    pub(super) fn check_loaded(&self, call: &'static str) -> Result<()> {
        match self.load {
            None => Ok(()),
            Some(_) => Err(Error::State { call, state: "loading", allowed: "not loading; tell load_done first" }),
        }
    }

    /// First logical page whose SWA rows are still needed: by the window of the next query, by pages whose publication
    /// waits for `n_mtp` more tokens, and by a checkpoint at the last boundary, which takes a page more at the end of a
    /// prompt that is an exact multiple of the page.
    pub(super) fn first_needed(&self, tree: &Tree) -> u32 {
        let page = u64::from(tree.page);
        let window = self.committed.saturating_sub(u64::from(tree.window + tree.n_mtp)) / page;
        let last = self.committed / page;
        let end = u64::from(self.prompt_end) * page;
        let waits = (self.tokens.len() as u64) < end + u64::from(tree.n_mtp);
        let due = self.exact && last == u64::from(self.prompt_end) && waits;
        let boundary = last.saturating_sub(u64::from(tree.need) + u64::from(due));
        window.min(boundary) as u32
    }

    /// SWA pages in its hands, with the window that it may go back to.
    pub(super) fn swa_held(&self) -> u64 {
        (self.swa.len() + self.load.as_ref().map_or(0, |l| l.window.len())) as u64
    }

    /// One past the last logical page of the SWA table.
    pub(super) fn swa_end(&self) -> u32 {
        self.swa_first + self.swa.len() as u32
    }
}

impl Cache {
    pub(super) fn seq(&self, id: SeqId, call: &'static str) -> Result<&Seq> {
        self.seqs.get(id.index).filter(|s| s.generation == id.generation).ok_or(Error::State {
            call,
            state: "finished or aborted",
            allowed: "open",
        })
    }

    pub(super) fn open_seq(&self, id: SeqId, call: &'static str) -> Result<&Seq> {
        let seq = self.seq(id, call)?;
        if seq.parked {
            return Err(Error::State { call, state: "parked", allowed: "open; resume it first" });
        }
        Ok(seq)
    }

    /// Adds a sequence to the live ones.
    pub(super) fn enlist(&mut self, index: u32) {
        self.seqs[index].live_at = self.live.len() as u32;
        self.live.push(index);
    }

    /// Takes a sequence, still in the arena, off the live ones.
    pub(super) fn delist(&mut self, index: u32) {
        let at = self.seqs[index].live_at;
        self.live.swap_remove(at as usize);
        if let Some(&moved) = self.live.get(at as usize) {
            self.seqs[moved].live_at = at;
        }
    }

    /// Counts scratch anew after the sequence's SWA pages changed.
    pub(super) fn recount_scratch(&mut self, index: u32) {
        let seq = &mut self.seqs[index];
        let scratch = seq.swa_held().saturating_sub(seq.quota);
        self.scratch_used = self.scratch_used - seq.scratch + scratch;
        seq.scratch = scratch;
    }
}
