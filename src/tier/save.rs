//! The way down: boundaries of a prefix that the cache above made resumable are written to the host tier.

use super::Tiers;
use super::tiers::Going;
use super::types::{Prefix, Receive, Save};
use crate::cache::{Boundary, Cache, Lent, LoadOptions, PageKey, Record, RequestOptions};
use crate::error::{Error, Result};
use crate::key::{PageKeys, spans_before};

/// Boundaries of one prefix looked at, the deepest.
const BOUNDARIES: usize = 64;

impl Tiers {
    /// What of a prefix goes down now: boundaries with a checkpoint above that the host tier lacks and the write policy
    /// wants, shallow first. To be called when its prompt is computed and when it ends, after the steps that wrote it are
    /// retired. What has no room is left out, to be asked for again at the next occasion.
    ///
    /// `start`: the tokens it was opened with. Boundaries before were offered when they were made; to offer them to every
    /// request that passes would undo what the host tier let go.
    ///
    /// # Errors
    /// As [`Cache::match_tokens`].
    pub fn save(&mut self, above: &mut Cache, prefix: &Prefix<'_>, start: u64) -> Result<Vec<Save>> {
        let Prefix { tokens, key, spans, .. } = *prefix;
        let mut out = Vec::new();
        for boundary in above.boundaries(tokens, key, spans, start.saturating_sub(1), BOUNDARIES)? {
            if !self.config.write.wants(boundary.hits) {
                continue;
            }
            // The end of a prompt of whole pages keeps a page more, so that the boundary before it is resumable as well.
            let page = self.page();
            let ends = [boundary.at.saturating_sub(page), boundary.at];
            let wider = u64::from(boundary.pages) > self.need().min(boundary.at / page) && ends[0] > 0;
            for at in ends.into_iter().skip(usize::from(!wider)) {
                match self.save_one(above, prefix, &Boundary { at, ..boundary })? {
                    Saved::Going(save) => out.push(save),
                    Saved::There => {}
                    Saved::NoRoom => {
                        self.stats.no_room_below += 1;
                        return Ok(out);
                    }
                }
            }
        }
        Ok(out)
    }

    fn save_one(&mut self, above: &mut Cache, prefix: &Prefix<'_>, boundary: &Boundary) -> Result<Saved> {
        let Prefix { tokens, key, spans, .. } = *prefix;
        let (at, page) = (boundary.at, self.page());
        let Some((root, keys)) = above.path_keys(tokens, key, spans, at / page)? else { return Ok(Saved::There) };
        let name = *keys.last().expect("a boundary has pages before it");
        if self.saving.contains(&name) || self.has(prefix, at)? {
            return Ok(Saved::There);
        }
        if self.stats().saving_pages >= u64::from(self.config.max_saving) {
            return Ok(Saved::NoRoom);
        }
        Ok(match self.bring(above, prefix, boundary, (name, PageKeys::new(root, 0, keys)), false)? {
            Some(brought) => {
                self.stats.saves += 1;
                Saved::Going(Save { id: brought.id, pairs: brought.pairs, at })
            }
            None => Saved::NoRoom,
        })
    }

