//! The calls with one answer, without their network: a message in, a message or a refusal out.

use super::state::{Connection, State};
use super::tiers::Fetch;
use crate::disk::DiskStats;
use crate::remote::RemoteStats;
use crate::rpc::ids;
use crate::rpc::limits::{MAX_CLIENT_BYTES, MAX_KEYS, MAX_OBJECTS, VERSIONS};
use crate::rpc::v1::{
    DeleteReply, DeleteRequest, ExistsReply, ExistsRequest, FastPath, HelloReply, HelloRequest, ObjectRun, StatsReply,
    StatsRequest, TierStats, TouchReply, TouchRequest, VerifyReply, VerifyRequest,
};
use crate::shm::{Lease, LeaseOwner, ObjectId};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tonic::Status;

/// Refuses a version that this node does not speak.
///
/// # Errors
/// `FAILED_PRECONDITION` with a sentence.
pub fn check_version(version: u32) -> Result<(), Status> {
    if VERSIONS.contains(&version) {
        return Ok(());
    }
    let (least, most) = VERSIONS.into_inner();
    Err(Status::failed_precondition(format!("protocol version is {version}, this node speaks {least} to {most}")))
}

/// The objects of a request.
///
/// # Errors
/// `INVALID_ARGUMENT` with a sentence.
pub fn objects(runs: &[ObjectRun]) -> Result<Vec<ObjectId>, Status> {
    let ids = ids::objects(runs, MAX_OBJECTS).map_err(Status::invalid_argument)?;
    Ok(ids.into_iter().map(|(key, part)| ObjectId { key, part }).collect())
}

/// Agrees on a version.
///
/// # Errors
/// No version in common, or a name that is too long.
pub fn hello(state: &State, connection: &Connection, request: &HelloRequest) -> Result<HelloReply, Status> {
    let (least, most) = VERSIONS.into_inner();
    if request.client.len() > MAX_CLIENT_BYTES {
        let len = request.client.len();
        return Err(Status::invalid_argument(format!("client has {len} bytes, allowed is {MAX_CLIENT_BYTES}")));
    }
    if request.min_version > request.max_version || request.min_version > most || request.max_version < least {
        return Err(Status::failed_precondition(format!(
            "the client speaks protocol versions {} to {}, this node {least} to {most}",
            request.min_version, request.max_version
        )));
    }
    tracing::debug!(connection = connection.id, client = ?request.client, "hello");
    let mut limits = state.config.limits();
    limits.value_bytes = limits.value_bytes.min(state.store.max_value_bytes());
    let socket = state.config.fast_path.as_ref().map(|p| p.to_string_lossy().into_owned());
    Ok(HelloReply {
        version: request.max_version.min(most),
        min_version: least,
        max_version: most,
        node: state.config.name.clone(),
        program: env!("CARGO_PKG_VERSION").into(),
        start_id: state.start_id,
        machine: state.machine.0.to_vec().into(),
        limits: Some(limits),
        fast_path: socket.map(|socket| FastPath { socket, version: crate::rpc::fast::VERSION }),
        ..HelloReply::default()
    })
}

/// Masks of keys, with a lease of the connection where one is wanted.
///
/// # Errors
/// `INVALID_ARGUMENT` with a sentence.
pub fn exists(state: &State, connection: &Connection, request: &ExistsRequest) -> Result<ExistsReply, Status> {
    let keys = ids::keys(&request.runs, MAX_KEYS).map_err(Status::invalid_argument)?;
    let millis = request.lease_ms;
    let lease = (millis > 0).then_some(Lease { owner: LeaseOwner(connection.id), millis });
    let found = state.tiers.exists(request.tenant, &keys, lease, state.clock.now());
    Ok(ExistsReply { masks: found.masks, leased_keys: found.leased_keys as u32, ..ExistsReply::default() })
}

/// # Errors
/// `INVALID_ARGUMENT` with a sentence.
pub fn touch(state: &State, request: &TouchRequest) -> Result<TouchReply, Status> {
    let present = state.tiers.touch(request.tenant, &objects(&request.runs)?);
    Ok(TouchReply { present: present as u32, ..TouchReply::default() })
}

/// # Errors
/// `INVALID_ARGUMENT` with a sentence; `FAILED_PRECONDITION` where the disk tier could not note it. That is no fault of the
/// whole node, so clients must not leave it alone for it.
pub async fn delete(state: &State, request: &DeleteRequest) -> Result<DeleteReply, Status> {
    let ids = objects(&request.runs)?;
    let deleted = state.tiers.delete(request.tenant, &ids).await.map_err(Status::failed_precondition)?;
    Ok(DeleteReply { deleted: deleted as u32, ..DeleteReply::default() })
}

