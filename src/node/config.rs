//! What a node is told: `gcache.toml`, then the environment, then flags, each over the one before. `docs/operations.md`
//! lists every key. Unknown keys and values without units are errors with a sentence.

use super::auth::Tokens;
use super::config_disk::{DiskIo, DiskTierConfig, TieringConfig};
use super::listen::Address;
use super::remote::RemoteTierConfig;
use super::tiers::TierSettings;
use super::units::{Size, Time};
use crate::disk::{Backend, DiskConfig};
use crate::member::read_text;
use crate::rpc::limits;
use crate::shm::{BootId, Prefault, ShmError, Store, StoreConfig};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;
use tracing_subscriber::filter::Targets;

/// Everything of a node. [`NodeConfig::check`] has been passed by what [`NodeConfig::read`] returns.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeConfig {
    /// The node's name: placement uses it, and it outlives the address. Other settings may hold `{name}`.
    pub name: String,
    /// Where gRPC is spoken: `host:port` or `unix:/path`.
    pub listen: Vec<Address>,
    /// Where `/metrics` and `/health` are served over HTTP; none by default.
    #[serde(default)]
    pub metrics: Option<Address>,
    /// Path of the same-host socket; none by default.
    #[serde(default)]
    pub fast_path: Option<PathBuf>,
    /// Users besides the node's own who may use the same-host socket, by number.
    #[serde(default)]
    pub fast_path_users: Vec<u32>,
    /// Listen off this machine without tokens.
    #[serde(default)]
    pub insecure: bool,
    /// The memory tier.
    pub memory: MemoryConfig,
    /// Directories of the disk tier; none by default.
    #[serde(default)]
    pub disk: Vec<DiskTierConfig>,
    /// The object store below the disk tier; none by default.
    #[serde(default)]
    pub remote: Option<RemoteTierConfig>,
    /// When values go to disk and come back.
    #[serde(default)]
    pub tiering: TieringConfig,
    /// What is refused.
    #[serde(default)]
    pub limits: LimitConfig,
    /// Who may do what; without any, everybody may everything.
    #[serde(default)]
    pub tokens: CallerConfig,
    /// Logs.
    #[serde(default)]
    pub log: LogConfig,
}

/// The memory tier.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemoryConfig {
    /// The file, in tmpfs or hugetlbfs.
    pub path: PathBuf,
    /// Its size. The node never takes more for values.
    pub size: Size,
    /// Unit in which memory is given to size classes.
    #[serde(default = "MemoryConfig::slab")]
    pub slab: Size,
    /// Most bytes under leases; an eighth of `size` by default.
    #[serde(default)]
    pub lease: Option<Size>,
    /// Longest lease.
    #[serde(default = "MemoryConfig::max_lease")]
    pub max_lease: Time,
    /// Take all memory at the start. Without it a full file system ends the process later.
    #[serde(default = "yes")]
    pub prefault: bool,
}

impl MemoryConfig {
    fn slab() -> Size {
        Size(1 << 20)
    }

    fn max_lease() -> Time {
        Time(Duration::from_secs(60))
    }
}

fn yes() -> bool {
    true
}

/// What is refused, so that memory is bounded whatever arrives.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LimitConfig {
    /// Connections at one time; more are closed at once.
    pub connections: usize,
    /// Calls at one time over all connections; more wait.
    pub calls: usize,
    /// Calls at one time on one connection.
    pub calls_per_connection: u32,
    /// HTTP/2 window of one connection: bytes that a peer may send before they are read.
    pub window: Size,
    /// Bytes of wanted values that one `Put` may owe.
    pub put: Size,
    /// The same over all `Put`s; a quarter of the memory tier by default. More is `NO_ROOM`.
    pub put_total: Option<Size>,
    /// A stream that makes no progress for so long is ended.
    pub stall: Time,
    /// Bytes that one same-host connection may pin.
    pub fast_path_pins: Size,
}

impl Default for LimitConfig {
    fn default() -> Self {
        LimitConfig {
            connections: 1024,
            calls: 256,
            calls_per_connection: 64,
            window: Size(2 << 20),
            put: Size(64 << 20),
            put_total: None,
            stall: Time(Duration::from_secs(10)),
            fast_path_pins: Size(256 << 20),
        }
    }
}

