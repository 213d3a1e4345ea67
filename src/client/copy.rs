//! Copying with a checksum in the same pass: what is copied is still in the cache nearest to the core when its CRC32C is
//! computed.

/// Bytes copied before their CRC is taken: half of a 32 KiB first-level cache.
const BLOCK: usize = 16 << 10;

/// Copies `source` into `target`, of the same length, and carries `crc` (0 at the start of a chunk) on over the bytes that
/// arrived in `target`.
pub fn copy_crc(target: &mut [u8], source: &[u8], mut crc: u32) -> u32 {
    for (to, from) in target.chunks_mut(BLOCK).zip(source.chunks(BLOCK)) {
        to.copy_from_slice(from);
        crc = crc32c::crc32c_append(crc, to);
    }
    crc
}

/// Appends `source` to `target` and carries `crc` on over what was appended.
pub fn append_crc(target: &mut Vec<u8>, source: &[u8], mut crc: u32) -> u32 {
    target.reserve(source.len());
    for from in source.chunks(BLOCK) {
        target.extend_from_slice(from);
        crc = crc32c::crc32c_append(crc, &target[target.len() - from.len()..]);
    }
    crc
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_crc_arrive() {
        let source: Vec<u8> = (0..100_003u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        for cut in [0, 1, 16 << 10, 50_000, source.len()] {
            let mut target = vec![0; source.len()];
            let crc = copy_crc(&mut target[..cut], &source[..cut], 0);
            let crc = copy_crc(&mut target[cut..], &source[cut..], crc);
            assert_eq!(target, source);
            assert_eq!(crc, crc32c::crc32c(&source));
            let mut target = Vec::new();
            let crc = append_crc(&mut target, &source[..cut], 0);
            assert_eq!(append_crc(&mut target, &source[cut..], crc), crc32c::crc32c(&source));
            assert_eq!(target, source);
        }
        assert_eq!(copy_crc(&mut [0; 9], b"123456789", 0), 0xe306_9283);
    }
}
