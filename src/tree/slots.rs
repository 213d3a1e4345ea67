//! Tree pages ("slots"): tokens, page ids and key of every page in the tree, in chunks of parallel arrays.
//!
//! A slot keeps its id for as long as its page is in the tree, whatever happens to the nodes around it, so leases,
//! cursors and checkpoints name slots. Consecutive pages of one prefix get consecutive slots where room allows; a
//! [`Run`] of them is compared as one slice.

use crate::key::{PageSpan, Span, page_spans};
use crate::policy::NIL;
use crate::pool::big::BigArray;
use std::collections::BTreeMap;

/// Bytes of tokens from which chunks are large.
const LARGE: u64 = 16 << 20;

/// Consecutive slots inside one chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// First slot.
    pub start: u32,
    /// Slots.
    pub len: u32,
}

/// One bit per slot of a chunk.
pub type Bits = Box<[u64]>;

#[derive(Debug)]
struct Chunk {
    tokens: BigArray,
    key: Box<[[u8; 32]]>,
    full: Box<[u32]>,
    swa: Box<[u32]>,
    node: Box<[u32]>,
    generation: Box<[u32]>,
    ckpt: Box<[u32]>,
    used: Bits,
    has_swa: Bits,
    has_span: Bits,
    flags: Box<[u8]>,
    free: u32,
    queued: bool,
}

/// Flags of a slot, for events.
pub mod flag {
    /// Its change waits for the end of the call.
    pub const DIRTY: u8 = 1;
    /// Full KV was announced.
    pub const FULL: u8 = 2;
    /// SWA KV was announced.
    pub const SWA: u8 = 4;
    /// The boundary at its end was announced as window-safe.
    pub const SAFE: u8 = 8;
}

/// All slots.
#[derive(Debug)]
pub struct Slots {
    page: usize,
    shift: u32,
    mask: u32,
    chunks: Vec<Chunk>,
    current: Option<u32>,
    cursor: u32,
    partial: Vec<u32>,
    spans: BTreeMap<u32, Box<[PageSpan]>>,
    live: u64,
}

impl Slots {
    /// No slots yet. Chunks hold 2 MiB of tokens where `pages` pages are enough for several of them, else 256 KiB.
    pub fn new(page_size: u32, pages: u64) -> Self {
        let large = pages * u64::from(page_size) * 4 >= LARGE;
        let tokens: u32 = if large { 524_288 } else { 65_536 };
        let shift = (tokens / page_size).clamp(64, tokens).ilog2();
        Slots {
            page: page_size as usize,
            shift,
            mask: (1 << shift) - 1,
            chunks: Vec::new(),
            current: None,
            cursor: 0,
            partial: Vec::new(),
            spans: BTreeMap::new(),
            live: 0,
        }
    }

    fn at(&self, slot: u32) -> (&Chunk, usize) {
        (&self.chunks[(slot >> self.shift) as usize], (slot & self.mask) as usize)
    }

    fn at_mut(&mut self, slot: u32) -> (&mut Chunk, usize) {
        (&mut self.chunks[(slot >> self.shift) as usize], (slot & self.mask) as usize)
    }

    fn new_chunk(&self) -> Chunk {
        let n = 1usize << self.shift;
        Chunk {
            tokens: BigArray::new(n * self.page),
            key: vec![[0; 32]; n].into(),
            full: vec![0; n].into(),
            swa: vec![0; n].into(),
            node: vec![NIL; n].into(),
            generation: vec![0; n].into(),
            ckpt: vec![NIL; n].into(),
            used: vec![0; n / 64].into(),
            has_swa: vec![0; n / 64].into(),
            has_span: vec![0; n / 64].into(),
            flags: vec![0; n].into(),
            free: n as u32,
            queued: false,
        }
    }

    /// Takes up to `want` consecutive slots, at least one.
    pub fn allocate(&mut self, want: u32) -> Run {
        let size = 1u32 << self.shift;
        loop {
            let c = match self.current {
                Some(c) => c,
                None => {
                    let c = self.partial.pop().unwrap_or_else(|| {
                        let chunk = self.new_chunk();
                        self.chunks.push(chunk);
                        self.chunks.len() as u32 - 1
                    });
                    self.chunks[c as usize].queued = false;
                    self.cursor = 0;
                    self.current = Some(c);
                    c
                }
            };
            let chunk = &mut self.chunks[c as usize];
            let mut at = self.cursor;
            while at < size {
                let free = !chunk.used[at as usize / 64] >> (at % 64);
                if free != 0 {
                    at += free.trailing_zeros();
                    break;
                }
                at = (at / 64 + 1) * 64;
            }
            if at >= size || chunk.free == 0 {
                chunk.tokens.written();
                self.current = None;
                continue;
            }
            let mut end = at;
            while end < size && end - at < want {
                let used = chunk.used[end as usize / 64] >> (end % 64);
                let run = if used == 0 { 64 - end % 64 } else { used.trailing_zeros() };
                if run == 0 {
                    break;
                }
                end += run.min(want - (end - at));
            }
            for s in at..end {
                chunk.used[s as usize / 64] |= 1 << (s % 64);
            }
            chunk.free -= end - at;
            self.live += u64::from(end - at);
            self.cursor = end;
            return Run { start: (c << self.shift) + at, len: end - at };
        }
    }

