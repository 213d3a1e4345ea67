//! Good traces, and what a careless or hostile writer may send.

use super::*;
use flate2::{Compression, write::GzEncoder};
use proptest::prelude::*;
use std::io::{Cursor, Write};

const HEADER: &str = "{\"block_size\": 64, \"name\": \"n\", \"requests\": 2, \"licence\": \"MIT\"}\n";
const GOOD: &str = "{\"t\":5,\"s\":-1,\"i\":200,\"o\":7,\"h\":[[4,1],[9,2]]}\n";

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn read(bytes: Vec<u8>) -> Result<Vec<TraceRequest>> {
    let mut reader = TraceReader::new(Cursor::new(bytes), "trace".into())?;
    let mut all = Vec::new();
    let mut request = TraceRequest::default();
    while reader.next_into(&mut request)? {
        all.push(request.clone());
    }
    Ok(all)
}

/// The line and the message of the error that this text gives.
fn fails(text: impl AsRef<[u8]>) -> (u64, String) {
    match read(text.as_ref().to_vec()) {
        Err(Error::Trace { line, message }) => (line, message),
        other => panic!("not a trace error: {other:?}"),
    }
}

#[test]
fn reads_plain_gzip_and_gzip_in_several_members() {
    let want =
        TraceRequest { t_ms: 5, session: -1, prompt_tokens: 200, output_tokens: 7, blocks: vec![(4, 1), (9, 2)] };
    let plain = format!("{HEADER}{GOOD}{}", GOOD.trim_end());
    let members = [gzip(HEADER.as_bytes()), gzip(GOOD.as_bytes()), gzip(GOOD.as_bytes())].concat();
    for bytes in [plain.clone().into_bytes(), gzip(plain.as_bytes()), members, plain.replace('\n', "\r\n").into_bytes()]
    {
        assert_eq!(read(bytes).unwrap(), [want.clone(), want.clone()]);
    }
    let reader = TraceReader::new(Cursor::new(plain.into_bytes()), "trace".into()).unwrap();
    assert_eq!(*reader.header(), Header { block_size: 64, requests: Some(2), name: Some("n".into()) });
}

#[test]
fn a_file_without_a_usable_header_is_refused_at_line_1() {
    for (text, part) in [
        ("", "empty"),
        ("\n", "block_size"),
        (GOOD, "missing field `block_size`"),
        ("{\"block_size\": 0}\n", "block_size is 0, allowed is 1 to"),
        ("{\"block_size\": -64}\n", "-64"),
        ("{\"block_size\": 64.5}\n", "64.5"),
        ("{\"block_size\": \"64\"}\n", "\"64\""),
        ("{\"block_size\": 99999999999}\n", "99999999999"),
        ("[64, 2, \"n\"]\n", "JSON object"),
        ("{\"block_size\": 64\n", "EOF"),
    ] {
        let (line, message) = fails(text);
        assert_eq!(line, 1, "{text:?}");
        assert!(message.contains(part), "{text:?}: {message}");
    }
}

