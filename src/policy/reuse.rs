//! Reuse as learnt: for each class, how many ids were used again at which age, and what that says of one that is `age`
//! old now.
//!
//! Ages are counted in bins, two for each octave, so that nothing has to be known about the unit of time. From the
//! counts of a class come hazards: the chance of a reuse inside a bin, given none before. A class with few counts leans
//! on its parent's hazards. From hazards comes the table that policies ask:
//!
//! - [`Index::Density`]: the most uses per unit of time that keeping the id can still bring, over every time to give up
//!   at: max over t of P(used within t) / E(time kept until used or t). This is the index of Gittins for a job that
//!   either ends or not, and what LHD (Beckmann, Chen and Cidon, NSDI'18) calls hit density, with the best horizon in
//!   place of the age at which a cache of this size evicts: it needs no knowledge of the size.
//! - [`Index::Within`]: the chance of a use within a given time ("KVCache Cache in the Wild", ATC'25).
//!
//! Counts are halved now and then, so that old habits are forgotten. A table is made anew when its class has grown by a
//! sixteenth: O(log n) times for n counts, each of a bounded cost.

use super::class;

/// Bins of ages. The last one has no end.
const BINS: usize = 64;
/// Counts of the class above that a class starts with.
const PRIOR: f32 = 30.0;
/// A class with more counts than this halves them.
const MOST: f32 = 8192.0;
/// Most counts between two tables.
const STALE: f32 = 64.0;

/// What a table holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Index {
    /// Uses per unit of time, at best.
    Density,
    /// Chance of a use within so many units of time.
    Within(u64),
}

#[derive(Debug, Clone)]
struct Class {
    /// Ids that entered the class.
    entered: f32,
    /// Those used again, by age.
    used: [f32; BINS],
    hazard: [f32; BINS],
    table: [f32; BINS],
    /// Counts since the table was made.
    stale: f32,
}

/// See the module's text.
#[derive(Debug, Clone)]
pub struct Reuse {
    classes: Vec<Class>,
    index: Index,
    version: u64,
}

/// The bin of an age.
fn bin(age: u64) -> usize {
    if age < 2 {
        return age as usize;
    }
    let octave = 63 - age.leading_zeros();
    ((2 * octave + (age >> (octave - 1) & 1) as u32) as usize).min(BINS - 1)
}

/// The first age of a bin.
fn start(bin: usize) -> f32 {
    match bin {
        0 | 1 => bin as f32,
        _ => (1u64 << (bin / 2)) as f32 * if bin % 2 == 1 { 1.5 } else { 1.0 },
    }
}

impl Reuse {
    /// Nothing learnt yet: an id is the less likely to be used the older it is. Without an index nobody will ask.
    pub fn new(index: Option<Index>) -> Self {
        let empty = Class { entered: 0.0, used: [0.0; BINS], hazard: [0.0; BINS], table: [0.0; BINS], stale: 0.0 };
        let mut new = Reuse { classes: vec![empty], index: index.unwrap_or(Index::Density), version: 0 };
        new.make_table(class::LEAVES);
        let first = new.classes[0].clone();
        new.classes.resize(if index.is_some() { usize::from(class::COUNT) } else { 0 }, first);
        new
    }

    /// An id entered a class.
    pub fn entered(&mut self, class: u16) {
        self.count(class, &|c| c.entered += 1.0);
    }

    /// An id of a class was used again when it was `age` old.
    pub fn used(&mut self, class: u16, age: u64) {
        let bin = bin(age);
        self.count(class, &|c| c.used[bin] += 1.0);
    }

    /// What the table says of an id of `class` that is `age` old.
    pub fn score(&self, class: u16, age: u64) -> f32 {
        self.classes[usize::from(class)].table[bin(age)]
    }

