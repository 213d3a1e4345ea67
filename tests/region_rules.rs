//! What a chunk goes through on its way from one pool to the other, one story a test.

mod model;

use mimo_cache::cache::{Cache, Commit, FillOut, Group, RequestOptions, SeqId};
use mimo_cache::key::Key;
use mimo_cache::pool::Region;
use model::script::{join, words};
use model::{Op, Setup, World};

/// Pages of 2 tokens, W 4, one MTP head: a window takes 6 SWA pages, scratch 4 more. Chunks of 6 full or 2 SWA pages.
fn setup(chunks: u32, full_chunks: u32) -> Setup {
    let mut setup = Setup::roomy(2, 4, 1);
    setup.scratch = 4;
    setup.give_region(Region {
        chunks,
        full_pages: 6,
        swa_pages: 2,
        full_chunks,
        min_full_chunks: 0,
        min_swa_chunks: 0,
        adaptive: false,
    });
    setup
}

const TO_SWA: Op = Op::Reassign { to_full: false, chunk: 0 };

fn split(world: &World) -> mimo_cache::cache::SplitStats {
    world.cache.stats().split
}

#[test]
fn a_chunk_is_given_when_the_step_of_its_copies_is_over() {
    let mut w = World::new(setup(14, 6));
    let prompt = words(1, 20);
    w.turn(&prompt, 0);
    let found = w.find(&prompt);
    w.apply(TO_SWA);
    assert_eq!((split(&w).draining, split(&w).draining_pages), (Some(Group::Full), 6));
    assert_eq!(w.find(&prompt), found, "draining takes nothing from lookups");

    let (i, _) = w.start(&words(2, 4), 0);
    w.step(&[i], model::runner::Step { chunk: 4, accept: 0, seed: 0, compact: true, many: false });
    w.audit();
    assert_eq!((split(&w).full_relocated, split(&w).to_swa), (6, 0), "the copies are in a plan that still runs");
    assert_eq!(w.find(&prompt), found);
    w.apply(Op::Retire);
    assert_eq!((split(&w).to_swa, split(&w).draining), (1, None));
    assert_eq!(w.cache.chunk_owner(0), Some((Group::Swa, false)));
    w.finish(i);

    let (i, report) = w.start(&join(&[&prompt, &words(3, 3)]), 0);
    assert_eq!(report.matched.usable, 20);
    w.prefill(i, 4);
    w.close();
}

#[test]
fn a_chunk_is_given_when_the_move_of_its_copies_is_done() {
    let mut w = World::new(setup(14, 6));
    w.turn(&words(1, 20), 0);
    w.apply(TO_SWA);
    w.apply(Op::TakeCopies);
    assert_eq!((w.moves.len(), split(&w).full_relocated, split(&w).to_swa), (1, 6, 0));
    // The old pages wait, and so do new ones that are evicted before the copy has run.
    let (i, _) = w.start(&words(2, 40), 20);
    w.prefill(i, 8);
    assert!(w.cache.stats().full.quarantined >= 6);
    assert_eq!(split(&w).to_swa, 0);
    w.apply(Op::MoveDone { which: 0 });
    assert_eq!((split(&w).to_swa, w.cache.stats().full.quarantined), (1, 0));
    w.close();
}

#[test]
fn what_is_leased_or_private_stays_until_it_is_let_go() {
    let mut w = World::new(setup(18, 6));
    let prompt = words(1, 12);
    w.turn(&prompt, 0);
    let (reader, report) = w.start(&join(&[&prompt, &words(2, 1)]), 4);
    assert_eq!(report.matched.usable, 12);
    let (writer, _) = w.start(&words(3, 8), 4);
    w.prefill(writer, 8);
    w.apply(TO_SWA);
    for _ in 0..3 {
        w.apply(Op::TakeCopies);
    }
    let before = split(&w);
    assert_eq!((before.full_relocated, before.to_swa), (0, 0), "{before:?}");
    assert!(before.draining_pages >= 6);
    w.abort(reader);
    w.audit();
    w.apply(Op::TakeCopies);
    w.apply(Op::MoveDone { which: 0 });
    assert!(split(&w).full_relocated >= 6);
    w.close();
}

