//! The prefix tree: a compressed radix tree over pages with the residency of both groups, their leases, checkpoints
//! and eviction. One decision maker, no locks, no I/O, no memory behind the page ids.
//!
//! Vocabulary: a *slot* is a page in the tree ([`slots`]); a *node* an edge of slots ([`node`]). Leases, cursors and
//! checkpoints name slots, which never move. A path lease protects the node at whose end it was taken and everything
//! above; nodes are split where a lease ends, and joined again when both parts are let go together.

mod ahead;
mod checkpoint;
mod children;
mod dump;
pub mod events;
mod evict;
pub mod ghost;
mod integrity;
mod lease;
mod margin;
pub mod node;
mod order;
mod pins;
mod publish;
mod relocate;
mod roots;
mod shape;
mod shares;
mod slots;
mod usable;
mod users;
mod walk;

pub use checkpoint::Checkpoint;
pub use ghost::Why;
pub use relocate::Until;
pub use slots::{Run, Slots};
pub use walk::{Cursor, Place as WalkPlace, Query};

use crate::cache::types::{CacheConfig, PageKey};
use crate::policy::{History, LruList, Policy};
use crate::pool::chunk::{Arena, ChunkVec};
use crate::pool::{Fence, Full, Pool, Stamp, Swa};
use children::ChildTable;
use events::Events;
use foldhash::fast::FixedState;
use ghost::{Act, Ghosts};
use margin::Margin;
use node::Node;
use pins::{Pin, PinKey};
use relocate::Landing;
use shares::TenantLists;
use std::collections::{BTreeMap, BTreeSet};

/// Bytes of one of them: key, count, and the map around them.
const GENERATION_BYTES: u64 = 64;

/// A namespace that has pages or sequences.
#[derive(Debug)]
pub struct Root {
    /// Key above the first page.
    pub key: PageKey,
    /// Node without pages above everything.
    pub node: u32,
    /// False after `clear`.
    pub attached: bool,
}

/// What the tree knows of an SWA page.
#[derive(Debug, Clone, Copy, Default)]
pub struct SwaMeta {
    /// Slot that holds the page, while cached.
    pub slot: u32,
    /// Sequences that hold it.
    pub leases: u32,
    /// Checkpoints whose window it is in.
    pub refs: u32,
    /// Newest step that may still read it.
    pub stamp: Stamp,
    /// Newest step that may still write it.
    pub written: Stamp,
    /// Unleased, but its step still runs.
    pub waiting: bool,
    /// A checkpoint that was made with it, for refreshing; may be stale.
    pub hint: u32,
    /// Publisher.
    pub tenant: u32,
    /// Tokens in its MTP record.
    pub record: u8,
}

/// A tenant's pages and share.
#[derive(Debug, Clone, Copy)]
pub struct Tenant {
    /// Most cached full pages.
    pub max_full: u64,
    /// Most cached SWA pages.
    pub max_swa: u64,
    /// Cached full pages now.
    pub full: u64,
    /// Cached SWA pages now.
    pub swa: u64,
}

/// What was evicted since the start.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counters {
    /// Full pages.
    pub full: u64,
    /// SWA pages.
    pub swa: u64,
    /// Checkpoints.
    pub checkpoints: u64,
}

