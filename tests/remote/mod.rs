//! What the tests of the remote tier have in common: a store in memory that fails as it is told.
#![allow(dead_code)] // each binary uses its part

pub mod world;

use bytes::Bytes;
use futures_util::future::{BoxFuture, FutureExt};
use futures_util::stream::{self, BoxStream, StreamExt};
use mimo_cache::disk::Aligned;
use mimo_cache::remote::{Answer, Bucket, Kept, Name, Refused, Remote, RemoteConfig};
use mimo_cache::shm::{PutMeta, chunk_crcs};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::shm::{id, meta, value};

/// Whose objects.
pub const TENANT: u64 = 7;

/// What a call does instead of what it should.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    Sound,
    /// Fails, and changes nothing.
    Refused,
    /// Takes effect, and fails.
    Unsure,
    /// Never answers.
    Hang,
    /// Takes effect and never answers.
    HangAfter,
    /// A put: takes effect after so many milliseconds, and never answers.
    Late(u64),
    /// Answers after so many milliseconds.
    Slow(u64),
    /// A get: one bit of the object is another one.
    Flip(u32),
    /// A get: the body ends so many bytes early.
    Short(u32),
    /// A get: the body goes on for so many bytes.
    Long(u32),
    /// A get: the store says another length, and the body has it.
    Length(u64),
    /// A get: the body fails in its middle.
    Cut,
}

/// What was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Call {
    Put,
    Get,
    List,
    Delete,
}

#[derive(Default)]
struct Inside {
    objects: BTreeMap<String, Bytes>,
    next: VecDeque<(Call, Fault)>,
    always: Option<Fault>,
    calls: BTreeMap<Call, usize>,
}

/// The store. Clones are the same.
#[derive(Clone, Default)]
pub struct Fake(Arc<Mutex<Inside>>);

impl std::fmt::Debug for Fake {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Fake")
    }
}

impl Fake {
    fn inside(&self) -> std::sync::MutexGuard<'_, Inside> {
        self.0.lock().unwrap()
    }

    /// The next call of this kind goes wrong so.
    pub fn next(&self, call: Call, fault: Fault) {
        self.inside().next.push_back((call, fault));
    }

    /// Every call goes wrong so, until told otherwise.
    pub fn always(&self, fault: Fault) {
        self.inside().always = (fault != Fault::Sound).then_some(fault);
    }

    /// No call goes wrong any more.
    pub fn mend(&self) {
        let mut inside = self.inside();
        inside.always = None;
        inside.next.clear();
    }

    /// Calls of a kind so far.
    pub fn calls(&self, call: Call) -> usize {
        self.inside().calls.get(&call).copied().unwrap_or_default()
    }

    /// Names that are there.
    pub fn names(&self) -> Vec<String> {
        self.inside().objects.keys().cloned().collect()
    }

    /// An object is there no more, and nobody has asked for that.
    pub fn drop_object(&self, name: &str) {
        self.inside().objects.remove(name);
    }

    /// Changes an object in place.
    pub fn change(&self, name: &str, change: impl FnOnce(&mut Vec<u8>)) {
        let mut inside = self.inside();
        let mut bytes = inside.objects[name].to_vec();
        change(&mut bytes);
        inside.objects.insert(name.into(), bytes.into());
    }

    fn fault(&self, call: Call) -> Fault {
        let mut inside = self.inside();
        *inside.calls.entry(call).or_default() += 1;
        if let Some(always) = inside.always {
            return always;
        }
        let at = inside.next.iter().position(|(of, _)| *of == call);
        at.and_then(|at| inside.next.remove(at)).map_or(Fault::Sound, |(_, fault)| fault)
    }

    /// Does `change`, or not, or late, as the fault says.
    async fn with<T>(&self, fault: Fault, change: impl FnOnce(&mut Inside) -> T) -> Result<T, Refused> {
        match fault {
            Fault::Refused => return Err(Refused { sentence: "refused".into(), unsure: false }),
            Fault::Hang => return std::future::pending().await,
            Fault::Slow(millis) => tokio::time::sleep(Duration::from_millis(millis)).await,
            _ => {}
        }
        let done = change(&mut self.inside());
        match fault {
            Fault::Unsure => Err(Refused { sentence: "the answer was lost".into(), unsure: true }),
            Fault::HangAfter => std::future::pending().await,
            _ => Ok(done),
        }
    }
}

