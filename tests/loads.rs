//! Rows that come from another tier, each rule as the shortest story that shows it; what the state machine found among them.
#![cfg(target_os = "linux")]

mod model;

use mimo_cache::cache::{Cache, FillOut, LoadOptions, Record};
use mimo_cache::error::{Error, PoolName};
use mimo_cache::policy::kind;
use model::script::{join, words};
use model::{Op, Setup, World};

fn roomy() -> World {
    World::new(Setup::roomy(4, 6, 2))
}

/// A load up to the last boundary of what is known, with the reader's own MTP rows.
fn load_all(w: &mut World, i: usize) -> u64 {
    let (s, page) = (&w.seqs[i], u64::from(w.setup.page));
    let boundaries = s.known() / page - s.committed / page;
    w.load(i, boundaries as u8 - 1, 0, false).expect("room for it")
}

#[test]
fn what_came_is_found_by_the_next_prompt() {
    let mut w = roomy();
    let prompt = words(1, 42);
    let (i, report) = w.start(&prompt, 4);
    assert_eq!(report.delivered, 0);
    let missing = w.cache.missing(w.seqs[i].id, 40).unwrap();
    assert_eq!((missing.full, missing.swa), (0..10, vec![8, 9]), "full pages, and the window of 6 tokens only");
    let id = w.load(i, 9, 0, false).unwrap();
    assert_eq!(w.seqs[i].committed, 40, "it stands there at once");
    w.load_done(id, true);
    w.audit();
    let report = w.cache.report(w.seqs[i].id).unwrap();
    assert_eq!((report.promised, report.delivered, report.misses.total()), (40, 40, 2));
    assert_eq!(w.find(&join(&[&prompt[..40], &words(2, 3)])).usable, 40, "published, with a checkpoint");
    w.prefill(i, 16);
    w.finish(i);
    w.close();
}

#[test]
fn slots_are_given_while_rows_come_and_nothing_is_committed() {
    let mut w = roomy();
    let (i, _) = w.start(&words(1, 42), 4);
    let id = load_all(&mut w, i);
    assert!(w.reserve(i, 2));
    w.fill(&[i], 0, true);
    let seq = w.seqs[i].id;
    for refused in [w.cache.commit(seq, 2, &[]), w.cache.park(seq, true), w.cache.fork(seq, 1, 0).map(drop)] {
        let Err(Error::State { state, .. }) = refused else { panic!("{refused:?}") };
        assert_eq!(state, "loading");
    }
    assert!(w.cache.missing(seq, 40).is_err(), "one load at a time");
    assert_eq!(w.find(&words(1, 42)).usable, 0, "nothing is found before it is there");
    w.load_done(id, true);
    w.retire();
    w.close();
}

#[test]
fn a_load_that_fails_leaves_the_sequence_where_it_stood() {
    let mut w = roomy();
    let shared = words(1, 24);
    w.turn(&join(&[&shared, &words(2, 3)]), 1);
    let (i, report) = w.start(&join(&[&shared, &words(3, 30)]), 4);
    assert_eq!(report.delivered, 24);
    let before = (w.seqs[i].committed, w.seqs[i].full_write_from, w.seqs[i].swa_write_from);
    let id = load_all(&mut w, i);
    assert!(w.reserve(i, 1));
    w.fill(&[i], 0, true);
    w.load_done(id, false);
    w.audit();
    assert_eq!((w.seqs[i].committed, w.seqs[i].full_write_from, w.seqs[i].swa_write_from), before);
    let report = w.cache.report(w.seqs[i].id).unwrap();
    assert_eq!((report.delivered, report.misses.total()), (24, 30), "hits and misses as before");
    w.prefill(i, 16);
    w.finish(i);
    w.close();
}

#[test]
fn pages_of_an_aborted_load_are_free_when_it_is_over() {
    let mut w = roomy();
    let (i, _) = w.start(&words(1, 42), 4);
    let id = load_all(&mut w, i);
    w.abort(i);
    w.audit();
    let waiting = w.cache.stats();
    assert_eq!((waiting.full.quarantined, waiting.swa.quarantined), (10, 2), "bytes may still come");
    w.load_done(id, true);
    w.audit();
    assert_eq!(w.cache.stats().full.quarantined, 0);
    assert_eq!(w.find(&words(1, 42)).usable, 0);
    w.close();
}

#[test]
fn records_are_as_many_as_pages_and_no_longer_than_heads_reach() {
    let mut w = roomy();
    let (i, _) = w.start(&words(1, 42), 4);
    let seq = w.seqs[i].id;
    let mut load = |records: &[Record]| {
        let options = LoadOptions { to: 40, kinds: kind::PROMPT_END, records, keep_records: false };
        w.cache.load(seq, &options).unwrap_err().to_string()
    };
    assert_eq!(load(&[]), "number of records is 0, allowed is 2, one for each missing SWA page");
    let long = Record::from_slice(&[1, 2, 3]);
    assert_eq!(load(&[long.clone(), long]), "tokens in a record is 3, allowed is at most 2");
    for to in [0, 3, 41, 44] {
        assert!(w.cache.missing(seq, to).is_err(), "{to} is no boundary of 42 tokens");
    }
    w.close();
}

