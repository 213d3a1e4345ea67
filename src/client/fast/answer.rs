//! The answer to a get of the same-host path: counts and lengths are checked before any of it is used, places by the
//! [`Reader`](crate::shm::Reader) that goes there.

use crate::client::Breach;
use crate::rpc::fast::{FOUND_BYTES, Found, Outcome};
use crate::rpc::limits::{CHUNK_BYTES, MAX_VALUE_BYTES};

/// One object, and for a hit the CRC32C of each of its chunks.
pub type Answer = (Found, Vec<u32>);

/// Reads the answer to a get of `asked` objects.
///
/// # Errors
/// Another count or length, values of no or too many bytes, or another number of CRCs than of chunks.
pub fn read(body: &[u8], asked: usize) -> Result<Vec<Answer>, Breach> {
    let Some((entries, crcs)) = body.split_at_checked(asked * FOUND_BYTES) else {
        return Err(format!("{} bytes for {asked} objects", body.len()));
    };
    let (entries, _) = entries.as_chunks::<FOUND_BYTES>();
    let (crcs, odd) = crcs.as_chunks::<4>();
    if !odd.is_empty() {
        return Err(format!("{} bytes of CRCs, allowed is a multiple of 4", crcs.len() * 4 + odd.len()));
    }
    let read = |(i, entry)| {
        let found = Found::read(entry)?;
        if found.outcome != Outcome::Hit {
            return Ok((found, Vec::new()));
        }
        if !(1..=MAX_VALUE_BYTES).contains(&found.len) {
            return Err(format!("object {i}: a value of {} bytes, allowed is 1 to {MAX_VALUE_BYTES}", found.len));
        }
        let (count, first) = (found.crcs.0 as usize, found.crcs.1 as usize);
        let own = crcs.get(first..).and_then(|rest| rest.get(..count));
        match own.filter(|own| own.len() == (found.len as usize).div_ceil(CHUNK_BYTES)) {
            Some(own) => Ok((found, own.iter().map(|crc| u32::from_le_bytes(*crc)).collect())),
            None => {
                Err(format!("object {i}: {count} CRCs from {first} on, of {}, for {} bytes", crcs.len(), found.len))
            }
        }
    };
    entries.iter().enumerate().map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn hit(len: u64) -> Found {
        let crcs = ((len as usize).div_ceil(CHUNK_BYTES) as u32, 0);
        Found {
            outcome: Outcome::Hit,
            layout: 1,
            offset: 4096,
            len,
            header_at: 8,
            header_word: 2,
            span_at: 16,
            span_word: 3,
            crcs,
        }
    }

    fn body(found: &[Found], crcs: &[u32]) -> Vec<u8> {
        let mut body = Vec::new();
        found.iter().for_each(|f| f.put(&mut body));
        crcs.iter().for_each(|c| body.extend_from_slice(&c.to_le_bytes()));
        body
    }

    #[test]
    fn what_no_node_says_is_refused() {
        let miss = Found::miss(Outcome::Absent);
        let both = read(&body(&[miss, hit(1 << 20)], &[7]), 2).unwrap();
        assert_eq!(both, [(miss, vec![]), (hit(1 << 20), vec![7])]);
        assert_eq!(read(&body(&[hit(3 << 20)], &[1, 2, 3]), 1).unwrap()[0].1, [1, 2, 3]);
        let bad = [
            Found { len: 0, ..hit(1) },
            hit(MAX_VALUE_BYTES + 1),
            Found { crcs: (2, 0), ..hit(1) },
            Found { crcs: (1, 1), ..hit(1) },
            Found { crcs: (1, u32::MAX), ..hit(1) },
        ];
        for found in bad {
            assert!(read(&body(&[found], &[1]), 1).is_err(), "{found:?}");
        }
        assert!(read(&body(&[miss], &[]), 2).is_err());
        assert!(read(&[body(&[miss], &[]), vec![0]].concat(), 1).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300), asked in 0usize..6) {
            if let Ok(answers) = read(&bytes, asked) {
                prop_assert_eq!(answers.len(), asked);
                for (found, crcs) in answers.iter().filter(|(f, _)| f.outcome == Outcome::Hit) {
                    prop_assert!((1..=MAX_VALUE_BYTES).contains(&found.len));
                    prop_assert_eq!(crcs.len(), (found.len as usize).div_ceil(CHUNK_BYTES));
                }
            }
        }
    }
}
