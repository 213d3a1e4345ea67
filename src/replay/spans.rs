//! A map from ids to the request that used them, kept as spans of ids with the same value.

use std::collections::BTreeMap;

/// Spans `first -> (last, value)` that do not meet. Memory and time go with spans, not with ids.
#[derive(Debug, Default)]
pub(super) struct SpanMap {
    spans: BTreeMap<u32, (u32, u32)>,
}

impl SpanMap {
    pub(super) fn new() -> Self {
        Self::default()
    }

    /// Gives `first .. first + count` the value and tells what they had, in order: stretches of ids with the same old
    /// value, or none. The run has at least one id and ends at or below 2^32.
    pub(super) fn replace(&mut self, first: u32, count: u32, value: u32, mut was: impl FnMut(u32, Option<u32>)) {
        let last = first + (count - 1);
        // The span that reaches into the run from before is cut there.
        if let Some((&from, &(to, old))) = self.spans.range(..first).next_back()
            && to >= first
        {
            self.spans.insert(from, (first - 1, old));
            self.spans.insert(first, (to, old));
        }
        let mut at = first;
        let mut done = false;
        while let Some((&from, &(to, old))) = self.spans.range(at..=last).next() {
            if from > at {
                was(from - at, None);
            }
            self.spans.remove(&from);
            let end = to.min(last);
            was(end - from + 1, Some(old));
            if to > last {
                self.spans.insert(last + 1, (to, old));
            }
            if end == last {
                done = true;
                break;
            }
            at = end + 1;
        }
        if !done {
            was(last - at + 1, None);
        }
        self.spans.insert(first, (last, value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_last_id_has_a_span() {
        let mut map = SpanMap::new();
        let mut seen = Vec::new();
        map.replace(u32::MAX - 1, 2, 1, |n, was| seen.push((n, was)));
        map.replace(u32::MAX, 1, 2, |n, was| seen.push((n, was)));
        map.replace(0, u32::MAX, 3, |n, was| seen.push((n, was)));
        assert_eq!(seen, [(2, None), (1, Some(1)), (u32::MAX - 1, None), (1, Some(1))]);
    }

    proptest! {
        #[test]
        fn equals_an_array(runs in prop::collection::vec((0u32..60, 1u32..30), 0..80)) {
            let mut map = SpanMap::new();
            let mut model = [None; 100];
            for (value, (first, count)) in runs.into_iter().enumerate() {
                let mut told = Vec::new();
                map.replace(first, count, value as u32, |n, was| told.extend(std::iter::repeat_n(was, n as usize)));
                let ids = first as usize..(first + count) as usize;
                prop_assert_eq!(&told, &model[ids.clone()]);
                model[ids].fill(Some(value as u32));
            }
        }
    }
}
