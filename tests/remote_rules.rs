//! The remote tier alone over a store that fails: what is found, what is not, and what is asked. Time is tokio's and does not
//! pass by itself.
#![cfg(all(feature = "gcache", target_os = "linux"))]

mod remote;
mod shm;

#[path = "remote/machine.rs"]
mod machine;

use mimo_cache::remote::{Found, Lost, Remote, RemoteConfig, Writers};
use remote::{Call, Fake, Fault, config, name, offer, reported};
use shm::value;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::time::sleep;

fn open(fake: &Fake, config: RemoteConfig) -> (Arc<Remote>, Writers) {
    let remote = Remote::new(Arc::new(fake.clone()), config);
    let writers = remote.start(&Handle::current());
    (remote, writers)
}

async fn get(remote: &Arc<Remote>, n: u64) -> Result<Found, Lost> {
    Ok(remote.open(&name(n)).await?.read().await?.0)
}

async fn delete(remote: &Arc<Remote>, n: u64) -> Result<(), String> {
    remote.forget(vec![name(n)]).delete().await
}

async fn stored(remote: &Arc<Remote>, n: u64, len: usize) {
    assert!(offer(remote, n, n, len));
    assert_eq!(remote.drain(Duration::from_secs(60)).await, 0);
}

fn is(found: Result<Found, Lost>, seed: u64, len: usize) {
    let found = found.unwrap();
    assert!(found.value[..len] == value(seed, len) && found.meta.len == len as u64, "other bytes");
}

#[tokio::test(start_paused = true)]
async fn what_is_offered_is_found_before_and_after_it_is_written_and_by_the_next_process() {
    let fake = Fake::default();
    let remote = Remote::new(Arc::new(fake.clone()), config());
    for (n, len) in [(1, 1), (2, 4096), (3, 700_000)] {
        assert!(offer(&remote, n, n, len));
        is(get(&remote, n).await, n, len);
    }
    assert_eq!(fake.calls(Call::Get), 0, "read from the queue");
    let writers = remote.start(&Handle::current());
    assert_eq!(remote.drain(Duration::from_secs(60)).await, 0);
    drop(writers);
    assert_eq!(fake.names().len(), 3);
    assert!(fake.names()[0].starts_with("kv/node-1/0000000000000007/"), "{:?}", fake.names());
    for again in [remote, Remote::new(Arc::new(fake.clone()), config())] {
        for (n, len) in [(1, 1), (2, 4096), (3, 700_000)] {
            is(get(&again, n).await, n, len);
        }
    }
    let other = Remote::new(Arc::new(fake.clone()), RemoteConfig { node: "node-2".into(), ..config() });
    assert_eq!(get(&other, 1).await.unwrap_err(), Lost::Absent, "another node's are its own");
}

#[tokio::test(start_paused = true)]
async fn the_first_writer_wins() {
    let fake = Fake::default();
    let (remote, _writers) = open(&fake, config());
    stored(&remote, 1, 5000).await;
    let (next, _more) = open(&fake, config());
    assert!(offer(&next, 1, 99, 5000));
    assert_eq!(next.drain(Duration::from_secs(60)).await, 0);
    is(get(&next, 1).await, 1, 5000);
    assert_eq!((next.stats().totals.present, next.stats().totals.stored), (1, 0));
    assert!(!next.wants(&name(1), 5000), "it is known to be there, so it is not read from disk again");
}

#[tokio::test(start_paused = true)]
async fn the_queue_is_bounded_and_drops_are_counted() {
    let fake = Fake::default();
    let remote = Remote::new(Arc::new(fake.clone()), config());
    let taken = (0..40).filter(|n| remote.wants(&name(*n), 65_536) && offer(&remote, *n, *n, 65_536)).count();
    assert_eq!((taken, remote.stats().queue_bytes), (16, 1 << 20));
    assert_eq!(remote.stats().totals.dropped, 24);
    let large = Remote::new(Arc::new(fake), config());
    assert!(offer(&large, 1, 1, 3 << 20), "one value may always wait");
    assert!(!offer(&large, 2, 2, 1));
}

#[tokio::test(start_paused = true)]
async fn misses_are_asked_once_in_a_while() {
    let fake = Fake::default();
    let (remote, _writers) = open(&fake, config());
    for _ in 0..5 {
        assert_eq!(get(&remote, 1).await.unwrap_err(), Lost::Absent);
    }
    assert!(!remote.may_have(&name(1)) && remote.may_have(&name(2)));
    assert_eq!((fake.calls(Call::Get), remote.stats().totals.known_misses), (1, 4));
    sleep(config().remember_absent).await;
    assert_eq!(get(&remote, 1).await.unwrap_err(), Lost::Absent);
    assert_eq!(fake.calls(Call::Get), 2);
    stored(&remote, 1, 10).await;
    is(get(&remote, 1).await, 1, 10);
}

