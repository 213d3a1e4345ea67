//! Overlaps that can be told in advance, and the limit in which nothing overlaps.

use super::*;
use crate::policy::{PolicyKind, Retention};
use crate::replay::{Capacity, KvBytes, Options, Outcome, Split, TraceReader, run_from};
use proptest::prelude::*;
use std::io::Cursor;

const PAGE: u32 = 4;

fn options(full: u64, service: Option<Service>) -> Options {
    Options {
        kv: KvBytes { full_trunk: 10, swa_trunk: 0, swa_all: 0, window: 0 },
        capacity: Capacity::FullTokens(full * u64::from(PAGE)),
        swa_share: 0.0,
        split: Split::Fixed,
        retention: Retention::parse("prompt_end").unwrap(),
        policy: PolicyKind::Lru,
        page_size: PAGE,
        chunk: 8,
        seed: 1,
        skip_bad: false,
        service,
        samples: 0,
        host: None,
    }
}

/// Requests as (arrival in ms, first id, blocks, output tokens).
fn replay(requests: &[(u64, u32, u32, u64)], options: &Options) -> Result<Outcome> {
    let mut text = format!("{{\"block_size\":{PAGE}}}\n");
    for (t, first, blocks, output) in requests {
        let i = blocks * PAGE;
        text += &format!("{{\"t\":{t},\"s\":-1,\"i\":{i},\"o\":{output},\"h\":[[{first},{blocks}]]}}\n");
    }
    let open = || TraceReader::new(Cursor::new(text.clone().into_bytes()), "trace".into());
    run_from(open, options, |_| true).map(|o| o.expect("nobody stopped it"))
}

/// A token a millisecond, prompt or output.
const SLOW: Option<Service> = Some(Service { prefill: 1000.0, decode: 1000.0 });

#[test]
fn a_prompt_that_is_being_computed_is_in_flight() {
    // 16 tokens and one more, in chunks of 8: done after 8, 16 and 17 ms.
    let twice = |t| [(0, 0, 4, 0), (t, 0, 4, 0)];
    let of = |t| {
        let found = replay(&twice(t), &options(100, SLOW)).unwrap();
        (found.hit_tokens, found.misses.in_flight, found.misses.never_seen, found.most_open)
    };
    assert_eq!(of(0), (0, 16, 16, 2));
    assert_eq!(of(7), (0, 16, 16, 2));
    assert_eq!(of(8), (8, 8, 16, 2));
    assert_eq!(of(16), (16, 0, 16, 2));
    assert_eq!(of(17), (16, 0, 16, 1), "what ends at the arrival ends before it");
}

#[test]
fn output_keeps_a_sequence_open() {
    let two = |output| [(0, 0, 4, output), (60, 100, 4, 0), (100, 0, 4, 0)];
    // Room for one prompt and a page: while the first decodes the second must wait, and then pushes it out.
    let found = |output| replay(&two(output), &options(6, SLOW)).unwrap();
    let (short, long) = (found(0), found(70));
    assert_eq!((short.most_open, short.waited_ms), (1, 0));
    assert_eq!((long.most_open, long.waited_ms), (1, 17 + 70 - 60 + 4), "and the third waits for the second");
    assert_eq!(short.hit_tokens + short.misses.total(), 48);
}

#[test]
fn prompts_are_computed_in_turn() {
    // Two prompts of 16 tokens and one more at once: chunks of 8 alternate, so that both are done after 33 and 34 ms.
    let after = |t| replay(&[(0, 0, 4, 0), (0, 100, 4, 0), (t, 0, 4, 0), (t, 100, 4, 0)], &options(100, SLOW)).unwrap();
    assert_eq!(after(23).misses.in_flight, 8 + 8);
    assert_eq!(after(24).misses.in_flight, 8);
    assert_eq!(after(32).misses.in_flight, 0);
}

#[test]
fn rates_that_cannot_be_are_refused() {
    for rate in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e13] {
        let found = replay(&[(0, 0, 4, 0)], &options(9, Some(Service { prefill: rate, decode: 1.0 })));
        assert!(found.unwrap_err().to_string().starts_with("prefill rate is "));
        let found = replay(&[(0, 0, 4, 0)], &options(9, Some(Service { prefill: 1.0, decode: rate })));
        assert!(found.unwrap_err().to_string().starts_with("decode rate is "));
    }
}

#[test]
fn the_number_of_open_sequences_is_bounded() {
    let requests: Vec<_> = (0..MAX_OPEN as u32 + 50).map(|n| (0, n * 2, 1, 1_000_000)).collect();
    let found = replay(&requests, &options(100_000, SLOW)).unwrap();
    assert_eq!(found.most_open as usize, MAX_OPEN);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn at_once_is_one_after_another(
        requests in prop::collection::vec((0u64..3, 0u32..4, 1u32..9, 0u64..50), 1..40),
        full in 3u64..40,
    ) {
        let mut t = 0;
        let trace: Vec<_> = requests.iter().map(|&(dt, at, n, o)| { t += dt; (t, at * 10, n, o) }).collect();
        let at_once = Some(Service { prefill: 1e12, decode: 1e12 });
        let (one, other) = (replay(&trace, &options(full, None)).unwrap(), replay(&trace, &options(full, at_once)).unwrap());
        prop_assert_eq!(one.hit_tokens, other.hit_tokens);
        prop_assert_eq!(one.misses, other.misses);
        prop_assert_eq!(one.full_evicted, other.full_evicted);
    }

    #[test]
    fn overlaps_keep_the_sums_and_repeat(
        requests in prop::collection::vec((0u64..30, 0u32..4, 1u32..9, 0u64..50), 1..40),
        full in 3u64..40,
    ) {
        let mut t = 0;
        let trace: Vec<_> = requests.iter().map(|&(dt, at, n, o)| { t += dt; (t, at * 10, n, o) }).collect();
        let found = replay(&trace, &options(full, SLOW)).unwrap();
        prop_assert_eq!(found.hit_tokens + found.misses.total(), found.totals.prompt_tokens);
        let again = replay(&trace, &options(full, SLOW)).unwrap();
        prop_assert_eq!(Outcome { seconds: 0.0, ..found }, Outcome { seconds: 0.0, ..again });
    }
}
