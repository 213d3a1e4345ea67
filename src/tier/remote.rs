//! The way to and from a tier below the host tier that processes share: names of pages, pages to write, pages to read.
//!
//! Nothing here talks to that tier. It is told which pages the other one says it has ([`Tiers::reachable`]), tells where
//! to write their bytes ([`Tiers::receive`]), and publishes them when they are there ([`Tiers::received`]).

use super::Tiers;
use super::plan::{Residency, union_boundary};
use super::save::Bring;
use super::types::{Loan, Prefix, Receive};
use crate::cache::{Boundary, Cache, Record};
use crate::error::{Error, Result};
use crate::key::{PageKeys, object_key};
use crate::policy::kind;
use std::ops::Range;

impl Tiers {
    /// Number of the layout of the bytes of host pages; part of every page's name. Zeros at first.
    pub fn set_layout(&mut self, layout: [u8; 32]) {
        self.layout = layout;
    }

    /// Names of logical pages of a prefix, in the namespace of now.
    ///
    /// # Errors
    /// As [`Cache::page_keys`].
    pub fn names(&self, above: &Cache, prefix: &Prefix<'_>, pages: Range<u64>) -> Result<Vec<[u8; 32]>> {
        let keys = above.page_keys(prefix.tokens, prefix.key, prefix.spans, pages)?;
        Ok(keys.iter().map(|key| object_key(&self.layout, key)).collect())
    }

    /// The largest boundary, in tokens and above what [`Self::usable`] tells, that cache, host tier and the tier below
    /// make resumable together. `full` and `swa`: which of the logical pages from `from` on the tier below has.
    ///
    /// # Errors
    /// As [`Cache::match_tokens`].
    pub fn reachable(
        &self,
        above: &Cache,
        prefix: &Prefix<'_>,
        from: u64,
        full: &[bool],
        swa: &[bool],
    ) -> Result<Option<u64>> {
        let Prefix { tokens, key, spans, .. } = *prefix;
        let page = self.page();
        let own = self.usable(above, prefix)? / page;
        let (depth, map) = above.window_map(tokens, key, spans, from)?;
        let (host_depth, host_map) = self.host.window_map(tokens, key, spans, from)?;
        let mut far = depth.max(host_depth);
        if self.config.full_pages == 0 {
            far = far.max(from + swa.len() as u64);
        } else if let Some(i) = far.checked_sub(from).filter(|i| *i < full.len() as u64) {
            far += full[i as usize..].iter().take_while(|there| **there).count() as u64;
        }
        let tiers = [
            Residency { depth, from, swa: &map },
            Residency { depth: host_depth, from, swa: &host_map },
            Residency { depth: far, from, swa },
        ];
        let limit = (tokens.len() as u64 - 1) / page;
        Ok(union_boundary(&tiers, 0..0, own, limit, self.need()).map(|end| end * page))
    }

    /// Begins to bring the host tier up to boundary `at`, in tokens, with pages from another process. `name` is that of
    /// the page that ends there when the bytes were asked for: where it is another one by now, of other weights for
    /// instance, nothing may be received. `None`: that, or the host tier has it, or it is on its way, or there is no room.
    ///
    /// # Errors
    /// As [`Cache::page_keys`].
    pub fn receive(
        &mut self,
        above: &mut Cache,
        prefix: &Prefix<'_>,
        at: u64,
        name: &[u8; 32],
    ) -> Result<Option<Receive>> {
        let end = self.boundary(prefix, at)?;
        let key = above.page_keys(prefix.tokens, prefix.key, prefix.spans, end - 1..end)?[0];
        let other = object_key(&self.layout, &key) != *name;
        if other || self.saving.contains(&key) || self.has(prefix, at)? {
            return Ok(None);
        }
        let boundary = Boundary { at, kinds: kind::PROMPT_END, hits: 0, pages: self.need().min(end) as u32 };
        let seq = match self.open_host(prefix, at, PageKeys::default(), true) {
            Ok(seq) => seq,
            Err(Error::OutOfPages(_)) => return Ok(None),
            Err(error) => return Err(error),
        };
        let Bring::Begun(mut brought) = self.bring(above, seq, prefix, &boundary, true)? else {
            self.host.abort(seq)?;
            return Ok(None);
        };
        self.stats.receives += 1;
        let (id, pairs) = (brought.id, std::mem::take(&mut brought.pairs));
        let (full, swa) = (std::mem::take(&mut brought.full), std::mem::take(&mut brought.swa));
        self.note(seq, key, brought, (full.len(), swa.len()), None);
        let going = self.going.get_mut(&id).expect("noted just now");
        going.awaited = Some(swa.iter().map(|(page, _)| *page).collect());
        Ok(Some(Receive { id, pairs, full, swa, at }))
    }

