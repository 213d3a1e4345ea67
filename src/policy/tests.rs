//! Policies against models that look at everything each time.

use super::ranked::Entry;
use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// What an operation does to a few ids.
#[derive(Debug, Clone, Copy)]
enum Op {
    /// An id is used: for the first time, or again.
    Use(u32),
    /// An id is leased.
    Lease(u32),
    /// The next one goes.
    Evict,
    /// Time goes on.
    Wait(u64),
    /// Pages come back that were evicted.
    Back(bool, u32),
    /// A reuse is learnt.
    Learn(u16, u64),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (0u32..10).prop_map(Op::Use),
        2 => (0u32..10).prop_map(Op::Lease),
        4 => Just(Op::Evict),
        2 => (0u64..1 << 12).prop_map(Op::Wait),
        1 => (any::<bool>(), 1u32..5).prop_map(|(mark, pages)| Op::Back(mark, pages)),
        2 => (class_of_test(), 0u64..1 << 10).prop_map(|(class, age)| Op::Learn(class, age)),
    ]
}

fn class_of_test() -> impl Strategy<Value = u16> {
    prop::sample::select(vec![
        class::shared(3),
        class::end(1, 9000, None),
        class::end(2, 100, Some(70)),
        class::matched(2),
        class::STRIDE,
    ])
}

/// Pages of the pool that policies are told of.
const POOL: u32 = 80;

/// A policy driven as the tree drives it, and everything it was told.
struct World {
    policy: Box<dyn Policy>,
    reuse: Reuse,
    /// Standing of every id that is cached, and whether it may go.
    known: BTreeMap<u32, (Standing, bool)>,
    rank: u64,
    time: u64,
    /// What was used since then is fresh.
    fresh: u64,
    /// Class of each id.
    classes: Vec<u16>,
}

impl World {
    fn new(policy: Box<dyn Policy>, classes: Vec<u16>, index: Index) -> World {
        World { policy, reuse: Reuse::new(Some(index)), known: BTreeMap::new(), rank: 0, time: 0, fresh: 0, classes }
    }

    /// Two pages are a small part of the pool, three are not.
    fn is_fresh(&self, at: &Standing) -> bool {
        at.used >= self.fresh && at.pages <= 2
    }

    fn evictable(&self) -> impl Iterator<Item = (u32, Standing)> + '_ {
        self.known.iter().filter(|(_, (_, may))| *may).map(|(&id, &(at, _))| (id, at))
    }

    /// Applies an operation; the victim of an eviction with the id that `choose` would have taken.
    fn apply(&mut self, op: Op, choose: impl Fn(&World) -> Option<u32>) -> Option<(Option<u32>, Option<u32>)> {
        match op {
            Op::Use(id) => {
                self.rank += 1;
                let (rank, used) = (self.rank, self.time);
                let old = self.known.get(&id).map(|k| k.0);
                let (born, uses) = old.map_or((rank, 1), |at| (at.born, at.uses.saturating_add(1)));
                let class = self.classes[id as usize];
                let at =
                    Standing { rank, born, used, class, uses, pages: 1 + id % 3, worth: 1.0 + (id % 4) as f32 * 3.0 };
                self.known.insert(id, (at, true));
                self.policy.insert(id, at);
            }
            Op::Lease(id) => {
                self.known.entry(id).and_modify(|k| k.1 = false);
                self.policy.remove(id);
            }
            Op::Evict => {
                let expected = choose(self);
                let got =
                    self.policy.victim(Now { time: self.time, fresh: self.fresh, pool: POOL, reuse: &self.reuse });
                if let Some(id) = got {
                    let at = self.known.remove(&id).expect("a victim that is cached").0;
                    self.policy.mark(id);
                    self.policy.evicted(id, at.pages);
                    self.policy.remove(id);
                }
                return Some((got, expected));
            }
            Op::Wait(0) => {}
            Op::Wait(by) => (self.fresh, self.time) = (self.time, self.time + by),
            Op::Back(mark, pages) => self.policy.came_back(mark, pages),
            Op::Learn(class, age) => {
                self.reuse.entered(class);
                self.reuse.used(class, age);
            }
        }
        None
    }

    fn check(&self) -> std::result::Result<(), String> {
        let ids = self.policy.ids();
        ids.check()?;
        let offered: Vec<u32> = self.evictable().map(|(id, _)| id).collect();
        let mut listed: Vec<u32> = ids.iter().collect();
        listed.sort_unstable();
        if offered == listed { Ok(()) } else { Err(format!("{listed:?} may go, should be {offered:?}")) }
    }
}

fn worlds() -> impl Strategy<Value = (Vec<u16>, Vec<Op>)> {
    (prop::collection::vec(class_of_test(), 10), prop::collection::vec(op(), 1..150))
}

fn index(kind: PolicyKind) -> Index {
    kind.learns().unwrap_or(Index::Density)
}

