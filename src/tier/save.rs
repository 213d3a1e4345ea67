//! The way down: boundaries of a prefix that the cache above made resumable are written to the host tier.

use super::Tiers;
use super::tiers::{Chain, Going, Rest};
use super::types::{Pairs, Prefix, Save, Write};
use crate::cache::{Boundary, Cache, Lent, LoadOptions, PageKey, Record, RequestOptions, SeqId};
use crate::error::{Error, Result};
use crate::key::{PageKeys, spans_before};
use crate::policy::kind;

/// Boundaries of one prefix looked at, the deepest.
pub(super) const BOUNDARIES: usize = 64;

/// A load of the host tier that has begun.
#[derive(Debug, Default)]
pub(super) struct Brought {
    pub(super) id: u64,
    /// The loan of the cache above, if it has any of the pages.
    pub(super) loan: Option<u64>,
    pub(super) pairs: Pairs,
    /// (logical page, host page) of what comes from elsewhere.
    pub(super) full: Vec<(u64, u32)>,
    pub(super) swa: Vec<(u64, u32)>,
}

/// What became of one; but for the first nothing has changed.
pub(super) enum Bring {
    Begun(Brought),
    /// The cache above does not have a page of it any more, or may not lend it now.
    Gone,
    /// A pool of the host tier has no room.
    NoRoom,
}

impl Tiers {
    /// What of a prefix goes down now: boundaries with a checkpoint above that the host tier lacks and the write policy
    /// wants, shallow first, one after the other: this begins with the first, [`Self::saved`] goes on with the next. To be
    /// called when its prompt is computed and when it ends, after the steps that wrote it are retired. What has no room is
    /// left out, to be asked for again at the next occasion.
    ///
    /// `start`: the tokens it was opened with. Boundaries before were offered when they were made; to offer them to every
    /// request that passes would undo what the host tier let go. `again`: this request was told before; else it counts as
    /// a use of what the host tier has of its prompt, whether or not it was read from there.
    ///
    /// # Errors
    /// As [`Cache::match_tokens`].
    pub fn save(&mut self, above: &mut Cache, prefix: &Prefix<'_>, start: u64, again: bool) -> Result<Option<Save>> {
        if self.config.write == Write::Back {
            self.note_dirty(above, prefix, start)?;
            if !again {
                self.used(prefix)?;
            }
            return Ok(None);
        }
        let (mut chain, keys) = self.wanted(above, prefix, start)?;
        if !chain.is_empty() && self.stats().saving_pages >= u64::from(self.config.max_saving) {
            self.stats.no_room_below += 1;
            chain.clear();
        }
        if again && self.joins(prefix, &mut chain)? {
            return Ok(None);
        }
        let opened = self.open_below(prefix, &mut chain, keys, again)?;
        let Some(seq) = opened else {
            if !again {
                self.used(prefix)?;
            }
            return Ok(None);
        };
        self.go_on(above, seq, prefix, chain)
    }

    /// Boundaries that are to go down, deepest first, with the keys of the pages that end there; and keys of all pages.
    pub(super) fn wanted(&mut self, above: &Cache, prefix: &Prefix<'_>, start: u64) -> Result<(Chain, PageKeys)> {
        let Prefix { tokens, key, spans, .. } = *prefix;
        let page = self.page();
        let mut wanted: Vec<Boundary> = Vec::new();
        let beyond = if self.config.rules.difference { start.saturating_sub(1) } else { start };
        for mut boundary in above.boundaries(tokens, key, spans, beyond, BOUNDARIES)? {
            if !self.config.write.wants(boundary.hits) {
                continue;
            }
            if boundary.kinds == 0 {
                // A sequence is parked there; below it is an end like others.
                boundary.kinds = kind::SEQ_END;
            }
            // The end of a prompt of whole pages keeps a page more, so that the boundary before it is resumable as well.
            let before = boundary.at.saturating_sub(page);
            let wider = u64::from(boundary.pages) > self.need().min(boundary.at / page) && before > 0;
            if wider && wanted.last().is_none_or(|b| b.at < before) {
                wanted.push(Boundary { at: before, ..boundary });
            }
            wanted.push(boundary);
        }
        let Some(deepest) = wanted.last() else { return Ok(Default::default()) };
        let Some((root, keys)) = above.path_keys(tokens, key, spans, deepest.at / page)? else {
            return Ok(Default::default());
        };
        let mut chain = Vec::with_capacity(wanted.len());
        for boundary in wanted.into_iter().rev() {
            let name = keys[(boundary.at / page - 1) as usize];
            if !self.saving.contains(&name) && !self.has(prefix, boundary.at)? {
                chain.push((boundary, name));
            }
        }
        Ok((chain, PageKeys::new(root, 0, keys)))
    }