    /// Gives a slot back; its generation rises.
    pub fn free(&mut self, slot: u32) {
        let (chunk, i) = self.at_mut(slot);
        debug_assert!(chunk.full[i] == 0 && chunk.swa[i] == 0 && chunk.ckpt[i] == NIL);
        chunk.generation[i] = chunk.generation[i].wrapping_add(1);
        chunk.node[i] = NIL;
        chunk.flags[i] = 0;
        chunk.used[i / 64] &= !(1 << (i % 64));
        chunk.free += 1;
        let spanned = chunk.has_span[i / 64] & (1 << (i % 64)) != 0;
        chunk.has_span[i / 64] &= !(1 << (i % 64));
        // A chunk is used again once an eighth of it is free, so that holes cost at most that much memory.
        let c = slot >> self.shift;
        let eighth = 1 << (self.shift - 3);
        let chunk = &mut self.chunks[c as usize];
        if !chunk.queued && chunk.free >= eighth && self.current != Some(c) {
            chunk.queued = true;
            self.partial.push(c);
        }
        if spanned {
            self.spans.remove(&slot);
        }
        self.live -= 1;
    }

    /// Slots in use.
    pub fn live(&self) -> u64 {
        self.live
    }

    /// Bytes of all chunks.
    pub fn bytes(&self) -> u64 {
        let per_slot = self.page as u64 * 4 + 32 + 5 * 4 + 1 + 1;
        (self.chunks.len() as u64) * (per_slot << self.shift)
    }

    /// Writes tokens and spans of a new slot.
    pub fn write(&mut self, slot: u32, tokens: &[u32], spans: &[Span], page: u64) {
        let size = self.page;
        let (chunk, i) = self.at_mut(slot);
        chunk.tokens[i * size..(i + 1) * size].copy_from_slice(tokens);
        if !spans.is_empty() {
            let parts: Box<[PageSpan]> = page_spans(spans, page, size as u32).collect();
            if !parts.is_empty() {
                chunk.has_span[i / 64] |= 1 << (i % 64);
                self.spans.insert(slot, parts);
            }
        }
    }

    /// Tokens of a run.
    pub fn tokens(&self, run: Run) -> &[u32] {
        let (chunk, i) = self.at(run.start);
        &chunk.tokens[i * self.page..(i + run.len as usize) * self.page]
    }

    /// Spans of a slot's page.
    pub fn spans(&self, slot: u32) -> &[PageSpan] {
        self.spans.get(&slot).map_or(&[], |s| s)
    }

    /// True when no page has a span.
    pub fn without_spans(&self) -> bool {
        self.spans.is_empty()
    }

    /// Pages at the start of `run` whose tokens and spans equal those of the query from page `page` on.
    pub fn common(&self, run: Run, query: &[u32], spans: &[Span], page: u64) -> u32 {
        let p = self.page;
        let own = self.tokens(run);
        let n = own.len().min(query.len() / p * p);
        let (own, query) = (&own[..n], &query[..n]);
        let mut same = 0;
        // Compared in blocks that stay in the first-level cache, then page by page inside the block that differs.
        let block = p.max(2048);
        while same < n {
            let end = (same + block).min(n);
            if own[same..end] != query[same..end] {
                while own[same..same + p] == query[same..same + p] {
                    same += p;
                }
                break;
            }
            same = end;
        }
        let mut pages = (same / p) as u32;
        if !(self.spans.is_empty() && spans.is_empty()) {
            pages = (0..pages)
                .find(|&i| {
                    let theirs = self.spans(run.start + i);
                    !page_spans(spans, page + u64::from(i), p as u32).eq(theirs.iter().copied())
                })
                .unwrap_or(pages);
        }
        pages
    }

    /// Bits of the 64 slots around `slot` that have SWA KV, and the slot's place among them.
    pub fn swa_bits(&self, slot: u32) -> (u64, u32) {
        let (chunk, i) = self.at(slot);
        (chunk.has_swa[i / 64], (i % 64) as u32)
    }

    /// Calls `f` with the SWA pages of a run.
    pub fn each_swa(&self, run: Run, mut f: impl FnMut(u32)) {
        let (chunk, first) = self.at(run.start);
        let end = first + run.len as usize;
        let mut i = first;
        while i < end {
            let bits = chunk.has_swa[i / 64] >> (i % 64);
            if bits == 0 {
                i = (i / 64 + 1) * 64;
                continue;
            }
            i += bits.trailing_zeros() as usize;
            if i < end {
                f(chunk.swa[i]);
            }
            i += 1;
        }
    }