#[tokio::test(start_paused = true)]
async fn bytes_that_are_not_right_are_no_value() {
    let fake = Fake::default();
    let (remote, _writers) = open(&fake, config());
    stored(&remote, 1, 1_500_000).await;
    let object = 128 + 8 + 1_500_000;
    let mut faults: Vec<Fault> = (0..object * 8).step_by(400_009).map(Fault::Flip).collect();
    faults.extend((0..136 * 8).step_by(7).map(Fault::Flip));
    faults.extend([1, 100, 1_499_999, 1_500_100].map(Fault::Short));
    faults.extend([1, 5000].map(Fault::Long));
    faults.extend([0, 1, 127, 128, 136, 640, 1 << 20, 128 << 20, 1 << 40, u64::MAX].map(Fault::Length));
    faults.push(Fault::Cut);
    for fault in faults {
        fake.next(Call::Get, fault);
        let lost = get(&remote, 1).await.unwrap_err();
        // In the field of the version it is another version's.
        let version = matches!(fault, Fault::Flip(64..96));
        assert_eq!(lost == Lost::Absent, version, "{fault:?}: {lost:?}");
        // One good call between, so that the tier does not rest.
        is(get(&remote, 1).await, 1, 1_500_000);
    }
}

#[tokio::test(start_paused = true)]
async fn an_object_of_another_value_is_damaged_and_is_removed() {
    let fake = Fake::default();
    let (remote, _writers) = open(&fake, config());
    stored(&remote, 1, 5000).await;
    stored(&remote, 2, 6000).await;
    let names = fake.names();
    let other = if names[0].contains(&hex(1)) { 1 } else { 0 };
    let mut bytes = Vec::new();
    fake.change(&names[other], |b| bytes = b.clone());
    fake.change(&names[1 - other], |b| *b = bytes);
    let Err(Lost::Damaged(why)) = get(&remote, 1).await else { panic!("found under another's name") };
    remote.is_damaged(&name(1), why).await;
    assert_eq!((fake.names().len(), remote.stats().totals.damaged), (1, 1));
    stored(&remote, 1, 5000).await;
    is(get(&remote, 1).await, 1, 5000);
}

fn hex(n: u64) -> String {
    shm::key(n).iter().map(|b| format!("{b:02x}")).collect()
}

#[tokio::test(start_paused = true)]
async fn an_object_of_another_version_stays_as_it_is() {
    let fake = Fake::default();
    let (remote, _writers) = open(&fake, config());
    stored(&remote, 1, 5000).await;
    fake.change(&fake.names()[0], |b| b[8] = 2);
    for _ in 0..5 {
        assert_eq!(get(&remote, 1).await.unwrap_err(), Lost::Absent);
    }
    assert_eq!((fake.names().len(), remote.stats().totals.other_version), (1, 5));
    assert_eq!(remote.stats().trouble, "");
}

#[tokio::test(start_paused = true)]
async fn a_store_that_hangs_costs_a_few_timeouts_and_then_none() {
    let fake = Fake::default();
    let (remote, _writers) = open(&fake, config());
    stored(&remote, 1, 5000).await;
    fake.always(Fault::Hang);
    let start = tokio::time::Instant::now();
    for n in 0..100 {
        assert!(get(&remote, n).await.is_err());
    }
    assert_eq!(start.elapsed(), 3 * config().read_timeout, "three failures, then rest");
    assert!(!remote.may_have(&name(5)) && remote.stats().trouble.contains("no answer within 2000 ms"));
    assert!(delete(&remote, 1).await.unwrap_err().contains("may come back"));
    fake.mend();
    sleep(Duration::from_secs(31)).await;
    is(get(&remote, 1).await, 1, 5000);
    assert_eq!(remote.stats().trouble, "");
}

#[tokio::test(start_paused = true)]
async fn writes_are_tried_again_and_given_up() {
    let fake = Fake::default();
    let (remote, _writers) = open(&fake, config());
    fake.next(Call::Put, Fault::Refused);
    stored(&remote, 1, 100).await;
    assert_eq!((remote.stats().totals.stored, remote.stats().totals.retries), (1, 1));
    fake.next(Call::Put, Fault::Unsure);
    stored(&remote, 2, 100).await;
    assert_eq!(remote.stats().totals.present, 1, "the second try finds what the first has written");
    fake.next(Call::Put, Fault::Refused);
    fake.next(Call::Put, Fault::Refused);
    stored(&remote, 3, 100).await;
    assert_eq!(remote.stats().totals.failed, 1);
    assert_eq!((fake.names().len(), remote.stats().queue_bytes), (2, 0));
    assert_eq!(get(&remote, 3).await.unwrap_err(), Lost::Absent);
}

