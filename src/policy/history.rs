//! What the cache remembers of its users, and what it learns from them: the time, the ends of prompts, and reuse.
//!
//! Every prompt is an event. Where a match stops, the node there knows its last user: either the prompt goes on from that
//! user's end, which is the next turn of a session, or it parts from it further up. When pages that were evicted are
//! computed again, the memory of ends tells the same. So reuse is counted whether or not the cache could serve it, and
//! what is learnt does not depend on what was kept.

use super::class;
use super::ends::{End, Ends};
use super::reuse::Reuse;
use super::{Now, PolicyKind};

/// Milliseconds in a unit of time.
const UNIT_MS: u64 = 100;
/// Fewest and most ends that are remembered: one for every two pages, 12 bytes each.
const ROOM: (usize, usize) = (1 << 12, 1 << 22);

/// What is remembered of a request that used pages.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct User {
    /// When it came.
    pub time: u64,
    /// Where its prompt ended, in pages; 0 when nothing is known.
    pub end: u32,
    /// Turn of its session, from 1.
    pub turn: u16,
    /// Its class.
    pub class: u16,
}

/// What is known of a request when it comes.
#[derive(Debug, Clone, Copy, Default)]
pub struct Arrival {
    /// Class and age of what it used again.
    pub reused: Option<(u16, u64)>,
    /// Where a session's last turn ended, which it goes on from.
    pub from: Option<u32>,
    /// It parts from its last user's prompt at boundary `known`, unless what comes next was only evicted.
    pub parts: bool,
    /// Turn it follows, 0 for none.
    pub turn: u16,
    /// Pages that somebody else brought.
    pub known: u32,
}

/// See the module's text.
#[derive(Debug)]
pub struct History {
    learns: bool,
    turns_only: bool,
    /// Time of the newest request, and of the one before.
    clock: u64,
    before: u64,
    reuse: Reuse,
    ends: Ends,
}

impl History {
    /// For a cache of `pages` pages.
    pub fn new(kind: PolicyKind, pages: u64, seed: u64) -> Self {
        let learns = kind.learns();
        let room = (pages as usize / 2).clamp(ROOM.0, ROOM.1);
        History {
            learns: learns.is_some(),
            turns_only: kind == PolicyKind::TurnHazard,
            clock: 0,
            before: 0,
            reuse: Reuse::new(learns),
            ends: Ends::new(if learns.is_some() { room } else { 0 }, seed),
        }
    }

    /// True when anybody asks what is learnt.
    pub fn learns(&self) -> bool {
        self.learns
    }

    /// A request came at `ms`. Time goes on by a unit with each request even when nobody tells it.
    pub fn arrive(&mut self, ms: u64) -> u64 {
        self.before = self.clock;
        self.clock = (self.clock + 1).max(ms / UNIT_MS);
        self.clock
    }

    /// The time, when the caller's clock says `ms`.
    pub fn now(&self, ms: u64) -> u64 {
        self.clock.max(ms / UNIT_MS)
    }

