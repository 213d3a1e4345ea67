//! The plain values that cross the core's border: what callers pass in and get back.

use crate::cache::SplitStats;
use crate::key::{Key, Span};
use crate::policy::{PolicyKind, Retention};
use crate::pool::Region;
pub use crate::tree::ghost::Why;
use smallvec::SmallVec;

/// How a [`Cache`](crate::cache::Cache) is laid out. All sizes in tokens or pages.
#[derive(Debug, Clone)]
pub struct CacheConfig {
    /// Tokens per page, a power of two from 1 to 1024.
    pub page_size: u32,
    /// W: previous tokens an SWA query needs (`window_keys - 1`), 0 to 2^20. Ignored when `swa_pages` is 0.
    pub window: u32,
    /// MTP heads, 0 to 8. Needs an SWA group.
    pub n_mtp: u32,
    /// Usable ids of the full pool; 0 when the model has no full-attention group.
    pub full_pages: u32,
    /// Usable ids of the SWA pool, scratch included; 0 when the model has no SWA group.
    pub swa_pages: u32,
    /// Part of `swa_pages` that serves chunk pages beyond the window.
    pub scratch_pages: u32,
    /// Which boundaries stay resumable.
    pub retention: Retention,
    /// Order of eviction.
    pub policy: PolicyKind,
    /// Keys the event ring holds before the oldest events are dropped with a gap; 0 turns events off.
    pub event_capacity: u32,
    /// Dropped pages that are remembered to explain later misses.
    pub ghost_pages: u32,
    /// Fingerprint of model, weights and layout; part of every root key.
    pub fingerprint: [u8; 32],
    /// Seed of the hash tables.
    pub seed: u64,
    /// Soft-pinned full pages allowed at once.
    pub max_pinned_pages: u32,
    /// Both pools live in one region, whose chunks change between them; `full_pages` and `swa_pages` are 0 then and
    /// become the ids of all chunks. `None`: two pools of fixed size.
    pub region: Option<Region>,
}

/// How a request is treated.
#[derive(Debug, Clone)]
pub struct RequestOptions {
    /// Root of the key chain: salt and adapter.
    pub key: Key,
    /// Multimodal spans, sorted and disjoint.
    pub spans: Vec<Span>,
    /// Who owns what this request publishes.
    pub tenant: u32,
    /// `false`: read from the cache, publish nothing.
    pub store: bool,
    /// It goes on with what the newest user of its match did, and counts as no use of its own: a request of another tier
    /// that was told by [`Cache::touch`](super::Cache::touch), or by a request before.
    pub again: bool,
}

impl Default for RequestOptions {
    fn default() -> Self {
        RequestOptions { key: Key::default(), spans: Vec::new(), tenant: 0, store: true, again: false }
    }
}

/// A sequence's name. Stale ids are refused, never mistaken for a later sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SeqId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

impl SeqId {
    /// The sequence as one number: later sequences have larger ones.
    pub fn number(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }
}

/// What a lookup found, in tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Match {
    /// p: longest run of whole pages with full KV.
    pub full_kv_match: u64,
    /// q <= p: largest boundary that is window-safe and leaves one token to compute.
    pub usable: u64,
}

/// Why prompt tokens missed, in tokens. With the hits they sum to the prompt's length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Misses {
    /// `[q, b)`: full KV is there, the window is not.
    pub window: u64,
    /// `[b, p)`: cached, but computed again, since hits end at a page and one token must be left to compute.
    pub last_token: u64,
    /// Full KV was cached once and evicted.
    pub evicted: u64,
    /// Another open sequence is computing these pages.
    pub in_flight: u64,
    /// Could not be cached: pool or tenant share too small.
    pub capacity: u64,
    /// Never seen, or forgotten even by the ghosts.
    pub never_seen: u64,
    /// Tokens after the last whole page.
    pub partial_page: u64,
}

impl Misses {
    /// Names and values, in the order in which causes apply.
    pub fn items(&self) -> [(&'static str, u64); 7] {
        [
            ("window", self.window),
            ("last_token", self.last_token),
            ("evicted", self.evicted),
            ("in_flight", self.in_flight),
            ("capacity", self.capacity),
            ("never_seen", self.never_seen),
            ("partial_page", self.partial_page),
        ]
    }

    /// Sum over all causes.
    pub fn total(&self) -> u64 {
        self.items().iter().map(|(_, v)| v).sum()
    }
}

/// Where every prompt token of one `open` came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Report {
    /// Tokens of the prompt.
    pub prompt_tokens: u64,
    /// p and q.
    pub matched: Match,
    /// Usable tokens announced at `open`.
    pub promised: u64,
    /// Usable tokens the sequence really starts from.
    pub delivered: u64,
    /// Why the rest missed.
    pub misses: Misses,
    /// 1 + turn of the checkpoint that was matched, else 1.
    pub turn: u32,
}

