//! Reads traces: JSON lines, plain or gzip. Line 1 is a header, then one request a line in order of arrival.
//!
//! `t` milliseconds; `s` session or -1; `i` prompt tokens; `o` output tokens; `h` ids of the full blocks as runs
//! `[[first id, run length], ...]`. Ids are prefix-chained: one id always has the same blocks before it.
//!
//! A trace is input from outside. It is read as a stream, one line at a time, and a line is bounded by [`MAX_LINE`]:
//! neither a gzip bomb nor an endless line takes more memory than that. What is wrong is said with its line number, or
//! counted and passed over where the reader was told so ([`TraceReader::skip_bad`]).

use crate::error::{Error, Result};
use crate::replay::lineage::Lineage;
use flate2::bufread::MultiGzDecoder;
use serde::Deserialize;
use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::path::Path;

/// Longest line, in bytes.
pub const MAX_LINE: usize = 16 << 20;
/// Longest prompt, in tokens (the core counts in 31 bits).
pub const MAX_PROMPT: u64 = (1 << 31) - 1;
/// Largest block, in tokens.
pub const MAX_BLOCK: u64 = 1 << 20;

/// Line 1 of a trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// Tokens per block.
    pub block_size: u32,
    /// Requests that the file should hold, if it says so.
    pub requests: Option<u64>,
    /// Name of the trace, if it has one.
    pub name: Option<String>,
}

/// Bad lines that a reader passed over.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Skipped {
    /// How many.
    pub lines: u64,
    /// Those of them whose ids contradict earlier lines.
    pub ids: u64,
    /// What was wrong with the first few.
    pub first: Vec<String>,
}

/// Messages kept of lines that were passed over.
const SHOWN: usize = 5;

/// One request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TraceRequest {
    /// Arrival, in milliseconds.
    pub t_ms: u64,
    /// Session, or -1 when it is not known.
    pub session: i64,
    /// Prompt tokens, the partial block included.
    pub prompt_tokens: u64,
    /// Output tokens.
    pub output_tokens: u64,
    /// Full blocks as runs of ids: first, count (at least 1).
    pub blocks: Vec<(u32, u32)>,
}

impl TraceRequest {
    /// Full blocks of the prompt.
    pub fn block_count(&self) -> u64 {
        self.blocks.iter().map(|&(_, count)| u64::from(count)).sum()
    }
}

#[derive(Deserialize)]
struct RawHeader {
    block_size: u64,
    requests: Option<u64>,
    name: Option<String>,
}

#[derive(Deserialize)]
struct RawRequest {
    t: u64,
    s: i64,
    i: u64,
    o: u64,
    h: Vec<(i64, i64)>,
}

/// A stream of requests.
pub struct TraceReader {
    input: Box<dyn BufRead + Send>,
    path: String,
    header: Header,
    line: u64,
    last_t: u64,
    buffer: Vec<u8>,
    skip: bool,
    skipped: Skipped,
    lineage: Option<Lineage>,
    /// The line before was too long, and its end was not read yet.
    inside_line: bool,
    /// The data broke off; there is nothing more to read.
    broken: bool,
}

/// What a line of a trace was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Line {
    /// A request.
    Request,
    /// One that cannot be used.
    Skipped,
    /// There was none.
    End,
}

impl TraceReader {
    /// Opens a regular file and reads its header.
    pub fn open(path: &Path) -> Result<Self> {
        let name = path.display().to_string();
        let io = |e: std::io::Error| Error::Io { path: name.clone(), message: e.to_string() };
        // A pipe cannot be read twice, and opening one may block.
        if !std::fs::metadata(path).map_err(io)?.is_file() {
            return Err(Error::Io { path: name, message: "not a regular file; a trace is read twice".into() });
        }
        let file = File::open(path).map_err(io)?;
        Self::new(BufReader::with_capacity(1 << 16, file), name)
    }

