//! Page handles: typed by pool and state, move-only.
//!
//! Two handles of one page never exist (shares are counted by the pool), and a full page cannot be passed where an SWA
//! page is due:
//!
//! ```compile_fail
//! use mimo_cache::pool::{Computed, Page, Swa};
//! fn twice(page: Page<Swa, Computed>) -> (Page<Swa, Computed>, Page<Swa, Computed>) {
//!     (page, page) // a handle moves, it is not copied
//! }
//! ```
//!
//! ```compile_fail
//! use mimo_cache::pool::{Computed, Full, Page, Swa};
//! fn mixed_up(page: Page<Full, Computed>) -> Page<Swa, Computed> {
//!     page // the pools have distinct types
//! }
//! ```
//!
//! ```compile_fail
//! use mimo_cache::pool::{Full, Page, Pool, Published, Reserved};
//! fn unpublished(pool: &mut Pool<Full>, page: Page<Full, Reserved>) -> Page<Full, Published> {
//!     pool.publish(page) // only computed pages can be published
//! }
//! ```

use crate::error::PoolName;
use std::marker::PhantomData;
use std::num::NonZeroU32;

/// A pool's group.
pub trait PoolGroup: 'static {
    /// Its name in errors.
    const NAME: PoolName;
}

/// The full-attention pool.
#[derive(Debug)]
pub enum Full {}
/// The SWA pool.
#[derive(Debug)]
pub enum Swa {}

impl PoolGroup for Full {
    const NAME: PoolName = PoolName::Full;
}
impl PoolGroup for Swa {
    const NAME: PoolName = PoolName::Swa;
}

/// State: slots that a step may write.
#[derive(Debug)]
pub enum Reserved {}
/// State: every row is final.
#[derive(Debug)]
pub enum Computed {}
/// State: the tree owns the page.
#[derive(Debug)]
pub enum Published {}
/// State: a step or a move may still touch the page.
#[derive(Debug)]
pub enum Quarantined {}

/// The one handle of a page of pool `G` in state `S`.
#[derive(Debug)]
#[must_use = "a dropped handle loses its page"]
pub struct Page<G, S> {
    id: NonZeroU32,
    mark: PhantomData<fn() -> (G, S)>,
}

impl<G, S> Page<G, S> {
    /// Only pools make handles.
    pub(super) fn new(id: u32) -> Self {
        Page { id: NonZeroU32::new(id).expect("page id 0 is the null page"), mark: PhantomData }
    }

    /// The page's id, for tables and plans.
    pub fn id(&self) -> u32 {
        self.id.get()
    }

    pub(super) fn into_state<T>(self) -> Page<G, T> {
        Page { id: self.id, mark: PhantomData }
    }
}

impl<G> Page<G, Reserved> {
    /// The caller states that every row of the page is final.
    pub fn computed(self) -> Page<G, Computed> {
        self.into_state()
    }
}

impl<G> Page<G, Published> {
    /// The id under which the tree stores the page; [`Pool::take_back`](super::Pool::take_back) makes a handle again.
    pub fn into_id(self) -> u32 {
        self.id.get()
    }
}