/// Where a sequence stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SeqInfo {
    /// Tokens whose KV is final.
    pub committed: u64,
    /// Tokens whose ids are known; at least `committed`.
    pub known: u64,
    /// Slots beyond `committed`.
    pub reserved: u64,
    /// Do not write full KV before this position.
    pub full_write_from: u64,
    /// Do not write SWA KV before this position.
    pub swa_write_from: u64,
    /// First logical page of the compact SWA table.
    pub swa_base: u64,
    /// SWA pages this sequence holds.
    pub swa_held: u64,
    /// Changes whenever a page id of committed tokens changes.
    pub table_version: u64,
    /// Parked: only tokens and cursor are kept.
    pub parked: bool,
}

/// A group of layers with one lifetime.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Group {
    /// Grows with the sequence.
    Full,
    /// Only the last W tokens matter.
    Swa,
}

/// Tokens after the end of an SWA page with which its MTP rows were made, at most `n_mtp`.
pub type Record = SmallVec<[u32; 8]>;

/// Copy one whole page to another of the same pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageCopy {
    /// Pool of both pages.
    pub group: Group,
    /// Page to read.
    pub src: u32,
    /// Page to write.
    pub dst: u32,
}

/// MTP rows of an SWA page to rebuild from the hidden states stored in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MtpRebuild {
    /// The reader.
    pub seq: SeqId,
    /// Its private SWA page.
    pub page: u32,
    /// First position to rebuild.
    pub start: u64,
    /// One past the last position to rebuild.
    pub end: u64,
}

/// What the caller must run before the kernels of a step; copies in order, then rebuilds.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Plan {
    /// Page copies.
    pub copies: Vec<PageCopy>,
    /// MTP rows to rebuild after the copies.
    pub rebuilds: Vec<MtpRebuild>,
}

/// Caller-owned buffers of one step's page tables, row-major.
///
/// Row i of `full` holds the page ids of sequence i from logical page 0; row i of `swa` those from logical page
/// `swa_base[i]`, or from page 0 with id 0 in the holes when `swa_base` is `None`. The rest of a row is set to 0.
pub struct FillOut<'a> {
    /// `[B x full_width]`.
    pub full: &'a mut [i32],
    /// Row length of `full`.
    pub full_width: usize,
    /// `[B x swa_width]`.
    pub swa: &'a mut [i32],
    /// Row length of `swa`.
    pub swa_width: usize,
    /// `[B]`, or `None` for full-length SWA rows.
    pub swa_base: Option<&'a mut [i32]>,
    /// `[B]`: committed + reserved.
    pub lens: &'a mut [i32],
}

/// One sequence's part of a `commit_many`.
#[derive(Debug, Clone, Copy)]
pub struct Commit<'a> {
    /// The sequence.
    pub seq: SeqId,
    /// Rows that became final.
    pub computed: u64,
    /// Tokens that became known.
    pub tokens: &'a [u32],
}

/// What a page pool holds, by state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PoolStats {
    /// Pages there are now (without the null page); of a chunk that drains those that are not withdrawn yet.
    pub total: u64,
    /// On the free list.
    pub free: u64,
    /// Owned by sequences.
    pub private: u64,
    /// Owned by the tree.
    pub cached: u64,
    /// Part of `cached` under a lease.
    pub leased: u64,
    /// Waiting for a step or a move.
    pub quarantined: u64,
    /// Promised to open sequences, not taken yet (full), or reserved for their windows (swa).
    pub promised: u64,
    /// SWA only: scratch pages in use.
    pub scratch_used: u64,
}

/// Counters since the start, and the state now.
#[derive(Debug, Clone, Copy, Default)]
pub struct Stats {
    /// The full pool.
    pub full: PoolStats,
    /// The SWA pool.
    pub swa: PoolStats,
    /// Tree nodes, roots included.
    pub nodes: u64,
    /// Checkpoints.
    pub checkpoints: u64,
    /// Open sequences, parked ones not counted.
    pub open_sequences: u64,
    /// Parked sequences.
    pub parked_sequences: u64,
    /// `open` and `resume` that succeeded.
    pub opens: u64,
    /// Prompt tokens over those.
    pub prompt_tokens: u64,
    /// Usable tokens over those.
    pub hit_tokens: u64,
    /// p over those.
    pub full_kv_tokens: u64,
    /// Misses over those.
    pub misses: Misses,
    /// Full pages evicted.
    pub full_evicted: u64,
    /// Checkpoints evicted.
    pub checkpoints_evicted: u64,
    /// SWA pages evicted.
    pub swa_evicted: u64,
    /// Bytes of the tree's own structures (estimate).
    pub tree_bytes: u64,
    /// How the region is split; zeros without one.
    pub split: SplitStats,
}

