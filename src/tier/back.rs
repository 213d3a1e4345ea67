//! Write-back: boundaries go down when newer ones push them out of what the cache above is likely to keep.
//!
//! What a prompt has made is noted as dirty, newest last. A later turn of the same prompt takes over what its earlier ones
//! noted, so that pages between are written once and windows that were superseded meanwhile never. When what is dirty
//! takes more than a quarter of a pool above, the oldest goes down. What the cache above drops before that is lost.

use super::Tiers;
use super::save::BOUNDARIES;
use super::tiers::Rest;
use super::types::{Prefix, Save, Story};
use crate::cache::{Cache, PageKey};
use crate::error::Result;
use std::collections::VecDeque;

/// Prompts that are noted at once.
const MOST: usize = 4096;
/// What is dirty takes at most this part of a pool above.
const SHARE: u64 = 4;

/// What was computed and has not gone down.
#[derive(Debug, Default)]
pub(super) struct Dirty {
    prompts: VecDeque<Noted>,
    full: u64,
    swa: u64,
    /// Tokens that are kept of them.
    tokens: u64,
}

#[derive(Debug)]
struct Noted {
    rest: Rest,
    /// Deepest boundary in tokens, and the key of the page that ends there.
    end: (u64, PageKey),
    /// Tokens that the earliest of its turns began with.
    start: u64,
    full: u64,
    swa: u64,
}

impl Dirty {
    /// Pages that wait, full and SWA.
    pub(super) fn pages(&self) -> u64 {
        self.full + self.swa
    }

    fn pop(&mut self, at: usize) -> Option<Noted> {
        let noted = self.prompts.remove(at)?;
        self.full -= noted.full;
        self.swa -= noted.swa;
        self.tokens -= noted.rest.story.tokens.len() as u64;
        Some(noted)
    }
}

impl Tiers {
    /// Notes what a prompt has made since it began with `start` tokens.
    pub(super) fn note_dirty(&mut self, above: &Cache, prefix: &Prefix<'_>, start: u64) -> Result<()> {
        let (mut chain, keys) = self.wanted(above, prefix, start)?;
        let Some(&(deepest, name)) = chain.first() else { return Ok(()) };
        let page = self.page();
        let mut start = start.min(deepest.at);
        let earlier = |n: &Noted| n.end.0 <= deepest.at && keys.get(n.end.0 / page - 1) == Some(&n.end.1);
        while let Some(at) = self.dirty.prompts.iter().position(earlier) {
            let old = self.dirty.pop(at).expect("found just now");
            start = start.min(old.start);
            chain.extend(old.rest.chain);
        }
        // Of earlier turns' boundaries those that the cache above still keeps.
        let kept = above.boundaries(prefix.tokens, prefix.key, prefix.spans, start.saturating_sub(1), BOUNDARIES)?;
        let before = |at: u64| kept.iter().any(|k| k.at == at || k.at == at + page);
        chain.retain(|(boundary, _)| before(boundary.at));
        chain.sort_unstable_by_key(|(boundary, _)| std::cmp::Reverse(boundary.at));
        chain.dedup_by_key(|(boundary, _)| boundary.at);
        let (full, swa) = ((deepest.at - start) / page, chain.len() as u64 * self.need());
        self.dirty.full += full;
        self.dirty.swa += swa;
        let rest = Rest::of(prefix, chain);
        self.dirty.tokens += rest.story.tokens.len() as u64;
        self.dirty.prompts.push_back(Noted { rest, end: (deepest.at, name), start, full, swa });
        Ok(())
    }

    /// With [`Write::Back`](super::Write::Back): the next prompt that goes down, if one has to, and its first boundary. To
    /// be asked after every step, as long as there is one.
    ///
    /// # Errors
    /// As [`Cache::match_tokens`].
    pub fn write_back(&mut self, above: &mut Cache) -> Result<Option<(Save, Story)>> {
        let c = above.config();
        // Scratch pages keep no window.
        let (full, swa) = (u64::from(c.full_pages) / SHARE, u64::from(c.swa_pages - c.scratch_pages) / SHARE);
        // Tokens are kept of whole prompts, which share pages: as many as the cache above could have without sharing.
        let tokens = u64::from(c.full_pages.max(c.swa_pages)) * self.page();
        loop {
            let dirty = &self.dirty;
            let most = dirty.full <= full && dirty.swa <= swa && dirty.tokens <= tokens;
            if most && dirty.prompts.len() <= MOST {
                return Ok(None);
            }
            if self.stats().saving_pages >= u64::from(self.config.max_saving) {
                return Ok(None);
            }
            let Some(Noted { rest, .. }) = self.dirty.pop(0) else { return Ok(None) };
            let Rest { story, mut chain } = rest;
            let prefix = story.prefix();
            let Some(seq) = self.open_below(&prefix, &mut chain, Default::default(), true)? else { continue };
            if let Some(save) = self.go_on(above, seq, &prefix, chain)? {
                return Ok(Some((save, story)));
            }
        }
    }
}
