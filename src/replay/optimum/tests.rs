//! Belady and LRU against models that look at every page, and against all there is to choose.

use super::*;
use proptest::prelude::*;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::io::Cursor;

/// A page by the choices on its path; its parent is one shorter.
type Page = Vec<u8>;

fn page_path(prompt: &[u8]) -> Vec<Page> {
    (1..=prompt.len()).map(|n| prompt[..n].to_vec()).collect()
}

/// Writes prompts as a trace of blocks of `block` tokens, in runs as long as ids allow.
fn read(prompts: &[Vec<u8>], block: u32) -> Optimum {
    let mut ids: HashMap<Page, u32> = HashMap::new();
    let mut text = format!("{{\"block_size\":{block}}}\n");
    for (t, prompt) in prompts.iter().enumerate() {
        let mut runs: Vec<(u32, u32)> = Vec::new();
        for page in page_path(prompt) {
            let next = ids.len() as u32;
            let id = *ids.entry(page).or_insert(next);
            match runs.last_mut() {
                Some((first, count)) if *first + *count == id => *count += 1,
                _ => runs.push((id, 1)),
            }
        }
        let runs: Vec<String> = runs.iter().map(|(a, b)| format!("[{a},{b}]")).collect();
        let tokens = prompt.len() as u32 * block;
        text += &format!("{{\"t\":{},\"s\":-1,\"i\":{tokens},\"o\":1,\"h\":[{}]}}\n", t * 1000, runs.join(","));
    }
    let reader = TraceReader::new(Cursor::new(text.into_bytes()), "trace".into()).unwrap().check_ids();
    Optimum::read(reader, || true).unwrap().unwrap()
}

/// Pages hit when what is used again last goes, the deepest of equals first, one page at a time.
fn slow_belady(prompts: &[Vec<u8>], capacity: usize) -> u64 {
    let mut cached: BTreeSet<Page> = BTreeSet::new();
    let mut hits = 0;
    for (now, prompt) in prompts.iter().enumerate() {
        let path = page_path(prompt);
        hits += path.iter().take_while(|page| cached.contains(*page)).count() as u64;
        cached.extend(path);
        let next = |page: &Page| (now + 1..prompts.len()).find(|&t| prompts[t].starts_with(page));
        cached.retain(|page| next(page).is_some());
        while cached.len() > capacity {
            let last = cached.iter().max_by_key(|page| (next(page), page.len())).unwrap().clone();
            cached.remove(&last);
            assert!(!cached.iter().any(|page| page.starts_with(&last)), "what is cached is prefix-closed");
        }
    }
    hits
}

/// The most pages that any choice of what to keep can hit: every set of pages that can be cached, with its best score.
fn best_of_all(prompts: &[Vec<u8>], capacity: usize) -> u64 {
    let mut states: HashMap<BTreeSet<Page>, u64> = HashMap::from([(BTreeSet::new(), 0)]);
    for prompt in prompts {
        let path = page_path(prompt);
        let mut after: HashMap<BTreeSet<Page>, u64> = HashMap::new();
        for (cached, score) in states {
            let score = score + path.iter().take_while(|page| cached.contains(*page)).count() as u64;
            let all: Vec<Page> =
                cached.iter().cloned().chain(path.iter().cloned()).collect::<BTreeSet<_>>().into_iter().collect();
            for choice in 0u32..1 << all.len() {
                if choice.count_ones() as usize <= capacity {
                    let kept = (0..all.len()).filter(|i| choice >> i & 1 == 1).map(|i| all[i].clone()).collect();
                    let best = after.entry(kept).or_insert(0);
                    *best = score.max(*best);
                }
            }
        }
        states = after;
    }
    states.into_values().max().unwrap()
}

