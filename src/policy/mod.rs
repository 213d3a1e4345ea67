//! Policies: which boundaries stay resumable ([`Retention`]) and in which order things are evicted ([`Policy`]).
//!
//! A policy orders ids; it knows nothing of pages. The tree inserts an id when the thing becomes evictable and removes
//! it when it is leased or gone. Parents are always inserted after their children, so an order by insertion is leaf
//! first without further care.

mod balance;
mod lru;
pub mod retention;

pub use balance::Balance;
pub use lru::{LruList, NIL};
pub use retention::{Retention, kind};

use crate::error::{Error, Result};

/// Order of eviction over ids (nodes or checkpoints).
pub trait Policy: Send + std::fmt::Debug {
    /// `id` became evictable now.
    fn insert(&mut self, id: u32);
    /// `id` was split off `older` and shares its age; it must go after it.
    fn insert_after(&mut self, older: u32, id: u32);
    /// `id` is no longer evictable. Does nothing when it was not.
    fn remove(&mut self, id: u32);
    /// The next to go.
    fn victim(&self) -> Option<u32>;
    /// The one to go after `id`.
    fn after(&self, id: u32) -> Option<u32>;
    /// True while `id` is evictable.
    fn contains(&self, id: u32) -> bool;
    /// Evictable ids.
    fn len(&self) -> usize;
    /// True without evictable ids.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The policies by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PolicyKind {
    /// Least recently used.
    #[default]
    Lru,
}

impl PolicyKind {
    /// Reads a name.
    pub fn parse(text: &str) -> Result<Self> {
        match text {
            "lru" => Ok(PolicyKind::Lru),
            _ => Err(Error::invalid("policy", crate::error::shown(text), "\"lru\"")),
        }
    }

    /// A fresh order.
    pub fn build(self) -> Box<dyn Policy> {
        match self {
            PolicyKind::Lru => Box::new(LruList::default()),
        }
    }
}
