//! From a page to its bucket: consecutive pages of one prefix travel together.

/// The extent of a page: `page_index / extent_pages`. `extent_pages` is at least 1.
pub fn extent_of(page_index: u32, extent_pages: u32) -> u32 {
    page_index / extent_pages
}

/// The bucket of an extent, from the chain key of its first page: the key's first 8 bytes, little-endian, modulo the
/// table's size, which is a power of two. Keys are SHA-256, so any bits are as good as others.
pub fn bucket_of(first_key: &[u8; 32], buckets: u32) -> u32 {
    debug_assert!(buckets.is_power_of_two());
    let word = u64::from_le_bytes(first_key[..8].try_into().expect("a key has 32 bytes"));
    (word & u64::from(buckets - 1)) as u32
}
