//! What a policy promises whoever it is: scans pass by, the newest end stays, a loop that does not fit still hits, one
//! that fits always does, and what is leased is never touched. Told through the cache, with prompts of whole sessions.

use mimo_cache::cache::{Cache, CacheConfig, FillOut, RequestOptions, SeqId};
use mimo_cache::key::Key;
use mimo_cache::policy::{PolicyKind, Retention};
use proptest::prelude::*;

const PAGE: usize = 4;
/// Tokens of a window: two pages.
const WINDOW: u32 = 8;
/// Pages of the longest prompt here.
const LONGEST: usize = 40;

/// A cache and a clock.
struct Server {
    cache: Cache,
    step: u64,
    ms: u64,
}

impl Server {
    /// `full` pages, and room for `ends` checkpoints beside a running window.
    fn new(policy: PolicyKind, full: usize, ends: usize) -> Server {
        let cache = Cache::new(CacheConfig {
            page_size: PAGE as u32,
            window: WINDOW,
            n_mtp: 0,
            full_pages: full as u32,
            swa_pages: (2 * ends + LONGEST + 6) as u32,
            scratch_pages: LONGEST as u32 + 1,
            // Without SUPn, which lets ends go that no eviction asked for.
            retention: Retention::parse("prompt_end+branch").expect("rules"),
            policy,
            event_capacity: 0,
            ghost_pages: 2 * full as u32,
            fingerprint: [3; 32],
            seed: 5,
            max_pinned_pages: 0,
            region: None,
        });
        Server { cache: cache.expect("a valid layout"), step: 0, ms: 0 }
    }

    fn open(&mut self, prompt: &[u32]) -> (SeqId, u64) {
        self.cache.set_now(self.ms);
        let mut request = self.cache.request(prompt.to_vec(), RequestOptions::default()).expect("a valid prompt");
        let seq = self.cache.open(&mut request, 0).expect("room for it");
        (seq, self.cache.report(seq).expect("an open sequence").matched.usable)
    }

    fn finish(&mut self, seq: SeqId) {
        let info = self.cache.info(seq).expect("an open sequence");
        let n = info.known - info.committed;
        self.cache.reserve(seq, n).expect("room for it");
        self.step += 1;
        let (mut full, mut swa, mut base, mut lens) = ([0; 64], [0; 64], [0; 1], [0; 1]);
        let (full, swa, swa_base, lens) = (&mut full[..], &mut swa[..], Some(&mut base[..]), &mut lens[..]);
        let out = FillOut { full, full_width: 64, swa, swa_width: 64, swa_base, lens };
        self.cache.fill(self.step, &[seq], out).expect("a valid step");
        self.cache.commit(seq, n, &[]).expect("a valid commit");
        self.cache.retire(self.step).expect("the running step");
        self.cache.finish(seq).expect("an open sequence");
        self.cache.check_integrity().expect("a sound cache");
    }

    /// A whole request; how much of it was usable.
    fn serve(&mut self, prompt: &[u32]) -> u64 {
        let (seq, usable) = self.open(prompt);
        self.finish(seq);
        usable
    }

    /// What a request would find: full KV and usable.
    fn find(&self, prompt: &[u32]) -> (u64, u64) {
        let found = self.cache.match_tokens(prompt, &Key::default(), &[]).expect("a valid prompt");
        (found.full_kv_match, found.usable)
    }
}

/// `pages` whole pages of a topic, and a token that is never cached.
fn prompt(topic: u32, pages: usize) -> Vec<u32> {
    let whole = (0..(pages * PAGE) as u32).map(|i| topic * 1_000 + i);
    whole.chain([9_999_999]).collect()
}

/// Policies that learn.
const LEARNING: [PolicyKind; 2] = [PolicyKind::HitDensity, PolicyKind::TurnHazard];

