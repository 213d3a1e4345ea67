//! The superblock of a shared-memory file: the first byte says whether the checksum is made right.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    if let Some((first, page)) = data.split_first() {
        mimo_cache::shm::fuzzing::read_superblock(page, first % 2 == 1);
    }
});
