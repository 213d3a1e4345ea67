//! What the programs print. Nobody may be listening, or the disk may be full: that is an error like others, no panic.

use std::io::{self, Write};
use std::process::ExitCode;

/// Writes a text and a line's end to standard output.
///
/// # Errors
/// A sentence: not all of it could be written.
pub fn say(text: &str) -> Result<(), String> {
    write_to(&mut io::stdout().lock(), text).map_err(|e| format!("cannot write to standard output: {e}"))
}

/// Writes `program: sentence` to standard error as far as that goes, and returns the status to end with.
pub fn complain(program: &str, sentence: &str, status: u8) -> ExitCode {
    let _ = write_to(&mut io::stderr().lock(), &format!("{program}: {sentence}"));
    ExitCode::from(status)
}

fn write_to(out: &mut impl Write, text: &str) -> io::Result<()> {
    out.write_all(text.as_bytes())?;
    out.write_all(b"\n")?;
    out.flush()
}
