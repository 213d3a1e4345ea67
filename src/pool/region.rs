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
/// Most bytes of a chunk.
const MAX_CHUNK_BYTES: u64 = 1 << 50;
/// Most SWA pages of a chunk that has fewer full pages than would fit.
const FEW: u64 = 64;

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
        if most > MAX_CHUNK_BYTES {
            return Err(Error::invalid("bytes of a chunk", most, "at most 2^50"));
        }
        let [full, swa] = [full_page, swa_page].map(|bytes| bytes.next_multiple_of(align));
        let mut best: Option<(f64, Self)> = None;
        let limit = u64::from(MAX_CHUNK_PAGES);
        // More SWA pages than this would lie beside more full pages than a chunk may have.
        let high = (most / swa).min(limit).min((limit * full / swa).max(1));
        // Small chunks count only if no larger one works.
        let low = if high >= 2 && (high / 2) * swa >= full { high / 2 } else { 1 };
        let mut consider = |swa_pages: u64, full_pages: u64| -> Result<bool> {
            let shape = Self::with_pages(full_pages as u32, swa_pages as u32, full_page, swa_page, align)?;
            let waste = shape.waste(full_page, swa_page);
            if shape.bytes <= most
                && best.is_none_or(|(least, b)| waste < least || (waste == least && shape.bytes > b.bytes))
            {
                best = Some((waste, shape));
            }
            Ok(shape.bytes <= most)
        };
        let mut found = false;
        for swa_pages in low..=high {
            let fit = swa_pages * swa / full;
            for full_pages in [fit, fit + 1].into_iter().filter(|pages| (1..=limit).contains(pages)) {
                found |= consider(swa_pages, full_pages)?;
            }
        }
        // Strides that divide evenly may need fewer full pages than would fit.
        for swa_pages in (1..=high.min(FEW)).take(if found { 0 } else { usize::MAX }) {
            let fit = (swa_pages * swa / full).clamp(1, limit);
            for full_pages in (1..=fit).rev() {
                if consider(swa_pages, full_pages)? {
                    break;
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

/// Memory that is to become a region.
#[derive(Debug, Clone, Copy)]
pub struct Memory {
    /// What errors call it.
    pub name: &'static str,
    /// Its bytes. The region takes no more.
    pub bytes: u64,
    /// Bytes of a full page.
    pub full_page: u64,
    /// Bytes of an SWA page.
    pub swa_page: u64,
    /// What strides are multiples of.
    pub align: u64,
    /// SWA pages that the SWA pool keeps in any case: [`CacheConfig::reserved_swa`](crate::cache::CacheConfig::reserved_swa).
    pub reserved: u64,
}

impl Memory {
    /// The chunk of about `most` bytes, and how many of them the memory holds. Chunks are smaller where the pools' least
    /// would not fit otherwise, and larger where there would be too many.
    pub fn cut(&self, most: u64) -> Result<(ChunkShape, u32)> {
        check_sizes(self.full_page, self.swa_page, self.align)?;
        let page = self.full_page.max(self.swa_page).next_multiple_of(self.align);
        let mut most = most.clamp(page, MAX_CHUNK_BYTES.max(page));
        let mut shape = self.fit(most)?;
        while most > page && self.bytes / shape.bytes < self.least(&shape) {
            most = (most / 2).max(page);
            shape = self.fit(most)?;
        }
        while self.bytes / shape.bytes > u64::from(MAX_CHUNKS) && most < MAX_CHUNK_BYTES {
            most = (most * 2).min(MAX_CHUNK_BYTES);
            shape = self.fit(most)?;
        }
        self.counted(shape)
    }

    /// The chunk of at most `most` bytes, and how many of them the memory holds.
    pub fn cut_into(&self, most: u64) -> Result<(ChunkShape, u32)> {
        self.counted(self.fit(most)?)
    }

    fn fit(&self, most: u64) -> Result<ChunkShape> {
        ChunkShape::fit(self.full_page, self.swa_page, most, self.align)
    }

    /// Chunks that both pools need at least.
    fn least(&self, shape: &ChunkShape) -> u64 {
        self.reserved.div_ceil(u64::from(shape.swa_pages)).max(1) + 1
    }

    fn counted(&self, shape: ChunkShape) -> Result<(ChunkShape, u32)> {
        let (chunks, least) = (self.bytes / shape.bytes, self.least(&shape));
        let refused = |allowed| Err(Error::invalid(self.name, format!("{} bytes", self.bytes), allowed));
        if chunks < least {
            let bytes = least.saturating_mul(shape.bytes);
            return refused(format!(
                "at least {bytes} bytes, {least} chunks of {}: a full one, and {} SWA pages for scratch, a window and a \
                 checkpoint",
                shape.bytes, self.reserved
            ));
        }
        if chunks > u64::from(MAX_CHUNKS) {
            let bytes = (u64::from(MAX_CHUNKS) + 1) * shape.bytes - 1;
            return refused(format!("at most {bytes} bytes, {MAX_CHUNKS} chunks of {}", shape.bytes));
        }
        Ok((shape, chunks as u32))
    }

    /// So many chunks of this shape as a region, with the split nearest to `swa_pages` that both pools' least allow.
    pub fn region(&self, shape: &ChunkShape, chunks: u32, swa_pages: f64, adaptive: bool) -> Result<Region> {
        let most = f64::from(chunks - 1);
        let swa_chunks = (swa_pages / f64::from(shape.swa_pages)).round();
        let swa_chunks = swa_chunks.max((self.least(shape) - 1) as f64).min(most) as u32;
        let (full_pages, swa_pages, full_chunks) = (shape.full_pages, shape.swa_pages, chunks - swa_chunks);
        Region { chunks, full_pages, swa_pages, full_chunks, min_full_chunks: 0, min_swa_chunks: 0, adaptive }
            .checked(self.reserved)
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

    /// MiMo-V2.5-Pro with pages of one token on one of eight ranks, V2.5 with pages of 64, and pages of odd sizes.
    const PAGES: [(u64, u64, u64); 5] = [
        (6400, 41_856, 256),
        (1_474_560, 14_286_848, 256),
        (1, 1 << 30, 1),
        (1 << 30, 1, 1),
        (1_474_560, 14_286_848, 1),
    ];

    #[test]
    fn any_chunk_that_holds_a_page_of_each_pool_has_a_shape() {
        for (full, swa, align) in PAGES {
            let page = full.max(swa).next_multiple_of(align);
            for most in [page, page + 1, 2 * page - 1, 3 * page, 64 * page, 1 << 36, 1 << 45] {
                let s = ChunkShape::fit(full, swa, most, align).unwrap();
                assert!(s.bytes <= most && s.full_stride >= full && s.swa_stride >= swa, "{s:?} of {most}");
                assert!(s.full_pages.max(s.swa_pages) <= MAX_CHUNK_PAGES, "{s:?}");
            }
            assert!(ChunkShape::fit(full, swa, page - 1, align).unwrap_err().to_string().contains("for one page"));
        }
    }

    #[test]
    fn memory_is_cut_so_that_a_cache_can_have_it() {
        for (full_page, swa_page, align) in PAGES {
            for (bytes, reserved) in [(1u64 << 33, 3u64), (1 << 36, 5), (1 << 40, 9), (1 << 45, 100)] {
                let memory = Memory { name: "memory", bytes, full_page, swa_page, align, reserved };
                for most in [1, bytes / 5000, bytes / 64, bytes] {
                    let Ok((shape, chunks)) = memory.cut(most) else {
                        let smallest = memory.cut_into(full_page.max(swa_page).next_multiple_of(align)).is_err();
                        assert!(smallest && memory.cut(1 << 50).is_err(), "{memory:?} at {most}");
                        continue;
                    };
                    assert!(u64::from(chunks) * shape.bytes <= bytes && chunks <= MAX_CHUNKS, "{shape:?}");
                    assert!(u64::from(chunks + 1) * shape.bytes > bytes);
                    for swa_pages in [0.0, 1e3, 1e12] {
                        let region = memory.region(&shape, chunks, swa_pages, true).unwrap();
                        assert_eq!(region.clone().checked(reserved).unwrap(), region);
                    }
                }
            }
        }
        let memory =
            Memory { name: "memory", bytes: 1 << 30, full_page: 1 << 20, swa_page: 1 << 20, align: 1, reserved: 1023 };
        assert_eq!(memory.cut(1 << 26).unwrap().1, 1024, "chunks of a page, so that all fit");
        let error = Memory { reserved: 1024, ..memory }.cut(1 << 26).unwrap_err().to_string();
        assert!(error.contains("memory is 1073741824 bytes, allowed is at least 1074790400 bytes"), "{error}");
        let error = memory.cut_into(1 << 29).unwrap_err().to_string();
        assert!(error.contains("at least 1610612736 bytes, 3 chunks of 536870912"), "{error}");
        let many = Memory { bytes: 1 << 50, full_page: 1, swa_page: 1, ..memory };
        let error = many.cut(1).unwrap_err().to_string();
        assert!(error.contains("at most 268500991 bytes, 4096 chunks of 65536"), "{error}");
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
