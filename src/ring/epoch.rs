//! Two epochs side by side: where to look, and where to look next.

use super::table::{Node, Table};
use crate::error::Result;
use std::sync::Arc;

/// Who holds a bucket, as indices into the nodes of the two tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owners {
    /// The owner now: reads first, all writes.
    pub now: Option<u16>,
    /// The owner before the last change, while it may still have what the new one lacks; `None` when it is the same.
    pub before: Option<u16>,
}

/// The placement of now and of the epoch before.
#[derive(Debug, Clone)]
pub struct Ring {
    now: Arc<Table>,
    before: Option<Arc<Before>>,
}

/// A former table, and where its nodes are now.
#[derive(Debug)]
struct Before {
    table: Arc<Table>,
    now: Vec<Option<u16>>,
}

impl Ring {
    /// A ring whose first epoch is 1.
    pub fn new(buckets: u32, nodes: &[Node]) -> Result<Ring> {
        Ok(Ring { now: Arc::new(Table::new(buckets, nodes, 1)?), before: None })
    }

    /// The ring after a change of membership; the same ring when nothing changed.
    pub fn change(&self, nodes: &[Node]) -> Result<Ring> {
        let next = self.now.next(nodes)?;
        if next.nodes() == self.now.nodes() {
            return Ok(self.clone());
        }
        let place = |n: &Node| next.nodes().binary_search_by(|m| m.name.cmp(&n.name)).ok().map(|i| i as u16);
        let now = self.now.nodes().iter().map(place).collect();
        Ok(Ring { now: Arc::new(next), before: Some(Arc::new(Before { table: self.now.clone(), now })) })
    }

    /// Every bucket has moved: the epoch before is not asked any more.
    pub fn settled(&self) -> Ring {
        Ring { now: self.now.clone(), before: None }
    }

    /// Owners of a bucket. A node that left is still named as the owner before: it may be draining.
    pub fn owners(&self, bucket: u32) -> Owners {
        let now = self.now.owner(bucket);
        let before = self.before.as_ref().and_then(|b| {
            let was = b.table.owner(bucket)?;
            (now.is_none() || b.now[usize::from(was)] != now).then_some(was)
        });
        Owners { now, before }
    }

    /// The table of now.
    pub fn now(&self) -> &Table {
        &self.now
    }

    /// The table of the epoch before, until [`Ring::settled`].
    pub fn before(&self) -> Option<&Table> {
        self.before.as_ref().map(|b| &*b.table)
    }
}
