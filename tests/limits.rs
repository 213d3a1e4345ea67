//! What must not grow with what others do: a tenant's room to renew its own pages, the cost of a lookup beside many
//! live sequences, the cost of pins, the memory of namespaces that were cleared.

use mimo_cache::cache::{Cache, CacheConfig, RequestOptions, SeqId};
use mimo_cache::key::Key;
use mimo_cache::policy::{PolicyKind, Retention};
use std::time::{Duration, Instant};

fn config(full_pages: u32, swa_pages: u32) -> CacheConfig {
    CacheConfig {
        page_size: 4,
        window: if swa_pages > 0 { 4 } else { 0 },
        n_mtp: 0,
        full_pages,
        swa_pages,
        scratch_pages: swa_pages / 8,
        retention: Retention::parse("prompt_end+branch").unwrap(),
        policy: PolicyKind::Lru,
        event_capacity: 1024,
        ghost_pages: 1024,
        fingerprint: [0; 32],
        seed: 1,
        max_pinned_pages: full_pages,
        region: None,
    }
}

/// `len` tokens that differ from those of every other `i` in the first page.
fn prompt(i: u32, len: u32) -> Vec<u32> {
    std::iter::once(1_000_000 + i).chain(1..len).collect()
}

fn open(cache: &mut Cache, tokens: Vec<u32>, tenant: u32) -> SeqId {
    let mut request = cache.request(tokens, RequestOptions { tenant, ..RequestOptions::default() }).unwrap();
    cache.open(&mut request, 0).unwrap()
}

fn serve(cache: &mut Cache, tokens: Vec<u32>, tenant: u32) {
    let seq = open(cache, tokens, tenant);
    let info = cache.info(seq).unwrap();
    cache.reserve(seq, info.known - info.committed).unwrap();
    cache.commit(seq, info.known - info.committed, &[]).unwrap();
    cache.finish(seq).unwrap();
}

fn usable(cache: &Cache, tokens: &[u32]) -> u64 {
    cache.match_tokens(tokens, &Key::default(), &[]).unwrap().usable
}

/// The quickest of several runs.
fn quickest(runs: usize, mut f: impl FnMut() -> Duration) -> Duration {
    (0..runs).map(|_| f()).min().unwrap()
}

/// A tenant at its share lets its own oldest pages go. They were looked for among the oldest of all: behind a few hundred
/// older pages of others the tenant kept its first prompts forever, and nothing newer of it was cached.
#[test]
fn a_tenant_at_its_share_renews_its_pages_however_much_of_others_is_older() {
    for (max_full, max_swa) in [(8, u64::MAX), (u64::MAX, 4), (8, 4)] {
        let mut cache = Cache::new(config(4000, 4000)).unwrap();
        cache.set_tenant_share(7, max_full, max_swa);
        (0..1000).for_each(|i| serve(&mut cache, prompt(i, 9), 0));
        for i in 5000..5100 {
            serve(&mut cache, prompt(i, 9), 7);
            assert_eq!(usable(&cache, &prompt(i, 9)), 8, "shares {max_full} and {max_swa}, prompt {i}");
        }
        assert_eq!(usable(&cache, &prompt(0, 9)), 8, "others keep theirs");
        cache.check_integrity().unwrap();
    }
}

/// A tenant's window on a prefix that another tenant published counts for the one who made it: at its share it lets
/// that checkpoint go, and not one of the other's.
#[test]
fn a_checkpoint_is_its_makers_wherever_it_stands() {
    let mut cache = Cache::new(config(4000, 4000)).unwrap();
    cache.set_tenant_share(7, u64::MAX, 2);
    let shared = prompt(0, 41);
    serve(&mut cache, shared.clone(), 0);
    // Shorter prompts on the other's pages: each makes a checkpoint of one SWA page inside them.
    for end in [9, 17, 25, 33, 13, 21] {
        serve(&mut cache, shared[..end].to_vec(), 7);
        assert_eq!(usable(&cache, &shared[..end]), end as u64 - 1, "prompt of {end}");
    }
    assert_eq!(usable(&cache, &shared), 40);
    cache.check_integrity().unwrap();
}

/// Many live sequences with one prompt: a lookup compared the whole prompt with each of them.
#[test]
fn a_lookup_beside_many_copies_of_its_prompt_compares_it_once() {
    let len = 50_000;
    let measure = |copies: u32| {
        let mut cache = Cache::new(config(40_000_000, 0)).unwrap();
        (0..copies).for_each(|_| {
            open(&mut cache, prompt(0, len), 0);
        });
        quickest(5, || {
            let mut request = cache.request(prompt(0, len), RequestOptions::default()).unwrap();
            let start = Instant::now();
            let seq = cache.open(&mut request, 0).unwrap();
            let time = start.elapsed();
            assert_eq!(cache.report(seq).unwrap().misses.in_flight, u64::from(len));
            cache.abort(seq).unwrap();
            time
        })
    };
    let (few, many) = (measure(1), measure(1000));
    assert!(many < few * 50 + Duration::from_micros(200), "{few:?} beside one, {many:?} beside 1000");
}

