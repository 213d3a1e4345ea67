//! Addresses, and who may be let in from where: off this machine only with tokens, or when told `insecure`.

use super::config::NodeConfig;
use std::fmt;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;

/// Where to listen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// Host and port, as written.
    Tcp(String),
    /// A Unix socket.
    Unix(PathBuf),
}

impl Address {
    /// `host:port` or `unix:/path`.
    ///
    /// # Errors
    /// A sentence.
    pub fn parse(text: &str) -> Result<Address, String> {
        let bad = || format!("{text:?} is no address; write host:port as in \"127.0.0.1:7400\", or \"unix:/path\"");
        if let Some(path) = text.strip_prefix("unix:") {
            // The kernel's limit of a socket's path.
            return if path.starts_with('/') && path.len() < 108 { Ok(Address::Unix(path.into())) } else { Err(bad()) };
        }
        let (host, port) = text.rsplit_once(':').ok_or_else(bad)?;
        let whole = !host.is_empty() && (!host.contains(':') || host.starts_with('[') && host.ends_with(']'));
        match port.parse::<u16>() {
            Ok(_) if whole => Ok(Address::Tcp(text.to_string())),
            _ => Err(bad()),
        }
    }

    /// The same host with another port; a Unix socket stays.
    #[must_use]
    pub fn with_port(&self, port: u16) -> Address {
        match self {
            Address::Tcp(text) => {
                Address::Tcp(format!("{}:{port}", text.rsplit_once(':').map_or(text.as_str(), |(host, _)| host)))
            }
            Address::Unix(path) => Address::Unix(path.clone()),
        }
    }

    /// What a TCP address stands for.
    ///
    /// # Errors
    /// The name is unknown.
    pub fn resolve(&self) -> Result<Vec<SocketAddr>, String> {
        match self {
            Address::Unix(_) => Ok(vec![]),
            Address::Tcp(text) => {
                let found: Vec<_> = text.to_socket_addrs().map_err(|e| format!("{text}: {e}"))?.collect();
                if found.is_empty() { Err(format!("{text}: no address")) } else { Ok(found) }
            }
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(text) => f.write_str(text),
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl<'de> serde::Deserialize<'de> for Address {
    fn deserialize<D: serde::de::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        Address::parse(&text).map_err(serde::de::Error::custom)
    }
}

/// Refuses a configuration that would let strangers in.
///
/// # Errors
/// A sentence that names the address and what to do.
pub fn check(config: &NodeConfig) -> Result<(), String> {
    let open = |ip: IpAddr| !ip.is_loopback();
    for address in &config.listen {
        if config.insecure || !config.tokens.tokens.is_empty() {
            break;
        }
        if let Some(far) = address.resolve()?.into_iter().find(|a| open(a.ip())) {
            return Err(format!(
                "listen has {address}, which is {far} and so not on this machine alone, and there are no tokens: anybody \
                 who reaches it may read and write everything; add [[tokens]], listen on loopback or a Unix socket, or \
                 say --insecure"
            ));
        }
    }
    if config.fast_path.is_some() && config.tokens.tokens.iter().any(|t| !t.all_tenants) {
        return Err(
            "fast_path maps the memory of all tenants, and there are tokens for single tenants; allowed is one \
                    of the two"
                .into(),
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read() {
        for text in ["127.0.0.1:7400", "localhost:0", "[::1]:7400", "unix:/run/a.sock"] {
            assert_eq!(Address::parse(text).map(|a| a.to_string()), Ok(text.to_string()));
        }
        for text in ["", "7400", "host", ":1", "host:99999", "::1:7400", "unix:relative", "unix:", "host:"] {
            assert!(Address::parse(text).is_err(), "{text}");
        }
        let moved = |text: &str| Address::parse(text).map(|a| a.with_port(9).to_string());
        assert_eq!(moved("[::1]:7400"), Ok("[::1]:9".into()));
        assert_eq!(moved("unix:/a"), Ok("unix:/a".into()));
    }
}
