//! A region of memory that both pools live in, chunk by chunk.
//!
//! Every chunk has the same number of bytes and belongs to one pool at a time: it holds `full_pages` full pages or
//! `swa_pages` SWA pages. Both pools number their pages as if they had all chunks, so that a page id alone says where its
//! bytes are: page `id` of a pool with n pages a chunk is page `(id - 1) % n` of chunk `(id - 1) / n`. The core tells who
//! has which chunk; the memory is the caller's.

use super::ids::MAX_CHUNKS;
use crate::error::{Error, Result};

/// Most pages of one pool in a chunk: what a call does for a whole chunk stays below 0.1 ms.
pub const MAX_CHUNK_PAGES: u32 = 1 << 16;

/// How a region is cut, and whose its chunks are at the start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Region {
    /// Chunks, 2 to 4,096.
    pub chunks: u32,
    /// Full pages that a chunk holds, 1 to 65,536.
    pub full_pages: u32,
    /// SWA pages that a chunk holds, 1 to 65,536.
    pub swa_pages: u32,
    /// Chunks of the full pool at the start: chunks 0 to `full_chunks - 1`. The others are the SWA pool's.
    pub full_chunks: u32,
    /// The full pool never gets smaller than this.
    pub min_full_chunks: u32,
    /// Nor the SWA pool than this; at least what scratch, one window and one checkpoint take.
    pub min_swa_chunks: u32,
    /// Chunks move between the pools by what they are worth. Else only when told to.
    pub adaptive: bool,
}

impl Region {
    /// Ids of the full pool: every chunk could be its.
    pub fn full_ids(&self) -> u64 {
        u64::from(self.chunks) * u64::from(self.full_pages)
    }

    /// Ids of the SWA pool likewise.
    pub fn swa_ids(&self) -> u64 {
        u64::from(self.chunks) * u64::from(self.swa_pages)
    }

    /// Checks the numbers and raises the least number of SWA chunks to what `reserved` SWA pages take.
    pub fn checked(mut self, reserved: u64) -> Result<Self> {
        if !(2..=MAX_CHUNKS).contains(&self.chunks) {
            return Err(Error::invalid("chunks of the region", self.chunks, format!("2 to {MAX_CHUNKS}")));
        }
        for (what, pages) in [("full pages of a chunk", self.full_pages), ("SWA pages of a chunk", self.swa_pages)] {
            if !(1..=MAX_CHUNK_PAGES).contains(&pages) {
                return Err(Error::invalid(what, pages, format!("1 to {MAX_CHUNK_PAGES}")));
            }
        }
        let least = reserved.div_ceil(u64::from(self.swa_pages)).max(1);
        let most = u64::from(self.chunks) - 1;
        if least > most {
            let allowed = format!("at least {}, so that {reserved} SWA pages and one full chunk fit", least + 1);
            return Err(Error::invalid("chunks of the region", self.chunks, allowed));
        }
        self.min_swa_chunks = self.min_swa_chunks.max(least as u32);
        self.min_full_chunks = self.min_full_chunks.max(1);
        if u64::from(self.min_swa_chunks) + u64::from(self.min_full_chunks) > u64::from(self.chunks) {
            let value = format!("{} full and {} SWA chunks", self.min_full_chunks, self.min_swa_chunks);
            let allowed = format!("at most {} together", self.chunks);
            return Err(Error::invalid("least chunks of the pools", value, allowed));
        }
        let range = self.min_full_chunks..=self.chunks - self.min_swa_chunks;
        if !range.contains(&self.full_chunks) {
            let allowed = format!("{} to {}", range.start(), range.end());
            return Err(Error::invalid("full chunks at the start", self.full_chunks, allowed));
        }
        Ok(self)
    }
}

/// A chunk's shape: how pages of both pools lie in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkShape {
    /// Bytes of a chunk.
    pub bytes: u64,
    /// Full pages that it holds.
    pub full_pages: u32,
    /// SWA pages that it holds.
    pub swa_pages: u32,
    /// Bytes from one full page to the next: `bytes / full_pages`.
    pub full_stride: u64,
    /// Bytes from one SWA page to the next: `bytes / swa_pages`.
    pub swa_stride: u64,
}

impl ChunkShape {
    /// The shape with the least waste among chunks of at most `most` bytes, and at least half of that where such a chunk
    /// exists. Strides divide the chunk and are multiples of `align`, so that each pool is one evenly strided view over
    /// all chunks; a stride may be a little larger than its page, which is the waste.
    pub fn fit(full_page: u64, swa_page: u64, most: u64, align: u64) -> Result<Self> {
        check_sizes(full_page, swa_page, align)?;
        if most > 1 << 50 {
            return Err(Error::invalid("bytes of a chunk", most, "at most 2^50"));
        }
        let [full, swa] = [full_page, swa_page].map(|bytes| bytes.next_multiple_of(align));
        let mut best: Option<(f64, Self)> = None;
        let high = (most / swa).min(u64::from(MAX_CHUNK_PAGES));
        // Small chunks count only if no larger one works.
        let low = if high >= 2 && (high / 2) * swa >= full { high / 2 } else { 1 };
        for swa_pages in low..=high {
            let room = swa_pages * swa;
            for full_pages in [room / full, room / full + 1] {
                if full_pages == 0 || full_pages > u64::from(MAX_CHUNK_PAGES) {
                    continue;
                }
                let shape = Self::with_pages(full_pages as u32, swa_pages as u32, full_page, swa_page, align)?;
                if shape.bytes > most {
                    continue;
                }
                let waste = shape.waste(full_page, swa_page);
                if best.is_none_or(|(least, b)| waste < least || (waste == least && shape.bytes > b.bytes)) {
                    best = Some((waste, shape));
                }
            }
        }
        let none = || Error::invalid("bytes of a chunk", most, format!("at least {}, for one page", full.max(swa)));
        best.map(|(_, shape)| shape).ok_or_else(none)
    }

