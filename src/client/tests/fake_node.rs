//! A node that speaks the contract over a pipe in memory, and faults of many kinds on the way.

use super::{Named, value};
use crate::client::*;
use crate::error::Result;
use crate::member::{Address, Fixed};
use crate::rpc::check::{self, Checked};
use crate::rpc::frame::{Carrier, PieceHead, put_head, put_sealed};
use crate::rpc::ids::objects;
use crate::rpc::limits::CHUNK_BYTES;
use crate::rpc::v1::{self, PutOutcome};
use bytes::{Buf, BytesMut};
use h2::server::SendResponse;
use h2::{RecvStream, SendStream};
use http::{HeaderMap, Response};
use prost::Message;
use std::collections::HashMap;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf, duplex};

type Body = ::bytes::Bytes;

/// What goes wrong at the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fault {
    #[default]
    None,
    /// Connections are refused.
    Refuse,
    /// Connections are taken, and nothing is ever said on them.
    Silent,
    /// Calls but `Hello` are never answered.
    Hang,
    /// The connection is cut after so many bytes towards the client.
    Cut(usize),
    /// The connection stalls after so many bytes towards the client: it stays open, half.
    Stall(usize),
    /// One byte in a second.
    Trickle,
    /// A bit of the n-th byte towards the client is flipped.
    Flip(usize),
    /// A bit of the data of each value's first chunk is flipped, its CRC is not.
    Damage,
    /// Values end before their length.
    Truncate,
    /// The data of pieces lies elsewhere than it should.
    Shift,
    /// Lengths are huge.
    Boast,
    /// Every call ends with this status.
    Status(i32),
    /// Answers under another name.
    Impostor,
    /// Speaks version 1 alone.
    Old,
    /// Says that values come from this tier.
    Tier(i32),
}

/// A node, its values and its fault.
pub struct FakeNode {
    pub name: String,
    pub fault: Mutex<Fault>,
    pub values: Mutex<HashMap<Named, Vec<u8>>>,
    /// Calls seen, and connections.
    pub seen: Mutex<HashMap<String, usize>>,
    pub piece_bytes: usize,
}

/// Makes pipes to the nodes by their address.
pub struct Net(pub HashMap<String, Arc<FakeNode>>);

impl Connect for Net {
    fn connect<'a>(&'a self, address: &'a Address) -> Connecting<'a> {
        let node = self.0[&address.to_string()].clone();
        Box::pin(async move {
            let fault = *node.fault.lock().unwrap();
            node.saw("connection");
            if fault == Fault::Refuse {
                return Err(io::ErrorKind::ConnectionRefused.into());
            }
            let (here, there) = duplex(256 << 10);
            if fault == Fault::Silent {
                // Kept open until the other end goes.
                tokio::spawn(async move {
                    let mut there = there;
                    let _ = tokio::io::copy(&mut there, &mut tokio::io::sink()).await;
                });
            } else {
                tokio::spawn(node.serve(there));
            }
            Ok(Box::new(Faulty { inner: here, fault, passed: 0, wait: None }) as Box<dyn Io>)
        })
    }
}

/// The client's end of a pipe, with faults of the way.
struct Faulty {
    inner: DuplexStream,
    fault: Fault,
    passed: usize,
    wait: Option<Pin<Box<tokio::time::Sleep>>>,
}