/// Runs a policy against what `choose` says of the world.
fn compare(
    policy: Box<dyn Policy>,
    index: Index,
    (classes, ops): (Vec<u16>, Vec<Op>),
    choose: impl Fn(&World) -> Option<u32>,
) -> std::result::Result<(), TestCaseError> {
    let mut world = World::new(policy, classes, index);
    for op in ops {
        if let Some((got, expected)) = world.apply(op, &choose) {
            prop_assert_eq!(got, expected);
        }
        prop_assert_eq!(world.check(), Ok(()));
    }
    Ok(())
}

/// The oldest of each group of ids, and the youngest that is not fresh.
fn ends_of<K: Ord>(world: &World, group: impl Fn(u32, &Standing) -> K) -> Vec<(u32, Standing)> {
    let mut groups: BTreeMap<K, Vec<(u32, Standing)>> = BTreeMap::new();
    world.evictable().for_each(|(id, at)| groups.entry(group(id, &at)).or_default().push((id, at)));
    let ends = |mut ids: Vec<(u32, Standing)>| {
        ids.sort_by_key(|(id, at)| (at.rank, *id));
        let settled = ids.iter().rev().find(|(_, at)| !world.is_fresh(at)).copied();
        [ids[0], settled.unwrap_or(ids[0])]
    };
    groups.into_values().flat_map(ends).collect()
}

/// The least of those that are not fresh, or else of all: by score, then by last use.
fn least(
    among: Vec<(u32, Standing)>,
    fresh: impl Fn(&Standing) -> bool,
    score: impl Fn(&Standing) -> f32,
) -> Option<u32> {
    let key = |at: &Standing| (fresh(at), score(at), at.rank);
    let order = |a: &(u32, Standing), b: &(u32, Standing)| key(&a.1).partial_cmp(&key(&b.1)).expect("no NaN");
    among.into_iter().min_by(order).map(|(id, _)| id)
}

proptest! {
    #[test]
    fn lru_takes_what_was_used_longest_ago(run in worlds()) {
        let choose = |w: &World| w.evictable().min_by_key(|(_, at)| at.rank).map(|(id, _)| id);
        compare(PolicyKind::Lru.leaves(), Index::Density, run, choose)?;
    }

    #[test]
    fn hit_density_takes_the_leaf_that_promises_least(run in worlds()) {
        let score = |w: &World, at: &Standing| w.reuse.score(at.class, w.time - at.used);
        let choose = |w: &World| least(ends_of(w, |_, at| at.class), |at| w.is_fresh(at), |at| score(w, at));
        compare(PolicyKind::HitDensity.leaves(), index(PolicyKind::HitDensity), run, choose)?;
    }

    #[test]
    fn hit_density_takes_the_checkpoint_that_promises_least_for_its_pages(run in worlds()) {
        let score = |w: &World, at: &Standing| w.reuse.score(at.class, w.time - at.used) * at.worth;
        let octave = |at: &Standing| at.worth.log2() as u32;
        let choose = |w: &World| {
            let oldest: Vec<_> = ends_of(w, |_, at| (at.class, octave(at))).chunks(2).map(|e| e[0]).collect();
            let fresh = |at: &Standing| w.is_fresh(at) && !class::is_in_case(at.class);
            least(oldest, fresh, |at| score(w, at))
        };
        compare(PolicyKind::HitDensity.checkpoints(), index(PolicyKind::HitDensity), run, choose)?;
    }

    #[test]
    fn turn_hazard_takes_what_is_least_likely_to_be_used_soon(run in worlds()) {
        let score = |w: &World, at: &Standing| w.reuse.score(at.class, w.time - at.used);
        let choose = |w: &World| least(ends_of(w, |_, at| at.class), |at| w.is_fresh(at), |at| score(w, at));
        compare(PolicyKind::TurnHazard.leaves(), index(PolicyKind::TurnHazard), run, choose)?;
    }

    /// The others have a model of their own below; here that they offer what they should and nothing else.
    #[test]
    fn every_policy_empties_its_lists(run in worlds()) {
        for kind in PolicyKind::all() {
            for policy in [kind.leaves(), kind.checkpoints()] {
                let mut world = World::new(policy, run.0.clone(), index(kind));
                for &op in &run.1 {
                    world.apply(op, |_| None);
                    prop_assert_eq!(world.check(), Ok(()));
                }
                let left = world.evictable().count();
                for _ in 0..left {
                    prop_assert!(world.apply(Op::Evict, |_| None).is_some_and(|v| v.0.is_some()));
                    prop_assert_eq!(world.check(), Ok(()));
                }
                prop_assert_eq!(world.apply(Op::Evict, |_| None), Some((None, None)));
            }
        }
    }

    /// Against two plain queues.
    #[test]
    fn s3fifo_equals_two_queues(run in worlds()) {
        let mut world = World::new(PolicyKind::S3Fifo.leaves(), run.0.clone(), Index::Density);
        let mut model = Queues::default();
        for &op in &run.1 {
            match op {
                Op::Use(id) => {
                    world.apply(op, |_| None);
                    model.used(id, world.known[&id].0.pages);
                }
                Op::Lease(id) => {
                    world.apply(op, |_| None);
                    model.leased(id);
                }
                Op::Evict => {
                    let got = world.apply(op, |_| None).and_then(|v| v.0);
                    prop_assert_eq!(got, model.evict());
                }
                _ => _ = world.apply(op, |_| None),
            }
        }
    }

    /// Against two lists and a line between them.
    #[test]
    fn arc_keeps_to_its_line(run in worlds()) {
        let mut world = World::new(PolicyKind::Arc.leaves(), run.0.clone(), Index::Density);
        for &op in &run.1 {
            let before: Vec<(u32, Standing)> = world.evictable().collect();
            if let Some((Some(id), _)) = world.apply(op, |_| None) {
                let at = before.iter().find(|b| b.0 == id).expect("a victim that may go").1;
                let older = |b: &&(u32, Standing)| (b.1.uses > 1) == (at.uses > 1) && b.1.rank < at.rank;
                prop_assert!(before.iter().find(older).is_none(), "an older one of the same part stays");
            }
        }
    }
}

