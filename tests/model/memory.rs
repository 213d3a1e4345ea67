//! The fake device: two arrays of pages of rows. A row is a canary, it says exactly which KV it stands for.
//!
//! `prefix` stands for everything a KV row depends on: the namespace, all tokens up to and including its position and
//! the contents of the spans among them. A page full of old rows is never cleared, so whatever a wrong table points at
//! is something else's KV, as on a real device.

use mimo_cache::cache::{Group, PageCopy};

/// Most MTP heads a row can speak of.
pub const HEADS: usize = 4;
/// "Made with a token nobody knew": a draft that may be wrong, or nothing.
pub const STALE: u32 = u32::MAX;

/// What one row of KV was computed from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    pub group: Group,
    pub namespace: u32,
    pub prefix: u64,
    pub position: u64,
    /// The sequence that computed it, for reading a failure.
    pub writer: u32,
    /// SWA only: the token at `position + k + 1` with which the row of MTP head k was made.
    pub mtp: [u32; HEADS],
}

/// A page of one pool.
pub type Page = (Group, u32);

/// Both pools' pages; index 0 is the null page and must never be written.
pub struct Memory {
    page_size: usize,
    full: Vec<Option<Row>>,
    swa: Vec<Option<Row>>,
}

impl Memory {
    pub fn new(page_size: u32, full_pages: u32, swa_pages: u32) -> Memory {
        let rows = |pages: u32| vec![None; (pages as usize + 1) * page_size as usize];
        Memory { page_size: page_size as usize, full: rows(full_pages), swa: rows(swa_pages) }
    }

    fn index(&self, (group, id): Page, position: u64) -> usize {
        let len = self.group(group).len() / self.page_size;
        assert!(id != 0, "{group:?} page 0 was handed out for position {position}");
        assert!((id as usize) < len, "{group:?} page {id} does not exist, the pool has {len}");
        id as usize * self.page_size + (position as usize) % self.page_size
    }

    fn group(&self, group: Group) -> &Vec<Option<Row>> {
        if group == Group::Full { &self.full } else { &self.swa }
    }

    /// The row at `position` of a page that holds positions like it.
    pub fn row(&self, page: Page, position: u64) -> Option<Row> {
        self.group(page.0)[self.index(page, position)]
    }

    pub fn write(&mut self, id: u32, row: Row) {
        let at = self.index((row.group, id), row.position);
        if row.group == Group::Full { self.full[at] = Some(row) } else { self.swa[at] = Some(row) }
    }

    pub fn copy(&mut self, copy: &PageCopy) {
        let (src, dst) = (self.index((copy.group, copy.src), 0), self.index((copy.group, copy.dst), 0));
        assert_ne!(src, dst, "a page copied onto itself: {copy:?}");
        let size = self.page_size;
        let rows = if copy.group == Group::Full { &mut self.full } else { &mut self.swa };
        rows.copy_within(src..src + size, dst);
    }
}

/// One step of a 64-bit hash (splitmix64); only the tests' own canaries depend on it.
pub fn mix(state: u64, value: u64) -> u64 {
    let mut z = (state ^ value.wrapping_mul(0xff51_afd7_ed55_8ccd)).wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
