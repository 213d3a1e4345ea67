//! A host tier below the world's cache: its memory holds copies of the device's canaries, and whatever a sequence gets from
//! there is checked like everything else it reads.
//!
//! Copies are made when a move is told to be over, the latest there can be, and must then still find what was there when it
//! began. A move that fails leaves garbage.

use super::lifecycle::pick;
use super::memory::{Memory, Page, Row, Rows};
use super::op::Prompt;
use super::story::{Story, key};
use super::world::World;
use mimo_cache::cache::{Group, Load};
use mimo_cache::key::Key;
use mimo_cache::tier::{Pairs, Prefix, Rules, Save, TierConfig, Tiers, Write};
use std::collections::BTreeMap;

/// See the module's text.
pub struct Below {
    pub tiers: Tiers,
    pub memory: Memory,
    saves: BTreeMap<u64, (Save, Vec<Rows>)>,
}

/// (source, target) of every page.
pub fn pages(pairs: &Pairs, up: bool) -> Vec<(Page, Page)> {
    let one = |group| {
        move |&(device, host): &(u32, u32)| {
            if up { ((group, host), (group, device)) } else { ((group, device), (group, host)) }
        }
    };
    pairs.full.iter().map(one(Group::Full)).chain(pairs.swa.iter().map(one(Group::Swa))).collect()
}

/// A copy from one memory to another, or half of one.
pub fn copy(from: &Memory, to: &mut Memory, pairs: &[(Page, Page)], was: &[Vec<Option<Row>>], ok: bool) {
    for (i, ((source, target), was)) in pairs.iter().zip(was).enumerate() {
        let rows = from.page(*source);
        assert_eq!(&rows, was, "{source:?} was written while it was copied");
        match ok {
            true => to.set_page(*target, &rows),
            false if i % 2 == 0 => to.set_page(*target, &vec![None; rows.len()]),
            false => {}
        }
    }
}

fn prefix<'a>(story: &'a Story, key: &'a Key) -> Prefix<'a> {
    Prefix { tokens: &story.tokens, key, spans: &story.spans, tenant: 0 }
}

impl World {
    /// Puts a host tier below; bytes choose its size and when it is written.
    pub fn put_below(&mut self, [full, swa, write, saving]: [u8; 4]) {
        let setup = &self.setup;
        let least = setup.quota() * 2 + setup.window.div_ceil(setup.page);
        let config = TierConfig {
            full_pages: if setup.has_full() { 2 + u32::from(full) % 60 } else { 0 },
            swa_pages: if setup.has_swa() { least + u32::from(swa) % 60 } else { 0 },
            write: [Write::Through, Write::Through, Write::OnHit(1), Write::Back][usize::from(write) % 4],
            max_saving: 1 + u32::from(saving) % 40,
            rules: Rules { heal: saving % 8 != 7, touch: saving % 8 != 6, ..Rules::default() },
        };
        let mut host = setup.clone();
        (host.full_pages, host.swa_pages, host.region) = (config.full_pages, config.swa_pages, None);
        let tiers = Tiers::new(&self.cache, config).expect("a valid host tier");
        self.below = Some(Below { tiers, memory: Memory::new(&host), saves: BTreeMap::new() });
    }

    /// Brings up what the host tier has for an open sequence.
    pub fn fetch(&mut self, i: usize) {
        let Some(below) = &mut self.below else { return };
        let s = &self.seqs[i];
        if s.reserved > 0 || s.incoming.is_some() {
            assert!(below.tiers.fetch(&mut self.cache, s.id).is_err());
            return;
        }
        let space = key(s.story.key);
        let promised = below.tiers.usable(&self.cache, &prefix(&s.story, &space)).expect("a valid prompt");
        let before = self.cache.report(s.id).expect("a live sequence").matched.usable;
        let Some(fetch) = below.tiers.fetch(&mut self.cache, s.id).expect("an open sequence") else { return };
        if s.committed == before {
            assert!(fetch.to >= promised, "{} of {promised} promised tokens", fetch.to);
        }
        assert_eq!(fetch.from, s.committed);
        let moved = pages(&fetch.pairs, true);
        let was = moved.iter().map(|(source, _)| below.memory.page(*source)).collect();
        let numbered = |pairs: &[(u32, u32)]| pairs.iter().map(|p| (0, p.0)).collect();
        let load = Load {
            id: fetch.id,
            full: numbered(&fetch.pairs.full),
            swa: numbered(&fetch.pairs.swa),
            rebuilds: fetch.rebuilds.clone(),
        };
        self.set_out(i, load, Vec::new(), Some((fetch.pairs, was)), fetch.to);
    }

    /// Writes down what there is of a prompt.
    pub fn save(&mut self, p: Prompt) {
        let story = self.story(p);
        let Some(below) = &mut self.below else { return };
        let key = key(story.key);
        let again = story.tokens.len().is_multiple_of(3);
        let save = below.tiers.save(&mut self.cache, &prefix(&story, &key), 0, again).expect("a valid prompt");
        self.set_out_below(save);
        while let Some(below) = &mut self.below {
            match below.tiers.write_back(&mut self.cache).expect("what was noted") {
                Some((save, _)) => self.set_out_below(Some(save)),
                None => break,
            }
        }
    }

    fn set_out_below(&mut self, save: Option<Save>) {
        let (Some(below), Some(save)) = (&mut self.below, save) else { return };
        let was = pages(&save.pairs, false).iter().map(|(source, _)| self.memory.page(*source)).collect();
        below.saves.insert(save.id, (save, was));
    }

    pub fn saved(&mut self, which: u8, ok: bool) {
        let Some(below) = &mut self.below else { return };
        let Some(n) = pick(which, below.saves.len()) else { return };
        let id = *below.saves.keys().nth(n).expect("a save");
        let (save, was) = below.saves.remove(&id).expect("a save");
        copy(&self.memory, &mut below.memory, &pages(&save.pairs, false), &was, ok);
        let next = below.tiers.saved(&mut self.cache, id, ok).expect("a save on its way");
        self.set_out_below(next);
    }

    /// Pages are lent to the host tier.
    pub fn lends_below(&self) -> bool {
        self.remote.borrows() || self.below.as_ref().is_some_and(|b| !b.saves.is_empty())
    }

    pub fn check_below(&self) {
        let Some(below) = &self.below else { return };
        below.tiers.check_integrity().unwrap_or_else(|e| panic!("{e}\n{}", below.tiers.host().dump_text()));
    }

    /// Both tiers together have at least what each has.
    pub fn look_below(&self, story: &Story) {
        let Some(below) = &self.below else { return };
        let key = key(story.key);
        let both = below.tiers.usable(&self.cache, &prefix(story, &key)).expect("a valid prompt");
        for cache in [&self.cache, below.tiers.host()] {
            let one = cache.match_tokens(&story.tokens, &key, &story.spans).expect("a valid prompt").usable;
            assert!(both >= one, "{both} tokens of both tiers, {one} of one");
        }
    }

    /// Everything on its way down ends, and every page of the host tier comes home.
    pub fn close_below(&mut self) {
        self.close_remote();
        while self.below.as_ref().is_some_and(|b| !b.saves.is_empty()) {
            self.saved(0, true);
            self.audit();
        }
        let Some(below) = &self.below else { return };
        let stats = below.tiers.host().stats();
        for p in [stats.full, stats.swa] {
            assert_eq!((p.private, p.quarantined, p.leased, p.promised), (0, 0, 0, 0), "{p:?}");
        }
    }
}
