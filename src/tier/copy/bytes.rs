//! Copies one piece of a page, past the caches where a job is large.
//!
//! Pieces are tens of KB, far from one another in the host region. The C library streams only copies of more than the
//! caches hold, so that it treats such pieces one by one as small; over a job that does not fit, reading what the stores
//! are about to overwrite costs a third of the rate. Streaming stores alone win half of that back, and four streams at
//! once the rest: the processor's prefetcher stops at every 4 KiB, and the streams hide one another's stops. Measured
//! with pieces of 40 KB over 315 MB: the library's `memcpy` by pieces 2.3 GB/s, streaming stores 2.8, in four streams
//! 3.8, and one `memcpy` of everything 3.8.

/// Pieces below this gain nothing.
#[cfg(target_arch = "x86_64")]
const STREAM_PIECE: usize = 8 << 10;

/// Whether the processor can stream.
pub(super) fn can_stream() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("avx2");
    #[cfg(not(target_arch = "x86_64"))]
    return false;
}

/// Copies `len` bytes. With `stream` they are ordered before later stores of this thread all the same.
///
/// # Safety
/// As for [`std::ptr::copy_nonoverlapping`]; `stream` only where [`can_stream`].
pub(super) unsafe fn copy(to: *mut u8, from: *const u8, len: usize, stream: bool) {
    #[cfg(target_arch = "x86_64")]
    if stream && len >= STREAM_PIECE {
        // SAFETY: the caller's promise.
        return unsafe { copy_streamed(to, from, len) };
    }
    let _ = stream;
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy_nonoverlapping(from, to, len) }
}

/// # Safety
/// As for [`copy`]; the processor has AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn copy_streamed(to: *mut u8, from: *const u8, len: usize) {
    use std::arch::x86_64::{__m256i, _mm_sfence, _mm256_loadu_si256, _mm256_stream_si256};
    const LANES: usize = 4;
    /// Bytes of a lane at a time: two cache lines, which the processor fetches together.
    const STEP: usize = 128;
    let head = to.align_offset(64).min(len);
    let lane = (len - head) / LANES / STEP * STEP;
    // SAFETY: every range lies within the `len` bytes of both; streamed addresses are multiples of 32, since `to + head` is
    // one of 64 and lanes and steps are multiples of 128.
    unsafe {
        std::ptr::copy_nonoverlapping(from, to, head);
        let (to_lanes, from_lanes) = (to.add(head), from.add(head));
        for at in (0..lane).step_by(STEP) {
            for n in 0..LANES {
                let (to, from) = (to_lanes.add(n * lane + at), from_lanes.add(n * lane + at));
                for word in (0..STEP).step_by(32) {
                    let value = _mm256_loadu_si256(from.add(word).cast::<__m256i>());
                    _mm256_stream_si256(to.add(word).cast::<__m256i>(), value);
                }
            }
        }
        let done = head + LANES * lane;
        std::ptr::copy_nonoverlapping(from.add(done), to.add(done), len - done);
        // Streaming stores are not ordered by the release stores that publish a layer.
        _mm_sfence();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_and_alignment_is_copied_and_nothing_beside_it() {
        let from: Vec<u8> = (0..40_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        for len in [0, 1, 63, 4095, 8191, 8192, 8193, 8320, 10_240, 20_479, 32_768, 39_000] {
            for (to_at, from_at) in [(0, 0), (1, 0), (0, 1), (63, 31), (32, 500)] {
                let mut to = vec![0xAAu8; 40_000];
                // SAFETY: both vectors have 40,000 bytes, and `at + len` is less.
                unsafe { copy(to.as_mut_ptr().add(to_at), from.as_ptr().add(from_at), len, can_stream()) };
                assert_eq!(to[to_at..to_at + len], from[from_at..from_at + len], "{len} bytes at {to_at}");
                let beside = to[..to_at].iter().chain(&to[to_at + len..]).all(|byte| *byte == 0xAA);
                assert!(beside, "{len} bytes at {to_at} wrote beside them");
            }
        }
    }
}