#[test]
fn broken_lines_are_named_by_number() {
    for (bad, part) in [
        ("", "JSON object"),
        ("null", "null"),
        ("[5,-1,200,7,[[4,1]]]", "JSON object"),
        ("{\"t\":5,\"s\":-1,\"i\":200,\"o\":7,\"h\":[[4,1]", "EOF"),
        ("{\"t\":5,\"s\":-1,\"i\":200,\"o\":7,\"h\":[[4,1]]} x", "trailing"),
        ("{\"t\":5,\"s\":-1,\"i\":200,\"o\":7}", "missing field `h`"),
        ("{\"t\":5,\"i\":200,\"o\":7,\"h\":[]}", "missing field `s`"),
        ("{\"t\":4,\"s\":-1,\"i\":200,\"o\":7,\"h\":[]}", "t is 4, allowed is at least 5"),
        ("{\"t\":-1,\"s\":-1,\"i\":200,\"o\":7,\"h\":[]}", "-1"),
        ("{\"t\":5,\"s\":-2,\"i\":200,\"o\":7,\"h\":[]}", "s is -2"),
        ("{\"t\":5,\"s\":0,\"i\":-200,\"o\":7,\"h\":[]}", "-200"),
        ("{\"t\":5,\"s\":0,\"i\":2147483648,\"o\":7,\"h\":[]}", "i is 2147483648"),
        ("{\"t\":5,\"s\":0,\"i\":1e99,\"o\":7,\"h\":[]}", "1e+99"),
        ("{\"t\":5,\"s\":0,\"i\":200,\"o\":-7,\"h\":[]}", "-7"),
        ("{\"t\":5,\"s\":0,\"i\":200,\"o\":7,\"h\":[[-4,1]]}", "block id is -4"),
        ("{\"t\":5,\"s\":0,\"i\":200,\"o\":7,\"h\":[[4294967296,1]]}", "block id is 4294967296"),
        ("{\"t\":5,\"s\":0,\"i\":200,\"o\":7,\"h\":[[18446744073709551615,1]]}", "18446744073709551615"),
        ("{\"t\":5,\"s\":0,\"i\":200,\"o\":7,\"h\":[[4294967295,2]]}", "4294967295 to 4294967296"),
        ("{\"t\":5,\"s\":0,\"i\":200,\"o\":7,\"h\":[[4,0]]}", "run length is 0"),
        ("{\"t\":5,\"s\":0,\"i\":200,\"o\":7,\"h\":[[4,-1]]}", "run length is -1"),
        ("{\"t\":5,\"s\":0,\"i\":200,\"o\":7,\"h\":[[4,4]]}", "run length is 4, allowed is 1 to 3"),
        ("{\"t\":5,\"s\":0,\"i\":200,\"o\":7,\"h\":[[4,2],[9,2]]}", "run length is 2, allowed is 1 to 1"),
        ("{\"t\":5,\"s\":0,\"i\":200,\"o\":7,\"h\":[[4,9223372036854775807]]}", "9223372036854775807"),
        ("{\"t\":5,\"s\":0,\"i\":200,\"o\":7,\"h\":[[4]]}", "length 1"),
        ("{\"t\":5,\"s\":0,\"i\":200,\"o\":7,\"h\":[[4,1,1]]}", "column"),
        ("{\"t\":5,\"s\":0,\"i\":200,\"o\":7,\"h\":[4,1]}", "integer `4`"),
        ("{\"t\":5,\"s\":0,\"i\":200,\"o\":7,\"h\":{\"4\":1}}", "map"),
        ("{\"t\":5,\"s\":0,\"i\":\"200\",\"o\":7,\"h\":[]}", "\"200\""),
        ("{\"t\":5,\"s\":0,\"i\":200,\"o\":7,\"h\":[],\"h\":[]}", "duplicate"),
    ] {
        let (line, message) = fails(format!("{HEADER}{GOOD}{bad}\n{GOOD}"));
        assert_eq!(line, 3, "{bad}");
        assert!(message.contains(part), "{bad}: {message}");
        assert!(!message.contains("at line"), "two line numbers: {message}");
    }
}

#[test]
fn bytes_that_are_no_text_are_refused() {
    let (line, _) = fails([HEADER.as_bytes(), b"{\"t\":5,\"\xff\xfe\":0}\n"].concat());
    assert_eq!(line, 2);
    assert_eq!(fails(b"\x00\x01\x02\x03").0, 1);
}

#[test]
fn a_truncated_or_damaged_gzip_is_refused_with_the_line_it_broke_in() {
    let whole = gzip(format!("{HEADER}{}", GOOD.repeat(5000)).as_bytes());
    for cut in [3, 12, whole.len() / 2, whole.len() - 9, whole.len() - 1] {
        let (line, message) = fails(&whole[..cut]);
        assert!((1..=5002).contains(&line), "{line}");
        assert!(message.contains("damaged or cut short") || message.contains("EOF"), "{message}");
    }
    let mut damaged = whole.clone();
    let n = damaged.len();
    damaged[n - 6] ^= 0xff; // the checksum
    assert!(fails(&damaged).1.contains("damaged"));
}

