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

/// Spans of the first `at` tokens; one that reaches beyond is cut.
pub fn spans_before(spans: &[Span], at: u64) -> Vec<Span> {
    let within = spans.iter().take_while(|s| s.start < at);
    within.map(|s| Span { len: s.len.min(at - s.start), ..*s }).collect()
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

/// Chain keys of some pages of a prompt in a row, so that no page is hashed twice.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PageKeys {
    root: [u8; 32],
    first: u64,
    keys: Vec<[u8; 32]>,
}

/// What is known of a prompt nobody has hashed.
pub static NO_KEYS: PageKeys = PageKeys { root: [0; 32], first: 0, keys: Vec::new() };

impl PageKeys {
    /// Of pages from `first` on, in the namespace with this root key.
    pub fn new(root: [u8; 32], first: u64, keys: Vec<[u8; 32]>) -> Self {
        PageKeys { root, first, keys }
    }

    /// Adds the key of the next page.
    pub fn push(&mut self, key: [u8; 32]) {
        self.keys.push(key);
    }

    /// The key of a page, if it is among them.
    pub fn get(&self, page: u64) -> Option<&[u8; 32]> {
        self.keys.get(usize::try_from(page.checked_sub(self.first)?).ok()?)
    }

    /// The page after the last one.
    pub fn end(&self) -> u64 {
        self.first + self.keys.len() as u64
    }

    /// True when they are of this namespace.
    pub fn is_below(&self, root: &[u8; 32]) -> bool {
        self.root == *root && !self.keys.is_empty()
    }
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

/// Name of a page's bytes in a tier that processes share: of its chain key and of the number of the bytes' layout. Bytes
/// that lie in another order have another name.
pub fn object_key(layout: &[u8; 32], page: &[u8; 32]) -> [u8; 32] {
    let mut h = Sha256::new();
    h.update(b"O");
    h.update(layout);
    h.update(page);
    h.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    fn span(start: u64, len: u64, content: u8) -> Span {
        Span { start, len, hash: [content; 32] }
    }

    #[test]
    fn names_are_bounded() {
        let long = vec![0; MAX_NAME + 1];
        assert!(Key { salt: vec![0; MAX_NAME], adapter: vec![1; MAX_NAME] }.validate().is_ok());
        let message = Key { salt: long.clone(), ..Key::default() }.validate().unwrap_err().to_string();
        assert_eq!(message, "salt is 4097 bytes long, allowed is at most 4096 bytes");
        let message = Key { adapter: long, ..Key::default() }.validate().unwrap_err().to_string();
        assert_eq!(message, "adapter is 4097 bytes long, allowed is at most 4096 bytes");
    }

    #[test]
    fn spans_that_are_wrong_are_named() {
        assert!(validate_spans(&[], 0).is_ok());
        assert!(validate_spans(&[span(0, 3, 1), span(3, 7, 1)], 10).is_ok());
        let cases = [
            vec![span(2, 0, 1)],
            vec![span(0, 11, 1)],
            vec![span(10, 1, 1)],
            vec![span(5, 2, 1), span(0, 2, 1)],
            vec![span(0, 3, 1), span(2, 2, 1)],
            vec![span(u64::MAX, 1, 1)],
            vec![span(1, u64::MAX, 1)],
        ];
        for spans in cases {
            let last = spans.last().unwrap();
            let message = validate_spans(&spans, 10).unwrap_err().to_string();
            assert!(
                message.starts_with(&format!("span is ({}, {}), allowed is sorted", last.start, last.len)),
                "{message}"
            );
        }
        let many = vec![span(0, 1, 1); MAX_SPANS + 1];
        assert!(validate_spans(&many, 10).unwrap_err().to_string().starts_with("number of spans is 65537"));
    }

    /// Root keys of namespaces that differ in one thing, or in where a byte belongs.
    #[test]
    fn namespaces_have_keys_of_their_own() {
        let key = |salt: &[u8], adapter: &[u8]| Key { salt: salt.to_vec(), adapter: adapter.to_vec() };
        let roots = [
            root_key(&[0; 32], b"", &key(b"", b""), 0),
            root_key(&[1; 32], b"", &key(b"", b""), 0),
            root_key(&[0; 32], b"a", &key(b"", b""), 0),
            root_key(&[0; 32], b"", &key(b"a", b""), 0),
            root_key(&[0; 32], b"", &key(b"", b"a"), 0),
            root_key(&[0; 32], b"", &key(b"a", b"a"), 0),
            root_key(&[0; 32], b"", &key(b"aa", b""), 0),
            root_key(&[0; 32], b"", &key(b"\0", b""), 0),
            root_key(&[0; 32], b"", &key(b"", b""), 1),
            root_key(&[0; 32], b"", &key(b"", b""), 1 << 32),
        ];
        assert_eq!(roots.iter().collect::<HashSet<_>>().len(), roots.len());
    }

    proptest! {
        /// Against one look at every token of every page.
        #[test]
        fn page_spans_are_those_of_the_tokens(
            gaps in prop::collection::vec((0u64..5, 1u64..12), 0..6), log_page in 0u32..5, page in 0u64..8,
        ) {
            let mut end = 0;
            let spans: Vec<Span> = gaps.iter().enumerate().map(|(i, (gap, len))| {
                let start = end + gap;
                end = start + len;
                span(start, *len, i as u8)
            }).collect();
            let size = 1u32 << log_page;
            let mut by_token: Vec<PageSpan> = Vec::new();
            for at in 0..size {
                let position = page * u64::from(size) + u64::from(at);
                let Some(s) = spans.iter().find(|s| (s.start..s.start + s.len).contains(&position)) else { continue };
                match by_token.last_mut() {
                    Some(last) if last.hash == s.hash => last.count += 1,
                    _ => by_token.push(PageSpan { at, offset: position - s.start, count: 1, hash: s.hash }),
                }
            }
            prop_assert_eq!(page_spans(&spans, page, size).collect::<Vec<_>>(), by_token);
        }

        /// Any change of the parent, a token, the number of tokens or a span changes the key.
        #[test]
        fn every_bit_of_a_page_counts(
            tokens in prop::collection::vec(any::<u32>(), 1..9), at in any::<prop::sample::Index>(), bit in 0u32..32,
        ) {
            let one = PageSpan { at: 0, offset: 3, count: 1, hash: [7; 32] };
            let key = page_key(&[0; 32], &tokens, [one].into_iter());
            let mut other = tokens.clone();
            other[at.index(tokens.len())] ^= 1 << bit;
            let mut longer = tokens.clone();
            longer.push(0);
            let mut parent = [0; 32];
            parent[bit as usize] = 1;
            let variants = [
                page_key(&[0; 32], &other, [one].into_iter()),
                page_key(&[0; 32], &longer, [one].into_iter()),
                page_key(&parent, &tokens, [one].into_iter()),
                page_key(&[0; 32], &tokens, std::iter::empty()),
                page_key(&[0; 32], &tokens, [one, one].into_iter()),
                page_key(&[0; 32], &tokens, [PageSpan { at: 1, ..one }].into_iter()),
                page_key(&[0; 32], &tokens, [PageSpan { offset: 4, ..one }].into_iter()),
                page_key(&[0; 32], &tokens, [PageSpan { count: 2, ..one }].into_iter()),
                page_key(&[0; 32], &tokens, [PageSpan { hash: [8; 32], ..one }].into_iter()),
            ];
            prop_assert!(variants.iter().all(|v| *v != key));
        }
    }
}
