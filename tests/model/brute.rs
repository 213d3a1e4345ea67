//! Matching the slow way: token by token, from a dump of what is resident. And the mirror: what a router that only
//! reads the events believes to be resident.

use super::setup::Setup;
use super::story::{Story, key};
use mimo_cache::cache::{Cache, Drained, Event, EventKind, Group, Match, PageKey, Snapshot, SnapshotPage};
use mimo_cache::key::{page_key, page_spans, root_key};
use std::collections::{BTreeMap, HashMap, HashSet};

/// The name of a weights version.
pub fn weights(version: u8) -> Vec<u8> {
    if version == 0 { Vec::new() } else { vec![b'w', version] }
}

/// Root keys of every namespace that operations can name, if it was cleared `generations` times at most.
pub fn roots(fingerprint: &[u8; 32], generations: u64) -> HashSet<PageKey> {
    let names = (0..4).flat_map(|w| (0..4).map(move |k| (weights(w), key(k))));
    names.flat_map(|(w, k)| (0..=generations).map(move |g| root_key(fingerprint, &w, &k, g))).collect()
}

pub struct Residency<'a> {
    pages: HashMap<PageKey, SnapshotPage>,
    attached: HashSet<PageKey>,
    roots: &'a HashSet<PageKey>,
    fingerprint: [u8; 32],
}

impl Residency<'_> {
    pub fn of<'a>(cache: &Cache, roots: &'a HashSet<PageKey>) -> Residency<'a> {
        let mut pages = HashMap::new();
        for page in cache.snapshot().pages {
            assert!(pages.insert(page.key, page).is_none(), "a snapshot names one page twice");
        }
        let attached = pages.values().map(|p| p.parent).filter(|p| roots.contains(p)).collect();
        Residency { pages, attached, roots, fingerprint: cache.config().fingerprint }
    }

    /// The pages along a story's tokens; `None` where nothing is resident.
    fn path(&self, setup: &Setup, story: &Story, generations: u64) -> Vec<Option<&SnapshotPage>> {
        let version = weights(story.weights);
        let root = |g| root_key(&self.fingerprint, &version, &key(story.key), g);
        let Some(mut parent) = (0..=generations).rev().map(root).find(|r| self.attached.contains(r)) else {
            return Vec::new();
        };
        let mut out = Vec::new();
        for (i, tokens) in story.tokens.chunks_exact(setup.page as usize).enumerate() {
            parent = page_key(&parent, tokens, page_spans(&story.spans, i as u64, setup.page));
            out.push(self.pages.get(&parent));
        }
        out
    }

    /// p and q by their definitions. Without a full group p is the tree path's length.
    pub fn lookup(&self, setup: &Setup, story: &Story, generations: u64) -> Match {
        let path = self.path(setup, story, generations);
        let page = u64::from(setup.page);
        let at = |token: u64| path.get((token / page) as usize).copied().flatten();
        let tokens = story.tokens.len() as u64;
        let counts = |x: &SnapshotPage| x.full || !setup.has_full();
        let p = (0..tokens).take_while(|t| at(*t).is_some_and(counts)).count() as u64 / page * page;
        let window = setup.match_window();
        let safe = |q: u64| (q.saturating_sub(window)..q).all(|t| at(t).is_some_and(|x| x.swa));
        let longest = p.min(tokens - 1);
        let usable = (0..=longest).rev().find(|q| q % page == 0 && safe(*q));
        Match { full_kv_match: p, usable: usable.unwrap_or(0) }
    }

    /// What must hold of any dump: full KV is prefix-closed, and `window_safe` is what matching would say.
    pub fn check(&self, setup: &Setup) {
        for x in self.pages.values() {
            assert!(x.full || !setup.has_full(), "a snapshot lists a page that no lookup finds: {x:?}");
            let parent = self.pages.get(&x.parent);
            let closed = !x.full || self.roots.contains(&x.parent) || parent.is_some_and(|up| up.full);
            assert!(closed, "full KV behind a hole: {x:?} below {parent:?}");
            let (mut left, mut safe, mut at) = (setup.match_window(), x.full || !setup.has_full(), Some(x));
            while left > 0 && safe {
                let Some(here) = at else {
                    safe = false;
                    break;
                };
                safe &= here.swa;
                left = left.saturating_sub(u64::from(setup.page));
                if self.roots.contains(&here.parent) {
                    break;
                }
                at = self.pages.get(&here.parent);
            }
            assert_eq!(x.window_safe, safe, "window_safe of {x:?}");
        }
    }
}

/// Folds events into the set of resident pages.
#[derive(Default)]
pub struct Mirror {
    number: u64,
    pages: BTreeMap<PageKey, SnapshotPage>,
}

impl Mirror {
    fn entry(&mut self, key: PageKey) -> &mut SnapshotPage {
        let empty = SnapshotPage { key, parent: [0; 32], root: [0; 32], full: false, swa: false, window_safe: false };
        self.pages.entry(key).or_insert(empty)
    }

    fn set(&mut self, key: PageKey, group: Group, value: bool) {
        let page = self.entry(key);
        let flag = if group == Group::Full { &mut page.full } else { &mut page.swa };
        assert_ne!(*flag, value, "an event says what was said before: {group:?} of {key:?} is {value}");
        *flag = value;
    }

    fn event(&mut self, event: Event) {
        assert_eq!(event.number, self.number + 1, "event numbers are consecutive");
        self.number = event.number;
        match event.kind {
            EventKind::Stored { group, root, mut parent, keys } => {
                assert!(!keys.is_empty(), "an event without keys");
                for key in keys {
                    self.set(key, group, true);
                    let page = self.entry(key);
                    page.root = root;
                    page.parent = std::mem::replace(&mut parent, key);
                }
            }
            EventKind::Removed { group, keys } => keys.into_iter().for_each(|k| self.set(k, group, false)),
            EventKind::WindowSafe { keys } => keys.into_iter().for_each(|k| self.entry(k).window_safe = true),
            EventKind::WindowUnsafe { keys } => keys.into_iter().for_each(|k| self.entry(k).window_safe = false),
            EventKind::Cleared { root } => {
                self.pages.retain(|_, page| page.root != root);
            }
        }
    }

    /// Takes drained events in; after a gap the mirror is worth nothing until [`Mirror::resync`].
    pub fn fold(&mut self, drained: Drained) -> bool {
        if drained.lost > 0 {
            return false;
        }
        drained.events.into_iter().for_each(|e| self.event(e));
        true
    }

    /// Starts again from a snapshot, as after a gap. All events up to it must have been drained.
    pub fn resync(&mut self, snapshot: Snapshot) {
        self.number = snapshot.number;
        self.pages = snapshot.pages.into_iter().map(|p| (p.key, p)).collect();
    }

    /// Panics unless the mirror equals a snapshot taken after the last folded event.
    pub fn check(&self, snapshot: Snapshot) {
        assert_eq!(self.number, snapshot.number, "number of the last event");
        let ours: BTreeMap<_, _> = self.pages.iter().filter(|(_, p)| p.full || p.swa).collect();
        let theirs: BTreeMap<_, _> = snapshot.pages.iter().filter(|p| p.full || p.swa).map(|p| (&p.key, p)).collect();
        for (key, page) in &ours {
            assert_eq!(Some(page), theirs.get(key), "the events say this page is resident, the snapshot differs");
        }
        let missed = theirs.keys().find(|k| !ours.contains_key(*k));
        assert_eq!(missed, None, "the snapshot has a page that no event told of");
    }
}
