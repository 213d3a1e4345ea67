//! Slabs that belong to no span, as runs of neighbours.

use std::collections::{BTreeMap, BTreeSet};

/// Runs of free slabs; neighbours are always joined.
#[derive(Debug, Default)]
pub struct Runs {
    /// Start to length.
    by_start: BTreeMap<u32, u32>,
    /// Length and start.
    by_len: BTreeSet<(u32, u32)>,
    free: u32,
}

impl Runs {
    /// Free slabs in all.
    pub fn free(&self) -> u32 {
        self.free
    }

    /// Takes `slabs` neighbours out of the shortest run that has them, the first such run of the file.
    pub fn take(&mut self, slabs: u32) -> Option<u32> {
        let &(len, start) = self.by_len.range((slabs, 0)..).next()?;
        self.remove(start, len);
        if len > slabs {
            self.add(start + slabs, len - slabs);
        }
        self.free -= slabs;
        Some(start)
    }

    /// Gives slabs back.
    pub fn give(&mut self, start: u32, slabs: u32) {
        let (mut first, mut len) = (start, slabs);
        if let Some((&before, &n)) = self.by_start.range(..start).next_back()
            && before + n == start
        {
            self.remove(before, n);
            first = before;
            len += n;
        }
        if let Some(&n) = self.by_start.get(&(start + slabs)) {
            self.remove(start + slabs, n);
            len += n;
        }
        self.add(first, len);
        self.free += slabs;
    }

    /// Runs as (start, length), by start.
    pub fn iter(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.by_start.iter().map(|(s, n)| (*s, *n))
    }

    /// Whether both orders name the same runs and none touches the next.
    pub fn check(&self) -> Result<(), String> {
        let same: BTreeSet<_> = self.iter().map(|(start, len)| (len, start)).collect();
        let mut end = None;
        for (start, len) in self.iter() {
            if len == 0 || end.is_some_and(|e| e >= start) {
                return Err(format!("the free run at slab {start} of {len} touches the one before"));
            }
            end = Some(start + len);
        }
        let sum: u32 = self.by_start.values().sum();
        if same != self.by_len || sum != self.free {
            return Err(format!("{} free slabs counted, {sum} in runs, or the runs are ordered wrongly", self.free));
        }
        Ok(())
    }

    fn add(&mut self, start: u32, len: u32) {
        self.by_start.insert(start, len);
        self.by_len.insert((len, start));
    }

    fn remove(&mut self, start: u32, len: u32) {
        self.by_start.remove(&start);
        self.by_len.remove(&(len, start));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_join_and_the_shortest_that_fits_is_cut() {
        let mut r = Runs::default();
        assert_eq!(r.take(1), None);
        r.give(0, 10);
        assert_eq!((r.take(3), r.take(3), r.take(3), r.take(2)), (Some(0), Some(3), Some(6), None));
        r.give(0, 3);
        r.give(6, 3);
        assert_eq!(r.iter().collect::<Vec<_>>(), [(0, 3), (6, 4)]);
        assert_eq!((r.take(1), r.take(4)), (Some(0), Some(6)));
        r.give(6, 4);
        r.give(3, 3);
        r.give(0, 1);
        assert_eq!((r.iter().collect::<Vec<_>>(), r.free()), (vec![(0, 10)], 10));
        r.check().unwrap();
    }
}
