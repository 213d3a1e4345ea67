//! Boundaries of one prompt on their way down, one after the other, and what may come between two of them.
#![cfg(target_os = "linux")]

use mimo_cache::cache::{Cache, CacheConfig, FillOut, RequestOptions, SeqId};
use mimo_cache::key::Key;
use mimo_cache::policy::{PolicyKind, Retention};
use mimo_cache::tier::{Prefix, Rules, Save, TierConfig, Tiers, Write};

const PAGE: u64 = 4;

/// A cache with a checkpoint at every second page, and a host tier of its size below.
struct World {
    cache: Cache,
    tiers: Tiers,
    step: u64,
}

impl World {
    fn new(write: Write) -> World {
        let cache = Cache::new(CacheConfig {
            page_size: PAGE as u32,
            window: 4,
            n_mtp: 0,
            full_pages: 64,
            swa_pages: 128,
            scratch_pages: 32,
            retention: Retention::parse("prompt_end+seq_end+stride8").unwrap(),
            policy: PolicyKind::Lru,
            event_capacity: 0,
            ghost_pages: 0,
            fingerprint: [0; 32],
            seed: 0,
            max_pinned_pages: 0,
            region: None,
        })
        .unwrap();
        let rules = Rules::default();
        let tiers =
            Tiers::new(&cache, TierConfig { full_pages: 64, swa_pages: 64, write, max_saving: 1000, rules }).unwrap();
        World { cache, tiers, step: 0 }
    }

    fn open(&mut self, tokens: &[u32]) -> SeqId {
        let mut request = self.cache.request(tokens.to_vec(), RequestOptions::default()).unwrap();
        let seq = self.cache.open(&mut request, 32).unwrap();
        self.compute(seq, tokens.len() as u64 - self.cache.info(seq).unwrap().committed, &[]);
        seq
    }

    fn compute(&mut self, seq: SeqId, rows: u64, tokens: &[u32]) {
        self.cache.reserve(seq, rows).unwrap();
        self.step += 1;
        let (mut full, mut swa, mut base, mut lens) = ([0; 64], [0; 64], [0], [0]);
        let out = FillOut {
            full: &mut full,
            full_width: 64,
            swa: &mut swa,
            swa_width: 64,
            swa_base: Some(&mut base),
            lens: &mut lens,
        };
        self.cache.fill(self.step, &[seq], out).unwrap();
        self.cache.commit(seq, rows, tokens).unwrap();
        self.cache.retire(self.step).unwrap();
    }

    fn serve(&mut self, tokens: &[u32]) {
        let seq = self.open(tokens);
        self.cache.finish(seq).unwrap();
    }

    fn save(&mut self, tokens: &[u32], start: u64, again: bool) -> Option<Save> {
        let key = Key::default();
        let prefix = Prefix { tokens, key: &key, spans: &[], tenant: 0 };
        self.tiers.save(&mut self.cache, &prefix, start, again).unwrap()
    }

    fn saved(&mut self, save: Save, ok: bool) -> Option<Save> {
        let next = self.tiers.saved(&mut self.cache, save.id, ok).unwrap();
        self.tiers.check_integrity().unwrap();
        next
    }

    /// Everything goes down. Boundaries, and full pages copied.
    fn drain(&mut self, mut next: Option<Save>) -> (Vec<u64>, u64) {
        let (mut ends, mut full) = (Vec::new(), 0);
        while let Some(save) = next {
            ends.push(save.at);
            full += save.pairs.full.len() as u64;
            next = self.saved(save, true);
        }
        self.idle();
        (ends, full)
    }

    fn idle(&self) {
        self.tiers.check_integrity().unwrap();
        self.cache.check_integrity().unwrap();
        for cache in [&self.cache, self.tiers.host()] {
            let stats = cache.stats();
            assert_eq!((stats.open_sequences, stats.full.leased, stats.swa.leased), (0, 0, 0));
        }
    }

    /// Tokens that the host tier alone can serve of a prompt.
    fn below(&self, tokens: &[u32]) -> u64 {
        self.tiers.host().match_tokens(tokens, &Key::default(), &[]).unwrap().usable
    }
}

fn words(seed: u32, len: u32) -> Vec<u32> {
    (0..len).map(|i| seed * 1000 + i).collect()
}

#[test]
fn boundaries_go_down_one_after_the_other_and_each_page_once() {
    let mut w = World::new(Write::Through);
    let prompt = words(1, 42);
    w.serve(&prompt);
    let first = w.save(&prompt, 0, false);
    assert_eq!(w.drain(first), (vec![8, 16, 24, 32, 40], 10));
    assert_eq!(w.below(&prompt), 40);
    assert!(w.save(&prompt, 0, true).is_none(), "all of it is there");
}

