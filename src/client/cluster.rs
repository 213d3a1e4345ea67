//! The nodes of now and of the epoch before, and which of them a bucket belongs to.

use super::node::Node;
use super::ramp::Ramp;
use crate::error::Result;
use crate::member::{Member, NodeList};
use crate::ring::{Ring, bucket_of};
use std::sync::Arc;

/// Whom to ask for a bucket.
#[derive(Clone, Copy)]
pub struct Route<'c> {
    /// The bucket.
    pub bucket: u32,
    /// Index of its owner; `None`: there is no node.
    pub now: Option<&'c Arc<Node>>,
    /// Who had it before, if that was another.
    pub before: Option<&'c Arc<Node>>,
    /// Its owner is fresh, and the bucket's turn has not come.
    pub held_back: bool,
}

/// One state of membership. Never changed.
pub struct Cluster {
    ring: Ring,
    nodes: Vec<Arc<Node>>,
    before: Vec<Arc<Node>>,
}

impl Cluster {
    /// The first.
    pub fn new(buckets: u32, list: &NodeList, make: impl Fn(&Member) -> Arc<Node>) -> Result<Cluster> {
        let ring = Ring::new(buckets, &list.nodes())?;
        Ok(Cluster { ring, nodes: list.members().iter().map(make).collect(), before: Vec::new() })
    }

    /// The next. Nodes whose name and addresses stay are the same as before, with their connections.
    pub fn next(&self, list: &NodeList, make: impl Fn(&Member) -> Arc<Node>) -> Result<Cluster> {
        let ring = self.ring.change(&list.nodes())?;
        let node = |member: &Member| {
            let known =
                self.nodes.iter().find(|n| n.member.name == member.name && n.member.addresses == member.addresses);
            known.cloned().unwrap_or_else(|| make(member))
        };
        let nodes: Vec<Arc<Node>> = list.members().iter().map(node).collect();
        // The ring is the same one where only addresses changed; its epoch before stays with its nodes then.
        let same = ring.now().epoch() == self.ring.now().epoch();
        let before = if same { self.before.clone() } else { self.nodes.clone() };
        // A node of before that is still here may have moved to another address.
        let moved = |old: Arc<Node>| nodes.iter().find(|n| n.member.name == old.member.name).cloned().unwrap_or(old);
        Ok(Cluster { before: before.into_iter().map(moved).collect(), ring, nodes })
    }

    /// The epoch before is not asked any more.
    pub fn settled(&self) -> Cluster {
        Cluster { ring: self.ring.settled(), nodes: self.nodes.clone(), before: Vec::new() }
    }

    /// The nodes of now, sorted by name.
    pub fn nodes(&self) -> &[Arc<Node>] {
        &self.nodes
    }

    /// Number of this placement among its successors.
    pub fn epoch(&self) -> u64 {
        self.ring.now().epoch()
    }

    /// Whom to ask for an extent, by the chain key of its first page.
    pub fn route(&self, extent: &[u8; 32]) -> Route<'_> {
        let bucket = bucket_of(extent, self.ring.now().buckets());
        let owners = self.ring.owners(bucket);
        let now = owners.now.and_then(|i| self.nodes.get(usize::from(i)));
        let before = owners.before.and_then(|i| self.before.get(usize::from(i)));
        let held_back = now.is_some_and(|n| !Ramp::admits(n.share(), bucket));
        Route { bucket, now, before, held_back }
    }
}
