//! Settings of a node: what is read from where, and what is refused with which words.
#![cfg(all(feature = "gcache", target_os = "linux"))]

use mimo_cache::node::NodeConfig;
use mimo_cache::node::config::from_env;
use mimo_cache::node::units::{Size, Time};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

const FEW: &str = "name = 'a'\nlisten = ['127.0.0.1:7400']\n[memory]\npath = '/dev/shm/gcache-{name}'\nsize = '1GiB'\n";

/// Longer than a socket's path may be.
const LONG_NAME: &str =
    "123456789-123456789-123456789-123456789-123456789-123456789-123456789-123456789-123456789-123456789-1234567";
const LONG: &str =
    "unix:/123456789-123456789-123456789-123456789-123456789-123456789-123456789-123456789-123456789-123456789-1234567";

fn read(text: &str, overrides: &[(&str, &str)]) -> Result<NodeConfig, String> {
    let overrides: Vec<_> = overrides.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
    NodeConfig::read(text, &overrides)
}

#[test]
fn the_example_is_fine() {
    let config = read(include_str!("../docs/gcache.toml"), &[("name", "node-1")]).unwrap();
    assert_eq!(config.memory.path.to_str(), Some("/dev/shm/gcache-node-1"));
    assert_eq!(config.fast_path.unwrap().to_str(), Some("/dev/shm/gcache-node-1.sock"));
}

#[test]
fn the_environment_and_flags_override_the_file() {
    let vars = [("GCACHE_MEMORY__SIZE", "2GiB"), ("GCACHE_NAME", "7"), ("GCACHE_CONFIG", "x"), ("HOME", "/root")];
    let mut overrides = from_env(vars.iter().map(|(k, v)| (k.into(), v.into()))).unwrap();
    overrides.push(("limits.stall".into(), "3s".into()));
    overrides.push(("limits.connections".into(), "5".into()));
    overrides.push(("listen".into(), "unix:/run/{name}.sock".into()));
    overrides.push(("insecure".into(), "true".into()));
    let config = NodeConfig::read(FEW, &overrides).unwrap();
    assert_eq!((config.name.as_str(), config.memory.size), ("7", Size(2 << 30)));
    assert_eq!(config.limits.stall, Time(Duration::from_secs(3)));
    assert_eq!((config.limits.connections, config.insecure), (5, true));
    assert_eq!(config.listen[0].to_string(), "unix:/run/7.sock");
    assert_eq!(config.store().lease_bytes, 256 << 20);
}

#[test]
fn variables_of_others_may_be_anything() {
    let bytes = |text: &[u8]| OsStr::from_bytes(text).to_os_string();
    let read = |name: &[u8], value: &[u8]| from_env([(bytes(name), bytes(value))].into_iter());
    for (name, value) in [(&b"FOO"[..], &b"a\xff"[..]), (b"FOO\xff", b"a"), (b"GCACHE_CONFIG", b"/a\xff")] {
        assert_eq!(read(name, value), Ok(vec![]));
    }
    for (name, value) in [(&b"GCACHE_NAME"[..], &b"a\xff"[..]), (b"GCACHE_\xff", b"a")] {
        assert!(read(name, value).unwrap_err().contains("not UTF-8"), "{name:?}");
    }
}