    /// A request whose earlier boundaries are still going down: the new ones follow them, in order.
    fn joins(&mut self, prefix: &Prefix<'_>, chain: &mut Chain) -> Result<bool> {
        let Prefix { tokens, key, spans, .. } = *prefix;
        for going in self.going.values_mut().filter(|g| g.awaited.is_none()) {
            let known = self.host.info(going.seq)?.known;
            if known > tokens.len() as u64 || !self.host.begins_like(going.seq, tokens, key, spans, known) {
                continue;
            }
            let follows = going.rest.as_ref().map_or(&[][..], |rest| &rest.story.tokens[..]);
            if !tokens.starts_with(follows) {
                continue;
            }
            let reach = known.max(follows.len() as u64);
            chain.retain(|(boundary, _)| boundary.at > reach);
            chain.extend(going.rest.take().map_or_else(Vec::new, |rest| rest.chain));
            going.rest = (!chain.is_empty()).then(|| Rest::of(prefix, std::mem::take(chain)));
            return Ok(true);
        }
        Ok(false)
    }

    /// A sequence of the host tier that reaches to the deepest of these boundaries for which there is room; those beyond
    /// are dropped. `None`: there is no room, or nothing to do.
    pub(super) fn open_below(
        &mut self,
        prefix: &Prefix<'_>,
        chain: &mut Chain,
        keys: PageKeys,
        again: bool,
    ) -> Result<Option<SeqId>> {
        let mut dropped = false;
        while let Some((deepest, _)) = chain.first() {
            match self.open_host(prefix, deepest.at, keys.clone(), again) {
                Err(Error::OutOfPages(_)) => {
                    chain.remove(0);
                    self.stats.no_room_below += u64::from(!std::mem::replace(&mut dropped, true));
                }
                opened => return opened.map(Some),
            }
        }
        Ok(None)
    }

    pub(super) fn open_host(&mut self, prefix: &Prefix<'_>, at: u64, keys: PageKeys, again: bool) -> Result<SeqId> {
        let Prefix { tokens, key, spans, tenant } = *prefix;
        // Its own tokens end with the boundary: what came after is another reader's.
        let own = tokens[..at as usize].to_vec();
        let options = RequestOptions { key: key.clone(), spans: spans_before(spans, at), tenant, store: true, again };
        let mut request = self.host.request(own, options)?;
        request.set_keys(keys);
        self.host.open(&mut request, 0)
    }

    /// Begins with the next boundary of a chain (deepest first) for which that is possible; without one the sequence ends.
    pub(super) fn go_on(
        &mut self,
        above: &mut Cache,
        mut seq: SeqId,
        prefix: &Prefix<'_>,
        mut chain: Chain,
    ) -> Result<Option<Save>> {
        while let Some((boundary, name)) = chain.pop() {
            if boundary.at > self.host.info(seq)?.known {
                // It was added when the sequence was open already.
                self.host.finish(seq)?;
                chain.push((boundary, name));
                match self.open_below(prefix, &mut chain, PageKeys::default(), true)? {
                    Some(longer) => seq = longer,
                    None => return Ok(None),
                }
                continue;
            }
            if self.stats().saving_pages >= u64::from(self.config.max_saving) {
                self.stats.no_room_below += 1;
                break;
            }
            // Others may have brought it meanwhile, the cache above may have dropped it, or `clear` may have come between.
            let end = boundary.at / self.page();
            if above.page_keys(prefix.tokens, prefix.key, prefix.spans, end - 1..end)? != [name] {
                break;
            }
            // What the host tier has further down it reached without this one, which it let go or never had.
            let passed = boundary.at <= self.host.info(seq)?.committed;
            if passed || self.saving.contains(&name) || self.has(prefix, boundary.at)? {
                continue;
            }
            let mut brought = match self.bring(above, seq, prefix, &boundary, false)? {
                Bring::Begun(brought) => brought,
                Bring::Gone => {
                    self.stats.gone += 1;
                    continue;
                }
                Bring::NoRoom => {
                    self.stats.no_room_below += 1;
                    break;
                }
            };
            self.stats.saves += 1;
            let save = Save { id: brought.id, pairs: std::mem::take(&mut brought.pairs), at: boundary.at };
            let rest = (!chain.is_empty()).then(|| Rest::of(prefix, chain));
            self.note(seq, name, brought, (save.pairs.full.len(), save.pairs.swa.len()), rest);
            return Ok(Some(save));
        }
        self.host.finish(seq)?;
        Ok(None)
    }