    /// Rises when a table changes.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Counts in a class and in those above it, and makes tables that are due, the common ones first.
    fn count(&mut self, class: u16, add: &dyn Fn(&mut Class)) {
        let above = class::parent(class);
        if above != class {
            self.count(above, add);
        }
        let c = &mut self.classes[usize::from(class)];
        add(c);
        c.stale += 1.0;
        if c.entered > MOST {
            c.entered /= 2.0;
            c.used.iter_mut().for_each(|n| *n /= 2.0);
        }
        if c.stale >= (c.entered / 16.0).clamp(1.0, STALE) {
            self.make_table(class);
        }
    }

    fn make_table(&mut self, class: u16) {
        let above = class::parent(class);
        // A class that stands for all starts with half a use, spread over all ages: older ids go first.
        let prior = (above != class).then(|| self.classes[usize::from(above)].hazard);
        let c = &mut self.classes[usize::from(class)];
        let mut left = c.entered + if prior.is_some() { 0.0 } else { 1.0 };
        for b in 0..BINS {
            let (uses, among) = match &prior {
                Some(p) => (c.used[b] + p[b] * PRIOR, left.max(c.used[b]) + PRIOR),
                None => (c.used[b] + 0.5 / BINS as f32, left.max(c.used[b] + 0.5 / BINS as f32)),
            };
            c.hazard[b] = (uses / among).min(0.999);
            left = (left - c.used[b]).max(0.0);
        }
        c.table = table(&c.hazard, self.index);
        c.stale = 0.0;
        self.version += 1;
    }
}

fn width(bin: usize) -> f32 {
    start(bin + 1) - start(bin)
}

fn table(hazard: &[f32; BINS], index: Index) -> [f32; BINS] {
    match index {
        Index::Density => densities(hazard),
        Index::Within(horizon) => chances(hazard, horizon as f32),
    }
}

/// For each bin the steepest way to a later one, from those that are `alive` at its start to those used until then, over
/// the time that keeping them takes. Seen from the end, a bin that a steeper way passes over is never looked at again:
/// the ends of the steepest ways are a convex hull, found in one pass.
fn densities(hazard: &[f32; BINS]) -> [f32; BINS] {
    let mut alive = [1.0f64; BINS + 1];
    for b in 0..BINS {
        alive[b + 1] = alive[b] * (1.0 - f64::from(hazard[b]));
    }
    // Time that is still to come at the start of a bin. Uses inside a bin come in its middle.
    let mut time = [0.0f64; BINS + 1];
    let mut hull = [BINS; BINS + 1];
    let mut len = 1;
    let mut out = [0.0f32; BINS];
    for b in (0..BINS).rev() {
        time[b] = time[b + 1] + alive[b] * (1.0 - f64::from(hazard[b]) / 2.0) * f64::from(width(b));
        let slope = |from: usize, to: usize| (alive[from] - alive[to]) / (time[from] - time[to]).max(f64::MIN_POSITIVE);
        while len > 1 && slope(b, hull[len - 1]) <= slope(hull[len - 1], hull[len - 2]) {
            len -= 1;
        }
        out[b] = slope(b, hull[len - 1]) as f32;
        hull[len] = b;
        len += 1;
    }
    out
}