/// See the module's text.
#[derive(Debug)]
pub struct Tree {
    pub(crate) page: u32,
    pub(crate) window: u32,
    pub(crate) n_mtp: u32,
    /// Pages before a boundary that must have SWA KV: `ceil(window / page)`.
    pub(crate) need: u32,
    pub(crate) has_full: bool,
    pub(crate) has_swa: bool,
    pub(crate) fingerprint: [u8; 32],
    pub(crate) slots: Slots,
    pub(crate) nodes: Arena<Node>,
    pub(crate) roots: Arena<Root>,
    by_key: BTreeMap<PageKey, u32>,
    /// How often a namespace was cleared, by its key at generation 0.
    generations: BTreeMap<PageKey, u64>,
    /// Highest of them.
    highest: u64,
    /// Generations that `cleared_all` has taken over; let go a few at a time.
    outdated: BTreeMap<PageKey, u64>,
    /// How often everything was cleared.
    cleared_all: u64,
    pub(crate) ckpts: Arena<Checkpoint>,
    pub(crate) swa_meta: ChunkVec<SwaMeta>,
    records: ChunkVec<u32>,
    pub(crate) full: Pool<Full>,
    pub(crate) swa: Pool<Swa>,
    pub(crate) fence: Fence,
    /// Leaves that may go.
    order: Box<dyn Policy>,
    dead: LruList,
    pinned: LruList,
    ckpt_order: Box<dyn Policy>,
    ckpt_pinned: LruList,
    /// What is learnt for both orders.
    pub(crate) history: History,
    /// Checkpoints go by what they unlock.
    weighs: bool,
    /// Uses so far: the rank of the newest one.
    ranks: u64,
    /// What may go (also what is not a leaf) and what is in `ckpt_order`, of tenants with a share.
    own_nodes: TenantLists,
    own_ckpts: TenantLists,
    detached: Vec<u32>,
    pins: BTreeMap<PinKey, Pin>,
    /// Pins by the slot they end in, by their checkpoint, and by their namespace.
    pins_at: BTreeSet<(u32, PinKey)>,
    pins_on: BTreeSet<(u32, PinKey)>,
    pins_in: BTreeSet<(u32, PinKey)>,
    next_pin: u64,
    pinned_pages: u64,
    max_pinned: u64,
    pub(crate) now: u64,
    leased_full: u64,
    pending_full: u64,
    tickets: u64,
    swa_leased: u64,
    swa_waiting: u64,
    tenants: BTreeMap<u32, Tenant>,
    /// With a region: slots of cached full pages, and pages that were copied just now.
    full_slots: Option<ChunkVec<u32>>,
    landing: Landing,
    /// With a region that balances itself.
    margin: Option<Margin>,
    /// Full pages that were dropped.
    pub(crate) ghosts: Ghosts,
    /// Checkpoints that were dropped, by the key of the page that ends at their boundary.
    pub(crate) ckpt_ghosts: Ghosts,
    /// The call that is running, for ghosts.
    pub(crate) act: Act,
    pub(crate) events: Events,
    hash: FixedState,
    table: ChildTable,
    pub(crate) counters: Counters,
}

impl Tree {
    /// An empty tree; the configuration was validated.
    pub fn new(c: &CacheConfig) -> Self {
        let has_swa = c.swa_pages > 0;
        let (full, swa) = match &c.region {
            None => (Pool::new(c.full_pages), Pool::new(c.swa_pages)),
            Some(r) => (
                Pool::of_chunks(r.chunks, r.full_pages, 0..r.full_chunks),
                Pool::of_chunks(r.chunks, r.swa_pages, r.full_chunks..r.chunks),
            ),
        };
        Tree {
            page: c.page_size,
            window: if has_swa { c.window } else { 0 },
            n_mtp: if has_swa { c.n_mtp } else { 0 },
            need: if has_swa { c.window.div_ceil(c.page_size) } else { 0 },
            has_full: c.full_pages > 0,
            has_swa,
            fingerprint: c.fingerprint,
            slots: Slots::new(c.page_size, u64::from(c.full_pages.max(c.swa_pages))),
            nodes: Arena::default(),
            roots: Arena::default(),
            by_key: BTreeMap::new(),
            generations: BTreeMap::new(),
            highest: 0,
            outdated: BTreeMap::new(),
            cleared_all: 0,
            ckpts: Arena::default(),
            swa_meta: ChunkVec::new(SwaMeta::default()),
            records: ChunkVec::new(0),
            full,
            swa,
            fence: Fence::default(),
            order: c.policy.leaves(),
            dead: LruList::default(),
            pinned: LruList::default(),
            ckpt_order: c.policy.checkpoints(),
            ckpt_pinned: LruList::default(),
            history: History::new(c.policy, u64::from(c.full_pages.max(c.swa_pages)), c.seed),
            weighs: c.policy.weighs(),
            ranks: 0,
            own_nodes: TenantLists::default(),
            own_ckpts: TenantLists::default(),
            detached: Vec::new(),
            pins: BTreeMap::new(),
            pins_at: BTreeSet::new(),
            pins_on: BTreeSet::new(),
            pins_in: BTreeSet::new(),
            next_pin: 0,
            pinned_pages: 0,
            max_pinned: u64::from(c.max_pinned_pages),
            now: 0,
            leased_full: 0,
            pending_full: 0,
            tickets: 0,
            swa_leased: 0,
            swa_waiting: 0,
            tenants: BTreeMap::new(),
            full_slots: c.region.is_some().then(|| ChunkVec::new(0)),
            landing: Landing::default(),
            margin: c.region.as_ref().filter(|r| r.adaptive).map(|r| Margin::new(r.full_pages, r.swa_pages)),
            ghosts: Ghosts::new(c.ghost_pages, c.seed),
            ckpt_ghosts: Ghosts::new(c.ghost_pages.min(c.swa_pages.saturating_mul(2)), c.seed),
            act: Act::default(),
            events: Events::new(c.event_capacity),
            hash: FixedState::with_seed(c.seed),
            table: ChildTable::default(),
            counters: Counters::default(),
        }
    }