/// S3-FIFO as two vectors of ids.
#[derive(Default)]
struct Queues {
    small: Vec<u32>,
    main: Vec<u32>,
    /// Uses that count, pages, and whether it may go.
    state: BTreeMap<u32, (u32, u32, bool)>,
}

impl Queues {
    fn used(&mut self, id: u32, pages: u32) {
        match self.state.get_mut(&id) {
            Some(s) => (s.0, s.2) = (s.0 + 1, true),
            None => {
                self.state.insert(id, (0, pages, true));
                self.small.push(id);
            }
        }
    }

    fn leased(&mut self, id: u32) {
        self.state.entry(id).and_modify(|s| s.2 = false);
    }

    fn pages(&self, queue: &[u32]) -> u64 {
        queue.iter().filter(|id| self.state[id].2).map(|id| u64::from(self.state[id].1)).sum()
    }

    fn evict(&mut self) -> Option<u32> {
        for moves in 0.. {
            let (small, main) = (self.pages(&self.small), self.pages(&self.main));
            let may = |id: &&u32| self.state[*id].2;
            let (in_small, in_main) = (self.small.iter().find(may).copied(), self.main.iter().find(may).copied());
            let id = if small * 10 >= small + main { in_small.or(in_main) } else { in_main.or(in_small) }?;
            let uses = self.state[&id].0.min(3);
            let from_small = self.small.contains(&id);
            self.small.retain(|&x| x != id);
            self.main.retain(|&x| x != id);
            if uses == 0 || moves == 16 {
                self.state.remove(&id);
                return Some(id);
            }
            self.state.entry(id).and_modify(|s| s.0 = if from_small { 0 } else { uses - 1 });
            self.main.push(id);
        }
        None
    }
}

fn standing(rank: u64, uses: u8, pages: u32) -> Standing {
    Standing { rank, born: rank, used: rank, class: 0, uses, pages, worth: 1.0 }
}

#[test]
fn arc_moves_its_line_to_what_comes_back() {
    let reuse = Reuse::new(Some(Index::Density));
    let now = Now { time: 100, fresh: 99, pool: POOL, reuse: &reuse };
    let mut arc = PolicyKind::Arc.leaves();
    arc.insert(1, standing(1, 1, 4));
    arc.insert(2, standing(2, 2, 4));
    // The line starts at 0: what was used once goes first.
    assert_eq!(arc.victim(now), Some(1));
    arc.came_back(false, 6);
    assert_eq!(arc.victim(now), Some(2), "used once may keep 6 pages now");
    arc.came_back(true, 3);
    assert_eq!(arc.victim(now), Some(1));
}

#[test]
fn what_comes_back_skips_the_small_queue() {
    let reuse = Reuse::new(Some(Index::Density));
    let mut s3 = PolicyKind::S3Fifo.leaves();
    s3.insert(1, standing(1, 2, 1));
    s3.insert(2, standing(2, 1, 1));
    assert_eq!(s3.victim(Now { time: 5, fresh: 5, pool: POOL, reuse: &reuse }), Some(2));
}

#[test]
fn a_checkpoint_is_weighed_again() {
    let reuse = Reuse::new(Some(Index::Density));
    let now = Now { time: 100, fresh: 99, pool: POOL, reuse: &reuse };
    let mut order = PolicyKind::HitDensity.checkpoints();
    order.insert(1, Standing { worth: 3.0, ..standing(1, 1, 2) });
    order.insert(2, Standing { worth: 9.0, ..standing(2, 1, 2) });
    assert_eq!(order.victim(now), Some(1));
    assert!(order.reweigh(1, 50.0));
    assert_eq!(order.victim(now), Some(2));
    assert!(!order.reweigh(2, 9.0));
    let entry: Option<&Entry> = order.ids().get(1);
    assert_eq!(entry.map(|e| (e.rank, e.worth)), Some((1, 50.0)));
}

#[test]
fn names_are_read_and_shown() {
    for kind in PolicyKind::all() {
        assert_eq!(PolicyKind::parse(kind.name()), Ok(kind));
    }
    let error = PolicyKind::parse("fifo").unwrap_err().to_string();
    assert!(error.contains("\"fifo\"") && error.contains("\"lru\"") && error.contains("\"hit_density\""), "{error}");
}
