//! Placement against a plain second implementation, its movement, its balance, and the published vectors.

use mimo_cache::ring::{Node, Ring, Table, bucket_of, draw, extent_of, node_seed};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::collections::HashMap;

fn node(name: &str, weight: u32) -> Node {
    Node { name: name.into(), weight }
}

fn equal(count: usize) -> Vec<Node> {
    (0..count).map(|i| node(&format!("node-{i}"), 64)).collect()
}

/// The rule itself: the lowest cost, of equal ones the first name.
fn owner_of(nodes: &[Node], bucket: u32) -> Option<String> {
    nodes.iter().map(|n| (draw(node_seed(&n.name), n.weight, bucket), n.name.clone())).min().map(|(_, name)| name)
}

fn name(table: &Table, bucket: u32) -> Option<String> {
    table.owner(bucket).map(|i| table.nodes()[usize::from(i)].name.clone())
}

fn load(table: &Table) -> HashMap<String, u32> {
    let mut load = HashMap::new();
    for bucket in 0..table.buckets() {
        *load.entry(name(table, bucket).expect("nodes are there")).or_default() += 1;
    }
    load
}

#[test]
fn vectors() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/vectors/ring.json");
    let vectors: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    for case in vectors["draws"].as_array().unwrap() {
        let (name, weight) = (case["name"].as_str().unwrap(), case["weight"].as_u64().unwrap() as u32);
        let found = draw(node_seed(name), weight, case["bucket"].as_u64().unwrap() as u32);
        assert_eq!(json!(found.to_string()), case["cost"], "{case}");
    }
    for case in vectors["tables"].as_array().unwrap() {
        let nodes: Vec<Node> = case["nodes"]
            .as_array()
            .unwrap()
            .iter()
            .map(|n| node(n[0].as_str().unwrap(), n[1].as_u64().unwrap() as u32))
            .collect();
        let owners: Vec<&str> = case["owners"].as_array().unwrap().iter().map(|o| o.as_str().unwrap()).collect();
        let table = Table::new(owners.len() as u32, &nodes, 1).unwrap();
        for (bucket, owner) in owners.iter().enumerate() {
            assert_eq!(name(&table, bucket as u32).as_deref(), Some(*owner), "bucket {bucket} of {nodes:?}");
        }
    }
    for case in vectors["buckets"].as_array().unwrap() {
        let hex = case["first_key"].as_str().unwrap();
        let key: Vec<u8> = (0..32).map(|i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).unwrap()).collect();
        let found = bucket_of(&key.try_into().unwrap(), case["buckets"].as_u64().unwrap() as u32);
        assert_eq!(json!(found), case["bucket"]);
    }
}

#[test]
fn pages_of_one_extent_share_a_bucket() {
    assert_eq!([0, 15, 16, 47].map(|page| extent_of(page, 16)), [0, 0, 1, 2]);
}

#[test]
fn load_follows_the_weights() {
    let nodes = [node("a", 1), node("b", 2), node("c", 5)];
    let load = load(&Table::new(1 << 16, &nodes, 1).unwrap());
    for n in &nodes {
        let ideal = f64::from(1 << 16) * f64::from(n.weight) / 8.0;
        let sigma = (ideal * (1.0 - f64::from(n.weight) / 8.0)).sqrt();
        let found = f64::from(load[&n.name]);
        assert!((found - ideal).abs() < 4.0 * sigma, "{}: {found} instead of {ideal} +- {sigma}", n.name);
    }
}

#[test]
fn a_joining_node_takes_its_share_and_nothing_else_moves() {
    for weight in [32, 64, 256] {
        let old = equal(20);
        let before = Ring::new(1 << 14, &old).unwrap();
        let nodes = [old, vec![node("new", weight)]].concat();
        let ring = before.change(&nodes).unwrap();
        let mut moved = 0;
        for bucket in 0..1 << 14 {
            if name(ring.now(), bucket) != name(before.now(), bucket) {
                assert_eq!(name(ring.now(), bucket).as_deref(), Some("new"));
                moved += 1;
            }
        }
        let share = f64::from(weight) / f64::from(20 * 64 + weight);
        let ideal = f64::from(1 << 14) * share;
        let sigma = (ideal * (1.0 - share)).sqrt();
        assert!((f64::from(moved) - ideal).abs() < 4.0 * sigma, "{moved} buckets moved instead of {ideal} +- {sigma}");
    }
}

#[test]
fn bad_tables_are_refused() {
    let too_many = equal(4097);
    for (buckets, nodes, says) in [
        (3, vec![], "buckets"),
        (1 << 22, vec![], "buckets"),
        (8, vec![node("a", 0)], "node weight"),
        (8, vec![node("a", (1 << 20) + 1)], "node weight"),
        (8, vec![node("", 1)], "node name"),
        (8, vec![node(&"x".repeat(256), 1)], "node name"),
        (8, vec![node("a", 1), node("a", 2)], "node name"),
        (8, too_many, "nodes"),
    ] {
        let error = Table::new(buckets, &nodes, 1).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
    let empty = Table::new(8, &[], 1).unwrap();
    assert_eq!(empty.owner(7), None);
}

proptest! {
    /// Any path of changes ends in the table that its last set of nodes has by itself, and the epoch before is named
    /// exactly where the owner changed.
    #[test]
    fn changes_equal_fresh_tables(
        sets in prop::collection::vec(prop::collection::btree_map("[a-d]{1,2}", 1u32..5, 0..7), 1..6)
    ) {
        let list = |set: &std::collections::BTreeMap<String, u32>| -> Vec<Node> {
            set.iter().rev().map(|(name, &weight)| node(name, weight)).collect()
        };
        let mut ring = Ring::new(256, &list(&sets[0])).unwrap();
        for set in &sets {
            let (nodes, old) = (list(set), ring.now().clone());
            ring = ring.change(&nodes).unwrap();
            for bucket in 0..256 {
                prop_assert_eq!(name(ring.now(), bucket), owner_of(&nodes, bucket));
                let owners = ring.owners(bucket);
                prop_assert_eq!(owners.now, ring.now().owner(bucket));
                if let Some(was) = owners.before {
                    let table = ring.before().unwrap();
                    prop_assert!(name(ring.now(), bucket).as_ref() != Some(&table.nodes()[usize::from(was)].name));
                } else if let Some(was) = name(&old, bucket).filter(|_| ring.before().is_some()) {
                    let now = name(ring.now(), bucket);
                    let table = ring.before().unwrap();
                    prop_assert!(now == name(table, bucket), "{} lost its bucket without a trace", was);
                }
            }
        }
        prop_assert_eq!(ring.settled().owners(3).before, None);
    }
}
