//! A device of arrays in ordinary memory, a host region beside it, and what both should hold, byte by byte.

use mimo_cache::tier::{
    Copier, CopierConfig, DeviceMemory, HostRegion, Hugepages, Layout, Outcome, Pair, Part, PoolGroup,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Shape of one array of pages: parts that lie beside each other in each page, and bytes between pages.
#[derive(Debug, Clone)]
pub struct Array {
    pub layer: u32,
    pub parts: Vec<usize>,
    pub padding: usize,
}

/// Arrays and pages of both groups.
#[derive(Debug, Clone)]
pub struct Shape {
    pub arrays: [Vec<Array>; 2],
    /// Device pages with the null page, and usable host pages.
    pub device_pages: [u32; 2],
    pub host_pages: [u32; 2],
}

/// Memory of all arrays, which says when it goes.
pub struct Arrays {
    memory: Vec<(*mut u8, usize)>,
    gone: Arc<AtomicBool>,
}

// SAFETY: plain memory; tests access only pages that no job has in flight.
unsafe impl Send for Arrays {}
// SAFETY: as above.
unsafe impl Sync for Arrays {}

impl Drop for Arrays {
    fn drop(&mut self) {
        self.gone.store(true, Ordering::SeqCst);
        for (start, len) in &self.memory {
            // SAFETY: made by `World::new` from a boxed slice of this length.
            drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(*start, *len)) });
        }
    }
}

pub struct World {
    pub arrays: Arc<Arrays>,
    /// Set when the arrays are freed.
    pub gone: Arc<AtomicBool>,
    pub device: Arc<DeviceMemory>,
    pub host: Arc<HostRegion>,
}

/// A byte that differs between places and rounds.
pub fn byte(seed: usize, at: usize) -> u8 {
    let mixed = (at as u64 ^ (seed as u64) << 40).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed >> 56) as u8
}

impl World {
    pub fn new(shape: &Shape) -> World {
        let gone = Arc::new(AtomicBool::new(false));
        let mut memory = Vec::new();
        let mut parts: [Vec<Part>; 2] = Default::default();
        for (group, arrays) in shape.arrays.iter().enumerate() {
            for array in arrays {
                let stride = array.parts.iter().sum::<usize>() + array.padding;
                let bytes = stride * shape.device_pages[group] as usize;
                let start = Box::into_raw(vec![0u8; bytes].into_boxed_slice()).cast::<u8>();
                memory.push((start, bytes));
                let mut base = start as usize;
                for bytes in &array.parts {
                    parts[group].push(Part { base, page_stride: stride, bytes: *bytes, layer: array.layer });
                    base += bytes;
                }
            }
        }
        let [full, swa] = parts;
        let layout = Layout::new(full, shape.device_pages[0], swa, shape.device_pages[1]).expect("a valid layout");
        let host = HostRegion::new(&layout, shape.host_pages[0], shape.host_pages[1], Hugepages::Off).expect("memory");
        let arrays = Arc::new(Arrays { memory, gone: Arc::clone(&gone) });
        // SAFETY: the arrays are the parts' memory, and tests keep to the rule about pages in flight.
        let device = Arc::new(unsafe { DeviceMemory::new(layout, Arc::clone(&arrays) as _) });
        let world = World { arrays, gone, device, host: Arc::new(host) };
        world.fill(1);
        world
    }

    pub fn copier(&self, threads: usize) -> Copier {
        let config = CopierConfig { threads, ..CopierConfig::default() };
        Copier::new(Arc::clone(&self.device), Arc::clone(&self.host), config).expect("a copier")
    }

    /// Writes canaries everywhere: into both memories, null pages and padding too.
    pub fn fill(&self, seed: usize) {
        for (n, (start, len)) in self.arrays.memory.iter().enumerate() {
            // SAFETY: our memory, with no job in flight.
            let bytes = unsafe { std::slice::from_raw_parts_mut(*start, *len) };
            bytes.iter_mut().enumerate().for_each(|(at, b)| *b = byte(seed + n, at));
        }
        for group in PoolGroup::BOTH {
            for id in 1..=self.host.pages(group) {
                let (start, len) = self.host.page(group, id).expect("an id in range");
                // SAFETY: as above.
                let bytes = unsafe { std::slice::from_raw_parts_mut(start, len) };
                let seed = seed + 1000 + 100 * group.index() + id as usize;
                bytes.iter_mut().enumerate().for_each(|(at, b)| *b = byte(seed, at));
            }
        }
    }

