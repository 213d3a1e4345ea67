//! The slot header: all that is known of a value, in a form that is trusted only when its checksum says so.

use super::crc::crc32c_append;
use super::layout::{HEADER_BYTES, LONG_HEADER_BYTES, Word, state};
use super::object::{MAX_PARTS, MAX_VALUE_BYTES, ObjectId, ObjectMeta, PutMeta, chunks_of};
use super::span::Damaged;
use smallvec::SmallVec;

const LONG: usize = LONG_HEADER_BYTES as usize;
const SHORT: usize = HEADER_BYTES as usize;
const CHECK_AT: usize = 124;
const FLAG_SUPERSEDED: u8 = 1;

/// CRC32C of each chunk of a value.
pub type Crcs = SmallVec<[u32; 4]>;

/// A header that passed its checks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// The value's name, length and so on.
    pub meta: ObjectMeta,
    /// One for each chunk.
    pub crcs: Crcs,
}

impl Header {
    /// The header's words in the order of the file. The first, which publishes the value, is the last to be stored.
    pub fn encode(&self) -> SmallVec<[u64; SHORT / 8]> {
        let put = &self.meta.put;
        let mut b = [0u8; LONG];
        b[0..8].copy_from_slice(&Word::new(self.meta.generation, state::COMMITTED).0.to_le_bytes());
        b[8..16].copy_from_slice(&put.tenant.to_le_bytes());
        b[16..48].copy_from_slice(&put.id.key);
        b[48..80].copy_from_slice(&put.extent);
        b[80..84].copy_from_slice(&put.bucket.to_le_bytes());
        b[84..88].copy_from_slice(&put.page_index.to_le_bytes());
        b[88..92].copy_from_slice(&put.layout.to_le_bytes());
        b[92..96].copy_from_slice(&(put.len as u32).to_le_bytes());
        b[96] = put.id.part;
        b[97] = if put.superseded { FLAG_SUPERSEDED } else { 0 };
        b[104..112].copy_from_slice(&self.meta.generation.to_le_bytes());
        let mut end = SHORT;
        for (n, crc) in self.crcs.iter().enumerate() {
            let at = if n == 0 { 112 } else { SHORT + 4 * (n - 1) };
            b[at..at + 4].copy_from_slice(&crc.to_le_bytes());
            end = end.max((at + 4).next_multiple_of(8));
        }
        let sum = checksum(&b, self.crcs.len());
        b[CHECK_AT..SHORT].copy_from_slice(&sum.to_le_bytes());
        b[..end].chunks_exact(8).map(|w| u64::from_le_bytes(w.try_into().expect("eight bytes"))).collect()
    }

    /// Makes state, generation and checksum of a header right; for fuzz targets.
    pub fn mend(bytes: &mut [u8]) {
        let Ok(len) = u32_at(bytes, 92) else { return };
        let chunks = chunks_of(len as usize).max(1);
        if bytes.len() < SHORT + 4 * (chunks - 1) {
            return;
        }
        bytes[0] = state::COMMITTED;
        let generation = bytes[1..8].to_vec();
        bytes[104..111].copy_from_slice(&generation);
        bytes[111] = 0;
        let sum = checksum(bytes, chunks);
        bytes[CHECK_AT..SHORT].copy_from_slice(&sum.to_le_bytes());
    }

    /// Reads the header of a slot of `slot_bytes` bytes. `bytes` has the whole distance to the next header.
    pub fn decode(bytes: &[u8], slot_bytes: u64) -> Result<Header, Damaged> {
        let word = Word(u64_at(bytes, 0)?);
        let len = u64::from(u32_at(bytes, 92)?);
        if word.state() != state::COMMITTED || len == 0 || len > slot_bytes.min(MAX_VALUE_BYTES) {
            return Err(Damaged);
        }
        let chunks = chunks_of(len as usize);
        if bytes.len() < SHORT + 4 * (chunks - 1) || checksum(bytes, chunks) != u32_at(bytes, CHECK_AT)? {
            return Err(Damaged);
        }
        let crcs = (0..chunks).map(|n| u32_at(bytes, if n == 0 { 112 } else { SHORT + 4 * (n - 1) }));
        let part = bytes[96];
        if part >= MAX_PARTS || bytes[97] & !FLAG_SUPERSEDED != 0 || u64_at(bytes, 104)? != word.generation() {
            return Err(Damaged);
        }
        let key = |at: usize| bytes[at..at + 32].try_into().expect("32 bytes");
        let put = PutMeta {
            id: ObjectId { key: key(16), part },
            tenant: u64_at(bytes, 8)?,
            bucket: u32_at(bytes, 80)?,
            len,
            extent: key(48),
            page_index: u32_at(bytes, 84)?,
            superseded: bytes[97] & FLAG_SUPERSEDED != 0,
            layout: u32_at(bytes, 88)?,
        };
        let meta = ObjectMeta { put, generation: word.generation() };
        Ok(Header { meta, crcs: crcs.collect::<Result<_, _>>()? })
    }
}

