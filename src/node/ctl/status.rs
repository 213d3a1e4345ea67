//! `gcachectl status`: every node at once, each with its own deadline.

use super::{Cluster, Peer, opened};
use crate::node::units::Size;
use crate::rpc::limits::VERSIONS;
use crate::rpc::v1::{HelloReply, HelloRequest, StatsReply, StatsRequest, TierStats};
use serde_json::{Value, json};

/// What one node said.
struct Answer {
    hello: HelloReply,
    stats: StatsReply,
}

/// One line for each node; not well where one does not answer, or is another than its name says.
///
/// # Errors
/// None of its own.
pub async fn status(cluster: &Cluster, json: bool) -> Result<(String, bool), String> {
    cluster.table()?;
    let mut asked = Vec::new();
    for peer in &cluster.peers {
        asked.push(ask(cluster, peer));
    }
    let answers = join(asked).await;
    let mut fine = true;
    let mut lines = Vec::new();
    for (peer, answer) in cluster.peers.iter().zip(&answers) {
        let name = &peer.node.name;
        let wrong = match answer {
            Err(sentence) => Some(sentence.clone()),
            Ok(a) if a.hello.node != *name => Some(format!("calls itself {:?}", a.hello.node)),
            Ok(_) => None,
        };
        fine &= wrong.is_none();
        lines.push(if json { object(peer, answer, wrong).to_string() } else { line(peer, answer, wrong) });
    }
    Ok((if json { format!("[{}]", lines.join(",\n ")) } else { lines.join("\n") }, fine))
}

async fn ask(cluster: &Cluster, peer: &Peer) -> Result<Answer, String> {
    let (min_version, max_version) = VERSIONS.into_inner();
    let mut client = peer.client.clone();
    let both = async {
        let hello = HelloRequest { min_version, max_version, client: "gcachectl".into(), ..Default::default() };
        let (request, check) = cluster.sealed(None, hello);
        let hello = opened(client.hello(request).await?.into_inner(), check)?;
        let stats = StatsRequest { version: hello.version, tenant: cluster.tenant, ..Default::default() };
        let (request, check) = cluster.sealed(None, stats);
        let stats = opened(client.stats(request).await?.into_inner(), check)?;
        Ok::<_, tonic::Status>(Answer { hello, stats })
    };
    match tokio::time::timeout(cluster.deadline, both).await {
        Ok(answered) => answered.map_err(|e| format!("{:?}: {}", e.code(), e.message())),
        Err(_) => Err(format!("no answer within {:?}", cluster.deadline)),
    }
}

/// All futures at once, in order.
async fn join<T>(futures: Vec<impl Future<Output = T>>) -> Vec<T> {
    let mut waiting: Vec<_> = futures.into_iter().map(|f| (Box::pin(f), None)).collect();
    std::future::poll_fn(|cx| {
        let mut all = true;
        for (future, done) in waiting.iter_mut().filter(|(_, done)| done.is_none()) {
            match future.as_mut().poll(cx) {
                std::task::Poll::Ready(value) => *done = Some(value),
                std::task::Poll::Pending => all = false,
            }
        }
        if all { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
    waiting.into_iter().filter_map(|(_, done)| done).collect()
}

fn line(peer: &Peer, answer: &Result<Answer, String>, wrong: Option<String>) -> String {
    let head = format!("{} at {} weight {}", peer.node.name, peer.address, peer.node.weight);
    if let Some(wrong) = wrong {
        return format!("{head}: {wrong}");
    }
    let Ok(Answer { hello, stats }) = answer else { return head };
    let tiers = stats.tiers.iter().map(|t| {
        if t.name == "remote" {
            return remote_line(t);
        }
        let share = 100.0 * t.used_bytes as f64 / t.capacity_bytes.max(1) as f64;
        let asked = t.hits + t.misses;
        format!(
            "{} {share:.0}% of {}, {} objects, {:.1}% hits of {asked}",
            t.name,
            Size(t.capacity_bytes),
            t.objects,
            100.0 * t.hits as f64 / asked.max(1) as f64
        ) + &if t.trouble.is_empty() { String::new() } else { format!(" ({})", t.trouble) }
    });
    format!(
        "{head}: {} {} up {} s, {} connections; {}",
        if stats.draining { "stopping" } else { "serving" },
        hello.program,
        stats.uptime_ms / 1000,
        stats.connections,
        tiers.collect::<Vec<_>>().join("; ")
    )
}

/// The remote tier: its queue and what is known, since what the store holds is not.
fn remote_line(t: &TierStats) -> String {
    let hits = 100.0 * t.hits as f64 / (t.hits + t.misses).max(1) as f64;
    let line = format!(
        "remote {} keys known, {} written, {} dropped, {} wait, {hits:.1}% hits of {}",
        t.keys,
        t.committed,
        t.no_room + t.aborted,
        t.objects,
        t.hits + t.misses
    );
    if t.trouble.is_empty() { line } else { format!("{line} ({})", t.trouble) }
}

fn object(peer: &Peer, answer: &Result<Answer, String>, wrong: Option<String>) -> Value {
    let mut out = json!({
        "node": peer.node.name,
        "address": peer.address.to_string(),
        "weight": peer.node.weight,
        "error": wrong,
    });
    if let (Ok(Answer { hello, stats }), Some(fields)) = (answer, out.as_object_mut()) {
        let tiers: Vec<Value> = stats.tiers.iter().map(|t| {
            json!({
                "name": t.name, "capacity_bytes": t.capacity_bytes, "used_bytes": t.used_bytes, "objects": t.objects,
                "keys": t.keys, "hits": t.hits, "misses": t.misses, "index_bytes": t.index_bytes,
                "committed": t.committed, "evicted_objects": t.evicted_objects, "damaged": t.damaged,
                "held_slots": t.held_slots, "lease_bytes": t.lease_bytes, "writers": t.writers,
                "written_bytes": t.written_bytes, "read_bytes": t.read_bytes, "demoted": t.demoted,
                "promoted": t.promoted, "trouble": t.trouble,
            })
        }).collect();
        fields.insert("program".into(), json!(hello.program));
        fields.insert("version".into(), json!(hello.version));
        fields.insert("start_id".into(), json!(stats.start_id));
        fields.insert("uptime_seconds".into(), json!(stats.uptime_ms as f64 / 1000.0));
        fields.insert("draining".into(), json!(stats.draining));
        fields.insert("connections".into(), json!(stats.connections));
        fields.insert("tiers".into(), json!(tiers));
    }
    out
}