#[test]
fn what_is_wrong_is_named() {
    // The file, what overrides it, and words of the sentence.
    type Case = (&'static str, &'static [(&'static str, &'static str)], &'static str);
    let cases: &[Case] = &[
        ("", &[], "missing field `name`"),
        ("name = ", &[], "TOML parse error"),
        (FEW, &[("colour", "red")], "unknown field `colour`"),
        (FEW, &[("memory.sise", "1GiB")], "unknown field `sise`"),
        (FEW, &[("memory.size", "8")], "\"8\" is no size"),
        (FEW, &[("memory.size", "8GB")], "\"8GB\" is no size"),
        (FEW, &[("limits.stall", "10")], "a time with its unit"),
        (FEW, &[("limits.stall", "10ms")], "limits.stall in milliseconds is 10, allowed is 100"),
        (FEW, &[("limits.connections", "0")], "limits.connections is 0"),
        (FEW, &[("limits.connections", "-1")], "invalid value"),
        (FEW, &[("name", "")], "name is \"\""),
        (FEW, &[("name", "a/b")], "name is \"a/b\""),
        (FEW, &[("listen", "[]")], "listen is empty"),
        (FEW, &[("listen", "7400")], "is no address"),
        (FEW, &[("listen", "0.0.0.0:7400")], "not on this machine alone"),
        (FEW, &[("listen", "[::]:7400")], "not on this machine alone"),
        (FEW, &[("metrics", "127.0.0.1:7400")], "allowed is one of its own"),
        (FEW, &[("name.x", "1")], "name is no table"),
        (FEW, &[("memory.size", "0B")], "size of the shared-memory file is 0"),
        (FEW, &[("memory.size", "1B")], "size of the shared-memory file is 1"),
        (FEW, &[("memory.size", "4KiB")], "size of the shared-memory file is 4096, allowed is at least"),
        (FEW, &[("memory.size", "18446744073709551615B")], "size of the shared-memory file is 18446744073709551615"),
        (FEW, &[("memory.slab", "0B")], "memory.slab in bytes is 0"),
        (FEW, &[("memory.slab", "3MiB")], "slab size is 3145728"),
        (FEW, &[("memory.slab", "32MiB")], "memory.slab in bytes is 33554432"),
        (FEW, &[("memory.slab", "4GiB")], "memory.slab in bytes is 4294967296"),
        (FEW, &[("memory.lease", "2GiB")], "memory.lease in bytes is 2147483648"),
        (FEW, &[("memory.path", "")], "memory.path is \"\""),
        (FEW, &[("memory.path", "a\0b")], "without zero bytes"),
        (FEW, &[("log.level", "nonsense==")], "log.level is \"nonsense==\""),
        (FEW, &[("listen", "['127.0.0.1:7400', '127.0.0.1:7400']")], "listen and listen have both"),
        (FEW, &[("listen", "['[::1]:74', '[0::1]:74']")], "listen and listen have both"),
        (FEW, &[("listen", "['unix:/a', 'unix:/./a']")], "listen and listen are both"),
        (FEW, &[("listen", "unix:/a"), ("fast_path", "/a")], "listen and fast_path are both"),
        (FEW, &[("metrics", "unix:/a"), ("fast_path", "/a")], "metrics and fast_path are both"),
        (FEW, &[("listen", "unix:/dev/shm/gcache-{name}")], "memory.path and listen are both"),
        (FEW, &[("listen", LONG)], "allowed for a socket is 107"),
        (FEW, &[("metrics", LONG)], "allowed for a socket is 107"),
        (FEW, &[("fast_path", "/{name}"), ("name", LONG_NAME)], "allowed for a socket is 107"),
        (FEW, &[("listen", "unix:/{name}"), ("name", LONG_NAME)], "allowed for a socket is 107"),
        (FEW, &[("tokens", "[{file = 'x'}]")], "has 0 tenants and all_tenants = false"),
        (FEW, &[("tokens", "[{file = 'x', tenants = [1], all_tenants = true}]")], "all_tenants = true"),
        (FEW, &[("fast_path", "/x"), ("tokens", "[{file = 'x', tenants = [1]}]")], "memory of all tenants"),
    ];
    for (text, overrides, words) in cases {
        let found = read(text, overrides).map_or_else(|e| e, |_| "it is fine".into());
        assert!(found.contains(words), "{overrides:?}: {found}");
    }
    read(FEW, &[("fast_path", &format!("/{}", &LONG_NAME[..106]))]).unwrap();
    read(FEW, &[("listen", "['127.0.0.1:0', '127.0.0.1:0']"), ("metrics", "127.0.0.1:0")]).unwrap();
    for fine in [&[("listen", "0.0.0.0:7400"), ("insecure", "true")], &[("listen", "[::1]:1"), ("insecure", "false")]] {
        read(FEW, fine).unwrap();
    }
    read(FEW, &[("listen", "0.0.0.0:7400"), ("tokens", "[{file = 'x', tenants = [1]}]")]).unwrap();
}

#[test]
fn the_disk_tier_is_checked() {
    let few = format!("{FEW}[[disk]]\npath = '/x/{{name}}'\nsize = '1GiB'\n");
    let config = read(&few, &[]).unwrap();
    assert_eq!(config.disks()[0].dir.to_str(), Some("/x/a"));
    assert_eq!((config.tiering().promote_after, config.tiering().reserve), (2, 64 << 20));
    let cases = [
        ("disk", "[{path = '/x', size = '64MiB', segment = '16MiB'}]", "allowed is 8 to 16777216 segments"),
        ("disk", "[{path = '/x', size = '64GiB', segment = '8GiB'}]", "disk.segment in bytes is 8589934592"),
        ("disk", "[{path = '/x', size = '64GiB', segment = '5000B'}]", "disk.segment in bytes is 5000"),
        ("disk", "[{path = '/x', size = '64GiB', segment = '70000B'}]", "segment size is 70000, allowed is a multiple"),
        ("disk", "[{path = '/x', size = '1GiB'}, {path = '/x', size = '1GiB'}]", "is there twice"),
        ("tiering.promote_after", "0", "tiering.promote_after is 0, allowed is 1 to 255"),
        ("tiering.reserve", "600MiB", "at most half of memory.size"),
        ("tiering.reserve", "0B", "allowed is above 0"),
    ];
    for (key, value, words) in cases {
        let found = read(&few, &[(key, value)]).map(|_| ()).unwrap_err();
        assert!(found.contains(words), "{key} {value}: {found}");
    }
}
