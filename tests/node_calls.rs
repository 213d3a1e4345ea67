//! The node's calls over a real store, without a network: what goes in and comes out, and that nothing stays behind.
#![cfg(all(feature = "gcache", target_os = "linux"))]

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use http_body_util::BodyExt;
use mimo_cache::node::NodeConfig;
use mimo_cache::node::auth::Tokens;
use mimo_cache::node::deadline::Deadline;
use mimo_cache::node::get::{Caller, GetBody};
use mimo_cache::node::put::PutSession;
use mimo_cache::node::state::{Connection, State};
use mimo_cache::node::unary;
use mimo_cache::rpc::frame::PieceHead;
use mimo_cache::rpc::ids::pack;
use mimo_cache::rpc::v1::{
    Answer, ExistsRequest, GetReply, HelloRequest, KeyRun, MissReason, ObjectRun, Offer, Piece, PutOutcome, PutRequest,
};
use mimo_cache::shm::{BootId, ObjectId, Prefault, Store};
use prost::Message;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const CHUNK: usize = 1 << 20;

/// A node's state over a file of its own, gone with it.
struct World {
    state: Arc<State>,
    path: std::path::PathBuf,
}

impl World {
    fn new(limits: &str) -> World {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = format!("mimo-node-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        let text = format!(
            "name = 'a'\nlisten = ['127.0.0.1:0']\n[memory]\npath = '{}'\nsize = '32MiB'\n[limits]\n{limits}",
            path.display()
        );
        let config = NodeConfig::read(&text, &[]).unwrap();
        let mut store = config.store();
        store.prefault = Prefault::OnUse;
        let boot = BootId([1; 16]);
        let (store, _) = Store::open(&store, boot).unwrap();
        World { state: Arc::new(State::new(config, store, boot, Tokens::default())), path }
    }

    fn session(&self) -> PutSession {
        PutSession::new(self.state.clone(), 7)
    }

    /// Everything that a `Get` sends, as messages.
    fn get(&self, ids: &[ObjectId], piece_bytes: usize) -> Vec<GetReply> {
        let (messages, status) = self.get_until(ids, piece_bytes, "1M");
        assert_eq!(status, "0");
        messages
    }

    /// The same with a deadline, and the status at the end.
    fn get_until(&self, ids: &[ObjectId], piece_bytes: usize, deadline: &'static str) -> (Vec<GetReply>, String) {
        let progress = self.state.watch(&Connection::new(1, "test".into(), self.state.clone()));
        let headers =
            HeaderMap::from_iter([(HeaderName::from_static("grpc-timeout"), HeaderValue::from_static(deadline))]);
        let deadline = Deadline::of(&headers, tokio::time::Instant::now());
        let caller = Caller { progress, tenant: 7, check: 0, deadline };
        let body = GetBody::new(self.state.clone(), caller, ids.to_vec(), piece_bytes);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let body = runtime.block_on(body.collect()).unwrap();
        let status = body.trailers().unwrap()["grpc-status"].to_str().unwrap().to_string();
        let mut bytes = body.to_bytes();
        let mut messages = Vec::new();
        while !bytes.is_empty() {
            let head = bytes.split_to(5);
            let len = u32::from_be_bytes(head[1..].try_into().unwrap()) as usize;
            messages.push(GetReply::decode(bytes.split_to(len)).unwrap());
        }
        (messages, status)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.state.store.check_integrity().unwrap();
        assert_eq!((self.state.store.stats().writers, self.state.owed()), (0, 0));
        let _ = std::fs::remove_file(&self.path);
    }
}

fn id(n: u8) -> ObjectId {
    ObjectId { key: [n; 32], part: n % 64 }
}

fn offer(n: u8, length: usize) -> Offer {
    Offer {
        id: pack(&[n; 32], n % 64).to_vec().into(),
        bucket: 3,
        length: length as u64,
        extent: vec![n; 32].into(),
        layout: 5,
        ..Offer::default()
    }
}

fn offers(list: Vec<Offer>) -> PutRequest {
    PutRequest { version: 1, tenant: 7, offers: list, ..PutRequest::default() }
}

fn pieces(index: u32, value: &[u8], piece_bytes: usize) -> Vec<PutRequest> {
    let mut made = Vec::new();
    for (n, data) in value.chunks(piece_bytes).enumerate() {
        let offset = n * piece_bytes;
        let end = offset + data.len();
        let ends = end == value.len() || end.is_multiple_of(CHUNK);
        let crc = ends.then(|| crc32c::crc32c(&value[offset / CHUNK * CHUNK..end]));
        let data = Bytes::copy_from_slice(data);
        let piece = Piece { index, offset: offset as u64, crc32c: crc, data, ..Piece::default() };
        made.push(PutRequest { piece: Some(piece), ..PutRequest::default() });
    }
    made
}

