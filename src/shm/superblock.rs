//! The superblock: whether a file is one of ours, and how it is laid out.

use super::config::BootId;
use super::crc::{crc32c, crc32c_append};
use super::layout::{Geometry, SUPERBLOCK_BYTES};

/// A finished file.
pub const MAGIC: u64 = u64::from_le_bytes(*b"mimoshm\0");
/// A file that is being made.
pub const MAGIC_NEW: u64 = u64::from_le_bytes(*b"mimonew\0");
/// The version that is written.
pub const VERSION: u32 = 1;
/// The epoch's word.
pub const EPOCH_AT: u64 = 512;
/// The process id, for messages.
pub const PROCESS_AT: u64 = 520;
/// Epochs are 24 bits of a generation's 56.
pub const MAX_EPOCH: u32 = (1 << 24) - 1;

const SIZE: usize = SUPERBLOCK_BYTES as usize;
const SUM_AT: usize = 12;
const SUM_END: usize = 256;

/// A superblock's bytes.
pub type Page = [u8; SIZE];

type Reader = fn(&Page) -> Result<Superblock, Fault>;

/// Versions that can be read, and how. The newest is written; the one before stays readable so that an upgrade keeps
/// what is stored.
const VERSIONS: &[(u32, Reader)] = &[(1, read_1)];

/// What a superblock says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Superblock {
    /// Sizes and positions.
    pub geometry: Geometry,
    /// What the file is for.
    pub fingerprint: [u8; 32],
    /// The boot it was made in.
    pub boot: BootId,
}

/// Why a superblock is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Another kind of file.
    Magic,
    /// A version that cannot be read.
    Version(u32),
    /// The checksum does not match.
    Checksum,
    /// Sizes and positions that do not follow from each other.
    Geometry,
    /// The epoch does not match its checksum.
    Epoch,
}

/// Oldest and newest version that can be read.
pub fn readable() -> (u32, u32) {
    (VERSIONS[0].0, VERSIONS[VERSIONS.len() - 1].0)
}

/// Whether the file says that it was only begun: nothing in it was ever served.
pub fn is_unfinished(page: &Page) -> bool {
    number(page, 0) == MAGIC_NEW
}

/// Reads a superblock of any readable version.
pub fn read(page: &Page) -> Result<Superblock, Fault> {
    if number(page, 0) != MAGIC {
        return Err(Fault::Magic);
    }
    let version = number(page, 8) as u32;
    let (_, reader) = VERSIONS.iter().find(|(v, _)| *v == version).ok_or(Fault::Version(version))?;
    reader(page)
}

fn read_1(page: &Page) -> Result<Superblock, Fault> {
    if (number(page, 8) >> 32) as u32 != checksum(page) {
        return Err(Fault::Checksum);
    }
    let sizes = number(page, 24);
    let geometry = Geometry::of(number(page, 16), sizes as u32).map_err(|_| Fault::Geometry)?;
    let found = (sizes >> 32, number(page, 32), number(page, 40), number(page, 48), number(page, 56));
    let block = u64::from(geometry.block_bytes);
    if found != (u64::from(geometry.slabs), geometry.table_at, geometry.blocks_at, geometry.slabs_at, block) {
        return Err(Fault::Geometry);
    }
    let fingerprint = page[64..96].try_into().expect("32 bytes");
    Ok(Superblock { geometry, fingerprint, boot: BootId(page[96..112].try_into().expect("16 bytes")) })
}

/// The epoch in its word.
pub fn read_epoch(word: u64) -> Result<u32, Fault> {
    let epoch = (word >> 32) as u32;
    if word == epoch_word(epoch) && epoch <= MAX_EPOCH { Ok(epoch) } else { Err(Fault::Epoch) }
}

/// An epoch's word.
pub fn epoch_word(epoch: u32) -> u64 {
    u64::from(epoch) << 32 | u64::from(crc32c(&epoch.to_le_bytes()))
}

impl Superblock {
    /// The words up to the end of what the checksum covers. The first, the magic, is the last to be stored.
    pub fn encode(&self) -> [u64; SUM_END / 8] {
        let g = &self.geometry;
        let mut page = [0u8; SIZE];
        let mut put = |at: usize, value: u64| page[at..at + 8].copy_from_slice(&value.to_le_bytes());
        put(0, MAGIC);
        put(8, u64::from(VERSION));
        put(16, g.file_bytes);
        put(24, u64::from(g.slab_bytes) | u64::from(g.slabs) << 32);
        put(32, g.table_at);
        put(40, g.blocks_at);
        put(48, g.slabs_at);
        put(56, u64::from(g.block_bytes));
        page[64..96].copy_from_slice(&self.fingerprint);
        page[96..112].copy_from_slice(&self.boot.0);
        let sum = checksum(&page);
        page[SUM_AT..SUM_AT + 4].copy_from_slice(&sum.to_le_bytes());
        std::array::from_fn(|n| number(&page, 8 * n))
    }
}

/// Makes magic, version and checksum right; for fuzz targets.
pub fn mend(page: &mut Page) {
    page[..8].copy_from_slice(&MAGIC.to_le_bytes());
    page[8..12].copy_from_slice(&VERSION.to_le_bytes());
    let sum = checksum(page);
    page[SUM_AT..SUM_AT + 4].copy_from_slice(&sum.to_le_bytes());
}

fn checksum(page: &Page) -> u32 {
    crc32c_append(crc32c(&page[..SUM_AT]), &page[SUM_AT + 4..SUM_END])
}

fn number(page: &Page, at: usize) -> u64 {
    u64::from_le_bytes(page[at..at + 8].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(s: &Superblock) -> Page {
        let mut page = [0; SIZE];
        for (to, word) in page.chunks_exact_mut(8).zip(s.encode()) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        page
    }

    fn sample() -> Superblock {
        let geometry = Geometry::of(64 << 20, 1 << 20).unwrap();
        Superblock { geometry, fingerprint: [7; 32], boot: BootId([9; 16]) }
    }

    #[test]
    fn a_superblock_reads_back_and_no_flip_of_a_bit_does() {
        let good = page(&sample());
        assert_eq!(read(&good), Ok(sample()));
        for bit in 0..SUM_END * 8 {
            let mut bad = good;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(read(&bad).is_err() && !is_unfinished(&bad), "bit {bit}");
        }
    }

    #[test]
    fn positions_that_do_not_follow_from_the_sizes_are_refused_even_with_a_right_checksum() {
        for at in (24..60).step_by(4) {
            let mut bad = page(&sample());
            bad[at] ^= 64;
            let sum = checksum(&bad);
            bad[SUM_AT..SUM_AT + 4].copy_from_slice(&sum.to_le_bytes());
            assert_eq!(read(&bad), Err(Fault::Geometry), "byte {at}");
        }
    }

    #[test]
    fn other_versions_are_named() {
        let mut other = page(&sample());
        other[8] = 9;
        assert_eq!((read(&other), readable()), (Err(Fault::Version(9)), (1, VERSION)));
    }

    #[test]
    fn epochs_are_checked() {
        for epoch in [0, 1, MAX_EPOCH] {
            assert_eq!(read_epoch(epoch_word(epoch)), Ok(epoch));
            assert!((0..64).all(|bit| read_epoch(epoch_word(epoch) ^ 1 << bit).is_err()));
        }
        assert_eq!(read_epoch(epoch_word(MAX_EPOCH + 1)), Err(Fault::Epoch));
    }
}
