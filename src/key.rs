//! Chain keys: SHA-256 over the parent key, the tokens and the multimodal spans of one page.
//!
//! The encoding is byte for byte in `docs/keys.md`, with vectors in `tests/vectors/keys.json`. Keys are for events, for
//! ghosts and for tiers outside this process; lookups inside the process compare tokens.

use crate::error::{Error, Result};
use sha2::{Digest, Sha256};

/// Longest salt, adapter or weights version, in bytes.
pub const MAX_NAME: usize = 4096;
/// Most spans of one request.
pub const MAX_SPANS: usize = 1 << 16;

/// What the caller adds to the namespace of a request.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Key {
    /// Free bytes; requests with different salts never share a page.
    pub salt: Vec<u8>,
    /// Adapter (LoRA) id; empty for none.
    pub adapter: Vec<u8>,
}

impl Key {
    /// Checks the lengths.
    pub fn validate(&self) -> Result<()> {
        for (what, v) in [("salt", &self.salt), ("adapter", &self.adapter)] {
            if v.len() > MAX_NAME {
                let value = format!("{} bytes long", v.len());
                return Err(Error::invalid(what, value, format!("at most {MAX_NAME} bytes")));
            }
        }
        Ok(())
    }
}

/// A multimodal span of a request: `len` placeholder tokens from `start`, whose KV depends on `hash`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// First token.
    pub start: u64,
    /// Tokens.
    pub len: u64,
    /// SHA-256 of the content.
    pub hash: [u8; 32],
}

/// The part of a [`Span`] that lies in one page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageSpan {
    /// First token, counted from the start of the page.
    pub at: u32,
    /// The same token, counted from the start of the span.
    pub offset: u64,
    /// Tokens in this page.
    pub count: u32,
    /// SHA-256 of the content.
    pub hash: [u8; 32],
}

/// Checks that spans are not empty, sorted and disjoint and end inside a prompt of `tokens` tokens.
pub fn validate_spans(spans: &[Span], tokens: u64) -> Result<()> {
    if spans.len() > MAX_SPANS {
        return Err(Error::invalid("number of spans", spans.len(), format!("at most {MAX_SPANS}")));
    }
    let mut end = 0u64;
    for s in spans {
        let stop = s.start.checked_add(s.len);
        if s.len == 0 || s.start < end || stop.is_none_or(|e| e > tokens) {
            let value = format!("({}, {})", s.start, s.len);
            let allowed = format!("sorted, disjoint, not empty spans (start, len) inside the {tokens} tokens");
            return Err(Error::invalid("span", value, allowed));
        }
        end = stop.unwrap_or(u64::MAX);
    }
    Ok(())
}

/// The parts of `spans` inside page `page`, in order. Linear in the overlapping spans after a binary search.
pub fn page_spans(spans: &[Span], page: u64, page_size: u32) -> impl Iterator<Item = PageSpan> + '_ {
    let lo = page * u64::from(page_size);
    let hi = lo + u64::from(page_size);
    let first = spans.partition_point(|s| s.start + s.len <= lo);
    spans[first..].iter().take_while(move |s| s.start < hi).map(move |s| {
        let from = s.start.max(lo);
        let to = (s.start + s.len).min(hi);
        PageSpan { at: (from - lo) as u32, offset: from - s.start, count: (to - from) as u32, hash: s.hash }
    })
}

fn field(h: &mut Sha256, bytes: &[u8]) {
    h.update((bytes.len() as u32).to_le_bytes());
    h.update(bytes);
}

/// Key of a namespace's root.
pub fn root_key(fingerprint: &[u8; 32], weights: &[u8], key: &Key, generation: u64) -> [u8; 32] {
    let mut h = Sha256::new();
    h.update(b"mimo-cache root 1");
    field(&mut h, fingerprint);
    field(&mut h, weights);
    field(&mut h, &key.adapter);
    field(&mut h, &key.salt);
    field(&mut h, &generation.to_le_bytes());
    h.finalize().into()
}

/// Key of a page below `parent`.
pub fn page_key(parent: &[u8; 32], tokens: &[u32], spans: impl Iterator<Item = PageSpan>) -> [u8; 32] {
    let mut h = Sha256::new();
    h.update(b"P");
    h.update(parent);
    h.update((tokens.len() as u32).to_le_bytes());
    if cfg!(target_endian = "little") {
        // SAFETY: u32 has no padding and every byte pattern is a valid u8.
        h.update(unsafe { std::slice::from_raw_parts(tokens.as_ptr().cast::<u8>(), tokens.len() * 4) });
    } else {
        tokens.iter().for_each(|t| h.update(t.to_le_bytes()));
    }
    for s in spans {
        h.update(b"S");
        h.update(s.at.to_le_bytes());
        h.update(s.offset.to_le_bytes());
        h.update(s.count.to_le_bytes());
        h.update(s.hash);
    }
    h.finalize().into()
}