/// Pages hit by leaf-first LRU: the stack of pages by last use, roots of a request the youngest.
fn slow_lru(prompts: &[Vec<u8>], capacity: usize) -> u64 {
    let mut stack: Vec<Page> = Vec::new();
    let mut hits = 0;
    for prompt in prompts {
        let path = page_path(prompt);
        hits += path.iter().take_while(|page| stack.iter().take(capacity).any(|p| p == *page)).count() as u64;
        let used: HashSet<&Page> = path.iter().collect();
        let rest: Vec<Page> = stack.iter().filter(|page| !used.contains(page)).cloned().collect();
        stack = path.into_iter().chain(rest).collect();
    }
    hits
}

fn prompts(longest: usize, most: usize) -> impl Strategy<Value = Vec<Vec<u8>>> {
    let prompt = prop::collection::vec(prop_oneof![5 => Just(0u8), 1 => Just(1), 1 => Just(2)], 0..longest);
    prop::collection::vec(prompt, 0..most)
}

proptest! {
    #[test]
    fn equals_a_slow_belady(prompts in prompts(9, 30), capacity in 0usize..30, per_block in 1u32..4) {
        let optimum = read(&prompts, 4 * per_block);
        prop_assert_eq!(optimum.belady(capacity as u64, 4 * per_block), slow_belady(&prompts, capacity) * u64::from(4 * per_block));
        // Blocks of several pages are prompts of more pages.
        let pages: Vec<Vec<u8>> = prompts.iter().map(|p| p.iter().flat_map(|&c| (0..per_block).map(move |k| if k == 0 { c } else { 9 })).collect()).collect();
        prop_assert_eq!(optimum.belady(capacity as u64, 4), slow_belady(&pages, capacity) * 4);
    }

    #[test]
    fn equals_a_slow_lru_at_every_capacity(prompts in prompts(9, 30)) {
        let optimum = read(&prompts, 8);
        let capacities: Vec<u64> = (0..40).collect();
        let (hits, reuse) = optimum.lru(&capacities, 8);
        for (capacity, hits) in capacities.iter().zip(&hits) {
            prop_assert_eq!(*hits, 8 * slow_lru(&prompts, *capacity as usize), "capacity {}", capacity);
        }
        let (endless, _) = optimum.lru(&[u64::MAX], 8);
        prop_assert_eq!(reuse.tokens.iter().sum::<u64>(), endless[0]);
        prop_assert_eq!(reuse.ms.iter().sum::<u64>(), endless[0]);
        prop_assert_eq!(endless[0], optimum.belady(u64::MAX, 8));
    }

    #[test]
    fn lru_never_beats_belady(prompts in prompts(12, 60), capacity in 0u64..60) {
        let optimum = read(&prompts, 2);
        prop_assert!(optimum.lru(&[capacity], 1).0[0] <= optimum.belady(capacity, 1));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn nothing_beats_belady(prompts in prompts(4, 7), capacity in 0usize..5) {
        prop_assert_eq!(read(&prompts, 1).belady(capacity as u64, 1), best_of_all(&prompts, capacity));
    }
}

#[test]
fn reuse_is_counted_in_tokens_and_time() {
    // Two blocks, then three others, then the first two again: three and two blocks lie between or are used with them.
    let optimum = read(&[vec![0, 0], vec![1, 1, 1], vec![0, 0]], 64);
    let (hits, reuse) = optimum.lru(&[3, 4, 5], 64);
    assert_eq!(hits, [0, 64, 128]);
    // Distances 193 to 320 tokens: 63 of them below 256.
    assert_eq!((reuse.tokens[7], reuse.tokens[8]), (63, 65));
    assert_eq!(reuse.ms[10], 128, "2,000 ms");
}

#[test]
fn a_no_stops_the_work() {
    let text = "{\"block_size\":1}\n".to_string() + &"{\"t\":0,\"s\":0,\"i\":1,\"o\":0,\"h\":[[7,1]]}\n".repeat(5000);
    let open = || TraceReader::new(Cursor::new(text.clone().into_bytes()), "trace".into()).unwrap().check_ids();
    assert!(Optimum::read(open(), || false).unwrap().is_none());
    assert_eq!(Optimum::read(open(), || true).unwrap().unwrap().belady(1, 1), 4999);
}