/// A reader without end that counts what was taken from it.
struct Endless(u8, std::sync::Arc<std::sync::atomic::AtomicU64>);

impl Read for Endless {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        buf.fill(self.0);
        self.1.fetch_add(buf.len() as u64, std::sync::atomic::Ordering::Relaxed);
        Ok(buf.len())
    }
}

#[test]
fn an_endless_line_ends_at_the_limit() {
    let taken = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
    let input = BufReader::new(Cursor::new(HEADER.as_bytes()).chain(Endless(b' ', taken.clone())));
    let mut reader = TraceReader::new(input, "trace".into()).unwrap();
    let error = reader.next_into(&mut TraceRequest::default()).unwrap_err();
    assert!(matches!(error, Error::Trace { line: 2, .. }), "{error}");
    assert!(taken.load(std::sync::atomic::Ordering::Relaxed) < MAX_LINE as u64 * 2);
    assert!(reader.buffer.capacity() <= MAX_LINE * 2);
}

#[test]
fn a_gzip_bomb_ends_at_the_limit_of_a_line() {
    // 256 MiB of one line in a quarter of a megabyte.
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(HEADER.as_bytes()).unwrap();
    for _ in 0..256 {
        encoder.write_all(&vec![b'['; 1 << 20]).unwrap();
    }
    let (line, message) = fails(encoder.finish().unwrap());
    assert_eq!(line, 2);
    assert!(message.contains("longer than"), "{message}");
}

/// The requests that are left when bad lines are passed over, and what was passed over.
fn skips(bytes: Vec<u8>) -> (Vec<TraceRequest>, Skipped) {
    let mut reader = TraceReader::new(Cursor::new(bytes), "trace".into()).unwrap().skip_bad(true).check_ids();
    let mut all = Vec::new();
    let mut request = TraceRequest::default();
    while reader.next_into(&mut request).unwrap() {
        all.push(request.clone());
    }
    (all, reader.skipped().clone())
}

fn line(t: u64, runs: &str) -> String {
    format!("{{\"t\":{t},\"s\":-1,\"i\":6400,\"o\":7,\"h\":[{runs}]}}\n")
}

#[test]
fn ids_that_change_parents_are_named_by_line() {
    for (runs, words) in [
        ("[5,1]", "block 5 comes at the start"),
        ("[4,1],[10,1]", "block 10 comes after block 4"),
        ("[4,2],[20,1],[9,2]", "block 9 comes after block 20"),
        ("[30,3],[31,1]", "block 31 comes after block 32"),
    ] {
        let text = format!("{HEADER}{}{}{}", line(1, "[4,2],[9,2]"), line(2, runs), line(3, "[4,1]"));
        let reader = TraceReader::new(Cursor::new(text.clone().into_bytes()), "trace".into()).unwrap();
        let mut reader = reader.check_ids();
        let mut request = TraceRequest::default();
        assert!(reader.next_into(&mut request).unwrap());
        match reader.next_into(&mut request) {
            Err(Error::Trace { line: 3, message }) => assert!(message.starts_with(words), "{message}"),
            other => panic!("{runs}: {other:?}"),
        }
        let (left, skipped) = skips(text.into_bytes());
        assert_eq!(left.iter().map(|r| r.t_ms).collect::<Vec<_>>(), [1, 3]);
        assert_eq!((skipped.lines, skipped.ids), (1, 1));
    }
    // Without the check nothing is kept of ids, and nothing is refused for them.
    assert_eq!(read(format!("{HEADER}{}{}", line(1, "[4,2]"), line(2, "[5,1]")).into_bytes()).unwrap().len(), 2);
}

