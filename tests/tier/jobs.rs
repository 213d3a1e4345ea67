//! Jobs of the copier under way together: waits, cancels, back-pressure, order, ends; and everything that is refused.

use super::world::{Array, Shape, World, all_pages, assert_done, deep};
use mimo_cache::tier::{
    Copier, CopierConfig, Direction, HostRegion, Hugepages, Layout, Outcome, Pair, Part, PoolGroup, TierError,
};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Pages of the jobs that tests want to catch under way: 20 MB, some milliseconds of copying.
const PAGES: u32 = 32;
/// Tries to catch a job under way, which a busy machine may spoil.
const TRIES: usize = 200;

fn small() -> Shape {
    let array = |layer| Array { layer, parts: vec![100], padding: 0 };
    Shape { arrays: [vec![array(0), array(1)], vec![array(1)]], device_pages: [4, 3], host_pages: [5, 2] }
}

#[test]
fn a_layer_is_read_while_the_rest_is_copied() {
    let world = World::new(&deep(PAGES));
    let pairs = all_pages(PAGES);
    for threads in [1, 3] {
        let copier = world.copier(threads);
        let mut early = 0;
        // A busy machine may wake a waiter so late that everything is there by then.
        for seed in 0..TRIES {
            world.fill(10_000 * seed);
            let job = copier.submit(Direction::Load, &pairs, &pairs).unwrap();
            for (layer, group) in (0..16).map(|l| (l, [PoolGroup::Swa, PoolGroup::Full][usize::from(l % 4 == 0)])) {
                assert_done(&job.wait_layer(layer, None).unwrap());
                early += usize::from(!job.done());
                let shape = world.device.layout().group(group);
                for n in (0..shape.parts().len()).filter(|n| shape.parts()[*n].layer == layer) {
                    for pair in &pairs {
                        let got = world.part(group, n, pair.device);
                        assert!(got == world.host_part(group, n, pair.host), "layer {layer}, page {}", pair.device);
                    }
                }
            }
            let times = job.times();
            assert!(times.windows(2).all(|two| two[0].ready_ns <= two[1].ready_ns));
            assert!(times.iter().all(|t| t.copied_ns > 0 && t.waited_ns > 0));
            if seed >= 2 && early > 0 {
                break;
            }
        }
        assert!(early > 0, "no layer was seen before its job was over");
    }
}

#[test]
fn a_cancelled_job_writes_nothing_any_more() {
    let world = World::new(&deep(PAGES));
    let pairs = all_pages(PAGES);
    let copier = world.copier(2);
    let cancelled = (0..TRIES).any(|n| {
        world.fill(10_000 * n);
        let job = copier.submit(Direction::Load, &pairs, &pairs).unwrap();
        assert_done(&job.wait_layer(1, None).unwrap());
        job.cancel();
        let outcome = job.wait(None);
        let after = world.snapshot();
        std::thread::sleep(Duration::from_millis(5));
        assert!(world.snapshot() == after, "written after the wait");
        if outcome == Outcome::Cancelled {
            assert_eq!(job.wait_layer(1, None).unwrap(), Outcome::Cancelled, "its pages may be anybody's by now");
            assert!(job.progress().copied < job.progress().bytes);
            job.cancel();
            assert_eq!(job.outcome(), Outcome::Cancelled);
        }
        outcome == Outcome::Cancelled
    });
    assert!(cancelled);
    assert_eq!(copier.in_flight(), (0, 0));
}

#[test]
fn many_threads_wait_for_one_job() {
    let world = World::new(&deep(PAGES));
    let pairs = all_pages(PAGES);
    let copier = world.copier(2);
    let job = copier.submit(Direction::Load, &pairs, &pairs).unwrap();
    std::thread::scope(|scope| {
        for n in 0..16u32 {
            let job = &job;
            scope.spawn(move || {
                assert_done(&job.wait_layer(n, None).unwrap());
                assert!(job.progress().ready > n as usize);
                assert_done(&job.wait(None));
            });
        }
    });
    assert!(job.done());
    assert_eq!(job.wait_layer(99, Some(Duration::ZERO)).unwrap(), Outcome::Done, "a layer beyond the last");
    assert_eq!(job.wait(Some(Duration::ZERO)), Outcome::Done);
}

#[test]
fn a_full_queue_refuses_and_goes_on() {
    let world = World::new(&deep(PAGES));
    let pairs = all_pages(PAGES);
    let (device, host) = (Arc::clone(&world.device), Arc::clone(&world.host));
    let one = CopierConfig { max_jobs: 2, ..CopierConfig::default() };
    let copier = Copier::new(Arc::clone(&device), Arc::clone(&host), one).unwrap();
    let submit = |copier: &Copier| copier.submit(Direction::Save, &pairs, &pairs);
    let busy = (0..TRIES).find_map(|_| submit(&copier).err()).expect("a third job while two are under way");
    assert!(matches!(busy, TierError::Busy { what: "jobs", in_flight: 2, asked: 1, limit: 2 }), "{busy}");
    assert!(copier.in_flight().0 <= 2);
    drop(copier);
    // Less than a job: taken alone, refused beside another.
    let few = CopierConfig { max_bytes: 1000, ..CopierConfig::default() };
    let copier = Copier::new(device, host, few).unwrap();
    let busy = (0..TRIES).find_map(|_| submit(&copier).err()).expect("a job beside a larger one");
    assert!(matches!(busy, TierError::Busy { what: "bytes", limit: 1000, .. }), "{busy}");
    loop {
        match submit(&copier) {
            Ok(job) => break assert_done(&job.wait(None)),
            Err(error) => assert!(matches!(error, TierError::Busy { .. })),
        }
    }
}

