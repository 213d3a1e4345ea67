//! Put, touch, delete and verify over many nodes, and the counts of each.

use super::call::Call;
use super::core::{Core, Groups, slices};
use super::grpc_transport::object_runs;
use super::metrics::Metrics;
use super::node::Node;
use super::transport::{Bytes, Outgoing, PutBatch, PutHead};
use super::types::{Counted, Miss, ObjectId, PutItem, Stored, check_part};
use crate::error::{Error, Result};
use crate::rpc::limits::MAX_VALUE_BYTES;
use crate::rpc::v1;
use futures_util::stream::{FuturesUnordered, StreamExt};
use std::sync::Arc;
use tokio::time::Instant;

/// What is counted of objects by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Deed {
    Touch,
    Delete,
    Verify,
}

impl Core {
    /// Stores values and waits for the nodes' answers. Bytes of what is present are not sent. Bytes are read from the caller's
    /// memory while they are sent, and their CRC32C is computed there.
    ///
    /// # Errors
    /// A part or length out of range; nothing was sent then.
    pub async fn put(&self, items: &[PutItem<'_>], deadline: Instant) -> Result<Vec<Stored>> {
        check_items(items)?;
        let cluster = self.cluster();
        let mut stored = vec![Stored::Dropped(Miss::NoNode); items.len()];
        let mut groups = Groups::new();
        for (i, item) in items.iter().enumerate() {
            let route = cluster.route(&item.id.extent);
            match route.now {
                Some(_) if route.held_back => stored[i] = Stored::Dropped(Miss::Ramp),
                Some(node) => groups.add(node, i, route.bucket),
                None => {}
            }
        }
        let mut nodes: FuturesUnordered<_> = groups
            .into_nodes()
            .into_iter()
            .map(|(node, share)| async move {
                let positions: Vec<usize> = share.iter().map(|(i, _)| *i).collect();
                let outgoing = share.into_iter().map(|(i, bucket)| Outgoing {
                    head: PutHead::new(&items[i], bucket),
                    bytes: Bytes::There(&items[i]),
                });
                (positions, self.put_to(node, outgoing.collect(), deadline).await)
            })
            .collect();
        while let Some((positions, answers)) = nodes.next().await {
            for (position, answer) in positions.into_iter().zip(answers) {
                stored[position] = answer;
            }
        }
        drop(nodes);
        Metrics::add(&self.metrics.put_objects, items.len() as u64);
        stored.iter().zip(items).for_each(|(s, item)| self.metrics.stored(s, item.length()));
        Ok(stored)
    }

    /// Stores values without waiting: they are copied into a bounded queue, sent in the background, and dropped and counted
    /// where there is no room, or where their node is left alone. The answer is how many were taken. Must be called within
    /// the client's runtime.
    ///
    /// # Errors
    /// A part or length out of range; nothing was taken then.
    pub fn put_later(&self, items: &[PutItem<'_>]) -> Result<usize> {
        check_items(items)?;
        Metrics::add(&self.metrics.put_objects, items.len() as u64);
        let cluster = self.cluster();
        let mut taken = 0;
        for item in items {
            let route = cluster.route(&item.id.extent);
            let reason = match route.now {
                Some(_) if route.held_back => Miss::Ramp,
                Some(node) if node.is_left_alone() => Miss::Refused,
                Some(node) => {
                    taken += usize::from(self.queue.push(node, item, route.bucket));
                    continue;
                }
                None => Miss::NoNode,
            };
            self.metrics.stored(&Stored::Dropped(reason), 0);
        }
        Ok(taken)
    }

    /// Waits until what [`Core::put_later`] took was sent or dropped. False: not by the deadline.
    pub async fn flush(&self, deadline: Instant) -> bool {
        self.queue.flush(deadline).await
    }

    async fn put_to(&self, node: &Arc<Node>, outgoing: Vec<Outgoing<'_, '_>>, deadline: Instant) -> Vec<Stored> {
        let mut stored = Vec::with_capacity(outgoing.len());
        let cut = slices(outgoing, node.most_objects(), self.config.slice_bytes, |o| o.head.length);
        for slice in cut {
            stored.extend(put_slice(node, self.config.tenant, slice, deadline).await);
        }
        stored
    }

    /// Marks objects as used: give the tail of a prefix first and its head last, so that the head is the last to go.
    pub async fn touch(&self, ids: &[ObjectId], deadline: Instant) -> Result<Counted> {
        self.count(Deed::Touch, ids, deadline).await
    }

    /// Forgets objects, at their owners and the owners before. Nodes that were left alone are asked all the same.
    pub async fn delete(&self, ids: &[ObjectId], deadline: Instant) -> Result<Counted> {
        self.count(Deed::Delete, ids, deadline).await
    }

    /// Has the nodes compare values with their CRCs and drop those that differ.
    pub async fn verify(&self, ids: &[ObjectId], deadline: Instant) -> Result<Counted> {
        self.count(Deed::Verify, ids, deadline).await
    }

    async fn count(&self, deed: Deed, ids: &[ObjectId], deadline: Instant) -> Result<Counted> {
        ids.iter().try_for_each(|id| check_part(id.part))?;
        let cluster = self.cluster();
        let mut groups = Groups::new();
        for (i, id) in ids.iter().enumerate() {
            let route = cluster.route(&id.extent);
            for node in [route.now, route.before].into_iter().flatten() {
                groups.add(node, i, route.bucket);
            }
        }
        let mut counted = Counted::default();
        let mut nodes: FuturesUnordered<_> = groups
            .into_nodes()
            .into_iter()
            .map(|(node, share)| async move {
                let mut sum = (0, 0);
                for part in slices(share, node.most_objects(), u64::MAX, |_| 0) {
                    let runs = object_runs(part.iter().map(|&(i, bucket)| (bucket, ids[i].key, ids[i].part)));
                    let call = Call { tenant: self.config.tenant, deadline };
                    match count_call(node, deed, call, runs).await {
                        Ok((count, dropped)) => sum = (sum.0 + count, sum.1 + dropped),
                        Err(error) => return (sum, Some((node, error))),
                    }
                }
                (sum, None)
            })
            .collect();
        let mut answered = false;
        while let Some(((count, dropped), failed)) = nodes.next().await {
            counted.count += count;
            counted.dropped += dropped;
            let Some((node, error)) = failed else {
                answered = true;
                continue;
            };
            match error.refusal(&node.member.name) {
                Some(refused) => counted.refused.push(refused),
                None => counted.unanswered.push(node.member.name.clone()),
            }
        }
        counted.unanswered.sort();
        counted.refused.sort_by(|a, b| a.node.cmp(&b.node));
        counted.all_refused = !(answered || counted.refused.is_empty()) && counted.unanswered.is_empty();
        Ok(counted)
    }

    /// Counts and sizes of every node, by name; `None` where it did not answer.
    pub async fn stats(&self, deadline: Instant) -> Vec<(String, Option<v1::StatsReply>)> {
        let cluster = self.cluster();
        let call = Call { tenant: self.config.tenant, deadline };
        let ask = |node: &Arc<Node>| {
            let node = node.clone();
            async move {
                let answer = node.call(0, deadline, true, node.transport.stats(call)).await;
                (node.member.name.clone(), answer.ok())
            }
        };
        let mut all: Vec<_> = cluster.nodes().iter().map(ask).collect::<FuturesUnordered<_>>().collect().await;
        all.sort_by(|a, b| a.0.cmp(&b.0));
        all
    }
}

async fn count_call(
    node: &Arc<Node>,
    deed: Deed,
    call: Call,
    runs: Vec<v1::ObjectRun>,
) -> std::result::Result<(u64, u64), super::CallError> {
    let (transport, deadline) = (&node.transport, call.deadline);
    match deed {
        Deed::Touch => {
            node.call(0, deadline, false, transport.touch(call, runs)).await.map(|r| (u64::from(r.present), 0))
        }
        Deed::Delete => {
            node.call(0, deadline, true, transport.delete(call, runs)).await.map(|r| (u64::from(r.deleted), 0))
        }
        Deed::Verify => {
            let reply = node.call(0, deadline, true, transport.verify(call, runs)).await?;
            Ok((u64::from(reply.sound), u64::from(reply.dropped)))
        }
    }
}

/// One put call. What had no answer when it ended gets the reason.
pub(super) async fn put_slice(
    node: &Arc<Node>,
    tenant: u64,
    items: Vec<Outgoing<'_, '_>>,
    deadline: Instant,
) -> Vec<Stored> {
    let bytes = items.iter().map(|o| o.head.length).sum();
    let stored = vec![None; items.len()];
    let mut batch = PutBatch { items, stored };
    let result = node.call(bytes, deadline, false, node.transport.put(Call { tenant, deadline }, &mut batch)).await;
    let rest = result.err().map_or(Stored::Dropped(Miss::Unreachable), |error| error.stored(&node.member.name));
    batch.stored.into_iter().map(|stored| stored.unwrap_or_else(|| rest.clone())).collect()
}

/// Refuses parts and lengths out of range.
pub(super) fn check_items(items: &[PutItem<'_>]) -> Result<()> {
    for item in items {
        check_part(item.id.part)?;
        let length = item.length();
        if !(1..=MAX_VALUE_BYTES).contains(&length) {
            return Err(Error::invalid("value length", length, format!("1 to {MAX_VALUE_BYTES} bytes")));
        }
    }
    Ok(())
}
