//! Keys and object ids as the wire has them: packed one after the other, so that 32,768 keys are one field.

use super::limits::{ID_BYTES, KEY_BYTES, PARTS};
use super::v1::{KeyRun, ObjectRun};

/// Chain key of a page.
pub type ChainKey = [u8; KEY_BYTES];

/// Why a packed field is refused: a sentence for the peer.
pub type Refusal = String;

/// The keys of all runs, in order.
///
/// # Errors
/// More than `most` keys, none, or a run whose length is no multiple of 32. Nothing is allocated before the count is
/// known to be allowed.
pub fn keys(runs: &[KeyRun], most: usize) -> Result<Vec<ChainKey>, Refusal> {
    let total = count(runs.iter().map(|r| r.keys.len()), KEY_BYTES, most, "keys")?;
    let mut keys = Vec::with_capacity(total);
    for run in runs {
        keys.extend(run.keys.chunks_exact(KEY_BYTES).map(|k| ChainKey::try_from(k).expect("exact chunks")));
    }
    Ok(keys)
}

/// The object ids of all runs, in order, as (key, part).
///
/// # Errors
/// More than `most` ids, none, a run whose length is no multiple of 33, or a part above 63.
pub fn objects(runs: &[ObjectRun], most: usize) -> Result<Vec<(ChainKey, u8)>, Refusal> {
    let total = count(runs.iter().map(|r| r.ids.len()), ID_BYTES, most, "object ids")?;
    let mut ids = Vec::with_capacity(total);
    for run in runs {
        for packed in run.ids.chunks_exact(ID_BYTES) {
            ids.push(object(packed)?);
        }
    }
    Ok(ids)
}

/// One object id.
///
/// # Errors
/// Another length than 33, or a part above 63.
pub fn object(packed: &[u8]) -> Result<(ChainKey, u8), Refusal> {
    let Some((key, &[part])) = packed.split_first_chunk::<KEY_BYTES>() else {
        return Err(format!("an object id has {} bytes, allowed is {ID_BYTES}", packed.len()));
    };
    if part >= PARTS {
        return Err(format!("part is {part}, allowed is 0 to {}", PARTS - 1));
    }
    Ok((*key, part))
}

/// One object id, packed.
pub fn pack(key: &ChainKey, part: u8) -> [u8; ID_BYTES] {
    let mut packed = [part; ID_BYTES];
    packed[..KEY_BYTES].copy_from_slice(key);
    packed
}

fn count(lengths: impl Iterator<Item = usize>, each: usize, most: usize, what: &str) -> Result<usize, Refusal> {
    let mut total = 0;
    for (run, bytes) in lengths.enumerate() {
        if bytes == 0 || bytes % each != 0 {
            return Err(format!("run {run} has {bytes} bytes of {what}, allowed is a multiple of {each} above 0"));
        }
        total += bytes / each;
    }
    if total == 0 || total > most {
        return Err(format!("the request has {total} {what}, allowed is 1 to {most}"));
    }
    Ok(total)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    #[test]
    fn ids_come_back_in_order() {
        let ids: Vec<(ChainKey, u8)> = (0..5).map(|i| ([i; KEY_BYTES], i)).collect();
        let packed: Vec<u8> = ids.iter().flat_map(|(k, p)| pack(k, *p)).collect();
        let runs = [
            ObjectRun { bucket: 1, ids: Bytes::copy_from_slice(&packed[..2 * ID_BYTES]) },
            ObjectRun { bucket: 2, ids: Bytes::copy_from_slice(&packed[2 * ID_BYTES..]) },
        ];
        assert_eq!(objects(&runs, 5), Ok(ids));
        assert!(objects(&runs, 4).unwrap_err().contains("5 object ids, allowed is 1 to 4"));
    }

    #[test]
    fn other_lengths_are_refused() {
        let run = |n: usize| KeyRun { bucket: 0, keys: Bytes::from(vec![0; n]) };
        assert_eq!(keys(&[run(64), run(32)], 3).map(|k| k.len()), Ok(3));
        assert!(keys(&[run(64), run(31)], 3).unwrap_err().starts_with("run 1 has 31 bytes"));
        assert!(keys(&[run(64), run(0)], 3).unwrap_err().starts_with("run 1 has 0 bytes"));
        assert!(keys(&[], 3).unwrap_err().contains("has 0 keys"));
        assert!(object(&[0; 32]).is_err() && object(&[64; 33]).unwrap_err().contains("part is 64"));
    }
}