#[test]
fn loads_overtake_saves_and_both_end() {
    let world = World::new(&deep(PAGES));
    let (saved, loaded) = (all_pages(PAGES - 1), [Pair { device: PAGES, host: PAGES }]);
    let copier = world.copier(1);
    let overtaken = (0..TRIES).any(|_| {
        let saves = [0, 1].map(|_| copier.submit(Direction::Save, &saved, &saved).unwrap());
        let load = copier.submit(Direction::Load, &loaded, &loaded).unwrap();
        assert_done(&load.wait(None));
        let overtaken = saves[1].progress().copied == 0 && !saves[1].done();
        saves.iter().for_each(|save| assert_done(&save.wait(None)));
        overtaken
    });
    assert!(overtaken);
}

#[test]
fn dropping_the_copier_ends_its_jobs_and_lets_the_memory_go() {
    let World { arrays, gone, device, host } = World::new(&deep(PAGES));
    drop(arrays);
    let (watched, pairs) = (Arc::downgrade(&host), all_pages(PAGES));
    let copier = Copier::new(device, host, CopierConfig { threads: 2, ..CopierConfig::default() }).unwrap();
    let jobs: Vec<_> = (0..60).map(|_| copier.submit(Direction::Save, &pairs, &pairs).unwrap()).collect();
    let waiting = jobs.clone();
    let waiter = std::thread::spawn(move || waiting.iter().map(|job| job.wait(None)).collect::<Vec<_>>());
    drop(copier);
    assert!(gone.load(Ordering::SeqCst) && watched.upgrade().is_none(), "handles of jobs keep no memory");
    let outcomes = waiter.join().unwrap();
    assert!(outcomes.iter().all(|o| [Outcome::Done, Outcome::Cancelled].contains(o)), "{outcomes:?}");
    assert!(outcomes.contains(&Outcome::Cancelled), "sixty jobs were done before the copier went");
    jobs[59].cancel();
    assert_eq!(jobs[59].outcome(), outcomes[59]);
}

#[test]
fn a_job_keeps_the_memory() {
    let World { arrays, gone, device, host } = World::new(&deep(PAGES));
    let pairs = all_pages(PAGES);
    let copier = Copier::new(device, host, CopierConfig::default()).unwrap();
    drop(arrays);
    let job = copier.submit(Direction::Save, &pairs, &pairs).unwrap();
    assert!(!gone.load(Ordering::SeqCst));
    assert_done(&job.wait(None));
    drop(copier);
    assert!(gone.load(Ordering::SeqCst));
}