    /// Begins to load the host tier up to a boundary: from the cache above, and, with `elsewhere`, what that one lacks from
    /// another process. `name`: the key of the page that ends there, and what keys
    /// of the pages before are known. `None`: a pool has no room, or there is no such page.
    pub(super) fn bring(
        &mut self,
        above: &mut Cache,
        prefix: &Prefix<'_>,
        boundary: &Boundary,
        (name, keys): (PageKey, PageKeys),
        elsewhere: bool,
    ) -> Result<Option<Receive>> {
        let Prefix { tokens, key, spans, tenant } = *prefix;
        let at = boundary.at;
        // Its own tokens end with the boundary: what came after is another reader's.
        let own = &tokens[..at as usize];
        let options = RequestOptions { key: key.clone(), spans: spans_before(spans, at), tenant, store: true };
        let mut request = self.host.request(own.to_vec(), options)?;
        request.set_keys(keys);
        let seq = match self.host.open(&mut request, 0) {
            Ok(seq) => seq,
            Err(Error::OutOfPages(_)) => return Ok(None),
            Err(error) => return Err(error),
        };
        let missing = self.host.missing(seq, at)?;
        let (mut full, mut swa) = (missing.full.clone(), missing.swa.clone());
        if elsewhere {
            let from = swa.first().copied().unwrap_or(at / self.page());
            let (depth, map) = above.window_map(tokens, key, spans, from)?;
            full.end = full.end.min(depth).max(full.start);
            swa.retain(|page| map.get((page - from) as usize) == Some(&true));
        }
        let mut lent = Lent::default();
        let borrows = !(full.is_empty() && swa.is_empty());
        if borrows {
            match above.lend((tokens, key, spans), None, full.clone(), &swa)? {
                Some(loan) => lent = loan,
                None => {
                    self.host.abort(seq)?;
                    return Ok(None);
                }
            }
        }
        let from_above = |page: &u64| swa.iter().position(|lent| lent == page);
        let record = |page| from_above(page).map_or_else(Record::new, |i| lent.records[i].clone());
        let records: Vec<Record> = missing.swa.iter().map(record).collect();
        let options = LoadOptions { to: at, kinds: boundary.kinds, records: &records, keep_records: true };
        let load = match self.host.load(seq, &options) {
            Ok(load) => load,
            Err(error) => {
                self.host.abort(seq)?;
                if borrows {
                    above.move_done(lent.id)?;
                }
                return if matches!(error, Error::OutOfPages(_)) { Ok(None) } else { Err(error) };
            }
        };
        let mut out = Receive { id: load.id, at, ..Receive::default() };
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
        let counts = |full: usize, swa: usize| (full as u64, swa as u64);
        let (full, swa) = match elsewhere {
            true => counts(out.full.len(), out.swa.len()),
            false => counts(out.pairs.full.len(), out.pairs.swa.len()),
        };
        let going = Going {
            seq,
            loan: borrows.then_some(lent.id),
            full,
            swa,
            key: name,
            awaited: elsewhere.then(|| out.swa.iter().map(|(page, _)| *page).collect()),
        };
        self.going.insert(load.id, going);
        self.saving.insert(name);
        Ok(Some(out))
    }

    /// The host tier can go on from this boundary.
    pub(super) fn has(&self, prefix: &Prefix<'_>, at: u64) -> Result<bool> {
        let end = at / self.page();
        let first = end - self.need().min(end);
        let (depth, map) = self.host.window_map(prefix.tokens, prefix.key, prefix.spans, first)?;
        Ok(depth >= end && (first..end).all(|p| map.get((p - first) as usize) == Some(&true)))
    }

    /// A copy down is over: its bytes are there, or nothing of it is written any more.
    ///
    /// # Errors
    /// [`Error::Order`] for a number that is no copy on its way.
    pub fn saved(&mut self, above: &mut Cache, id: u64, ok: bool) -> Result<()> {
        let going = self.brought(above, id, ok, false)?;
        if ok {
            self.stats.saved_full += going.full;
            self.stats.saved_swa += going.swa;
        } else {
            self.stats.saves_failed += 1;
        }
        Ok(())
    }

    /// Ends what [`Self::bring`] began: publishes it, or takes it back.
    pub(super) fn brought(&mut self, above: &mut Cache, id: u64, ok: bool, elsewhere: bool) -> Result<Going> {
        let Some(going) = self.going.get(&id).filter(|g| g.awaited.is_some() == elsewhere) else {
            let mine = self.going.iter().filter(|(_, g)| g.awaited.is_some() == elsewhere);
            let running: Vec<_> = mine.map(|(id, _)| id).take(8).collect();
            let what = if elsewhere { "receive" } else { "save" };
            return Err(Error::Order { what, value: id, expected: format!("one of {running:?}") });
        };
        self.saving.remove(&going.key);
        let going = self.going.remove(&id).expect("found before");
        self.host.load_done(id, ok)?;
        if let Some(loan) = going.loan {
            above.move_done(loan)?;
        }
        match ok {
            true => self.host.finish(going.seq)?,
            false => self.host.abort(going.seq)?,
        }
        Ok(going)
    }
}

/// What became of one boundary.
enum Saved {
    Going(Save),
    There,
    NoRoom,
}