/// Compares one value after the other, on a thread where that holds up nobody; one request at a time.
///
/// # Errors
/// `INVALID_ARGUMENT` with a sentence.
pub async fn verify(state: Arc<State>, request: VerifyRequest) -> Result<VerifyReply, Status> {
    let ids = objects(&request.runs)?;
    let _turn = state.verifying.acquire().await;
    let mut reply = VerifyReply::default();
    for id in ids {
        let (store, tenant) = (state.store.clone(), request.tenant);
        let one = move || {
            if store.drop_if_damaged(tenant, &id) {
                return (0, 1);
            }
            (
                u32::from(
                    store.exists(tenant, &[id.key], None, 0).masks.first().is_some_and(|m| m >> id.part & 1 == 1),
                ),
                0,
            )
        };
        let (sound, dropped) = tokio::task::spawn_blocking(one).await.map_err(|e| Status::internal(e.to_string()))?;
        match (sound, dropped) {
            // Not in memory.
            (0, 0) => match state.tiers.clone().fetch(request.tenant, id).await {
                Fetch::InMemory(_) | Fetch::OnDisk(_) => reply.sound += 1,
                Fetch::Damaged => reply.dropped += 1,
                Fetch::Absent | Fetch::Crowded => {}
            },
            (sound, dropped) => {
                reply.sound += sound;
                reply.dropped += dropped;
            }
        }
    }
    Ok(reply)
}

/// Counts and sizes.
pub fn stats(state: &State, _: &StatsRequest) -> StatsReply {
    let s = state.store.stats();
    let t = s.totals;
    let memory = TierStats {
        name: "memory".into(),
        capacity_bytes: s.slab_bytes,
        used_bytes: s.slot_bytes,
        keys: s.keys,
        objects: s.objects,
        held_slots: s.held_slots,
        leases: s.leases,
        lease_bytes: s.lease_bytes,
        writers: s.writers,
        index_bytes: s.index_bytes,
        hits: t.hits,
        misses: t.misses + state.tiers.counts.misses.load(Ordering::Relaxed),
        committed: t.committed,
        present: t.present,
        busy: t.busy,
        no_room: t.no_room,
        aborted: t.aborted,
        evicted_objects: t.evicted_objects,
        evicted_bytes: t.evicted_bytes,
        deleted: t.deleted,
        damaged: t.damaged(),
        ..TierStats::default()
    };
    let mut tiers = vec![memory];
    tiers.extend(state.tiers.disk_stats().map(|(d, trouble)| disk_stats(state, &d, &trouble)));
    tiers.extend(state.tiers.remote_stats().map(remote_stats));
    let load = |n: &std::sync::atomic::AtomicU64| n.load(Ordering::Relaxed) as u32;
    StatsReply {
        node: state.config.name.clone(),
        program: env!("CARGO_PKG_VERSION").into(),
        start_id: state.start_id,
        uptime_ms: state.clock.now(),
        draining: state.draining.load(Ordering::Relaxed),
        connections: load(&state.metrics.connections),
        streams: load(&state.metrics.running),
        tiers,
        ..StatsReply::default()
    }
}

/// The remote tier in the words of the contract. What the store holds is not known: capacity, use and objects
/// are those of the queue, keys those that are known to be in the store.
fn remote_stats(r: RemoteStats) -> TierStats {
    let t = &r.totals;
    TierStats {
        name: "remote".into(),
        capacity_bytes: r.queue_capacity_bytes,
        used_bytes: r.queue_bytes,
        objects: r.queued,
        keys: r.keys,
        hits: t.hits,
        misses: t.misses + t.known_misses + t.rested + t.read_errors,
        committed: t.stored,
        present: t.present,
        no_room: t.dropped,
        aborted: t.failed,
        deleted: t.deleted,
        damaged: t.damaged,
        written_bytes: t.stored_bytes,
        read_bytes: t.read_bytes,
        demoted: t.stored,
        trouble: r.trouble,
        ..TierStats::default()
    }
}

/// The disk tier in the words of the contract.
fn disk_stats(state: &State, d: &DiskStats, trouble: &[String]) -> TierStats {
    let t = &d.totals;
    let c = &state.tiers.counts;
    let load = |n: &AtomicU64| n.load(Ordering::Relaxed);
    TierStats {
        name: "disk".into(),
        capacity_bytes: d.capacity_bytes,
        used_bytes: d.block_bytes,
        objects: d.objects,
        index_bytes: d.index_bytes,
        hits: t.hits,
        misses: t.misses,
        committed: t.stored,
        present: t.present,
        busy: t.busy,
        no_room: t.no_room + t.over_budget,
        aborted: t.failed,
        evicted_objects: t.evicted,
        deleted: t.deleted,
        damaged: t.damaged,
        written_bytes: t.written_bytes,
        read_bytes: t.read_bytes,
        demoted: load(&c.demoted),
        promoted: load(&c.promoted),
        trouble: trouble.join("; "),
        ..TierStats::default()
    }
}
