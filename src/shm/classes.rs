//! Size classes: how a span is cut for values of a given length.
//!
//! Slots grow in steps of at most 1/16 above 16 pages, and a span is as many slabs, up to 16, as it takes for at most 1/16
//! of it to be left over; what is left over then makes the slots larger. Together at most 2/17 (11.8 %) of a span is
//! wasted on values of more than 16 pages, in a file of at least 128 slabs. Shorter values waste less than a page and the
//! same 1/16. Values beyond 8 slabs have a span of their own, which wastes at most 1/9.

use super::layout::{Geometry, HEADER_BYTES, LONG_HEADER_BYTES, PAGE_BYTES};
use super::span::{CHUNK_PAGES, MAX_SLOT_PAGES, SpanShape};

/// Steps of slot sizes from one power of two to the next.
const STEPS: u32 = 16;
/// Most slabs of a span with several slots.
const MOST_SLABS: u32 = 16;
/// Values beyond this many slabs have a span of their own.
const ALONE: u32 = 8;

/// The shapes of a file's spans, by slot size.
#[derive(Debug, Clone)]
pub struct Classes {
    shapes: Vec<SpanShape>,
}

impl Classes {
    /// The classes of a file.
    pub fn of(g: &Geometry) -> Classes {
        let mut shapes: Vec<SpanShape> = Vec::new();
        let biggest = |shapes: &[SpanShape]| shapes.last().map_or(0, |s| s.slot_pages);
        for target in targets(MAX_SLOT_PAGES.min(ALONE * g.slab_pages())) {
            if target > biggest(&shapes) {
                shapes.extend(cut(g, target));
            }
        }
        for slabs in ALONE + 1..=g.slabs {
            let slot_pages = MAX_SLOT_PAGES.min(slabs.saturating_mul(g.slab_pages()));
            if biggest(&shapes) == MAX_SLOT_PAGES {
                break;
            }
            shapes.push(SpanShape { slot_pages, slots: 1, slabs, header_pages: 0 });
        }
        Classes { shapes }
    }

    /// The class of the shortest slots that hold `len` bytes, unless the file is too small for such a value.
    pub fn find(&self, len: u64) -> Option<u32> {
        let at = self.shapes.partition_point(|s| s.slot_bytes() < len);
        (at < self.shapes.len()).then_some(at as u32)
    }

    /// The class of exactly this shape.
    pub fn of_shape(&self, shape: &SpanShape) -> Option<u32> {
        let at = self.shapes.partition_point(|s| s.slot_pages < shape.slot_pages);
        (self.shapes.get(at) == Some(shape)).then_some(at as u32)
    }

    /// How the spans of a class are cut.
    pub fn shape(&self, class: u32) -> SpanShape {
        self.shapes[class as usize]
    }

    /// Number of classes.
    pub fn len(&self) -> usize {
        self.shapes.len()
    }

    /// Longest value the file can hold.
    pub fn max_value_bytes(&self) -> u64 {
        self.shapes.last().map_or(0, SpanShape::slot_bytes)
    }
}

/// Slot sizes to aim at, in pages.
fn targets(most: u32) -> impl Iterator<Item = u32> {
    let steps = (0..).flat_map(|octave| (0..STEPS).map(move |step| (STEPS + step) << octave));
    (1..STEPS).chain(steps).take_while(move |t| *t <= most)
}

/// The shortest span with slots of at least `target` pages that leaves at most 1/16 over, else the one that leaves least.
fn cut(g: &Geometry, target: u32) -> Option<SpanShape> {
    let needed = target.div_ceil(g.slab_pages());
    // Spans are few where slabs are: one class must not take the whole file.
    let most = MOST_SLABS.min(g.slabs / ALONE).max(needed).min(g.slabs);
    let mut best: Option<(f64, SpanShape)> = None;
    for slabs in needed..=most {
        let Some(shape) = cut_slabs(g, target, slabs) else { continue };
        let whole = f64::from(slabs * g.slab_pages());
        let over = 1.0 - f64::from(shape.slots * target) / whole;
        if best.is_none_or(|(least, _)| over < least) {
            best = Some((over, shape));
        }
        if over <= 1.0 / 16.0 {
            break;
        }
    }
    best.map(|(_, shape)| shape)
}

