//! Checks of messages against the published vectors, which the Python implementation made from the contract's descriptors:
//! no field is forgotten here.

use mimo_cache::rpc::check::{Checked, seal, verify};
use mimo_cache::rpc::v1::*;
use serde_json::Value;
use std::fmt::Debug;

/// Reads a message, compares its check, and makes it anew; whether it says anything.
fn compare<M: Checked + Default + Debug>(bytes: &[u8], seed: u32, check: u32) -> bool {
    let mut message = M::decode(bytes).expect("a message of the contract");
    assert_eq!(verify(&message, seed), Ok(check), "{message:?}");
    assert!(verify(&message, seed ^ 1).is_err(), "it belongs to its call alone");
    message.set_check(!check);
    assert!(verify(&message, seed).unwrap_err().to_string().contains("altered on their way"));
    assert_eq!(seal(&mut message, seed), check);
    bytes.len() > 5
}

#[test]
fn vectors() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/vectors/wire_checks.json");
    let vectors: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let mut seen = 0;
    for case in vectors.as_array().unwrap() {
        let word = |name: &str| u32::try_from(case[name].as_u64().unwrap()).unwrap();
        let hex = case["hex"].as_str().unwrap();
        let bytes: Vec<u8> =
            (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect();
        let (seed, check) = (word("seed"), word("check"));
        macro_rules! compared {
            ($($message:ident)*) => {
                match case["message"].as_str().unwrap() {
                    $(stringify!($message) => compare::<$message>(&bytes, seed, check),)*
                    other => panic!("{other} is no message with a check"),
                }
            };
        }
        seen += usize::from(compared!(
            HelloRequest HelloReply ExistsRequest ExistsReply TouchRequest TouchReply DeleteRequest DeleteReply
            VerifyRequest VerifyReply GetRequest GetReply PutRequest PutReply StatsRequest StatsReply
        ));
    }
    assert_eq!(seen, 2 * 16, "two of each message that say something");
}
