//! Faults that other engines' prefix caches had to learn about from their users, one test each, its story on top.
//! Every turn here runs through the model of `tests/model`, so each page handed out is checked as well.

mod model;

use mimo_cache::cache::Group;
use mimo_cache::error::{Error, PoolName};
use model::script::{join, words};
use model::{Setup, World};

/// A counter of consecutive live SWA tokens was carried across a page without SWA. A window that straddled the hole
/// counted as whole, and the request attended to KV that was never there.
///
/// Here several prompts leave SWA around different boundaries of one long prompt, with holes between, and every prefix
/// of it is looked up and compared with a search that asks token by token.
#[test]
fn a_run_of_window_tokens_ends_at_a_hole() {
    for (page, window) in [(1, 3), (2, 3), (2, 5), (4, 5), (4, 9), (4, 4)] {
        let mut w = World::new(Setup::roomy(page, window, 0));
        let long = words(1, 24 * page as usize);
        for (n, cut) in [19, 3, 11, 8, 14, 24].into_iter().enumerate() {
            let stop = cut * page as usize;
            w.turn(&join(&[&long[..stop], &words(10 + n as u32, 1)]), 0);
        }
        let mut safe = Vec::new();
        for len in 1..=long.len() {
            safe.push(w.find(&long[..len]).usable);
        }
        safe.dedup();
        let holes = safe.windows(2).filter(|s| s[1] - s[0] > u64::from(page)).count();
        assert!(holes >= 2, "page {page}, window {window}: the residency has holes, q took the values {safe:?}");
    }
}

/// Window edges were off by one page or one token when the page was longer than the window, or the window no multiple
/// of the page. Too short a tail gives wrong tokens, too long a demand gives no hits.
///
/// After a prompt, its last boundary must be usable, and be refused as soon as one token less than W is there.
#[test]
fn exactly_w_tokens_make_a_boundary_usable() {
    for page in [1u32, 2, 4, 8] {
        for window in 0..=2 * page + 2 {
            for len in 1..=(4 * page + 2) as usize {
                let mut w = World::new(Setup::roomy(page, window, 0));
                let prompt = words(1, len);
                w.turn(&prompt, 0);
                let boundary = len as u64 / u64::from(page) * u64::from(page);
                let longer = w.find(&join(&[&prompt, &words(2, 1)]));
                let at = format!("page {page}, window {window}, {len} tokens");
                assert_eq!((longer.full_kv_match, longer.usable), (boundary, boundary), "{at}");
                let again = w.find(&prompt);
                let kept = (len as u64 - 1) / u64::from(page) * u64::from(page);
                assert_eq!((again.full_kv_match, again.usable), (boundary, kept), "the same prompt, {at}");
            }
        }
    }
}

/// A request that computed a window again put its pages into the tree's hole by swapping the node's pages, full ones
/// included, under another request that was reading them.
///
/// Here A reads the prefix while B fills its SWA hole. A's page table must stay as it is, to the last id.
#[test]
fn filling_a_hole_leaves_readers_alone() {
    let mut w = World::new(Setup::roomy(4, 6, 2));
    let prefix = words(1, 32);
    w.turn(&join(&[&prefix, &words(2, 40)]), 0);
    let ask = join(&[&prefix, &words(3, 4)]);
    assert_eq!(w.find(&ask), mimo_cache::cache::Match { full_kv_match: 32, usable: 0 }, "a hole before the branch");
    let (a, _) = w.start(&ask, 8);
    let table = w.cache.full_table(w.seqs[a].id).unwrap().to_vec();
    let (b, _) = w.start(&join(&[&prefix, &words(4, 9)]), 8);
    w.prefill(b, 8);
    w.finish(b);
    assert_eq!(w.find(&ask).usable, 32, "B left a checkpoint where the prompts part");
    assert_eq!(w.cache.full_table(w.seqs[a].id).unwrap(), table, "A's table");
    w.prefill(a, 8);
    w.decode(a, 3);
    w.close();
}