/// What is asked of callers.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(transparent)]
pub struct CallerConfig {
    /// The tokens, as the file has them.
    pub tokens: Vec<TokenConfig>,
    /// The node's name, which a request that names a node must say.
    #[serde(skip)]
    pub node: String,
}

/// One token.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenConfig {
    /// File that holds it; surrounding white space does not count.
    pub file: PathBuf,
    /// Tenants it may act for.
    #[serde(default)]
    pub tenants: Vec<u64>,
    /// It may act for all tenants.
    #[serde(default)]
    pub all_tenants: bool,
}

impl std::fmt::Debug for TokenConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TokenConfig({})", self.file.display())
    }
}

/// Logs go to standard error.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LogConfig {
    /// `error`, `warn`, `info`, `debug`, `trace`, or directives such as `info,mimo_cache::node=debug`.
    pub level: String,
    /// One JSON object for each line instead of text.
    pub json: bool,
}

impl Default for LogConfig {
    fn default() -> Self {
        LogConfig { level: "info".into(), json: false }
    }
}

impl LogConfig {
    /// What is logged.
    ///
    /// # Errors
    /// A sentence with the level.
    pub fn filter(&self) -> Result<Targets, String> {
        let words = |e| format!("log.level is {:?}: {e}; allowed is error, warn, info, debug or trace", self.level);
        self.level.parse().map_err(words)
    }
}

/// Prefix of environment variables; the rest is the key, `__` for the dot: `GCACHE_MEMORY__SIZE=8GiB`.
pub const ENV_PREFIX: &str = "GCACHE_";
/// Longest configuration file.
const MAX_FILE_BYTES: u64 = 1 << 20;

impl NodeConfig {
    /// The configuration of a text and of overrides `(key, value)`, later ones over earlier ones. A value that reads as
    /// TOML is that, anything else is text.
    ///
    /// # Errors
    /// A sentence that names the key and what is allowed.
    pub fn read(text: &str, overrides: &[(String, String)]) -> Result<NodeConfig, String> {
        let mut table: toml::Table = text.parse().map_err(|e: toml::de::Error| e.to_string().trim_end().to_string())?;
        for (key, value) in overrides {
            set(&mut table, key, value)?;
        }
        let mut config: NodeConfig =
            table.try_into().map_err(|e: toml::de::Error| e.to_string().trim_end().replace('\n', " "))?;
        config.name_paths();
        config.check()?;
        Ok(config)
    }

    /// [`NodeConfig::read`] of a file.
    ///
    /// # Errors
    /// A sentence that names the file.
    pub fn load(path: &std::path::Path, overrides: &[(String, String)]) -> Result<NodeConfig, String> {
        let failed = |e: String| format!("{}: {e}", path.display());
        let text = read_text(path, MAX_FILE_BYTES).map_err(failed)?;
        NodeConfig::read(&text, overrides).map_err(failed)
    }

    fn name_paths(&mut self) {
        let name = self.name.clone();
        let named = |path: &PathBuf| PathBuf::from(path.to_string_lossy().replace("{name}", &name));
        self.memory.path = named(&self.memory.path);
        self.fast_path = self.fast_path.as_ref().map(named);
        for disk in &mut self.disk {
            disk.path = named(&disk.path);
        }
        self.tokens.node = name.clone();
        for address in self.listen.iter_mut().chain(&mut self.metrics) {
            if let Address::Unix(path) = address {
                *path = named(path);
            }
        }
    }

