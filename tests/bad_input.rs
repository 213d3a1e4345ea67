//! Bad input to the Rust API: a typed error that names the value and what is allowed, the cache as it was, integrity
//! kept.

mod model;

use mimo_cache::cache::{Cache, CacheConfig, Commit, FillOut, RequestOptions, SeqId};
use mimo_cache::error::{Error, Result};
use mimo_cache::key::{Key, MAX_NAME, Span};
use model::script::words;
use model::{Setup, World};

/// A world with cached pages, an open sequence (0) with a running step, and a parked one (1).
fn world() -> World {
    let mut w = World::new(Setup::roomy(4, 6, 2));
    w.turn(&words(1, 30), 3);
    let (i, _) = w.start(&words(2, 21), 10);
    w.prefill(i, 8);
    assert!(w.reserve(i, 3));
    w.fill(&[i], 0, true);
    let (j, _) = w.start(&words(3, 10), 0);
    w.prefill(j, 8);
    w.run(model::Op::Park { seq: 1, store: true });
    w.audit();
    w
}

/// Makes a bad call; the cache must not change. Returns the error.
fn refused<T>(w: &mut World, what: &str, call: impl FnOnce(&mut Cache) -> Result<T>) -> Error {
    let face = |w: &World| format!("{:?}{}{:?}", w.cache.stats(), w.cache.dump_text(), w.cache.snapshot());
    let before = face(w);
    let Err(error) = call(&mut w.cache) else { panic!("{what} was accepted") };
    assert_eq!(face(w), before, "{what} changed the cache");
    w.audit();
    let text = error.to_string();
    assert!(text.len() > 20 && text.len() < 600, "{what}: {text}");
    error
}

/// An [`Error::Invalid`] that repeats the value.
fn invalid<T>(w: &mut World, what: &str, value: &str, call: impl FnOnce(&mut Cache) -> Result<T>) {
    let error = refused(w, what, call);
    assert!(matches!(error, Error::Invalid { .. }), "{what}: {error:?}");
    let text = error.to_string();
    assert!(text.contains(value) && text.contains("allowed"), "{what}: {text}");
}

#[test]
fn layouts() {
    let good = Setup::roomy(4, 6, 2).config();
    assert!(Cache::new(good.clone()).is_ok());
    type Change = fn(&mut CacheConfig);
    let bad: Vec<(&str, &str, Change)> = vec![
        ("page size 0", "0", |c| c.page_size = 0),
        ("page size 3", "3", |c| c.page_size = 3),
        ("page size 2048", "2048", |c| c.page_size = 2048),
        ("window", "1048577", |c| c.window = (1 << 20) + 1),
        ("heads", "9", |c| c.n_mtp = 9),
        ("no pool at all", "0", |c| (c.full_pages, c.swa_pages, c.scratch_pages) = (0, 0, 0)),
        ("heads without an SWA group", "2", |c| (c.swa_pages, c.scratch_pages) = (0, 0)),
        ("more scratch than pages", "401", |c| c.scratch_pages = 401),
    ];
    for (what, value, change) in bad {
        let mut config = good.clone();
        change(&mut config);
        let Err(error) = Cache::new(config) else { panic!("{what} was accepted") };
        assert!(matches!(error, Error::Invalid { .. }) && error.to_string().contains(value), "{what}: {error}");
    }
}

#[test]
fn prompts_and_names() {
    let mut w = world();
    let request = |tokens: Vec<u32>, options: RequestOptions| move |c: &mut Cache| c.request(tokens, options);
    invalid(&mut w, "an empty prompt", "0", request(vec![], RequestOptions::default()));
    invalid(&mut w, "an empty lookup", "0", |c| c.match_tokens(&[], &Key::default(), &[]));
    invalid(&mut w, "an empty question", "0", |c| c.explain(&[], &Key::default(), &[]));
    let big = Key { salt: vec![1; 1 << 20], ..Key::default() };
    let long = Key { adapter: vec![1; MAX_NAME + 1], ..Key::default() };
    invalid(
        &mut w,
        "a salt of 1 MB",
        "1048576",
        request(vec![1], RequestOptions { key: big.clone(), ..Default::default() }),
    );
    invalid(&mut w, "a long adapter", "4097", request(vec![1], RequestOptions { key: long, ..Default::default() }));
    invalid(&mut w, "a salt of 1 MB", "1048576", |c| c.match_tokens(&[1], &big, &[]));
    invalid(&mut w, "a salt of 1 MB", "1048576", |c| c.pin(&[1], &big, &[], 5));
    invalid(&mut w, "weights of 1 MB", "1048576", |c| c.set_weights(&vec![0; 1 << 20]));
    // One token is a prompt.
    let mut one = w.cache.request(vec![u32::MAX], RequestOptions::default()).unwrap();
    assert_eq!(w.cache.peek(&mut one), Default::default());
}