fn value(n: u8, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(31).wrapping_add(n)).collect()
}

fn put(session: &mut PutSession, request: PutRequest) -> Vec<(u32, PutOutcome)> {
    let mut answers: Vec<Answer> = Vec::new();
    session.offers(&request, 0, &mut answers).unwrap();
    if let Some(piece) = request.piece {
        session.begin(&PieceHead::of(&piece), piece.data.len()).unwrap();
        // As a network may cut it.
        let (one, other) = piece.data.split_at(piece.data.len() / 3);
        session.data(one);
        session.data(other);
        session.end(0, &mut answers).unwrap();
    }
    answers.iter().map(|a| (a.index, PutOutcome::try_from(a.outcome).unwrap())).collect()
}

#[test]
fn what_is_put_is_got_whatever_the_pieces() {
    let world = World::new("");
    let lens = [1, 4096, 16_384, 16_385, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 7];
    let mut session = world.session();
    let list = lens.iter().enumerate().map(|(n, len)| offer(n as u8, *len)).collect();
    assert!(put(&mut session, offers(list)).iter().all(|(_, o)| *o == PutOutcome::Wanted));
    for (n, len) in lens.iter().enumerate() {
        let value = value(n as u8, *len);
        let mut last = Vec::new();
        for request in pieces(n as u32, &value, [CHUNK, CHUNK / 2, CHUNK / 4][n % 3]) {
            last = put(&mut session, request);
        }
        assert_eq!(last, [(n as u32, PutOutcome::Stored)]);
    }
    assert!(session.settled());
    for piece_bytes in [CHUNK, CHUNK / 2, CHUNK / 4] {
        let ids: Vec<ObjectId> = (0..=lens.len() as u8).map(id).collect();
        let mut got: Vec<Vec<u8>> = vec![Vec::new(); lens.len()];
        let mut misses = Vec::new();
        for message in world.get(&ids, piece_bytes) {
            misses.extend(message.misses.iter().map(|m| (m.index, m.reason)));
            let Some(piece) = message.piece else { continue };
            let to = &mut got[piece.index as usize];
            assert_eq!((piece.offset, piece.offset == 0), (to.len() as u64, piece.length > 0));
            assert_eq!(piece.layout, if to.is_empty() { 5 } else { 0 });
            to.extend_from_slice(&piece.data);
            let ends = to.len() == lens[piece.index as usize] || to.len().is_multiple_of(CHUNK);
            let chunk = &to[(to.len() - 1) / CHUNK * CHUNK..];
            assert_eq!(piece.crc32c, ends.then(|| crc32c::crc32c(chunk)));
        }
        assert_eq!(misses, [(lens.len() as u32, MissReason::Absent as i32)]);
        for (n, len) in lens.iter().enumerate() {
            assert!(got[n] == value(n as u8, *len), "value {n}");
        }
    }
}

#[test]
fn a_get_ends_at_its_deadline() {
    let world = World::new("");
    let mut session = world.session();
    put(&mut session, offers(vec![offer(1, 10)]));
    put(&mut session, pieces(0, &value(1, 10), CHUNK).remove(0));
    assert_eq!(world.get_until(&[id(1)], CHUNK, "1M").1, "0");
    assert_eq!(world.get_until(&[id(1)], CHUNK, "0m"), (vec![], "4".to_string()));
    assert_eq!(world.get_until(&[id(1)], CHUNK, "no number").1, "0", "what cannot be read is none");
    assert_eq!(world.state.store.stats().held_slots, 0);
}

#[test]
fn answers_wait_until_little_is_owed() {
    let world = World::new("put = '1MiB'");
    let mut session = world.session();
    let list = (0..5).map(|n| offer(n, 600_000)).collect();
    assert_eq!(put(&mut session, offers(list)), [(0, PutOutcome::Wanted)]);
    for n in 0..5_u8 {
        let requests = pieces(n.into(), &value(n, 600_000), CHUNK / 4);
        let answers: Vec<_> = requests.into_iter().flat_map(|r| put(&mut session, r)).collect();
        let mut expected = vec![(n.into(), PutOutcome::Stored)];
        expected.extend((n < 4).then_some((u32::from(n) + 1, PutOutcome::Wanted)));
        assert_eq!(answers, expected);
    }
    assert!(session.settled());
}

