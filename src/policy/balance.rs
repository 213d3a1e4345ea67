//! When a chunk of a shared region should change pools: the price of what each pool drops for want of room.
//!
//! Full pages and checkpoints are of use only together: whichever part of a prompt is dropped first, the rest is worth
//! nothing and goes next, for free. So the pool that had to drop first is the one that was short. What its bytes were
//! worth is the *price* of that drop: the tokens that can be resumed no longer, times how soon they would have been asked
//! for, for each byte that the pool wanted; the other pool's price was nothing. A byte belongs where prices are higher.
//!
//! Every drop adds its price to the evidence for its pool, as a part of the highest price of late, and for as much of a
//! chunk as everything that it made worthless, but at most a 64th, so that a few large prompts decide nothing. When
//! one pool's evidence exceeds the other's by the *patience*, in chunks, it is due a chunk, and evidence is gathered anew.
//! Patience halves with every further chunk for the same pool, which makes the way from a bad split short, and doubles, to 2
//! at least, when chunks go back and forth, which is what they do around the best split. So a chunk in use changes pools
//! for at least a quarter of a chunk that was dropped, and for no less than 16 drops; one that nobody has used yet goes for
//! an eighth, 8 drops. Nothing here depends on a clock.
//!
//! A request that is refused for want of pages is evidence too, as a drop at the highest price: traffic that keeps nothing
//! drops nothing. A request counts once, however often it is tried.

use crate::cache::types::Group;

/// Most of a chunk that one drop speaks for.
const MOST_OF_CHUNK: f32 = 1.0 / 64.0;
/// Drops of a pool over which its price is averaged.
const MEAN: f32 = 16.0;
/// What is left of a pool's price with every drop of the other one.
const FADE: f32 = 1.0 - 1.0 / 64.0;
/// Least and most patience, in chunks; in between at first.
const PATIENCE: (f32, f32) = (0.25, 4.0);
/// Evidence for a chunk that nobody has used yet: nothing has to be moved for it.
const FRESH: f32 = 0.125;

/// See the module's text.
#[derive(Debug, Clone)]
pub struct Balance {
    /// Evidence for the full pool, in chunks; below nothing for the SWA pool.
    sum: f32,
    /// Price of late: of the full and of the SWA pool.
    prices: [f32; 2],
    patience: f32,
    last: Option<Group>,
}

impl Default for Balance {
    fn default() -> Self {
        Balance { sum: 0.0, prices: [0.0; 2], patience: 1.0, last: None }
    }
}

impl Balance {
    /// A pool dropped something that was worth `price` for each byte that it wanted. `part` of a chunk is what became
    /// worthless, in both pools. `other` is what the next bytes of the other pool are known to be worth, 0 if nothing is.
    pub fn dropped(&mut self, by: Group, part: f32, price: f32, other: f32) {
        let (own, its) = if by == Group::Full { (0, 1) } else { (1, 0) };
        let mean = &mut self.prices[own];
        *mean = if *mean == 0.0 { price } else { *mean + (price - *mean) / MEAN };
        self.prices[its] *= FADE;
        let highest = self.prices[0].max(self.prices[1]).max(other);
        if highest > 0.0 {
            let evidence = price / highest * part.min(MOST_OF_CHUNK);
            let sum = self.sum + if by == Group::Full { evidence } else { -evidence };
            // Bounded, so that evidence on which nobody could act is soon outweighed.
            self.sum = sum.clamp(-2.0 * PATIENCE.1, 2.0 * PATIENCE.1);
        }
    }

    /// A request was refused for want of this pool's pages. Nothing was dropped for it, so it counts as a drop at the
    /// highest price.
    pub fn refused(&mut self, by: Group) {
        let sum = self.sum + if by == Group::Full { MOST_OF_CHUNK } else { -MOST_OF_CHUNK };
        self.sum = sum.clamp(-2.0 * PATIENCE.1, 2.0 * PATIENCE.1);
    }

    /// The pool that is due a chunk: one that is `fresh`, which nobody has used yet, or one of the other pool's.
    pub fn due(&self, fresh: bool) -> Option<Group> {
        let enough = if fresh { FRESH } else { self.patience };
        (self.sum.abs() >= enough).then_some(if self.sum > 0.0 { Group::Full } else { Group::Swa })
    }

    /// Evidence is gathered anew.
    pub fn restart(&mut self) {
        self.sum = 0.0;
    }

