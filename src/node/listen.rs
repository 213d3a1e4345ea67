//! Addresses, and who may be let in from where: off this machine only with tokens, or when told `insecure`.

use super::config::NodeConfig;
use std::fmt;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

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
            // How long it may be is known when `{name}` is filled in.
            return if path.starts_with('/') { Ok(Address::Unix(path.into())) } else { Err(bad()) };
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

/// Longest path of a Unix socket in bytes: unix(7).
const MAX_SOCKET_PATH: usize = 107;

/// Refuses addresses and paths that cannot be listened on, whatever the machine is like.
fn check_places(config: &NodeConfig) -> Result<(), String> {
    let mut tcp: Vec<(&str, &String)> = Vec::new();
    let mut paths: Vec<(&str, &Path)> = vec![("memory.path", &config.memory.path)];
    let named = config.listen.iter().map(|a| ("listen", a)).chain(config.metrics.iter().map(|a| ("metrics", a)));
    for (key, address) in named {
        match address {
            Address::Tcp(text) => tcp.push((key, text)),
            Address::Unix(path) => paths.push((key, path)),
        }
    }
    paths.extend(config.fast_path.as_deref().map(|path| ("fast_path", path)));
    for (i, &(key, path)) in paths.iter().enumerate() {
        let len = path.as_os_str().len();
        if path.as_os_str().as_bytes().contains(&0) || len == 0 {
            return Err(format!("{key} is {path:?}, allowed is a path without zero bytes"));
        }
        if i > 0 && len > MAX_SOCKET_PATH {
            return Err(format!(
                "{key} has a path of {len} bytes, {path:?}; allowed for a socket is {MAX_SOCKET_PATH}"
            ));
        }
        if let Some((other, _)) = paths[..i].iter().find(|(_, p)| *p == path) {
            return Err(format!("{other} and {key} are both {path:?}, allowed is a path of its own for each"));
        }
    }
    // Two names of one address are found when the second is bound. Port 0 is another port each time.
    let same = |a: &str, b: &str| {
        let read = (a.parse::<SocketAddr>(), b.parse::<SocketAddr>());
        let equal = if let (Ok(a), Ok(b)) = &read { a == b } else { a == b };
        equal && a.rsplit_once(':').is_some_and(|(_, port)| port.parse() != Ok(0_u16))
    };
    for (i, (key, text)) in tcp.iter().enumerate() {
        if let Some((other, _)) = tcp[..i].iter().find(|(_, t)| same(t, text)) {
            return Err(format!("{other} and {key} have both the address {text}, allowed is one of its own for each"));
        }
    }
    Ok(())
}

/// Refuses a configuration that cannot be listened with, or would let strangers in.
///
/// # Errors
/// A sentence that names the address and what to do.
pub fn check(config: &NodeConfig) -> Result<(), String> {
    check_places(config)?;
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
