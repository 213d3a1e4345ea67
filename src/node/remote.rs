//! Settings of the remote tier, and its opening.

use super::NodeConfig;
use super::units::{Size, Time};
use crate::remote::{Remote, RemoteConfig};
use serde::Deserialize;
use std::sync::Arc;
use std::time::Duration;

/// `[remote]`. Credentials are no settings: they come from the environment.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RemoteTierConfig {
    /// `s3://bucket` or `s3://bucket/prefix`. The node's name follows in all names.
    pub url: String,
    /// `http://` or `https://`, host and port of a store that is not Amazon's.
    #[serde(default)]
    pub endpoint: Option<String>,
    /// The bucket's region; by default as the environment says (`AWS_REGION`), else `us-east-1`.
    #[serde(default)]
    pub region: Option<String>,
    /// Longest time of one write.
    #[serde(default = "RemoteTierConfig::timeout")]
    pub timeout: Time,
    /// Longest time of one read or delete.
    #[serde(default = "RemoteTierConfig::read_timeout")]
    pub read_timeout: Time,
    /// How often a write or a delete is tried again.
    #[serde(default = "RemoteTierConfig::retries")]
    pub retries: u32,
    /// Bytes of memory for values that wait to be written.
    #[serde(default = "RemoteTierConfig::queue")]
    pub queue: Size,
    /// Values written at the same time.
    #[serde(default = "RemoteTierConfig::uploads")]
    pub uploads: usize,
    /// Values read at the same time.
    #[serde(default = "RemoteTierConfig::reads")]
    pub reads: usize,
    /// How long a value that was not there is not asked for again.
    #[serde(default = "RemoteTierConfig::remember_absent")]
    pub remember_absent: Time,
    /// Keys that are remembered as being there.
    #[serde(default = "RemoteTierConfig::keys")]
    pub keys: usize,
}

impl RemoteTierConfig {
    fn defaults() -> RemoteConfig {
        RemoteConfig::new("", "")
    }

    fn timeout() -> Time {
        Time(Self::defaults().timeout)
    }

    fn read_timeout() -> Time {
        Time(Self::defaults().read_timeout)
    }

    fn keys() -> usize {
        Self::defaults().keys
    }

    fn retries() -> u32 {
        Self::defaults().retries
    }

    fn queue() -> Size {
        Size(Self::defaults().queue_bytes)
    }

    fn uploads() -> usize {
        Self::defaults().uploads
    }

    fn reads() -> usize {
        Self::defaults().reads
    }

    fn remember_absent() -> Time {
        Time(Self::defaults().remember_absent)
    }

    /// The bucket and the prefix.
    fn place(&self) -> Result<(&str, &str), String> {
        let wrong = || format!("remote.url is {:?}, allowed is s3://bucket or s3://bucket/prefix", self.url);
        let rest = self.url.strip_prefix("s3://").ok_or_else(wrong)?;
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let prefix = prefix.strip_suffix('/').unwrap_or(prefix);
        let plain = |c: char, more: &str| c.is_ascii_alphanumeric() || more.contains(c);
        let steps = prefix.is_empty() || prefix.split('/').all(|s| !s.is_empty() && s != "." && s != "..");
        let fine = (3..=63).contains(&bucket.len())
            && bucket.chars().all(|c| plain(c, "-.") && !c.is_ascii_uppercase())
            && prefix.len() <= 256
            && prefix.chars().all(|c| plain(c, "-._/="))
            && steps;
        fine.then_some((bucket, prefix)).ok_or_else(wrong)
    }

    /// Refuses what cannot work.
    ///
    /// # Errors
    /// A sentence that names the key and what is allowed.
    pub fn check(&self, has_disk: bool) -> Result<(), String> {
        self.place()?;
        if !has_disk {
            return Err("remote is set and disk is not, allowed is a remote tier below a disk tier".into());
        }
        if let Some(endpoint) = &self.endpoint {
            let host = endpoint.strip_prefix("https://").or_else(|| endpoint.strip_prefix("http://"));
            if host.is_none_or(|h| {
                h.is_empty() || h.contains(['@', '?', '#', ' ']) || h.trim_end_matches('/').contains('/')
            }) {
                return Err(
                    "remote.endpoint is allowed as http:// or https:// with host and port, and no credentials".into()
                );
            }
        }
        let within = |key: &str, value: u64, least: u64, most: u64| match (least..=most).contains(&value) {
            true => Ok(()),
            false => Err(format!("remote.{key} is {value}, allowed is {least} to {most}")),
        };
        within("timeout in milliseconds", self.timeout.0.as_millis() as u64, 100, 600_000)?;
        within("read_timeout in milliseconds", self.read_timeout.0.as_millis() as u64, 10, 600_000)?;
        within("keys", self.keys as u64, 1 << 10, 1 << 28)?;
        within("retries", self.retries.into(), 0, 10)?;
        within("queue in bytes", self.queue.0, 1 << 20, 1 << 40)?;
        within("uploads", self.uploads as u64, 1, 256)?;
        within("reads", self.reads as u64, 1, 4096)?;
        within("remember_absent in milliseconds", self.remember_absent.0.as_millis() as u64, 0, 86_400_000)
    }

