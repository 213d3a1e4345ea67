//! The remote tier over the `object_store` crate: its store in memory, the S3 server of moto in a process of its own, and the
//! node's program with that.
//!
//! `MIMO_MOTO` names the `moto_server` program, as `make test` does; without it the one on the PATH is used, and without that
//! the test of it says so and passes.
#![cfg(all(feature = "remote", target_os = "linux"))]

mod remote;
mod shm;

use bytes::Bytes;
use futures_util::StreamExt;
use mimo_cache::client::{self, Client, ClientConfig, Destination, GetItem, KeyRun, PutItem, Stored};
use mimo_cache::remote::{Bucket, Kept, RemoteConfig, S3Config, Store};
use mimo_cache::rpc::v1::TierStats;
use mimo_cache::shm::ObjectId;
use object_store::memory::InMemory;
use remote::TENANT;
use remote::world::{Folder, Where, World, length};
use shm::{key, value};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// What every store must do.
async fn keeps_the_contract(bucket: &dyn Bucket) {
    let parts = |value: &'static str| [Bytes::from_static(b"head "), Bytes::from_static(value.as_bytes())];
    let read = async |name: &'static str| {
        let answer = bucket.get(name).await.unwrap()?;
        let body: Vec<Bytes> = answer.body.map(Result::unwrap).collect().await;
        assert_eq!(answer.bytes as usize, body.concat().len());
        Some(body.concat())
    };
    assert_eq!(read("kv/a=2eb/1-00").await, None);
    bucket.delete("kv/a=2eb/1-00").await.unwrap();
    assert_eq!(bucket.put("kv/a=2eb/1-00", parts("one")).await.unwrap(), Kept::Stored);
    assert_eq!(bucket.put("kv/a=2eb/1-00", parts("two")).await.unwrap(), Kept::Present, "the first writer wins");
    assert_eq!(read("kv/a=2eb/1-00").await.unwrap(), b"head one");
    assert_eq!(read("kv/a=2eb/1-01").await, None);
    for name in ["kv/a=2eb/1-02", "kv/a=2eb/0-00", "kv/a=2eb2/1-00"] {
        assert_eq!(bucket.put(name, parts("more")).await.unwrap(), Kept::Stored);
    }
    let list = async |after: &str| bucket.list("kv/a=2eb/", after).map(Result::unwrap).collect::<Vec<String>>().await;
    assert_eq!(list("").await, ["kv/a=2eb/0-00", "kv/a=2eb/1-00", "kv/a=2eb/1-02"]);
    assert_eq!(list("kv/a=2eb/1-00").await, ["kv/a=2eb/1-02"]);
    for name in ["kv/a=2eb/1-02", "kv/a=2eb/0-00", "kv/a=2eb2/1-00"] {
        bucket.delete(name).await.unwrap();
    }
    assert_eq!(list("").await, ["kv/a=2eb/1-00"]);
    bucket.delete("kv/a=2eb/1-00").await.unwrap();
    assert_eq!(read("kv/a=2eb/1-00").await, None);
    assert_eq!(bucket.put("kv/a=2eb/1-00", parts("two")).await.unwrap(), Kept::Stored);
    assert_eq!(read("kv/a=2eb/1-00").await.unwrap(), b"head two");
}

#[tokio::test]
async fn a_store_in_memory_keeps_the_contract() {
    keeps_the_contract(&Store::over(Arc::new(InMemory::new()), "memory")).await;
}

#[test]
fn all_tiers_over_a_store_in_memory() {
    let store = Store::over(Arc::new(InMemory::new()), "memory");
    let mut world = World::new(Arc::new(store), RemoteConfig::new("", "node 1"), 255);
    (0..150).for_each(|n| world.put(n, length(n)));
    world.rest();
    world.check();
    let places = world.restart().check();
    assert!(places[Where::Remote as usize] > 20, "{places:?}");
}

/// A process that is killed without a word when this goes.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A server.
struct Moto {
    _process: Process,
    port: u16,
}

impl Moto {
    fn start() -> Option<Moto> {
        let named = std::env::var("MIMO_MOTO").ok();
        let program = named.clone().unwrap_or_else(|| "moto_server".into());
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let child = Command::new(&program)
            .args(["-H", "127.0.0.1", "-p", &port.to_string()])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let child = match child {
            Ok(child) => child,
            Err(error) => {
                assert!(named.is_none(), "{program} of MIMO_MOTO does not start: {error}");
                eprintln!(
                    "{program} is not there, so nothing is tested against it: pip install 'moto[s3]' flask flask-cors"
                );
                return None;
            }
        };
        let moto = Moto { _process: Process(child), port };
        let until = Instant::now() + Duration::from_secs(60);
        while !moto.make_bucket() {
            assert!(Instant::now() < until, "the server does not answer");
            std::thread::sleep(Duration::from_millis(100));
        }
        Some(moto)
    }