#[tokio::test(start_paused = true)]
async fn a_delete_answers_when_the_store_has_confirmed_it() {
    let fake = Fake::default();
    let (remote, _writers) = open(&fake, config());
    stored(&remote, 1, 5000).await;
    fake.next(Call::Delete, Fault::Refused);
    delete(&remote, 1).await.unwrap();
    assert_eq!((fake.names().len(), remote.stats().totals.retries), (0, 1));
    assert_eq!(get(&remote, 1).await.unwrap_err(), Lost::Absent);
    let calls = fake.calls(Call::Delete);
    delete(&remote, 1).await.unwrap();
    assert_eq!(fake.calls(Call::Delete), calls, "it is known to be gone");
    stored(&remote, 2, 5000).await;
    fake.next(Call::Delete, Fault::Refused);
    fake.next(Call::Delete, Fault::Hang);
    let start = tokio::time::Instant::now();
    assert!(delete(&remote, 2).await.unwrap_err().contains("did not confirm"));
    assert_eq!(start.elapsed(), config().read_timeout, "with all its tries");
    assert_eq!(fake.names().len(), 1);
    delete(&remote, 2).await.unwrap();
    assert_eq!(get(&remote, 2).await.unwrap_err(), Lost::Absent);
}

#[tokio::test(start_paused = true)]
async fn what_is_deleted_in_the_queue_is_not_written() {
    let fake = Fake::default();
    let remote = Remote::new(Arc::new(fake.clone()), config());
    assert!(offer(&remote, 1, 1, 5000) && offer(&remote, 2, 2, 5000));
    delete(&remote, 1).await.unwrap();
    let _writers = remote.start(&Handle::current());
    assert_eq!(remote.drain(Duration::from_secs(60)).await, 0);
    assert_eq!(fake.names().len(), 1);
    is(get(&remote, 2).await, 2, 5000);
}

