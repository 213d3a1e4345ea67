//! What stands before the bytes of a value in its object (`docs/format.md`): all that is known of it, and the checksums by
//! which a reader knows that it has the right bytes, whole.

use crate::shm::{ChainKey, MAX_PARTS, MAX_VALUE_BYTES, ObjectId, PutMeta, chunks_of, crc32c, crc32c_append};
use smallvec::SmallVec;

const MAGIC: [u8; 8] = *b"mimoobj\0";
const VERSION: u32 = 1;
const SUM_AT: usize = 12;
const FIXED: usize = 128;
const FLAG_SUPERSEDED: u8 = 1;

/// Longest header.
pub const MAX_HEADER_BYTES: usize = FIXED + 4 * chunks_of(MAX_VALUE_BYTES as usize);

/// CRC32C of each chunk of a value.
pub type Crcs = SmallVec<[u32; 4]>;

/// An object's header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// As the value was put.
    pub meta: PutMeta,
    /// CRC32C of each of its chunks.
    pub crcs: Crcs,
}

/// Why an object cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unfit {
    /// Its bytes contradict themselves or its name.
    Damaged(&'static str),
    /// A program of another version wrote it; it is left as it is.
    Version(u32),
}

impl Header {
    /// Bytes of the header of a value of `len` bytes.
    pub fn bytes(len: u64) -> usize {
        FIXED + 4 * chunks_of(len as usize)
    }

    /// The bytes before the value.
    pub fn encode(&self) -> Vec<u8> {
        let put = &self.meta;
        let mut b = vec![0; Header::bytes(put.len)];
        b[0..8].copy_from_slice(&MAGIC);
        b[8..12].copy_from_slice(&VERSION.to_le_bytes());
        b[16..24].copy_from_slice(&put.tenant.to_le_bytes());
        b[24..56].copy_from_slice(&put.id.key);
        b[56..88].copy_from_slice(&put.extent);
        b[88..92].copy_from_slice(&put.bucket.to_le_bytes());
        b[92..96].copy_from_slice(&put.page_index.to_le_bytes());
        b[96..100].copy_from_slice(&put.layout.to_le_bytes());
        b[100..104].copy_from_slice(&(put.len as u32).to_le_bytes());
        b[104] = put.id.part;
        b[105] = if put.superseded { FLAG_SUPERSEDED } else { 0 };
        for (n, crc) in self.crcs.iter().enumerate() {
            b[FIXED + 4 * n..FIXED + 4 * n + 4].copy_from_slice(&crc.to_le_bytes());
        }
        let sum = sum(&b);
        b[SUM_AT..SUM_AT + 4].copy_from_slice(&sum.to_le_bytes());
        b
    }

    /// Reads the header at the start of `b`, the first bytes of an object of `object` bytes: all of it or
    /// [`MAX_HEADER_BYTES`]. What is returned has as many bytes of value as follow the header.
    ///
    /// # Errors
    /// Anything that [`Header::encode`] would not have written.
    pub fn decode(b: &[u8], object: u64) -> Result<Header, Unfit> {
        let damaged = |why| Err(Unfit::Damaged(why));
        if b.len() < FIXED || b[0..8] != MAGIC {
            return damaged("it is no value of a cache");
        }
        let number = |at: usize| u32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]]);
        let key = |at: usize| -> ChainKey { std::array::from_fn(|n| b[at + n]) };
        if number(8) != VERSION {
            return Err(Unfit::Version(number(8)));
        }
        let len = u64::from(number(100));
        if len == 0 || len > MAX_VALUE_BYTES || object != Header::bytes(len) as u64 + len {
            return damaged("its length is not the one in its header");
        }
        let Some(header) = b.get(..Header::bytes(len)) else { return damaged("it ends within its header") };
        if number(SUM_AT) != sum(header) {
            return damaged("the checksum of its header does not match");
        }
        if b[104] >= MAX_PARTS || b[105] & !FLAG_SUPERSEDED != 0 {
            return damaged("its header is outside the limits");
        }
        let meta = PutMeta {
            id: ObjectId { key: key(24), part: b[104] },
            tenant: u64::from(number(16)) | u64::from(number(20)) << 32,
            bucket: number(88),
            len,
            extent: key(56),
            page_index: number(92),
            superseded: b[105] & FLAG_SUPERSEDED != 0,
            layout: number(96),
        };
        let crcs = header[FIXED..].chunks_exact(4).map(|c| u32::from_le_bytes([c[0], c[1], c[2], c[3]])).collect();
        Ok(Header { meta, crcs })
    }
}

/// CRC32C of a header without its place.
fn sum(header: &[u8]) -> u32 {
    crc32c_append(crc32c(&header[..SUM_AT]), &header[SUM_AT + 4..])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn header(len: u64, seed: u8) -> Header {
        let meta = PutMeta {
            id: ObjectId { key: [seed; 32], part: seed % MAX_PARTS },
            tenant: u64::from(seed) << 33 | 5,
            bucket: 9,
            len,
            extent: [seed ^ 0xff; 32],
            page_index: 77,
            superseded: seed & 1 == 1,
            layout: 3,
        };
        let crcs = (0..chunks_of(len as usize) as u32).map(|n| n.wrapping_mul(0x9e37_79b9) ^ u32::from(seed)).collect();
        Header { meta, crcs }
    }

    #[test]
    fn another_version_is_told_from_damage() {
        let mut b = header(5000, 3).encode();
        b[8] = 2;
        assert_eq!(Header::decode(&b, b.len() as u64 + 5000), Err(Unfit::Version(2)));
    }

    #[test]
    fn the_limit_of_a_value_is_kept() {
        let most = header(MAX_VALUE_BYTES, 1).encode();
        assert_eq!(most.len(), MAX_HEADER_BYTES);
        assert!(Header::decode(&most, most.len() as u64 + MAX_VALUE_BYTES).is_ok());
        let mut more = most.clone();
        more[100..104].copy_from_slice(&(MAX_VALUE_BYTES as u32 + 1).to_le_bytes());
        assert!(Header::decode(&more, more.len() as u64 + MAX_VALUE_BYTES + 1).is_err());
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(len in 1..=MAX_VALUE_BYTES, seed: u8, more in 0..100usize) {
            let header = header(len, seed);
            let mut b = header.encode();
            let object = b.len() as u64 + len;
            b.extend((0..more.min(len as usize)).map(|n| n as u8));
            prop_assert_eq!(Header::decode(&b, object), Ok(header));
        }

        #[test]
        fn any_other_bytes_are_refused(len in 1..9_000_000u64, seed: u8, at: usize, bit in 0..8u8, cut in 1..40usize) {
            let b = header(len, seed).encode();
            let object = b.len() as u64 + len;
            let mut flipped = b.clone();
            flipped[at % b.len()] ^= 1 << bit;
            prop_assert!(Header::decode(&flipped, object).is_err());
            prop_assert!(Header::decode(&b[..b.len() - cut], object).is_err());
            prop_assert!(Header::decode(&b, object - cut as u64).is_err());
            prop_assert!(Header::decode(&b, object + cut as u64).is_err());
        }

        #[test]
        fn random_bytes_are_refused(b in proptest::collection::vec(any::<u8>(), 0..800), object: u64) {
            prop_assert!(Header::decode(&b, object).is_err());
        }
    }
}
