//! Copying with a checksum in the same pass, into memory that is there and into vectors that grow.

use crate::shm::copy_quietly_append;

/// Appends `source` to `target` and carries `crc` on over it.
pub fn append_crc(target: &mut Vec<u8>, source: &[u8], crc: u32) -> u32 {
    target.reserve(source.len());
    let length = target.len();
    // SAFETY: `reserve` made room behind `length`, which nothing else refers to, and the copy fills what `set_len` adds.
    unsafe {
        let crc = copy_quietly_append(crc, target.as_mut_ptr().add(length), source.as_ptr(), source.len());
        target.set_len(length + source.len());
        crc
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::copy_crc32c_append;

    #[test]
    fn bytes_and_crc_arrive() {
        let source: Vec<u8> = (0..100_003u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        for cut in [0, 1, 7, 16 << 10, 50_000, source.len()] {
            let mut target = vec![0; source.len()];
            let crc = copy_crc32c_append(0, &mut target[..cut], &source[..cut]);
            let crc = copy_crc32c_append(crc, &mut target[cut..], &source[cut..]);
            assert_eq!(target, source);
            assert_eq!(crc, crc32c::crc32c(&source));
            let mut target = Vec::new();
            let crc = append_crc(&mut target, &source[..cut], 0);
            assert_eq!(append_crc(&mut target, &source[cut..], crc), crc32c::crc32c(&source));
            assert_eq!(target, source);
        }
    }
}
