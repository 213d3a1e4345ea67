//! A tier below the host tier, in another process: it has every row of every story, MTP rows made with whatever record
//! the operation's bytes say, and takes what it is lent.
//!
//! As with copies, bytes are written when a receive is told to be over, the latest there can be; one that fails leaves
//! garbage. What lies in host memory after it is read by later fetches, whose canaries tell.

use super::below::{copy, pages};
use super::lifecycle::pick;
use super::memory::{HEADS, Page, Row, Rows, STALE, mix};
use super::op::Prompt;
use super::story::{Story, key};
use super::world::World;
use mimo_cache::cache::{Group, Record};
use mimo_cache::key::{Key, object_key};
use mimo_cache::tier::{Prefix, Receive};
use std::collections::BTreeMap;

/// A receive that was not ended yet.
pub struct Receiving {
    receive: Receive,
    story: Story,
    records: Vec<Record>,
    /// What the pages held that come from the cache above.
    was: Vec<Rows>,
}

/// Unfinished business with the tier below the host tier.
#[derive(Default)]
pub struct Remote {
    receiving: BTreeMap<u64, Receiving>,
    lent: BTreeMap<u64, Vec<(Page, Rows)>>,
}

impl Remote {
    /// Pages of the cache above are lent.
    pub fn borrows(&self) -> bool {
        self.receiving.values().any(|r| !r.receive.pairs.is_empty())
    }
}

fn prefix<'a>(story: &'a Story, key: &'a Key) -> Prefix<'a> {
    Prefix { tokens: &story.tokens, key, spans: &story.spans, tenant: 0 }
}

impl World {
    /// Asks what the tier below has of a prompt and begins to receive it; `taste` says what it has, and what of it comes.
    pub fn receive_below(&mut self, p: Prompt, far: u8, taste: u8) {
        let story = self.story(p);
        let page = u64::from(self.setup.page);
        let whole = story.tokens.len() as u64 / page;
        let Some(below) = self.below.as_mut().filter(|_| whole > 0) else { return };
        let space = key(story.key);
        let of = prefix(&story, &space);
        let names = below.tiers.names(&self.cache, &of, 0..whole).expect("a valid prompt");
        if taste % 16 == 15 {
            let none = below.tiers.receive(&mut self.cache, &of, whole * page, &[0; 32]).expect("a valid prompt");
            assert_eq!(none, None, "pages of another namespace were received");
            return;
        }
        let has = |bit: u64, i: u64| taste.is_multiple_of(2) || !mix(u64::from(taste) + 256 * bit, i).is_multiple_of(4);
        let (mut full, mut swa) = (Vec::new(), Vec::new());
        let from = u64::from(far) % (whole + 1);
        for i in from..whole {
            full.push(has(0, i));
            swa.push(has(1, i));
        }
        let usable = below.tiers.usable(&self.cache, &of).expect("a valid prompt");
        let told = below.tiers.reachable(&self.cache, &of, from, &full, &swa).expect("a valid prompt");
        assert!(told.is_none_or(|at| at > usable && at < story.tokens.len() as u64), "{told:?}, usable are {usable}");
        if taste.is_multiple_of(2) && from * page <= usable.saturating_sub(u64::from(self.setup.window) + page) {
            let limit = (story.tokens.len() as u64 - 1) / page * page;
            assert_eq!(told, (limit > usable).then_some(limit), "the tier below has everything from {from} on");
        }
        // Without `reachable` any boundary may be named, by a caller that knows more.
        let at = if taste % 4 < 2 { told } else { Some((1 + u64::from(far) % whole) * page) };
        let Some(at) = at else { return };
        let receive = below.tiers.receive(&mut self.cache, &of, at, &names[(at / page) as usize - 1]);
        let Some(receive) = receive.expect("a valid prompt") else { return };
        if taste % 4 < 2 {
            let there = |map: &[bool], page: u64| page.checked_sub(from).is_some_and(|i| map[i as usize]);
            assert!(receive.full.iter().all(|(l, _)| there(&full, *l)), "{receive:?} of {full:?} from {from}");
            assert!(receive.swa.iter().all(|(l, _)| there(&swa, *l)), "{receive:?} of {swa:?} from {from}");
        }
        let was = pages(&receive.pairs, false).iter().map(|(source, _)| self.memory.page(*source)).collect();
        let records = receive.swa.iter().map(|(logical, _)| self.record_of(&story, *logical, taste)).collect();
        let id = receive.id;
        self.remote.receiving.insert(id, Receiving { receive, story, records, was });
        match taste / 16 % 4 {
            0 => {
                self.end_receive(id, true);
                self.audit();
                self.lend_below(p, far);
                self.serve_below(p, taste);
            }
            // A page of it is gone: nearer ones may still make a shorter boundary.
            1 => {
                self.end_receive(id, false);
                let at = at / page / 2;
                if at > 0 {
                    self.receive_below(p, at as u8 - 1, 2);
                }
            }
            _ => {}
        }
    }

