//! Replay against models that are slow and short enough to be believed.

use super::host::TierOptions;
use super::*;
use crate::tier::{Rules, Write};
use proptest::prelude::*;
use std::collections::HashSet;
use std::io::Cursor;

#[path = "hybrid.rs"]
mod hybrid;

const PAGE: u32 = 4;

fn options(window: u32, capacity: Capacity, swa_share: f64, retention: &str) -> Options {
    // A token of SWA layers costs as much as one of full layers, so that pages are easy to count.
    let swa = if swa_share > 0.0 { 10 } else { 0 };
    Options {
        kv: KvBytes { full_trunk: 10, swa_trunk: swa, swa_all: swa, window },
        capacity,
        swa_share,
        split: Split::Fixed,
        retention: Retention::parse(retention).unwrap(),
        policy: PolicyKind::Lru,
        page_size: PAGE,
        chunk: 16,
        seed: 1,
        skip_bad: false,
        service: None,
        samples: 0,
        host: None,
    }
}

/// Prompts as lists of block ids, written out as a trace.
fn trace(block: u32, prompts: &[Vec<u32>]) -> Vec<u8> {
    let mut text = format!("{{\"block_size\":{block}}}\n");
    for (t, ids) in prompts.iter().enumerate() {
        let runs: Vec<String> = ids.iter().map(|id| format!("[{id},1]")).collect();
        let tokens = ids.len() as u32 * block + 1;
        text += &format!("{{\"t\":{t},\"s\":-1,\"i\":{tokens},\"o\":1,\"h\":[{}]}}\n", runs.join(","));
    }
    text.into_bytes()
}

fn replay(block: u32, prompts: &[Vec<u32>], options: &Options) -> Result<Outcome> {
    let bytes = trace(block, prompts);
    let outcome = run_from(|| TraceReader::new(Cursor::new(bytes.clone()), "trace".into()), options, |_| true)?;
    let outcome = outcome.expect("nobody stopped it");
    assert_eq!(outcome.hit_tokens + outcome.misses.total(), outcome.totals.prompt_tokens, "hits and misses do not sum");
    assert!(outcome.hit_tokens <= outcome.full_kv_tokens);
    assert!(outcome.token_hit_rate() <= outcome.totals.ceiling() + 1e-12);
    Ok(outcome)
}

/// Prompts that walk a random tree of blocks: an id is made from its parent's id and a choice, so it has one parent.
fn prompts(longest: usize) -> impl Strategy<Value = Vec<Vec<u32>>> {
    let prompt = prop::collection::vec(prop_oneof![6 => Just(0u32), 1 => Just(1), 1 => Just(2)], 0..longest);
    prop::collection::vec(prompt, 1..40).prop_map(|all| {
        let mut known = std::collections::HashMap::new();
        let path = |choices: Vec<u32>, known: &mut std::collections::HashMap<Vec<u32>, u32>| {
            (1..=choices.len())
                .map(|n| {
                    let next = known.len() as u32;
                    *known.entry(choices[..n].to_vec()).or_insert(next)
                })
                .collect()
        };
        all.into_iter().map(|choices| path(choices, &mut known)).collect()
    })
}

/// The pages of a prompt, named so that a name has one parent.
fn pages(block: u32, ids: &[u32]) -> Vec<(u32, u32)> {
    ids.iter().flat_map(|&id| (0..block / PAGE).map(move |k| (id, k))).collect()
}

/// Hits and full-KV hits, in pages, of a cache that never evicts and keeps PROMPT_END and, if asked, BRANCH.
fn endless(block: u32, prompts: &[Vec<u32>], window: u32, branch: bool) -> (u64, u64) {
    let (mut full, mut swa) = (HashSet::new(), HashSet::<(u32, u32)>::new());
    let need = window.div_ceil(PAGE) as usize;
    let (mut hits, mut full_hits) = (0, 0);
    for ids in prompts {
        let path = pages(block, ids);
        let p = path.iter().take_while(|page| full.contains(*page)).count();
        let safe = |q: &usize| path[q.saturating_sub(need)..*q].iter().all(|page| swa.contains(page));
        let q = (0..=p).rev().find(safe).unwrap_or(0);
        hits += q as u64;
        full_hits += p as u64;
        let mut keep = vec![path.len()];
        if branch && p > q {
            keep.push(p);
        }
        for end in keep {
            swa.extend(&path[end.saturating_sub(need)..end]);
        }
        full.extend(path);
    }
    (hits, full_hits)
}

