//! A node in memory behind the transport trait: what the client makes of calls, without any wire.

use super::{Named, value};
use crate::client::*;
use crate::error::Result;
use crate::member::{Fixed, Member, Membership, NodeList, View};
use crate::rpc::v1;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// How a node behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mood {
    #[default]
    Well,
    /// No answer, ever.
    Hung,
    /// Answers after so long.
    Slow(Duration),
    /// Connections are refused.
    Dead,
    /// Says that it has too much to do.
    Busy,
    /// Is not whom the client takes it for, and refuses every call.
    Stranger,
    /// Answers probes, and nothing else.
    Pretends,
}

/// One node.
#[derive(Default)]
pub struct FakeNode {
    pub mood: Mutex<Mood>,
    pub values: Mutex<HashMap<Named, Vec<u8>>>,
    /// Names of the calls it has seen.
    pub calls: Mutex<Vec<&'static str>>,
    /// Objects of touches in the order of the wire.
    pub touched: Mutex<Vec<[u8; 32]>>,
    pub start_id: Mutex<u64>,
    pub capacity: u64,
}

impl FakeNode {
    pub fn set(&self, mood: Mood) {
        *self.mood.lock().unwrap() = mood;
    }

    pub fn count(&self, call: &str) -> usize {
        self.calls.lock().unwrap().iter().filter(|c| **c == call).count()
    }

    /// Stores the value of a number.
    pub fn hold(&self, id: &ObjectId, number: u64, length: usize) {
        self.values.lock().unwrap().insert((id.key, id.part), value(number, length));
    }

    async fn answer(&self, call: &'static str) -> std::result::Result<(), CallError> {
        self.calls.lock().unwrap().push(call);
        let mood = *self.mood.lock().unwrap();
        match mood {
            Mood::Well => Ok(()),
            Mood::Pretends if call == "probe" || call == "stats" => Ok(()),
            Mood::Hung | Mood::Pretends => std::future::pending().await,
            Mood::Slow(by) => {
                tokio::time::sleep(by).await;
                Ok(())
            }
            Mood::Dead => Err(CallError::Connect("refused".into())),
            Mood::Stranger => Err(CallError::Status { code: 9, message: "another node".into() }),
            Mood::Busy => Err(CallError::Status { code: 8, message: "too many calls".into() }),
        }
    }
}

/// The transport of a fake node.
pub struct Fake(pub Arc<FakeNode>);

fn ids(runs: &[v1::ObjectRun]) -> Vec<Named> {
    crate::rpc::ids::objects(runs, usize::MAX).expect("the client packs ids as it should")
}

impl Transport for Fake {
    fn probe(&self, deadline: Instant) -> Pending<'_, NodeInfo> {
        Box::pin(async move {
            let answer = tokio::time::timeout_at(deadline, self.0.answer("probe")).await;
            answer.unwrap_or(Err(CallError::Late))?;
            Ok(self.info().expect("it always has"))
        })
    }

    fn info(&self) -> Option<NodeInfo> {
        let limits = v1::Limits { keys: 1000, objects: 10, value_bytes: 1 << 27, ..v1::Limits::default() };
        Some(NodeInfo { start_id: *self.0.start_id.lock().unwrap(), limits })
    }

    fn exists<'a>(&'a self, _: Call, lease_ms: u32, runs: Vec<v1::KeyRun>) -> Pending<'a, v1::ExistsReply> {
        Box::pin(async move {
            let keys = crate::rpc::ids::keys(&runs, 1000).expect("no more keys than the node takes");
            self.0.answer("exists").await?;
            let values = self.0.values.lock().unwrap();
            let mask = |key: &[u8; 32]| values.keys().filter(|(k, _)| k == key).fold(0, |m, (_, part)| m | 1 << part);
            let masks: Vec<u64> = keys.iter().map(mask).collect();
            let leased_keys = if lease_ms > 0 { masks.len() as u32 / 2 } else { 0 };
            Ok(v1::ExistsReply { masks, leased_keys, ..Default::default() })
        })
    }

    fn get<'a, 'b: 'a, 'c: 'b>(&'a self, _: Call, batch: &'a mut GetBatch<'b, 'c>) -> Pending<'a, ()> {
        Box::pin(async move {
            assert!(batch.items.len() <= 10, "no more objects than the node takes");
            self.0.answer("get").await?;
            for (item, got) in batch.items.iter_mut().zip(&mut batch.got) {
                let values = self.0.values.lock().unwrap();
                *got = Some(match (values.get(&(item.id.key, item.id.part)), &mut item.into) {
                    (None, _) => Got::Miss(Miss::Absent),
                    (Some(value), Destination::Grow(into)) => {
                        into.clone_from(value);
                        Got::Hit { length: value.len() as u64, layout: 0, source: Some(Source::Memory) }
                    }
                    (Some(value), Destination::Segments(segments)) => {
                        segments[0][..value.len()].copy_from_slice(value);
                        Got::Hit { length: value.len() as u64, layout: 0, source: Some(Source::Memory) }
                    }
                });
            }
            Ok(())
        })
    }

    fn put<'a, 'b: 'a, 'c: 'b>(&'a self, _: Call, batch: &'a mut PutBatch<'b, 'c>) -> Pending<'a, ()> {
        Box::pin(async move {
            assert!(batch.items.len() <= 10, "no more objects than the node takes");
            self.0.answer("put").await?;
            for (item, stored) in batch.items.iter().zip(&mut batch.stored) {
                let bytes = match item.bytes {
                    Bytes::There(there) => there.data.concat(),
                    Bytes::Copied(copied) => copied.0.iter().flat_map(|(bytes, _)| bytes.to_vec()).collect(),
                };
                assert_eq!(bytes.len() as u64, item.head.length);
                let mut values = self.0.values.lock().unwrap();
                let name = (item.head.id.key, item.head.id.part);
                *stored = Some(if values.contains_key(&name) { Stored::Present } else { Stored::Stored });
                values.entry(name).or_insert(bytes);
            }
            Ok(())
        })
    }

    fn touch<'a>(&'a self, _: Call, runs: Vec<v1::ObjectRun>) -> Pending<'a, v1::TouchReply> {
        Box::pin(async move {
            self.0.answer("touch").await?;
            let values = self.0.values.lock().unwrap();
            let names = ids(&runs);
            self.0.touched.lock().unwrap().extend(names.iter().map(|(key, _)| *key));
            let present = names.iter().filter(|name| values.contains_key(name)).count() as u32;
            Ok(v1::TouchReply { present, ..Default::default() })
        })
    }

    fn delete<'a>(&'a self, _: Call, runs: Vec<v1::ObjectRun>) -> Pending<'a, v1::DeleteReply> {
        Box::pin(async move {
            self.0.answer("delete").await?;
            let mut values = self.0.values.lock().unwrap();
            let deleted = ids(&runs).iter().filter_map(|name| values.remove(name)).count() as u32;
            Ok(v1::DeleteReply { deleted, ..Default::default() })
        })
    }

    fn verify<'a>(&'a self, _: Call, runs: Vec<v1::ObjectRun>) -> Pending<'a, v1::VerifyReply> {
        Box::pin(async move {
            self.0.answer("verify").await?;
            let values = self.0.values.lock().unwrap();
            let sound = ids(&runs).iter().filter(|name| values.contains_key(name)).count() as u32;
            Ok(v1::VerifyReply { sound, ..Default::default() })
        })
    }

    fn stats(&self, _: Call) -> Pending<'_, v1::StatsReply> {
        Box::pin(async move {
            self.0.answer("stats").await?;
            let used_bytes = self.0.values.lock().unwrap().values().map(|v| v.len() as u64).sum();
            let tier = v1::TierStats { capacity_bytes: self.0.capacity, used_bytes, ..v1::TierStats::default() };
            Ok(v1::StatsReply { tiers: vec![tier], ..v1::StatsReply::default() })
        })
    }

    fn reset(&self) {}
}