#[test]
fn forks_and_parked_sequences_keep_what_they_hold() {
    let mut w = World::new(setup(20, 7));
    let (i, _) = w.start(&words(1, 11), 8);
    w.prefill(i, 4);
    w.apply(Op::Fork { seq: 0, m: 1, credit: 4 });
    assert_eq!(w.seqs.len(), 3);
    w.apply(TO_SWA);
    w.apply(Op::TakeCopies);
    w.apply(Op::Park { seq: 0, store: true });
    w.apply(Op::MoveDone { which: 0 });
    assert!(split(&w).draining.is_some(), "the children lease the parent's pages");
    w.decode(1, 3);
    w.apply(Op::Abort { seq: 1 });
    w.apply(Op::Abort { seq: 1 });
    w.apply(Op::TakeCopies);
    w.apply(Op::MoveDone { which: 0 });
    assert_eq!((split(&w).draining, split(&w).to_swa), (None, 1));
    w.apply(Op::Resume { seq: 0, credit: 4 });
    let report = w.cache.report(w.seqs[0].id).expect("resumed");
    assert_eq!(report.matched.usable, 10);
    w.decode(0, 2);
    w.close();
}

#[test]
fn swa_pages_move_with_their_records() {
    let mut w = World::new(setup(14, 6));
    let prompt = words(1, 20);
    w.turn(&join(&[&prompt, &words(2, 3)]), 0);
    w.turn(&join(&[&prompt, &words(3, 3)]), 0);
    let longer = join(&[&prompt, &words(2, 3), &words(4, 1)]);
    let window = |w: &mut World| {
        let (i, _) = w.start(&longer, 0);
        let (first, table) = w.cache.swa_table(w.seqs[i].id).expect("open");
        let records: Vec<_> = table.iter().map(|&page| w.cache.mtp_record(page)).collect();
        w.abort(i);
        (first, table, records)
    };
    let (first, table, records) = window(&mut w);
    assert!(records.iter().any(|r| r.as_ref().is_some_and(|r| !r.is_empty())), "{records:?}");
    // The chunk of the first page of that window.
    let chunk = (table[0] - 1) / 2;
    assert!(w.cache.reassign(Group::Full, Some(chunk)).expect("a chunk of the SWA pool"));
    w.audit();
    w.finish_drain();
    assert!(split(&w).swa_relocated > 0 && split(&w).to_full == 1, "{:?}", split(&w));
    let (again, moved, kept) = window(&mut w);
    assert_eq!((again, kept), (first, records));
    assert_ne!(moved, table);
    assert!(moved.iter().all(|page| (page - 1) / 2 != chunk));
    w.close();
}

#[test]
fn promises_and_the_demand_of_late_are_kept() {
    let mut w = World::new(setup(14, 6));
    // 36 full pages: 30 promised, and a chunk less would leave just those.
    let (i, _) = w.start(&words(1, 2), 58);
    w.apply(TO_SWA);
    assert_eq!((split(&w).to_swa, w.usable().0), (1, 30));
    w.apply(TO_SWA);
    assert_eq!((split(&w).to_swa, split(&w).draining), (1, None), "the sequence was promised all that is left");
    w.prefill(i, 4);
    w.decode(i, 4);
    w.abort(i);
    w.audit();
    w.apply(TO_SWA);
    assert_eq!(split(&w).to_swa, 1, "so much was in demand a moment ago");
    // Windows: three sequences reserve 6 pages each; 4 of scratch and 18 of 18 are spoken for.
    let mut w = World::new(setup(14, 3));
    for topic in 0..3 {
        w.start(&words(topic, 2), 0);
    }
    assert_eq!((w.usable().1, w.cache.stats().swa.promised), (22, 18));
    w.apply(Op::Reassign { to_full: true, chunk: 0 });
    assert_eq!((split(&w).to_full, split(&w).draining), (0, None));
    w.close();
}

