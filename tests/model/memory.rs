//! The fake device: two arrays of pages of rows. A row is a canary, it says exactly which KV it stands for.
//!
//! `prefix` stands for everything a KV row depends on: the namespace, all tokens up to and including its position and
//! the contents of the spans among them. A page full of old rows is never cleared, so whatever a wrong table points at
//! is something else's KV, as on a real device.

use super::setup::Setup;
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

/// All rows of a page.
pub type Rows = Vec<Option<Row>>;

/// A page of one pool.
pub type Page = (Group, u32);

/// Both pools' pages; index 0 is the null page and must never be written.
///
/// With a region both pools lie over the same bytes, chunk by chunk: a page of one is a few cells that pages of the
/// other share. Who writes a page takes its cells, and what lay there before is gone.
pub struct Memory {
    page_size: usize,
    full: Vec<Option<Row>>,
    swa: Vec<Option<Row>>,
    region: Option<Cells>,
}

/// A chunk of `full` full pages or `swa` SWA pages has `full * swa` cells, so that a page of either is whole cells.
struct Cells {
    full: u32,
    swa: u32,
    /// The page that was written there last.
    holder: Vec<Page>,
}

impl Cells {
    fn of(&self, (group, id): Page) -> std::ops::Range<usize> {
        let (per, size) = if group == Group::Full { (self.full, self.swa) } else { (self.swa, self.full) };
        let (chunk, at) = ((id - 1) / per, (id - 1) % per);
        let start = (chunk * self.full * self.swa + at * size) as usize;
        start..start + size as usize
    }

    fn is_whole(&self, page: Page) -> bool {
        self.holder[self.of(page)].iter().all(|&h| h == page)
    }
}

impl Memory {
    pub fn new(setup: &Setup) -> Memory {
        let rows = |pages: u32| vec![None; (pages as usize + 1) * setup.page as usize];
        let region = setup.region.as_ref().map(|r| Cells {
            full: r.full_pages,
            swa: r.swa_pages,
            holder: vec![(Group::Full, 0); (r.chunks * r.full_pages * r.swa_pages) as usize],
        });
        Memory { page_size: setup.page as usize, full: rows(setup.full_pages), swa: rows(setup.swa_pages), region }
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

    /// True when the pages share bytes.
    pub fn overlap(&self, a: Page, b: Page) -> bool {
        a == b
            || self.region.as_ref().is_some_and(|cells| {
                let (a, b) = (cells.of(a), cells.of(b));
                a.start < b.end && b.start < a.end
            })
    }

    /// The row at `position` of a page that holds positions like it, if nothing was written over the page since.
    pub fn row(&self, page: Page, position: u64) -> Option<Row> {
        let row = self.group(page.0)[self.index(page, position)];
        row.filter(|_| self.region.as_ref().is_none_or(|cells| cells.is_whole(page)))
    }

    /// Writes all rows of a page.
    pub fn set_page(&mut self, page: Page, rows: &[Option<Row>]) {
        self.take(page);
        let first = self.index(page, 0);
        let memory = if page.0 == Group::Full { &mut self.full } else { &mut self.swa };
        memory[first..first + rows.len()].copy_from_slice(rows);
    }

    /// All rows of a page.
    pub fn page(&self, page: Page) -> Vec<Option<Row>> {
        (0..self.page_size as u64).map(|i| self.row(page, i)).collect()
    }

    /// The bytes of a page become this page's; what the other pool had there is lost, and old rows of its own with it.
    fn take(&mut self, page: Page) {
        let Some(cells) = &mut self.region else { return };
        if !cells.is_whole(page) {
            let range = cells.of(page);
            cells.holder[range].fill(page);
            let (first, size) = (self.index(page, 0), self.page_size);
            let rows = if page.0 == Group::Full { &mut self.full } else { &mut self.swa };
            rows[first..first + size].fill(None);
        }
    }

    pub fn write(&mut self, id: u32, row: Row) {
        self.take((row.group, id));
        let at = self.index((row.group, id), row.position);
        if row.group == Group::Full { self.full[at] = Some(row) } else { self.swa[at] = Some(row) }
    }

    pub fn copy(&mut self, copy: &PageCopy) {
        assert_ne!(copy.src, copy.dst, "a page copied onto itself: {copy:?}");
        let size = self.page_size as u64;
        let rows: Vec<_> = (0..size).map(|i| self.row((copy.group, copy.src), i)).collect();
        self.take((copy.group, copy.dst));
        for (i, row) in (0..size).zip(rows) {
            let at = self.index((copy.group, copy.dst), i);
            if copy.group == Group::Full { self.full[at] = row } else { self.swa[at] = row }
        }
    }
}

/// One step of a 64-bit hash (splitmix64); only the tests' own canaries depend on it.
pub fn mix(state: u64, value: u64) -> u64 {
    let mut z = (state ^ value.wrapping_mul(0xff51_afd7_ed55_8ccd)).wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