#[test]
fn spans() {
    let mut w = world();
    let span = |start, len| Span { start, len, hash: [1; 32] };
    let bad = [
        ("overlapping", vec![span(0, 3), span(2, 2)], "(2, 2)"),
        ("unsorted", vec![span(4, 2), span(0, 2)], "(0, 2)"),
        ("empty", vec![span(1, 0)], "(1, 0)"),
        ("beyond the end", vec![span(7, 4)], "(7, 4)"),
        ("overflowing", vec![span(u64::MAX, 2)], "(18446744073709551615, 2)"),
    ];
    for (what, spans, value) in bad {
        let options = RequestOptions { spans: spans.clone(), ..RequestOptions::default() };
        invalid(&mut w, what, value, |c| c.request(words(5, 10), options));
        invalid(&mut w, what, value, |c| c.match_tokens(&words(5, 10), &Key::default(), &spans));
        invalid(&mut w, what, value, |c| c.explain(&words(5, 10), &Key::default(), &spans));
        invalid(&mut w, what, value, |c| c.pin(&words(5, 10), &Key::default(), &spans, 1));
    }
}

#[test]
fn commits() {
    let mut w = world();
    let (open, known) = (w.seqs[0].id, w.seqs[0].known());
    assert_eq!((w.seqs[0].committed, w.seqs[0].reserved, known), (21, 3, 22));
    invalid(&mut w, "more rows than reserved", "4", |c| c.commit(open, 4, &[1, 2, 3]));
    invalid(&mut w, "all rows there are", "18446744073709551615", |c| c.commit(open, u64::MAX, &[]));
    invalid(&mut w, "more rows than known tokens", "3", |c| c.commit(open, 3, &[7]));
    let good = Commit { seq: open, computed: 1, tokens: &[5] };
    let (other, _) = w.start(&words(8, 9), 0);
    let bad = Commit { seq: w.seqs[other].id, computed: 9, tokens: &[] };
    invalid(&mut w, "a batch with one bad commit", "9", |c| c.commit_many(&[good, bad]));
    refused(&mut w, "a batch that names a sequence twice", |c| c.commit_many(&[good, Commit { computed: 3, ..good }]));
    assert_eq!(w.cache.tokens(open).unwrap().len(), 22, "nothing was learned");
}

/// Every call on a sequence that has ended, one that never was, or one that is parked.
#[test]
fn calls_that_do_not_fit_the_state() {
    let mut w = world();
    let (open, parked) = (w.seqs[0].id, w.seqs[1].id);
    let state = |w: &mut World, what: &str, id: SeqId, live: bool| {
        type Call = Box<dyn FnOnce(&mut Cache) -> Result<()>>;
        let mut calls: Vec<(&str, Call)> = vec![
            ("reserve", Box::new(move |c| c.reserve(id, 1))),
            ("reservable", Box::new(move |c| c.reservable(id).map(drop))),
            ("trim", Box::new(move |c| c.trim(id).map(drop))),
            ("commit", Box::new(move |c| c.commit(id, 0, &[1]))),
            ("fork", Box::new(move |c| c.fork(id, 1, 0).map(drop))),
            ("park", Box::new(move |c| c.park(id, true))),
        ];
        if !live {
            calls.push(("resume", Box::new(move |c| c.resume(id, 0))));
            calls.push(("finish", Box::new(move |c| c.finish(id))));
            calls.push(("abort", Box::new(move |c| c.abort(id))));
            calls.push(("report", Box::new(move |c| c.report(id).map(drop))));
            calls.push(("info", Box::new(move |c| c.info(id).map(drop))));
            calls.push(("tokens", Box::new(move |c| c.tokens(id).map(drop))));
        }
        for (call, f) in calls {
            let error = refused(w, &format!("{call} of {what}"), f);
            assert!(matches!(error, Error::State { .. }), "{call} of {what}: {error:?}");
        }
        let step = w.next_step;
        let error = refused(w, &format!("fill of {what}"), |c| fill(c, step, &[id]));
        assert!(matches!(error, Error::State { .. }), "fill of {what}: {error:?}");
    };
    state(&mut w, "a parked sequence", parked, true);
    let error = refused(&mut w, "resume of an open sequence", |c| c.resume(open, 0));
    assert!(matches!(error, Error::State { .. }), "{error:?}");
    w.finish(0);
    state(&mut w, "a finished sequence", open, false);
    w.abort(0);
    state(&mut w, "an aborted sequence", parked, false);
    // Its place is taken by another one now; the old name still names nobody.
    w.start(&words(9, 5), 0);
    w.start(&words(10, 5), 0);
    state(&mut w, "a finished sequence", open, false);
}

fn fill(c: &mut Cache, step: u64, seqs: &[SeqId]) -> Result<()> {
    let n = seqs.len();
    let (mut full, mut swa, mut base, mut lens) = (vec![0; n * 64], vec![0; n * 64], vec![0; n], vec![0; n]);
    let (full, swa, swa_base, lens) = (&mut full[..], &mut swa[..], Some(&mut base[..]), &mut lens[..]);
    c.fill(step, seqs, FillOut { full, full_width: 64, swa, swa_width: 64, swa_base, lens }).map(drop)
}