impl AsyncRead for Faulty {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let most = match self.fault {
            Fault::Cut(at) if self.passed >= at => return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
            Fault::Stall(at) if self.passed >= at => return Poll::Pending,
            Fault::Cut(at) | Fault::Stall(at) => at - self.passed,
            Fault::Trickle => {
                let second = std::time::Duration::from_secs(1);
                let wait = self.wait.get_or_insert_with(|| Box::pin(tokio::time::sleep(second)));
                ready!(wait.as_mut().poll(cx));
                self.wait = None;
                1
            }
            _ => usize::MAX,
        };
        let before = into.filled().len();
        let mut part = into.take(most);
        ready!(Pin::new(&mut self.inner).poll_read(cx, &mut part))?;
        let n = part.filled().len();
        let flip = match self.fault {
            Fault::Flip(at) if (self.passed..self.passed + n).contains(&at) => Some(at - self.passed),
            _ => None,
        };
        if let Some(at) = flip {
            part.filled_mut()[at] ^= 0x10;
        }
        // SAFETY: `part` is the rest of `into`, and its first `n` bytes were just filled.
        unsafe { into.assume_init(n) };
        into.set_filled(before + n);
        self.passed += n;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Faulty {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, bytes)
    }
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

impl FakeNode {
    fn version(&self) -> u32 {
        if *self.fault.lock().unwrap() == Fault::Old { 1 } else { 2 }
    }

    fn saw(&self, what: &str) {
        *self.seen.lock().unwrap().entry(what.to_string()).or_default() += 1;
    }

    pub fn count(&self, what: &str) -> usize {
        self.seen.lock().unwrap().get(what).copied().unwrap_or(0)
    }

    pub fn hold(&self, id: &ObjectId, number: u64, length: usize) {
        self.values.lock().unwrap().insert((id.key, id.part), value(number, length));
    }

    async fn serve(self: Arc<Self>, io: DuplexStream) {
        let Ok(mut connection) = h2::server::Builder::new()
            .max_frame_size(1 << 20)
            .initial_window_size(4 << 20)
            .initial_connection_window_size(8 << 20)
            .handshake::<_, Body>(io)
            .await
        else {
            return;
        };
        while let Some(Ok((request, respond))) = connection.accept().await {
            let node = self.clone();
            tokio::spawn(async move {
                // A client that has gone is no matter of the node's.
                let _ = node.call(request, respond).await;
            });
        }
    }

    async fn call(
        &self,
        request: http::Request<RecvStream>,
        mut respond: SendResponse<Body>,
    ) -> std::result::Result<(), h2::Error> {
        let method = request.uri().path().rsplit('/').next().unwrap_or_default().to_string();
        self.saw(&method);
        let fault = *self.fault.lock().unwrap();
        if fault == Fault::Hang && method != "Hello" {
            return std::future::pending().await;
        }
        let head = Response::builder().header("content-type", "application/grpc").body(()).expect("a valid head");
        let mut out = respond.send_response(head, false)?;
        let status = match fault {
            Fault::Status(code) if method != "Hello" => code,
            _ => {
                self.answer(&method, request.into_body(), &mut out).await?;
                0
            }
        };
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", status.into());
        trailers.insert("grpc-message", http::HeaderValue::from_static("a %22sentence%22"));
        out.send_trailers(trailers)
    }

    async fn answer(
        &self,
        method: &str,
        mut body: RecvStream,
        out: &mut SendStream<Body>,
    ) -> std::result::Result<(), h2::Error> {
        let mut held = BytesMut::new();
        if method == "Put" {
            return self.put(body, out).await;
        }
        let message = next_message(&mut body, &mut held).await?.unwrap_or_default();
        let mut reply = BytesMut::new();
        let check = match method {
            "Hello" => seal_of(v1::HelloRequest::decode(message.clone())),
            "Get" => seal_of(v1::GetRequest::decode(message.clone())),
            "Verify" => seal_of(v1::VerifyRequest::decode(message.clone())),
            _ => seal_of(v1::StatsRequest::decode(message.clone())),
        };
        match method {
            "Hello" => {
                let name =
                    if *self.fault.lock().unwrap() == Fault::Impostor { "else".into() } else { self.name.clone() };
                let limits = v1::Limits { keys: 1000, objects: 100, value_bytes: 1 << 27, ..v1::Limits::default() };
                let hello = v1::HelloReply {
                    version: self.version(),
                    node: name,
                    limits: Some(limits),
                    start_id: 1,
                    ..v1::HelloReply::default()
                };
                put_sealed(&mut reply, hello, check);
            }
            "Get" => {
                let request = v1::GetRequest::decode(message).expect("the client's message");
                assert_eq!(request.version, self.version(), "what was agreed");
                return self.get(objects(&request.runs, 100).expect("the client's ids"), check, out).await;
            }
            "Verify" => {
                let request = v1::VerifyRequest::decode(message).expect("the client's message");
                let sound = objects(&request.runs, 100).expect("the client's ids").len() as u32;
                put_sealed(&mut reply, v1::VerifyReply { sound, ..Default::default() }, check);
            }
            "Stats" => put_sealed(&mut reply, v1::StatsReply::default(), check),
            other => panic!("{other} is not of these tests"),
        }
        out.send_data(reply.freeze(), false)
    }