    /// The smallest chunk with so many pages of each pool, for memory in which pages have other sizes.
    pub fn with_pages(full_pages: u32, swa_pages: u32, full_page: u64, swa_page: u64, align: u64) -> Result<Self> {
        check_sizes(full_page, swa_page, align)?;
        let pages = [full_pages, swa_pages].map(|n| u64::from(n.max(1)));
        let least = [full_page, swa_page].map(|bytes| bytes.next_multiple_of(align));
        let bytes = (pages[0] * least[0]).max(pages[1] * least[1]);
        let bytes = bytes.next_multiple_of(lcm(pages[0], pages[1]) * align);
        Ok(ChunkShape { bytes, full_pages, swa_pages, full_stride: bytes / pages[0], swa_stride: bytes / pages[1] })
    }

    /// The larger of both pools' unused parts of a chunk, 0 to 1.
    pub fn waste(&self, full_page: u64, swa_page: u64) -> f64 {
        let used = (u64::from(self.full_pages) * full_page).min(u64::from(self.swa_pages) * swa_page);
        1.0 - used as f64 / self.bytes as f64
    }
}

fn check_sizes(full_page: u64, swa_page: u64, align: u64) -> Result<()> {
    for (what, bytes) in [("bytes of a full page", full_page), ("bytes of an SWA page", swa_page)] {
        if !(1..=1 << 40).contains(&bytes) {
            return Err(Error::invalid(what, bytes, "1 to 2^40 bytes"));
        }
    }
    if !align.is_power_of_two() || align > 1 << 21 {
        return Err(Error::invalid("alignment of pages", align, "a power of two up to 2^21 bytes"));
    }
    Ok(())
}

fn lcm(a: u64, b: u64) -> u64 {
    let (mut x, mut y) = (a, b);
    while y != 0 {
        (x, y) = (y, x % y);
    }
    a / x * b
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region() -> Region {
        Region {
            chunks: 16,
            full_pages: 6,
            swa_pages: 2,
            full_chunks: 8,
            min_full_chunks: 0,
            min_swa_chunks: 0,
            adaptive: true,
        }
    }

    #[test]
    fn the_least_swa_chunks_hold_scratch_and_a_window() {
        let checked = region().checked(9).unwrap();
        assert_eq!((checked.min_full_chunks, checked.min_swa_chunks), (1, 5));
        assert_eq!((checked.full_ids(), checked.swa_ids()), (96, 32));
    }

    #[test]
    fn refuses_what_cannot_work() {
        let refused = |change: fn(&mut Region), reserved, words: &str| {
            let mut r = region();
            change(&mut r);
            let error = r.checked(reserved).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        };
        refused(|r| r.chunks = 1, 1, "2 to 4096");
        refused(|r| r.chunks = 5000, 1, "2 to 4096");
        refused(|r| r.swa_pages = 0, 1, "1 to 65536");
        refused(|r| r.full_pages = 1 << 17, 1, "1 to 65536");
        refused(|_| (), 31, "at least 17");
        refused(|r| r.min_full_chunks = 14, 9, "16 together");
        refused(|r| r.full_chunks = 12, 9, "1 to 11");
        refused(|r| r.full_chunks = 0, 9, "1 to 11");
    }

    #[test]
    fn shapes_divide_and_waste_little() {
        // Pages of 64 tokens: MiMo-V2.5-Pro with all that an SWA page stores, trunk only, V2.5, and odd ones.
        for (full, swa) in [(3_276_800, 21_430_272), (3_276_800, 19_660_800), (1_474_560, 14_286_848), (1000, 777)] {
            for most in [1u64 << 28, 1 << 30] {
                let s = ChunkShape::fit(full, swa, most, 256).unwrap();
                assert_eq!(s.full_stride * u64::from(s.full_pages), s.bytes);
                assert_eq!(s.swa_stride * u64::from(s.swa_pages), s.bytes);
                assert!(s.full_stride >= full && s.full_stride.is_multiple_of(256), "{s:?}");
                assert!(s.swa_stride >= swa && s.swa_stride.is_multiple_of(256), "{s:?}");
                assert!(s.bytes <= most && s.waste(full, swa) < if full > 1000 { 0.02 } else { 0.4 }, "{s:?}");
            }
        }
        let exact = ChunkShape::fit(51_200, 307_200, 10 * 307_200, 256).unwrap();
        assert_eq!((exact.full_pages, exact.swa_pages, exact.bytes), (60, 10, 3_072_000));
        assert_eq!(exact.waste(51_200, 307_200), 0.0);
    }

    #[test]
    fn refuses_chunks_below_a_page() {
        assert!(ChunkShape::fit(100, 1000, 999, 1).unwrap_err().to_string().contains("at least 1000"));
        assert!(ChunkShape::fit(0, 1, 999, 1).is_err() && ChunkShape::fit(1, 1, 999, 3).is_err());
        assert!(ChunkShape::fit(1, 1, 1 << 60, 1).is_err());
        let one = ChunkShape::fit(100, 1000, 1000, 1).unwrap();
        assert_eq!((one.full_pages, one.swa_pages), (10, 1));
        // An SWA page may also be the smaller one.
        let small = ChunkShape::fit(1000, 100, 3000, 1).unwrap();
        assert_eq!((small.full_pages, small.swa_pages), (3, 30));
    }
}