    /// True when run `b` continues run `a` inside one chunk.
    pub fn joins(&self, a: Run, b: Run) -> bool {
        a.start + a.len == b.start && a.start >> self.shift == b.start >> self.shift
    }

    /// Full page ids of a run.
    pub fn full_ids(&self, run: Run) -> &[u32] {
        let (chunk, i) = self.at(run.start);
        &chunk.full[i..i + run.len as usize]
    }

    /// Full page id, 0 without.
    pub fn full(&self, slot: u32) -> u32 {
        let (c, i) = self.at(slot);
        c.full[i]
    }
    /// Sets the full page id.
    pub fn set_full(&mut self, slot: u32, id: u32) {
        let (c, i) = self.at_mut(slot);
        c.full[i] = id;
    }
    /// SWA page id, 0 without.
    pub fn swa(&self, slot: u32) -> u32 {
        let (c, i) = self.at(slot);
        c.swa[i]
    }
    /// Sets the SWA page id.
    pub fn set_swa(&mut self, slot: u32, id: u32) {
        let (c, i) = self.at_mut(slot);
        c.swa[i] = id;
        let bit = 1 << (i % 64);
        if id == 0 { c.has_swa[i / 64] &= !bit } else { c.has_swa[i / 64] |= bit }
    }
    /// Chain key.
    pub fn key(&self, slot: u32) -> &[u8; 32] {
        let (c, i) = self.at(slot);
        &c.key[i]
    }
    /// Sets the chain key.
    pub fn set_key(&mut self, slot: u32, key: [u8; 32]) {
        let (c, i) = self.at_mut(slot);
        c.key[i] = key;
    }
    /// Node that holds the slot.
    pub fn node(&self, slot: u32) -> u32 {
        let (c, i) = self.at(slot);
        c.node[i]
    }
    /// Names the node of a whole run.
    pub fn set_node(&mut self, run: Run, node: u32) {
        let (c, i) = self.at_mut(run.start);
        c.node[i..i + run.len as usize].fill(node);
    }
    /// Checkpoint at the slot's end, or [`NIL`].
    pub fn ckpt(&self, slot: u32) -> u32 {
        let (c, i) = self.at(slot);
        c.ckpt[i]
    }
    /// Sets the checkpoint.
    pub fn set_ckpt(&mut self, slot: u32, id: u32) {
        let (c, i) = self.at_mut(slot);
        c.ckpt[i] = id;
    }
    /// Event flags.
    pub fn flags(&self, slot: u32) -> u8 {
        let (c, i) = self.at(slot);
        c.flags[i]
    }
    /// Sets and clears event flags.
    pub fn change_flags(&mut self, slot: u32, set: u8, clear: u8) {
        let (c, i) = self.at_mut(slot);
        c.flags[i] = (c.flags[i] | set) & !clear;
    }
    /// Generation of the slot; a different page later has a different one.
    pub fn generation(&self, slot: u32) -> u32 {
        let (c, i) = self.at(slot);
        c.generation[i]
    }
    /// True while the slot holds the page it held at `generation`.
    pub fn is_live(&self, slot: u32, generation: u32) -> bool {
        let (c, i) = self.at(slot);
        c.generation[i] == generation && c.node[i] != NIL
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_contiguous_and_holes_come_back() {
        let mut s = Slots::new(64, 0);
        let a = s.allocate(1000);
        let b = s.allocate(1000);
        assert_eq!((a, b), (Run { start: 0, len: 1000 }, Run { start: 1000, len: 24 }));
        let c = s.allocate(976);
        assert_eq!(c, Run { start: 1024, len: 976 });
        for slot in 100..300 {
            s.set_node(Run { start: slot, len: 1 }, 1);
            s.free(slot);
        }
        let d = s.allocate(48);
        assert_eq!(d, Run { start: 2000, len: 48 });
        assert_eq!(s.allocate(500), Run { start: 100, len: 200 });
        assert_eq!(s.generation(100), 1);
    }

    #[test]
    fn common_counts_whole_pages() {
        let mut s = Slots::new(4, 0);
        let run = s.allocate(3);
        let text: Vec<u32> = (0..12).collect();
        (0..3).for_each(|i| s.write(run.start + i, &text[i as usize * 4..][..4], &[], u64::from(i)));
        assert_eq!(s.common(run, &text, &[], 0), 3);
        assert_eq!(s.common(run, &text[..11], &[], 0), 2);
        let mut other = text.clone();
        other[5] = 99;
        assert_eq!(s.common(run, &other, &[], 0), 1);
        let span = Span { start: 2, len: 4, hash: [1; 32] };
        assert_eq!(s.common(run, &text, &[span], 0), 0);
    }
}