#[test]
fn the_cache_shrinks_by_the_policy_and_a_few_pages_at_a_time() {
    let mut setup = setup(60, 10);
    let region = setup.region.take().expect("has one");
    setup.give_region(Region { swa_pages: 30, full_pages: 90, chunks: 6, full_chunks: 3, ..region });
    let mut w = World::new(setup);
    for topic in 0..60 {
        w.turn(&words(topic, 5), 0);
    }
    let cached = w.cache.stats().swa.cached;
    assert!(cached > 60, "{cached}");
    assert!(w.cache.reassign(Group::Full, None).expect("a region"));
    w.audit();
    let at_once = cached - w.cache.stats().swa.cached;
    assert!(at_once <= 16, "{at_once} pages went in one call");
    assert!(w.find(&words(59, 6)).usable > 0, "the newest stay");
    w.finish_drain();
    for topic in 60..70 {
        w.turn(&words(topic, 5), 0);
    }
    let stats = w.cache.stats();
    assert!(stats.swa.cached + stats.swa.promised <= 60 - 4, "{stats:?}");
    assert_eq!(w.find(&words(0, 6)).usable, 0, "the oldest went");
    w.close();
}

/// The core without a device: prompts in one chunk, steps retired at once.
struct Driver {
    cache: Cache,
    step: u64,
}

impl Driver {
    fn new(setup: &Setup) -> Driver {
        Driver { cache: Cache::new(setup.config()).expect("a valid layout"), step: 0 }
    }

    fn open(&mut self, tokens: &[u32]) -> SeqId {
        let mut request = self.cache.request(tokens.to_vec(), RequestOptions::default()).expect("a prompt");
        self.cache.open(&mut request, 0).expect("room")
    }

    /// Usable tokens.
    fn serve(&mut self, tokens: &[u32]) -> u64 {
        let seq = self.open(tokens);
        let report = self.cache.report(seq).expect("open");
        let page = u64::from(self.cache.config().page_size);
        while self.cache.info(seq).expect("open").committed < tokens.len() as u64 {
            let at = self.cache.info(seq).expect("open").committed;
            let n = (4 * page).min(tokens.len() as u64 - at);
            self.cache.reserve(seq, n).expect("promised");
            self.step += 1;
            let (mut full, mut swa, mut base, mut lens) = (vec![0; 4096], vec![0; 64], [0], [0]);
            let out = FillOut {
                full: &mut full,
                full_width: 4096,
                swa: &mut swa,
                swa_width: 64,
                swa_base: Some(&mut base),
                lens: &mut lens,
            };
            self.cache.fill(self.step, &[seq], out).expect("tables");
            self.cache.commit_many(&[Commit { seq, computed: n, tokens: &[] }]).expect("rows");
            self.cache.retire(self.step).expect("in order");
        }
        self.cache.finish(seq).expect("open");
        report.delivered
    }
}

#[test]
fn a_chunk_that_is_held_for_long_stays() {
    let mut d = Driver::new(&setup(18, 6));
    d.serve(&words(1, 12));
    let reader = d.open(&join(&[&words(1, 12), &words(2, 1)]));
    assert!(d.cache.reassign(Group::Swa, Some(0)).expect("a chunk"));
    for n in 0..1100 {
        d.serve(&words(10 + n % 4, 3));
    }
    let split = d.cache.stats().split;
    assert_eq!((split.kept, split.draining, split.full_chunks), (1, None, 6));
    d.cache.check_integrity().expect("sound");
    d.cache.abort(reader).expect("open");
    assert!(d.cache.reassign(Group::Swa, Some(0)).expect("a chunk"));
    d.serve(&words(10, 3));
    assert_eq!(d.cache.stats().split.to_swa, 1);
    assert!(d.cache.match_tokens(&words(1, 13), &Key::default(), &[]).expect("a prompt").usable >= 12);
}

