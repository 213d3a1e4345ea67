//! Texts that people write: a list of nodes, from which a placement table is made, and a node's configuration.
#![no_main]

use mimo_cache::member::parse;
use mimo_cache::node::NodeConfig;
use mimo_cache::ring::Table;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(list) = parse(text, 1) {
        let nodes = list.nodes();
        if let Ok(table) = Table::new(64, &nodes, 1) {
            for bucket in 0..table.buckets() {
                assert!(table.owner(bucket).map_or(nodes.is_empty(), |n| usize::from(n) < nodes.len()));
            }
        }
    }
    if let Ok(config) = NodeConfig::read(text, &[]) {
        assert!(config.check().is_ok(), "what was read has been checked");
    }
});
