//! Headers, footers and whole segments of the disk tier: the first byte says whether the checksums are made right, and
//! whether bytes are read as single parts or as a segment of a directory.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    if let Some((first, rest)) = data.split_first() {
        match first / 2 % 2 {
            0 => mimo_cache::disk::fuzzing::read_parts(rest, first % 2 == 1),
            _ => mimo_cache::disk::fuzzing::open_segment(rest, first % 2 == 1),
        }
    }
});
