//! CRC32C, and a copy that makes it on the way.
//!
//! [`copy_crc32c`] reads each byte once: what it stores is what it summed, even when another process changes the source
//! meanwhile. `copy_quietly_append` is the same without the aliasing rules of `&[u8]`, for memory that others write. On
//! x86-64 it has two ways:
//! - With AVX-512 it folds blocks of 256 bytes by carry-less products (V. Gopal et al., "Fast CRC Computation for Generic
//!   Polynomials Using PCLMULQDQ Instruction", Intel 2009).
//! - With SSE 4.2 and AVX2, and for what the first leaves over, it runs the CRC instruction over three lanes at once, since
//!   one has a latency of three cycles, and joins the lanes by tables (M. Adler's method: appending n zero bytes is a
//!   linear map of 32 bits).

use super::header::Crcs;
use super::object::CHUNK_BYTES;

/// CRC32C of `bytes`.
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes)
}

/// CRC32C of bytes that follow others, whose CRC32C is `crc`.
pub fn crc32c_append(crc: u32, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc, bytes)
}

/// CRC32C of each chunk of a value.
pub fn chunk_crcs(value: &[u8]) -> Crcs {
    value.chunks(CHUNK_BYTES).map(crc32c).collect()
}

/// Copies `src` to `dst` and returns its CRC32C.
///
/// # Panics
/// When the lengths differ.
pub fn copy_crc32c(dst: &mut [u8], src: &[u8]) -> u32 {
    copy_crc32c_append(0, dst, src)
}

/// Copies `src` to `dst` and returns the CRC32C of what came before, which is `crc`, and of it.
///
/// # Panics
/// When the lengths differ.
pub fn copy_crc32c_append(crc: u32, dst: &mut [u8], src: &[u8]) -> u32 {
    assert_eq!(dst.len(), src.len(), "source and destination of a copy");
    // SAFETY: both are valid for their length and cannot overlap.
    unsafe { copy_quietly_append(crc, dst.as_mut_ptr(), src.as_ptr(), src.len()) }
}

/// Copies a value and compares each chunk with its CRC32C. False when one differs or there is not one for each chunk;
/// `dst` then holds anything.
///
/// # Panics
/// When the lengths of `dst` and `src` differ.
pub fn copy_verified(dst: &mut [u8], src: &[u8], crcs: &[u32]) -> bool {
    assert_eq!(dst.len(), src.len(), "source and destination of a copy");
    let mut chunks = dst.chunks_mut(CHUNK_BYTES).zip(src.chunks(CHUNK_BYTES)).zip(crcs);
    crcs.len() == src.len().div_ceil(CHUNK_BYTES) && chunks.all(|((dst, src), crc)| copy_crc32c(dst, src) == *crc)
}

/// Copies and returns the CRC32C of what came before, which is `crc`, and of the bytes it stored.
///
/// # Safety
/// `src` is valid for reads and `dst` for writes of `len` bytes, and they do not overlap. Another process may write to
/// `src` meanwhile; then the bytes are any mixture.
pub(crate) unsafe fn copy_quietly_append(crc: u32, dst: *mut u8, src: *const u8, len: usize) -> u32 {
    #[cfg(target_arch = "x86_64")]
    if std::is_x86_feature_detected!("sse4.2") && std::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has the instructions; the rest is the caller's promise.
        return unsafe { x86::copy(crc, dst, src, len, x86::can_fold()) };
    }
    // SAFETY: the caller's promise.
    let copied = unsafe {
        std::ptr::copy_nonoverlapping(src, dst, len);
        std::slice::from_raw_parts(dst, len)
    };
    crc32c_append(crc, copied)
}