/// The same in decode: two sequences generate the same tokens, the slower one finds its pages published already. While
/// it decodes its table must not change under kernels and graphs that were prepared with it; when it ends, only one of
/// each page is kept.
#[test]
fn pages_are_not_swapped_in_decode() {
    let mut w = World::new(Setup::roomy(2, 4, 1));
    let prompt = words(1, 9);
    let (a, _) = w.start(&prompt, 40);
    let (b, _) = w.start(&prompt, 40);
    w.prefill(a, 16);
    w.prefill(b, 16);
    w.decode(a, 8);
    let version = |w: &World| w.cache.info(w.seqs[b].id).unwrap().table_version;
    let before = version(&w);
    for _ in 0..8 {
        w.decode(b, 1);
        assert_eq!(version(&w), before, "decode changes no page of the table");
    }
    let known = |i: usize| w.seqs[i].story.tokens.clone();
    let same = known(a).iter().zip(&known(b)).take_while(|(x, y)| x == y).count();
    assert!(same > prompt.len() + 4, "both generated the same, {same} tokens");
    let (own, theirs) = (w.cache.full_table(w.seqs[b].id).unwrap(), w.cache.full_table(w.seqs[a].id).unwrap());
    assert_eq!(own[..4], theirs[..4], "the prompt's pages were adopted in prefill");
    assert_ne!(own[5], theirs[5], "the generated ones are b's own");
    w.finish(a);
    let cached = w.cache.stats().full.cached;
    w.finish(w.seqs.len() - 1);
    assert_eq!(w.cache.stats().full.cached, cached, "b's duplicates were not kept");
    w.close();
}

/// When the SWA pages of a node left, its full KV was freed with them although the tokens were out of every window:
/// the long prefix had to be computed again for the full layers too.
#[test]
fn full_kv_outlives_its_swa() {
    let mut setup = Setup::roomy(4, 8, 0);
    (setup.swa_pages, setup.scratch) = (16, 4);
    let mut w = World::new(setup);
    let first = words(1, 40);
    w.turn(&first, 0);
    for topic in 2..10 {
        w.turn(&words(topic, 20), 0);
    }
    let found = w.find(&join(&[&first, &words(50, 1)]));
    assert_eq!(found.full_kv_match, 40, "full KV stays");
    assert_eq!(found.usable, 0, "the window went");
    assert!(w.cache.stats().checkpoints_evicted > 0);
    assert_eq!(w.cache.stats().full_evicted, 0, "no full page had to go");
}

/// A match refreshed everything on its path. Old checkpoints inside a busy conversation stayed young for ever, and the
/// tails of quiet conversations went instead, although nobody would resume in the middle of the busy one.
#[test]
fn a_busy_conversation_does_not_push_out_an_idle_one() {
    let mut setup = Setup::roomy(4, 8, 0);
    (setup.swa_pages, setup.scratch) = (24, 4);
    let mut w = World::new(setup);
    let idle = words(1, 42);
    let mut busy = words(2, 30);
    let go_on = |w: &mut World, busy: &mut Vec<u32>, topics: std::ops::Range<u32>| {
        for topic in topics {
            w.turn(busy, 0);
            busy.extend(words(topic, 10));
        }
    };
    go_on(&mut w, &mut busy, 10..16);
    w.turn(&idle, 0);
    let before = w.cache.stats().checkpoints_evicted;
    go_on(&mut w, &mut busy, 16..20);
    assert!(
        w.cache.stats().checkpoints_evicted > before,
        "the pool is too small for all of the busy one's checkpoints"
    );
    assert_eq!(w.find(&join(&[&idle, &words(50, 1)])).usable, 40, "the idle one resumes where it stopped");
    assert!(w.find(&busy).usable >= 116, "and so does the busy one");
}

/// Two prompts that differed only inside the last alignment block hit nothing at all, because the hit was rounded down
/// for one group and the other group had no window there.
#[test]
fn prompts_that_differ_in_the_last_page_share_the_rest() {
    for (page, window) in [(4, 3), (4, 4), (4, 10), (8, 128), (64, 128)] {
        let page_tokens = page as usize;
        let mut w = World::new(Setup::roomy(page, window, 2));
        let shared = words(1, 6 * page_tokens);
        let boundary = 6 * u64::from(page);
        // Inside the last, partial page.
        w.turn(&join(&[&shared, &words(2, 3)]), 0);
        assert_eq!(w.find(&join(&[&shared, &words(3, 3)])).usable, boundary, "page {page}, window {window}");
        // In the last whole page of a prompt that ends with it.
        let mut w = World::new(Setup::roomy(page, window, 2));
        w.turn(&join(&[&shared, &words(2, page_tokens)]), 0);
        assert_eq!(w.find(&join(&[&shared, &words(3, page_tokens)])).usable, boundary, "page {page}, window {window}");
        // One page further: the second prompt pays once, and leaves a checkpoint at the branch for the third.
        let mut w = World::new(Setup::roomy(page, window, 2));
        w.turn(&join(&[&shared, &words(2, 40 * page_tokens)]), 0);
        let second = w.turn(&join(&[&shared, &words(3, 2 * page_tokens)]), 0);
        assert_eq!(second.matched.full_kv_match, boundary);
        assert_eq!(w.find(&join(&[&shared, &words(4, 1)])).usable, boundary, "page {page}, window {window}");
    }
}

