//! `gcachectl verify`: the nodes compare values with their CRCs where they are.

use super::{Cluster, key, opened};
use crate::ring::bucket_of;
use crate::rpc::ids::pack;
use crate::rpc::limits::{MAX_OBJECTS, PARTS, COMMON_VERSION};
use crate::rpc::v1::{ObjectRun, VerifyRequest};
use serde_json::json;
use std::collections::BTreeMap;
use std::io::{BufRead, Read};

/// Longest line of standard input: two keys and a part with room to spare.
const MAX_LINE_BYTES: u64 = 1024;
/// Most objects of one call: some 100 bytes each are held.
const MAX_ASKED: u64 = 1 << 20;

/// Objects as text, or `-` for lines of it; not well where one is missing, was dropped, or a node does not answer.
///
/// # Errors
/// A sentence: an object that cannot be read.
pub async fn verify(cluster: &Cluster, objects: &[String], json: bool) -> Result<(String, bool), String> {
    let table = cluster.table()?;
    let mut of_node: BTreeMap<usize, Vec<ObjectRun>> = BTreeMap::new();
    let mut total = 0_u64;
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
        if total > MAX_ASKED {
            return Err(format!("more than {MAX_ASKED} objects, allowed are so many at a time"));
        }
        Ok(())
    };
    for text in objects {
        if text == "-" {
            let mut input = std::io::stdin().lock();
            for number in 1_u64.. {
                let Some(line) = line(&mut input).map_err(|e| format!("line {number} of standard input: {e}"))? else {
                    break;
                };
                if !line.trim().is_empty() {
                    add(&line)?;
                }
            }
        } else {
            add(text)?;
        }
    }
    let (mut sound, mut dropped, mut failed) = (0_u64, 0_u64, Vec::new());
    for (owner, runs) in of_node {
        let peer = &cluster.peers[owner];
        for runs in runs.chunks(MAX_OBJECTS) {
            let request = VerifyRequest {
                version: COMMON_VERSION,
                tenant: cluster.tenant,
                runs: runs.to_vec(),
                ..Default::default()
            };
            let (request, check) = cluster.sealed(Some(peer), request);
            let answer = peer.client.clone().verify(request).await;
            match answer.and_then(|answer| opened(answer.into_inner(), check)) {
                Ok(reply) => {
                    sound += u64::from(reply.sound);
                    dropped += u64::from(reply.dropped);
                }
                Err(e) => failed.push(format!("{}: {:?}: {}", peer.node.name, e.code(), e.message())),
            }
        }
    }
    let fine = failed.is_empty() && sound == total;
    let missing = total.saturating_sub(sound + dropped);
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

/// The next line, or none at the end.
fn line(input: &mut impl BufRead) -> Result<Option<String>, String> {
    let mut bytes = Vec::new();
    input.take(MAX_LINE_BYTES + 1).read_until(b'\n', &mut bytes).map_err(|e| e.to_string())?;
    if bytes.len() as u64 > MAX_LINE_BYTES {
        return Err(format!("it has more than {MAX_LINE_BYTES} bytes, allowed is KEY:PART or KEY:PART:EXTENT"));
    }
    match String::from_utf8(bytes) {
        Ok(line) => Ok(Some(line).filter(|l| !l.is_empty())),
        Err(_) => Err("it is not UTF-8".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_end() {
        let mut input = &b"one\ntwo"[..];
        assert_eq!(line(&mut input), Ok(Some("one\n".into())));
        assert_eq!(line(&mut input), Ok(Some("two".into())));
        assert_eq!(line(&mut input), Ok(None));
        assert!(line(&mut std::io::BufReader::new(std::io::repeat(0))).unwrap_err().contains("more than 1024 bytes"));
        assert_eq!(line(&mut &b"\xff\n"[..]), Err("it is not UTF-8".into()));
    }
}
