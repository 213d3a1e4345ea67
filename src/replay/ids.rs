//! A set of block ids that counts: the memory of the first pass.

/// Ids per container.
const SPAN: u32 = 1 << 16;
/// A sorted list of this many ids is as large as a bitmap; beyond it the bitmap is smaller.
const LIST_MAX: usize = 4096;
/// Words of a bitmap.
const WORDS: usize = SPAN as usize / 64;

/// The ids of one stretch of [`SPAN`], by their low 16 bits.
#[derive(Debug)]
enum Container {
    /// Sorted.
    List(Vec<u16>),
    /// One bit an id.
    Bits(Box<[u64; WORDS]>),
}

/// A set of `u32` ids: at most 4 bytes an id, and at most 4 MiB for the containers themselves.
#[derive(Debug, Default)]
pub struct IdSet {
    containers: Vec<Container>,
    len: u64,
}

impl IdSet {
    /// An empty set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Ids in the set.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether no id was inserted.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Inserts `first .. first + count` and returns how many of them are new. The run must end at or below 2^32.
    pub fn insert_run(&mut self, first: u32, count: u32) -> u64 {
        if count == 0 {
            return 0;
        }
        let last = first + (count - 1);
        let top = (last / SPAN) as usize;
        if self.containers.len() <= top {
            self.containers.resize_with(top + 1, || Container::List(Vec::new()));
        }
        let before = self.len;
        for index in first / SPAN..=last / SPAN {
            let lo = if index == first / SPAN { first % SPAN } else { 0 };
            let hi = if index == last / SPAN { last % SPAN } else { SPAN - 1 };
            self.len += self.containers[index as usize].insert(lo, hi);
        }
        self.len - before
    }

    /// The smallest id of `first .. first + count` in the set. The run must end at or below 2^32.
    pub fn first_of_run(&self, first: u32, count: u32) -> Option<u32> {
        if count == 0 {
            return None;
        }
        let last = first + (count - 1);
        (first / SPAN..=last / SPAN).take_while(|&index| (index as usize) < self.containers.len()).find_map(|index| {
            let lo = if index == first / SPAN { first % SPAN } else { 0 };
            let hi = if index == last / SPAN { last % SPAN } else { SPAN - 1 };
            self.containers[index as usize].first(lo, hi).map(|low| index * SPAN + low)
        })
    }
}

impl Container {
    /// The smallest of the low parts `lo..=hi` that is there.
    fn first(&self, lo: u32, hi: u32) -> Option<u32> {
        match self {
            Container::List(list) => {
                let at = list.partition_point(|&x| u32::from(x) < lo);
                list.get(at).map(|&x| u32::from(x)).filter(|&x| x <= hi)
            }
            Container::Bits(bits) => words(lo, hi).find_map(|(word, mask)| {
                let there = bits[word] & mask;
                (there != 0).then(|| word as u32 * 64 + there.trailing_zeros())
            }),
        }
    }

    /// Inserts the low parts `lo..=hi`, returns how many are new.
    fn insert(&mut self, lo: u32, hi: u32) -> u64 {
        if let Container::List(list) = self {
            let start = list.partition_point(|&x| u32::from(x) < lo);
            let end = start + list[start..].partition_point(|&x| u32::from(x) <= hi);
            let count = (hi - lo) as usize + 1;
            let new = count - (end - start);
            if list.len() + new <= LIST_MAX {
                if new > 0 {
                    list.splice(start..end, (lo..=hi).map(|x| x as u16));
                }
                return new as u64;
            }
            let mut bits = Box::new([0u64; WORDS]);
            for &x in list.iter() {
                bits[usize::from(x) / 64] |= 1 << (x % 64);
            }
            *self = Container::Bits(bits);
        }
        let Container::Bits(bits) = self else { unreachable!("a list has become a bitmap just above") };
        let mut new = 0u64;
        for (word, mask) in words(lo, hi) {
            new += u64::from((mask & !bits[word]).count_ones());
            bits[word] |= mask;
        }
        new
    }
}

/// The words of a bitmap that hold the bits `lo..=hi`, and which of their bits.
fn words(lo: u32, hi: u32) -> impl Iterator<Item = (usize, u64)> {
    (lo / 64..=hi / 64).map(move |word| {
        let from = if word == lo / 64 { lo % 64 } else { 0 };
        let to = if word == hi / 64 { hi % 64 } else { 63 };
        (word as usize, (u64::MAX >> (63 - (to - from))) << from)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn counts_the_last_id() {
        let mut set = IdSet::new();
        assert_eq!(set.insert_run(u32::MAX - 1, 2), 2);
        assert_eq!(set.insert_run(u32::MAX, 1), 0);
        assert_eq!(set.len(), 2);
    }

    #[test]
    fn long_runs_cross_containers() {
        let mut set = IdSet::new();
        assert_eq!(set.insert_run(65_000, 200_000), 200_000);
        assert_eq!(set.insert_run(64_999, 200_002), 2);
        assert_eq!(set.insert_run(0, 300_000), 300_000 - 200_002);
    }

    proptest! {
        #[test]
        fn equals_a_plain_set(runs in prop::collection::vec((0u32..140_000, 0u32..9_000), 0..60)) {
            let mut set = IdSet::new();
            let mut model = BTreeSet::new();
            for (first, count) in runs {
                prop_assert_eq!(set.first_of_run(first, count), model.range(first..first + count).next().copied());
                let new = (first..first + count).filter(|id| model.insert(*id)).count();
                prop_assert_eq!(set.insert_run(first, count), new as u64);
                prop_assert_eq!(set.len(), model.len() as u64);
            }
        }
    }
}