/// Freed SWA tails went to the front of the free list and were reused first, so that with a quarter of the pool in use
/// interleaved long sessions already lost their windows.
#[test]
fn interleaved_sessions_keep_their_windows_while_there_is_room() {
    let mut setup = Setup::roomy(4, 8, 1);
    (setup.full_pages, setup.swa_pages, setup.scratch) = (1200, 120, 20);
    let mut w = World::new(setup);
    let mut sessions: Vec<Vec<u32>> = (0..8).map(|s| words(s, 50)).collect();
    for round in 0..8 {
        for (s, session) in sessions.iter_mut().enumerate() {
            let report = w.turn(session, 0);
            let resumable = if round == 0 { 0 } else { (session.len() as u64 - 13) / 4 * 4 };
            assert!(report.matched.usable >= resumable, "session {s}, round {round}: {report:?}");
            session.extend(words(100 + 10 * round + s as u32, 13));
        }
    }
}

/// One small draft group, kept page by page along the whole sequence, filled the cache. MTP rows live in the window's
/// pages and must not make anyone hold more of them.
#[test]
fn mtp_heads_cost_no_pages_of_their_own() {
    let cached = |n_mtp: u32| {
        let mut w = World::new(Setup::roomy(4, 8, n_mtp));
        for topic in 0..12 {
            w.turn(&words(topic, 75), 4);
        }
        let stats = w.cache.stats();
        assert_eq!(stats.checkpoints, 12);
        stats.swa.cached
    };
    let without = cached(0);
    assert!(without >= 24, "12 checkpoints of 2 pages or more");
    assert_eq!(cached(3), without);
}

/// Admission looked at one pool. With a tiny SWA pool a long chunk was admitted, failed, was put back and admitted
/// again, for ever.
///
/// A chunk beyond the scratch budget is refused by name and number, `reservable` says what would work, and with that
/// the prompt is computed to its end.
#[test]
fn a_chunk_larger_than_the_swa_pool_makes_progress_or_is_refused_plainly() {
    let mut setup = Setup::roomy(4, 8, 1);
    (setup.swa_pages, setup.scratch) = (12, 2);
    let mut w = World::new(setup);
    let (i, _) = w.start(&words(1, 200), 0);
    match w.cache.reserve(w.seqs[i].id, 200) {
        Err(Error::OutOfPages(short)) => {
            assert!(short.pool != PoolName::Full && short.needed > short.total, "{short}");
            assert!(short.to_string().contains("can never be served"), "{short}");
        }
        other => panic!("a chunk of 50 pages in a pool of 12: {other:?}"),
    }
    let most = w.cache.reservable(w.seqs[i].id).unwrap();
    assert!((4..=48).contains(&most), "{most} slots are reservable");
    w.prefill(i, 200);
    w.finish(i);
    w.close();
}

/// A hit of N tokens was stored and N - 1 were asked for, since one token must be computed. With nothing kept before
/// the last boundary, asking the same prompt again lost the whole hit.
#[test]
fn the_same_prompt_again_loses_one_page_at_most() {
    for (page, window, pages) in [(1, 0, 5), (1, 8, 20), (2, 3, 9), (4, 4, 7), (4, 9, 7), (64, 128, 5)] {
        let mut w = World::new(Setup::roomy(page, window, 2));
        let prompt = words(1, (page * pages) as usize);
        w.turn(&prompt, 0);
        let report = w.turn(&prompt, 0);
        let kept = u64::from(page * (pages - 1));
        assert_eq!(report.matched.usable, kept, "page {page}, window {window}");
        assert_eq!(report.misses.last_token, u64::from(page));
    }
}

/// Ids of full and SWA pages got mixed up in one path and named each other's memory. Both pools here have ids the
/// other one does not have, and different numbers of them in use.
#[test]
fn full_and_swa_ids_name_their_own_pools() {
    for (full, swa) in [(300, 24), (24, 300)] {
        let mut setup = Setup::roomy(2, 6, 2);
        (setup.full_pages, setup.swa_pages, setup.scratch) = (full, swa, 6);
        let mut w = World::new(setup);
        for topic in 0..30 {
            w.turn(&words(topic % 7, 20 + topic as usize % 5), 2);
        }
        w.close();
    }
}