    /// Makes the bucket, by a request of our own.
    fn make_bucket(&self) -> bool {
        let Ok(mut stream) = TcpStream::connect(("127.0.0.1", self.port)) else { return false };
        let request = format!(
            "PUT /kv-cache HTTP/1.1\r\nHost: 127.0.0.1:{}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
            self.port
        );
        let mut answer = String::new();
        let done = stream.write_all(request.as_bytes()).and_then(|()| stream.read_to_string(&mut answer));
        done.is_ok() && answer.starts_with("HTTP/1.1 200")
    }

    fn store(&self) -> Store {
        store_at(self.port)
    }
}

fn store_at(port: u16) -> Store {
    Store::s3(&S3Config {
        bucket: "kv-cache".into(),
        endpoint: Some(format!("http://127.0.0.1:{port}")),
        region: Some("us-east-1".into()),
        timeout: Duration::from_secs(20),
    })
    .unwrap()
}

/// Runs this test in a process of its own, with credentials in its environment; true inside that.
fn has_credentials(test: &str) -> bool {
    if std::env::var_os("AWS_SECRET_ACCESS_KEY").is_some() {
        return true;
    }
    let again = Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--nocapture"])
        .envs([("AWS_ACCESS_KEY_ID", "testing"), ("AWS_SECRET_ACCESS_KEY", "testing")])
        .status();
    assert!(again.unwrap().success());
    false
}

#[test]
fn all_tiers_over_a_server_that_ends() {
    if !has_credentials("all_tiers_over_a_server_that_ends") {
        return;
    }
    let Some(moto) = Moto::start() else { return };
    // The server is slow, and more so beside other tests.
    let patience = Duration::from_secs(20);
    let config = RemoteConfig { timeout: patience, read_timeout: patience, ..RemoteConfig::new("prod/kv", "node-1") };
    let mut world = World::new(Arc::new(moto.store()), config, 255);
    world.runtime.block_on(keeps_the_contract(&moto.store()));
    (0..150).for_each(|n| world.put(n, length(n)));
    world.rest();
    let places = world.check();
    assert!(places[Where::Remote as usize] > 20, "{places:?}");
    let totals = world.tiers.remote_stats().unwrap().totals;
    assert_eq!((totals.dropped, totals.failed), (0, 0), "{totals:?}");
    let mut world = world.restart();
    world.check();
    let below = *world.known.keys().find(|id| world.get(id).unwrap().1 == Where::Remote).unwrap();
    world.delete(&[below]).unwrap();
    assert_eq!(world.get(&below), None);
    let mut world = world.restart();
    assert_eq!(world.get(&below), None);
    let until = Instant::now() + Duration::from_secs(20);
    let is_reported = |id: &ObjectId| world.tiers.exists(TENANT, &[id.key], None, 0).masks == [1];
    while !world.known.keys().all(is_reported) {
        assert!(Instant::now() < until, "what the server lists is not reported");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(!is_reported(&below));
    drop(moto);
    // A read that fails is a miss, and the node goes on.
    let (here, lost): (Vec<_>, Vec<_>) = world.known.keys().copied().partition(|id| world.get(id).is_some());
    assert!(here.len() > 20 && lost.len() > 20, "{} {}", here.len(), lost.len());
    (1000..1050).for_each(|n| world.put(n, 262_144));
    assert!(world.delete(&lost[..1]).is_err());
    let stats = world.tiers.remote_stats().unwrap();
    assert!(!stats.trouble.is_empty() && !stats.trouble.contains("kv-cache"), "{stats:?}");
}

/// Answers every request with an error that has no end; counts the bytes that it could send.
fn endless() -> (u16, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (port, sent) = (listener.local_addr().unwrap().port(), Arc::new(AtomicUsize::new(0)));
    let counted = sent.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (Ok(mut stream), counted) = (stream, counted.clone()) else { return };
            std::thread::spawn(move || {
                let _ = stream.read(&mut [0; 4096]);
                let _ = stream.write_all(b"HTTP/1.1 403 Forbidden\r\nTransfer-Encoding: chunked\r\n\r\n");
                let piece = [b"10000\r\n".as_slice(), &[b'x'; 1 << 16], b"\r\n"].concat();
                while stream.write_all(&piece).is_ok() {
                    counted.fetch_add(piece.len(), Ordering::Relaxed);
                }
            });
        }
    });
    (port, sent)
}

#[test]
fn an_answer_without_an_end_is_not_taken_whole() {
    if !has_credentials("an_answer_without_an_end_is_not_taken_whole") {
        return;
    }
    let (port, sent) = endless();
    let store = store_at(port);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let start = Instant::now();
    runtime.block_on(async {
        store.get("a/b").await.unwrap_err();
        store.put("a/b", [Bytes::from_static(b"x"), Bytes::from_static(b"y")]).await.unwrap_err();
        store.delete("a/b").await.unwrap_err();
        store.list("a/", "").next().await.unwrap().unwrap_err();
    });
    // 64 KiB each and 4 MiB for the listing, and what sockets hold.
    assert!(sent.load(Ordering::Relaxed) < 48 << 20, "{sent:?} bytes");
    assert!(start.elapsed() < Duration::from_secs(20), "not the time of a call, which has no end either");
}

