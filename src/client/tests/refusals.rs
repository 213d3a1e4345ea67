//! A node that refuses everything takes nothing from what the others answer.

use super::fake_transport::{FakeCluster, Mood, config};
use super::{id, key, value};
use crate::client::*;
use crate::error::Error;
use std::time::Duration;

/// Nodes `a` and `b`, of which `b` refuses; objects of each of them that both have.
fn with_a_stranger() -> (FakeCluster, Vec<u64>, Vec<u64>) {
    let names = ["a", "b"];
    let cluster = FakeCluster::new(config(), &names, &names).unwrap();
    let [of_a, of_b] = names.map(|name| cluster.owned_by(name).take(15).collect::<Vec<_>>());
    for &n in of_a.iter().chain(&of_b) {
        cluster.owner(&id(n)).hold(&id(n), n, 100);
    }
    cluster.nodes["b"].set(Mood::Stranger);
    (cluster, of_a, of_b)
}

fn both(a: &[u64], b: &[u64]) -> Vec<u64> {
    a.iter().zip(b).flat_map(|(a, b)| [*a, *b]).collect()
}

#[tokio::test(start_paused = true)]
async fn objects_of_other_nodes_are_got_and_put() {
    let (cluster, of_a, of_b) = with_a_stranger();
    let core = &cluster.core;
    let numbers = both(&of_a, &of_b);
    let mut gets: Vec<GetItem> = numbers.iter().map(|&n| GetItem::new(id(n), Destination::Grow(vec![]))).collect();
    core.get(&mut gets, core.deadline(None)).await.unwrap();
    let is_refusal = |refusal: &Refusal| (refusal.node.as_str(), refusal.code) == ("b", 9);
    for pair in gets.chunks(2) {
        assert!(pair[0].got.is_hit(), "{:?}", pair[0].got);
        assert!(matches!(&pair[1].got, Got::Failed(refusal) if is_refusal(refusal)), "{:?}", pair[1].got);
    }
    let bytes = value(1, 50);
    let puts: Vec<PutItem> = numbers.iter().map(|&n| PutItem::new(id(n), &bytes)).collect();
    for pair in core.put(&puts, core.deadline(None)).await.unwrap().chunks(2) {
        assert_eq!(pair[0], Stored::Present);
        assert!(matches!(&pair[1], Stored::Failed(refusal) if is_refusal(refusal)), "{:?}", pair[1]);
    }
    let refusal = |name: &str| {
        let client = core.cluster();
        client.nodes().iter().find(|n| n.member.name == name).and_then(|n| n.refusal())
    };
    assert_eq!((refusal("a"), refusal("b").map(|r| r.code)), (None, Some(9)));
    cluster.nodes["b"].set(Mood::Well);
    core.touch(&[id(of_b[0])], core.deadline(None)).await.unwrap();
    assert_eq!(refusal("b"), None, "it has answered since");
}

#[tokio::test(start_paused = true)]
async fn keys_of_other_nodes_are_found() {
    let (cluster, of_a, of_b) = with_a_stranger();
    let core = &cluster.core;
    let found = |numbers: Vec<u64>| async move {
        let keys: Vec<[u8; 32]> = numbers.iter().map(|&n| key(n)).collect();
        let runs: Vec<KeyRun> = keys.iter().map(|k| KeyRun { extent: *k, keys: std::slice::from_ref(k) }).collect();
        core.exists(&runs, 0, 0, core.deadline(None)).await
    };
    let some = found(both(&of_a, &of_b)).await;
    assert!(some.masks.chunks(2).all(|pair| pair[0] != 0 && pair[1] == 0), "{:?}", some.masks);
    let nodes = |refused: &[std::sync::Arc<Refusal>]| refused.iter().map(|r| r.node.clone()).collect::<Vec<_>>();
    assert_eq!((nodes(&some.refused), some.all_refused), (vec!["b".to_string()], false));
    let none = found(of_b).await;
    assert_eq!((nodes(&none.refused), none.all_refused), (vec!["b".to_string()], true));
    let nothing = found(vec![]).await;
    assert_eq!((nothing.refused.len(), nothing.all_refused), (0, false));
}

#[tokio::test(start_paused = true)]
async fn objects_of_other_nodes_are_counted() {
    let (cluster, of_a, of_b) = with_a_stranger();
    let core = &cluster.core;
    let ids = |numbers: &[u64]| numbers.iter().map(|&n| id(n)).collect::<Vec<_>>();
    let mixed = ids(&both(&of_a, &of_b));
    let until = || core.deadline(None);
    let nodes = |counted: &Counted| counted.refused.iter().map(|r| r.node.clone()).collect::<Vec<_>>();
    let verified = core.verify(&mixed, until()).await.unwrap();
    let touched = core.touch(&mixed, until()).await.unwrap();
    let deleted = core.delete(&mixed, until()).await.unwrap();
    for counted in [verified, touched, deleted] {
        assert_eq!((counted.count, nodes(&counted), counted.all_refused), (15, vec!["b".to_string()], false));
    }
    for counted in [core.touch(&ids(&of_b), until()).await.unwrap(), core.delete(&ids(&of_b), until()).await.unwrap()] {
        assert_eq!((counted.count, nodes(&counted), counted.all_refused), (0, vec!["b".to_string()], true));
    }
    assert!(!core.touch(&[], until()).await.unwrap().all_refused);
    cluster.nodes["a"].set(Mood::Dead);
    let gone = core.verify(&mixed, until()).await.unwrap();
    assert_eq!((gone.unanswered, gone.all_refused), (vec!["a".to_string()], false));
}

#[test]
fn a_caller_that_does_not_want_to_wait_any_more_does_not() {
    // The system accepts for it, and nobody ever answers.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let config =
        ClientConfig { deadline: Duration::from_secs(3600), connect_deadline: Duration::from_secs(3600), ..config() };
    let member = format!("a={}", silent.local_addr().unwrap()).parse().unwrap();
    let client = Client::of(config, vec![member]).unwrap().interrupted_by(|| true);
    let mut memory = [0; 100];
    let mut gets = [GetItem::new(id(1), &mut memory[..])];
    assert_eq!(client.get(&mut gets, None), Err(Error::Interrupted));
    assert_eq!(client.put(&[PutItem::new(id(1), b"x")], None), Err(Error::Interrupted));
    assert_eq!(client.flush(None), Ok(true), "what is done at once is not asked about");
}
