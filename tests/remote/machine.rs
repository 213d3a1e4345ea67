//! Random calls over a store with random faults, compared with what may be found: what is found was offered under its name
//! and not deleted since, and without faults everything is found.

use crate::remote::{Call, Fake, Fault, config, name, offer, reported};
use crate::shm::{number, value};
use mimo_cache::remote::{Lost, Remote};
use proptest::prelude::*;
use proptest::test_runner::{Config, FileFailurePersistence};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

const NAMES: u64 = 6;
const LEN: usize = 3000;

#[derive(Debug, Clone)]
enum Do {
    Offer(u64),
    Get(u64),
    Delete(u64),
    /// A get and a delete at once.
    Race(u64),
    Wait(u64),
    Fail(Call, Fault),
    Restart,
}

fn any_fault() -> impl Strategy<Value = (Call, Fault)> {
    let put = prop_oneof![
        Just(Fault::Refused),
        Just(Fault::Unsure),
        Just(Fault::Hang),
        Just(Fault::HangAfter),
        (0..4000u64).prop_map(Fault::Late),
        (0..3000u64).prop_map(Fault::Slow),
    ];
    let get = prop_oneof![
        Just(Fault::Refused),
        Just(Fault::Hang),
        Just(Fault::Cut),
        (0..3000u64).prop_map(Fault::Slow),
        any::<u32>().prop_map(Fault::Flip),
        (1..5000u32).prop_map(Fault::Short),
        (1..5000u32).prop_map(Fault::Long),
        any::<u64>().prop_map(Fault::Length),
    ];
    let delete = prop_oneof![
        Just(Fault::Refused),
        Just(Fault::Unsure),
        Just(Fault::Hang),
        Just(Fault::HangAfter),
        (0..3000u64).prop_map(Fault::Slow),
    ];
    prop_oneof![
        put.prop_map(|f| (Call::Put, f)),
        get.prop_map(|f| (Call::Get, f)),
        delete.prop_map(|f| (Call::Delete, f)),
    ]
}

fn any_do(faults: bool) -> impl Strategy<Value = Do> {
    prop_oneof![
        4 => (0..NAMES).prop_map(Do::Offer),
        4 => (0..NAMES).prop_map(Do::Get),
        2 => (0..NAMES).prop_map(Do::Delete),
        1 => (0..NAMES).prop_map(Do::Race),
        3 => prop_oneof![0..100u64, 0..20_000u64].prop_map(Do::Wait),
        u32::from(faults) * 3 => any_fault().prop_map(|(call, fault)| Do::Fail(call, fault)),
        u32::from(!faults) => Just(Do::Restart),
    ]
}

/// Which seed a value was made from.
fn seed_of(found: &[u8], seeds: &BTreeSet<u64>) -> Option<u64> {
    seeds.iter().copied().find(|seed| found[..LEN] == value(*seed, LEN)[..])
}

async fn get(remote: &Arc<Remote>, n: u64) -> Option<Vec<u8>> {
    let read = match remote.open(&name(n)).await {
        Ok(opened) => opened.read().await,
        Err(lost) => Err(lost),
    };
    match read {
        Ok((found, _)) => Some(found.value.to_vec()),
        Err(Lost::Absent | Lost::Damaged(_) | Lost::Failed(_)) => None,
    }
}

async fn run(faults: bool, script: Vec<Do>) {
    let fake = Fake::default();
    let start = |fake: &Fake| {
        let remote = Remote::new(Arc::new(fake.clone()), config());
        let writers = remote.start(&tokio::runtime::Handle::current());
        (remote, writers)
    };
    let (mut remote, mut writers) = start(&fake);
    let mut may: Vec<BTreeSet<u64>> = vec![BTreeSet::new(); NAMES as usize];
    for (seed, step) in script.into_iter().enumerate() {
        let seed = 1000 + seed as u64;
        match step {
            Do::Offer(n) => {
                if offer(&remote, n, seed, LEN) {
                    may[n as usize].insert(seed);
                }
            }
            Do::Get(n) if !faults => {
                // What is reported is what is found, but for what is known from before and not listed yet.
                let (said, found) = (reported(&remote, n), get(&remote, n).await);
                assert!(!said || found.is_some(), "object {n} was reported and is not found");
                assert_eq!(reported(&remote, n), found.is_some(), "object {n} was read");
                assert_eq!(found.is_none(), may[n as usize].is_empty(), "object {n}");
                assert!(found.is_none_or(|found| seed_of(&found, &may[n as usize]).is_some()));
            }
            Do::Get(n) => {
                if let Some(found) = get(&remote, n).await {
                    assert!(seed_of(&found, &may[n as usize]).is_some(), "object {n} has bytes of nobody");
                }
            }
            Do::Delete(n) => {
                let deleted = remote.forget(vec![name(n)]).delete().await;
                assert!(faults || deleted.is_ok(), "{deleted:?}");
                if deleted.is_ok() {
                    may[n as usize].clear();
                }
            }
            Do::Race(n) => {
                let (reader, seeds) = (remote.clone(), may[n as usize].clone());
                let read = tokio::spawn(async move { get(&reader, n).await });
                tokio::task::yield_now().await;
                if remote.forget(vec![name(n)]).delete().await.is_ok() {
                    may[n as usize].clear();
                }
                if let Some(found) = read.await.unwrap() {
                    assert!(seed_of(&found, &seeds).is_some());
                }
            }
            Do::Wait(millis) => tokio::time::sleep(Duration::from_millis(millis)).await,
            Do::Fail(call, fault) => fake.next(call, fault),
            Do::Restart => {
                assert_eq!(remote.drain(Duration::from_secs(600)).await, 0);
                drop(writers);
                (remote, writers) = start(&fake);
            }
        }
    }
    // What is wrong with the store ends, and so does all trouble.
    fake.mend();
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!((remote.stats().queue_bytes, remote.stats().queued), (0, 0));
    for n in 0..NAMES {
        let found = get(&remote, n).await;
        assert!(found.is_none() || seed_of(&found.unwrap_or_default(), &may[n as usize]).is_some(), "object {n}");
    }
    drop(writers);
    assert_eq!(remote.stats().trouble, "");
}

fn cases(default: u64) -> Config {
    let cases = (number("MIMO_CASES", default) * number("MIMO_SOAK", 1)) as u32;
    let persistence = FileFailurePersistence::Direct("tests/remote_machine.regressions");
    Config { cases, failure_persistence: Some(Box::new(persistence)), ..Config::default() }
}

fn runs(faults: bool, script: Vec<Do>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(run(faults, script));
}

proptest! {
    #![proptest_config(cases(150))]

    #[test]
    fn without_faults_everything_is_found(script in prop::collection::vec(any_do(false), 1..60)) {
        runs(false, script);
    }

    #[test]
    fn with_faults_nothing_wrong_and_nothing_deleted_is_found(script in prop::collection::vec(any_do(true), 1..80)) {
        runs(true, script);
    }
}
