//! The way down: boundaries of a prefix that the cache above made resumable are written to the host tier.

use super::Tiers;
use super::tiers::Going;
use super::types::{Pairs, Prefix, Save};
use crate::cache::{Boundary, Cache, LoadOptions, RequestOptions};
use crate::error::{Error, Result};
use crate::key::{PageKeys, spans_before};

/// Boundaries of one prefix looked at, the deepest.
const BOUNDARIES: usize = 64;

impl Tiers {
    /// What of a prefix goes down now: boundaries with a checkpoint above that the host tier lacks and the write policy
    /// wants, shallow first. To be called when its prompt is computed and when it ends, after the steps that wrote it are
    /// retired. What has no room is left out, to be asked for again at the next occasion.
    ///
    /// # Errors
    /// As [`Cache::match_tokens`].
    pub fn save(&mut self, above: &mut Cache, prefix: &Prefix<'_>) -> Result<Vec<Save>> {
        let Prefix { tokens, key, spans, .. } = *prefix;
        let mut out = Vec::new();
        for boundary in above.boundaries(tokens, key, spans, 0, BOUNDARIES)? {
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
        let Prefix { tokens, key, spans, tenant } = *prefix;
        let (at, page) = (boundary.at, self.page());
        let Some((root, keys)) = above.path_keys(tokens, key, spans, at / page)? else { return Ok(Saved::There) };
        let name = *keys.last().expect("a boundary has pages before it");
        if self.saving.contains(&name) || self.has(prefix, at)? {
            return Ok(Saved::There);
        }
        if self.stats().saving_pages >= u64::from(self.config.max_saving) {
            return Ok(Saved::NoRoom);
        }
        // Its own tokens end with the boundary: what came after is another reader's.
        let own = &tokens[..at as usize];
        let options = RequestOptions { key: key.clone(), spans: spans_before(spans, at), tenant, store: true };
        let mut request = self.host.request(own.to_vec(), options)?;
        request.set_keys(PageKeys::new(root, 0, keys));
        let seq = match self.host.open(&mut request, 0) {
            Ok(seq) => seq,
            Err(Error::OutOfPages(_)) => return Ok(Saved::NoRoom),
            Err(error) => return Err(error),
        };
        let missing = self.host.missing(seq, at)?;
        let Some(loan) = above.lend((tokens, key, spans), None, missing.full.clone(), &missing.swa)? else {
            self.host.abort(seq)?;
            return Ok(Saved::NoRoom);
        };
        let options = LoadOptions { to: at, kinds: boundary.kinds, records: &loan.records, keep_records: true };
        let load = match self.host.load(seq, &options) {
            Ok(load) => load,
            Err(error) => {
                self.host.abort(seq)?;
                above.move_done(loan.id)?;
                return if matches!(error, Error::OutOfPages(_)) { Ok(Saved::NoRoom) } else { Err(error) };
            }
        };
        let pair = |above: &[u32], here: &[(u64, u32)]| above.iter().copied().zip(here.iter().map(|h| h.1)).collect();
        let pairs = Pairs { full: pair(&loan.full, &load.full), swa: pair(&loan.swa, &load.swa) };
        let (full, swa) = (pairs.full.len() as u64, pairs.swa.len() as u64);
        self.going.insert(load.id, Going { seq, loan: loan.id, full, swa, key: name });
        self.saving.insert(name);
        self.stats.saves += 1;
        Ok(Saved::Going(Save { id: load.id, pairs, at }))
    }

    /// The host tier can go on from this boundary.
    fn has(&self, prefix: &Prefix<'_>, at: u64) -> Result<bool> {
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
        let Some(going) = self.going.remove(&id) else {
            let running: Vec<_> = self.going.keys().take(8).collect();
            return Err(Error::Order { what: "save", value: id, expected: format!("one of {running:?}") });
        };
        self.saving.remove(&going.key);
        self.host.load_done(id, ok)?;
        above.move_done(going.loan)?;
        if ok {
            self.stats.saved_full += going.full;
            self.stats.saved_swa += going.swa;
            self.host.finish(going.seq)
        } else {
            self.stats.saves_failed += 1;
            self.host.abort(going.seq)
        }
    }
}

/// What became of one boundary.
enum Saved {
    Going(Save),
    There,
    NoRoom,
}