/// What the window that it may go back to holds was not counted, so that a chunk took more scratch than there is.
#[test]
fn the_window_to_go_back_to_counts_while_rows_come() {
    let mut setup = Setup::roomy(1, 3, 0);
    (setup.swa_pages, setup.scratch) = (setup.quota() + 12, 3);
    let mut w = World::new(setup);
    w.turn(&words(1, 10), 0);
    let (i, _) = w.start(&join(&[&words(1, 9), &words(2, 20)]), 4);
    let id = w.load(i, 10, 0, false).expect("room for it");
    let seq = w.seqs[i].id;
    let most = w.cache.reservable(seq).unwrap();
    assert!(most < 9, "{most} slots beside two windows");
    assert!(w.reserve(i, most));
    w.audit();
    let Err(Error::OutOfPages(short)) = w.cache.reserve(seq, 9) else { panic!("more than the scratch pages") };
    assert_eq!(short.pool, PoolName::Scratch);
    w.load_done(id, true);
    w.audit();
    w.close();
}

/// Tokens that became known after `open` were promised to nobody: a load up to them must not take what others were.
#[test]
fn a_load_takes_nothing_that_others_were_promised() {
    let mut setup = Setup::roomy(1, 0, 0);
    (setup.full_pages, setup.swa_pages, setup.scratch) = (12, 0, 0);
    let mut w = World::new(setup);
    let (i, _) = w.start(&words(1, 4), 0);
    w.start(&words(2, 8), 0);
    let seq = w.seqs[i].id;
    w.cache.commit(seq, 0, &words(3, 4)).unwrap();
    w.seqs[i].learn(&words(3, 4));
    let options = LoadOptions { to: 8, kinds: 0, records: &[], keep_records: false };
    assert!(matches!(w.cache.load(seq, &options), Err(Error::OutOfPages(_))), "four pages more than it was promised");
    w.audit();
    w.close();
}

/// A window with a copy that no plan contained yet was given up, its page went to the next load, and the copy was run
/// over what had come.
#[test]
fn copies_of_a_window_that_is_given_up_are_not_run() {
    let mut w = World::new(Setup::roomy(4, 6, 2));
    let shared = words(1, 24);
    w.turn(&join(&[&shared, &words(2, 3)]), 0);
    // The record of the window's last page is the other continuation's: `open` asks for a copy.
    let (i, report) = w.start(&join(&[&shared, &words(3, 40)]), 4);
    assert_eq!(report.delivered, 24);
    let first = w.load(i, 4, 0, false).unwrap();
    w.load_done(first, true);
    w.audit();
    load_all(&mut w, i);
    w.fill(&[], 0, true);
    w.audit();
    w.apply(Op::LoadDone { which: 0, ok: true });
    w.prefill(i, 8);
    w.finish(i);
    w.close();
}

/// Forks have their parent's report; what they load was counted as a hit of the parent's prompt once for each.
#[test]
fn what_forks_load_is_no_hit_of_their_parent() {
    let mut w = World::new(Setup::roomy(4, 3, 0));
    let (i, _) = w.start(&words(1, 30), 8);
    w.apply(Op::Fork { seq: i as u8, m: 1, credit: 8 });
    for at in 1..w.seqs.len() {
        let id = load_all(&mut w, at);
        w.load_done(id, true);
        w.audit();
    }
    assert_eq!(w.cache.stats().hit_tokens, 0);
    w.close();
}

#[test]
fn what_is_lent_stays_until_it_is_given_back() {
    let mut setup = Setup::roomy(4, 6, 0);
    (setup.full_pages, setup.swa_pages, setup.scratch) = (12, 24, 8);
    let mut w = World::new(setup);
    w.turn(&words(1, 18), 0);
    let prefix = words(1, 18);
    let key = mimo_cache::key::Key::default();
    let lent = w.cache.lend((&prefix, &key, &[]), 0..4, &[2, 3]).unwrap().expect("it is there");
    assert_eq!((lent.full.len(), lent.swa.len(), lent.records.len()), (4, 2, 2));
    for topic in 2..6 {
        w.turn(&words(topic, 20), 0);
    }
    assert_eq!(w.find(&prefix).usable, 16, "evicted under a loan");
    w.cache.move_done(lent.id).unwrap();
    for topic in 6..10 {
        w.turn(&words(topic, 40), 0);
    }
    assert_eq!(w.find(&prefix).usable, 0);
    assert!(w.cache.lend((&prefix, &key, &[]), 0..4, &[2, 3]).unwrap().is_none(), "it is gone");
    w.close();
}

/// What a step that still runs writes is read by later steps, which come after it, and by nobody else.
#[test]
fn what_a_step_still_writes_is_not_lent() {
    let mut setup = Setup::roomy(4, 6, 0);
    (setup.full_pages, setup.swa_pages, setup.scratch) = (40, 40, 8);
    let mut w = World::new(setup);
    let prompt = words(1, 18);
    let key = mimo_cache::key::Key::default();
    let mut request = w.cache.request(prompt.clone(), Default::default()).unwrap();
    let seq = w.cache.open(&mut request, 0).unwrap();
    w.cache.reserve(seq, 18).unwrap();
    let (mut full, mut swa, mut base, mut lens) = ([0; 8], [0; 8], [0], [0]);
    let mut fill = |cache: &mut Cache, step| {
        let out = FillOut {
            full: &mut full,
            full_width: 8,
            swa: &mut swa,
            swa_width: 8,
            swa_base: Some(&mut base),
            lens: &mut lens,
        };
        cache.fill(step, &[seq], out).unwrap();
    };
    fill(&mut w.cache, 1);
    w.cache.commit(seq, 18, &[]).unwrap();
    assert!(w.cache.lend((&prompt, &key, &[]), 0..4, &[2, 3]).unwrap().is_none(), "step 1 may still write");
    w.cache.retire(1).unwrap();
    let lent = w.cache.lend((&prompt, &key, &[]), 0..4, &[2, 3]).unwrap().expect("it is final");
    w.cache.move_done(lent.id).unwrap();
    w.cache.finish(seq).unwrap();
}