    /// A receive is over. `records`: of each of [`Receive::swa`], and all bytes are there, those of the pairs as well.
    /// `None`: they did not come, and nothing of it is written any more.
    ///
    /// # Errors
    /// [`Error::Order`] for a number that is no receive on its way, [`Error::Invalid`] for records that do not fit; it
    /// goes on then.
    pub fn received(&mut self, above: &mut Cache, id: u64, records: Option<&[Record]>) -> Result<()> {
        let going = self.going.get(&id);
        if let (Some((going, awaited)), Some(records)) =
            (going.and_then(|g| g.awaited.as_ref().map(|a| (g, a))), records)
        {
            if awaited.len() != records.len() {
                let allowed = format!("{}, one for each SWA page", awaited.len());
                return Err(Error::invalid("number of records", records.len(), allowed));
            }
            let told: Vec<_> = awaited.iter().copied().zip(records.iter().cloned()).collect();
            self.host.load_records(going.seq, &told)?;
        }
        let ok = records.is_some();
        let going = self.arrived(above, id, ok, true)?;
        match ok {
            true => self.host.finish(going.seq)?,
            false => self.host.abort(going.seq)?,
        }
        if ok {
            self.stats.received_full += going.full;
            self.stats.received_swa += going.swa;
        } else {
            self.stats.receives_failed += 1;
        }
        Ok(())
    }

    /// Leases what the host tier has of a boundary, its full pages and its window, for writing them to the tier below,
    /// until [`Self::returned`]. `None`: it is not there, or open sequences were promised the room.
    ///
    /// # Errors
    /// As [`Cache::page_keys`].
    pub fn lend_down(&mut self, above: &Cache, prefix: &Prefix<'_>, at: u64) -> Result<Option<Loan>> {
        let end = self.boundary(prefix, at)?;
        let full = if self.config.full_pages > 0 { 0..end } else { 0..0 };
        let swa: Vec<u64> = (end - self.need().min(end)..end).collect();
        let keys = self.names(above, prefix, 0..end)?;
        let whole = (prefix.tokens, prefix.key, prefix.spans);
        let Some(lent) = self.host.lend(whole, full.clone(), &swa)? else { return Ok(None) };
        self.lending.insert(lent.id);
        self.stats.lent += 1;
        Ok(Some(Loan {
            id: lent.id,
            keys,
            full: full.zip(lent.full).collect(),
            swa: swa.into_iter().zip(lent.swa).collect(),
            records: lent.records,
        }))
    }

    /// Nothing reads the pages of a loan any more.
    ///
    /// # Errors
    /// [`Error::Order`] for a number that is no loan.
    pub fn returned(&mut self, id: u64) -> Result<()> {
        if !self.lending.remove(&id) {
            let running: Vec<_> = self.lending.iter().take(8).collect();
            return Err(Error::Order { what: "loan", value: id, expected: format!("one of {running:?}") });
        }
        self.host.move_done(id)
    }

    /// Boundaries of a prefix, in tokens and shallow first, that the host tier keeps and that were matched so many times.
    ///
    /// # Errors
    /// As [`Cache::match_tokens`].
    pub fn kept(&self, prefix: &Prefix<'_>, hits: u16, most: usize) -> Result<Vec<u64>> {
        let all = self.host.boundaries(prefix.tokens, prefix.key, prefix.spans, 0, most)?;
        Ok(all.into_iter().filter(|b| b.hits >= hits).map(|b| b.at).collect())
    }

    /// A boundary of these tokens, in pages.
    fn boundary(&self, prefix: &Prefix<'_>, at: u64) -> Result<u64> {
        let (page, len) = (self.page(), prefix.tokens.len() as u64);
        if at == 0 || at > len || !at.is_multiple_of(page) {
            return Err(Error::invalid("boundary", at, format!("a multiple of {page} from {page} to {len}")));
        }
        Ok(at / page)
    }
}