    /// Reads the header from `input`; gzip is told from plain text by its first two bytes. `name` is for messages.
    pub fn new(mut input: impl BufRead + Send + 'static, name: String) -> Result<Self> {
        let head = input.fill_buf().map_err(|e| Error::Io { path: name.clone(), message: e.to_string() })?;
        let input: Box<dyn BufRead + Send> = if head.starts_with(&[0x1f, 0x8b]) {
            Box::new(BufReader::with_capacity(1 << 16, MultiGzDecoder::new(input)))
        } else {
            Box::new(input)
        };
        let header = Header { block_size: 0, requests: None, name: None };
        let mut reader = TraceReader {
            input,
            path: name,
            header,
            line: 0,
            last_t: 0,
            buffer: Vec::new(),
            skip: false,
            skipped: Skipped::default(),
            lineage: None,
            inside_line: false,
            broken: false,
        };
        reader.header = reader.read_header()?;
        Ok(reader)
    }

    /// Whether lines that cannot be used are counted and passed over. Line 1 must be right in any case.
    pub fn skip_bad(mut self, on: bool) -> Self {
        self.skip = on;
        self
    }

    /// Checks that every id always has the same blocks before it, and counts distinct ids.
    pub fn check_ids(mut self) -> Self {
        self.lineage = Some(Lineage::new());
        self
    }

    /// Lines passed over so far.
    pub fn skipped(&self) -> &Skipped {
        &self.skipped
    }

    /// Distinct ids so far; 0 without [`Self::check_ids`].
    pub fn distinct_ids(&self) -> u64 {
        self.lineage.as_ref().map_or(0, Lineage::len)
    }

    /// Line 1.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Lines read so far.
    pub fn line(&self) -> u64 {
        self.line
    }

    /// Reads the next request into `out`; `false` at the end.
    pub fn next_into(&mut self, out: &mut TraceRequest) -> Result<bool> {
        loop {
            match self.next_line(out)? {
                Line::Request => return Ok(true),
                Line::Skipped => {}
                Line::End => return Ok(false),
            }
        }
    }

    /// Reads one line: a request into `out`, or one that is passed over. For callers that must be heard now and then,
    /// however long a stretch of such lines is.
    pub fn next_line(&mut self, out: &mut TraceRequest) -> Result<Line> {
        let error = match self.read_request(out) {
            Ok(true) => return Ok(Line::Request),
            Ok(false) => return Ok(Line::End),
            Err(error) => error,
        };
        if !self.skip || !matches!(error, Error::Trace { .. }) {
            return Err(error);
        }
        self.skipped.lines += 1;
        if self.skipped.first.len() < SHOWN {
            self.skipped.first.push(error.to_string());
        }
        Ok(Line::Skipped)
    }

    fn read_request(&mut self, out: &mut TraceRequest) -> Result<bool> {
        if !self.read_line()? {
            return Ok(false);
        }
        let raw: RawRequest = self.parse("a request {\"t\", \"s\", \"i\", \"o\", \"h\"}")?;
        if raw.t < self.last_t {
            let allowed = format!("at least {}, that of the line before", self.last_t);
            return Err(self.bad("t", raw.t, &allowed));
        }
        if raw.s < -1 {
            return Err(self.bad("s", raw.s, "a session from 0, or -1"));
        }
        if raw.i > MAX_PROMPT {
            return Err(self.bad("i", raw.i, &format!("0 to {MAX_PROMPT} prompt tokens")));
        }
        out.blocks.clear();
        let most = raw.i / u64::from(self.header.block_size);
        let mut total = 0u64;
        for &(first, count) in &raw.h {
            let first_id = u32::try_from(first).map_err(|_| self.bad("block id", first, "0 to 4294967295"))?;
            // No more blocks than the prompt has tokens for, so the sum cannot overflow.
            let left = most - total;
            if count < 1 || count as u64 > left {
                let allowed = format!(
                    "1 to {left}, as {} prompt tokens have {most} full blocks, {total} of them named before",
                    raw.i
                );
                return Err(self.bad("run length", count, &allowed));
            }
            if first as u64 + count as u64 > 1 << 32 {
                let value = format!("{first} to {}", first as u64 + count as u64 - 1);
                return Err(self.bad("run of block ids", value, "ids from 0 to 4294967295"));
            }
            total += count as u64;
            out.blocks.push((first_id, count as u32));
        }
        if let Some(Err(conflict)) = self.lineage.as_mut().map(|l| l.add(&out.blocks)) {
            self.skipped.ids += u64::from(self.skip);
            let place = conflict.parent.map_or("at the start".into(), |p| format!("after block {p}"));
            let message = format!(
                "block {} comes {place}, and elsewhere it does not; allowed is one place: an id always has the same \
                 blocks before it",
                conflict.id
            );
            return Err(self.error(message));
        }
        self.last_t = raw.t;
        out.t_ms = raw.t;
        out.session = raw.s;
        out.prompt_tokens = raw.i;
        out.output_tokens = raw.o;
        Ok(true)
    }

