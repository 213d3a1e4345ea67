//! `gcachectl bench`: is a cluster as fast as it should be? Over gRPC, from one process, value by value compared.

use super::{Cluster, opened};
use crate::node::units::Size;
use crate::ring::bucket_of;
use crate::rpc::check;
use crate::rpc::ids::pack;
use crate::rpc::limits::{CHUNK_BYTES, MAX_OBJECTS, MAX_VALUE_BYTES, COMMON_VERSION};
use crate::rpc::v1::{DeleteRequest, GetRequest, ObjectRun, Offer, Piece, PutOutcome, PutRequest};
use bytes::Bytes;
use serde_json::json;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

/// Most bytes that are sent: what a slip of the keyboard may cost.
const MAX_BYTES: u64 = 1 << 40;

/// One value.
struct Item {
    key: [u8; 32],
    bucket: u32,
}

struct Bench<'a> {
    cluster: &'a Cluster,
    value: Bytes,
    crcs: Vec<u32>,
    stored: u64,
}

/// Puts, gets and deletes `count` values; not well where a value differs or is missing.
///
/// # Errors
/// A sentence: sizes outside the limits, or a node that refuses.
pub async fn bench(
    cluster: &Cluster,
    size: &str,
    count: u32,
    batch: u32,
    json: bool,
) -> Result<(String, bool), String> {
    let size = Size::parse(size)?.0;
    if size == 0 || size > MAX_VALUE_BYTES || size.saturating_mul(count.into()) > MAX_BYTES {
        return Err(format!(
            "{count} values of {size} bytes, allowed is 1 to {MAX_VALUE_BYTES} bytes and {MAX_BYTES} in all"
        ));
    }
    if count == 0 || batch == 0 || batch as usize > MAX_OBJECTS {
        return Err(format!("count {count} and batch {batch}, allowed is at least 1, and {MAX_OBJECTS} for a batch"));
    }
    let table = cluster.table()?;
    // Keys of this run alone: two benches do not meet, and none finds values of an earlier one.
    let salt = format!("{}-{:?}", std::process::id(), std::time::SystemTime::now());
    let mut of_node: BTreeMap<usize, Vec<Item>> = BTreeMap::new();
    for i in 0..count {
        let key: [u8; 32] = Sha256::new().chain_update(&salt).chain_update(i.to_le_bytes()).finalize().into();
        let bucket = bucket_of(&key, table.buckets());
        of_node.entry(table.owner(bucket).map_or(0, usize::from)).or_default().push(Item { key, bucket });
    }
    let value: Bytes = noise(size as usize).into();
    let crcs = value.chunks(CHUNK_BYTES).map(crc32c::crc32c).collect();
    let mut bench = Bench { cluster, value, crcs, stored: 0 };
    let (mut put, mut get, mut hits, mut same) = (Duration::ZERO, Duration::ZERO, 0, 0);
    let asked = |e: Status| format!("{:?}: {}", e.code(), e.message());
    for (node, items) in &of_node {
        for items in items.chunks(batch as usize) {
            let start = Instant::now();
            bench.put(*node, items).await.map_err(asked)?;
            put += start.elapsed();
        }
    }
    for (node, items) in &of_node {
        for items in items.chunks(batch as usize) {
            let start = Instant::now();
            let (found, equal) = bench.get(*node, items).await.map_err(asked)?;
            get += start.elapsed();
            (hits, same) = (hits + found, same + equal);
        }
    }
    for (node, items) in &of_node {
        for items in items.chunks(batch as usize) {
            bench.delete(*node, items).await.map_err(asked)?;
        }
    }
    let rate = |n: u64, time: Duration| n as f64 * size as f64 / 1e6 / time.as_secs_f64().max(1e-9);
    let (put_rate, get_rate) = (rate(bench.stored, put), rate(hits, get));
    let fine = bench.stored == u64::from(count) && same == bench.stored && hits == same;
    let text = if json {
        json!({
            "values": count, "value_bytes": size, "batch": batch, "nodes": of_node.len(), "stored": bench.stored,
            "hits": hits, "equal": same, "put_mb_per_second": put_rate, "get_mb_per_second": get_rate,
        })
        .to_string()
    } else {
        format!(
            "{count} values of {} on {} nodes in batches of {batch}: put {put_rate:.0} MB/s, get {get_rate:.0} MB/s; \
             {} stored, {hits} found, {same} equal",
            Size(size),
            of_node.len(),
            bench.stored
        )
    };
    Ok((text, fine))
}

