//! Rules whose breach no wrong token tells: what is not published, what is bounded, what is named anew.

mod model;

use mimo_cache::cache::{Cache, Commit, EventKind, FillOut, PageKey, RequestOptions, SeqId};
use mimo_cache::key::Key;
use model::Setup;
use model::script::{join, words};

/// A cache and the steps it has seen.
struct Engine {
    cache: Cache,
    step: u64,
}

impl Engine {
    fn new(setup: &Setup) -> Engine {
        Engine { cache: Cache::new(setup.config()).expect("a valid layout"), step: 0 }
    }

    fn open(&mut self, tokens: Vec<u32>, options: RequestOptions) -> SeqId {
        let mut request = self.cache.request(tokens, options).expect("a valid prompt");
        self.cache.open(&mut request, 4).expect("room for it")
    }

    /// Computes all that is known, and one token more is sampled.
    fn run(&mut self, seq: SeqId) {
        let info = self.cache.info(seq).expect("an open sequence");
        let n = info.known - info.committed;
        self.cache.reserve(seq, n).expect("room for it");
        self.step += 1;
        let (mut full, mut swa, mut base, mut lens) = ([0; 64], [0; 64], [0; 1], [0; 1]);
        let (full, swa, swa_base, lens) = (&mut full[..], &mut swa[..], Some(&mut base[..]), &mut lens[..]);
        let out = FillOut { full, full_width: 64, swa, swa_width: 64, swa_base, lens };
        self.cache.fill(self.step, &[seq], out).expect("a valid step");
        self.cache.commit_many(&[Commit { seq, computed: n, tokens: &[7] }]).expect("a valid commit");
        self.cache.retire(self.step).expect("the running step");
    }

    fn serve(&mut self, tokens: Vec<u32>, options: RequestOptions) {
        let seq = self.open(tokens, options);
        self.run(seq);
        self.cache.finish(seq).expect("an open sequence");
        self.cache.check_integrity().expect("a sound cache");
    }

    fn cached(&self) -> (u64, u64) {
        let stats = self.cache.stats();
        (stats.full.cached, stats.swa.cached)
    }

    /// Parents of the pages that no other page precedes: the roots.
    fn roots(&mut self) -> Vec<PageKey> {
        let pages = self.cache.snapshot().pages;
        pages.iter().filter(|p| pages.iter().all(|q| q.key != p.parent)).map(|p| p.parent).collect()
    }
}

fn tenant(tenant: u32) -> RequestOptions {
    RequestOptions { tenant, ..RequestOptions::default() }
}

/// A sequence opened with `store` off reads what is there and leaves nothing behind, whichever way it ends.
#[test]
fn a_sequence_that_does_not_store_publishes_nothing() {
    let mut e = Engine::new(&Setup::roomy(2, 4, 1));
    e.serve(words(1, 9), tenant(0));
    let before = e.cached();
    let options = || RequestOptions { store: false, ..RequestOptions::default() };
    e.serve(join(&[&words(1, 8), &words(2, 12)]), options());
    let seq = e.open(words(3, 12), options());
    e.run(seq);
    e.cache.park(seq, true).unwrap();
    e.cache.resume(seq, 2).unwrap();
    e.run(seq);
    let forks = e.cache.fork(seq, 2, 2).unwrap();
    for id in forks.into_iter().chain([seq]) {
        e.cache.finish(id).unwrap();
    }
    e.cache.check_integrity().unwrap();
    assert_eq!(e.cached(), before);
}

/// After `clear` the sequences opened before it publish nothing more, and what they had published goes first.
#[test]
fn a_cleared_namespace_takes_no_more_pages() {
    for all in [false, true] {
        let mut setup = Setup::roomy(2, 4, 0);
        setup.full_pages = 40;
        let mut e = Engine::new(&setup);
        let seq = e.open(words(1, 16), tenant(0));
        e.run(seq);
        let before = e.cached();
        assert!(before.0 > 0);
        e.cache.clear(if all { None } else { Some(Key::default()) }.as_ref());
        e.run(seq);
        e.run(seq);
        e.cache.finish(seq).unwrap();
        assert_eq!(e.cached().0, before.0, "nothing was published after the clear");
        assert_eq!(e.cache.match_tokens(&words(1, 16), &Key::default(), &[]).unwrap().full_kv_match, 0);
        e.serve(words(2, 30), tenant(0));
        e.serve(words(3, 40), tenant(0));
        e.serve(words(2, 31), tenant(0));
        let kept = e.cache.match_tokens(&words(2, 31), &Key::default(), &[]).unwrap();
        assert_eq!(kept.full_kv_match, 30, "the cleared pages went before anything else");
    }
}