#[test]
fn bad_lines_are_passed_over_and_counted() {
    let long = format!("{{\"t\":2,\"s\":{}-1}}\n", " ".repeat(3 * MAX_LINE));
    let text = [
        HEADER.into(),
        line(1, "[4,2]"),
        "nonsense\n".into(),
        line(0, "[4,1]"),
        long,
        line(2, "[4,3]"),
        line(9_000, "[5,1]"),
        "{\"t\":2,\"s\":-1,\"i\":64,\"o\":7,\"h\":[[4,2]]}\n".into(),
        line(3, "[4,2],[90,1]"),
    ]
    .concat();
    let (left, skipped) = skips(text.clone().into_bytes());
    // The bad line at 9,000 ms does not make those after it late.
    assert_eq!(left.iter().map(|r| r.t_ms).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!((skipped.lines, skipped.ids, skipped.first.len()), (5, 1, 5));
    for (message, number) in skipped.first.iter().zip([3, 4, 5, 7, 8]) {
        assert!(message.starts_with(&format!("trace line {number}: ")), "{message}");
    }
    assert_eq!(skips(gzip(text.as_bytes())), (left, skipped));
}

#[test]
fn data_that_breaks_off_is_one_bad_line() {
    let whole = gzip(format!("{HEADER}{}", line(1, "[4,2]").repeat(20_000)).as_bytes());
    let (left, skipped) = skips(whole[..whole.len() / 2].to_vec());
    assert!(!left.is_empty() && left.len() < 20_000);
    assert_eq!(skipped.lines, 1);
    assert!(skipped.first[0].contains("damaged or cut short"), "{}", skipped.first[0]);
}

#[test]
fn an_endless_line_is_passed_over_in_bounded_memory() {
    let taken = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
    let endless = Endless(b' ', taken).take(20 * MAX_LINE as u64);
    let rest = format!("\n{}", line(1, "[4,2]"));
    let input = Cursor::new(HEADER.as_bytes()).chain(endless).chain(Cursor::new(rest.into_bytes()));
    let mut reader = TraceReader::new(BufReader::new(input), "trace".into()).unwrap().skip_bad(true);
    let mut request = TraceRequest::default();
    assert!(reader.next_into(&mut request).unwrap());
    assert_eq!((request.t_ms, reader.skipped().lines, reader.line()), (1, 1, 3));
    assert!(reader.buffer.capacity() <= MAX_LINE * 2);
}

#[test]
fn a_long_value_is_not_quoted_in_full() {
    let (_, message) = fails(format!("{HEADER}{{\"t\":\"{}\"}}\n", "x".repeat(100_000)));
    assert!(message.len() < 400, "{}", message.len());
}

#[test]
fn deep_nesting_does_not_overflow_the_stack() {
    let deep = format!("{{\"t\":5,\"z\":{}", "[".repeat(1_000_000));
    assert_eq!(fails(format!("{HEADER}{deep}\n")).0, 2);
}

#[test]
fn a_missing_file_and_a_folder_are_named() {
    for path in ["no/such/file.jsonl", "src"] {
        let error = TraceReader::open(Path::new(path)).err().expect("opened");
        assert!(matches!(&error, Error::Io { path: named, .. } if named == path), "{error}");
    }
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..300), good in any::<bool>()) {
        let mut text = if good { HEADER.as_bytes().to_vec() } else { Vec::new() };
        text.extend(bytes);
        let _ = read(text.clone());
        if good {
            skips(text.clone());
            skips(gzip(&text));
        }
        let _ = read(gzip(&text));
    }

    #[test]
    fn a_flipped_byte_is_an_error_or_another_trace(at in 0usize..1000, value in any::<u8>()) {
        let mut bytes = gzip(format!("{HEADER}{}", GOOD.repeat(50)).as_bytes());
        let n = bytes.len();
        bytes[at % n] = value;
        match read(bytes) {
            Ok(all) => prop_assert!(all.len() <= 50),
            Err(Error::Trace { line, .. }) => prop_assert!(line <= 52),
            Err(other) => prop_assert!(false, "{other}"),
        }
    }
}
