//! Policies: which boundaries stay resumable ([`Retention`]) and in which order things are evicted ([`Policy`]).
//!
//! One policy orders the leaves of the tree, a second one of the same kind the checkpoints. A policy knows ids and their
//! [`Standing`], nothing of pages: the tree inserts an id when it may be evicted and removes it when it is leased, gone,
//! or no leaf any more. So whatever a policy decides, eviction is leaf first and never touches what is leased.
//!
//! What is learnt from the traffic is in one [`History`], which the tree feeds and every policy may ask. Time comes in
//! with every question; nothing here reads a clock.

mod arc;
mod balance;
pub mod class;
mod density;
mod ends;
mod history;
mod lru;
mod ranked;
pub mod retention;
mod reuse;
mod s3fifo;

pub use balance::Balance;
pub use ends::End;
pub use history::{Arrival, History, User};
pub use lru::{LruList, NIL};
pub use ranked::{Entry, Ranked};
pub use retention::{Retention, kind};
pub use reuse::{Index, Reuse};

use crate::error::{Error, Result};

/// What a policy is told of an id.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Standing {
    /// Order of the last uses: a later use has a larger rank, a part deeper in one prompt a smaller one.
    pub rank: u64,
    /// Rank of the first use since it is cached.
    pub born: u64,
    /// Time of the last use, in units of [`History::now`].
    pub used: u64,
    /// What its last user was: see [`class`].
    pub class: u16,
    /// Uses since it is cached, the first one too; one more when its pages came back soon after they had been evicted.
    pub uses: u8,
    /// Pages that go with it.
    pub pages: u32,
    /// Pages that would have to be computed again, for each page that becomes free. 1 for full pages, which are worth
    /// what they are; a checkpoint unlocks more than it costs.
    pub worth: f32,
}

/// What a policy may ask when it decides.
#[derive(Debug, Clone, Copy)]
pub struct Now<'a> {
    /// The time.
    pub time: u64,
    /// When the request before the newest one came.
    pub fresh: u64,
    /// Pages of the pool.
    pub pool: u32,
    /// Reuse, as learnt.
    pub reuse: &'a Reuse,
}

/// What takes a larger part of its pool than one of so many is not fresh, however new it is.
const FRESH_PART: u64 = 32;

impl Now<'_> {
    /// True for what one of the newest two requests used, when it takes a small part of the pool.
    pub fn is_fresh(&self, used: u64, pages: u32) -> bool {
        used >= self.fresh && u64::from(pages) * FRESH_PART <= u64::from(self.pool)
    }
}

/// Order of eviction over ids (leaves of the tree, or checkpoints).
pub trait Policy: Send + std::fmt::Debug {
    /// `id` may be evicted from now on, or its standing changed.
    fn insert(&mut self, id: u32, at: Standing);
    /// `id` may not be evicted any more. Does nothing when it could not.
    fn remove(&mut self, id: u32);
    /// The next to go.
    fn victim(&mut self, now: Now<'_>) -> Option<u32>;
    /// What an id that may be evicted promises: uses of a page per unit of time. Of what was not used for long only the
    /// age tells: as much time as it was kept without a use is likely to pass until there is one.
    fn value(&self, id: u32, now: Now<'_>) -> f32 {
        self.ids().get(id).map_or(0.0, |e| 1.0 / (now.time.saturating_sub(e.used) + 1) as f32)
    }
    /// What may be evicted.
    fn ids(&self) -> &Ranked;
    /// The same, for [`Self::resize`].
    fn ids_mut(&mut self) -> &mut Ranked;
    /// `pages` of an id are evicted; it is removed after this when they were all.
    fn evicted(&mut self, id: u32, pages: u32) {
        if let Some(left) = self.ids().get(id).map(|e| e.pages.saturating_sub(pages)) {
            self.resize(id, left);
        }
    }
    /// An id has `pages` now.
    fn resize(&mut self, id: u32, pages: u32) {
        self.ids_mut().resize(id, pages);
    }
    /// The worth of an id that is about to go. True when it stands elsewhere now and somebody else may have to go.
    fn reweigh(&mut self, _id: u32, _worth: f32) -> bool {
        false
    }
    /// `pages` that had been evicted are computed again; `mark` is what [`Self::mark`] said when they went.
    fn came_back(&mut self, _mark: bool, _pages: u32) {}
    /// One bit to remember of an id that goes.
    fn mark(&self, _id: u32) -> bool {
        false
    }
}

/// The policies by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PolicyKind {
    /// Least recently used.
    Lru,
    /// Adaptive replacement: used once against used again, the line between them moved by what comes back.
    Arc,
    /// A small first-in-first-out queue before a large one.
    S3Fifo,
    /// Least likely to be used within a minute, by age and turn.
    TurnHazard,
    /// Fewest tokens hit per page and time, by age and by what its user did.
    #[default]
    HitDensity,
}

/// Names, in the order of [`PolicyKind`].
const NAMES: [(&str, PolicyKind); 5] = [
    ("lru", PolicyKind::Lru),
    ("arc", PolicyKind::Arc),
    ("s3fifo", PolicyKind::S3Fifo),
    ("turn_hazard", PolicyKind::TurnHazard),
    ("hit_density", PolicyKind::HitDensity),
];

impl PolicyKind {
    /// Every policy.
    pub fn all() -> impl ExactSizeIterator<Item = PolicyKind> {
        NAMES.into_iter().map(|(_, kind)| kind)
    }

    /// Reads a name.
    pub fn parse(text: &str) -> Result<Self> {
        NAMES.iter().find(|(name, _)| *name == text).map(|&(_, kind)| kind).ok_or_else(|| {
            let names: Vec<String> = NAMES.iter().map(|(name, _)| format!("\"{name}\"")).collect();
            Error::invalid("policy", crate::error::shown(text), names.join(", "))
        })
    }

    /// The name.
    pub fn name(self) -> &'static str {
        NAMES.iter().find(|&&(_, kind)| kind == self).map_or("", |&(name, _)| name)
    }

    /// A fresh order over leaves.
    pub fn leaves(self) -> Box<dyn Policy> {
        match self {
            PolicyKind::Lru => Box::new(lru::Lru::default()),
            PolicyKind::Arc => Box::new(arc::Arc::default()),
            PolicyKind::S3Fifo => Box::new(s3fifo::S3Fifo::default()),
            PolicyKind::TurnHazard => Box::new(density::Density::of_turns()),
            PolicyKind::HitDensity => Box::new(density::Density::of_leaves()),
        }
    }

    /// A fresh order over checkpoints.
    pub fn checkpoints(self) -> Box<dyn Policy> {
        match self {
            PolicyKind::HitDensity => Box::new(density::Density::of_checkpoints()),
            other => other.leaves(),
        }
    }

    /// What is learnt for it, if anything.
    pub fn learns(self) -> Option<Index> {
        match self {
            PolicyKind::TurnHazard => Some(Index::Within(600)),
            PolicyKind::HitDensity => Some(Index::Density),
            _ => None,
        }
    }

    /// True when checkpoints go by what they unlock, so that nobody has to say which of a stretch goes first.
    pub fn weighs(self) -> bool {
        self == PolicyKind::HitDensity
    }
}

#[cfg(test)]
mod tests;
