//! Exists and get over many nodes.

use super::call::Call;
use super::core::{Core, Groups, first_asked, slices};
use super::grpc_transport::{object_runs, slice};
use super::metrics::Metrics;
use super::node::Node;
use super::transport::GetBatch;
use super::types::{GetItem, Got, KeyRun, Miss, Presence, check_part};
use crate::error::Result;
use crate::rpc::limits::KEY_BYTES;
use crate::rpc::v1;
use bytes::BytesMut;
use futures_util::stream::{self, FuturesUnordered, StreamExt};
use std::future::Future;
use std::sync::Arc;
use tokio::time::Instant;

/// A run, its bucket, and which of its keys: from one up to another.
type Part = (usize, u32, usize, usize);

/// What `exists` has found so far.
struct Found {
    presence: Presence,
    /// Of each run, the index of its first key over all runs.
    starts: Vec<usize>,
    /// Of each key, whether it was refused; `None` before anything was heard.
    refused: Vec<Option<bool>>,
}

impl Core {
    /// Which parts of each key are there. `want`: a key that lacks any of these parts at its owner is also asked of the owner
    /// before. `lease_ms` keeps what is reported, within the nodes' limits.
    pub async fn exists(&self, runs: &[KeyRun<'_>], want: u64, lease_ms: u32, deadline: Instant) -> Presence {
        let keys = runs.iter().map(|r| r.keys.len()).sum();
        let presence = Presence {
            masks: vec![0; keys],
            leased: vec![0; runs.len()],
            unanswered: vec![None; runs.len()],
            ..Presence::default()
        };
        let mut found = Found { presence, starts: Vec::with_capacity(runs.len()), refused: vec![None; keys] };
        let cluster = self.cluster();
        let mut start = 0;
        let (mut first, mut second) = (Groups::new(), Groups::new());
        for (i, run) in runs.iter().enumerate() {
            found.starts.push(start);
            start += run.keys.len();
            let route = cluster.route(&run.extent);
            match first_asked(&route) {
                Ok(node) if !run.keys.is_empty() => first.add(node, i, route.bucket),
                Ok(_) => {}
                Err(miss) => found.presence.unanswered[i] = Some(miss),
            }
        }
        self.exists_round(runs, first, lease_ms, deadline, &mut found).await;
        for (i, run) in runs.iter().enumerate() {
            let masks = &found.presence.masks[found.starts[i]..found.starts[i] + run.keys.len()];
            let route = cluster.route(&run.extent);
            // A run that was held back has asked the owner before already.
            if let (Some(before), false) = (route.before, route.held_back || route.now.is_none())
                && masks.iter().any(|m| m & want != want)
            {
                second.add(before, i, route.bucket);
            }
        }
        self.exists_round(runs, second, lease_ms, deadline, &mut found).await;
        let Found { mut presence, refused, .. } = found;
        presence.all_refused = keys > 0 && refused.into_iter().all(|key| key == Some(true));
        Metrics::add(&self.metrics.exists_keys, keys as u64);
        Metrics::add(&self.metrics.exists_found, presence.masks.iter().filter(|m| **m != 0).count() as u64);
        presence
    }

    async fn exists_round(
        &self,
        runs: &[KeyRun<'_>],
        groups: Groups<'_>,
        lease_ms: u32,
        deadline: Instant,
        found: &mut Found,
    ) {
        let Found { presence, starts, refused } = found;
        let mut answers = FuturesUnordered::new();
        for (node, share) in groups.into_nodes() {
            // Parts of runs, so that one call never has more keys than the node takes.
            let most = node.most_keys();
            let parts = share.into_iter().flat_map(|(run, bucket)| {
                let keys = runs[run].keys.len();
                (0..keys).step_by(most).map(move |from| (run, bucket, from, (from + most).min(keys)))
            });
            for part in slices(parts.collect(), usize::MAX, most as u64, |p| (p.3 - p.2) as u64) {
                answers.push(self.exists_call(node, runs, part, lease_ms, deadline));
            }
        }
        while let Some((node, part, answer)) = answers.next().await {
            let refusal = answer.as_ref().err().and_then(|error| error.refusal(&node.member.name));
            let is_refusal = refusal.is_some();
            presence.refused.extend(refusal.filter(|r| presence.refused.iter().all(|known| known.node != r.node)));
            let (masks, mut leased) = match &answer {
                Ok(reply) => (&reply.masks[..], reply.leased_keys as usize),
                Err(_) => (&[][..], 0),
            };
            let mut masks = masks.iter();
            for (run, _, from, to) in part {
                if let Err(error) = &answer {
                    presence.unanswered[run] = Some(error.miss());
                }
                let keys = starts[run] + from..starts[run] + to;
                for key in &mut refused[keys.clone()] {
                    // An answer counts, whoever else refuses: the owner, or the one before.
                    *key = if answer.is_ok() { Some(false) } else { key.or(Some(is_refusal)) };
                }
                for (mask, found) in presence.masks[keys].iter_mut().zip(&mut masks) {
                    *mask |= found;
                }
                let here = leased.min(to - from);
                leased -= here;
                // Leased keys are the first ones; a part whose beginning is not leased adds nothing.
                if presence.leased[run] as usize == from {
                    presence.leased[run] += here as u32;
                }
            }
        }
    }

    async fn exists_call<'n>(
        &self,
        node: &'n Arc<Node>,
        runs: &[KeyRun<'_>],
        part: Vec<Part>,
        lease_ms: u32,
        deadline: Instant,
    ) -> (&'n Arc<Node>, Vec<Part>, std::result::Result<v1::ExistsReply, super::CallError>) {
        let count: usize = part.iter().map(|p| p.3 - p.2).sum();
        let mut packed = BytesMut::with_capacity(count * KEY_BYTES);
        for &(run, _, from, to) in &part {
            packed.extend_from_slice(runs[run].keys[from..to].as_flattened());
        }
        let packed = packed.freeze();
        let mut start = 0;
        let requests = part.iter().map(|&(_, bucket, from, to)| {
            let end = start + (to - from) * KEY_BYTES;
            v1::KeyRun { bucket, keys: slice(&packed, &mut start, end) }
        });
        let call = Call { tenant: self.config.tenant, deadline };
        let pending = node.transport.exists(call, lease_ms, requests.collect());
        let answer =
            node.call(count as u64, deadline, false, pending).await.and_then(|reply| match reply.masks.len() {
                n if n == count => Ok(reply),
                n => Err(super::CallError::Breach(format!("{n} masks for {count} keys"))),
            });
        (node, part, answer)
    }

    /// Reads values into their destinations; `got` of each item says what became of it.
    ///
    /// # Errors
    /// A part out of range; nothing was asked then.
    pub async fn get(&self, items: &mut [GetItem<'_>], deadline: Instant) -> Result<()> {
        items.iter().try_for_each(|item| check_part(item.id.part))?;
        let cluster = self.cluster();
        let mut first = Groups::new();
        for (i, item) in items.iter_mut().enumerate() {
            let route = cluster.route(&item.id.extent);
            match first_asked(&route) {
                Ok(node) => first.add(node, i, route.bucket),
                Err(miss) => item.got = Got::Miss(miss),
            }
        }
        self.get_round(items, first, deadline).await;
        let mut second = Groups::new();
        for (i, item) in items.iter().enumerate() {
            let missed = matches!(item.got, Got::Miss(miss) if !matches!(miss, Miss::Damaged | Miss::Ramp | Miss::NoNode | Miss::NoMemory));
            let route = cluster.route(&item.id.extent);
            if let (true, Some(before), false) = (missed, route.before, route.held_back || route.now.is_none()) {
                second.add(before, i, route.bucket);
            }
        }
        let again: Vec<usize> = second.positions().collect();
        if !again.is_empty() && Instant::now() < deadline {
            let kept: Vec<Got> = again.iter().map(|&i| items[i].got.clone()).collect();
            self.get_round(items, second, deadline).await;
            for (&i, kept) in again.iter().zip(kept) {
                match items[i].got {
                    Got::Hit { .. } => Metrics::add(&self.metrics.previous_hits, 1),
                    // The owner's answer says more.
                    Got::Miss(_) => items[i].got = kept,
                    _ => {}
                }
            }
        }
        Metrics::add(&self.metrics.get_objects, items.len() as u64);
        items.iter().for_each(|item| self.metrics.got(&item.got));
        Ok(())
    }

    async fn get_round(&self, items: &mut [GetItem<'_>], groups: Groups<'_>, deadline: Instant) {
        let mut free: Vec<Option<&mut GetItem<'_>>> = items.iter_mut().map(Some).collect();
        let nodes = groups.into_nodes().into_iter().map(|(node, share)| {
            let share: Vec<_> = share.into_iter().filter_map(|(i, b)| Some((free[i].take()?, b))).collect();
            self.get_from(node, share, deadline)
        });
        at_once(nodes.collect(), usize::MAX).await;
    }

    async fn get_from(&self, node: &Arc<Node>, share: Vec<(&mut GetItem<'_>, u32)>, deadline: Instant) {
        let cut = slices(share, node.most_objects(), self.config.slice_bytes, |(item, _)| item.into.expected());
        let cut = cut.into_iter().map(|slice| self.get_slice(node, slice, deadline));
        at_once(cut.collect(), self.config.connections).await;
    }

    async fn get_slice(&self, node: &Arc<Node>, slice: Vec<(&mut GetItem<'_>, u32)>, deadline: Instant) {
        let bytes = slice.iter().map(|(item, _)| item.into.expected()).sum();
        let got = vec![None; slice.len()];
        let (items, buckets) = slice.into_iter().unzip();
        let mut batch = GetBatch { items, buckets, got, damaged: Vec::new(), fast_hits: 0, fast_moved: 0 };
        let call = Call { tenant: self.config.tenant, deadline };
        let result = node.call(bytes, deadline, false, node.transport.get(call, &mut batch)).await;
        let rest = result.err().map_or(Got::Miss(Miss::Unreachable), |error| error.got(&node.member.name));
        Metrics::add(&self.metrics.fast_hits, batch.fast_hits);
        Metrics::add(&self.metrics.fast_moved, batch.fast_moved);
        if !batch.damaged.is_empty() {
            self.report(node, &batch);
        }
        for (item, got) in batch.items.into_iter().zip(batch.got) {
            item.got = got.unwrap_or_else(|| rest.clone());
        }
    }

    /// Has the node look at values that did not match their CRC here. The caller does not wait for it.
    fn report(&self, node: &Arc<Node>, batch: &GetBatch<'_, '_>) {
        Metrics::add(&self.metrics.damage_reports, batch.damaged.len() as u64);
        let name = |&i: &usize| (batch.buckets[i], batch.items[i].id.key, batch.items[i].id.part);
        let runs = object_runs(batch.damaged.iter().map(name));
        let call = Call { tenant: self.config.tenant, deadline: Instant::now() + self.config.connect_deadline };
        let node = node.clone();
        tokio::spawn(async move {
            let pending = node.transport.verify(call, runs);
            // Whether it worked shows at the next get.
            let _ = node.call(0, call.deadline, false, pending).await;
        });
    }
}

/// Runs up to `most` futures at a time. One alone is simply awaited: what runs many takes as long as a short answer.
async fn at_once(futures: Vec<impl Future<Output = ()>>, most: usize) {
    match <[_; 1]>::try_from(futures) {
        Ok([only]) => only.await,
        Err(many) => stream::iter(many).for_each_concurrent(most, |future| future).await,
    }
}