    /// Refuses what cannot work.
    ///
    /// # Errors
    /// A sentence that names the key and what is allowed.
    pub fn check(&self) -> Result<(), String> {
        if self.name.is_empty()
            || self.name.len() > 255
            || self.name.chars().any(|c| c.is_control() || "/{}=*".contains(c))
        {
            return Err(format!("name is {:?}, allowed is 1 to 255 bytes without / {{ }} = *", self.name));
        }
        if self.listen.is_empty() {
            return Err("listen is empty, allowed is at least one address such as \"127.0.0.1:7400\"".into());
        }
        let l = &self.limits;
        within("limits.connections", l.connections as u64, 1, 65_536)?;
        within("limits.calls", l.calls as u64, 1, 65_536)?;
        within("limits.calls_per_connection", l.calls_per_connection.into(), 1, 65_536)?;
        within("limits.window in bytes", l.window.0, 64 << 10, 1 << 30)?;
        within("limits.put in bytes", l.put.0, 1 << 20, 1 << 40)?;
        within("limits.stall in milliseconds", l.stall.0.as_millis() as u64, 100, 3_600_000)?;
        within("memory.max_lease in milliseconds", self.memory.max_lease.0.as_millis() as u64, 1, 3_600_000)?;
        within("tiering.promote_after", self.tiering.promote_after.into(), 1, 255)?;
        let reserve = self.tiering().reserve;
        if !self.disk.is_empty() && (reserve == 0 || reserve > self.memory.size.0 / 2) {
            return Err(format!(
                "tiering.reserve is {}, allowed is above 0 and at most half of memory.size",
                Size(reserve)
            ));
        }
        for (n, (disk, config)) in self.disk.iter().zip(self.disks()).enumerate() {
            within("disk.timeout in milliseconds", config.io_timeout_ms, 100, 3_600_000)?;
            if let Some(Size(segment)) = disk.segment {
                within("disk.segment in bytes", segment, 64 << 10, 1 << 30)?;
            }
            config.validate().map_err(|e| format!("disk {}: {e}", disk.path.display()))?;
            if self.disk[..n].iter().any(|other| other.path == disk.path) {
                return Err(format!("disk {} is there twice, allowed is each directory once", disk.path.display()));
            }
        }
        if let Some(remote) = &self.remote {
            remote.check(!self.disk.is_empty())?;
        }
        for token in &self.tokens.tokens {
            if token.all_tenants != token.tenants.is_empty() {
                return Err(format!(
                    "token {} has {} tenants and all_tenants = {}, allowed is one of the two",
                    token.file.display(),
                    token.tenants.len(),
                    token.all_tenants
                ));
            }
        }
        self.log.filter()?;
        self.check_memory()?;
        super::listen::check(self)
    }

    fn check_memory(&self) -> Result<(), String> {
        let m = &self.memory;
        within("memory.slab in bytes", m.slab.0, 64 << 10, 16 << 20)?;
        if let Some(lease) = m.lease {
            within("memory.lease in bytes", lease.0, 0, m.size.0)?;
        }
        // The store's own rules. It looks at sizes before it opens the file, for which there is no path here: that it
        // has none is the error of sizes that are fine.
        let pathless = StoreConfig { path: PathBuf::new(), ..self.store() };
        match Store::open(&pathless, BootId([0; 16])) {
            Err(error @ ShmError::Invalid { .. }) => Err(format!("memory.size and memory.slab: {error}")),
            _ => Ok(()),
        }
    }

    /// Refuses what [`super::Node::start`] would refuse because of files beside the configuration, or because this program was
    /// built without it. No store is asked.
    ///
    /// # Errors
    /// A sentence that names the file or the feature.
    pub fn check_files(&self) -> Result<(), String> {
        Tokens::load(&self.tokens)?;
        super::remote::open(self).map(drop)
    }

    /// How to open the memory tier. The file belongs to this node's name: another name owns other buckets.
    pub fn store(&self) -> StoreConfig {
        let m = &self.memory;
        let mut store = StoreConfig::new(&m.path, m.size.0);
        store.slab_bytes = u32::try_from(m.slab.0).unwrap_or(u32::MAX);
        store.fingerprint = self.fingerprint();
        store.lease_bytes = m.lease.map_or(m.size.0 / 8, |l| l.0);
        store.max_lease_ms = m.max_lease.millis();
        store.prefault = if m.prefault { Prefault::Threads } else { Prefault::OnUse };
        store
    }

    /// How to open the directories of the disk tier. They belong to this node's name, as the file does.
    pub fn disks(&self) -> Vec<DiskConfig> {
        let of = |d: &DiskTierConfig| {
            let mut disk = DiskConfig::new(&d.path, d.size.0);
            disk.segment_bytes = d.segment.map_or(disk.segment_bytes, |s| u32::try_from(s.0).unwrap_or(u32::MAX));
            disk.fingerprint = self.fingerprint();
            disk.write_bytes_per_day = d.write_per_day.map(|s| s.0);
            disk.io_timeout_ms = d.timeout.0.as_millis() as u64;
            disk.backend = match d.io {
                DiskIo::Auto => Backend::Auto,
                DiskIo::IoUring => Backend::Ring,
                DiskIo::Threads => Backend::Threads,
            };
            disk
        };
        self.disk.iter().map(of).collect()
    }

