//! One point of the sweep: a cache's layout and what kind of engine drives it. Made from a few small numbers, so that
//! proptest shrinks it and a fuzzer's bytes can name it.

use mimo_cache::cache::CacheConfig;
use mimo_cache::policy::{PolicyKind, Retention};
use mimo_cache::pool::Region;

#[derive(Debug, Clone)]
pub struct Setup {
    pub page: u32,
    pub window: u32,
    pub n_mtp: u32,
    /// Draft tokens of a decode round.
    pub drafts: u32,
    pub full_pages: u32,
    pub swa_pages: u32,
    pub scratch: u32,
    pub retention: &'static str,
    pub policy: PolicyKind,
    pub events: u32,
    pub ghosts: u32,
    /// Token ids are below this; small, so that prefixes collide.
    pub alphabet: u32,
    /// Both pools in one region; `full_pages` and `swa_pages` are then the ids of all its chunks.
    pub region: Option<Region>,
}

const RETENTION: [&str; 6] = [
    "prompt_end+branch",
    "prompt_end",
    "prompt_end+branch+seq_end",
    "branch+seq_end+sup1",
    "branch+stride4+sup2",
    "branch+seq_end+dense2:16+stride8+sup1",
];

impl Setup {
    /// A roomy cache with both groups. Stories are told of LRU, whose order needs no history.
    pub fn roomy(page: u32, window: u32, n_mtp: u32) -> Setup {
        Setup {
            page,
            window,
            n_mtp,
            drafts: n_mtp,
            full_pages: 400,
            swa_pages: 400,
            scratch: 100,
            retention: RETENTION[0],
            policy: PolicyKind::Lru,
            events: 4096,
            ghosts: 64,
            alphabet: 1000,
            region: None,
        }
    }

    /// The same model with its pools in a region of a few chunks: three bytes more.
    pub fn decode_region(b: [u8; 10], [shape, size, start]: [u8; 3]) -> Setup {
        // Both groups, and an SWA part from one window on: the chunks decide the rest.
        let mut setup = Setup::decode([b[0], b[1], b[2] % 6, b[3], b[4], b[5], 7, b[7], b[8], b[9]]);
        let (full_pages, swa_pages) = (1 + u32::from(shape % 7), 1 + u32::from(shape / 7 % 4));
        let min_swa_chunks = setup.least_swa().div_ceil(swa_pages);
        let least_full = (3 + u32::from(b[5]) % 16).div_ceil(full_pages);
        // Mostly one or two chunks beyond the least, so that the pools are full soon.
        let spare = 1 + u32::from(size % 4) + u32::from(size > 200) * u32::from(size % 16);
        let chunks = min_swa_chunks + least_full + spare;
        setup.give_region(Region {
            chunks,
            full_pages,
            swa_pages,
            full_chunks: least_full + u32::from(start) % (spare + 1),
            min_full_chunks: if shape > 127 { least_full } else { 0 },
            min_swa_chunks: 0,
            adaptive: shape.is_multiple_of(2),
        });
        setup
    }

    /// Puts both pools in a region.
    pub fn give_region(&mut self, region: Region) {
        (self.full_pages, self.swa_pages) = (region.full_ids() as u32, region.swa_ids() as u32);
        self.region = Some(region);
    }

    /// Every byte sequence names a valid layout; zeros name the smallest one.
    pub fn decode(b: [u8; 10]) -> Setup {
        let pick = |list: &[u32], byte: u8| list[byte as usize % list.len()];
        let page = pick(&[1, 2, 4, 1, 2, 4, 2, 4, 2, 16, 64], b[0]);
        let window = if page >= 16 { pick(&[0, 3, 16, 40, 128], b[1]) } else { u32::from(b[1] % 9) };
        let groups = b[2] % 8; // 0 to 5 both, 6 full only, 7 SWA only
        let n_mtp = if groups == 6 { 0 } else { u32::from(b[3] % 4) };
        let drafts = u32::from(b[4] % 5);
        let quota = window_quota(page, window, n_mtp);
        let slack = (window + n_mtp).div_ceil(page) + 1; // copies and leased sources of one open
        // From room for one window, which is the least there may be, to room for many.
        let windows = match u32::from(b[6] % 8) {
            7 => quota,
            n => quota + slack + (n * n * quota) / 8 + u32::from(b[6] / 8) % 5,
        };
        let scratch = [0, 1, 2, 4, 8, 16][b[7] as usize % 6];
        let policies: Vec<PolicyKind> = PolicyKind::all().collect();
        Setup {
            page,
            window,
            n_mtp,
            drafts,
            full_pages: if groups == 7 { 0 } else { 3 + u32::from(b[5]) % 44 },
            swa_pages: if groups == 6 { 0 } else { windows + scratch },
            scratch: if groups == 6 { 0 } else { scratch },
            retention: RETENTION[b[8] as usize % RETENTION.len()],
            policy: policies[b[8] as usize / RETENTION.len() % policies.len()],
            events: pick(&[4096, 4096, 4096, 3, 0], b[9]),
            ghosts: pick(&[0, 5, 64], b[9] / 5),
            alphabet: pick(&[2, 2, 3, 3, 1, 50], b[9] / 15),
            region: None,
        }
    }

    pub fn config(&self) -> CacheConfig {
        CacheConfig {
            page_size: self.page,
            window: self.window,
            n_mtp: self.n_mtp,
            full_pages: if self.region.is_some() { 0 } else { self.full_pages },
            swa_pages: if self.region.is_some() { 0 } else { self.swa_pages },
            scratch_pages: self.scratch,
            retention: Retention::parse(self.retention).expect("a valid retention"),
            policy: self.policy,
            event_capacity: self.events,
            ghost_pages: self.ghosts,
            fingerprint: [7; 32],
            seed: 1,
            max_pinned_pages: 8,
            region: self.region.clone(),
        }
    }

    pub fn has_full(&self) -> bool {
        self.full_pages > 0
    }

    pub fn has_swa(&self) -> bool {
        self.swa_pages > 0
    }

    /// W as matching sees it: without an SWA group every boundary is window-safe.
    pub fn match_window(&self) -> u64 {
        if self.has_swa() { u64::from(self.window) } else { 0 }
    }

    /// Pages of the window quota of one sequence.
    pub fn quota(&self) -> u32 {
        window_quota(self.page, self.window, self.n_mtp)
    }

    /// SWA pages that a region keeps for scratch, one window and one checkpoint.
    pub fn least_swa(&self) -> u32 {
        self.scratch + self.quota() + self.window.div_ceil(self.page) + 1
    }

    /// Longest prompt that operations make: beyond the smaller pools, so that refusals are seen.
    pub fn longest(&self) -> usize {
        (self.page * 10 + 2 * self.window + 8).min(600) as usize
    }
}

fn window_quota(page: u32, window: u32, n_mtp: u32) -> u32 {
    (window + 2 * n_mtp + 1).div_ceil(page) + 2
}