/// Hits, in pages, of a plain cache of `capacity` pages that evicts the leaf used longest ago.
fn leaf_first_lru(block: u32, prompts: &[Vec<u32>], capacity: usize) -> u64 {
    // Cached paths from the root, each with the number of the request that used it last.
    let mut cached: std::collections::HashMap<Vec<(u32, u32)>, usize> = Default::default();
    let mut hits = 0;
    for (now, ids) in prompts.iter().enumerate() {
        let mut path = pages(block, ids);
        path.truncate(capacity - 1); // one page is for the last token
        let hit = (1..=path.len()).take_while(|&n| cached.contains_key(&path[..n])).count();
        hits += hit as u64;
        (1..=hit).for_each(|n| *cached.get_mut(&path[..n]).unwrap() = now);
        let room = capacity - (path.len() - hit) - 1;
        while cached.len() > room {
            let leaf = |p: &&Vec<(u32, u32)>| !cached.keys().any(|c| c.len() == p.len() + 1 && c.starts_with(p));
            let oldest = cached.keys().filter(leaf).min_by_key(|p| cached[*p]).unwrap().clone();
            cached.remove(&oldest);
        }
        (hit + 1..=path.len()).for_each(|n| _ = cached.insert(path[..n].to_vec(), now));
    }
    hits
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// A small cache with room below it for all that was ever computed hits like one that never evicts.
    #[test]
    fn with_a_large_host_tier_it_equals_a_cache_that_never_evicts(
        prompts in prompts(12), window in 0u32..14, per_block in 1u32..4, room in 0u64..20,
    ) {
        let block = PAGE * per_block;
        let longest = 12 * u64::from(block) + u64::from(window) + 64;
        let host = Some(host_tier(2000.0));
        let capacity = Capacity::FullTokens(longest + room * u64::from(PAGE));
        let outcome = replay(block, &prompts, &Options { host, ..options(window, capacity, 0.5, "prompt_end") }).unwrap();
        let (hits, _) = endless(block, &prompts, window, false);
        prop_assert_eq!(outcome.hit_tokens, hits * u64::from(PAGE));
    }

    #[test]
    fn equals_a_cache_that_never_evicts(
        prompts in prompts(12), window in 0u32..14, branch in any::<bool>(), per_block in 1u32..4,
    ) {
        let (block, rules) = (PAGE * per_block, if branch { "prompt_end+branch" } else { "prompt_end" });
        let outcome = replay(block, &prompts, &options(window, Capacity::FullTokens(40_000), 0.5, rules)).unwrap();
        let (hits, full_hits) = endless(block, &prompts, window, branch);
        prop_assert_eq!(outcome.hit_tokens, hits * u64::from(PAGE));
        prop_assert_eq!(outcome.full_kv_tokens, full_hits * u64::from(PAGE));
        prop_assert_eq!(outcome.misses.evicted + outcome.misses.capacity + outcome.misses.in_flight, 0);
        prop_assert_eq!(outcome.misses.never_seen, outcome.totals.unique_tokens);
    }

    #[test]
    fn a_checkpoint_at_every_page_reaches_the_ceiling(prompts in prompts(12), window in 0u32..14) {
        let outcome = replay(8, &prompts, &options(window, Capacity::FullTokens(40_000), 0.5, "stride4")).unwrap();
        prop_assert_eq!(outcome.hit_tokens, outcome.totals.prompt_tokens - outcome.totals.unique_tokens);
    }

    #[test]
    fn a_plain_cache_equals_leaf_first_lru(prompts in prompts(10), capacity in 2u64..30) {
        let outcome = replay(4, &prompts, &options(0, Capacity::FullTokens(capacity * 4), 0.0, "prompt_end")).unwrap();
        prop_assert_eq!(outcome.hit_tokens, 4 * leaf_first_lru(4, &prompts, capacity as usize));
    }

    #[test]
    fn small_pools_keep_the_identities(prompts in prompts(30), full in 2u64..40, window in 0u32..14, sup in 0u32..3) {
        let rules = if sup == 0 { "prompt_end+branch".into() } else { format!("prompt_end+branch+sup{sup}+stride8") };
        for share in [0.3, 0.6] {
            match replay(8, &prompts, &options(window, Capacity::FullTokens(full * 4), share, &rules)) {
                Ok(outcome) => prop_assert!(outcome.full_evicted == 0 || outcome.pools.full_pages < 60 * 40),
                // The split may leave too few pages; that is an answer as well.
                Err(Error::Invalid { what: "capacity", .. }) => {}
                Err(other) => prop_assert!(false, "{}", other),
            }
        }
    }
}

#[test]
fn a_prompt_larger_than_the_pool_keeps_its_head() {
    let long: Vec<u32> = (0..20).collect();
    let outcome = replay(4, &[long.clone(), long], &options(0, Capacity::FullTokens(40), 0.0, "prompt_end")).unwrap();
    // 10 pages: 9 for the head, one for the last token. The second time the head is a hit.
    assert_eq!(outcome.misses.capacity, 2 * 11 * 4);
    assert_eq!(outcome.hit_tokens, 9 * 4);
    assert_eq!(outcome.misses.never_seen, 9 * 4);
}

#[test]
fn prompts_without_a_full_block_count_as_requests_only() {
    let outcome =
        replay(4, &[vec![], vec![1], vec![]], &options(0, Capacity::FullTokens(40), 0.0, "prompt_end")).unwrap();
    assert_eq!((outcome.totals.requests, outcome.totals.prompt_tokens, outcome.totals.partial_tokens), (3, 4, 3));
    assert_eq!(outcome.token_hit_rate(), 0.0);
}

#[test]
fn a_trace_without_requests_is_refused() {
    let error = replay(4, &[], &options(0, Capacity::FullTokens(40), 0.0, "prompt_end")).unwrap_err();
    assert!(matches!(error, Error::Trace { line: 2, .. }), "{error}");
}