    fn read_header(&mut self) -> Result<Header> {
        if !self.read_line()? {
            self.line = 1;
            return Err(self.error("the file is empty; line 1 must be a header with \"block_size\"".into()));
        }
        let raw: RawHeader = self.parse("a header with \"block_size\"")?;
        if !(1..=MAX_BLOCK).contains(&raw.block_size) {
            return Err(self.bad("block_size", raw.block_size, &format!("1 to {MAX_BLOCK}")));
        }
        Ok(Header { block_size: raw.block_size as u32, requests: raw.requests, name: raw.name })
    }

    /// Reads one line into the buffer, without its end; `false` at the end of the file.
    fn read_line(&mut self) -> Result<bool> {
        self.buffer.clear();
        if self.broken {
            return Ok(false);
        }
        if std::mem::take(&mut self.inside_line) {
            self.discard_line()?;
        }
        let result = self.input.by_ref().take(MAX_LINE as u64 + 1).read_until(b'\n', &mut self.buffer);
        match result {
            Ok(0) => return Ok(false),
            Ok(_) => self.line += 1,
            Err(e) => {
                self.line += 1;
                return Err(self.read_error(&e));
            }
        }
        if self.buffer.len() > MAX_LINE {
            self.inside_line = true;
            return Err(self.error(format!("the line is longer than {MAX_LINE} bytes, the most that is allowed")));
        }
        Ok(true)
    }

    /// Reads to the end of a line that was too long, keeping nothing.
    fn discard_line(&mut self) -> Result<()> {
        loop {
            let part = match self.input.fill_buf() {
                Ok(part) => part,
                Err(e) => return Err(self.read_error(&e)),
            };
            let end = part.iter().position(|&b| b == b'\n');
            let used = end.map_or(part.len(), |at| at + 1);
            self.input.consume(used);
            if end.is_some() || used == 0 {
                return Ok(());
            }
        }
    }

    fn read_error(&mut self, e: &std::io::Error) -> Error {
        self.broken = true;
        match e.kind() {
            ErrorKind::UnexpectedEof | ErrorKind::InvalidData | ErrorKind::InvalidInput => {
                self.error(format!("the compressed data is damaged or cut short ({e})"))
            }
            _ => Error::Io { path: self.path.clone(), message: e.to_string() },
        }
    }

    /// The line as JSON object.
    fn parse<'a, T: Deserialize<'a>>(&'a self, what: &str) -> Result<T> {
        let text = self.buffer.trim_ascii();
        // Serde would take an array for a struct as well.
        if text.first() != Some(&b'{') {
            let start: String = String::from_utf8_lossy(&text[..text.len().min(40)]).into_owned();
            return Err(self.error(format!("found {start:?}, allowed is {what} as one JSON object")));
        }
        serde_json::from_slice(text).map_err(|e| {
            let full = e.to_string();
            // The position inside the "file" serde saw is column only; a quoted value may be as long as the line.
            let short = full.rsplit_once(" at line ").map_or(full.as_str(), |(message, _)| message);
            let short: String = short.chars().take(200).collect();
            self.error(format!("{short} (column {}), allowed is {what}", e.column()))
        })
    }

    fn bad(&self, what: &str, value: impl std::fmt::Display, allowed: &str) -> Error {
        self.error(format!("{what} is {value}, allowed is {allowed}"))
    }

    fn error(&self, message: String) -> Error {
        Error::Trace { line: self.line, message }
    }
}

#[cfg(test)]
mod tests;
