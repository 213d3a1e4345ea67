//! An entry of the slab table and a slot header: the first byte says whether the checksums are made right.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    if let Some((first, slot)) = data.split_first() {
        mimo_cache::shm::fuzzing::read_slot(slot, first % 2 == 1);
    }
});