fn cut_slabs(g: &Geometry, target: u32, slabs: u32) -> Option<SpanShape> {
    let whole = slabs * g.slab_pages();
    let stride = if target > CHUNK_PAGES { LONG_HEADER_BYTES } else { HEADER_BYTES } as u32;
    let mut slots = whole / target;
    let mut header_pages = 0;
    if slots * stride > slabs * g.block_bytes {
        let pages = |slots: u32| (slots * stride).div_ceil(PAGE_BYTES as u32);
        while slots > 0 && slots * target + pages(slots) > whole {
            slots -= 1;
        }
        header_pages = pages(slots);
    }
    if slots == 0 {
        return None;
    }
    // A slot of more than one chunk would need a longer header.
    let most = if target <= CHUNK_PAGES { CHUNK_PAGES } else { MAX_SLOT_PAGES };
    let slot_pages = ((whole - header_pages) / slots).min(most);
    Some(SpanShape { slot_pages, slots, slabs, header_pages: header_pages as u16 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::layout::{MAX_SLAB_BYTES, MIN_SLAB_BYTES};
    use crate::shm::object::MAX_VALUE_BYTES;

    fn geometry(slab_bytes: u32, slabs: u64) -> Geometry {
        let each = u64::from(slab_bytes);
        Geometry::of((slabs + 2 + slabs / 200) * each, slab_bytes).unwrap()
    }

    #[test]
    fn every_shape_fits_and_every_length_has_one() {
        for slab in [MIN_SLAB_BYTES, 256 << 10, 1 << 20, MAX_SLAB_BYTES] {
            for slabs in [1, 2, 3, 7, 16, 40, 128, 3000] {
                let g = geometry(slab, slabs);
                let classes = Classes::of(&g);
                for class in 0..classes.len() as u32 {
                    let shape = classes.shape(class);
                    assert!(shape.fits(&g, g.slabs - shape.slabs), "{shape:?} in {g:?}");
                    assert_eq!(classes.find(shape.slot_bytes()), Some(class));
                    assert_eq!(classes.of_shape(&shape), Some(class));
                }
                let most = (u64::from(g.slabs) * u64::from(slab)).min(MAX_VALUE_BYTES);
                assert_eq!(classes.max_value_bytes(), most, "{g:?}");
                assert_eq!((classes.find(most + 1), classes.find(1)), (None, Some(0)));
            }
        }
    }

    #[test]
    fn little_is_wasted() {
        for slab in [MIN_SLAB_BYTES, 1 << 20, MAX_SLAB_BYTES] {
            let g = geometry(slab, 2100);
            let classes = Classes::of(&g);
            assert!(classes.len() < 2200, "{}", classes.len());
            let mut before = 0;
            for class in 0..classes.len() as u32 {
                let s = classes.shape(class);
                // The shortest value of the class, in whole pages.
                let least = before + 1;
                let bytes = f64::from(s.slabs) * f64::from(slab) / f64::from(s.slots);
                let waste = 1.0 - f64::from(least) * PAGE_BYTES as f64 / bytes;
                let allowed =
                    if least > 16 { 0.125 } else { 1.0 - 15.0 / 16.0 * f64::from(least) / f64::from(least + 1) };
                assert!(waste <= allowed, "{least} pages waste {waste:.3} in {s:?} of slabs of {slab}");
                before = s.slot_pages;
            }
        }
    }

    #[test]
    fn powers_of_two_fill_their_slabs() {
        let classes = Classes::of(&geometry(1 << 20, 2000));
        for len in [64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20, 2 << 20, 8 << 20, 64 << 20, 128 << 20] {
            let s = classes.shape(classes.find(len).unwrap());
            assert_eq!(u64::from(s.slots) * len, u64::from(s.slabs) << 20, "{s:?}");
        }
    }
}
