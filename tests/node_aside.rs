//! Health and reflection, and lengths that are only said: what peers without a token can make a node hold is bounded.
#![cfg(all(feature = "gcache", target_os = "linux"))]

use bytes::Bytes;
use h2::client::SendRequest;
use h2::{RecvStream, SendStream};
use http::{HeaderMap, Request};
use mimo_cache::node::aside::{MAX_MESSAGE_BYTES, SHORT_CALLS, WATCHES, WATCHES_OF_CONNECTION};
use mimo_cache::node::{Node, NodeConfig};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Remembers the largest block that was asked for.
struct Watched;

static LARGEST: AtomicUsize = AtomicUsize::new(0);

// SAFETY: everything is the system's.
unsafe impl GlobalAlloc for Watched {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LARGEST.fetch_max(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        LARGEST.fetch_max(size, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Watched = Watched;

const CHECK: &str = "/grpc.health.v1.Health/Check";
const WATCH: &str = "/grpc.health.v1.Health/Watch";
const REFLECTIONS: [&str; 2] = [
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
];
/// Of a message without fields.
const EMPTY: [u8; 5] = [0; 5];
const DEADLINE_EXCEEDED: i32 = 4;
const RESOURCE_EXHAUSTED: i32 = 8;
const OUT_OF_RANGE: i32 = 11;
const DATA_LOSS: i32 = 15;

/// A node with `limits`, and its file's folder.
async fn node(limits: &str) -> (Node, String) {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let name = format!("mimo-aside-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let path = std::env::temp_dir().join(name).display().to_string();
    let text = format!(
        "name = 'a'\nlisten = ['127.0.0.1:0']\n[memory]\npath = '{path}'\nsize = '4MiB'\nprefault = false\n[limits]\n{limits}"
    );
    let (node, _) = Node::start(NodeConfig::read(&text, &[]).unwrap()).await.unwrap();
    (node, path)
}

async fn connect(node: &Node) -> SendRequest<Bytes> {
    let stream = tokio::net::TcpStream::connect(&node.addresses()[0]).await.unwrap();
    let (send, driver) = h2::client::handshake(stream).await.unwrap();
    tokio::spawn(driver);
    send.ready().await.unwrap()
}

/// A stream under way.
struct Call {
    answer: h2::client::ResponseFuture,
    /// Kept: dropped, it would cancel the stream.
    _send: SendStream<Bytes>,
}

/// Sends `bytes`, and does not end the stream unless told.
async fn begin(on: &SendRequest<Bytes>, path: &str, bytes: &[u8], end: bool) -> Call {
    let request = Request::post(format!("http://a{path}")).header("te", "trailers");
    let request = request.header("content-type", "application/grpc").body(()).unwrap();
    let (answer, mut send) = on.clone().ready().await.unwrap().send_request(request, false).unwrap();
    send.send_data(Bytes::copy_from_slice(bytes), end).unwrap();
    Call { answer, _send: send }
}

fn said(length: usize) -> Vec<u8> {
    let mut bytes = vec![0];
    bytes.extend((length as u32).to_be_bytes());
    bytes.push(0);
    bytes
}

fn status_in(headers: &HeaderMap) -> Option<i32> {
    headers.get("grpc-status").map(|v| v.to_str().unwrap().parse().unwrap())
}

/// The status at the end of an answer.
async fn status(call: Call) -> i32 {
    let answer = call.answer.await.unwrap();
    if let Some(status) = status_in(answer.headers()) {
        return status;
    }
    let mut body = answer.into_body();
    while let Some(data) = body.data().await {
        let data = data.unwrap();
        body.flow_control().release_capacity(data.len()).unwrap();
    }
    status_in(&body.trailers().await.unwrap().unwrap()).unwrap()
}

/// A watch that was taken: its first answer has come.
async fn watching(call: Call) -> Result<RecvStream, i32> {
    let answer = call.answer.await.unwrap();
    match status_in(answer.headers()) {
        Some(status) => Err(status),
        None => {
            let mut body = answer.into_body();
            assert!(body.data().await.unwrap().unwrap().len() > EMPTY.len());
            Ok(body)
        }
    }
}

/// The largest block is that of all tests at once, and a node that starts asks for large ones: so tests take turns.
static TURN: Mutex<()> = Mutex::new(());

/// A test's time is bounded, so that what hangs fails.
fn run(test: impl Future<Output = ()>) {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(Duration::from_secs(60), test).await.expect("it hangs") });
}

#[test]
fn a_length_that_is_only_said_takes_no_memory() {
    run(async {
        let (node, path) = node("stall = '30s'").await;
        let on = connect(&node).await;
        LARGEST.store(0, Ordering::Relaxed);
        for path in [CHECK, WATCH, REFLECTIONS[0], REFLECTIONS[1]] {
            // Reflection ends its stream without a word.
            let refused = if path.contains("reflection") { 0 } else { OUT_OF_RANGE };
            for length in [MAX_MESSAGE_BYTES + 1, 4 << 20] {
                assert_eq!(status(begin(&on, path, &said(length), false).await).await, refused, "{path}");
            }
        }
        let mut open = Vec::new();
        for call in ["Hello", "Exists", "Get", "Touch", "Delete", "Verify", "Stats", "Put"] {
            open.push(begin(&on, &format!("/gcache.v1.GCache/{call}"), &said(2 << 20), false).await);
        }
        // What was sent before this was read before this.
        assert_eq!(status(begin(&on, CHECK, &EMPTY, true).await).await, 0);
        assert_eq!(node.state().calls.available_permits(), 256 - open.len());
        let largest = LARGEST.load(Ordering::Relaxed);
        assert!(largest < 1 << 20, "a block of {largest} bytes");
        drop(open);
        std::fs::remove_file(path).unwrap();
    });
}

#[test]
fn watches_are_bounded_on_a_connection_and_on_a_node() {
    run(async {
        let (node, path) = node("stall = '30s'").await;
        let (mut connections, mut watches) = (Vec::new(), Vec::new());
        for _ in 0..WATCHES / WATCHES_OF_CONNECTION {
            let on = connect(&node).await;
            for _ in 0..WATCHES_OF_CONNECTION {
                watches.push(watching(begin(&on, WATCH, &EMPTY, true).await).await.unwrap());
            }
            let one_more = watching(begin(&on, WATCH, &EMPTY, true).await).await;
            assert_eq!(one_more.err(), Some(RESOURCE_EXHAUSTED));
            connections.push(on);
        }
        let on = connect(&node).await;
        assert_eq!(watching(begin(&on, WATCH, &EMPTY, true).await).await.err(), Some(RESOURCE_EXHAUSTED));
        assert_eq!(status(begin(&on, CHECK, &EMPTY, true).await).await, 0, "checks go on");
        drop(watches);
        drop(connections);
        // Given back once the node has heard of it.
        while watching(begin(&on, WATCH, &EMPTY, true).await).await.is_err() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        std::fs::remove_file(path).unwrap();
    });
}

#[test]
fn checks_and_reflection_that_stall_end_and_keep_no_call_of_the_contract_waiting() {
    run(async {
        let (node, path) = node("stall = '1s'\ncalls = 2").await;
        let (on, other) = (connect(&node).await, connect(&node).await);
        let mut open = Vec::new();
        for n in 0..SHORT_CALLS {
            let path = if n % 2 == 0 { CHECK } else { REFLECTIONS[n / 2 % 2] };
            open.push(begin(&on, path, &[], false).await);
        }
        // A message without its check was read and answered.
        assert_eq!(status(begin(&other, "/gcache.v1.GCache/Stats", &EMPTY, true).await).await, DATA_LOSS);
        // Reflection may end without a word.
        for (n, call) in open.into_iter().enumerate() {
            let ended = status(call).await;
            assert!(ended == DEADLINE_EXCEEDED || n % 2 == 1 && ended == 0, "status {ended} of call {n}");
        }
        assert_eq!(status(begin(&other, CHECK, &EMPTY, true).await).await, 0);
        std::fs::remove_file(path).unwrap();
    });
}
