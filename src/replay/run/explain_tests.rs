//! Stories that can be told in advance.

use super::*;
use crate::cache::Why;
use crate::policy::{PolicyKind, Retention};
use crate::replay::{Capacity, KvBytes, Split};
use std::io::Cursor;

const PAGE: u32 = 4;

fn options(window: u32, full: u64, share: f64, retention: &str) -> Options {
    let swa = if share > 0.0 { 10 } else { 0 };
    Options {
        kv: KvBytes { full_trunk: 10, swa_trunk: swa, swa_all: swa, window },
        capacity: Capacity::FullTokens(full * u64::from(PAGE)),
        swa_share: share,
        split: Split::Fixed,
        retention: Retention::parse(retention).unwrap(),
        policy: PolicyKind::Lru,
        page_size: PAGE,
        chunk: 16,
        seed: 1,
        skip_bad: false,
        service: None,
        samples: 0,
        host: None,
    }
}

/// Requests as (session, runs of ids), a second apart.
fn stories(requests: &[(i64, &[(u32, u32)])], options: &Options, which: Which) -> Result<Vec<Story>> {
    let mut text = format!("{{\"block_size\":{PAGE}}}\n");
    for (t, (session, runs)) in requests.iter().enumerate() {
        let blocks: u32 = runs.iter().map(|r| r.1).sum();
        let runs: Vec<String> = runs.iter().map(|(a, b)| format!("[{a},{b}]")).collect();
        let (t, i) = (t * 1000, blocks * PAGE);
        text += &format!("{{\"t\":{t},\"s\":{session},\"i\":{i},\"o\":1,\"h\":[{}]}}\n", runs.join(","));
    }
    let open = || TraceReader::new(Cursor::new(text.clone().into_bytes()), "trace".into());
    explain_from(open, options, which, |_| true).map(|stories| stories.expect("nobody stopped it"))
}

fn request(lost: &Option<Lost>) -> (u64, Why) {
    let lost = lost.expect("remembered");
    (lost.by.expect("a request").request, lost.loss.why)
}

#[test]
fn full_pages_are_lost_to_the_request_that_took_them() {
    // 11 pages, one of them for the last token: the third and the fourth request push the first one's end out.
    let requests: [(i64, &[(u32, u32)]); 5] =
        [(1, &[(0, 6)]), (-1, &[]), (2, &[(10, 6)]), (3, &[(20, 2)]), (1, &[(0, 6), (30, 1)])];
    let all = stories(&requests, &options(0, 11, 0.0, "prompt_end"), Which::Request(5)).unwrap();
    let story = &all[0];
    assert_eq!(story.who, Who { request: 5, t_ms: 4000, session: 1 });
    assert_eq!(story.before, Some(Who { request: 1, t_ms: 0, session: 1 }));
    let told = story.told.as_ref().unwrap();
    assert_eq!((told.report.matched.full_kv_match, told.report.misses.evicted), (8, 16));
    let parts: Vec<_> = told.stretches.iter().map(|s| (s.from, s.to, s.cause)).collect();
    assert_eq!(parts, [(8, 16, "evicted"), (16, 24, "evicted"), (24, 28, "never_seen"), (28, 29, "partial_page")]);
    assert_eq!(request(&story.stretches[0]), (4, Why::FullPool));
    assert_eq!(request(&story.stretches[1]), (3, Why::FullPool), "the deepest pages went first");
    assert_eq!(story.stretches[0].unwrap().loss.at_ms, 3000);
    let seen: Vec<_> = story.seen.iter().map(|s| (s.from, s.to, s.by.map(|w| w.request))).collect();
    assert_eq!(seen, [(0, 24, Some(1)), (24, 28, None)]);
    assert!(story.evicted.0 > 0);
}

#[test]
fn windows_are_lost_to_the_request_whose_window_took_their_place() {
    // Room for four windows of two pages and the running one.
    let mut requests: Vec<(i64, Vec<(u32, u32)>)> = (0..6).map(|n| (n, vec![(n as u32 * 10, 5)])).collect();
    requests.push((0, vec![(0, 5), (90, 1)]));
    let requests: Vec<(i64, &[(u32, u32)])> = requests.iter().map(|(s, r)| (*s, &r[..])).collect();
    let found = options(8, 100, 0.0908, "prompt_end");
    let story = &stories(&requests, &found, Which::Request(7)).unwrap()[0];
    let told = story.told.as_ref().unwrap();
    assert_eq!((told.report.matched.full_kv_match, told.report.matched.usable), (20, 0));
    assert_eq!(told.report.misses.window, 20);
    assert_eq!(told.lost.len(), 1);
    assert_eq!((told.lost[0].boundary, told.lost[0].kinds.to_vec()), (20, vec!["PROMPT_END"]));
    let (by, why) = request(&story.lost[0]);
    assert!((2..=6).contains(&by) && why == Why::SwaPool, "{by} {why:?}");
}

#[test]
fn an_end_that_was_superseded_says_so() {
    let requests: [(i64, &[(u32, u32)]); 5] = [
        (1, &[(0, 5)]),
        (1, &[(0, 9)]),
        (1, &[(0, 13)]),
        // Back to where the first turn ended: its checkpoint went when the third turn ended.
        (1, &[(0, 5), (50, 3)]),
        (1, &[(0, 5), (50, 3)]),
    ];
    let found = options(8, 100, 0.5, "prompt_end+sup1");
    let all = stories(&requests, &found, Which::Session(1)).unwrap();
    assert_eq!(all.iter().map(|s| s.who.request).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
    let usable: Vec<_> = all.iter().map(|s| s.told.as_ref().unwrap().report.matched.usable).collect();
    assert_eq!(usable, [0, 20, 36, 0, 32]);
    let told = all[3].told.as_ref().unwrap();
    assert_eq!((told.lost[0].boundary, request(&all[3].lost[0])), (20, (2, Why::Superseded)));
    assert_eq!(all[4].told.as_ref().unwrap().checkpoints.last().unwrap().boundary, 32);
}

#[test]
fn a_prompt_that_finds_nothing_and_one_that_has_nothing() {
    let requests: [(i64, &[(u32, u32)]); 2] = [(-1, &[]), (7, &[(0, 3)])];
    let found = options(8, 100, 0.5, "prompt_end");
    let empty = &stories(&requests, &found, Which::Request(1)).unwrap()[0];
    assert!(empty.told.is_none() && empty.seen.is_empty() && empty.before.is_none());
    let first = &stories(&requests, &found, Which::Request(2)).unwrap()[0];
    let told = first.told.as_ref().unwrap();
    assert_eq!(told.report.misses.never_seen, 12);
    assert_eq!(told.stretches.first().map(|s| (s.from, s.to, s.cause)), Some((0, 12, "never_seen")));
    assert_eq!(first.seen, [Seen { from: 0, to: 12, by: None }]);
}

#[test]
fn what_is_not_in_the_trace_is_refused() {
    let requests: [(i64, &[(u32, u32)]); 1] = [(7, &[(0, 3)])];
    let found = options(8, 100, 0.5, "prompt_end");
    for (which, words) in [
        (Which::Request(0), "request is 0, allowed is 1 to 1"),
        (Which::Request(2), "request is 2, allowed is 1 to 1"),
        (Which::Session(8), "session is 8, allowed is one of the trace"),
    ] {
        assert_eq!(stories(&requests, &found, which).unwrap_err().to_string(), words);
    }
}
