//! A host tier below the replayed cache.

use crate::cache::{Cache, SeqId};
use crate::error::{Error, Result};
use crate::key::Key;
use crate::replay::capacity::Pools;
use crate::tier::{Prefix, TierConfig, Tiers, Write};

/// How large it is. Moves take no time and never fail.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HostOptions {
    /// Pages of each of its pools, as a multiple of the cache's.
    pub ratio: f64,
    /// When prefixes go down.
    pub write: Write,
}

impl HostOptions {
    /// The tier below a cache with these pools.
    pub(super) fn below(&self, cache: &Cache, pools: &Pools) -> Result<Tiers> {
        let pages = |pages: u32| (f64::from(pages) * self.ratio).min(f64::from(1 << 30)) as u32;
        let (full_pages, swa_pages) = (pages(pools.full_pages), pages(pools.swa_pages));
        Tiers::new(cache, TierConfig { full_pages, swa_pages, write: self.write, max_saving: u32::MAX })
    }

    /// Checks it; `overlap`: requests overlap.
    pub(super) fn check(&self, overlap: bool) -> Result<()> {
        if !(0.01..=1e6).contains(&self.ratio) {
            return Err(Error::invalid("host ratio", self.ratio, "0.01 to 1000000 times the cache"));
        }
        if overlap {
            return Err(Error::invalid("host ratio", self.ratio, "none for requests that overlap"));
        }
        Ok(())
    }
}

/// What the host tier has for a sequence that was just opened.
pub(super) fn bring_up(host: &mut Tiers, cache: &mut Cache, seq: SeqId, now: u64) -> Result<()> {
    host.set_now(now);
    if let Some(fetch) = host.fetch(cache, seq)? {
        host.fetched(cache, fetch.id, true)?;
    }
    Ok(())
}

/// What a request that began with `start` tokens has added.
pub(super) fn write_down(host: &mut Tiers, cache: &mut Cache, prompt: &[u32], start: u64) -> Result<()> {
    let key = Key::default();
    let prefix = Prefix { tokens: prompt, key: &key, spans: &[], tenant: 0 };
    let mut next = host.save(cache, &prefix, start, false)?;
    while let Some(save) = next {
        next = host.saved(cache, save.id, true)?;
    }
    Ok(())
}
