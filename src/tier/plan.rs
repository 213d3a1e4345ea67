//! What the tiers have together, and whether to move it. Pure functions of residency and cost.

/// What one tier has of a prefix, in pages.
#[derive(Debug, Clone, Copy)]
pub struct Residency<'a> {
    /// Full pages from the start.
    pub depth: u64,
    /// First page that `swa` speaks of.
    pub from: u64,
    /// Which pages from there on have SWA KV.
    pub swa: &'a [bool],
}

impl Residency<'_> {
    fn has_window_page(&self, page: u64) -> bool {
        page.checked_sub(self.from).and_then(|i| self.swa.get(i as usize)).copied().unwrap_or(false)
    }
}

/// The largest boundary (in pages) above `above` and at most `limit` that the union of tiers makes resumable: full KV up to
/// it in some tier, and SWA KV of each of the `need` pages before it in some tier, or in the reader's hands (`held`).
///
/// Each tier is closed under prefixes, so that the longest one tells how far full KV goes. One pass down with a running
/// count, linear in the pages between `limit` and `above`.
pub fn union_boundary(
    tiers: &[Residency<'_>],
    held: std::ops::Range<u64>,
    above: u64,
    limit: u64,
    need: u64,
) -> Option<u64> {
    let top = tiers.iter().map(|t| t.depth).max().unwrap_or(0).min(limit);
    let has = |page: u64| held.contains(&page) || tiers.iter().any(|t| t.has_window_page(page));
    let mut candidate = top;
    let mut run = 0;
    let mut page = top;
    while candidate > above {
        if run >= need.min(candidate) {
            return Some(candidate);
        }
        page -= 1;
        if has(page) {
            run += 1;
        } else {
            (candidate, run) = (page, 0);
        }
    }
    None
}

/// What moving and computing cost, in nanoseconds. Zeros: unknown, and what can be loaded is loaded.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Cost {
    /// Computing one token of a prompt.
    pub token: f64,
    /// Bringing one full page up.
    pub full_page: f64,
    /// Bringing one SWA page up.
    pub swa_page: f64,
    /// Every load, however small.
    pub load: f64,
}

impl Cost {
    /// Loading these pages is cheaper than computing these tokens.
    pub fn pays(&self, tokens: u64, full: u64, swa: u64) -> bool {
        let load = self.load + self.full_page * full as f64 + self.swa_page * swa as f64;
        self.token == 0.0 || load < self.token * tokens as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The rule itself, boundary by boundary.
    fn by_hand(tiers: &[Residency<'_>], held: &[bool], above: u64, limit: u64, need: u64) -> Option<u64> {
        let deepest = tiers.iter().map(|t| t.depth).max().unwrap_or(0);
        (above + 1..=limit.min(deepest)).rev().find(|&end| {
            (end.saturating_sub(need)..end).all(|page| {
                held.get(page as usize).copied().unwrap_or(false)
                    || tiers.iter().any(|t| page >= t.from && t.swa.get((page - t.from) as usize) == Some(&true))
            })
        })
    }

    proptest! {
        #[test]
        fn the_union_is_the_largest_boundary(
            maps in prop::collection::vec((prop::collection::vec(any::<bool>(), 0..12), 0..12u64, 0..4u64), 0..3),
            (start, len) in (0..12u64, 0..4u64),
            (above, limit, need) in (0..12u64, 0..14u64, 0..5u64),
        ) {
            let tiers: Vec<_> =
                maps.iter().map(|(swa, depth, from)| Residency { depth: *depth, from: *from, swa }).collect();
            let held: Vec<bool> = (0..16).map(|p| (start..start + len).contains(&p)).collect();
            prop_assert_eq!(
                union_boundary(&tiers, start..start + len, above, limit, need),
                by_hand(&tiers, &held, above, limit, need)
            );
        }
    }

    #[test]
    fn a_load_pays_when_it_is_cheaper() {
        let cost = Cost { token: 100.0, full_page: 1000.0, swa_page: 2000.0, load: 500.0 };
        assert!(cost.pays(64, 2, 1));
        assert!(!cost.pays(45, 2, 1), "4500 for either");
        assert!(Cost::default().pays(1, 1000, 1000), "nothing is known");
    }
}
