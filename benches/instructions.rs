//! One hot operation under callgrind: `instructions SCENARIO SIZE`, run by `benches/instructions.py`.
//!
//! Set-up runs without instrumentation; only the measured calls are counted. Prints how many calls they were. Outside
//! valgrind the marks do nothing, so the binary can be run plainly too.

mod common;
#[allow(dead_code)] // the tree bench runs the rest
mod scenarios;

use common::driver::{CHUNK, Driver, PAGE, config};
use common::tokens;
use mimo_cache::key::Key;
use std::hint::black_box;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    let [scenario, size] = args.as_slice() else {
        // `cargo bench` without arguments runs every bench.
        eprintln!("instructions: run benches/instructions.py");
        return;
    };
    let size: usize = size.parse().expect("SIZE is a number");
    let calls = match scenario.as_str() {
        "evict" => evict(size),
        "rematch" => rematch(size),
        "commit" => commit(size),
        "match" => match_stored(size),
        other => panic!("scenario {other:?}, allowed are evict, rematch, commit and match"),
    };
    println!("{calls}");
}

/// Evict one page and hand it out, with `leaves` leaves.
fn evict(leaves: usize) -> usize {
    let (mut driver, readers) = scenarios::evict::prepare(leaves);
    callgrind::start();
    for &seq in &readers {
        driver.cache.reserve(seq, PAGE as u64).expect("reserve");
    }
    callgrind::stop();
    readers.len()
}

/// Match waiting requests of `n` tokens again after the tree has changed.
fn rematch(n: usize) -> usize {
    let (mut driver, mut waiting) = scenarios::rematch::prepare(n + 1, 0);
    for request in &mut waiting {
        black_box(driver.cache.peek(request));
    }
    scenarios::rematch::disturb(&mut driver, &waiting, 0);
    callgrind::start();
    for request in &mut waiting {
        black_box(driver.cache.peek(request));
    }
    callgrind::stop();
    waiting.len()
}

/// Commit a chunk of 128 pages behind `n` tokens of the same prompt; counted per page.
fn commit(n: usize) -> usize {
    let mut driver = Driver::new(config((n + CHUNK) / PAGE + 64, 1_024));
    let (seq, _) = driver.open(tokens(1, n + CHUNK), 0);
    for start in (0..n).step_by(CHUNK) {
        driver.compute(seq, CHUNK.min(n - start), &[]);
    }
    driver.cache.reserve(seq, CHUNK as u64).expect("reserve");
    driver.fill(seq);
    callgrind::start();
    driver.cache.commit(seq, CHUNK as u64, &[]).expect("commit");
    callgrind::stop();
    CHUNK / PAGE
}

/// Match a stored prompt of `n` tokens from nothing; counted per page.
fn match_stored(n: usize) -> usize {
    let mut driver = Driver::new(config(n / PAGE + 64, 1_024));
    driver.run(tokens(1, n + 1));
    let prompt = tokens(1, n + 1);
    callgrind::start();
    black_box(driver.cache.match_tokens(&prompt, &Key::default(), &[]).expect("match"));
    callgrind::stop();
    n / PAGE
}

/// Marks for callgrind (`--instr-atstart=no`): the client requests of valgrind's manual, as it writes them for x86-64.
mod callgrind {
    const TOOL: u64 = (b'C' as u64) << 24 | (b'T' as u64) << 16;

    /// Count from here.
    pub fn start() {
        request(TOOL + 4);
    }

    /// Count no more.
    pub fn stop() {
        request(TOOL + 5);
    }

    #[cfg(target_arch = "x86_64")]
    fn request(number: u64) {
        let words: [u64; 6] = [number, 0, 0, 0, 0, 0];
        // SAFETY: on a processor these rotations of rdi (128 bits in all) and the exchange of rbx with itself change
        // nothing but the flags; valgrind reads the six words at rax and answers in rdx.
        unsafe {
            std::arch::asm!(
                "rol rdi, 3", "rol rdi, 13", "rol rdi, 61", "rol rdi, 51", "xchg rbx, rbx",
                in("rax") words.as_ptr(),
                inout("rdx") 0u64 => _,
                options(nostack),
            );
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn request(_number: u64) {}
}