#[test]
fn blocks_must_be_whole_pages() {
    let error = replay(6, &[vec![1]], &options(0, Capacity::FullTokens(40), 0.0, "prompt_end")).unwrap_err();
    assert!(error.to_string().starts_with("page size is 4, allowed is a power of two that divides"), "{error}");
}

#[test]
fn a_bad_line_in_the_second_half_is_found_before_anything_runs() {
    let mut bytes = trace(4, &vec![vec![1, 2]; 500]);
    bytes.extend(b"{\"t\":500}\n");
    let options = options(0, Capacity::FullTokens(40), 0.0, "prompt_end");
    let mut done = 0;
    let result = run_from(
        || TraceReader::new(Cursor::new(bytes.clone()), "trace".into()),
        &options,
        |now| {
            done += now.done + now.total;
            true
        },
    );
    assert!(matches!(result, Err(Error::Trace { line: 502, .. })), "{result:?}");
    assert_eq!(done, 0);
}

#[test]
fn progress_is_heard_in_the_first_pass_and_over_lines_that_are_skipped() {
    let mut bytes = trace(4, &[vec![1, 2]]);
    (0..500).for_each(|_| bytes.extend(b"{\"t\":500}\n"));
    let options = Options { skip_bad: true, ..options(0, Capacity::FullTokens(40), 0.0, "prompt_end") };
    let open = || TraceReader::new(Cursor::new(bytes.clone()), "trace".into());
    let (mut first, mut second) = (0, 0);
    let outcome = run_from(open, &options, |now| {
        *if now.total == 0 { &mut first } else { &mut second } += 1;
        true
    });
    assert_eq!(outcome.unwrap().map(|o| o.totals.skipped.lines), Some(500));
    assert_eq!((first, second), (7, 7));
    assert_eq!(run_from(open, &options, |now| now.total > 0).unwrap(), None);
}

#[test]
fn progress_can_stop_a_replay() {
    let bytes = trace(4, &vec![vec![1, 2]; 500]);
    let options = options(0, Capacity::FullTokens(40), 0.0, "prompt_end");
    let mut seen = Vec::new();
    let result = run_from(
        || TraceReader::new(Cursor::new(bytes.clone()), "trace".into()),
        &options,
        |now| {
            seen.extend((now.total > 0).then_some(now));
            seen.len() < 2
        },
    );
    assert_eq!(result.unwrap(), None);
    assert_eq!(seen.len(), 2);
    assert_eq!(seen[1], Progress { done: 128, total: 500, prompt_tokens: 128 * 8, hit_tokens: 127 * 8 });
}

#[test]
fn a_chunk_smaller_than_a_page_is_refused() {
    let options = Options { chunk: 3, ..options(0, Capacity::FullTokens(40), 0.0, "prompt_end") };
    assert!(replay(4, &[vec![1]], &options).unwrap_err().to_string().contains("chunk is 3"));
}

#[test]
fn a_trace_that_changes_between_the_passes_is_noticed() {
    let mut sizes = [3, 2].into_iter();
    let open = || TraceReader::new(Cursor::new(trace(4, &vec![vec![1]; sizes.next().unwrap()])), "trace".into());
    let result = run_from(open, &options(0, Capacity::FullTokens(40), 0.0, "prompt_end"), |_| true);
    assert!(result.unwrap_err().to_string().contains("changed"));
}

/// Prompts in turn that are more than the cache has and less than both tiers: without a host tier each one has gone
/// before it comes again.
#[test]
fn a_host_tier_serves_what_the_cache_has_dropped() {
    let prompts: Vec<Vec<u32>> = (0..40).map(|i| (0..8).map(|b| (i % 8) * 8 + b).collect()).collect();
    let with = |host| {
        let small = options(6, Capacity::FullTokens(200), 0.5, "prompt_end");
        replay(8, &prompts, &Options { host, ..small }).unwrap()
    };
    let rate = |write| with(Some(tier_of(10.0, write))).hit_tokens;
    assert_eq!(with(None).hit_tokens, 0);
    assert_eq!(rate(Write::Through), 32 * 8 * 8, "all but the first of each");
    assert_eq!(rate(Write::OnHit(1)), 0, "none is matched above, so none goes down");
    let stats = with(Some(host_tier(10.0))).tiers[0].1;
    assert_eq!((stats.fetches, stats.fetched_tokens), (32, 32 * 64));
    let Err(error) = replay(
        8,
        &prompts,
        &Options { host: Some(host_tier(0.0)), ..options(6, Capacity::FullTokens(200), 0.5, "prompt_end") },
    ) else {
        panic!("a host tier of nothing")
    };
    assert_eq!(error.to_string(), "host ratio is 0, allowed is 0.01 to 1000000 times the cache");
}

fn host_tier(ratio: f64) -> HostOptions {
    tier_of(ratio, Write::Through)
}

fn tier_of(ratio: f64, write: Write) -> HostOptions {
    HostOptions { host: TierOptions { ratio, write }, gcache: None, rules: Rules::default() }
}