    /// A chunk of the other pool goes to this one, as was due.
    pub fn moved(&mut self, to: Group) {
        self.restart();
        let (least, most) = PATIENCE;
        self.patience = match self.last {
            Some(last) if last == to => (self.patience / 2.0).max(least),
            Some(_) => (self.patience * 2.0).clamp(2.0, most),
            None => self.patience,
        };
        self.last = Some(to);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Drops at these prices, `ratio` of the SWA pool's to one of the full pool's, until a chunk is due.
    fn drops(b: &mut Balance, full: f32, swa: f32, ratio: usize, part: f32) -> Option<(usize, Group)> {
        (1..5000).find_map(|n| {
            let (by, price) = if n % (ratio + 1) == 0 { (Group::Full, full) } else { (Group::Swa, swa) };
            b.dropped(by, part, price, 0.0);
            b.due(false).map(|to| (n, to))
        })
    }

    fn only(b: &mut Balance, by: Group, price: f32) -> usize {
        let found = (1..5000).find_map(|n| {
            b.dropped(by, 1.0, price, 0.0);
            b.due(false).map(|to| (n, to))
        });
        let (n, to) = found.expect("due at some time");
        assert_eq!(to, by);
        b.moved(to);
        n
    }

    #[test]
    fn the_pool_that_drops_first_is_due_a_chunk() {
        for by in [Group::Full, Group::Swa] {
            let mut b = Balance::default();
            // The way from a bad split gets shorter, down to 16 drops a chunk.
            assert_eq!([0; 5].map(|_| only(&mut b, by, 7.0)), [64, 64, 32, 16, 16]);
        }
    }

    #[test]
    fn chunks_that_go_back_and_forth_go_ever_more_slowly() {
        let mut b = Balance::default();
        let took = [Group::Full, Group::Swa, Group::Full, Group::Swa, Group::Full].map(|by| only(&mut b, by, 1.0));
        // A price counts a little more before the mean has come up to it.
        let most = [64, 64, 128, 256, 256];
        assert!(took.iter().zip(most).all(|(&n, most)| (most * 7 / 8..=most).contains(&n)), "{took:?}");
    }

    #[test]
    fn a_higher_price_outweighs_more_drops() {
        // Eight cheap drops for one that is worth ten times as much.
        let found = drops(&mut Balance::default(), 10.0, 1.0, 8, 1.0);
        assert_eq!(found.map(|f| f.1), Some(Group::Full));
        let found = drops(&mut Balance::default(), 5.0, 1.0, 8, 1.0);
        assert_eq!(found.map(|f| f.1), Some(Group::Swa));
    }

    #[test]
    fn large_chunks_take_as_much_as_they_hold() {
        let found = drops(&mut Balance::default(), 0.0, 1.0, 5000, 0.01);
        assert!(found.is_some_and(|(n, to)| to == Group::Swa && (100..=101).contains(&n)), "{found:?}");
    }

    #[test]
    fn what_is_worth_less_than_the_other_pools_next_byte_counts_little() {
        let mut b = Balance::default();
        (0..100).for_each(|_| b.dropped(Group::Swa, 1.0, 1.0, 50.0));
        assert_eq!((b.due(false), b.due(true)), (None, None));
        (0..500).for_each(|_| b.dropped(Group::Swa, 1.0, 1.0, 50.0));
        assert_eq!((b.due(false), b.due(true)), (None, Some(Group::Swa)));
        b.restart();
        assert_eq!(b.due(true), None);
    }

    #[test]
    fn old_prices_fade() {
        let mut b = Balance::default();
        only(&mut b, Group::Full, 1e6);
        assert!(only(&mut b, Group::Swa, 1.0) < 2000);
        // Evidence that nobody acted on does not pile up.
        (0..10_000).for_each(|_| b.dropped(Group::Swa, 1.0, 1.0, 0.0));
        let back = (1..).find(|_| {
            b.dropped(Group::Full, 1.0, 1.0, 0.0);
            b.due(false) == Some(Group::Full)
        });
        assert!(back.is_some_and(|n| n < 1200), "{back:?}");
    }

    #[test]
    fn requests_that_are_refused_speak_for_the_pool_that_was_short() {
        for by in [Group::Full, Group::Swa] {
            let mut b = Balance::default();
            (0..63).for_each(|_| b.refused(by));
            assert_eq!((b.due(false), b.due(true)), (None, Some(by)));
            b.refused(by);
            assert_eq!(b.due(false), Some(by));
        }
    }

    #[test]
    fn what_is_worth_nothing_says_nothing() {
        let mut b = Balance::default();
        (0..100).for_each(|_| b.dropped(Group::Swa, 1.0, 0.0, 0.0));
        assert_eq!((b.due(false), b.due(true)), (None, None));
    }
}
