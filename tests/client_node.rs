//! The client beside a real node in this process: too little memory, and values that are too long for the node.
#![cfg(all(feature = "gcache", target_os = "linux"))]

use mimo_cache::client::{Client, ClientConfig, Destination, GetItem, Got, Miss, ObjectId, PutItem, Stored};
use mimo_cache::node::{Node, NodeConfig};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};

/// Has no blocks of this size or more.
static NONE_FROM: AtomicUsize = AtomicUsize::new(usize::MAX);

struct Short;

// SAFETY: everything is the system's, or refused.
unsafe impl GlobalAlloc for Short {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.size() >= NONE_FROM.load(Ordering::Relaxed) {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if size >= NONE_FROM.load(Ordering::Relaxed) {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller's promise.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Short = Short;

/// Memory is short for all tests at once, so they take turns.
static TURN: Mutex<()> = Mutex::new(());

struct World {
    client: Client,
    runtime: tokio::runtime::Runtime,
    node: Option<Node>,
    path: String,
    _turn: MutexGuard<'static, ()>,
}

impl World {
    fn new() -> World {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let turn = TURN.lock().unwrap_or_else(|e| e.into_inner());
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("mimo-client-{}-{number}", std::process::id()));
        let path = path.display().to_string();
        let text = format!(
            "name = 'a'\nlisten = ['127.0.0.1:0']\n[memory]\npath = '{path}'\nsize = '24MiB'\nprefault = false\n"
        );
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (node, _) = runtime.block_on(Node::start(NodeConfig::read(&text, &[]).unwrap())).unwrap();
        let config = ClientConfig { deadline: std::time::Duration::from_secs(30), ..ClientConfig::default() };
        let member = format!("a={}", node.addresses()[0]).parse().unwrap();
        let client = Client::of(config, vec![member]).unwrap();
        World { client, runtime, node: Some(node), path, _turn: turn }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        NONE_FROM.store(usize::MAX, Ordering::Relaxed);
        if let Some(node) = self.node.take() {
            // It need not wait for the client's connections.
            self.runtime.spawn(node.stop());
        }
        let _ = std::fs::remove_file(&self.path);
    }
}

fn id(n: u8) -> ObjectId {
    ObjectId { key: [n; 32], part: 0, extent: [n; 32] }
}

#[test]
fn a_value_that_no_memory_is_left_for_is_a_miss_and_the_others_come() {
    let world = World::new();
    let (long, short) = (vec![7u8; 9 << 20], vec![8u8; 4000]);
    let items = [PutItem::new(id(1), &short), PutItem::new(id(2), &long), PutItem::new(id(3), &short)];
    assert_eq!(world.client.put(&items, None).unwrap(), [Stored::Stored, Stored::Stored, Stored::Stored]);
    NONE_FROM.store(5 << 20, Ordering::Relaxed);
    let mut gets = [1, 2, 3].map(|n| GetItem::new(id(n), Destination::Grow(Vec::new())));
    world.client.get(&mut gets, None).unwrap();
    assert!(gets[0].got.is_hit() && gets[2].got.is_hit());
    assert_eq!(gets[1].got, Got::Miss(Miss::NoMemory));
    for get in [&gets[0], &gets[2]] {
        assert!(matches!(&get.into, Destination::Grow(value) if *value == short));
    }
    assert!(matches!(&gets[1].into, Destination::Grow(value) if value.capacity() == 0));
    NONE_FROM.store(usize::MAX, Ordering::Relaxed);
    world.client.get(&mut gets[1..2], None).unwrap();
    assert!(gets[1].got.is_hit());
}

#[test]
fn what_cannot_be_copied_for_the_way_is_not_put() {
    let world = World::new();
    let long = vec![7u8; 3 << 20];
    NONE_FROM.store(1 << 20, Ordering::Relaxed);
    let stored = world.client.put(&[PutItem::new(id(1), &long)], None).unwrap();
    assert_eq!(stored, [Stored::Dropped(Miss::NoMemory)]);
    assert_eq!(world.client.put_later(&[PutItem::new(id(1), &long)]).unwrap(), 0);
    NONE_FROM.store(usize::MAX, Ordering::Relaxed);
    assert!(world.client.flush(None).unwrap(), "nothing is left in the queue");
    // Another: the node may not have heard yet that the first will not come.
    assert_eq!(world.client.put(&[PutItem::new(id(2), &long)], None).unwrap(), [Stored::Stored]);
    let counted = |name: &str| world.client.metrics().snapshot().into_iter().find(|c| c.0 == name).unwrap().1;
    assert_eq!((counted("put_dropped"), counted("queue_bytes"), counted("breaker_opened")), (2, 0, 0));
}

#[test]
fn a_value_that_is_too_long_for_the_node_costs_no_other() {
    let world = World::new();
    let (long, short) = (vec![7u8; 25 << 20], vec![8u8; 4000]);
    let items = [PutItem::new(id(1), &short), PutItem::new(id(2), &long), PutItem::new(id(3), &short)];
    let stored = world.client.put(&items, None).unwrap();
    assert_eq!((&stored[0], &stored[2]), (&Stored::Stored, &Stored::Stored));
    let Stored::Failed(refusal) = &stored[1] else { panic!("{:?}", stored[1]) };
    assert_eq!((refusal.node.as_str(), refusal.code), ("a", 3));
    let begin = "the value has 26214400 bytes, allowed is at most ";
    assert!(refusal.sentence.starts_with(begin), "{}", refusal.sentence);
}