fn wait(to: &str, done: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < until, "the node does not {to}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A node.
struct Program {
    _process: Process,
    client: Client,
    node: String,
}

impl Program {
    fn start(folder: &Folder, moto: &Moto) -> Program {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let at = folder.0.display();
        let text = format!(
            "name = 'a'\nlisten = ['127.0.0.1:{port}']\n[memory]\npath = '{at}/memory'\nsize = '16MiB'\nprefault = false\n\
             [[disk]]\npath = '{at}/disk'\nsize = '16MiB'\nsegment = '1MiB'\n\
             [remote]\nurl = 's3://kv-cache/program'\nendpoint = 'http://127.0.0.1:{}'\nread_timeout = '20s'\n",
            moto.port
        );
        std::fs::create_dir_all(&folder.0).unwrap();
        let config = folder.0.join("config.toml");
        std::fs::write(&config, text).unwrap();
        let mut start = Command::new(env!("CARGO_BIN_EXE_gcache-node"));
        let start = start.arg("--config").arg(config).stdout(Stdio::null()).stderr(Stdio::null());
        let process = Process(start.spawn().unwrap());
        // Asked before it listens, the client would take it for one that is down.
        wait("listen", || TcpStream::connect(("127.0.0.1", port)).is_ok());
        let node = format!("a=127.0.0.1:{port}");
        let settings = ClientConfig { deadline: Duration::from_secs(30), ..ClientConfig::default() };
        let client = Client::of(settings, vec![node.parse().unwrap()]).unwrap();
        Program { _process: process, client, node }
    }

    /// The remote tier's.
    fn stats(&self) -> TierStats {
        let stats = self.client.stats(None).unwrap().remove(0).1.unwrap();
        stats.tiers.into_iter().find(|tier| tier.name == "remote").unwrap()
    }

    /// Keys that are not reported.
    fn unreported(&self, keys: &[[u8; 32]]) -> usize {
        let runs: Vec<_> = keys.iter().map(|key| KeyRun { extent: *key, keys: std::slice::from_ref(key) }).collect();
        let masks = self.client.exists(&runs, 1, 0, None).unwrap().masks;
        masks.iter().filter(|mask| **mask != 1).count()
    }
}

#[test]
fn a_node_serves_what_the_store_alone_has_after_it_was_killed() {
    if !has_credentials("a_node_serves_what_the_store_alone_has_after_it_was_killed") {
        return;
    }
    let Some(moto) = Moto::start() else { return };
    let folder = Folder::new();
    let node = Program::start(&folder, &moto);
    let keys: Vec<[u8; 32]> = (0..200).map(key).collect();
    let id = |key: &[u8; 32]| client::ObjectId { key: *key, part: 0, extent: *key };
    let values: Vec<Vec<u8>> = (0..200).map(|n| value(n, 256 << 10)).collect();
    for (key, value) in keys.iter().zip(&values) {
        assert_eq!(node.client.put(&[PutItem::new(id(key), value)], None).unwrap(), [Stored::Stored]);
    }
    wait("write what it dropped", || node.stats().objects == 0);
    assert!(node.stats().committed > 50 && node.unreported(&keys) == 0, "{:?}", node.stats());
    drop(node);
    let node = Program::start(&folder, &moto);
    wait("report what it finds listed", || node.unreported(&keys) == 0);
    let mut gets: Vec<_> = keys.iter().map(|key| GetItem::new(id(key), Destination::Grow(Vec::new()))).collect();
    node.client.get(&mut gets, None).unwrap();
    for (get, value) in gets.iter().zip(&values) {
        assert!(
            get.got.is_hit() && matches!(&get.into, Destination::Grow(found) if found == value),
            "{:?} {:?}",
            get.got,
            node.client.refusals()
        );
    }
    let stats = node.stats();
    assert!(stats.hits > 50 && stats.damaged == 0 && stats.trouble.is_empty(), "{stats:?}");
    let status = Command::new(env!("CARGO_BIN_EXE_gcachectl")).args(["status", "--node", &node.node]).output().unwrap();
    let said = String::from_utf8(status.stdout).unwrap();
    assert!(said.contains(&format!("; remote {} keys known, ", stats.keys)), "{said}");
    node.client.delete(&[id(&keys[0])], None).unwrap();
    assert_eq!(node.unreported(&keys), 1);
    drop(node);
    let node = Program::start(&folder, &moto);
    wait("list what there is", || node.unreported(&keys) == 1);
    let mut get = [GetItem::new(id(&keys[0]), Destination::Grow(Vec::new()))];
    node.client.get(&mut get, None).unwrap();
    assert!(!get[0].got.is_hit(), "what was deleted came back");
}