/// A 32-byte chain key.
pub type PageKey = [u8; 32];

/// A change of what lookups can find. Coalesced per core call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventKind {
    /// Pages became resident, parents first. `keys[0]`'s parent is `parent` (a root key for the first page).
    Stored {
        /// Pool.
        group: Group,
        /// Root key of the namespace, which a later [`EventKind::Cleared`] may name.
        root: PageKey,
        /// Key before `keys[0]`.
        parent: PageKey,
        /// Consecutive pages of one prefix.
        keys: Vec<PageKey>,
    },
    /// Pages left.
    Removed {
        /// Pool.
        group: Group,
        /// Page keys, in no particular order.
        keys: Vec<PageKey>,
    },
    /// The boundaries at the ends of these pages became window-safe.
    WindowSafe {
        /// Page keys.
        keys: Vec<PageKey>,
    },
    /// The boundaries at the ends of these pages stopped being window-safe.
    WindowUnsafe {
        /// Page keys.
        keys: Vec<PageKey>,
    },
    /// Everything below this root is gone from lookups.
    Cleared {
        /// The root key.
        root: PageKey,
    },
}

/// A numbered event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Consecutive from 1.
    pub number: u64,
    /// What happened.
    pub kind: EventKind,
}

/// Result of draining the event ring.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Drained {
    /// Events in order.
    pub events: Vec<Event>,
    /// Events that were dropped before the first of these because nobody drained in time; resync with a snapshot.
    pub lost: u64,
}

/// One resident page in a [`Snapshot`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotPage {
    /// Key of the page.
    pub key: PageKey,
    /// Key of its parent page or root.
    pub parent: PageKey,
    /// Root key of its namespace.
    pub root: PageKey,
    /// Has full KV.
    pub full: bool,
    /// Has SWA KV.
    pub swa: bool,
    /// The boundary at its end is window-safe.
    pub window_safe: bool,
}

/// What lookups can find now, parents first; equals the state after event `number`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Snapshot {
    /// Number of the last event that is contained.
    pub number: u64,
    /// All pages of attached namespaces; without a full group also those without KV on the way to deeper ones.
    pub pages: Vec<SnapshotPage>,
}

/// Boundary, kinds and recency of a checkpoint, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckpointInfo {
    /// Boundary, in tokens.
    pub boundary: u64,
    /// Names of its kinds.
    pub kinds: SmallVec<[&'static str; 4]>,
    /// A match ended on it.
    pub matched: bool,
    /// Turn number of the request that made it.
    pub turn: u32,
}

/// What is remembered of something that was dropped: by whom, when and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Loss {
    /// Why it was dropped.
    pub why: Why,
    /// Number of the sequence whose call dropped it, see [`SeqId::number`].
    pub by: u64,
    /// Calls ago, of those that can drop something (`open`, `resume`, `reserve`, `commit`, `fork`, and the ends).
    pub calls_ago: u64,
    /// Time told to the cache when it was dropped, in milliseconds.
    pub at_ms: u64,
}

/// A stretch of a prompt that missed for one cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stretch {
    /// First token.
    pub from: u64,
    /// One past the last token.
    pub to: u64,
    /// As in [`Misses::items`].
    pub cause: &'static str,
    /// For `evicted`: its newest drop; `None` when the cache remembers no more than that it was dropped.
    pub loss: Option<Loss>,
}

/// A checkpoint that would have made more of the prompt usable and was dropped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LostCheckpoint {
    /// Boundary, in tokens.
    pub boundary: u64,
    /// Names of its kinds.
    pub kinds: SmallVec<[&'static str; 4]>,
    /// Its newest drop, if that is remembered.
    pub loss: Option<Loss>,
}

/// The story of one lookup.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Explanation {
    /// The numbers.
    pub report: Report,
    /// Checkpoints on the matched path, shallow first (at most 64, the deepest).
    pub checkpoints: Vec<CheckpointInfo>,
    /// What missed, in order of position; stretches of one eviction are one (at most 64, the first).
    pub stretches: Vec<Stretch>,
    /// Checkpoints between the usable length and the full-KV match that were dropped, deepest first (at most 64).
    pub lost: Vec<LostCheckpoint>,
    /// One plain sentence a line.
    pub lines: Vec<String>,
}