/// A region that balances itself, in which nothing was ever dropped.
fn unused(full_chunks: u32, adaptive: bool) -> Driver {
    let mut setup = setup(40, full_chunks);
    setup.region.as_mut().expect("given above").adaptive = adaptive;
    Driver::new(&setup)
}

/// Opens requests until one is refused, `tries` times with requests that keep nothing; the most that were open at once.
fn crowd(d: &mut Driver, len: usize, tries: u32) -> usize {
    let (mut open, mut most) = (Vec::new(), 0);
    for n in 0..tries {
        let options = RequestOptions { store: false, ..RequestOptions::default() };
        let mut request = d.cache.request(words(100 + n, len), options).expect("a prompt");
        match d.cache.open(&mut request, 0) {
            Ok(seq) => open.push(seq),
            Err(_) => d.cache.abort(open.remove(0)).expect("open"),
        }
        most = most.max(open.len());
    }
    open.into_iter().for_each(|seq| d.cache.abort(seq).expect("open"));
    d.cache.check_integrity().expect("sound");
    most
}

#[test]
fn requests_that_are_refused_get_their_pool_chunks_though_nothing_is_dropped() {
    // Windows of 6 SWA pages: 15 chunks serve few at once. Prompts of 20 pages: 8 chunks do.
    for (full_chunks, len) in [(25, 3), (8, 40)] {
        let fixed = crowd(&mut unused(full_chunks, false), len, 3000);
        let mut d = unused(full_chunks, true);
        let before = d.cache.stats().split;
        let found = crowd(&mut d, len, 3000);
        assert!(found > fixed, "{found} at once, {fixed} with the fixed split");
        let after = d.cache.stats().split;
        let got = if len == 3 { after.to_swa - before.to_swa } else { after.to_full - before.to_full };
        assert!(got >= 2, "{after:?}");
    }
}

#[test]
fn one_request_that_is_tried_again_and_again_decides_nothing() {
    let mut d = unused(8, true);
    let mut request = d.cache.request(words(1, 100), RequestOptions::default()).expect("a prompt");
    for _ in 0..1000 {
        assert!(d.cache.open(&mut request, 0).is_err());
        d.serve(&words(2, 3));
    }
    assert_eq!(d.cache.stats().split.to_full, 0);
}

#[test]
fn a_chunk_is_not_withheld_from_requests_that_are_all_refused() {
    let mut d = Driver::new(&setup(18, 6));
    d.serve(&words(1, 12));
    // The reader holds a page of the chunk; with the chunk's other pages the next prompt would fit.
    let reader = d.open(&join(&[&words(1, 12), &words(2, 1)]));
    assert!(d.cache.reassign(Group::Swa, Some(0)).expect("a chunk"));
    let mut request = d.cache.request(words(5, 54), RequestOptions::default()).expect("a prompt");
    let refused = (0..200).take_while(|_| d.cache.open(&mut request, 0).is_err()).count();
    assert_eq!(refused, 65);
    assert_eq!((d.cache.stats().split.kept, d.cache.stats().split.draining), (1, None));
    d.cache.check_integrity().expect("sound");
    d.cache.abort(reader).expect("open");
}

#[test]
fn what_chunks_can_cure_is_not_called_hopeless() {
    let mut d = Driver::new(&setup(18, 6));
    // 36 full pages; 13 chunks or 78 pages when the SWA pool has its least.
    for (len, words_of_it) in [(74, "reassign some"), (158, "never be served")] {
        let mut request = d.cache.request(words(5, len), RequestOptions::default()).expect("a prompt");
        match d.cache.open(&mut request, 0) {
            Err(mimo_cache::error::Error::OutOfPages(short)) => {
                assert!(short.to_string().contains(words_of_it), "{short}");
                assert_eq!((short.needed > short.total, short.needed > short.most), (true, len == 158));
            }
            other => panic!("{other:?}"),
        }
    }
    while d.cache.reassign(Group::Full, None).expect("a region") {}
    let mut request = d.cache.request(words(5, 74), RequestOptions::default()).expect("a prompt");
    d.cache.open(&mut request, 0).expect("room after all");
}
