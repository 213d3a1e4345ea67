//! Faults of this cache that the state machine found, each as the shortest story that shows it.

mod model;

use mimo_cache::cache::{Cache, Commit, FillOut, RequestOptions, SeqId};
use mimo_cache::key::Key;
use model::brute::Mirror;
use model::runner::Step;
use model::script::{join, words};
use model::{Op, Prompt, Setup, World};

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
    w.run(Op::Fork { seq: 0, m: 1, credit: 8 });
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
        w.run(Op::Commit { seq: 0, rows: 6, accept: 0, extra: 0, seed: 0 });
        w.audit();
        w.run(Op::Fork { seq: 0, m: 0, credit: 0 });
        w.run(Op::Park { seq: 1, store: true });
        w.audit();
        let (reader, _) = w.start(&prompt, 0);
        w.prefill(reader, 4);
        w.close();
    }
}

/// A fork's copy source was given back by its owner while the copy still counted as a reader. Whoever let go last
/// brought only its own step along, so that the page was free while the owner's step was running.
#[test]
fn a_shared_page_waits_for_the_steps_of_all_who_held_it() {
    let mut w = World::new(Setup::roomy(4, 6, 1));
    w.turn(&words(1, 13), 0);
    let (i, _) = w.start(&join(&[&words(1, 12), &words(2, 3)]), 0);
    w.fill(&[], 0, true);
    w.run(Op::Fork { seq: 0, m: 0, credit: 0 });
    w.audit();
    let pages = w.cache.stats().swa;
    w.abort(i);
    w.abort(0);
    w.audit();
    let (n, _) = w.start(&words(3, 40), 0);
    assert!(w.reserve(n, 40), "{pages:?}");
    w.close();
}

/// A page copied at `open` whose early rows were outside the reader's window had only its late MTP rows rebuilt. When
/// the tree lost the original the copy was published in its place, with a record that promised all rows.
#[test]
fn a_copy_with_rows_outside_the_window_is_not_published() {
    let mut setup = Setup::roomy(4, 5, 3);
    (setup.swa_pages, setup.scratch) = (20, 6);
    let mut w = World::new(setup);
    let prompt = words(1, 8);
    let reach = |w: &World| w.find(&join(&[&prompt, &words(50, 1)])).usable;
    // Ends right after its only page, so that the page's record is short.
    w.turn(&prompt[..4], 0);
    w.turn(&join(&[&prompt, &words(2, 1)]), 0);
    let (reader, report) = w.start(&join(&[&prompt, &words(3, 2)]), 9);
    assert_eq!(report.matched.usable, 8);
    w.prefill(reader, 16);
    let mut topic = 10;
    while reach(&w) > 0 {
        w.turn(&words(topic, 9), 0);
        topic += 1;
    }
    w.run(Op::Park { seq: 0, store: true });
    w.audit();
    for len in [5, 6, 7, 8] {
        let (i, _) = w.start(&prompt[..len], 0);
        w.prefill(i, 16);
        w.abort(i);
        w.audit();
    }
    w.close();
}

/// A page that a move still wrote was shared by count with a fork, which outlived its parent, published the page and
/// ended; the tree knew nothing of the move.
#[test]
fn who_takes_over_a_page_waits_for_its_moves() {
    let mut setup = Setup::roomy(2, 0, 0);
    setup.full_pages = 14;
    let mut w = World::new(setup);
    let (i, _) = w.start(&words(1, 3), 6);
    w.prefill(i, 8);
    w.run(Op::Fork { seq: 0, m: 0, credit: 4 });
    w.run(Op::TakeCopies);
    w.audit();
    w.decode(1, 2);
    w.run(Op::Fork { seq: 1, m: 0, credit: 4 });
    w.audit();
    w.abort(1);
    w.decode(1, 2);
    w.finish(1);
    w.abort(0);
    w.audit();
    let (n, _) = w.start(&words(2, 21), 0);
    for _ in 0..12 {
        w.step(&[n], Step { chunk: 2, accept: 0, seed: 0, compact: true, many: true });
        w.retire();
        w.audit();
    }
    w.run(Op::MoveDone { which: 0 });
    w.prefill(n, 4);
    w.close();
}

/// A fork of a fork, and then both end before any step: the copy into the first one's page stayed in the plan after its
/// last reader had gone, and wrote over a page that was somebody else's by then.
#[test]
fn a_copy_nobody_reads_any_more_is_not_run() {
    let mut w = World::new(Setup::roomy(2, 3, 2));
    let (i, _) = w.start(&words(1, 3), 20);
    w.prefill(i, 8);
    for seq in [0, 1] {
        w.run(Op::Fork { seq, m: 0, credit: 9 });
        w.audit();
    }
    w.abort(1);
    w.audit();
    w.abort(1);
    w.audit();
    let (n, _) = w.start(&words(2, 20), 0);
    w.fill(&[], 0, true);
    assert!(w.reserve(n, 20));
    w.close();
}

/// Copies that run outside a step: a fork that was parked before the move was done left its page to the tree, from where
/// it was evicted and handed out while the move could still write it.
#[test]
fn a_page_that_a_move_writes_is_not_handed_on() {
    let mut setup = Setup::roomy(2, 3, 2);
    (setup.swa_pages, setup.scratch) = (26, 2);
    let mut w = World::new(setup);
    let (i, _) = w.start(&words(1, 6), 0);
    w.step(&[i], Step { chunk: 5, accept: 0, seed: 0, compact: true, many: true });
    w.retire();
    w.audit();
    w.run(Op::Fork { seq: 0, m: 0, credit: 0 });
    w.run(Op::TakeCopies);
    w.audit();
    w.run(Op::Park { seq: 1, store: true });
    w.audit();
    for topic in 2..12 {
        w.turn(&words(topic, 12), 0);
    }
    w.close();
}

