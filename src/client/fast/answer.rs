//! The answer to a get of the same-host path, checked before any of it is used.

use crate::client::Breach;
use crate::rpc::fast::{FOUND_BYTES, Found, Outcome};
use crate::rpc::limits::{CHUNK_BYTES, MAX_VALUE_BYTES};

/// One object, and for a hit the CRC32C of each of its chunks.
pub type Answer = (Found, Vec<u32>);

/// Reads the answer to a get of `asked` objects whose values lie in a file of `file_bytes`.
///
/// # Errors
/// Another count or length, values of no or too many bytes, positions outside the file, words that are not aligned, or
/// another number of CRCs than of chunks.
pub fn read(body: &[u8], asked: usize, file_bytes: u64) -> Result<Vec<Answer>, Breach> {
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
        check(&found, file_bytes).map_err(|e| format!("object {i}: {e}"))?;
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

fn check(found: &Found, file_bytes: u64) -> Result<(), Breach> {
    let fits = |at: u64, len: u64| at.checked_add(len).is_some_and(|end| end <= file_bytes);
    if !(1..=MAX_VALUE_BYTES).contains(&found.len) || !fits(found.offset, found.len) {
        return Err(format!("{} bytes at {} of a file of {file_bytes}", found.len, found.offset));
    }
    for at in [found.header_at, found.span_at] {
        if at % 8 != 0 || !fits(at, 8) {
            return Err(format!("a word at {at} of a file of {file_bytes}"));
        }
    }
    Ok(())
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
    fn what_lies_outside_the_file_is_refused() {
        const FILE: u64 = 8 << 20;
        let miss = Found::miss(Outcome::Absent);
        let both = read(&body(&[miss, hit(1 << 20)], &[7]), 2, FILE).unwrap();
        assert_eq!(both, [(miss, vec![]), (hit(1 << 20), vec![7])]);
        assert_eq!(read(&body(&[hit(3 << 20)], &[1, 2, 3]), 1, FILE).unwrap()[0].1, [1, 2, 3]);
        let bad = [
            Found { len: 0, ..hit(1) },
            hit(MAX_VALUE_BYTES + 1),
            Found { offset: FILE, ..hit(1) },
            Found { offset: u64::MAX, ..hit(1) },
            Found { offset: FILE - 5, ..hit(6) },
            Found { header_at: 12, ..hit(1) },
            Found { header_at: FILE, ..hit(1) },
            Found { span_at: u64::MAX - 7, ..hit(1) },
            Found { crcs: (2, 0), ..hit(1) },
            Found { crcs: (1, 1), ..hit(1) },
            Found { crcs: (1, u32::MAX), ..hit(1) },
        ];
        for found in bad {
            assert!(read(&body(&[found], &[1]), 1, FILE).is_err(), "{found:?}");
        }
        assert!(read(&body(&[miss], &[]), 2, FILE).is_err());
        assert!(read(&[body(&[miss], &[]), vec![0]].concat(), 1, FILE).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300), asked in 0usize..6, file in any::<u64>()) {
            if let Ok(answers) = read(&bytes, asked, file) {
                prop_assert_eq!(answers.len(), asked);
                for (found, crcs) in answers.iter().filter(|(f, _)| f.outcome == Outcome::Hit) {
                    prop_assert!(found.offset + found.len <= file && found.header_at + 8 <= file);
                    prop_assert_eq!(crcs.len(), (found.len as usize).div_ceil(CHUNK_BYTES));
                }
            }
        }
    }
}
