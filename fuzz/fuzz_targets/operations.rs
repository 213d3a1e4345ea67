//! Operation sequences against the model: ten bytes name the layout, then six an operation each.
#![no_main]

#[path = "../../tests/model/mod.rs"]
mod model;

libfuzzer_sys::fuzz_target!(|data: &[u8]| model::run_bytes(data, true));