    /// A request whose prompt is in host memory: opened, fetched, and checked by the audits.
    pub fn serve_below(&mut self, p: Prompt, taste: u8) {
        let Some(i) = self.open_prompt(p, 0) else { return };
        self.fetch(i);
        self.audit();
        let writer = self.seqs[i].writer;
        if taste % 8 < 5 {
            self.await_load(i, taste % 8 < 4);
            self.audit();
        }
        if taste % 8 < 2 {
            let i = self.seqs.iter().position(|s| s.writer == writer).expect("still open");
            self.finish(i);
        }
    }

    pub fn received(&mut self, which: u8, ok: bool) {
        if let Some(n) = pick(which, self.remote.receiving.len()) {
            let id = *self.remote.receiving.keys().nth(n).expect("a receive");
            self.end_receive(id, ok);
        }
    }

    fn end_receive(&mut self, id: u64, ok: bool) {
        let Receiving { receive, story, records, was } = self.remote.receiving.remove(&id).expect("a receive");
        let rows: Vec<_> = (receive.full.iter().map(|p| (Group::Full, p, None)))
            .chain(receive.swa.iter().zip(&records).map(|(p, record)| (Group::Swa, p, Some(record))))
            .map(|(group, &(logical, id), record)| ((group, id), self.rows_of(&story, group, logical, record)))
            .collect();
        let below = self.below.as_mut().expect("a host tier");
        copy(&self.memory, &mut below.memory, &pages(&receive.pairs, false), &was, ok);
        for (i, (page, rows)) in rows.iter().enumerate() {
            match ok {
                true => below.memory.set_page(*page, rows),
                false if i % 2 == 0 => below.memory.set_page(*page, &vec![None; rows.len()]),
                false => {}
            }
        }
        if ok {
            let mut long = records.clone();
            long.push(Record::new());
            assert!(below.tiers.received(&mut self.cache, id, Some(&long)).is_err(), "more records than pages");
        }
        assert!(below.tiers.saved(&mut self.cache, id, ok).is_err(), "a receive ended as a save");
        below.tiers.received(&mut self.cache, id, ok.then_some(&records[..])).expect("a receive on its way");
        assert!(below.tiers.received(&mut self.cache, id, None).is_err(), "a receive ended twice");
        for ((_, id), record) in receive.swa.iter().zip(&records).filter(|_| ok) {
            // One that another was faster with is not published.
            let told = below.tiers.host().mtp_record(*id);
            assert!(told.as_deref().is_none_or(|told| *told == record[..]), "{told:?} came with {record:?}");
        }
    }

