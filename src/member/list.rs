//! A list of nodes.

use crate::error::{Error, Result, shown};
use crate::ring::{MAX_NODES, MAX_WEIGHT, Node};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// Most addresses of one node.
pub const MAX_ADDRESSES: usize = 8;
/// Longest address in bytes.
const MAX_ADDRESS: usize = 512;
/// Longest name in bytes, as placement has it.
const MAX_NAME: usize = 255;

/// Where a node listens.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Address {
    /// `host:port`; the host may be a name, an IPv4 address, or an IPv6 address in brackets.
    Tcp(String),
    /// `unix:/path/to/socket`, for clients on the node's machine.
    Unix(PathBuf),
}

impl FromStr for Address {
    type Err = Error;

    fn from_str(text: &str) -> Result<Address> {
        let refuse = || Error::invalid("node address", shown(text), "host:port, or unix:/absolute/path");
        if text.len() > MAX_ADDRESS || text.chars().any(|c| c.is_control() || c.is_whitespace()) {
            return Err(refuse());
        }
        if let Some(path) = text.strip_prefix("unix:") {
            return if path.starts_with('/') { Ok(Address::Unix(path.into())) } else { Err(refuse()) };
        }
        let (host, port) = text.rsplit_once(':').ok_or_else(refuse)?;
        let bare = !host.contains([':', '[', ']', '/']);
        let bracketed = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
        let host_fits =
            !host.is_empty() && (bare || bracketed.is_some_and(|h| h.parse::<std::net::Ipv6Addr>().is_ok()));
        match port.parse::<u16>() {
            Ok(1..) if host_fits => Ok(Address::Tcp(text.to_string())),
            _ => Err(refuse()),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(at) => f.write_str(at),
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// A node and how to reach it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its name, which outlives its addresses: what placement depends on.
    pub name: String,
    /// Its share of the buckets is in proportion.
    pub weight: u32,
    /// One or more; those that suit a client best are tried first.
    pub addresses: Vec<Address>,
}

impl Member {
    /// As placement sees it.
    pub fn node(&self) -> Node {
        Node { name: self.name.clone(), weight: self.weight }
    }
}

impl FromStr for Member {
    type Err = Error;

    /// `name=address`, `name=address*weight`, or an address alone, which is the name as well. Several addresses are separated
    /// by commas.
    fn from_str(text: &str) -> Result<Member> {
        let (name, rest) = text.split_once('=').unwrap_or(("", text));
        let (addresses, weight) = rest.rsplit_once('*').unwrap_or((rest, "1"));
        let weight = weight.parse().map_err(|_| {
            Error::invalid("node", shown(text), "name=address or name=address*weight, with a weight of digits")
        })?;
        let name = if name.is_empty() { addresses } else { name };
        let addresses = addresses.split(',').map(str::parse).collect::<Result<_>>()?;
        Ok(Member { name: name.to_string(), weight, addresses })
    }
}

/// Nodes sorted by name, and the number of this list among those of its source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeList {
    epoch: u64,
    members: Vec<Member>,
}

impl NodeList {
    /// A list in any order; empty is allowed.
    ///
    /// # Errors
    /// More than [`MAX_NODES`] nodes, repeated, empty or long names, weights outside 1 to [`MAX_WEIGHT`], no address or
    /// more than [`MAX_ADDRESSES`].
    pub fn new(epoch: u64, mut members: Vec<Member>) -> Result<NodeList> {
        if members.len() > MAX_NODES {
            return Err(Error::invalid("nodes", members.len(), format!("at most {MAX_NODES}")));
        }
        members.sort_by(|a, b| a.name.cmp(&b.name));
        for m in &members {
            if m.name.is_empty() || m.name.len() > MAX_NAME {
                return Err(Error::invalid("node name", shown(&m.name), format!("1 to {MAX_NAME} bytes")));
            }
            if !(1..=MAX_WEIGHT).contains(&m.weight) {
                return Err(Error::invalid("node weight", m.weight, format!("1 to {MAX_WEIGHT}")));
            }
            if m.addresses.is_empty() || m.addresses.len() > MAX_ADDRESSES {
                let value = format!("{} for node {}", m.addresses.len(), shown(&m.name));
                return Err(Error::invalid("number of addresses", value, format!("1 to {MAX_ADDRESSES}")));
            }
        }
        if let Some(pair) = members.windows(2).find(|p| p[0].name == p[1].name) {
            return Err(Error::invalid("node name", shown(&pair[0].name), "each name once"));
        }
        Ok(NodeList { epoch, members })
    }

    /// Rises with each list of the same source that differs from the one before.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The nodes, sorted by name.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// As placement sees them.
    pub fn nodes(&self) -> Vec<Node> {
        self.members.iter().map(Member::node).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_written_alike() {
        for good in ["localhost:1", "10.0.0.1:65535", "[::1]:7070", "unix:/run/gcache.sock"] {
            assert_eq!(good.parse::<Address>().unwrap().to_string(), good);
        }
        for bad in [
            "",
            "host",
            "host:",
            ":1",
            "host:0",
            "host:65536",
            "::1:7070",
            "[::1:7070",
            "[x]:1",
            "unix:run",
            "a b:1",
            "a/b:1",
        ] {
            let error = bad.parse::<Address>().unwrap_err().to_string();
            assert!(error.contains("allowed is host:port"), "{bad}: {error}");
        }
        assert!(format!("{}:1", "a".repeat(600)).parse::<Address>().is_err());
    }

    #[test]
    fn nodes_are_read_from_text() {
        let read = |text: &str| text.parse::<Member>().unwrap();
        let a = read("a=h:1,unix:/run/a*30");
        assert_eq!((a.name.as_str(), a.weight, a.addresses.len()), ("a", 30, 2));
        let bare = read("h:7070");
        assert_eq!((bare.name.as_str(), bare.weight), ("h:7070", 1));
        for bad in ["", "a=", "a=h", "a=h:1*", "a=h:1*x", "a=h:1*-1", "a=h:1,,h:2"] {
            assert!(bad.parse::<Member>().is_err(), "{bad}");
        }
    }

    #[test]
    fn lists_are_sorted_and_checked() {
        let member =
            |name: &str, weight| Member { name: name.into(), weight, addresses: vec!["localhost:1".parse().unwrap()] };
        let list = NodeList::new(3, vec![member("b", 1), member("a", 2)]).unwrap();
        assert_eq!((list.epoch(), list.members()[0].name.as_str()), (3, "a"));
        assert!(NodeList::new(1, vec![]).unwrap().members().is_empty());
        let refused = |members| NodeList::new(1, members).unwrap_err().to_string();
        assert!(refused(vec![member("a", 1), member("a", 1)]).contains("each name once"));
        assert!(refused(vec![member("a", 0)]).contains("node weight is 0"));
        assert!(refused(vec![member("", 1)]).contains("node name"));
        assert!(refused(vec![Member { addresses: vec![], ..member("a", 1) }]).contains("0 for node \"a\""));
        assert!(refused((0..MAX_NODES + 1).map(|i| member(&i.to_string(), 1)).collect()).contains("4097"));
    }
}