/// A page that a retention rule wanted was dropped while room was made for it in the tenant's own share. (As the state
/// machine left it; the story is in the order of the oldest checkpoints.)
#[test]
fn making_room_in_a_share_does_not_break_the_window_it_is_for() {
    let setup = Setup {
        full_pages: 16,
        swa_pages: 17,
        scratch: 1,
        retention: "branch+seq_end+dense2:16+stride8+sup1",
        alphabet: 2,
        ghosts: 0,
        ..Setup::roomy(1, 6, 0)
    };
    let ops = [
        serve(0, 0, 147, 212, 56),
        serve(0, 0, 0, 0, 0),
        Op::TenantShare { tenant: 84, full: 74, swa: 1 },
        Op::Fill { mask: 0, seed: 0, compact: true },
        Op::Advance { mask: 0, chunk: 0, accept: 0, seed: 0, shape: 160 },
        serve(9, 170, 183, 0, 66),
        serve(49, 0, 0, 0, 64),
        serve(88, 0, 37, 5, 29),
        serve(188, 43, 110, 0, 71),
    ];
    replay(setup, &ops);
}

/// A fork whose parent kept duplicates of the tree's pages was promised more pages than the pool has.
#[test]
fn a_fork_counts_the_duplicates_of_its_parent() {
    let ask = |tail, flags| Op::Request { prompt: Prompt { base: 0, keep: 0, tail, taste: 0, flags } };
    let ops = [
        ask(128, 0),
        ask(22, 1),
        ask(22, 0),
        ask(0, 0),
        Op::Open { request: 32, credit: 26 },
        Op::Advance { mask: 7, chunk: 25, accept: 0, seed: 0, shape: 0 },
        Op::Open { request: 0, credit: 9 },
        serve(0, 0, 22, 0, 21),
        Op::Open { request: 110, credit: 229 },
        Op::Fork { seq: 9, m: 66, credit: 166 },
    ];
    replay(Setup::decode([1, 0, 56, 11, 0, 247, 117, 0, 0, 60]), &ops);
}

/// One call dropped a page for room in one tenant's share and published the same prefix for another tenant. It told of
/// the new page before it told that the old one had gone, so that routers forgot a page that was there.
#[test]
fn a_page_dropped_and_published_in_one_call_is_told_in_that_order() {
    let mut c = Cache::new(Setup::roomy(2, 0, 0).config()).unwrap();
    let mut step = 0;
    let mut start = |c: &mut Cache, topic: u32, tenant: u32| computed(c, &mut step, words(topic, 2), tenant);
    c.set_tenant_share(0, 1, 100);
    let first = start(&mut c, 1, 0);
    let same = start(&mut c, 1, 1);
    let other = start(&mut c, 2, 0);
    c.commit(first, 2, &[5]).unwrap();
    c.finish(first).unwrap();
    let commit = |seq| Commit { seq, computed: 2, tokens: &[5] };
    c.commit_many(&[commit(other), commit(same)]).unwrap();
    let mut mirror = Mirror::default();
    assert!(mirror.fold(c.drain_events(usize::MAX)));
    mirror.check(c.snapshot());
    assert_eq!(c.stats().full_evicted, 1);
}

/// Pages that forks share by count were given up for the tree's by one of them. The others kept them, and the pool had
/// promised the room that both of a kind now took.
#[test]
fn shared_pages_are_not_given_up_for_the_trees() {
    let mut setup = Setup::roomy(2, 0, 0);
    setup.full_pages = 10;
    let mut c = Cache::new(setup.config()).unwrap();
    let mut step = 0;
    c.set_tenant_share(0, 0, 0);
    let parent = computed(&mut c, &mut step, words(1, 8), 0);
    let same = computed(&mut c, &mut step, words(1, 8), 1);
    c.commit(parent, 8, &[5]).unwrap();
    let child = c.fork(parent, 1, 0).unwrap()[0];
    c.commit(same, 8, &[5]).unwrap();
    c.finish(same).unwrap();
    let mut other = c.request(words(2, 9), RequestOptions::default()).unwrap();
    let other = c.open(&mut other, 0).unwrap();
    for seq in [parent, child] {
        c.commit(seq, 0, &[6]).unwrap();
        c.check_integrity().unwrap();
    }
    c.reserve(other, 9).unwrap();
    c.check_integrity().unwrap();
}

/// A sequence whose prompt is computed in a step of its own, which was retired; nothing is committed yet.
fn computed(c: &mut Cache, step: &mut u64, tokens: Vec<u32>, tenant: u32) -> SeqId {
    let n = tokens.len() as u64;
    let mut request = c.request(tokens, RequestOptions { tenant, ..RequestOptions::default() }).unwrap();
    let seq = c.open(&mut request, 0).unwrap();
    c.reserve(seq, n).unwrap();
    *step += 1;
    let (mut full, mut swa, mut base, mut lens) = ([0; 8], [0; 8], [0; 1], [0; 1]);
    let (full, swa, swa_base, lens) = (&mut full[..], &mut swa[..], Some(&mut base[..]), &mut lens[..]);
    c.fill(*step, &[seq], FillOut { full, full_width: 8, swa, swa_width: 8, swa_base, lens }).unwrap();
    c.retire(*step).unwrap();
    seq
}

fn serve(base: u8, keep: u8, tail: u8, taste: u8, shape: u8) -> Op {
    Op::Serve { prompt: Prompt { base, keep, tail, taste, flags: 0 }, shape }
}

fn replay(setup: Setup, ops: &[Op]) {
    let mut w = World::new(setup);
    ops.iter().for_each(|op| w.apply(*op));
    w.close();
}