    fn fingerprint(&self) -> [u8; 32] {
        Sha256::new().chain_update("gcache-node 1 ").chain_update(&self.name).finalize().into()
    }

    /// When values change tiers.
    pub fn tiering(&self) -> TierSettings {
        let reserve = self.tiering.reserve.map_or(self.memory.size.0 / 16, |s| s.0);
        TierSettings { promote_after: self.tiering.promote_after, reserve }
    }

    /// The limits that `Hello` tells.
    pub fn limits(&self) -> crate::rpc::v1::Limits {
        crate::rpc::v1::Limits {
            keys: limits::MAX_KEYS as u32,
            objects: limits::MAX_OBJECTS as u32,
            value_bytes: limits::MAX_VALUE_BYTES,
            message_bytes: limits::MAX_MESSAGE_BYTES as u32,
            lease_ms: self.memory.max_lease.millis(),
            streams: self.limits.calls_per_connection,
            put_bytes: self.limits.put.0,
            stall_ms: self.limits.stall.millis(),
        }
    }

    /// Bytes that all `Put`s may owe.
    pub fn put_total(&self) -> u64 {
        self.limits.put_total.map_or(self.memory.size.0 / 4, |s| s.0)
    }
}

/// The overrides in an environment: `GCACHE_A__B=v` sets `a.b`. `GCACHE_CONFIG` names the file and `GCACHE_NODES` the
/// cluster of `gcachectl`; they are no keys. What other programs keep in theirs does not matter.
///
/// # Errors
/// One of ours that is not UTF-8.
pub fn from_env(vars: impl Iterator<Item = (OsString, OsString)>) -> Result<Vec<(String, String)>, String> {
    let mut found = Vec::new();
    for (name, value) in vars.filter(|(name, _)| name.as_encoded_bytes().starts_with(ENV_PREFIX.as_bytes())) {
        let key = name.to_str().and_then(|name| name.strip_prefix(ENV_PREFIX)).map(str::to_ascii_lowercase);
        if key.as_deref().is_some_and(|key| ["config", "nodes", "token_file"].contains(&key)) {
            continue;
        }
        let (Some(key), Some(value)) = (key, value.to_str()) else {
            return Err(format!("the environment variable {name:?} is not UTF-8, allowed is UTF-8 in name and value"));
        };
        found.push((key.replace("__", "."), value.to_string()));
    }
    found.sort();
    Ok(found)
}

fn within(key: &str, value: u64, least: u64, most: u64) -> Result<(), String> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(format!("{key} is {value}, allowed is {least} to {most}"))
}

fn set(table: &mut toml::Table, key: &str, value: &str) -> Result<(), String> {
    let parsed = format!("v = {value}").parse::<toml::Table>().ok().filter(|t| t.len() == 1);
    let parsed = parsed.and_then(|mut t| t.remove("v")).unwrap_or_else(|| toml::Value::String(value.to_string()));
    let (path, last) = key.rsplit_once('.').map_or((None, key), |(path, last)| (Some(path), last));
    let mut at = table;
    for step in path.into_iter().flat_map(|p| p.split('.')) {
        let next = at.entry(step).or_insert_with(|| toml::Value::Table(toml::Table::new()));
        at = next.as_table_mut().ok_or_else(|| format!("{key} cannot be set: {step} is no table"))?;
    }
    // A list may be given as its one entry.
    let parsed = match (at.get(last), parsed) {
        (Some(toml::Value::Array(list)), one) if !one.is_array() => {
            let texts = list.first().is_some_and(toml::Value::is_str);
            toml::Value::Array(vec![if texts { toml::Value::String(value.to_string()) } else { one }])
        }
        (Some(toml::Value::String(_)), _) => toml::Value::String(value.to_string()),
        (_, parsed) => parsed,
    };
    at.insert(last.to_string(), parsed);
    Ok(())
}