    /// The tier's limits and names.
    fn limits(&self, node: &str) -> Result<RemoteConfig, String> {
        Ok(RemoteConfig {
            timeout: self.timeout.0,
            read_timeout: self.read_timeout.0,
            keys: self.keys,
            retries: self.retries,
            queue_bytes: self.queue.0,
            uploads: self.uploads,
            reads: self.reads,
            remember_absent: self.remember_absent.0,
            ..RemoteConfig::new(self.place()?.1, node)
        })
    }
}

/// The remote tier of a node, where its settings want one. The store is not asked.
///
/// # Errors
/// A sentence: settings that cannot work, or a program that was built without the tier.
pub fn open(config: &NodeConfig) -> Result<Option<Arc<Remote>>, String> {
    let Some(remote) = &config.remote else { return Ok(None) };
    let limits = remote.limits(&config.name)?;
    Ok(Some(Remote::new(bucket(remote, limits.timeout)?, limits)))
}

#[cfg(feature = "remote")]
fn bucket(remote: &RemoteTierConfig, timeout: Duration) -> Result<Arc<dyn crate::remote::Bucket>, String> {
    let place = crate::remote::S3Config {
        bucket: remote.place()?.0.to_string(),
        endpoint: remote.endpoint.clone(),
        region: remote.region.clone(),
        timeout,
    };
    Ok(Arc::new(crate::remote::Store::s3(&place)?))
}

#[cfg(not(feature = "remote"))]
fn bucket(_: &RemoteTierConfig, _: Duration) -> Result<Arc<dyn crate::remote::Bucket>, String> {
    Err("remote is set, and this program was built without the remote tier; build it with the feature `remote`".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(more: &str) -> Result<NodeConfig, String> {
        let text = format!(
            "name = 'a'\nlisten = ['127.0.0.1:7400']\n[memory]\npath = '/dev/shm/x'\nsize = '1GiB'\n\
             [[disk]]\npath = '/x'\nsize = '8GiB'\n[remote]\n{more}\n"
        );
        NodeConfig::read(&text, &[])
    }

    #[test]
    fn urls_are_read() {
        for (url, place) in [
            ("s3://kv-cache", ("kv-cache", "")),
            ("s3://kv-cache/", ("kv-cache", "")),
            ("s3://kv.cache/prod/eu-1", ("kv.cache", "prod/eu-1")),
            ("s3://kv-cache/prod/", ("kv-cache", "prod")),
        ] {
            let config = read(&format!("url = '{url}'")).unwrap();
            let remote = config.remote.unwrap();
            assert_eq!(remote.place(), Ok(place), "{url}");
            assert_eq!(remote.limits("a").unwrap(), RemoteConfig::new(place.1, "a"));
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        for url in ["", "s3://", "s3:///x", "http://bucket", "s3://a", "s3://Bucket", "s3://buc ket", "s3://bucket//x"]
        {
            assert!(read(&format!("url = '{url}'")).unwrap_err().contains("remote.url"), "{url}");
        }
        for prefix in ["a/../b", "./a", "a//b", "a?b", "a b", "a%b"] {
            assert!(read(&format!("url = 's3://bucket/{prefix}'")).unwrap_err().contains("remote.url"), "{prefix}");
        }
        for (more, words) in [
            ("timeout = '1ms'", "remote.timeout in milliseconds is 1, allowed is 100"),
            ("read_timeout = '1ms'", "remote.read_timeout in milliseconds is 1"),
            ("keys = 10", "remote.keys is 10"),
            ("retries = 11", "remote.retries is 11"),
            ("queue = '1KiB'", "remote.queue in bytes is 1024"),
            ("uploads = 0", "remote.uploads is 0"),
            ("reads = 0", "remote.reads is 0"),
            ("secret = 'x'", "unknown field `secret`"),
            ("endpoint = 'host:9000'", "remote.endpoint is allowed as"),
        ] {
            let found = read(&format!("url = 's3://bucket'\n{more}")).unwrap_err();
            assert!(found.contains(words), "{found}");
        }
        let found = read("url = 's3://bucket'\nendpoint = 'http://me:hidden@host'").unwrap_err();
        assert!(!found.contains("hidden"), "{found}");
    }
}
