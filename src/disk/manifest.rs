//! The manifest: whether a directory is one of ours. It is replaced as a whole at every opening, by rename.

use super::BLOCK;
use super::layout::{DirectoryId, VERSION, sum_around, u32_at, u64_at};

/// Its name in the directory.
pub const NAME: &str = "manifest";

const MAGIC: [u8; 8] = *b"mimodisk";
const SUM_AT: usize = 12;
const SUMMED: usize = 256;
/// Epochs that are left over, so that a running process never lacks one.
const SPARE_EPOCHS: u32 = 1000;

/// A manifest's bytes.
pub type Page = [u8; BLOCK];

type Reader = fn(&Page) -> Result<Manifest, Fault>;

/// Versions that can be read, and how. The newest is written; the one before stays readable.
const VERSIONS: &[(u32, Reader)] = &[(VERSION, read_1)];

/// What a manifest says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Manifest {
    /// Random, made with the directory.
    pub directory: DirectoryId,
    /// What the directory is for.
    pub fingerprint: [u8; 32],
    /// Raised at every opening; the upper half of the generations that the process gives.
    pub epoch: u32,
    /// Capacity as last configured, for people.
    pub capacity_bytes: u64,
    /// Size of new segments as last configured, for people.
    pub segment_bytes: u32,
}

/// Why a manifest is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Another kind of file.
    Magic,
    /// A version that cannot be read.
    Version(u32),
    /// The checksum does not match, or the file has another length.
    Checksum,
    /// Opened too often.
    Epoch,
}

/// Oldest and newest version that can be read.
pub fn readable() -> (u32, u32) {
    (VERSIONS[0].0, VERSIONS[VERSIONS.len() - 1].0)
}

impl Manifest {
    /// The file.
    pub fn encode(&self) -> Page {
        let mut b = [0; BLOCK];
        b[0..8].copy_from_slice(&MAGIC);
        b[8..12].copy_from_slice(&VERSION.to_le_bytes());
        b[16..32].copy_from_slice(&self.directory);
        b[32..64].copy_from_slice(&self.fingerprint);
        b[64..68].copy_from_slice(&self.epoch.to_le_bytes());
        b[68..72].copy_from_slice(&self.segment_bytes.to_le_bytes());
        b[72..80].copy_from_slice(&self.capacity_bytes.to_le_bytes());
        Self::mend(&mut b);
        b
    }

    /// Makes the checksum right; for fuzz targets.
    pub fn mend(b: &mut Page) {
        let sum = sum_around(b, SUM_AT, SUMMED);
        b[SUM_AT..SUM_AT + 4].copy_from_slice(&sum.to_le_bytes());
    }

    /// Reads a file of any readable version. Magic, version and checksum stay where they are in every version.
    pub fn decode(bytes: &[u8]) -> Result<Manifest, Fault> {
        if bytes.get(0..8) != Some(&MAGIC) {
            return Err(Fault::Magic);
        }
        let version = u32_at(bytes, 8).ok_or(Fault::Checksum)?;
        let (_, reader) = VERSIONS.iter().find(|(v, _)| *v == version).ok_or(Fault::Version(version))?;
        reader(bytes.try_into().map_err(|_| Fault::Checksum)?)
    }
}

fn read_1(b: &Page) -> Result<Manifest, Fault> {
    if u32_at(b, SUM_AT) != Some(sum_around(b, SUM_AT, SUMMED)) {
        return Err(Fault::Checksum);
    }
    let epoch = u32_at(b, 64).expect("inside");
    if epoch > u32::MAX - SPARE_EPOCHS {
        return Err(Fault::Epoch);
    }
    Ok(Manifest {
        directory: b[16..32].try_into().expect("16 bytes"),
        fingerprint: b[32..64].try_into().expect("32 bytes"),
        epoch,
        segment_bytes: u32_at(b, 68).expect("inside"),
        capacity_bytes: u64_at(b, 72).expect("inside"),
    })
}