impl Bucket for Fake {
    fn put<'a>(&'a self, name: &'a str, parts: [Bytes; 2]) -> BoxFuture<'a, Result<Kept, Refused>> {
        let fault = self.fault(Call::Put);
        if let Fault::Late(millis) = fault {
            let (later, name) = (self.clone(), name.to_string());
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(millis)).await;
                later.inside().objects.entry(name).or_insert_with(|| parts.concat().into());
            });
            return std::future::pending().boxed();
        }
        let put = move |inside: &mut Inside| {
            if inside.objects.contains_key(name) {
                return Kept::Present;
            }
            inside.objects.insert(name.into(), parts.concat().into());
            Kept::Stored
        };
        self.with(fault, put).boxed()
    }

    fn get<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Option<Answer>, Refused>> {
        let fault = self.fault(Call::Get);
        async move {
            let found = self.with(fault, |inside| inside.objects.get(name).cloned()).await?;
            Ok(found.map(|bytes| answer(bytes.to_vec(), fault)))
        }
        .boxed()
    }

    fn list(&self, start: &str, after: &str) -> BoxStream<'static, Result<String, Refused>> {
        let fault = self.fault(Call::List);
        let is_next = |name: &String| name.starts_with(start) && name.as_str() > after;
        let found = self.names().into_iter().filter(is_next).collect::<Vec<_>>().into_iter();
        let refused = |unsure| Err(Refused { sentence: "no list".into(), unsure });
        match fault {
            Fault::Refused => stream::iter([refused(false)]).boxed(),
            Fault::Hang | Fault::HangAfter => stream::pending().boxed(),
            // The first of them, and then no more.
            Fault::Cut => stream::iter(found.map(Ok).take(1).chain([refused(true)])).boxed(),
            _ => stream::iter(found.map(Ok)).boxed(),
        }
    }

    fn delete<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<(), Refused>> {
        let fault = self.fault(Call::Delete);
        self.with(fault, move |inside| drop(inside.objects.remove(name))).boxed()
    }
}

fn answer(mut object: Vec<u8>, fault: Fault) -> Answer {
    let mut said = object.len() as u64;
    let mut cut = false;
    match fault {
        Fault::Flip(bit) => {
            let at = bit as usize / 8 % object.len();
            object[at] ^= 1 << (bit % 8);
        }
        Fault::Short(bytes) => object.truncate(object.len().saturating_sub(bytes.max(1) as usize)),
        Fault::Long(bytes) => object.extend((0..bytes.max(1)).map(|n| n as u8)),
        Fault::Length(bytes) => {
            said = bytes;
            object.resize(bytes.min(1 << 20) as usize, 0);
        }
        Fault::Cut => {
            object.truncate(object.len() / 2);
            cut = true;
        }
        _ => {}
    }
    // In pieces of all lengths, so that headers come in parts too.
    let mut pieces: Vec<Result<Bytes, Refused>> = Vec::new();
    let (mut at, mut len) = (0, 1);
    while at < object.len() {
        let end = (at + len).min(object.len());
        pieces.push(Ok(Bytes::copy_from_slice(&object[at..end])));
        (at, len) = (end, len * 3);
    }
    if cut {
        pieces.push(Err(Refused { sentence: "the connection was cut".into(), unsure: true }));
    }
    Answer { bytes: said, body: stream::iter(pieces).boxed() }
}

/// Settings that make tests short.
pub fn config() -> RemoteConfig {
    RemoteConfig {
        timeout: Duration::from_secs(2),
        read_timeout: Duration::from_secs(2),
        retries: 1,
        queue_bytes: 1 << 20,
        ..RemoteConfig::new("kv", "node-1")
    }
}

/// Name of object `n`.
pub fn name(n: u64) -> Name {
    (TENANT, id(n, 0))
}

/// Whether object `n` is reported to exist.
pub fn reported(remote: &Remote, n: u64) -> bool {
    remote.present(TENANT, &[id(n, 0).key]) == [1]
}

/// What is known of object `n` with `len` bytes.
pub fn meta_of(n: u64, len: usize) -> PutMeta {
    PutMeta { tenant: TENANT, ..meta(n, len as u64) }
}

/// Offers object `n` with the bytes of `seed`.
pub fn offer(remote: &Remote, n: u64, seed: u64, len: usize) -> bool {
    let bytes = value(seed, len);
    remote.offer(meta_of(n, len), chunk_crcs(&bytes).iter().copied().collect(), Aligned::copy_of(&bytes))
}
