//! Faults of this cache that the state machine found, each as the shortest story that shows it.

mod model;

use mimo_cache::key::Key;
use model::script::{join, words};
use model::{Setup, World};

/// Heads that reach further back than a page is long: the list of MTP rows to rebuild in the copied page named rows of
/// the page before it, so that a runner would have written those over the page's own.
#[test]
fn rebuilt_rows_lie_in_the_copied_page() {
    for (page, window, n_mtp) in [(1, 8, 3), (2, 7, 3), (1, 2, 3)] {
        let mut w = World::new(Setup::roomy(page, window, n_mtp));
        w.turn(&words(1, 20), 0);
        w.turn(&join(&[&words(1, 20), &words(2, 6)]), 0);
        w.close();
    }
}

/// A prompt that is an exact multiple of the page must stay resumable one page before its end. With MTP heads its last
/// page is published a few tokens late, and by then the sequence had let go of the page that this needs.
#[test]
fn an_exact_prompt_keeps_the_page_before_its_window_until_it_is_published() {
    for (window, n_mtp) in [(10, 2), (8, 3), (5, 1)] {
        let mut w = World::new(Setup::roomy(4, window, n_mtp));
        w.turn(&words(1, 28), 2);
        assert_eq!(w.find(&words(1, 28)).usable, 24, "window {window}, {n_mtp} heads");
    }
}

/// A pin on a prefix and then one on its continuation: eviction met the upper node first, found nothing more to unpin
/// there and never ended.
#[test]
fn pins_below_pins_give_way_leaf_first() {
    let mut setup = Setup::roomy(2, 3, 0);
    (setup.full_pages, setup.swa_pages, setup.scratch) = (8, 20, 4);
    let mut w = World::new(setup);
    w.turn(&words(1, 5), 0);
    w.turn(&join(&[&words(1, 4), &words(2, 4)]), 0);
    w.turn(&join(&[&words(1, 4), &words(3, 4)]), 0);
    for len in [5, 9] {
        let tokens = join(&[&words(1, 4), &words(2, 5)]);
        assert!(w.cache.pin(&tokens[..len], &Key::default(), &[], 1_000_000).unwrap() > 0);
        w.audit();
    }
    w.turn(&words(4, 15), 0);
    w.close();
}

/// A tenant's share kept a sequence from publishing, so that its forks shared the pages by count. When there was room
/// again, publishing one of them failed inside the cache.
#[test]
fn pages_that_forks_share_by_count_are_not_published() {
    let mut w = World::new(Setup::roomy(4, 0, 0));
    w.cache.set_tenant_share(0, 0, 0);
    let (i, _) = w.start(&words(1, 9), 8);
    w.prefill(i, 16);
    w.run(model::Op::Fork { seq: 0, m: 1, credit: 8 });
    w.audit();
    w.cache.set_tenant_share(0, u64::MAX, u64::MAX);
    w.decode(i, 6);
    w.finish(i);
    w.audit();
    w.decode(0, 6);
    w.finish(0);
    w.finish(0);
    w.audit();
    w.close();
}

/// A fork that was parked before any step ran: its copied SWA page was published although nobody had filled it, and the
/// next reader got a page of garbage.
#[test]
fn a_page_whose_copy_has_not_run_is_not_published() {
    for full_pages in [0, 40] {
        let mut setup = Setup::roomy(4, 1, 0);
        setup.full_pages = full_pages;
        let mut w = World::new(setup);
        let prompt = words(1, 8);
        let (i, _) = w.start(&prompt, 0);
        let s = w.seqs[i].id;
        w.cache.reserve(s, 5).unwrap();
        w.seqs[i].reserved = 5;
        w.fill(&[i], 0, true);
        w.run(model::Op::Commit { seq: 0, rows: 6, accept: 0, extra: 0, seed: 0 });
        w.audit();
        w.run(model::Op::Fork { seq: 0, m: 0, credit: 0 });
        w.run(model::Op::Park { seq: 1, store: true });
        w.audit();
        let (reader, _) = w.start(&prompt, 0);
        w.prefill(reader, 4);
        w.close();
    }
}
