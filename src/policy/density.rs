//! Policies that ask what was learnt: an order by the use that an id promises now.
//!
//! Ids of one class stand in one list by last use. What a class promises depends on the age alone, and rises at first
//! (nobody answers within a second) and then falls, so that the least of a list is at one of its ends: a choice looks at
//! two ids of each list and not at all of them. For checkpoints the promise is multiplied by what they unlock for each
//! page they cost; there lists are split by octaves of that, and the oldest of each list stands for it.
//!
//! What the newest two requests used stays while anything else may go, whatever it promises: a session that has just got
//! its answer does not lose its end to the request that comes next. Checkpoints that are kept in case they are needed
//! one day may go at once, and so may prompts of which a pool holds no more than a few: there keeping the newest would
//! cost one that has been kept long enough to be used.
//!
//! Scores are kept from choice to choice and made anew when the time or a table changed: once a request, in the number
//! of lists. Between them a choice costs the lists that changed and one pass over the scores.

use super::ranked::{Entry, Ranked};
use super::{Now, Policy, Standing, class};

/// Octaves of worth.
const OCTAVES: u16 = 16;
/// Ids from the young end of a list among which the first is looked for that is not fresh.
const LOOKS: usize = 16;

/// What goes first of a list.
#[derive(Debug, Clone, Copy)]
struct Best {
    /// One of the newest two requests used it.
    fresh: bool,
    score: f32,
    id: u32,
}

/// See the module's text.
#[derive(Debug)]
pub struct Density {
    ids: Ranked,
    /// Lists of a class.
    octaves: u16,
    /// The youngest of a list may be the least.
    both_ends: bool,
    /// The candidate of each list, while it holds ids.
    best: Vec<Best>,
    changed: Vec<u16>,
    is_changed: Vec<bool>,
    /// Time and version of the tables that the scores were made with.
    made: (u64, u64),
}

impl Density {
    fn new(octaves: u16, both_ends: bool) -> Self {
        let lists = class::COUNT * octaves;
        Density {
            ids: Ranked::new(lists),
            octaves,
            both_ends,
            best: vec![Best { fresh: false, score: 0.0, id: 0 }; usize::from(lists)],
            changed: Vec::new(),
            is_changed: vec![false; usize::from(lists)],
            made: (0, 0),
        }
    }

    /// Over leaves, for `hit_density`.
    pub fn of_leaves() -> Self {
        Self::new(1, true)
    }

    /// Over checkpoints, for `hit_density`.
    pub fn of_checkpoints() -> Self {
        Self::new(OCTAVES, false)
    }

    /// Over either, for `turn_hazard`.
    pub fn of_turns() -> Self {
        Self::new(1, true)
    }

    fn list(&self, class: u16, worth: f32) -> u16 {
        let octave = (worth.max(1.0).log2() as u16).min(self.octaves - 1);
        class * self.octaves + octave
    }

    fn note(&mut self, list: u16) {
        if !std::mem::replace(&mut self.is_changed[usize::from(list)], true) {
            self.changed.push(list);
        }
    }

    fn score(&self, id: u32, now: Now<'_>) -> f32 {
        let e = self.ids.get(id).expect("an id in a list");
        let worth = if self.octaves > 1 { e.worth } else { 1.0 };
        now.reuse.score(e.list / self.octaves, now.time.saturating_sub(e.used)) * worth
    }

    fn best_of(&self, id: u32, now: Now<'_>) -> Best {
        let e = self.ids.get(id).expect("an id in a list");
        let class = e.list / self.octaves;
        let fresh = now.is_fresh(e.used, e.pages) && (self.octaves == 1 || !class::is_in_case(class));
        Best { fresh, score: self.score(id, now), id }
    }

    fn make(&mut self, list: u16, now: Now<'_>) {
        let Some(oldest) = self.ids.oldest(list) else { return };
        let mut best = self.best_of(oldest, now);
        if self.both_ends {
            let settled = |&id: &u32| self.ids.get(id).is_some_and(|e| !now.is_fresh(e.used, e.pages));
            let youngest = self.ids.from_the_youngest(list).take(LOOKS).find(settled).unwrap_or(oldest);
            let other = self.best_of(youngest, now);
            if (other.fresh, other.score) < (best.fresh, best.score) {
                best = other;
            }
        }
        self.best[usize::from(list)] = best;
    }
}

impl Policy for Density {
    fn insert(&mut self, id: u32, at: Standing) {
        self.remove(id);
        let list = self.list(at.class, at.worth);
        self.ids.insert(id, Entry::new(list, &at));
        self.note(list);
    }

    fn remove(&mut self, id: u32) {
        if let Some(old) = self.ids.remove(id) {
            self.note(old.list);
        }
    }

    fn victim(&mut self, now: Now<'_>) -> Option<u32> {
        let made = (now.time, now.reuse.version());
        let changed = std::mem::take(&mut self.changed);
        if std::mem::replace(&mut self.made, made) == made {
            changed.iter().for_each(|&list| self.make(list, now));
        } else {
            (0..self.ids.active().len()).for_each(|i| self.make(self.ids.active()[i], now));
        }
        for &list in &changed {
            self.is_changed[usize::from(list)] = false;
        }
        self.changed = changed;
        self.changed.clear();
        let mut least: Option<(bool, f32, u64, u32)> = None;
        for &list in self.ids.active() {
            let Best { fresh, score, id } = self.best[usize::from(list)];
            if least.is_none_or(|l| (fresh, score) <= (l.0, l.1)) {
                let rank = self.ids.get(id).expect("an id in a list").rank;
                // What nothing tells apart goes by last use.
                if least.is_none_or(|l| (fresh, score) < (l.0, l.1) || rank < l.2) {
                    least = Some((fresh, score, rank, id));
                }
            }
        }
        least.map(|l| l.3)
    }

    fn resize(&mut self, id: u32, pages: u32) {
        if let Some(list) = self.ids.get(id).map(|e| e.list) {
            self.ids.resize(id, pages);
            self.note(list);
        }
    }

    fn value(&self, id: u32, now: Now<'_>) -> f32 {
        if self.ids.get(id).is_some() { self.score(id, now) } else { 0.0 }
    }

    fn ids(&self) -> &Ranked {
        &self.ids
    }

    fn ids_mut(&mut self) -> &mut Ranked {
        &mut self.ids
    }

    fn reweigh(&mut self, id: u32, worth: f32) -> bool {
        let Some(&entry) = self.ids.get(id).filter(|_| self.octaves > 1) else { return false };
        let list = self.list(entry.list / self.octaves, worth);
        self.note(entry.list);
        self.note(list);
        self.ids.insert(id, Entry { list, worth, ..entry });
        list != entry.list || worth > entry.worth
    }
}
