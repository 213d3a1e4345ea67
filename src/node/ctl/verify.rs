//! `gcachectl verify`: the nodes compare values with their CRCs where they are.

use super::{Cluster, key, opened};
use crate::ring::bucket_of;
use crate::rpc::ids::pack;
use crate::rpc::limits::{MAX_OBJECTS, PARTS, VERSIONS};
use crate::rpc::v1::{ObjectRun, VerifyRequest};
use serde_json::json;
use std::collections::BTreeMap;
use std::io::BufRead;

/// Objects as text, or `-` for lines of it; not well where one is missing, was dropped, or a node does not answer.
///
/// # Errors
/// A sentence: an object that cannot be read.
pub async fn verify(cluster: &Cluster, objects: &[String], json: bool) -> Result<(String, bool), String> {
    let table = cluster.table()?;
    let mut of_node: BTreeMap<usize, Vec<ObjectRun>> = BTreeMap::new();
    let mut total = 0;
    let mut add = |text: &str| -> Result<(), String> {
        let mut fields = text.trim().split(':');
        let (Some(name), Some(part)) = (fields.next(), fields.next()) else {
            return Err(format!("object {text:?}, allowed is KEY:PART or KEY:PART:EXTENT"));
        };
        let part: u8 = part.parse().ok().filter(|p| *p < PARTS).ok_or(format!("part {part:?}, allowed is 0 to 63"))?;
        let bucket = bucket_of(&key(fields.next().unwrap_or(name))?, table.buckets());
        let ids = pack(&key(name)?, part).to_vec().into();
        let owner = table.owner(bucket).map_or(0, usize::from);
        of_node.entry(owner).or_default().push(ObjectRun { bucket, ids });
        total += 1;
        Ok(())
    };
    for text in objects {
        if text == "-" {
            for line in std::io::stdin().lock().lines() {
                let line = line.map_err(|e| e.to_string())?;
                if !line.trim().is_empty() {
                    add(&line)?;
                }
            }
        } else {
            add(text)?;
        }
    }
    let (mut sound, mut dropped, mut failed) = (0, 0, Vec::new());
    for (owner, runs) in of_node {
        let peer = &cluster.peers[owner];
        for runs in runs.chunks(MAX_OBJECTS) {
            let request = VerifyRequest {
                version: *VERSIONS.end(),
                tenant: cluster.tenant,
                runs: runs.to_vec(),
                ..Default::default()
            };
            let (request, check) = cluster.sealed(request);
            let answer = peer.client.clone().verify(request).await;
            match answer.and_then(|answer| opened(answer.into_inner(), check)) {
                Ok(reply) => {
                    sound += reply.sound;
                    dropped += reply.dropped;
                }
                Err(e) => failed.push(format!("{}: {:?}: {}", peer.node.name, e.code(), e.message())),
            }
        }
    }
    let fine = failed.is_empty() && sound == total;
    let missing = total - sound - dropped;
    let text = if json {
        json!({"asked": total, "sound": sound, "dropped": dropped, "missing": missing, "failed": failed}).to_string()
    } else {
        let mut lines =
            vec![format!("{total} objects: {sound} sound, {dropped} damaged and dropped, {missing} missing")];
        lines.extend(failed);
        lines.join("\n")
    };
    Ok((text, fine))
}