impl Bench<'_> {
    async fn put(&mut self, node: usize, items: &[Item]) -> Result<(), Status> {
        let (send, receive) = mpsc::channel(4);
        let offers = items.iter().map(|item| Offer {
            id: pack(&item.key, 0).to_vec().into(),
            bucket: item.bucket,
            length: self.value.len() as u64,
            extent: item.key.to_vec().into(),
            ..Offer::default()
        });
        let mut first = PutRequest {
            version: COMMON_VERSION,
            tenant: self.cluster.tenant,
            offers: offers.collect(),
            ..Default::default()
        };
        let check = check::seal(&mut first, check::FIRST);
        let gone = |_| Status::cancelled("the stream ended");
        send.send(first).await.map_err(gone)?;
        let request = self.cluster.request(Some(&self.cluster.peers[node]), ReceiverStream::new(receive));
        let mut answers = self.cluster.peers[node].client.clone().put(request).await?.into_inner();
        let mut open = items.len();
        // A task of its own sends: answers must be read meanwhile.
        let (want, mut wanted) = mpsc::unbounded_channel::<u32>();
        let (value, crcs) = (self.value.clone(), self.crcs.clone());
        let sending = tokio::spawn(async move {
            while let Some(index) = wanted.recv().await {
                for (chunk, crc) in crcs.iter().enumerate() {
                    let start = chunk * CHUNK_BYTES;
                    let data = value.slice(start..value.len().min(start + CHUNK_BYTES));
                    let piece = Piece { index, offset: start as u64, crc32c: Some(*crc), data, ..Piece::default() };
                    let mut request = PutRequest { piece: Some(piece), ..PutRequest::default() };
                    check::seal(&mut request, check);
                    if send.send(request).await.is_err() {
                        return;
                    }
                }
            }
        });
        let mut want = Some(want);
        while let Some(reply) = answers.message().await? {
            for answer in opened(reply, check)?.answers {
                if answer.outcome == PutOutcome::Wanted as i32 {
                    let _ = want.as_ref().map(|w| w.send(answer.index));
                    continue;
                }
                open -= 1;
                self.stored += u64::from(answer.outcome == PutOutcome::Stored as i32);
            }
            if open == 0 {
                want = None;
            }
        }
        sending.await.map_err(|e| Status::internal(e.to_string()))
    }

    /// How many were found, and how many of them were what had been put.
    async fn get(&self, node: usize, items: &[Item]) -> Result<(u64, u64), Status> {
        let request = GetRequest {
            version: COMMON_VERSION,
            tenant: self.cluster.tenant,
            runs: runs(items),
            ..Default::default()
        };
        let (request, check) = self.cluster.sealed(Some(&self.cluster.peers[node]), request);
        let mut replies = self.cluster.peers[node].client.clone().get(request).await?.into_inner();
        let (mut found, mut equal, mut same) = (0, 0, true);
        while let Some(reply) = replies.message().await? {
            let Some(piece) = opened(reply, check)?.piece else { continue };
            let start = piece.offset as usize;
            let end = start + piece.data.len();
            same = (start == 0 || same) && self.value.get(start..end) == Some(&piece.data[..]);
            if end == self.value.len() {
                found += 1;
                equal += u64::from(same);
            }
        }
        Ok((found, equal))
    }

    async fn delete(&self, node: usize, items: &[Item]) -> Result<(), Status> {
        let request = DeleteRequest {
            version: COMMON_VERSION,
            tenant: self.cluster.tenant,
            runs: runs(items),
            ..Default::default()
        };
        let (request, check) = self.cluster.sealed(Some(&self.cluster.peers[node]), request);
        opened(self.cluster.peers[node].client.clone().delete(request).await?.into_inner(), check).map(drop)
    }
}

fn runs(items: &[Item]) -> Vec<ObjectRun> {
    items.iter().map(|item| ObjectRun { bucket: item.bucket, ids: pack(&item.key, 0).to_vec().into() }).collect()
}

/// Bytes without a pattern.
fn noise(len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut out = Vec::with_capacity(len + 8);
    while out.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        out.extend_from_slice(&state.to_le_bytes());
    }
    out.truncate(len);
    out
}