#[test]
fn bad_jobs_are_refused_and_nothing_is_copied() {
    let world = World::new(&small());
    let copier = world.copier(1);
    let before = world.snapshot();
    let pair = |device, host| Pair { device, host };
    let good = pair(1, 1);
    let cases: [(Direction, &[Pair], &[Pair], &str); 9] = [
        (Direction::Load, &[good, pair(4, 2)], &[], "device page is 4 (full), allowed is 1 to 3"),
        (Direction::Load, &[good, pair(2, 6)], &[], "host page is 6 (full), allowed is 1 to 5"),
        (Direction::Load, &[good], &[pair(3, 1)], "device page is 3 (swa), allowed is 1 to 2"),
        (Direction::Save, &[good], &[pair(1, u32::MAX)], "host page is 4294967295 (swa), allowed is 1 to 2"),
        (Direction::Save, &[pair(0, 1)], &[], "device page is 0, the null page (full), allowed is 1 to 3"),
        (Direction::Load, &[pair(1, 0)], &[], "host page is 0, the null page (full), allowed is 1 to 5"),
        (
            Direction::Load,
            &[good, pair(1, 2)],
            &[],
            "page that a job writes is 1 (full), twice, allowed is each page once",
        ),
        (Direction::Save, &[], &[pair(1, 2), pair(2, 2)], "page that a job writes is 2 (swa), twice"),
        (Direction::Load, &[good; 1000], &[], "page that a job writes is 1 (full), twice"),
    ];
    for (direction, full, swa, words) in cases {
        let error = copier.submit(direction, full, swa).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
    assert!(world.snapshot() == before);
    assert_eq!(copier.in_flight(), (0, 0));
    // One source may serve two pages.
    assert_done(&copier.submit(Direction::Load, &[good, pair(2, 1)], &[]).unwrap().wait(None));
    assert_done(&copier.submit(Direction::Load, &[], &[]).unwrap().wait(Some(Duration::ZERO)));
    let save = copier.submit(Direction::Save, &[good], &[]).unwrap();
    assert!(save.wait_layer(0, None).unwrap_err().to_string().contains("layer to wait for is 0 of a save"));
}

#[test]
fn bad_layouts_and_regions_are_refused() {
    let part = |base, page_stride, bytes, layer| Part { base, page_stride, bytes, layer };
    let refused = |parts: &[Part], pages, words: &str| {
        let error = Layout::new(parts.to_vec(), pages, vec![], 0).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    };
    refused(&[], 0, "number of groups with parts is 0");
    refused(&[], 5, "number of a group's parts is 0 (full, 5 pages)");
    refused(&[part(4096, 8, 8, 0)], 1, "number of a group's pages is 1 (full)");
    refused(&[part(4096, 8, 0, 0)], 2, "bytes of a part is 0 (part 0 of full)");
    refused(&[part(4096, 7, 8, 0)], 2, "page stride of a part is 7 (part 0 of full), allowed is at least");
    refused(&[part(usize::MAX - 15, 8, 8, 0)], 3, "base of a part is 18446744073709551600");
    refused(&[part(4096, usize::MAX / 2, 8, 0)], 4, "base of a part is 4096");
    refused(&[part(4096, 8, 8, 3), part(8192, 8, 8, 2)], 2, "layer of a part is 2 after 3 (part 1 of full)");
    refused(&[part(4096, 16, 9, 0), part(4104, 16, 8, 0)], 4, "place of a part is at bytes of part 0");
    refused(&[part(4096, 16, 8, 0), part(4100, 24, 8, 0)], 4, "place of a part is at bytes of part 0");
    refused(&[part(4096, 1 << 50, 1 << 50, 0)], 4096, "bytes of a group is more than can be addressed");
    refused(&vec![part(4096, 8, 8, 0); 5000], 2, "number of a group's parts is 5000");

    let layout = Layout::new(vec![part(4096, 16, 8, 0), part(4104, 16, 8, 2)], 4, vec![], 0).unwrap();
    let refused = |full, swa, words: &str| {
        let error = HostRegion::new(&layout, full, swa, Hugepages::Auto).unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
        error
    };
    refused(0, 0, "host pages is 0 (full), allowed is 1 to");
    refused(1, 1, "host pages is 1 (swa), allowed is 0");
    refused(u32::MAX, 0, "host pages is 4294967295 (full)");
    let error = refused(u32::MAX - 1, 0, "the machine (MemAvailable of /proc/meminfo) can spare");
    assert!(matches!(error, TierError::Memory { bytes, .. } if bytes >= 4096 * u64::from(u32::MAX - 1)));

    let world = World::new(&small());
    let other = Arc::new(HostRegion::new(&layout, 3, 0, Hugepages::Auto).unwrap());
    let make = |host, config| Copier::new(Arc::clone(&world.device), host, config).unwrap_err().to_string();
    let config = CopierConfig::default();
    assert!(make(other, config).contains("host region is one with pages of other sizes"));
    let host = || Arc::clone(&world.host);
    assert!(make(host(), CopierConfig { threads: 0, ..config }).contains("threads is 0, allowed is 1 to 64"));
    assert!(make(host(), CopierConfig { max_jobs: 0, ..config }).contains("max_jobs is 0"));
    assert!(make(host(), CopierConfig { max_bytes: 0, ..config }).contains("max_bytes is 0"));
}

#[test]
fn pages_of_the_region_are_aligned_and_zero() {
    let world = |hugepages| {
        let part = |base, layer| Part { base, page_stride: 5000, bytes: 5000, layer };
        let layout = Layout::new(vec![part(1 << 20, 0)], 3, vec![part(1 << 21, 1), part(1 << 22, 1)], 3).unwrap();
        HostRegion::new(&layout, 700, 3, hugepages).unwrap()
    };
    for region in [Hugepages::Auto, Hugepages::Off].map(world) {
        assert_eq!(PoolGroup::BOTH.map(|group| region.page_bytes(group)), [8192, 12288]);
        let first = PoolGroup::BOTH.map(|group| region.page(group, 1).unwrap().0 as usize);
        assert!(first.iter().all(|address| address.is_multiple_of(2 << 20)), "{first:?}");
        assert_eq!(first[1] - first[0], (700usize * 8192).next_multiple_of(2 << 20));
        assert_eq!(region.page(PoolGroup::Full, 700).unwrap().0 as usize, first[0] + 699 * 8192);
        for group in PoolGroup::BOTH {
            for id in 1..=region.pages(group) {
                let (start, len) = region.page(group, id).unwrap();
                // SAFETY: a page of a region that no copier has.
                assert!(unsafe { std::slice::from_raw_parts(start, len) }.iter().all(|byte| *byte == 0));
            }
            assert!(region.page(group, 0).unwrap_err().to_string().contains("the null page"));
            assert!(region.page(group, region.pages(group) + 1).is_err());
        }
    }
}
