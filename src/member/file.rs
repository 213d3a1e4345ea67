//! A list of nodes in a TOML file:
//!
//! ```toml
//! [[node]]
//! name = "a"
//! weight = 8192                                        # share of the buckets, for instance MiB of memory; 1 if absent
//! addresses = ["10.0.0.1:7440", "unix:/run/gcache.sock"]
//! ```

use super::list::{Address, Member, NodeList};
use super::text::read_text;
use crate::error::{Error, Result};
use serde::Deserialize;
use std::path::Path;

/// Longest file that is read: 4,096 nodes with several long addresses.
pub const MAX_FILE_BYTES: u64 = 8 << 20;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Listed {
    #[serde(default)]
    node: Vec<ListedNode>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ListedNode {
    name: String,
    #[serde(default = "one")]
    weight: u32,
    addresses: Vec<String>,
}

fn one() -> u32 {
    1
}

/// The list in a file's text.
///
/// # Errors
/// Text that is no TOML, has unknown or lacks fields, no nodes at all (more likely a file being written than a wish), or
/// what [`NodeList::new`] refuses.
pub fn parse(text: &str, epoch: u64) -> Result<NodeList> {
    let listed: Listed = toml::from_str(text).map_err(|e| {
        let before = &text.as_bytes()[..e.span().map_or(0, |s| s.start.min(text.len()))];
        let line = 1 + before.iter().filter(|&&b| b == b'\n').count();
        // Words of the file may be in it, as long as the file likes.
        let words: String = e.message().chars().take(200).collect();
        Error::Config(format!("line {line}: {words}"))
    })?;
    if listed.node.is_empty() {
        return Err(Error::invalid("nodes", 0, "at least one [[node]]"));
    }
    let member = |n: ListedNode| {
        let addresses = n.addresses.iter().map(|a| a.parse()).collect::<Result<Vec<Address>>>()?;
        Ok(Member { name: n.name, weight: n.weight, addresses })
    };
    NodeList::new(epoch, listed.node.into_iter().map(member).collect::<Result<_>>()?)
}

/// A file's text.
///
/// # Errors
/// What [`read_text`] refuses, with the file's name.
pub(super) fn read(path: &Path) -> Result<String> {
    read_text(path, MAX_FILE_BYTES).map_err(|message| Error::Io { path: path.display().to_string(), message })
}

/// [`parse`] of the text of the file at `path`.
///
/// # Errors
/// As there, with the file's name.
pub(super) fn parse_file(path: &Path, text: &str, epoch: u64) -> Result<NodeList> {
    parse(text, epoch).map_err(|error| {
        let words = if let Error::Config(words) = error { words } else { error.to_string() };
        Error::Config(format!("{}: {words}", path.display()))
    })
}
