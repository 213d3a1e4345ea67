//! How pages lie in device memory and in host memory.
//!
//! In device memory a page is scattered over *parts*: strided arrays of pages, in general one or two for each layer. In
//! host memory it is the concatenation of its parts, so that one page is one contiguous read, and its size is rounded up
//! to [`HOST_ALIGN`]. All offsets are derived here, once, with every sum checked.

use super::error::TierError;
use sha2::{Digest, Sha256};
use std::fmt;

/// What the size of a host page is a multiple of, in bytes.
pub const HOST_ALIGN: usize = 4096;
/// Id of the null page of every pool, which is never copied.
pub const NULL_PAGE: u32 = 0;
/// Most parts of a group: every pair of them is compared once.
const MOST_PARTS: usize = 4096;

/// Whose pages: the two pools of a tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PoolGroup {
    /// Full-attention layers.
    Full,
    /// Sliding-window layers.
    Swa,
}

impl PoolGroup {
    /// Both, in their order.
    pub const BOTH: [PoolGroup; 2] = [PoolGroup::Full, PoolGroup::Swa];

    /// Index into pairs of values.
    pub fn index(self) -> usize {
        self as usize
    }
}

impl fmt::Display for PoolGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(["full", "swa"][self.index()])
    }
}

/// One strided array of pages in device memory: page i is `bytes` bytes at `base + i * page_stride`.
///
/// Page 0 is the null page and never touched: where pools live in chunks of one region, its address may lie before the
/// memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// Address of page 0.
    pub base: usize,
    /// Bytes from one page to the next.
    pub page_stride: usize,
    /// Bytes of this part in each page.
    pub bytes: usize,
    /// The layer that reads it.
    pub layer: u32,
}

/// The pages of one group.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GroupLayout {
    /// In the order of their bytes in a host page; layers ascend.
    parts: Vec<Part>,
    /// Where each part starts in a host page.
    offsets: Vec<usize>,
    /// Pages in device memory with the null page; 0 without parts.
    pages: u32,
    bytes: usize,
    host_bytes: usize,
}

impl GroupLayout {
    fn new(group: PoolGroup, parts: Vec<Part>, pages: u32) -> Result<Self, TierError> {
        if parts.is_empty() && pages == 0 {
            return Ok(GroupLayout::default());
        }
        if parts.is_empty() || parts.len() > MOST_PARTS {
            return Err(TierError::invalid(
                "number of a group's parts",
                format!("{} ({group}, {pages} pages)", parts.len()),
                format!("1 to {MOST_PARTS}, or none and no pages for a group that is absent"),
            ));
        }
        if pages < 2 {
            let allowed = "at least 2: the null page and one more";
            return Err(TierError::invalid("number of a group's pages", format!("{pages} ({group})"), allowed));
        }
        let mut offsets = Vec::with_capacity(parts.len());
        let mut bytes = 0usize;
        for (n, part) in parts.iter().enumerate() {
            let named = |value: usize| format!("{value} (part {n} of {group})");
            if part.bytes == 0 {
                return Err(TierError::invalid("bytes of a part", named(0), "at least 1"));
            }
            if part.page_stride < part.bytes {
                let allowed = format!("at least the part's {} bytes", part.bytes);
                return Err(TierError::invalid("page stride of a part", named(part.page_stride), allowed));
            }
            if part.base.checked_add(part.page_stride).is_none_or(|first| first == 0) || end_of(part, pages).is_none() {
                let allowed = format!("an address at which {pages} pages {} bytes apart fit", part.page_stride);
                return Err(TierError::invalid("base of a part", named(part.base), allowed));
            }
            if n > 0 && part.layer < parts[n - 1].layer {
                let value = format!("{} after {} (part {n} of {group})", part.layer, parts[n - 1].layer);
                return Err(TierError::invalid("layer of a part", value, "ascending layers"));
            }
            offsets.push(bytes);
            bytes = bytes.checked_add(part.bytes).ok_or_else(|| too_large(group))?;
        }
        refuse_overlaps(group, &parts, pages)?;
        let host_bytes = bytes.checked_next_multiple_of(HOST_ALIGN).ok_or_else(|| too_large(group))?;
        // Sums over all pages of a job stay within an i64, whatever it lists.
        host_bytes.checked_mul(pages as usize).filter(|all| *all <= 1 << 60).ok_or_else(|| too_large(group))?;
        Ok(GroupLayout { parts, offsets, pages, bytes, host_bytes })
    }