/// A cluster of fake nodes, and a client of it.
pub struct FakeCluster {
    pub nodes: HashMap<String, Arc<FakeNode>>,
    pub core: Arc<Core>,
    views: watch::Sender<View>,
}

struct Views(watch::Sender<View>);

impl Membership for Views {
    fn watch(&self) -> watch::Receiver<View> {
        self.0.subscribe()
    }
}

pub fn member(name: &str) -> Member {
    Member { name: name.to_string(), weight: 1, addresses: vec![format!("{name}:1").parse().unwrap()] }
}

impl FakeCluster {
    /// Nodes of these names, of which the client knows those in `first`.
    pub fn new(config: ClientConfig, names: &[&str], first: &[&str]) -> Result<FakeCluster> {
        let node = |name: &&str| (name.to_string(), Arc::new(FakeNode { capacity: 1 << 30, ..FakeNode::default() }));
        let nodes: HashMap<_, _> = names.iter().map(node).collect();
        let list = Arc::new(NodeList::new(1, first.iter().map(|n| member(n)).collect())?);
        let views = watch::Sender::new(View { list, trouble: None });
        let by_name = nodes.clone();
        let make = move |m: &Member| -> Arc<dyn Transport> { Arc::new(Fake(by_name[&m.name].clone())) };
        let membership = Arc::new(Views(views.clone()));
        let core = Core::with_transports(config, membership, Arc::new(Metrics::default()), Box::new(make))?;
        Ok(FakeCluster { nodes, core, views })
    }

    /// Membership says something else; waits until the client has taken it over.
    pub async fn change(&self, names: &[&str]) {
        let epoch = self.views.borrow().list.epoch() + 1;
        let list = Arc::new(NodeList::new(epoch, names.iter().map(|n| member(n)).collect()).unwrap());
        let changes = self.count("membership_changes");
        self.views.send_replace(View { list, trouble: None });
        while self.count("membership_changes") == changes {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    pub fn owner(&self, id: &ObjectId) -> &Arc<FakeNode> {
        let cluster = self.core.cluster();
        &self.nodes[&cluster.route(&id.extent).now.expect("a node").member.name]
    }

    pub fn count(&self, counter: &str) -> u64 {
        self.core.metrics().snapshot().into_iter().find(|(name, _)| *name == counter).expect("a counter of that name").1
    }

    /// Numbers of objects whose extents belong to a node.
    pub fn owned_by<'a>(&'a self, name: &'a str) -> impl Iterator<Item = u64> + 'a {
        (0..).filter(move |&n| Arc::ptr_eq(self.owner(&super::id(n)), &self.nodes[name]))
    }
}

#[tokio::test]
async fn a_list_that_never_changes_is_a_membership() {
    let fixed = Fixed::new(vec![member("a")]).unwrap();
    assert_eq!(fixed.watch().borrow().list.members()[0].name, "a");
}

/// A small table, so that tests are quick.
pub fn config() -> ClientConfig {
    ClientConfig { buckets: 1 << 10, ..ClientConfig::default() }
}