    /// What the policy over a pool of `pool` pages may ask at `ms`.
    pub fn ask(&self, ms: u64, pool: u32) -> Now<'_> {
        Now { time: self.now(ms), fresh: self.before, pool, reuse: &self.reuse }
    }

    /// The end of a prompt at the page with this key.
    pub fn end_at(&self, key: &[u8; 32]) -> Option<End> {
        self.ends.find(key)
    }

    /// The next turn came: what it went on from is no end any more.
    pub fn forget(&mut self, key: &[u8; 32]) {
        self.ends.forget(key);
    }

    /// A request whose prompt is cached up to its end, at boundary `end` with this key. `found` is the deepest end of an
    /// earlier prompt that was computed again on the way. `page` is the page size in tokens.
    pub fn settle(&mut self, a: &Arrival, found: Option<(u32, End)>, end: u32, key: &[u8; 32], page: u32) -> User {
        let time = self.clock;
        let mut a = *a;
        if let Some((at, old)) = found.filter(|&(at, _)| at > a.known) {
            a = Arrival {
                reused: Some((old.class, time.saturating_sub(old.time))),
                from: Some(at),
                parts: false,
                turn: old.turn,
                known: at,
            };
        }
        let user = self.user(&a, end, page);
        if !self.learns {
            return user;
        }
        if let Some((class, age)) = a.reused {
            self.reuse.used(class, age);
            if a.from.is_none() {
                self.reuse.entered(class);
            }
        }
        self.reuse.entered(user.class);
        self.ends.put(key, End { time, turn: user.turn, class: user.class });
        user
    }

    /// What a request looks like as long as no more is known.
    pub fn user(&self, a: &Arrival, end: u32, page: u32) -> User {
        let again = a.from == Some(end);
        let turn = if again { a.turn.max(1) } else { a.turn.saturating_add(1) };
        let new = u64::from(end.saturating_sub(a.known)) * u64::from(page);
        let gap = a.reused.filter(|_| a.from.is_some()).map(|(_, age)| age);
        let class = if self.turns_only { class::turn(turn) } else { class::end(turn, new, gap) };
        User { time: self.clock, end, turn, class }
    }

    /// A checkpoint that is no fresh end entered a class.
    pub fn entered(&mut self, class: u16) {
        if self.learns {
            self.reuse.entered(class);
        }
    }

    /// A checkpoint that was no fresh end was matched.
    pub fn used(&mut self, class: u16, age: u64) {
        if self.learns {
            self.reuse.used(class, age);
        }
    }

    /// Bytes of the memory of ends.
    pub fn bytes(&self) -> u64 {
        self.ends.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: [u8; 32] = [9; 32];

    fn history() -> History {
        History::new(PolicyKind::HitDensity, 100, 0)
    }

    #[test]
    fn time_goes_on_with_and_without_a_clock() {
        let mut h = history();
        assert_eq!((h.arrive(0), h.arrive(0), h.arrive(5_000), h.arrive(0)), (1, 2, 50, 51));
        assert_eq!((h.now(0), h.now(10_000)), (51, 100));
    }

    #[test]
    fn turns_count_up_along_a_session_and_stay_for_the_same_prompt() {
        let mut h = history();
        h.arrive(0);
        let first = h.settle(&Arrival::default(), None, 10, &KEY, 64);
        assert_eq!((first.turn, first.end, first.class), (1, 10, class::end(1, 640, None)));
        h.arrive(9_000);
        let next = Arrival { reused: Some((first.class, 89)), from: Some(10), parts: false, turn: 1, known: 10 };
        assert_eq!(h.settle(&next, None, 30, &KEY, 64).turn, 2);
        assert_eq!(h.settle(&next, None, 30, &KEY, 64).class, class::end(2, 20 * 64, Some(89)));
        assert_eq!(h.settle(&Arrival { from: Some(30), turn: 2, known: 30, ..next }, None, 30, &KEY, 64).turn, 2);
    }

    #[test]
    fn an_end_that_was_evicted_is_gone_on_from_all_the_same() {
        let mut h = history();
        h.arrive(1_000);
        let old = h.settle(&Arrival { turn: 4, ..Arrival::default() }, None, 50, &KEY, 64);
        assert_eq!(h.end_at(&KEY), Some(End { time: 10, turn: 5, class: old.class }));
        h.arrive(3_000);
        let found = h.end_at(&KEY).map(|e| (50, e));
        let user = h.settle(&Arrival { known: 8, ..Arrival::default() }, found, 52, &[1; 32], 64);
        assert_eq!((user.turn, user.class), (6, class::end(6, 128, Some(20))));
        h.forget(&KEY);
        assert_eq!(h.end_at(&KEY), None);
    }

    #[test]
    fn a_policy_that_does_not_learn_remembers_no_ends() {
        let mut h = History::new(PolicyKind::Lru, 100, 0);
        h.arrive(0);
        h.settle(&Arrival::default(), None, 10, &KEY, 64);
        assert_eq!((h.end_at(&KEY), h.bytes(), h.learns()), (None, 0, false));
    }
}