#[test]
fn steps_and_moves_out_of_order() {
    let mut w = world();
    let (open, next) = (w.seqs[0].id, w.next_step);
    let order = |w: &mut World, what: &str, call: &mut dyn FnMut(&mut Cache) -> Result<()>| {
        let error = refused(w, what, call);
        assert!(matches!(error, Error::Order { .. }), "{what}: {error:?}");
    };
    order(&mut w, "a step filled twice", &mut |c| fill(c, next - 1, &[open]));
    order(&mut w, "a step left out", &mut |c| fill(c, next + 1, &[open]));
    order(&mut w, "a step retired before it was filled", &mut |c| c.retire(next));
    order(&mut w, "a step retired long ago", &mut |c| c.retire(1));
    order(&mut w, "a move that never was", &mut |c| c.move_done(12345));
    w.fill(&[0], 0, true);
    order(&mut w, "the second of two running steps retired first", &mut |c| c.retire(next));
    w.retire();
    w.retire();
    order(&mut w, "a step retired twice", &mut |c| c.retire(next));
    w.finish(0);
    w.close();
}

#[test]
fn buffers_of_the_wrong_size() {
    let mut w = world();
    let (open, step) = (w.seqs[0].id, w.next_step);
    // 24 tokens of page 4 need 6 full pages; the window, two heads and three slots reach over 4 SWA pages.
    let bad = [
        ("a short full row", 5, 5, 8, 8, 1, 1),
        ("a full buffer of half a row", 4, 8, 8, 8, 1, 1),
        ("a short SWA row", 8, 8, 1, 1, 1, 1),
        ("an SWA buffer of half a row", 8, 8, 4, 8, 1, 1),
        ("no base", 8, 8, 8, 8, 0, 1),
        ("no lens", 8, 8, 8, 8, 1, 0),
    ];
    for (what, full_len, full_width, swa_len, swa_width, base, lens) in bad {
        let (mut full, mut swa) = (vec![-1; full_len], vec![-1; swa_len]);
        let (mut base, mut lens) = (vec![-1; base], vec![-1; lens]);
        let error = refused(&mut w, what, |c| {
            let (full, swa, swa_base, lens) = (&mut full[..], &mut swa[..], Some(&mut base[..]), &mut lens[..]);
            c.fill(step, &[open], FillOut { full, full_width, swa, swa_width, swa_base, lens })
        });
        assert!(matches!(error, Error::Invalid { .. }), "{what}: {error:?}");
        assert!(full.iter().chain(&swa).chain(&base).chain(&lens).all(|v| *v == -1), "{what}: buffers stay untouched");
    }
    // The step was not started by any of these.
    w.fill(&[0], 0, true);
    w.close();
}

#[test]
fn a_sequence_twice_in_a_step() {
    let mut w = world();
    let (open, step) = (w.seqs[0].id, w.next_step);
    refused(&mut w, "a sequence named twice in a step", |c| fill(c, step, &[open, open]));
}

#[test]
fn numbers_at_the_ends_of_their_range() {
    let mut w = world();
    let open = w.seqs[0].id;
    for n in [1 << 20, u64::from(u32::MAX), u64::MAX - 21, u64::MAX] {
        refused(&mut w, "a reservation beyond the pool", |c| c.reserve(open, n));
        refused(&mut w, "a fork with a credit beyond the pool", |c| c.fork(open, 2, n));
        let mut request = w.cache.request(words(4, 9), RequestOptions::default()).unwrap();
        refused(&mut w, "a credit beyond the pool", |c| c.open(&mut request, n));
        assert!(!request.is_opened());
    }
    refused(&mut w, "a fork of none", |c| c.fork(open, 0, 0));
    refused(&mut w, "a fork of very many", |c| c.fork(open, usize::MAX, 0));
    w.cache.set_tenant_share(u32::MAX, u64::MAX, 0);
    w.cache.pin(&words(1, 30), &Key::default(), &[], u64::MAX).unwrap();
    w.audit();
}

/// The clock comes in from outside; one that runs backwards must not undo anything.
#[test]
fn a_clock_that_runs_backwards() {
    let mut w = world();
    w.cache.set_now(1_000);
    let pinned = w.cache.pin(&words(1, 30), &Key::default(), &[], 50).unwrap();
    assert!(pinned > 0);
    w.cache.set_now(10);
    w.audit();
    w.cache.set_now(u64::MAX);
    w.audit();
}

#[test]
fn an_opened_request_is_used_up() {
    let mut w = world();
    let mut request = w.cache.request(words(4, 9), RequestOptions::default()).unwrap();
    let id = w.cache.open(&mut request, 0).unwrap();
    let face = (w.cache.dump_text(), format!("{:?}", w.cache.stats()));
    assert!(request.is_opened());
    let error = w.cache.open(&mut request, 0).unwrap_err();
    assert!(matches!(error, Error::State { .. }), "{error:?}");
    assert_eq!((w.cache.dump_text(), format!("{:?}", w.cache.stats())), face);
    w.cache.abort(id).unwrap();
    w.cache.check_integrity().unwrap();
}
