//! One epoch of placement: the owner of every bucket.

use super::cost::{draw, node_seed};
use crate::error::{Error, Result, shown};

/// Buckets of a table unless told otherwise. With 1,000 equal nodes a node owns 1,049 on average, and the fullest about
/// 1.1 times that (docs/placement.md).
pub const DEFAULT_BUCKETS: u32 = 1 << 20;
/// Most buckets of a table: 20 MiB for owners and costs.
pub const MAX_BUCKETS: u32 = 1 << 21;
/// Most nodes of a table.
pub const MAX_NODES: usize = 4096;
/// Largest weight of a node.
pub const MAX_WEIGHT: u32 = 1 << 20;
/// Longest name of a node, in bytes.
const MAX_NAME: usize = 255;

/// A node as placement sees it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Node {
    /// Its name, which outlives its address: what its buckets depend on.
    pub name: String,
    /// Its share is in proportion: MiB or GiB of memory, the same unit for all.
    pub weight: u32,
}

/// The owner of every bucket, for one set of nodes.
#[derive(Debug, Clone)]
pub struct Table {
    epoch: u64,
    nodes: Vec<Node>,
    owner: Box<[u16]>,
    cost: Box<[u64]>,
}

impl Table {
    /// The table of `nodes` in any order. An empty list gives a table without owners.
    ///
    /// Refuses a size that is no power of two, more than [`MAX_NODES`] nodes, empty, long or repeated names, and weights
    /// outside 1 to [`MAX_WEIGHT`].
    pub fn new(buckets: u32, nodes: &[Node], epoch: u64) -> Result<Table> {
        if !buckets.is_power_of_two() || buckets > MAX_BUCKETS {
            return Err(Error::invalid("buckets", buckets, format!("a power of two up to {MAX_BUCKETS}")));
        }
        let nodes = checked(nodes)?;
        let size = buckets as usize;
        let mut table =
            Table { epoch, nodes, owner: vec![0; size].into_boxed_slice(), cost: vec![u64::MAX; size].into() };
        for index in 0..table.nodes.len() {
            table.enter(index as u16);
        }
        Ok(table)
    }

    /// The table of the next epoch. Costs what changed: a node that joins draws once for each bucket, the buckets of a
    /// node that left are drawn again by all.
    pub fn next(&self, nodes: &[Node]) -> Result<Table> {
        let nodes = checked(nodes)?;
        let now: Vec<Option<u16>> = self.nodes.iter().map(|n| nodes.binary_search(n).ok().map(|i| i as u16)).collect();
        let is_new = |n: &Node| self.nodes.binary_search(n).is_err();
        let joined: Vec<u16> = (0..nodes.len() as u16).filter(|&i| is_new(&nodes[usize::from(i)])).collect();
        let mut next = Table { epoch: self.epoch + 1, nodes, owner: self.owner.clone(), cost: self.cost.clone() };
        let seeds: Vec<u64> = next.nodes.iter().map(|n| node_seed(&n.name)).collect();
        for bucket in 0..next.owner.len() {
            match now.get(usize::from(next.owner[bucket])).copied().flatten() {
                Some(index) if next.cost[bucket] != u64::MAX => next.owner[bucket] = index,
                _ => {
                    next.cost[bucket] = u64::MAX;
                    for (index, node) in next.nodes.iter().enumerate() {
                        let cost = draw(seeds[index], node.weight, bucket as u32);
                        if cost < next.cost[bucket] {
                            (next.owner[bucket], next.cost[bucket]) = (index as u16, cost);
                        }
                    }
                }
            }
        }
        for index in joined {
            next.enter(index);
        }
        Ok(next)
    }

    /// Draws for one node; it takes what it wins. Of equal costs the name that sorts first wins.
    fn enter(&mut self, index: u16) {
        let Node { name, weight } = &self.nodes[usize::from(index)];
        let (seed, weight) = (node_seed(name), *weight);
        for bucket in 0..self.owner.len() {
            let cost = draw(seed, weight, bucket as u32);
            let best = self.cost[bucket];
            if cost < best || cost == best && index < self.owner[bucket] {
                (self.owner[bucket], self.cost[bucket]) = (index, cost);
            }
        }
    }

    /// The index of a bucket's owner in [`Table::nodes`]; `None` in a table without nodes. `bucket` is below
    /// [`Table::buckets`].
    pub fn owner(&self, bucket: u32) -> Option<u16> {
        (!self.nodes.is_empty()).then(|| self.owner[bucket as usize])
    }

    /// The nodes, sorted by name.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Buckets, a power of two.
    pub fn buckets(&self) -> u32 {
        self.owner.len() as u32
    }

    /// Number of this table among its successors.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }
}

/// The nodes sorted by name, or what is wrong with them.
fn checked(nodes: &[Node]) -> Result<Vec<Node>> {
    if nodes.len() > MAX_NODES {
        return Err(Error::invalid("nodes", nodes.len(), format!("at most {MAX_NODES}")));
    }
    let mut sorted = nodes.to_vec();
    sorted.sort();
    for node in &sorted {
        if node.name.is_empty() || node.name.len() > MAX_NAME {
            return Err(Error::invalid("node name", shown(&node.name), format!("1 to {MAX_NAME} bytes")));
        }
        if !(1..=MAX_WEIGHT).contains(&node.weight) {
            return Err(Error::invalid("node weight", node.weight, format!("1 to {MAX_WEIGHT}")));
        }
    }
    if let Some(pair) = sorted.windows(2).find(|p| p[0].name == p[1].name) {
        return Err(Error::invalid("node name", shown(&pair[0].name), "each name once"));
    }
    Ok(sorted)
}
