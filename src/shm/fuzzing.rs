//! Entry points of the fuzz targets: bytes are read as if they stood in the file. With `mend` their checksums are made
//! right first, since random bytes never get beyond them. Not part of the library's interface.

use super::header::Header;
use super::layout::Geometry;
use super::span::SpanShape;
use super::superblock::{self, Page};

/// Reads a superblock; one that is accepted must be what would be written.
pub fn read_superblock(bytes: &[u8], mend: bool) {
    let mut page: Page = [0; size_of::<Page>()];
    let len = bytes.len().min(page.len());
    page[..len].copy_from_slice(&bytes[..len]);
    if mend {
        superblock::mend(&mut page);
    }
    let unfinished = superblock::is_unfinished(&page);
    if let Ok(found) = superblock::read(&page) {
        assert!(!unfinished && found.geometry.slabs > 0);
        let g = &found.geometry;
        assert!(g.slab_at(g.slabs) <= g.file_bytes && g.block_at(g.slabs) <= g.slabs_at, "{g:?}");
        assert_eq!(superblock::read(&page_of(&found.encode())), Ok(found));
    }
}

/// Reads an entry of the slab table and then a slot header of that span, or of any slot where the entry is damaged.
pub fn read_slot(bytes: &[u8], mend: bool) {
    let geometry = Geometry::of(64 << 20, 64 << 10).expect("a size within the limits");
    let Some((&first, rest)) = bytes.split_first_chunk::<4>() else { return };
    let Some((entry, rest)) = rest.split_first_chunk::<32>() else { return };
    let first = u32::from_le_bytes(first) % geometry.slabs;
    let mut words = std::array::from_fn(|n| u64::from_le_bytes(entry[8 * n..8 * n + 8].try_into().expect("eight")));
    if mend {
        SpanShape::mend(&mut words, first);
    }
    let mut slot_bytes = 1 << 20;
    if let Ok(Some(shape)) = SpanShape::decode(words, &geometry, first) {
        slot_bytes = shape.slot_bytes();
        for slot in [0, shape.slots - 1] {
            assert!(shape.slot_at(&geometry, first, slot) + slot_bytes <= geometry.file_bytes, "{shape:?}");
            assert!(shape.header_at(&geometry, first, slot) + shape.stride() <= geometry.file_bytes, "{shape:?}");
        }
        assert_eq!(shape.encode(first, words[0] >> 8), words);
    }
    let mut header = rest.to_vec();
    if mend {
        Header::mend(&mut header);
    }
    if let Ok(found) = Header::decode(&header, slot_bytes) {
        assert!(found.meta.put.validate().is_ok() && found.meta.put.len <= slot_bytes);
        let again: Vec<u8> = found.encode().iter().flat_map(|w| w.to_le_bytes()).collect();
        let mut padded = again;
        padded.resize(header.len().max(padded.len()), 0);
        assert_eq!(Header::decode(&padded, slot_bytes), Ok(found));
    }
}

fn page_of(words: &[u64]) -> Page {
    let mut page: Page = [0; size_of::<Page>()];
    for (to, word) in page.chunks_exact_mut(8).zip(words) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    page
}

#[cfg(test)]
mod tests {
    /// What the fuzzers do, for a moment, with bytes of which most are zero.
    #[test]
    fn random_bytes_are_read_or_refused() {
        let mut x = 1u64;
        let mut next = move || {
            x = x.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            x >> 33
        };
        for case in 0..3000 {
            let mut bytes = vec![0u8; (next() % 900) as usize];
            for _ in 0..next() % 40 {
                let at = next() as usize % bytes.len().max(1);
                bytes.iter_mut().skip(at).take(1).for_each(|b| *b = next() as u8);
            }
            super::read_superblock(&bytes, case % 2 == 0);
            super::read_slot(&bytes, case % 2 == 0);
        }
    }
}
