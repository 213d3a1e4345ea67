//! Tiers below the replayed cache.
//!
//! GCache stands below the host tier as the host tier does below the cache: one tree of its size. That is a cluster whose
//! nodes keep order as one would; what placement and extents change of that is not in it.

use crate::cache::{Cache, RequestOptions, SeqId};
use crate::error::{Error, Result};
use crate::key::Key;
use crate::replay::capacity::Pools;
use crate::tier::{Prefix, Rules, TierConfig, TierStats, Tiers, Write};

/// One tier. Moves take no time and never fail.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TierOptions {
    /// Pages of each of its pools, as a multiple of the cache's.
    pub ratio: f64,
    /// When prefixes go down to it.
    pub write: Write,
}

/// What is below the cache.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HostOptions {
    /// The host tier.
    pub host: TierOptions,
    /// GCache below it.
    pub gcache: Option<TierOptions>,
    /// What holds between each two of them.
    pub rules: Rules,
}

impl HostOptions {
    /// The tiers below a cache with these pools.
    pub(super) fn below(&self, cache: &Cache, pools: &Pools) -> Result<Below> {
        let config = |tier: &TierOptions| {
            let pages = |pages: u32| (f64::from(pages) * tier.ratio).min(f64::from(1 << 30)) as u32;
            let (full_pages, swa_pages) = (pages(pools.full_pages), pages(pools.swa_pages));
            TierConfig { full_pages, swa_pages, write: tier.write, max_saving: u32::MAX, rules: self.rules }
        };
        let host = Tiers::new(cache, config(&self.host))?;
        let gcache = self.gcache.map(|gcache| Tiers::new(host.host(), config(&gcache))).transpose()?;
        Ok(Below { host, gcache })
    }

    /// Checks it; `overlap`: requests overlap.
    pub(super) fn check(&self, overlap: bool) -> Result<()> {
        let tiers = [("host ratio", Some(&self.host)), ("gcache ratio", self.gcache.as_ref())];
        for (what, tier) in tiers.iter().filter_map(|(what, tier)| tier.map(|tier| (*what, tier))) {
            if !(0.01..=1e6).contains(&tier.ratio) {
                return Err(Error::invalid(what, tier.ratio, "0.01 to 1000000 times the cache"));
            }
            if overlap {
                return Err(Error::invalid(what, tier.ratio, "none for requests that overlap"));
            }
        }
        if self.gcache.is_some() && self.host.write == Write::Back {
            // It would have to be told of prompts that go down when others come.
            return Err(Error::invalid("gcache", "given", "None with a host tier that is written back"));
        }
        Ok(())
    }
}

/// The tiers of a running replay.
pub(super) struct Below {
    host: Tiers,
    gcache: Option<Tiers>,
}

impl Below {
    /// What the tiers have for a sequence that was just opened with this prompt: what GCache has comes into host memory,
    /// what is there comes up.
    pub(super) fn bring_up(&mut self, cache: &mut Cache, seq: SeqId, prompt: &[u32], now: u64) -> Result<()> {
        self.host.set_now(now);
        if let Some(gcache) = &mut self.gcache {
            gcache.set_now(now);
            let key = Key::default();
            let prefix = Prefix { tokens: prompt, key: &key, spans: &[], tenant: 0 };
            if gcache.usable(self.host.host(), &prefix)? > self.host.usable(cache, &prefix)? {
                let host = self.host.host_mut();
                // Not a use of its own: the request is told when it is saved.
                let options = RequestOptions { again: true, ..RequestOptions::default() };
                match host.request(prompt.to_vec(), options).and_then(|mut request| host.open(&mut request, 0)) {
                    Ok(seq) => {
                        fetch(gcache, host, seq)?;
                        host.finish(seq)?;
                    }
                    Err(Error::OutOfPages(_)) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        fetch(&mut self.host, cache, seq)
    }

    /// What a request that began with `start` tokens has added.
    pub(super) fn write_down(&mut self, cache: &mut Cache, prompt: &[u32], start: u64) -> Result<()> {
        save(&mut self.host, cache, prompt, start)?;
        match &mut self.gcache {
            Some(gcache) => save(gcache, self.host.host_mut(), prompt, start),
            None => Ok(()),
        }
    }

    /// How each is set up and what it did: the host tier, then GCache.
    pub(super) fn outcome(&self) -> Vec<(TierConfig, TierStats)> {
        [Some(&self.host), self.gcache.as_ref()]
            .into_iter()
            .flatten()
            .map(|t| (t.config().clone(), t.stats()))
            .collect()
    }
}

fn fetch(tier: &mut Tiers, above: &mut Cache, seq: SeqId) -> Result<()> {
    if let Some(fetch) = tier.fetch(above, seq)? {
        tier.fetched(above, fetch.id, true)?;
    }
    Ok(())
}

fn save(tier: &mut Tiers, above: &mut Cache, prompt: &[u32], start: u64) -> Result<()> {
    let key = Key::default();
    let prefix = Prefix { tokens: prompt, key: &key, spans: &[], tenant: 0 };
    let mut next = tier.save(above, &prefix, start, false)?;
    loop {
        while let Some(save) = next {
            next = tier.saved(above, save.id, true)?;
        }
        next = tier.write_back(above)?.map(|(save, _)| save);
        if next.is_none() {
            return Ok(());
        }
    }
}