    /// A call begins that may drop something, for the sequence with this number.
    pub(crate) fn begin(&mut self, by: u64) {
        self.act.op += 1;
        (self.act.by, self.act.ms) = (by, self.now);
    }

    /// Pages of the window of boundary `end`.
    pub(crate) fn need_at(&self, end: u32) -> u32 {
        self.need.min(end)
    }

    /// Full pages under a lease.
    pub(crate) fn leased_full(&self) -> u64 {
        self.leased_full
    }
    /// SWA pages under a lease.
    pub(crate) fn leased_swa(&self) -> u64 {
        self.swa_leased
    }
    /// Cached full pages without a lease whose step still runs.
    pub(crate) fn waiting_full(&self) -> u64 {
        self.pending_full
    }
    /// Cached SWA pages without a lease whose step still runs.
    pub(crate) fn waiting_swa(&self) -> u64 {
        self.swa_waiting
    }
    /// Full pages that eviction could free at once. With a chunk that drains a lower bound: its pages come free for
    /// nobody, and those of them that are leased count twice, once for the place that they will need elsewhere.
    pub(crate) fn evictable_full(&self) -> u64 {
        let held = self.leased_full + self.pending_full + self.landing.full();
        u64::from(self.full.cached() - self.full.draining_cached()).saturating_sub(held)
    }
    /// SWA pages that eviction could free at once, bounded likewise.
    pub(crate) fn evictable_swa(&self) -> u64 {
        let held = self.swa_leased + self.swa_waiting + self.landing.swa();
        u64::from(self.swa.cached() - self.swa.draining_cached()).saturating_sub(held)
    }

    /// Sets a tenant's shares.
    pub(crate) fn set_share(&mut self, tenant: u32, max_full: u64, max_swa: u64) {
        let t = self.tenant(tenant);
        t.max_full = max_full;
        t.max_swa = max_swa;
        // Without pages and without a share there is nothing to remember.
        self.count_tenant(tenant, 0, 0);
    }

    fn tenant(&mut self, tenant: u32) -> &mut Tenant {
        self.tenants.entry(tenant).or_insert(Tenant { max_full: u64::MAX, max_swa: u64::MAX, full: 0, swa: 0 })
    }

    fn count_tenant(&mut self, tenant: u32, full: i64, swa: i64) {
        let t = self.tenant(tenant);
        t.full = t.full.wrapping_add_signed(full);
        t.swa = t.swa.wrapping_add_signed(swa);
        if (t.full, t.swa, t.max_full, t.max_swa) == (0, 0, u64::MAX, u64::MAX) {
            self.tenants.remove(&tenant);
        }
    }

    /// Pages the tenant may still publish without letting some go.
    pub(crate) fn share_left(&self, tenant: u32) -> (u64, u64) {
        self.tenants
            .get(&tenant)
            .map_or((u64::MAX, u64::MAX), |t| (t.max_full.saturating_sub(t.full), t.max_swa.saturating_sub(t.swa)))
    }

    /// Tokens after the end of a published SWA page with which its MTP rows were made.
    pub(crate) fn record(&self, swa_page: u32) -> impl Iterator<Item = u32> + '_ {
        let n = usize::from(self.swa_meta.get(swa_page as usize).record);
        let base = swa_page as usize * self.n_mtp as usize;
        (0..n).map(move |k| *self.records.get(base + k))
    }

    fn set_record(&mut self, swa_page: u32, tokens: &[u32]) {
        let n = tokens.len().min(self.n_mtp as usize);
        self.swa_meta.get_mut(swa_page as usize).record = n as u8;
        let base = swa_page as usize * self.n_mtp as usize;
        for (k, &t) in tokens[..n].iter().enumerate() {
            *self.records.get_mut(base + k) = t;
        }
    }

    /// Estimate of the tree's own bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.slots.bytes()
            + self.nodes.bytes()
            + self.table.bytes()
            + self.ghosts.bytes()
            + self.ckpt_ghosts.bytes()
            + self.ckpts.bytes()
            + self.swa_meta.bytes()
            + self.records.bytes()
            + self.full_slots.as_ref().map_or(0, ChunkVec::bytes)
            + self.history.bytes()
            + self.order.ids().bytes()
            + self.ckpt_order.ids().bytes()
            + (self.generations.len() + self.outdated.len()) as u64 * GENERATION_BYTES
    }
}
