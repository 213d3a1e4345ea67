//! Who may act for which tenant. Tokens come as `authorization: Bearer ...` with every request; the node keeps only their
//! SHA-256, so that a comparison says nothing about a token by how long it takes.

use super::config::TokenConfig;
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

/// All tokens of a node.
#[derive(Debug, Default)]
pub struct Tokens {
    grants: HashMap<[u8; 32], Grant>,
}

impl Tokens {
    /// Reads the files.
    ///
    /// # Errors
    /// A file that cannot be read, or holds what is no token.
    pub fn load(config: &[TokenConfig]) -> Result<Tokens, String> {
        let mut grants = HashMap::new();
        for token in config {
            let path = token.file.display();
            let text = std::fs::read_to_string(&token.file).map_err(|e| format!("token file {path}: {e}"))?;
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
        Ok(Tokens { grants })
    }

    /// What the sender of a request may do.
    ///
    /// # Errors
    /// `UNAUTHENTICATED` with a sentence, where the node has tokens.
    pub fn grant(&self, headers: &HeaderMap) -> Result<Grant, Status> {
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

fn digest(token: &[u8]) -> [u8; 32] {
    Sha256::digest(token).into()
}