#[test]
fn one_value_may_be_larger_than_what_may_be_owed() {
    let world = World::new("put = '1MiB'\nput_total = '1MiB'");
    let mut session = world.session();
    let big = value(1, 2 * CHUNK);
    assert_eq!(put(&mut session, offers(vec![offer(1, big.len()), offer(2, 5)])), [(0, PutOutcome::Wanted)]);
    // Another stream finds no room, and is told so: it owes nothing that it could wait for.
    assert_eq!(put(&mut world.session(), offers(vec![offer(3, 5)])), [(0, PutOutcome::NoRoom)]);
    let answers: Vec<_> = pieces(0, &big, CHUNK).into_iter().flat_map(|r| put(&mut session, r)).collect();
    assert_eq!(answers, [(0, PutOutcome::Stored), (1, PutOutcome::Wanted)]);
}

#[test]
fn what_is_not_whole_is_given_back() {
    let world = World::new("");
    let mut session = world.session();
    put(&mut session, offers(vec![offer(1, CHUNK), offer(2, CHUNK)]));
    assert_eq!(world.state.owed(), 2 * CHUNK as u64);
    put(&mut session, pieces(0, &value(1, CHUNK), CHUNK / 4).remove(0));
    // The same objects from elsewhere: someone is at them.
    let busy = put(&mut world.session(), offers(vec![offer(1, CHUNK), offer(2, 9)]));
    assert_eq!(busy, [(0, PutOutcome::Busy), (1, PutOutcome::Busy)]);
    drop(session);
    assert_eq!((world.state.owed(), world.state.store.stats().writers), (0, 0));
    assert_eq!(put(&mut world.session(), offers(vec![offer(1, 4)])), [(0, PutOutcome::Wanted)]);
}

#[test]
fn a_bad_chunk_stores_nothing_and_the_next_object_goes_on() {
    let world = World::new("");
    let mut session = world.session();
    put(&mut session, offers(vec![offer(1, 2 * CHUNK + 1), offer(2, 3)]));
    let mut requests = pieces(0, &value(1, 2 * CHUNK + 1), CHUNK);
    if let Some(piece) = &mut requests[1].piece {
        piece.crc32c = None;
    }
    requests.extend(pieces(1, b"abc", CHUNK));
    let answers: Vec<_> = requests.into_iter().flat_map(|r| put(&mut session, r)).collect();
    assert_eq!(answers, [(0, PutOutcome::Corrupt), (1, PutOutcome::Stored)]);
    assert_eq!(world.state.store.stats().objects, 1);
}

#[test]
fn leases_belong_to_a_connection() {
    let world = World::new("");
    let mut session = world.session();
    put(&mut session, offers(vec![offer(1, 3)]));
    pieces(0, b"abc", CHUNK).into_iter().for_each(|r| drop(put(&mut session, r)));
    let connection = Connection::new(9, "test".into(), world.state.clone());
    let runs = vec![KeyRun { bucket: 0, keys: vec![1; 64].into() }];
    let request = ExistsRequest { version: 1, tenant: 7, lease_ms: 1000, runs, ..ExistsRequest::default() };
    let reply = unary::exists(&world.state, &connection, &request).unwrap();
    assert_eq!((reply.masks, reply.leased_keys), (vec![2, 2], 2));
    assert!(world.state.store.stats().lease_bytes > 0);
    // A call that runs on when the socket is closed: what it leases then ends with it.
    let call = connection.clone();
    drop(connection);
    assert_eq!(unary::exists(&world.state, &call, &request).unwrap().leased_keys, 2);
    drop(call);
    assert_eq!(world.state.store.stats().lease_bytes, 0);
}

#[test]
fn versions_meet_or_are_told_apart() {
    let world = World::new("");
    let connection = Connection::new(1, "test".into(), world.state.clone());
    let hello = |min_version, max_version| {
        unary::hello(&world.state, &connection, &HelloRequest { min_version, max_version, ..HelloRequest::default() })
    };
    let reply = hello(0, 9).unwrap();
    assert_eq!((reply.version, reply.node.as_str(), reply.machine.len()), (2, "a", 16));
    assert_eq!((reply.min_version, reply.max_version), (1, 2));
    assert_eq!((hello(0, 1).unwrap().version, hello(2, 9).unwrap().version), (1, 2));
    assert_eq!(hello(3, 9).unwrap_err().code(), tonic::Code::FailedPrecondition);
    assert_eq!(unary::check_version(0).unwrap_err().code(), tonic::Code::FailedPrecondition);
    let none = unary::objects(&[ObjectRun::default()]).unwrap_err();
    assert_eq!(none.code(), tonic::Code::InvalidArgument);
}