/// Word of the header that holds the tenant, and the four that hold the key; what a lookup compares.
pub const NAME_WORDS: std::ops::Range<usize> = 1..6;

fn checksum(bytes: &[u8], chunks: usize) -> u32 {
    crc32c_append(crc32c_append(0, &bytes[8..CHECK_AT]), &bytes[SHORT..SHORT + 4 * (chunks - 1)])
}

fn u64_at(bytes: &[u8], at: usize) -> Result<u64, Damaged> {
    let eight = bytes.get(at..at + 8).and_then(|b| b.try_into().ok());
    eight.map(u64::from_le_bytes).ok_or(Damaged)
}

fn u32_at(bytes: &[u8], at: usize) -> Result<u32, Damaged> {
    let four = bytes.get(at..at + 4).and_then(|b| b.try_into().ok());
    four.map(u32::from_le_bytes).ok_or(Damaged)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(len: u64) -> Header {
        let id = ObjectId { key: std::array::from_fn(|i| i as u8), part: 33 };
        let extent = std::array::from_fn(|i| 200 - i as u8);
        let put = PutMeta { id, tenant: 7, bucket: 0xabcdef, len, extent, page_index: 99, superseded: true, layout: 3 };
        let crcs = (0..chunks_of(len as usize)).map(|n| 0x9000_0000 + n as u32).collect();
        Header { meta: ObjectMeta { put, generation: 0x12_3456_789a_bcde }, crcs }
    }

    fn bytes(h: &Header) -> Vec<u8> {
        let mut out: Vec<u8> = h.encode().iter().flat_map(|w| w.to_le_bytes()).collect();
        out.resize(LONG, 0);
        out
    }

    #[test]
    fn headers_of_all_lengths_read_back() {
        for len in [1, 4096, 1 << 20, (1 << 20) + 1, 2 << 20, 5_000_000, (127 << 20) + 1, 128 << 20] {
            let h = header(len);
            assert_eq!(Header::decode(&bytes(&h), 128 << 20), Ok(h.clone()), "{len}");
            assert_eq!(Header::decode(&bytes(&h), len - 1), Err(Damaged), "longer than its slot");
            assert_eq!(Header::decode(&bytes(&h)[..SHORT], 128 << 20).is_ok(), len <= 1 << 20, "{len}");
        }
        for cut in 0..SHORT {
            assert_eq!(Header::decode(&bytes(&header(1))[..cut], 4096), Err(Damaged));
        }
    }

    #[test]
    fn no_flip_of_a_bit_is_read() {
        for len in [4096, 3 << 20] {
            let good = bytes(&header(len));
            let used = SHORT + 4 * (chunks_of(len as usize) - 1);
            for bit in 0..used * 8 {
                let mut bad = good.clone();
                bad[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(Header::decode(&bad, 4 << 20), Err(Damaged), "bit {bit}");
            }
        }
    }

    #[test]
    fn values_over_the_limits_are_refused_even_with_a_right_checksum() {
        for (at, value) in [(96, 64), (96, 255), (97, 2), (97, 0x80)] {
            let mut bad = bytes(&header(10));
            bad[at] = value;
            let sum = checksum(&bad, 1);
            bad[CHECK_AT..SHORT].copy_from_slice(&sum.to_le_bytes());
            assert_eq!(Header::decode(&bad, 4096), Err(Damaged), "byte {at} = {value}");
        }
    }
}