/// What another sequence computes is told as the longest run of any, whoever is looked at first.
#[test]
fn the_longest_run_in_flight_counts() {
    let tokens = prompt(0, 41);
    let mut cut = tokens.clone();
    cut[22] = 9;
    for order in [[8, 41, 21], [41, 21, 8], [21, 8, 41]] {
        let mut cache = Cache::new(config(4000, 400)).unwrap();
        let seqs: Vec<SeqId> = order.iter().map(|&n| open(&mut cache, tokens[..n].to_vec(), 0)).collect();
        open(&mut cache, cut.clone(), 0);
        let find = |cache: &Cache| cache.explain(&tokens, &Key::default(), &[]).unwrap().report.misses.in_flight;
        assert_eq!(find(&cache), 40);
        let longest = seqs[order.iter().position(|&n| n == 41).unwrap()];
        cache.park(longest, true).unwrap();
        assert_eq!(find(&cache), 20, "a parked sequence computes nothing");
        cache.resume(longest, 0).unwrap();
        assert_eq!(find(&cache), 40);
        cache.abort(longest).unwrap();
        assert_eq!(find(&cache), 20);
        cache.check_integrity().unwrap();
    }
}

/// Pinned pages that have to go after all: each looked through all pins.
#[test]
fn giving_up_pinned_pages_costs_the_same_with_many_pins() {
    let measure = |pins: u32| {
        let mut cache = Cache::new(config(2 * pins + 1, 2 * pins)).unwrap();
        for i in 0..pins {
            serve(&mut cache, prompt(i, 9), 0);
            cache.pin(&prompt(i, 9), &Key::default(), &[], 1_000_000).unwrap();
        }
        assert_eq!(cache.stats().full.free, 1);
        let mut next = pins;
        let time = quickest(20, || {
            next += 1;
            let start = Instant::now();
            serve(&mut cache, prompt(next, 65), 0);
            let time = start.elapsed();
            cache.pin(&prompt(next, 65), &Key::default(), &[], 1_000_000).unwrap();
            time
        });
        assert!(cache.stats().full_evicted > 200);
        cache.check_integrity().unwrap();
        time
    };
    let (few, many) = (measure(500), measure(40_000));
    assert!(many < few * 20 + Duration::from_micros(100), "{few:?} with 500 pins, {many:?} with 40000");
}

/// Pins end a bounded number at a time; those whose time is over do not stand in the way of a new one.
#[test]
fn pins_whose_time_is_over_make_room_at_once() {
    let mut cache = Cache::new(CacheConfig { max_pinned_pages: 4000, ..config(4100, 4000) }).unwrap();
    for i in 0..2000 {
        serve(&mut cache, prompt(i, 9), 0);
        assert_eq!(cache.pin(&prompt(i, 9), &Key::default(), &[], 10).unwrap(), 8);
    }
    assert!(cache.pin(&prompt(0, 9), &Key::default(), &[], 10).is_err());
    cache.set_now(10);
    cache.check_integrity().unwrap();
    for i in 0..2000 {
        assert_eq!(cache.pin(&prompt(i, 9), &Key::default(), &[], 10).unwrap(), 8, "pin {i}");
    }
    cache.check_integrity().unwrap();
}

/// Namespaces that were cleared are remembered, so that their keys never come again; their memory has a bound.
#[test]
fn memory_of_cleared_namespaces_is_bounded() {
    let mut cache = Cache::new(config(4000, 400)).unwrap();
    let start = cache.stats().tree_bytes;
    let kept = prompt(1, 9);
    cache.clear(None);
    cache.clear(Some(&Key::default()));
    serve(&mut cache, kept.clone(), 0);
    let mut found = 0u32;
    for i in 0..3_300_001u32 {
        let key = Key { salt: i.to_le_bytes().to_vec(), ..Key::default() };
        cache.clear(Some(&key));
        if i % 300_000 == 0 {
            found += u32::from(usable(&cache, &kept) == 8);
            serve(&mut cache, kept.clone(), 0);
            assert_eq!(usable(&cache, &kept), 8);
            cache.check_integrity().unwrap();
        }
    }
    // Every 2^20 of them the whole cache starts anew, and only then.
    assert_eq!(found, 12 - 3);
    let bytes = cache.stats().tree_bytes - start;
    assert!(bytes < 200 << 20, "{bytes} bytes");
}

/// Clearing a namespace ends its pins, and looks at no others.
#[test]
fn clearing_one_namespace_costs_the_same_beside_many_pins() {
    let key = Key { salt: b"other".to_vec(), ..Key::default() };
    let measure = |pins: u32| {
        let mut cache = Cache::new(config(2 * pins + 100, 2 * pins + 100)).unwrap();
        for i in 0..pins {
            serve(&mut cache, prompt(i, 9), 0);
            cache.pin(&prompt(i, 9), &Key::default(), &[], 1_000_000).unwrap();
        }
        let time = quickest(20, || {
            let options = RequestOptions { key: key.clone(), ..RequestOptions::default() };
            let mut request = cache.request(prompt(0, 9), options).unwrap();
            let seq = cache.open(&mut request, 0).unwrap();
            let start = Instant::now();
            cache.clear(Some(&key));
            let time = start.elapsed();
            cache.abort(seq).unwrap();
            time
        });
        assert_eq!(usable(&cache, &prompt(0, 9)), 8);
        time
    };
    let (few, many) = (measure(100), measure(40_000));
    assert!(many < few * 20 + Duration::from_micros(50), "{few:?} with 100 pins, {many:?} with 40000");
}