    /// Parts, in the order of their bytes in a host page.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Where part `n` starts in a host page.
    pub fn offset(&self, n: usize) -> usize {
        self.offsets[n]
    }

    /// Pages in device memory, the null page included; 0 for a group that is absent.
    pub fn pages(&self) -> u32 {
        self.pages
    }

    /// Bytes of a page that are copied.
    pub fn page_bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes of a page in host memory: a multiple of [`HOST_ALIGN`].
    pub fn host_bytes(&self) -> usize {
        self.host_bytes
    }
}

/// The last byte's end, if it has an address.
fn end_of(part: &Part, pages: u32) -> Option<usize> {
    part.page_stride.checked_mul(pages as usize - 1)?.checked_add(part.base)?.checked_add(part.bytes)
}

fn too_large(group: PoolGroup) -> TierError {
    TierError::invalid("bytes of a group", format!("more than can be addressed ({group})"), "at most 2^60")
}

/// No byte of device memory belongs to two parts of a group. Parts of equal strides may lie between each other, as K and
/// V of one array do.
fn refuse_overlaps(group: PoolGroup, parts: &[Part], pages: u32) -> Result<(), TierError> {
    let range = |part: &Part| (part.base + part.page_stride, end_of(part, pages).unwrap_or(usize::MAX));
    for (n, b) in parts.iter().enumerate() {
        for (m, a) in parts[..n].iter().enumerate() {
            let (low, high) = if a.base <= b.base { (a, b) } else { (b, a) };
            let apart = range(a).1 <= range(b).0 || range(b).1 <= range(a).0;
            let between = low.page_stride == high.page_stride && {
                let at = (high.base - low.base) % low.page_stride;
                at >= low.bytes && at + high.bytes <= low.page_stride
            };
            if !apart && !between {
                let value = format!("at bytes of part {m} ({group}, part {n} at address {})", b.base);
                return Err(TierError::invalid("place of a part", value, "bytes of its own"));
            }
        }
    }
    Ok(())
}

/// The parts that one layer reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerStep {
    /// The layer.
    pub layer: u32,
    /// For each group the indices of the layer's parts, which are neighbours.
    pub parts: [std::ops::Range<usize>; 2],
}

/// How the pages of both groups lie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    groups: [GroupLayout; 2],
    steps: Vec<LayerStep>,
}

impl Layout {
    /// `full` and `swa`: parts with ascending layers. `full_pages`, `swa_pages`: pages in device memory, the null page
    /// included; no parts and 0 pages for a group that is absent.
    pub fn new(full: Vec<Part>, full_pages: u32, swa: Vec<Part>, swa_pages: u32) -> Result<Self, TierError> {
        let full = GroupLayout::new(PoolGroup::Full, full, full_pages)?;
        let swa = GroupLayout::new(PoolGroup::Swa, swa, swa_pages)?;
        if full.parts.is_empty() && swa.parts.is_empty() {
            return Err(TierError::invalid("number of groups with parts", 0, "1 or 2"));
        }
        let groups = [full, swa];
        let mut layers: Vec<u32> = groups.iter().flat_map(|g| g.parts.iter().map(|p| p.layer)).collect();
        layers.sort_unstable();
        layers.dedup();
        let run = |group: &GroupLayout, layer: u32| {
            let at = group.parts.partition_point(|p| p.layer < layer);
            at..group.parts.partition_point(|p| p.layer <= layer)
        };
        let steps = layers.into_iter().map(|layer| LayerStep { layer, parts: [0, 1].map(|g| run(&groups[g], layer)) });
        Ok(Layout { steps: steps.collect(), groups })
    }

    /// The pages of one group.
    pub fn group(&self, group: PoolGroup) -> &GroupLayout {
        &self.groups[group.index()]
    }

    /// Number of the order of bytes in host pages: SHA-256 of the tag `mimo-cache pages 1` and, for the full and the SWA
    /// group, the number of parts (u32), and layer (u32) and bytes (u64) of each, little-endian.
    pub fn digest(&self) -> [u8; 32] {
        let mut h = Sha256::new();
        h.update(b"mimo-cache pages 1");
        for group in &self.groups {
            h.update((group.parts.len() as u32).to_le_bytes());
            for part in &group.parts {
                h.update(part.layer.to_le_bytes());
                h.update((part.bytes as u64).to_le_bytes());
            }
        }
        h.finalize().into()
    }

    /// What each layer reads, in ascending order of layers.
    pub fn steps(&self) -> &[LayerStep] {
        &self.steps
    }
}