/// A namespace has a new root key after `clear`, so that nothing outside mistakes old pages for new ones.
#[test]
fn clear_names_the_namespace_anew() {
    for all in [false, true] {
        let mut e = Engine::new(&Setup::roomy(2, 4, 0));
        e.serve(words(1, 9), tenant(0));
        let old = e.roots();
        e.cache.clear(if all { None } else { Some(Key::default()) }.as_ref());
        assert!(e.roots().is_empty());
        e.serve(words(1, 9), tenant(0));
        let new = e.roots();
        assert_eq!((old.len(), new.len()), (1, 1));
        assert_ne!(old, new);
        let events = e.cache.drain_events(usize::MAX).events;
        let cleared: Vec<_> = events.iter().filter(|x| matches!(x.kind, EventKind::Cleared { .. })).collect();
        assert_eq!(cleared.len(), 1, "one event, however many pages");
        assert_eq!(cleared[0].kind, EventKind::Cleared { root: old[0] });
    }
}

/// A tenant's publications own at most its share, its own oldest ones make room, and others do not pay for it.
#[test]
fn a_tenant_keeps_to_its_share() {
    let mut e = Engine::new(&Setup::roomy(2, 4, 0));
    e.serve(words(100, 21), tenant(2));
    let others = e.cached();
    e.cache.set_tenant_share(1, 12, 6);
    for topic in 1..8 {
        e.serve(words(topic, 17), tenant(1));
        let (full, swa) = e.cached();
        assert!(
            full <= others.0 + 12 && swa <= others.1 + 6,
            "{full} and {swa} pages after {topic}, before {others:?}"
        );
    }
    let find = |e: &Engine, topic, n| e.cache.match_tokens(&words(topic, n), &Key::default(), &[]).unwrap();
    assert_eq!(find(&e, 100, 21).usable, 20, "the other tenant's prompt is whole");
    assert_eq!(find(&e, 7, 17).usable, 16, "the newest of its own too");
    assert_eq!(find(&e, 1, 17).usable, 0, "its oldest went");
}

/// Pins are bounded, go after everything else, refuse nobody a page, and end with their time.
#[test]
fn pins_are_soft_and_bounded() {
    let mut setup = Setup::roomy(2, 4, 0);
    (setup.full_pages, setup.swa_pages, setup.scratch) = (20, 60, 30);
    let mut e = Engine::new(&setup);
    let find = |e: &Engine, topic, n| e.cache.match_tokens(&words(topic, n), &Key::default(), &[]).unwrap();
    e.serve(words(1, 9), tenant(0));
    e.cache.set_now(1_000);
    assert_eq!(e.cache.pin(&words(1, 9), &Key::default(), &[], 500).unwrap(), 8);
    for topic in 2..9 {
        e.serve(words(topic, 20), tenant(0));
    }
    assert_eq!(find(&e, 1, 9).usable, 8, "pinned pages stay while others can go");
    e.serve(words(20, 17), tenant(0));
    let more = e.cache.pin(&words(20, 17), &Key::default(), &[], 500).unwrap_err();
    assert!(more.to_string().contains("at most 4"), "8 pages may be pinned, 4 are: {more}");
    e.cache.set_now(1_600);
    for topic in 30..36 {
        e.serve(words(topic, 20), tenant(0));
    }
    assert_eq!(find(&e, 1, 9).full_kv_match, 0, "its time is over");
    e.serve(words(1, 9), tenant(0));
    e.cache.pin(&words(1, 9), &Key::default(), &[], 500).unwrap();
    e.serve(words(40, 35), tenant(0));
    assert!(find(&e, 1, 9).usable < 8, "who needs the whole pool gets it");
}

/// A match makes the checkpoint it ended on young: what is used stays, what is not goes.
#[test]
fn a_match_keeps_its_checkpoint_young() {
    let mut setup = Setup::roomy(2, 4, 0);
    (setup.swa_pages, setup.scratch) = (40, 24);
    let mut e = Engine::new(&setup);
    let usable = |e: &Engine, topic| e.cache.match_tokens(&words(topic, 10), &Key::default(), &[]).unwrap().usable;
    for topic in 1..4 {
        e.serve(words(topic, 9), tenant(0));
    }
    for topic in 10..17 {
        let seq = e.open(join(&[&words(1, 8), &words(50, 5)]), tenant(0));
        e.cache.abort(seq).unwrap();
        e.serve(words(topic, 9), tenant(0));
    }
    assert_eq!((usable(&e, 1), usable(&e, 2), usable(&e, 3)), (8, 0, 0));
}
