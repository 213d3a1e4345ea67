//! The life of a sequence, told step by step on a tiny cache: page 4, W = 8.

use mimo_cache::cache::{Cache, CacheConfig, Commit, FillOut, Match, RequestOptions, SeqId};
use mimo_cache::error::{Error, PoolName};
use mimo_cache::policy::{PolicyKind, Retention};

fn config() -> CacheConfig {
    CacheConfig {
        page_size: 4,
        window: 8,
        n_mtp: 0,
        full_pages: 64,
        swa_pages: 40,
        scratch_pages: 16,
        retention: Retention::default(),
        policy: PolicyKind::Lru,
        event_capacity: 4096,
        ghost_pages: 256,
        fingerprint: [7; 32],
        seed: 1,
        max_pinned_pages: 16,
        region: None,
    }
}

fn open(cache: &mut Cache, tokens: &[u32], credit: u64) -> SeqId {
    let mut req = cache.request(tokens.to_vec(), RequestOptions::default()).unwrap();
    let seq = cache.open(&mut req, credit).unwrap();
    cache.check_integrity().unwrap();
    seq
}

fn prefill(cache: &mut Cache, seq: SeqId) {
    let info = cache.info(seq).unwrap();
    let rows = info.known - info.committed;
    cache.reserve(seq, rows).unwrap();
    cache.check_integrity().unwrap();
    cache.commit(seq, rows, &[]).unwrap();
    cache.check_integrity().unwrap();
}

fn peek(cache: &Cache, tokens: &[u32]) -> Match {
    cache.match_tokens(tokens, &Default::default(), &[]).unwrap()
}

#[test]
fn a_second_turn_hits_where_the_first_prompt_ended() {
    let mut cache = Cache::new(config()).unwrap();
    let prompt: Vec<u32> = (0..22).collect();
    let seq = open(&mut cache, &prompt, 8);
    assert_eq!(cache.report(seq).unwrap().misses.never_seen, 20);
    prefill(&mut cache, seq);
    cache.finish(seq).unwrap();
    cache.check_integrity().unwrap();
    let longer: Vec<u32> = (0..40).collect();
    assert_eq!(peek(&cache, &longer), Match { full_kv_match: 20, usable: 20 });
    // One token is left to compute.
    assert_eq!(peek(&cache, &longer[..20]), Match { full_kv_match: 20, usable: 16 - 16 });
    let seq = open(&mut cache, &longer, 0);
    let report = cache.report(seq).unwrap();
    assert_eq!((report.delivered, report.turn, report.misses.never_seen), (20, 2, 20));
    prefill(&mut cache, seq);
    let table = cache.full_table(seq).unwrap().to_vec();
    assert_eq!(table.len(), 10);
    cache.finish(seq).unwrap();
    cache.check_integrity().unwrap();
    assert_eq!(peek(&cache, &(0..50).collect::<Vec<_>>()).usable, 40);
    assert_eq!(peek(&cache, &longer).usable, 36);
}

#[test]
fn decode_publishes_slides_and_quarantines() {
    let mut cache = Cache::new(config()).unwrap();
    let seq = open(&mut cache, &[1, 2, 3, 4, 5], 40);
    prefill(&mut cache, seq);
    let (mut full, mut swa, mut base, mut lens) = ([0i32; 16], [0i32; 8], [0i32; 1], [0i32; 1]);
    for step in 10..50u64 {
        cache.reserve(seq, 2).unwrap();
        let out = FillOut {
            full: &mut full,
            full_width: 16,
            swa: &mut swa,
            swa_width: 8,
            swa_base: Some(&mut base),
            lens: &mut lens,
        };
        cache.fill(step, &[seq], out).unwrap();
        cache.commit_many(&[Commit { seq, computed: 1, tokens: &[100 + step as u32] }]).unwrap();
        cache.check_integrity().unwrap();
        cache.trim(seq).unwrap();
        cache.check_integrity().unwrap();
        cache.retire(step).unwrap();
        cache.check_integrity().unwrap();
        let info = cache.info(seq).unwrap();
        assert!(info.swa_held <= 5, "{info:?}");
    }
    assert!(matches!(cache.retire(49), Err(Error::Order { .. })));
    cache.finish(seq).unwrap();
    cache.check_integrity().unwrap();
    let stats = cache.stats();
    assert_eq!((stats.full.private, stats.full.quarantined, stats.full.leased), (0, 0, 0));
    assert_eq!(stats.swa.private, 0);
    assert!(matches!(cache.finish(seq), Err(Error::State { .. })));
}

#[test]
fn eviction_makes_room_and_refusals_change_nothing() {
    let mut cache = Cache::new(config()).unwrap();
    for i in 0..20u32 {
        let prompt: Vec<u32> = (0..30).map(|t| i * 1000 + t).collect();
        let seq = open(&mut cache, &prompt, 0);
        prefill(&mut cache, seq);
        cache.finish(seq).unwrap();
        cache.check_integrity().unwrap();
    }
    let before = cache.stats();
    assert!(before.full_evicted > 0 && before.checkpoints_evicted > 0);
    let mut req = cache.request((0..300).collect(), RequestOptions::default()).unwrap();
    let error = cache.open(&mut req, 0).unwrap_err();
    assert!(matches!(&error, Error::OutOfPages(o) if o.pool == PoolName::Full && o.needed == 75), "{error}");
    cache.check_integrity().unwrap();
    assert_eq!(cache.stats().full, before.full);
}

#[test]
fn forks_share_and_parked_sequences_come_back() {
    for n_mtp in [0, 3] {
        let mut cache = Cache::new(CacheConfig { n_mtp, swa_pages: 120, ..config() }).unwrap();
        let prompt: Vec<u32> = (0..22).collect();
        let seq = open(&mut cache, &prompt, 8);
        prefill(&mut cache, seq);
        let kids = cache.fork(seq, 2, 8).unwrap();
        cache.check_integrity().unwrap();
        let (id, plan) = cache.take_copies().expect("partial pages to copy");
        // The partial page of each group; with MTP heads also the whole SWA page whose rows wait for tokens, and the
        // one before, which the checkpoint at the prompt's end is waiting for.
        assert_eq!(plan.copies.len(), if n_mtp == 0 { 4 } else { 8 });
        cache.move_done(id).unwrap();
        cache.check_integrity().unwrap();
        for (i, &kid) in kids.iter().enumerate() {
            cache.reserve(kid, 6).unwrap();
            cache.check_integrity().unwrap();
            let new: Vec<u32> = (0..6).map(|t| 500 + 10 * i as u32 + t).collect();
            cache.commit(kid, 6, &new).unwrap();
            cache.check_integrity().unwrap();
            cache.park(kid, true).unwrap();
            cache.check_integrity().unwrap();
        }
        cache.resume(kids[0], 4).unwrap();
        cache.check_integrity().unwrap();
        assert_eq!(cache.info(kids[0]).unwrap().committed, 24);
        cache.abort(seq).unwrap();
        cache.check_integrity().unwrap();
        prefill(&mut cache, kids[0]);
        cache.clear(None);
        cache.check_integrity().unwrap();
        kids.iter().for_each(|&k| cache.finish(k).unwrap());
        cache.check_integrity().unwrap();
        assert_eq!(peek(&cache, &prompt), Match::default());
    }
}