/// For each bin the chance of a use within `horizon`.
fn chances(hazard: &[f32; BINS], horizon: f32) -> [f32; BINS] {
    let mut out = [0.0; BINS];
    for (first, out) in out.iter_mut().enumerate() {
        let (mut alive, mut time) = (1.0f32, 0.0f32);
        for (b, &h) in hazard.iter().enumerate().skip(first) {
            let part = ((horizon - time) / width(b)).clamp(0.0, 1.0);
            alive *= (1.0 - h).powf(part);
            time += width(b);
            if part < 1.0 {
                break;
            }
        }
        *out = 1.0 - alive;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_cover_every_age_once() {
        assert_eq!((bin(0), bin(1), bin(2), bin(3), bin(4), bin(5), bin(6), bin(8)), (0, 1, 2, 3, 4, 4, 5, 6));
        for age in (0..100_000u64).chain([1 << 30, (1 << 31) - 256]) {
            let b = bin(age);
            assert!(start(b) <= age as f32 && (age as f32) < start(b + 1) || b == BINS - 1, "{age} is in bin {b}");
        }
        assert_eq!(bin(u64::MAX), BINS - 1);
    }

    /// Every time to give up at, tried one by one.
    fn tried_densities(hazard: &[f32; BINS]) -> [f32; BINS] {
        std::array::from_fn(|first| {
            let (mut alive, mut time, mut best) = (1.0, 0.0, 0.0f64);
            for (b, &h) in hazard.iter().enumerate().skip(first) {
                time += alive * (1.0 - f64::from(h) / 2.0) * f64::from(width(b));
                alive *= 1.0 - f64::from(h);
                best = best.max((1.0 - alive) / time);
            }
            best as f32
        })
    }

    proptest::proptest! {
        #[test]
        fn the_hull_finds_what_trying_finds(
            hazard in proptest::collection::vec(proptest::prop_oneof![proptest::prelude::Just(0.0f32), 0.0f32..0.999], BINS),
        ) {
            let hazard: [f32; BINS] = hazard.try_into().expect("as many as there are bins");
            for (b, (fast, slow)) in densities(&hazard).into_iter().zip(tried_densities(&hazard)).enumerate() {
                proptest::prop_assert!((fast - slow).abs() <= 1e-4 * slow + 1e-30, "bin {b}: {fast} and {slow}");
            }
        }
    }

    #[test]
    fn without_counts_the_older_is_worth_less() {
        let r = Reuse::new(Some(Index::Density));
        for class in 0..class::COUNT {
            assert!(
                (0..40).all(|b| r.score(class, start(b + 1) as u64) <= r.score(class, start(b) as u64) * 1.000_001),
                "{class}"
            );
        }
    }

    #[test]
    fn a_class_learns_its_own_age_of_reuse() {
        let mut r = Reuse::new(Some(Index::Density));
        let (soon, never) = (class::end(2, 0, Some(5)), class::end(2, 1 << 20, None));
        for _ in 0..400 {
            r.entered(soon);
            r.used(soon, 100);
            r.entered(never);
        }
        // A use at 100 for sure: 1 per 100 units when fresh, more the nearer it is, next to nothing once it is past.
        let fresh = r.score(soon, 0);
        assert!((0.005..0.02).contains(&fresh), "{fresh}");
        assert!(r.score(soon, 80) > 2.0 * fresh);
        assert!(r.score(soon, 4000) < fresh / 20.0);
        assert!(r.score(never, 0) < fresh / 5.0);
    }

    #[test]
    fn a_rare_class_behaves_like_the_common_one() {
        let mut r = Reuse::new(Some(Index::Density));
        let (common, rare) = (class::end(3, 0, None), class::end(3, 0, Some(1 << 20)));
        for i in 0..2000 {
            r.entered(common);
            if i % 2 == 0 {
                r.used(common, 50);
            }
        }
        r.entered(rare);
        let (a, b) = (r.score(common, 10), r.score(rare, 10));
        assert!((a - b).abs() < a / 5.0, "{a} and {b}");
    }

    #[test]
    fn the_chance_within_a_time() {
        let mut r = Reuse::new(Some(Index::Within(64)));
        let c = class::turn(2);
        for i in 0..4000 {
            r.entered(c);
            if i % 4 == 0 {
                r.used(c, 32);
            }
        }
        let chance = r.score(c, 0);
        assert!((0.2..0.3).contains(&chance), "{chance}");
        assert!(r.score(c, 200) < 0.02);
    }

    #[test]
    fn old_habits_are_forgotten() {
        let mut r = Reuse::new(Some(Index::Density));
        let c = class::turn(1);
        (0..20_000).for_each(|_| r.entered(c));
        let before = r.score(c, 0);
        for _ in 0..20_000 {
            r.entered(c);
            r.used(c, 10);
        }
        assert!(r.score(c, 0) > 20.0 * before);
    }
}