    /// Lends what the host tier has of a prompt, and checks what is read there.
    pub fn lend_below(&mut self, p: Prompt, far: u8) {
        let story = self.story(p);
        let (space, page) = (key(story.key), u64::from(self.setup.page));
        let Some(below) = self.below.as_mut() else { return };
        let of = prefix(&story, &space);
        let kept = below.tiers.kept(&of, 0, 64).expect("a valid prompt");
        let found = below.tiers.host().match_tokens(&story.tokens, &space, &story.spans).expect("a valid prompt");
        let at = pick(far, kept.len()).map_or(found.usable, |i| kept[i]);
        if at == 0 {
            assert!(below.tiers.lend_down(&self.cache, &of, 0).is_err());
            return;
        }
        let Some(loan) = below.tiers.lend_down(&self.cache, &of, at).expect("a valid prompt") else { return };
        let keys = self.cache.page_keys(&story.tokens, &space, &story.spans, 0..at / page).expect("a valid prompt");
        let named: Vec<_> = keys.iter().map(|key| object_key(&[0; 32], key)).collect();
        assert_eq!(loan.keys, named);
        let host = below.tiers.host().path_keys(&story.tokens, &space, &story.spans, at / page);
        assert_eq!(host.expect("a valid prompt").map(|(_, keys)| keys), Some(keys), "both tiers name the pages");
        for (id, record) in loan.swa.iter().zip(&loan.records) {
            assert_eq!(below.tiers.host().mtp_record(id.1).as_deref(), Some(&record[..]));
        }
        let lent: Vec<_> = (loan.full.iter().map(|p| (Group::Full, p, None)))
            .chain(loan.swa.iter().zip(&loan.records).map(|(p, record)| (Group::Swa, p, Some(record.clone()))))
            .map(|(group, &(logical, id), record)| ((group, id), logical, record))
            .collect();
        let mut held = Vec::new();
        for (id, logical, record) in lent {
            let want = self.rows_of(&story, id.0, logical, record.as_ref());
            let found = self.below.as_ref().expect("a host tier").memory.page(id);
            for (want, found) in want.iter().flatten().zip(&found) {
                let found = found.expect("a published row");
                let same = (found.namespace, found.prefix, found.position, found.mtp);
                let heads = self.setup.n_mtp as usize;
                let told = (want.namespace, want.prefix, want.position, want.mtp);
                assert_eq!((same.0, same.1, same.2), (told.0, told.1, told.2), "{id:?} was lent");
                // Heads beyond the record were made with nothing that anybody may trust.
                let beyond = |k: &usize| want.mtp[*k] != STALE;
                assert!((0..heads).filter(beyond).all(|k| same.3[k] == told.3[k]), "{found:?} of {want:?}");
            }
            held.push((id, found));
        }
        self.remote.lent.insert(loan.id, held);
    }

    pub fn returned(&mut self, which: u8) {
        let Some(n) = pick(which, self.remote.lent.len()) else { return };
        let id = *self.remote.lent.keys().nth(n).expect("a loan");
        let below = self.below.as_mut().expect("a host tier");
        for (page, rows) in self.remote.lent.remove(&id).expect("a loan") {
            assert_eq!(below.memory.page(page), rows, "{page:?} was written while it was lent");
        }
        below.tiers.returned(id).expect("a loan");
        assert!(below.tiers.returned(id).is_err(), "a loan was returned twice");
    }

    /// All of it ends.
    pub fn close_remote(&mut self) {
        while !self.remote.receiving.is_empty() {
            self.received(0, true);
            self.audit();
        }
        while !self.remote.lent.is_empty() {
            self.returned(0);
            self.audit();
        }
    }

    /// The tokens after a page with which the tier below has its MTP rows: those of the story, others, or too few.
    fn record_of(&self, story: &Story, logical: u64, taste: u8) -> Record {
        let n = self.setup.n_mtp as usize;
        let own = story.tokens.iter().skip((logical as usize + 1) * self.setup.page as usize).take(n).copied();
        match taste / 64 {
            0 | 1 => own.collect(),
            2 => own.take(mix(u64::from(taste), logical) as usize % 4).collect(),
            _ => (0..n as u64).map(|k| (mix(u64::from(taste), k) % u64::from(self.setup.alphabet)) as u32).collect(),
        }
    }

    fn rows_of(&mut self, story: &Story, group: Group, logical: u64, record: Option<&Record>) -> Rows {
        let fresh = self.namespaces.len() as u32;
        let namespace = *self.namespaces.entry((story.weights, story.key)).or_insert(fresh);
        let prefixes = story.prefixes(namespace);
        let page = u64::from(self.setup.page);
        let (start, end) = (logical * page, (logical + 1) * page);
        let row = |position: u64| {
            let mut mtp = [STALE; HEADS];
            for (k, token) in mtp.iter_mut().enumerate().take(self.setup.n_mtp as usize) {
                let Some(record) = record else { break };
                let at = position + k as u64 + 1;
                let after = at.checked_sub(end).map(|beyond| record.get(beyond as usize).copied().unwrap_or(STALE));
                *token = after.unwrap_or_else(|| story.tokens[at as usize]);
            }
            Some(Row { group, namespace, prefix: prefixes[position as usize], position, writer: 0, mtp })
        };
        (start..end).map(row).collect()
    }
}