    /// All memory as it is now.
    pub fn snapshot(&self) -> Snapshot {
        // SAFETY: our memory, with no job in flight that writes what is compared.
        let copy = |start: *mut u8, len: usize| unsafe { std::slice::from_raw_parts(start, len).to_vec() };
        let host = PoolGroup::BOTH.map(|group| {
            let ids = 1..=self.host.pages(group);
            ids.map(|id| self.host.page(group, id).map(|(start, len)| copy(start, len)).expect("an id")).collect()
        });
        Snapshot { device: self.arrays.memory.iter().map(|(start, len)| copy(*start, *len)).collect(), host }
    }

    /// The bytes of one part of a device page.
    pub fn part(&self, group: PoolGroup, n: usize, page: u32) -> Vec<u8> {
        let part = &self.device.layout().group(group).parts()[n];
        let start = (part.base + part.page_stride * page as usize) as *const u8;
        // SAFETY: in the arrays.
        unsafe { std::slice::from_raw_parts(start, part.bytes).to_vec() }
    }

    /// The same bytes of a host page.
    pub fn host_part(&self, group: PoolGroup, n: usize, page: u32) -> Vec<u8> {
        let shape = self.device.layout().group(group);
        let (start, _) = self.host.page(group, page).expect("an id in range");
        // SAFETY: in the region.
        unsafe { std::slice::from_raw_parts(start.add(shape.offset(n)), shape.parts()[n].bytes).to_vec() }
    }
}

/// All bytes of both memories.
#[derive(Clone, PartialEq, Eq)]
pub struct Snapshot {
    pub device: Vec<Vec<u8>>,
    pub host: [Vec<Vec<u8>>; 2],
}

impl Snapshot {
    /// Where part `k` of array `n` of a page lies: in the arrays of the device and in the host page.
    fn places(shape: &Shape, group: usize, pair: Pair) -> Vec<(usize, usize, usize, usize)> {
        let before: usize = if group == 1 { shape.arrays[0].len() } else { 0 };
        let mut offset = 0;
        let mut places = Vec::new();
        for (n, array) in shape.arrays[group].iter().enumerate() {
            let stride = array.parts.iter().sum::<usize>() + array.padding;
            let mut at = stride * pair.device as usize;
            for bytes in &array.parts {
                places.push((before + n, at, offset, *bytes));
                at += bytes;
                offset += bytes;
            }
        }
        places
    }

    /// What a load or a save of a page should do.
    pub fn apply(&mut self, shape: &Shape, load: bool, group: usize, pair: Pair) {
        for (array, at, offset, len) in Self::places(shape, group, pair) {
            let host = &mut self.host[group][pair.host as usize - 1][offset..offset + len];
            let device = &mut self.device[array][at..at + len];
            if load { device.copy_from_slice(host) } else { host.copy_from_slice(device) }
        }
    }

    /// Whether this is `before` with some parts of `after`, each whole: what a cancelled job may leave.
    pub fn is_between(&self, before: &Snapshot, after: &Snapshot, shape: &Shape, pairs: &[Vec<Pair>; 2]) -> bool {
        let mut expected = before.clone();
        for (group, pairs) in pairs.iter().enumerate() {
            for pair in pairs {
                for (array, at, offset, len) in Self::places(shape, group, *pair) {
                    let page = pair.host as usize - 1;
                    if self.device[array][at..at + len] == after.device[array][at..at + len] {
                        expected.device[array][at..at + len].copy_from_slice(&after.device[array][at..at + len]);
                    }
                    let range = offset..offset + len;
                    if self.host[group][page][range.clone()] == after.host[group][page][range.clone()] {
                        expected.host[group][page][range.clone()].copy_from_slice(&after.host[group][page][range]);
                    }
                }
            }
        }
        *self == expected
    }
}

/// 16 layers with one full layer to three SWA layers, pages of some tens of KB: long enough to be caught at work.
pub fn deep(pages: u32) -> Shape {
    let array = |layer| Array { layer, parts: vec![24_000, 16_001], padding: 63 };
    let (full, swa): (Vec<u32>, Vec<u32>) = (0..16).partition(|layer| layer % 4 == 0);
    Shape {
        arrays: [full.into_iter().map(array).collect(), swa.into_iter().map(array).collect()],
        device_pages: [pages + 1; 2],
        host_pages: [pages; 2],
    }
}

/// Pairs of all pages, device ids backwards.
pub fn all_pages(pages: u32) -> Vec<Pair> {
    (1..=pages).map(|id| Pair { device: pages + 1 - id, host: id }).collect()
}

/// The outcome of a job that nobody cancels.
pub fn assert_done(outcome: &Outcome) {
    assert_eq!(*outcome, Outcome::Done);
}