/// The bytes of the cache above are another version's by then, under the same tokens.
#[test]
fn a_chain_ends_where_the_namespace_does() {
    for clear in [false, true] {
        let mut w = World::new(Write::Through);
        let prompt = words(1, 42);
        w.serve(&prompt);
        let first = w.save(&prompt, 0, false).expect("five boundaries");
        if clear {
            w.cache.clear(None);
            w.tiers.clear(None);
        } else {
            w.cache.set_weights(b"two").unwrap();
            w.tiers.set_weights(b"two").unwrap();
        }
        w.serve(&prompt);
        assert!(w.saved(first, true).is_none(), "it went on with pages of another namespace");
        w.idle();
        assert_eq!(w.below(&prompt), 0);
    }
}

#[test]
fn a_copy_that_fails_ends_the_chain_and_what_came_before_stays() {
    let mut w = World::new(Write::Through);
    let prompt = words(1, 42);
    w.serve(&prompt);
    let first = w.save(&prompt, 0, false).expect("five boundaries");
    let second = w.saved(first, true).expect("four more");
    assert!(w.saved(second, false).is_none());
    w.idle();
    assert_eq!(w.below(&prompt), 8);
    let rest = w.save(&prompt, 0, true);
    assert_eq!(w.drain(rest).0, [16, 24, 32, 40]);
}

/// The end of a request comes while boundaries of its prompt still go down.
#[test]
fn what_a_request_adds_at_its_end_follows_what_is_on_its_way() {
    let mut w = World::new(Write::Through);
    let mut tokens = words(1, 30);
    let seq = w.open(&tokens);
    let first = w.save(&tokens, 0, false);
    for _ in 0..10 {
        let next = tokens.len() as u32;
        tokens.push(next);
        w.compute(seq, u64::from(tokens.len() > 31), &[next]);
    }
    w.cache.finish(seq).unwrap();
    assert!(w.save(&tokens, 0, true).is_none(), "a second way down for the same prompt");
    let (ends, full) = w.drain(first);
    assert_eq!((ends.last(), full), (Some(&36), 9), "{ends:?}");
    assert!(ends.is_sorted());
    assert_eq!(w.below(&tokens), 36);
}

#[test]
fn what_is_pushed_out_is_written_back_and_later_turns_take_over() {
    let mut w = World::new(Write::Back);
    let mut prompt = words(1, 22);
    for turn in 0..3 {
        w.serve(&prompt);
        assert!(w.save(&prompt, 20 * turn, false).is_none());
        assert!(w.tiers.write_back(&mut w.cache).unwrap().is_none(), "little is dirty");
        prompt.extend(words(10 + turn as u32, 20));
    }
    let long = &prompt[..62];
    assert_eq!(w.tiers.stats().dirty_pages, 15 + 9, "each page once, and each window");
    w.serve(&words(7, 40));
    assert!(w.save(&words(7, 40), 0, false).is_none());
    let (save, story) = w.tiers.write_back(&mut w.cache).unwrap().expect("more than a quarter of the pool");
    assert_eq!(story.tokens, &long[..60]);
    let (ends, full) = w.drain(Some(save));
    assert_eq!((ends.last(), full), (Some(&60), 15), "{ends:?}");
    assert!(w.tiers.write_back(&mut w.cache).unwrap().is_none());
    assert_eq!((w.below(long), w.tiers.stats().gone), (60, 0));
}

/// Prompts that share nearly all of their pages count little, but their tokens are kept.
#[test]
fn tokens_of_what_waits_are_bounded() {
    let mut w = World::new(Write::Back);
    let shared = words(1, 100);
    let mut back = 0;
    for question in 0..40 {
        let prompt = [&shared[..], &words(2 + question, 6)].concat();
        w.serve(&prompt);
        assert!(w.save(&prompt, 100, false).is_none());
        while let Some((save, _)) = w.tiers.write_back(&mut w.cache).unwrap() {
            back += 1;
            w.drain(Some(save));
        }
    }
    assert!(back > 30, "{back} of 40 prompts of 104 tokens went down, above them there is room for 256");
}

/// Two requests go on differently from a prompt whose boundaries still go down: one follows, the other has a way of its own.
#[test]
fn what_goes_on_differently_does_not_follow() {
    let mut w = World::new(Write::Through);
    let prompt = words(1, 30);
    let longer = [&prompt[..], &words(2, 18)].concat();
    let other = [&prompt[..], &words(3, 6)].concat();
    w.serve(&prompt);
    let first = w.save(&prompt, 0, false);
    w.serve(&longer);
    assert!(w.save(&longer, 28, true).is_none(), "it follows");
    w.serve(&other);
    let second = w.save(&other, 28, true);
    assert!(second.is_some(), "it does not");
    let mut ways = vec![first, second];
    while ways.iter().any(Option::is_some) {
        ways = ways.into_iter().map(|save| save.and_then(|save| w.saved(save, true))).collect();
    }
    w.idle();
    assert_eq!((w.below(&prompt), w.below(&longer), w.below(&other)), (28, 44, 32));
}