#[tokio::test(start_paused = true)]
async fn a_delete_waits_for_the_write_that_runs() {
    let fake = Fake::default();
    let (remote, _writers) = open(&fake, config());
    fake.next(Call::Put, Fault::Slow(1000));
    assert!(offer(&remote, 1, 1, 5000));
    sleep(Duration::from_millis(10)).await;
    delete(&remote, 1).await.unwrap();
    sleep(Duration::from_secs(5)).await;
    assert_eq!((fake.names().len(), fake.calls(Call::Put)), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn what_may_have_been_written_cannot_be_deleted_for_sure_until_it_has_settled() {
    let fake = Fake::default();
    let (remote, _writers) = open(&fake, config());
    fake.next(Call::Put, Fault::HangAfter);
    fake.next(Call::Put, Fault::Hang);
    stored(&remote, 1, 5000).await;
    assert!(!offer(&remote, 1, 2, 5000), "another write would hide that the last one is unsettled");
    let refused = delete(&remote, 1).await.unwrap_err();
    assert!(refused.contains("may take effect yet") && refused.contains("in 6 s"), "{refused}");
    sleep(Duration::from_secs(6)).await;
    delete(&remote, 1).await.unwrap();
    assert_eq!(fake.names().len(), 0);
    stored(&remote, 1, 5000).await;
}

#[tokio::test(start_paused = true)]
async fn a_read_that_began_before_a_delete_gives_nothing_after_it() {
    let fake = Fake::default();
    let (remote, _writers) = open(&fake, config());
    stored(&remote, 1, 5000).await;
    let opened = remote.open(&name(1)).await.unwrap();
    let forgotten = remote.forget(vec![name(1)]);
    assert_eq!(get(&remote, 1).await.unwrap_err(), Lost::Absent, "from when the delete begins");
    assert_eq!(opened.read().await.unwrap_err(), Lost::Absent);
    forgotten.delete().await.unwrap();
    stored(&remote, 2, 10).await;
    let (_, guard) = remote.open(&name(2)).await.unwrap().read().await.unwrap();
    let _forgotten = remote.forget(vec![name(2)]);
    assert!(guard.is_gone(), "whoever holds a value learns of it");
}

#[tokio::test(start_paused = true)]
async fn what_is_offered_or_listed_or_read_is_reported_until_it_is_gone() {
    let fake = Fake::default();
    let (remote, writers) = open(&fake, config());
    for n in 1..=3 {
        stored(&remote, n, 5000).await;
        assert!(reported(&remote, n), "from when it is offered");
    }
    assert!(!reported(&remote, 4));
    delete(&remote, 1).await.unwrap();
    assert!(!reported(&remote, 1));
    // The store drops one by a rule of its own: the first read tells.
    fake.drop_object(&fake.names()[0]);
    let found = [get(&remote, 2).await.is_ok(), get(&remote, 3).await.is_ok()];
    assert_eq!([reported(&remote, 2), reported(&remote, 3)], found);
    let left = if found[0] { 2 } else { 3 };
    fake.next(Call::Put, Fault::Refused);
    fake.next(Call::Put, Fault::Refused);
    stored(&remote, 5, 100).await;
    assert!(!reported(&remote, 5), "what could not be written");
    drop(writers);
    // Another process lists what is there. Before that it knows what it has read.
    let next = Remote::new(Arc::new(fake.clone()), config());
    assert!(!reported(&next, left));
    is(get(&next, left).await, left, 5000);
    assert!(reported(&next, left));
    let (next, _writers) = open(&fake, config());
    sleep(Duration::from_millis(1)).await;
    assert!(reported(&next, left) && next.stats().keys == 1);
    assert_eq!(fake.calls(Call::List), 2, "once for each process that starts to write");
}

#[tokio::test(start_paused = true)]
async fn a_listing_that_fails_goes_on_and_one_that_is_forbidden_ends() {
    let fake = Fake::default();
    let (remote, writers) = open(&fake, config());
    for n in 1..=5 {
        stored(&remote, n, 100).await;
    }
    drop(writers);
    fake.next(Call::List, Fault::Cut);
    fake.next(Call::List, Fault::Hang);
    let (next, writers) = open(&fake, config());
    sleep(Duration::from_secs(1)).await;
    assert_eq!(next.stats().keys, 1);
    let trouble = next.stats().trouble;
    sleep(Duration::from_secs(65)).await;
    assert_eq!((next.stats().keys, fake.calls(Call::List), trouble), (5, 4, String::new()));
    drop(writers);
    fake.next(Call::List, Fault::Refused);
    let (next, _writers) = open(&fake, config());
    sleep(Duration::from_secs(600)).await;
    assert_eq!((next.stats().keys, fake.calls(Call::List)), (0, 5));
    is(get(&next, 1).await, 1, 100);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_hangs_is_left_alone_though_nobody_waits_to_the_end() {
    let fake = Fake::default();
    let (remote, _writers) = open(&fake, config());
    stored(&remote, 1, 5000).await;
    fake.always(Fault::Hang);
    let impatient = async |patience: u64| {
        assert!(tokio::time::timeout(Duration::from_millis(patience), get(&remote, 1)).await.is_err());
    };
    for _ in 0..5 {
        impatient(900).await;
    }
    assert!(remote.may_have(&name(1)), "too little patience says nothing");
    for _ in 0..3 {
        impatient(1100).await;
    }
    assert!(!remote.may_have(&name(1)) && !reported(&remote, 1), "{:?}", remote.stats());
    fake.mend();
    sleep(Duration::from_secs(2)).await;
    assert!(reported(&remote, 1));
    is(get(&remote, 1).await, 1, 5000);
}

#[tokio::test(start_paused = true)]
async fn a_delete_of_what_is_being_written_to_a_store_that_hangs_is_refused_in_time() {
    let fake = Fake::default();
    let config = RemoteConfig { timeout: Duration::from_secs(100), ..config() };
    let (remote, _writers) = open(&fake, config.clone());
    fake.next(Call::Put, Fault::HangAfter);
    assert!(offer(&remote, 1, 1, 5000));
    sleep(Duration::from_millis(10)).await;
    let start = tokio::time::Instant::now();
    assert!(delete(&remote, 1).await.unwrap_err().contains("is being written"));
    assert_eq!((start.elapsed(), remote.stats().totals.delete_errors), (config.read_timeout, 1));
    sleep(config.timeout * 5).await;
    delete(&remote, 1).await.unwrap();
    assert_eq!((fake.names().len(), get(&remote, 1).await.unwrap_err()), (0, Lost::Absent));
}

#[tokio::test(start_paused = true)]
async fn what_a_read_says_while_a_write_may_take_effect_yet_is_no_delete() {
    let fake = Fake::default();
    let (remote, _writers) = open(&fake, config());
    // The first try takes effect after the second was answered, and its object deleted.
    fake.next(Call::Put, Fault::Late(2101));
    stored(&remote, 1, 5000).await;
    assert!(delete(&remote, 1).await.unwrap_err().contains("may take effect yet"));
    assert_eq!((fake.names().len(), get(&remote, 1).await.unwrap_err()), (0, Lost::Absent));
    sleep(Duration::from_millis(6000)).await;
    assert_eq!(fake.names().len(), 1);
    delete(&remote, 1).await.unwrap();
    assert_eq!((fake.names().len(), get(&remote, 1).await.unwrap_err()), (0, Lost::Absent));
}