/// The KV rows of MTP heads at the end of a page depend on the tokens after it. A hit that continued differently kept
/// the old rows, and drafts were rejected until the window had passed.
///
/// Whoever continues differently gets a private copy of the last page and the list of rows to make again, exactly those
/// that look beyond it; whoever continues the same way reads the tree's page.
#[test]
fn a_different_continuation_rebuilds_its_mtp_rows() {
    let mut w = World::new(Setup::roomy(4, 8, 3));
    let prefix = words(1, 24);
    w.turn(&join(&[&prefix, &words(2, 9)]), 0);
    w.turn(&join(&[&prefix, &words(3, 9)]), 0); // leaves a checkpoint at the branch
    let (same, report) = w.start(&join(&[&prefix, &words(2, 9)]), 0);
    assert!(report.matched.usable >= 24);
    w.prefill(same, 4);
    w.finish(same);
    let (other, report) = w.start(&join(&[&prefix, &words(4, 9)]), 0);
    assert_eq!(report.matched.usable, 24);
    let (_, pages) = w.cache.swa_table(w.seqs[other].id).unwrap();
    let last = *pages.last().unwrap();
    let mut out = [0; 2];
    let (lens, base) = out.split_at_mut(1);
    let (mut full, mut swa) = ([0; 8], [0; 8]);
    let fill = mimo_cache::cache::FillOut {
        full: &mut full,
        full_width: 8,
        swa: &mut swa,
        swa_width: 8,
        swa_base: Some(base),
        lens,
    };
    let plan = w.cache.fill(w.next_step, &[w.seqs[other].id], fill).unwrap();
    assert_eq!(plan.copies.iter().map(|c| (c.group, c.dst)).collect::<Vec<_>>(), [(Group::Swa, last)]);
    let rows: Vec<_> = plan.rebuilds.iter().map(|r| (r.seq, r.page, r.start, r.end)).collect();
    assert_eq!(rows, [(w.seqs[other].id, last, 21, 24)]);
}

/// Pages were published, or handed to others, before the kernels that used them had ended. Everything a sequence held
/// when its step started stays out of circulation until the step is retired.
#[test]
fn pages_of_a_running_step_are_not_handed_out() {
    let mut setup = Setup::roomy(4, 4, 0);
    (setup.full_pages, setup.swa_pages, setup.scratch) = (6, 16, 4);
    let mut w = World::new(setup);
    let (i, _) = w.start(&words(1, 22), 0);
    assert!(w.reserve(i, 22));
    w.fill(&[i], 0, true);
    w.abort(i);
    w.audit();
    let quarantined = w.cache.stats().full.quarantined;
    assert_eq!(quarantined, 6, "all of the aborted sequence's pages wait for the step");
    // Admission counts on them, since the step will end; the pages themselves are not there yet.
    let (j, _) = w.start(&words(2, 22), 0);
    assert_eq!(w.cache.reservable(w.seqs[j].id).unwrap(), 0);
    assert!(!w.reserve(j, 4), "no page is free before the step is retired");
    w.retire();
    w.prefill(j, 8);
    w.finish(j);
    w.close();
}

/// A request that was aborted at one of five stages leaked its pages. Here at every stage, with everything returned.
#[test]
fn an_abort_at_any_stage_returns_every_page() {
    for stage in 0..8 {
        let mut w = World::new(Setup::roomy(2, 5, 2));
        w.turn(&words(1, 21), 3);
        let cached = w.cache.stats();
        let (i, _) = w.start(&join(&[&words(1, 16), &words(2, 20)]), 10);
        match stage {
            0 => {}
            1 => assert!(w.reserve(i, 7)),
            2 => {
                assert!(w.reserve(i, 7));
                w.fill(&[i], 0, true);
            }
            3 => w.take_copies(),
            4 => w.prefill(i, 6),
            5 => {
                w.prefill(i, 6);
                w.decode(i, 2);
            }
            6 => {
                w.prefill(i, 6);
                w.run(model::Op::Fork { seq: 0, m: 2, credit: 3 });
            }
            _ => {
                w.prefill(i, 6);
                w.run(model::Op::Park { seq: 0, store: false });
            }
        }
        w.audit();
        while !w.seqs.is_empty() {
            w.abort(0);
            w.audit();
        }
        w.run(model::Op::Retire);
        w.run(model::Op::MoveDone { which: 0 });
        w.audit();
        let stats = w.cache.stats();
        assert!(stats.full.cached >= cached.full.cached, "what was published stays: stage {stage}");
        w.close();
    }
}

/// Requests of a hybrid model were admitted with the full pool in mind while the windows ran out. `open` counts both.
#[test]
fn open_refuses_when_the_windows_run_out() {
    let mut setup = Setup::roomy(4, 8, 0);
    let quota = setup.quota();
    (setup.swa_pages, setup.scratch) = (2 * quota + 3, 0);
    let mut w = World::new(setup);
    let (a, _) = w.start(&words(1, 9), 4);
    w.start(&words(2, 9), 4);
    assert!(w.open_tokens(words(3, 9), 4).is_none(), "a third window does not fit");
    w.audit();
    w.abort(a);
    assert!(w.open_tokens(words(3, 9), 4).is_some(), "after one has ended it does");
    w.audit();
    w.close();
}
