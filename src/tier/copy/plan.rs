//! A checked job: its pages, and the units of work that threads take.
//!
//! A *unit* is what one page has of one step: of a load, the parts that one layer reads; of a save, the whole page. Units
//! are numbered step by step.

use super::super::error::TierError;
use super::super::host::{HostRegion, bad_id};
use super::super::layout::{LayerStep, Layout, PoolGroup};
use super::bytes;
use super::{DeviceMemory, Direction, Pair};
use std::ops::Range;
use std::sync::Arc;

/// Bytes that a thread takes at a time, about: enough that taking costs nothing, few enough that threads end together.
const CLAIM: usize = 256 << 10;
/// Jobs of fewer bytes are copied through the caches, where the layers that read them next find them.
const STREAM_FROM: u64 = 4 << 20;

/// What a job holds until it is over.
pub(super) struct Held {
    pub(super) device: Arc<DeviceMemory>,
    pub(super) host: Arc<HostRegion>,
}

/// A job that may run.
pub(super) struct Plan {
    direction: Direction,
    pairs: [Vec<Pair>; 2],
    /// Of a load, one for each layer; of a save, one.
    steps: Vec<[Range<usize>; 2]>,
    /// The layers of a load's steps; empty for a save.
    pub(super) layers: Vec<u32>,
    /// First unit of each step, and the number of units.
    starts: Vec<usize>,
    /// Bytes that the job copies.
    pub(super) bytes: u64,
    /// Units that a thread takes at a time.
    pub(super) claim: usize,
    stream: bool,
}

impl Plan {
    /// Checks every id before anything is queued.
    pub(super) fn new(held: &Held, direction: Direction, full: &[Pair], swa: &[Pair]) -> Result<Plan, TierError> {
        let layout = held.device.layout();
        for (group, pairs) in PoolGroup::BOTH.into_iter().zip([full, swa]) {
            check(layout, &held.host, direction, group, pairs)?;
        }
        let (steps, layers) = match direction {
            Direction::Load => layout.steps().iter().map(|LayerStep { layer, parts }| (parts.clone(), *layer)).unzip(),
            Direction::Save => (vec![PoolGroup::BOTH.map(|g| 0..layout.group(g).parts().len())], Vec::new()),
        };
        let pairs = [full.to_vec(), swa.to_vec()];
        let mut starts = vec![0];
        for step in &steps {
            let units = [0, 1].map(|g| units(step, &pairs, g)).iter().sum::<usize>();
            starts.push(starts[starts.len() - 1] + units);
        }
        let page = PoolGroup::BOTH.map(|g| layout.group(g).page_bytes() as u64);
        let bytes = [0, 1].map(|g| page[g] * pairs[g].len() as u64).iter().sum::<u64>();
        let each = bytes / (starts[starts.len() - 1].max(1) as u64);
        let claim = (CLAIM as u64 / each.max(1)).clamp(1, CLAIM as u64) as usize;
        let stream = bytes >= STREAM_FROM && bytes::can_stream();
        Ok(Plan { direction, pairs, steps, layers, starts, bytes, claim, stream })
    }

    pub(super) fn direction(&self) -> Direction {
        self.direction
    }

    /// Number of steps.
    pub(super) fn steps(&self) -> usize {
        self.steps.len()
    }

    /// Number of units of all steps.
    pub(super) fn units(&self) -> usize {
        self.starts[self.steps.len()]
    }

    /// Units of one step.
    pub(super) fn units_of(&self, step: usize) -> Range<usize> {
        self.starts[step]..self.starts[step + 1]
    }

    /// The step of a unit.
    pub(super) fn step_of(&self, unit: usize) -> usize {
        // Steps without units start where the next one does.
        self.starts.partition_point(|start| *start <= unit) - 1
    }

    /// Copies a unit of `step`, and returns its bytes.
    ///
    /// # Safety
    /// The plan was made for `held`; the rule about pages in flight holds.
    pub(super) unsafe fn copy(&self, held: &Held, step: usize, unit: usize) -> usize {
        let (parts, at) = (&self.steps[step], unit - self.starts[step]);
        let full = units(parts, &self.pairs, 0);
        let (group, at) = if at < full { (PoolGroup::Full, at) } else { (PoolGroup::Swa, at - full) };
        let pair = self.pairs[group.index()][at];
        let shape = held.device.layout().group(group);
        let (page, _) = held.host.page(group, pair.host).expect("ids were checked");
        let mut copied = 0;
        for n in parts[group.index()].clone() {
            let part = &shape.parts()[n];
            // No sum overflows: the layout has checked the last page.
            let device = (part.base + part.page_stride * pair.device as usize) as *mut u8;
            // SAFETY: ids and layout were checked, so that both lie in memory that `held` keeps.
            unsafe {
                let host = page.add(shape.offset(n));
                match self.direction {
                    Direction::Load => bytes::copy(device, host, part.bytes, self.stream),
                    Direction::Save => bytes::copy(host, device, part.bytes, self.stream),
                }
            }
            copied += part.bytes;
        }
        copied
    }
}

/// Units that a group has in a step.
fn units(step: &[Range<usize>; 2], pairs: &[Vec<Pair>; 2], group: usize) -> usize {
    if step[group].is_empty() { 0 } else { pairs[group].len() }
}

fn check(
    layout: &Layout,
    host: &HostRegion,
    direction: Direction,
    group: PoolGroup,
    pairs: &[Pair],
) -> Result<(), TierError> {
    let device_pages = layout.group(group).pages().saturating_sub(1);
    let host_pages = host.pages(group);
    for pair in pairs {
        if pair.device == 0 || pair.device > device_pages {
            return Err(bad_id("device page", pair.device, group, device_pages));
        }
        if pair.host == 0 || pair.host > host_pages {
            return Err(bad_id("host page", pair.host, group, host_pages));
        }
    }
    let mut written: Vec<u32> = match direction {
        Direction::Load => pairs.iter().map(|pair| pair.device).collect(),
        Direction::Save => pairs.iter().map(|pair| pair.host).collect(),
    };
    written.sort_unstable();
    match written.windows(2).find(|two| two[0] == two[1]) {
        None => Ok(()),
        Some(two) => {
            let value = format!("{} ({group}), twice", two[0]);
            Err(TierError::invalid("page that a job writes", value, "each page once"))
        }
    }
}
