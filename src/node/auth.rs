//! Who may act for which tenant, and whether they mean this node. Tokens come as `authorization: Bearer ...` with every
//! request; the node keeps only their SHA-256, so that a comparison says nothing about a token by how long it takes.
//!
//! A request may name the node it is for in `gcache-node`. A client that greeted a node cannot know whether the library
//! below it has connected anew since, perhaps to another node at the same address: only the request can say it.

use super::config::CallerConfig;
use crate::member::read_text;
use http::HeaderMap;
use http::header::AUTHORIZATION;
use sha2::{Digest, Sha256};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use tonic::Status;

/// Shortest token: what can be guessed is no token.
const MIN_TOKEN_BYTES: usize = 16;
/// Longest token.
const MAX_TOKEN_BYTES: usize = 4096;
/// Longest file with a token: white space around it does not count.
pub const MAX_TOKEN_FILE_BYTES: u64 = 16 << 10;
/// Of a name that is not this node's, so much is repeated.
const MAX_NAME_SHOWN: usize = 255;

/// Header with the name of the node that a request is for, percent-encoded where it is not printable ASCII.
pub const NODE_HEADER: &str = "gcache-node";

/// What a caller may do.
#[derive(Debug, Clone)]
pub enum Grant {
    /// Act for every tenant.
    All,
    /// Act for these.
    Only(Arc<HashSet<u64>>),
}

impl Grant {
    /// # Errors
    /// `PERMISSION_DENIED` with a sentence.
    pub fn check(&self, tenant: u64) -> Result<(), Status> {
        match self {
            Grant::All => Ok(()),
            Grant::Only(tenants) if tenants.contains(&tenant) => Ok(()),
            Grant::Only(_) => Err(Status::permission_denied(format!("the token is not valid for tenant {tenant}"))),
        }
    }
}

/// All tokens of a node, and its name.
#[derive(Debug, Default)]
pub struct Tokens {
    node: String,
    grants: HashMap<[u8; 32], Grant>,
}

impl Tokens {
    /// Reads the files.
    ///
    /// # Errors
    /// A file that cannot be read, or holds what is no token.
    pub fn load(config: &CallerConfig) -> Result<Tokens, String> {
        let mut grants = HashMap::new();
        for token in &config.tokens {
            let path = token.file.display();
            let text = read_text(&token.file, MAX_TOKEN_FILE_BYTES).map_err(|e| format!("token file {path}: {e}"))?;
            let text = text.trim();
            if !(MIN_TOKEN_BYTES..=MAX_TOKEN_BYTES).contains(&text.len()) || !text.bytes().all(|b| b.is_ascii_graphic())
            {
                return Err(format!(
                    "token file {path} has {} bytes, allowed is {MIN_TOKEN_BYTES} to {MAX_TOKEN_BYTES} printable ASCII \
                     characters without spaces",
                    text.len()
                ));
            }
            let grant = if token.all_tenants {
                Grant::All
            } else {
                Grant::Only(Arc::new(token.tenants.iter().copied().collect()))
            };
            if grants.insert(digest(text.as_bytes()), grant).is_some() {
                return Err(format!("token file {path} has a token that another file has, allowed is each token once"));
            }
        }
        Ok(Tokens { node: config.node.clone(), grants })
    }

    /// What the sender of a request may do.
    ///
    /// # Errors
    /// `UNAUTHENTICATED` with a sentence, where the node has tokens; `FAILED_PRECONDITION` for a request that is for a node
    /// of another name.
    pub fn grant(&self, headers: &HeaderMap) -> Result<Grant, Status> {
        let meant = headers.get(NODE_HEADER).map(|name| percent_decoded(name.as_bytes()));
        if let Some(other) = meant.filter(|name| name != self.node.as_bytes()) {
            let other = String::from_utf8_lossy(&other[..other.len().min(MAX_NAME_SHOWN)]).into_owned();
            return Err(Status::failed_precondition(format!(
                "the node here calls itself {:?}, and the request is for node {other:?}",
                self.node
            )));
        }
        if self.grants.is_empty() {
            return Ok(Grant::All);
        }
        let Some(value) = headers.get(AUTHORIZATION) else {
            return Err(Status::unauthenticated("this node wants a token: authorization: Bearer ..."));
        };
        let token = value.as_bytes().strip_prefix(b"Bearer ").unwrap_or_default();
        let grant = self.grants.get(&digest(token)).cloned();
        grant.ok_or_else(|| Status::unauthenticated("the token is unknown to this node"))
    }
}

/// A node's name as the header has it: percent-encoded where it is not printable ASCII.
pub fn node_header(name: &str) -> String {
    let mut text = String::with_capacity(name.len());
    for byte in name.bytes() {
        match byte {
            b'%' => text += "%25",
            b'!'..=b'~' => text.push(char::from(byte)),
            _ => text += &format!("%{byte:02X}"),
        }
    }
    text
}

/// The bytes that a percent-encoded text stands for; a `%` without two hexadecimal digits stands for itself.
fn percent_decoded(text: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&first, after)) = rest.split_first() {
        let digits = after.get(..2).filter(|d| first == b'%' && d.iter().all(u8::is_ascii_hexdigit));
        let byte = digits.and_then(|d| u8::from_str_radix(std::str::from_utf8(d).ok()?, 16).ok());
        bytes.push(byte.unwrap_or(first));
        rest = if byte.is_some() { &after[2..] } else { after };
    }
    bytes
}

fn digest(token: &[u8]) -> [u8; 32] {
    Sha256::digest(token).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_for_another_node_is_refused() {
        let tokens = Tokens { node: "knoten-ä%".into(), ..Tokens::default() };
        let grant = |name: Option<&str>| {
            let value = name.map(|n| (http::HeaderName::from_static(NODE_HEADER), n.parse().unwrap()));
            tokens.grant(&value.into_iter().collect())
        };
        assert_eq!(node_header("knoten-ä% !~"), "knoten-%C3%A4%25%20!~");
        for fine in [
            None,
            Some(&*node_header("knoten-ä%")),
            Some("knoten-%C3%A4%25"),
            Some("knoten-%c3%a4%"),
            Some("%6bnoten-%C3%A4%"),
        ] {
            assert!(grant(fine).is_ok(), "{fine:?}");
        }
        for wrong in ["", "a", "knoten-%C3", "knoten-%C3%A4%25%25", "knoten-%zz%"] {
            let status = grant(Some(wrong)).unwrap_err();
            assert_eq!(status.code(), tonic::Code::FailedPrecondition, "{wrong}");
            assert!(status.message().contains("calls itself \"knoten-ä%\""), "{}", status.message());
        }
    }
}