    async fn get(&self, ids: Vec<Named>, check: u32, out: &mut SendStream<Body>) -> std::result::Result<(), h2::Error> {
        let fault = *self.fault.lock().unwrap();
        for (index, id) in ids.iter().enumerate() {
            let held = self.values.lock().unwrap().get(id).cloned();
            let mut reply = BytesMut::new();
            let Some(mut value) = held else {
                let miss = v1::Miss { index: index as u32, reason: v1::MissReason::Absent as i32 };
                put_sealed(&mut reply, v1::GetReply { misses: vec![miss], ..Default::default() }, check);
                send(out, reply.freeze()).await?;
                continue;
            };
            let crcs: Vec<u32> = value.chunks(CHUNK_BYTES).map(crc32c::crc32c).collect();
            let length = if fault == Fault::Boast { u64::MAX } else { value.len() as u64 };
            match fault {
                Fault::Damage => value[length as usize / 3] ^= 1,
                Fault::Truncate => value.truncate(length as usize / 2),
                _ => {}
            }
            for (n, data) in value.chunks(self.piece_bytes).enumerate() {
                let offset = (n * self.piece_bytes) as u64 + u64::from(fault == Fault::Shift);
                let end = n * self.piece_bytes + data.len();
                let ends = end as u64 == length || end.is_multiple_of(CHUNK_BYTES);
                let head = PieceHead {
                    index: index as u32,
                    length: if n == 0 { length } else { 0 },
                    layout: if n == 0 { 9 } else { 0 },
                    offset,
                    source: match fault {
                        Fault::Tier(source) if n == 0 => source,
                        _ => 0,
                    },
                    crc32c: ends.then(|| crcs[(end - 1) / CHUNK_BYTES]),
                };
                put_head(&mut reply, Carrier::GetReply, &head, data.len(), check);
                reply.extend_from_slice(data);
                send(out, reply.split().freeze()).await?;
            }
        }
        Ok(())
    }

    async fn put(&self, mut body: RecvStream, out: &mut SendStream<Body>) -> std::result::Result<(), h2::Error> {
        let mut held = BytesMut::new();
        let mut offers: Vec<v1::Offer> = Vec::new();
        let mut values: HashMap<u32, Vec<u8>> = HashMap::new();
        let mut check = None;
        while let Some(message) = next_message(&mut body, &mut held).await? {
            let request = v1::PutRequest::decode(message).expect("the client's message");
            let found = check::verify(&request, check.unwrap_or(check::FIRST)).expect("the client's check");
            let check = *check.get_or_insert(found);
            let mut answers = Vec::new();
            for offer in request.offers {
                let index = offers.len() as u32;
                let id = crate::rpc::ids::object(&offer.id).expect("the client's id");
                let there = self.values.lock().unwrap().contains_key(&id);
                let outcome = if there { PutOutcome::Present } else { PutOutcome::Wanted };
                if !there {
                    values.insert(index, Vec::new());
                }
                answers.push(v1::Answer { index, outcome: outcome as i32 });
                offers.push(offer);
            }
            if let Some(piece) = request.piece {
                self.saw("piece");
                let offer = &offers[piece.index as usize];
                let value = values.get_mut(&piece.index).expect("only what was wanted is sent");
                assert_eq!(value.len() as u64, piece.offset);
                assert_eq!(piece.crc32c, Some(crc32c::crc32c(&piece.data)), "one piece is one chunk");
                value.extend_from_slice(&piece.data);
                if value.len() as u64 == offer.length {
                    let id = crate::rpc::ids::object(&offer.id).expect("the client's id");
                    let outcome = if *self.fault.lock().unwrap() == Fault::Damage {
                        PutOutcome::Corrupt
                    } else {
                        PutOutcome::Stored
                    };
                    self.values.lock().unwrap().insert(id, std::mem::take(value));
                    answers.push(v1::Answer { index: piece.index, outcome: outcome as i32 });
                }
            }
            if !answers.is_empty() {
                let mut reply = BytesMut::new();
                put_sealed(&mut reply, v1::PutReply { answers, ..Default::default() }, check);
                send(out, reply.freeze()).await?;
            }
        }
        Ok(())
    }
}