    /// Begins to load a sequence of the host tier up to a boundary: from the cache above, and, with `elsewhere`, what that
    /// one lacks from another process.
    pub(super) fn bring(
        &mut self,
        above: &mut Cache,
        seq: SeqId,
        prefix: &Prefix<'_>,
        boundary: &Boundary,
        elsewhere: bool,
    ) -> Result<Bring> {
        let Prefix { tokens, key, spans, .. } = *prefix;
        let missing = self.host.missing(seq, boundary.at)?;
        let (mut full, mut swa) = (missing.full.clone(), missing.swa.clone());
        if elsewhere {
            let from = swa.first().copied().unwrap_or(boundary.at / self.page());
            let (depth, map) = above.window_map(tokens, key, spans, from)?;
            full.end = full.end.min(depth).max(full.start);
            swa.retain(|page| map.get((page - from) as usize) == Some(&true));
        }
        let mut lent = Lent::default();
        let borrows = !(full.is_empty() && swa.is_empty());
        if borrows {
            match above.lend((tokens, key, spans), full.clone(), &swa)? {
                Some(loan) => lent = loan,
                None => return Ok(Bring::Gone),
            }
        }
        let from_above = |page: &u64| swa.iter().position(|lent| lent == page);
        let record = |page| from_above(page).map_or_else(Record::new, |i| lent.records[i].clone());
        let records: Vec<Record> = missing.swa.iter().map(record).collect();
        let options = LoadOptions { to: boundary.at, kinds: boundary.kinds, records: &records, keep_records: true };
        let load = match self.host.load(seq, &options) {
            Ok(load) => load,
            Err(error) => {
                if borrows {
                    above.move_done(lent.id)?;
                }
                return if matches!(error, Error::OutOfPages(_)) { Ok(Bring::NoRoom) } else { Err(error) };
            }
        };
        let mut out = Brought { id: load.id, loan: borrows.then_some(lent.id), ..Brought::default() };
        for (page, host) in load.full {
            match full.contains(&page) {
                true => out.pairs.full.push((lent.full[(page - full.start) as usize], host)),
                false => out.full.push((page, host)),
            }
        }
        for (page, host) in load.swa {
            match from_above(&page) {
                Some(i) => out.pairs.swa.push((lent.swa[i], host)),
                None => out.swa.push((page, host)),
            }
        }
        Ok(Bring::Begun(out))
    }

    /// A boundary is on its way down. `pages`: full and SWA pages that count for it.
    pub(super) fn note(
        &mut self,
        seq: SeqId,
        key: PageKey,
        brought: Brought,
        (full, swa): (usize, usize),
        rest: Option<Rest>,
    ) {
        let (full, swa) = (full as u64, swa as u64);
        self.going.insert(brought.id, Going { seq, loan: brought.loan, full, swa, key, awaited: None, rest });
        self.saving.insert(key);
    }

    /// The host tier can go on from this boundary.
    pub(super) fn has(&self, prefix: &Prefix<'_>, at: u64) -> Result<bool> {
        let end = at / self.page();
        let first = end - self.need().min(end);
        let (depth, map) = self.host.window_map(prefix.tokens, prefix.key, prefix.spans, first)?;
        Ok(depth >= end && (first..end).all(|p| map.get((p - first) as usize) == Some(&true)))
    }

    /// A copy down is over: its bytes are there, or nothing of it is written any more. Returns the next one of the same
    /// prompt, which begins now.
    ///
    /// # Errors
    /// [`Error::Order`] for a number that is no copy on its way.
    pub fn saved(&mut self, above: &mut Cache, id: u64, ok: bool) -> Result<Option<Save>> {
        let mut going = self.arrived(above, id, ok, false)?;
        if !ok {
            self.stats.saves_failed += 1;
            self.host.abort(going.seq)?;
            return Ok(None);
        }
        self.stats.saved_full += going.full;
        self.stats.saved_swa += going.swa;
        let Some(Rest { story, chain }) = going.rest.take() else {
            self.host.finish(going.seq)?;
            return Ok(None);
        };
        self.go_on(above, going.seq, &story.prefix(), chain)
    }

    /// The bytes of a boundary are there, or (`ok` false) they will not come: what was lent goes back. The sequence stays
    /// open.
    pub(super) fn arrived(&mut self, above: &mut Cache, id: u64, ok: bool, elsewhere: bool) -> Result<Going> {
        if self.going.get(&id).is_none_or(|g| g.awaited.is_some() != elsewhere) {
            let mine = self.going.iter().filter(|(_, g)| g.awaited.is_some() == elsewhere);
            let running: Vec<_> = mine.map(|(id, _)| id).take(8).collect();
            let what = if elsewhere { "receive" } else { "save" };
            return Err(Error::Order { what, value: id, expected: format!("one of {running:?}") });
        }
        let going = self.going.remove(&id).expect("found before");
        self.saving.remove(&going.key);
        self.host.load_done(id, ok)?;
        if let Some(loan) = going.loan {
            above.move_done(loan)?;
        }
        Ok(going)
    }
}