/// Six sessions talk a turn a minute while prompts that nobody repeats pass through, ten times as many pages as are
/// cached. Returns the part of the sessions' tokens that was usable in the last ten minutes.
fn sessions_in_a_scan(policy: PolicyKind) -> f64 {
    let mut server = Server::new(policy, 200, 40);
    let (mut hit, mut asked) = (0, 0);
    let mut passing = 1_000;
    for minute in 0..40 {
        for session in 0..6 {
            // Each goes on from its last end, up to ten turns; then it is another session.
            let (life, turn) = (minute / 10, minute % 10);
            let talk = prompt(100 + life * 10 + session, 6 + 2 * turn as usize);
            let usable = server.serve(&talk);
            if minute >= 30 && turn > 0 {
                (hit, asked) = (hit + usable, asked + (6 + 2 * (turn as u64 - 1)) * PAGE as u64);
            }
            for _ in 0..6 {
                server.ms += 1_600;
                passing += 1;
                server.serve(&prompt(passing, 11));
            }
        }
    }
    hit as f64 / asked as f64
}

#[test]
fn scans_pass_by() {
    let lru = sessions_in_a_scan(PolicyKind::Lru);
    assert!(lru < 0.05, "396 pages pass between two turns of a session, so LRU should have lost it: {lru}");
    for policy in LEARNING {
        let kept = sessions_in_a_scan(policy);
        assert!(kept > 0.9, "{policy:?} kept {kept} of what the sessions had");
    }
}

/// The part of a loop's tokens that is usable once it has been gone through a few times.
fn looped(policy: PolicyKind, topics: u32) -> f64 {
    let mut server = Server::new(policy, 200, 60);
    let (mut hit, mut asked) = (0, 0);
    for round in 0..30 {
        for topic in 0..topics {
            server.ms += 1_000;
            let usable = server.serve(&prompt(1 + topic, 10));
            if round >= 10 {
                (hit, asked) = (hit + usable, asked + 10 * PAGE as u64);
            }
        }
    }
    hit as f64 / asked as f64
}

#[test]
fn a_loop_that_fits_always_hits() {
    for policy in PolicyKind::all() {
        assert_eq!(looped(policy, 18), 1.0, "{policy:?}");
    }
}

/// 250 pages in turn through 200: an LRU cache loses each just before it is asked for.
#[test]
fn a_loop_that_does_not_fit_still_hits() {
    assert_eq!(looped(PolicyKind::Lru, 25), 0.0);
    let hits = looped(PolicyKind::HitDensity, 25);
    assert!(hits > 0.5, "{hits}, at best 0.76");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// Whoever comes next, what the last request left stays whole and resumable while anything else may go, as long as
    /// it takes no more than a 32nd of either pool. (Under LRU the deepest checkpoint of a stretch goes last, so that a
    /// new end above an old one may go before it.)
    #[test]
    fn the_newest_end_stays(
        visits in prop::collection::vec((0u32..90, 1usize..=8, 0u64..20_000), 60..160),
        full in 32 * 8usize..320,
        ends in 25usize..40,
    ) {
        let mut server = Server::new(PolicyKind::HitDensity, full, ends);
        let mut last: Option<Vec<u32>> = None;
        for (topic, pages, wait) in visits {
            server.ms += wait;
            let next = prompt(topic, pages);
            server.serve(&next);
            if let Some(last) = last.replace(next) {
                let whole = (last.len() - 1) as u64;
                prop_assert_eq!(server.find(&last), (whole, whole));
            }
        }
    }

    /// Open sequences keep what they matched while others push everything else out.
    #[test]
    fn leases_hold(
        policy in prop::sample::select(PolicyKind::all().collect::<Vec<_>>()),
        kept in prop::collection::vec((0u32..4, 2usize..8), 1..3),
        passing in prop::collection::vec((10u32..40, 1usize..10, 0u64..5_000), 5..30),
    ) {
        let mut server = Server::new(policy, 40, 12);
        let mut open = Vec::new();
        for &(topic, pages) in &kept {
            server.serve(&prompt(topic, pages));
            let (seq, usable) = server.open(&prompt(topic, pages));
            prop_assert_eq!(usable, (pages * PAGE) as u64);
            open.push((seq, topic, pages));
        }
        for &(topic, pages, wait) in &passing {
            server.ms += wait;
            server.serve(&prompt(topic, pages));
            for &(_, topic, pages) in &open {
                prop_assert_eq!(server.find(&prompt(topic, pages)).0, (pages * PAGE) as u64);
            }
        }
        for (seq, ..) in open {
            server.finish(seq);
        }
    }
}