/// `MAP[k][b]`: what byte `b` at place `k` of a CRC register becomes when `zeros` zero bytes follow.
#[cfg(target_arch = "x86_64")]
const fn append_zeros(zeros: usize) -> [[u32; 256]; 4] {
    const fn apply(map: &[u32; 32], mut value: u32) -> u32 {
        let mut out = 0;
        while value != 0 {
            out ^= map[value.trailing_zeros() as usize];
            value &= value - 1;
        }
        out
    }
    const fn after(second: &[u32; 32], first: &[u32; 32]) -> [u32; 32] {
        let mut out = [0; 32];
        let mut i = 0;
        while i < 32 {
            out[i] = apply(second, first[i]);
            i += 1;
        }
        out
    }
    let mut identity = [0; 32];
    let mut one_bit = [0; 32];
    one_bit[0] = 0x82f6_3b78;
    let mut i = 0;
    while i < 32 {
        identity[i] = 1 << i;
        if i > 0 {
            one_bit[i] = 1 << (i - 1);
        }
        i += 1;
    }
    let (mut map, mut power, mut bits) = (identity, one_bit, zeros * 8);
    while bits > 0 {
        if bits & 1 == 1 {
            map = after(&power, &map);
        }
        power = after(&power, &power);
        bits >>= 1;
    }
    let mut tables = [[0; 256]; 4];
    let mut k = 0;
    while k < 4 {
        let mut b = 0;
        while b < 256 {
            tables[k][b] = apply(&map, (b as u32) << (8 * k));
            b += 1;
        }
        k += 1;
    }
    tables
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    /// Bytes of a lane; of 1 to 16 KiB this measured best on a Sapphire Rapids. Not a power of two, so that the lanes do
    /// not meet in the same cache sets.
    const LONG: usize = 1344;
    /// For what is left.
    const SHORT: usize = 96;
    static AFTER_LONG: [[u32; 256]; 4] = super::append_zeros(LONG);
    static AFTER_SHORT: [[u32; 256]; 4] = super::append_zeros(SHORT);

    fn append(map: &[[u32; 256]; 4], crc: u32) -> u32 {
        let [a, b, c, d] = crc.to_le_bytes();
        map[0][a as usize] ^ map[1][b as usize] ^ map[2][c as usize] ^ map[3][d as usize]
    }

    /// Bytes that are folded into as many: four registers.
    const BLOCK: usize = 256;
    /// From how many bytes on folding is worth its end.
    const WORTH: usize = 4 * BLOCK;
    /// A register's 16 bytes move up by a block: by x^2048 the upper 8 of them, by x^2112 the lower, whose powers are
    /// higher since bits are mirrored. A product of mirrored factors is one power short, so one is left out here.
    const FOLD: [u64; 2] = [mirrored_power(8 * BLOCK + 63), mirrored_power(8 * BLOCK - 1)];

    /// x^n modulo the polynomial, bits mirrored within 64.
    const fn mirrored_power(n: usize) -> u64 {
        let (mut power, mut i) = (1u32, 0);
        while i < n {
            power = power << 1 ^ if power >> 31 == 1 { 0x1edc_6f41 } else { 0 };
            i += 1;
        }
        (power.reverse_bits() as u64) << 32
    }

    /// Whether [`fold`] can run.
    pub(super) fn can_fold() -> bool {
        std::is_x86_feature_detected!("avx512f") && std::is_x86_feature_detected!("vpclmulqdq")
    }

    /// Copies whole blocks, two at least, and goes on from a CRC register.
    ///
    /// # Safety
    /// As for `copy_quietly_append`; the processor has the features below.
    #[target_feature(enable = "avx512f,vpclmulqdq,sse4.2")]
    unsafe fn fold(dst: *mut u8, src: *const u8, len: usize, crc: u32) -> u32 {
        let copied = |at: usize| {
            // SAFETY: callers stay within `len`.
            unsafe {
                let bytes = _mm512_loadu_si512(src.add(at).cast());
                _mm512_storeu_si512(dst.add(at).cast(), bytes);
                bytes
            }
        };
        let by = _mm512_broadcast_i32x4(_mm_set_epi64x(FOLD[1] as i64, FOLD[0] as i64));
        let mut sums = [0, 64, 128, 192].map(copied);
        sums[0] = _mm512_xor_si512(sums[0], _mm512_zextsi128_si512(_mm_cvtsi32_si128(crc as i32)));
        for block in (BLOCK..len).step_by(BLOCK) {
            for (n, sum) in sums.iter_mut().enumerate() {
                let low = _mm512_clmulepi64_epi128::<0x00>(*sum, by);
                let high = _mm512_clmulepi64_epi128::<0x11>(*sum, by);
                // 0x96 is the exclusive or of three.
                *sum = _mm512_ternarylogic_epi64::<0x96>(low, high, copied(block + 64 * n));
            }
        }
        let mut words = [0u64; BLOCK / 8];
        for (to, sum) in words.chunks_exact_mut(8).zip(sums) {
            // SAFETY: eight words are 64 bytes.
            unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), sum) };
        }
        words.iter().fold(0, |crc, word| _mm_crc32_u64(crc, *word)) as u32
    }

    /// # Safety
    /// As for `copy_quietly_append`; the processor has SSE 4.2 and AVX2, and what [`fold`] needs if `folding`.
    #[target_feature(enable = "sse4.2,avx2")]
    pub(super) unsafe fn copy(before: u32, dst: *mut u8, src: *const u8, len: usize, folding: bool) -> u32 {
        let mut crc = !before;
        let mut at = 0;
        if folding && len >= WORTH {
            at = len / BLOCK * BLOCK;
            // SAFETY: whole blocks within `len`.
            crc = unsafe { fold(dst, src, at, crc) };
        }
        // SAFETY: `at` and what is done from there on stay within `len`.
        unsafe {
            while len - at >= 3 * LONG {
                crc = lanes::<LONG>(dst.add(at), src.add(at), crc, &AFTER_LONG);
                at += 3 * LONG;
            }
            while len - at >= 3 * SHORT {
                crc = lanes::<SHORT>(dst.add(at), src.add(at), crc, &AFTER_SHORT);
                at += 3 * SHORT;
            }
            while len - at >= 8 {
                let word = src.add(at).cast::<u64>().read_unaligned();
                dst.add(at).cast::<u64>().write_unaligned(word);
                crc = _mm_crc32_u64(u64::from(crc), word) as u32;
                at += 8;
            }
            while at < len {
                let byte = src.add(at).read();
                dst.add(at).write(byte);
                crc = _mm_crc32_u8(crc, byte);
                at += 1;
            }
        }
        !crc
    }

    /// Three lanes of `LANE` bytes, a multiple of 32.
    ///
    /// # Safety
    /// As for `copy_quietly_append` with 3 x `LANE` bytes.
    #[target_feature(enable = "sse4.2,avx2")]
    unsafe fn lanes<const LANE: usize>(dst: *mut u8, src: *const u8, crc: u32, map: &[[u32; 256]; 4]) -> u32 {
        let mut crcs = [u64::from(crc), 0, 0];
        for at in (0..LANE).step_by(32) {
            let mut words = [[0u64; 4]; 3];
            for (lane, words) in words.iter_mut().enumerate() {
                let at = lane * LANE + at;
                // SAFETY: 32 bytes at `at` are within the three lanes; `words` has 32 bytes.
                unsafe {
                    let vector = _mm256_loadu_si256(src.add(at).cast());
                    _mm256_storeu_si256(dst.add(at).cast(), vector);
                    _mm256_storeu_si256(words.as_mut_ptr().cast(), vector);
                }
            }
            for n in 0..4 {
                for (crc, words) in crcs.iter_mut().zip(&words) {
                    *crc = _mm_crc32_u64(*crc, words[n]);
                }
            }
        }
        let two = append(map, crcs[0] as u32) ^ crcs[1] as u32;
        append(map, two) ^ crcs[2] as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(seed: u64, len: usize) -> Vec<u8> {
        let mut x = seed | 1;
        let next = |_| {
            x = x.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            (x >> 56) as u8
        };
        (0..len).map(next).collect()
    }

    /// One bit after the other, as the polynomial is defined.
    fn by_definition(bytes: &[u8]) -> u32 {
        let step = |crc: u32, _| if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 };
        !bytes.iter().fold(!0, |crc, b| (0..8).fold(crc ^ u32::from(*b), step))
    }

    #[test]
    fn the_published_check_value() {
        let mut copy = [0; 9];
        assert_eq!((crc32c(b"123456789"), copy_crc32c(&mut copy, b"123456789")), (0xe306_9283, 0xe306_9283));
        assert_eq!((&copy, crc32c(b"")), (b"123456789", 0));
        assert_eq!(crc32c_append(crc32c(b"1234"), b"56789"), 0xe306_9283);
    }

    #[test]
    fn copies_of_all_lengths_and_alignments() {
        let source = words(1, 20_000);
        let lengths = (0..600).chain((600..19_000).step_by(611)).chain([4031, 4032, 4033, 8064, 12_096]);
        for (n, len) in lengths.enumerate() {
            let (from, to) = (n % 17, n % 13);
            let bytes = &source[from..from + len];
            let crc = by_definition(bytes);
            for copied in ways() {
                let mut copy = vec![0x5a; len + 64];
                assert_eq!(copied(&mut copy[to..to + len], bytes), crc, "{len} bytes");
                assert_eq!(&copy[to..to + len], bytes);
                assert!(copy[..to].iter().chain(&copy[to + len..]).all(|b| *b == 0x5a), "{len} bytes wrote more");
            }
        }
    }

    #[test]
    fn a_copy_goes_on_from_what_came_before() {
        let source = words(3, 9000);
        for at in [0, 1, 17, 1024, 4500, 8999, 9000] {
            let mut copy = vec![0; source.len()];
            let (first, second) = copy.split_at_mut(at);
            let before = copy_crc32c(first, &source[..at]);
            assert_eq!(copy_crc32c_append(before, second, &source[at..]), crc32c(&source), "cut at {at}");
            assert_eq!(copy, source);
        }
    }

    type Way = fn(&mut [u8], &[u8]) -> u32;

    /// The copy as it is used, and the ways that this processor has besides.
    fn ways() -> Vec<Way> {
        let mut ways: Vec<Way> = vec![copy_crc32c];
        #[cfg(target_arch = "x86_64")]
        if std::is_x86_feature_detected!("sse4.2") && std::is_x86_feature_detected!("avx2") {
            // SAFETY: the processor has the features, and both slices have the length of the source.
            ways.push(|dst, src| unsafe { x86::copy(0, dst.as_mut_ptr(), src.as_ptr(), src.len(), false) });
        }
        ways
    }

    #[test]
    fn a_value_with_one_wrong_bit_is_not_verified() {
        let value = words(2, CHUNK_BYTES * 2 + 77);
        let crcs = chunk_crcs(&value);
        let mut copy = vec![0; value.len()];
        assert!(crcs.len() == 3 && copy_verified(&mut copy, &value, &crcs) && copy == value);
        for at in [0, CHUNK_BYTES - 1, CHUNK_BYTES, value.len() - 1] {
            let mut bad = value.clone();
            bad[at] ^= 4;
            assert!(!copy_verified(&mut copy, &bad, &crcs), "byte {at}");
        }
        assert!(!copy_verified(&mut copy, &value, &crcs[..2]), "a chunk without a CRC");
        assert!(!copy_verified(&mut copy[..1], &value[..1], &[]) && copy_verified(&mut [], &[], &[]));
    }
}