/// The check of a request, which must fit.
fn seal_of<M: Checked>(request: std::result::Result<M, prost::DecodeError>) -> u32 {
    check::verify(&request.expect("the client's message"), check::FIRST).expect("the client's check")
}

/// Sends as the client's window allows.
async fn send(out: &mut SendStream<Body>, mut bytes: Body) -> std::result::Result<(), h2::Error> {
    while bytes.has_remaining() {
        out.reserve_capacity(bytes.len());
        if out.capacity() == 0 {
            match std::future::poll_fn(|cx| out.poll_capacity(cx)).await {
                Some(Ok(_)) => continue,
                Some(Err(e)) => return Err(e),
                None => return Ok(()),
            }
        }
        let n = out.capacity().min(bytes.len());
        out.send_data(bytes.split_to(n), false)?;
    }
    Ok(())
}

async fn next_message(body: &mut RecvStream, held: &mut BytesMut) -> std::result::Result<Option<Body>, h2::Error> {
    loop {
        if held.len() >= 5 {
            let length = u32::from_be_bytes(held[1..5].try_into().expect("four bytes")) as usize;
            if held.len() >= 5 + length {
                held.advance(5);
                return Ok(Some(held.split_to(length).freeze()));
            }
        }
        match body.data().await {
            Some(bytes) => {
                let bytes = bytes?;
                body.flow_control().release_capacity(bytes.len())?;
                held.extend_from_slice(&bytes);
            }
            None => return Ok(None),
        }
    }
}

/// Fake nodes by their names.
pub type Pair = HashMap<String, Arc<FakeNode>>;

/// Nodes "a" and "b" on pipes, and a client of them.
pub fn pipes(config: ClientConfig) -> Result<(Pair, Arc<Core>)> {
    let node = |name: &str| FakeNode {
        name: name.to_string(),
        fault: Mutex::default(),
        values: Mutex::default(),
        seen: Mutex::default(),
        piece_bytes: 256 << 10,
    };
    let nodes: HashMap<String, Arc<FakeNode>> = ["a", "b"].map(|n| (n.to_string(), Arc::new(node(n)))).into();
    let net = Net(nodes.iter().map(|(name, node)| (format!("{name}:1"), node.clone())).collect());
    let members = ["a", "b"].map(super::fake_transport::member).into();
    let core = Core::new(config, Arc::new(Fixed::new(members)?), Arc::new(net))?;
    Ok((nodes, core))
}

/// Numbers of objects that a node owns.
pub fn owned_by<'a>(core: &'a Core, name: &'a str) -> impl Iterator<Item = u64> + 'a {
    let owner = |n: u64| core.cluster().route(&super::id(n).extent).now.map(|n| n.member.name.clone());
    (0..).filter(move |&n| owner(n).as_deref() == Some(name))
}
