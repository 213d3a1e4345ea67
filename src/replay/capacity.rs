//! How large the cache of a replay is: a capacity in words, and what it comes to in pages.

use crate::error::{Error, Result};
use crate::geometry::{Deployment, Geometry};

/// What one token costs, and what its window is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvBytes {
    /// Bytes per token of the full-attention layers of the trunk; 0 without a full group.
    pub full_trunk: u64,
    /// Bytes per token inside the window of the SWA layers of the trunk; 0 without an SWA group.
    pub swa_trunk: u64,
    /// The same with MTP heads and the hidden state of each token.
    pub swa_all: u64,
    /// W: previous tokens an SWA query needs.
    pub window: u32,
}

impl KvBytes {
    /// Of a preset by name, for pages of `page_size` tokens.
    pub fn of_model(name: &str, page_size: u32) -> Result<Self> {
        Ok(Self::of(&Geometry::preset(name, Deployment { page_size, ..Deployment::default() })?))
    }

    /// Of one rank's geometry, over all KV shards.
    pub fn of(geometry: &Geometry) -> Self {
        let page = u64::from(geometry.page_size());
        KvBytes {
            full_trunk: geometry.full().map_or(0, |g| g.trunk_token_bytes()),
            swa_trunk: geometry.swa().map_or(0, |g| g.trunk_token_bytes()),
            swa_all: geometry.stored_swa_page_bytes() / page,
            window: geometry.window(),
        }
    }

    /// The SWA share to take when none is given: all or nothing with one group, else a tenth.
    pub fn default_share(&self) -> f64 {
        match (self.full_trunk > 0, self.swa_trunk > 0) {
            (_, false) => 0.0,
            (false, true) => 1.0,
            (true, true) => 0.1,
        }
    }
}

/// A capacity as a user states it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Capacity {
    /// Tokens of the full pool; the SWA pool comes on top, by its share.
    FullTokens(u64),
    /// Bytes of both pools: trunk, MTP heads and hidden states.
    Bytes(u64),
    /// A fraction of the bytes of all trunk layers for all unique tokens of the trace. Pages too count trunk layers
    /// only here, so that models with and without MTP heads compare.
    Share(f64),
}

/// The pools of a replay.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pools {
    /// Pages of the full pool.
    pub full_pages: u32,
    /// SWA pages for windows and checkpoints.
    pub swa_pages: u32,
    /// SWA pages beside them for the running chunk, outside the capacity.
    pub scratch_pages: u32,
    /// Bytes of the full pool, counted as the capacity counts them.
    pub full_bytes: u64,
    /// Bytes of the SWA pages without scratch, counted likewise.
    pub swa_bytes: u64,
    /// Bytes of the scratch pages, counted likewise.
    pub scratch_bytes: u64,
    /// Full pages that the bytes of both pools would hold: what no split of them can beat. 0 without a full group.
    pub budget_pages: u64,
}

impl Pools {
    /// Part of the bytes that SWA pages have, scratch left out.
    pub fn swa_bytes_share(&self) -> f64 {
        self.swa_bytes as f64 / (self.full_bytes + self.swa_bytes).max(1) as f64
    }
}

const UNITS: [(&str, bool, u64); 17] = [
    ("kib", true, 1 << 10),
    ("mib", true, 1 << 20),
    ("gib", true, 1 << 30),
    ("tib", true, 1 << 40),
    ("pib", true, 1 << 50),
    ("kb", true, 1_000),
    ("mb", true, 1_000_000),
    ("gb", true, 1_000_000_000),
    ("tb", true, 1_000_000_000_000),
    ("pb", true, 1_000_000_000_000_000),
    ("b", true, 1),
    ("k", false, 1_000),
    ("m", false, 1_000_000),
    ("g", false, 1_000_000_000),
    ("t", false, 1_000_000_000_000),
    ("tokens", false, 1),
    ("", false, 1),
];

impl Capacity {
    /// Reads `2M` or `2000000` (tokens of the full pool), `40GiB` or `40GB` (bytes), `1%` (a share). Case and spaces
    /// between number and unit do not matter.
    pub fn parse(text: &str) -> Result<Self> {
        let bad = || {
            let allowed = "tokens of the full pool (2M), bytes (40GiB) or a share (1%), above 0 and below 2^60";
            let shown: String = text.chars().take(80).collect();
            Error::invalid("capacity", format!("{shown:?}"), allowed)
        };
        let trimmed = text.trim();
        let split = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
        let number: f64 = trimmed[..split].parse().map_err(|_| bad())?;
        let unit = trimmed[split..].trim().to_ascii_lowercase();
        if unit == "%" {
            let share = number / 100.0;
            return if share > 0.0 && share <= 1000.0 { Ok(Capacity::Share(share)) } else { Err(bad()) };
        }
        let &(_, bytes, scale) = UNITS.iter().find(|(name, _, _)| *name == unit).ok_or_else(bad)?;
        let value = number * scale as f64;
        if !(1.0..(1u64 << 60) as f64).contains(&value) {
            return Err(bad());
        }
        Ok(if bytes { Capacity::Bytes(value as u64) } else { Capacity::FullTokens(value as u64) })
    }

    /// Splits the capacity into pages: `swa_share` of the bytes for the SWA pool. `unique_tokens` are those of the
    /// trace; `chunk` is the longest prefill chunk, which gets scratch pages beside the pools.
    pub fn pools(&self, kv: &KvBytes, swa_share: f64, page: u32, chunk: u32, unique_tokens: u64) -> Result<Pools> {
        let trunk_only = matches!(self, Capacity::Share(_));
        let full_cost = u128::from(kv.full_trunk) * u128::from(page);
        let swa_cost = u128::from(if trunk_only { kv.swa_trunk } else { kv.swa_all }) * u128::from(page);
        check_share(kv, swa_share)?;
        let (full_bytes, swa_bytes) = match *self {
            Capacity::FullTokens(tokens) => {
                if kv.full_trunk == 0 {
                    let allowed = "bytes or a share for a model without a full-attention group";
                    return Err(Error::invalid("capacity", format!("{tokens} tokens of the full pool"), allowed));
                }
                let full = tokens as f64 * kv.full_trunk as f64;
                (full, full * swa_share / (1.0 - swa_share))
            }
            Capacity::Bytes(bytes) => (bytes as f64 * (1.0 - swa_share), bytes as f64 * swa_share),
            Capacity::Share(share) => {
                let all = share * unique_tokens as f64 * (kv.full_trunk + kv.swa_trunk) as f64;
                (all * (1.0 - swa_share), all * swa_share)
            }
        };
        let budget = if full_cost == 0 { 0.0 } else { (full_bytes + swa_bytes) / full_cost as f64 };
        let full_pages = pages("full pool", full_bytes, full_cost)?;
        let swa_pages = pages("SWA pool", swa_bytes, swa_cost)?;
        if kv.full_trunk > 0 && full_pages < 2 {
            let value = format!("{full_pages} pages of the full pool");
            return Err(Error::invalid("capacity", value, "at least 2 pages of the full pool"));
        }
        // A running sequence holds this much of the SWA pool besides scratch; a checkpoint needs a window more.
        let least = 2 * kv.window.div_ceil(page) + 4;
        if kv.swa_trunk > 0 && swa_pages < least {
            let allowed = format!(
                "at least {least} pages, for the running window and one checkpoint; raise capacity or SWA share"
            );
            return Err(Error::invalid("capacity", format!("{swa_pages} pages of the SWA pool"), allowed));
        }
        let scratch_pages = if kv.swa_trunk > 0 { chunk.div_ceil(page) + 1 } else { 0 };
        if u64::from(swa_pages) + u64::from(scratch_pages) > u64::from(MAX_PAGES) {
            return Err(Error::invalid("chunk", chunk, format!("at most {MAX_PAGES} pages with the SWA pool")));
        }
        let bytes = |count: u32, cost: u128| (u128::from(count) * cost).min(u128::from(u64::MAX)) as u64;
        Ok(Pools {
            full_pages,
            swa_pages,
            scratch_pages,
            full_bytes: bytes(full_pages, full_cost),
            swa_bytes: bytes(swa_pages, swa_cost),
            scratch_bytes: bytes(scratch_pages, swa_cost),
            // Rounded up: a bound may be generous.
            budget_pages: budget.ceil() as u64,
        })
    }
}

/// Most pages of a pool, as in the core.
const MAX_PAGES: u32 = 1 << 30;

fn check_share(kv: &KvBytes, share: f64) -> Result<()> {
    let (fits, allowed) = match (kv.full_trunk > 0, kv.swa_trunk > 0) {
        (true, false) => (share == 0.0, "0 for a model without an SWA group"),
        (false, true) => (share == 1.0, "1 for a model without a full-attention group"),
        _ => (share > 0.0 && share < 1.0, "above 0 and below 1"),
    };
    if fits { Ok(()) } else { Err(Error::invalid("SWA share", share, allowed)) }
}

fn pages(what: &'static str, bytes: f64, cost: u128) -> Result<u32> {
    if cost == 0 {
        return Ok(0);
    }
    let count = (bytes / cost as f64).floor();
    if count > f64::from(MAX_PAGES) {
        return Err(Error::invalid(what, format!("{count:.0} pages"), format!("at most {MAX_PAGES} pages")));
    }
    Ok(count as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// MiMo-V2.5-Pro.
    const PRO: KvBytes = KvBytes { full_trunk: 51_200, swa_trunk: 307_200, swa_all: 334_848, window: 128 };
    const PLAIN: KvBytes = KvBytes { full_trunk: 358_400, swa_trunk: 0, swa_all: 0, window: 0 };

    #[test]
    fn reads_tokens_bytes_and_shares() {
        for (text, want) in [
            ("2M", Capacity::FullTokens(2_000_000)),
            ("2000", Capacity::FullTokens(2000)),
            ("1.5k", Capacity::FullTokens(1500)),
            ("7 tokens", Capacity::FullTokens(7)),
            ("40GiB", Capacity::Bytes(40 << 30)),
            ("40 gb", Capacity::Bytes(40_000_000_000)),
            ("0.5TiB", Capacity::Bytes(1 << 39)),
            ("12B", Capacity::Bytes(12)),
            ("1%", Capacity::Share(0.01)),
            (" 0.25 % ", Capacity::Share(0.0025)),
        ] {
            assert_eq!(Capacity::parse(text).unwrap(), want, "{text}");
        }
    }

    #[test]
    fn refuses_anything_else() {
        for text in
            ["", "M", "-2M", "0", "0%", "0.2", "nan", "inf", "1e3", "2X", "2 M M", "9999999T", "1..2", "%", "200000%"]
        {
            let error = Capacity::parse(text).unwrap_err().to_string();
            assert!(error.starts_with("capacity is ") && error.contains("40GiB"), "{text}: {error}");
        }
        assert!(Capacity::parse(&"9".repeat(100_000)).unwrap_err().to_string().len() < 300);
    }

    #[test]
    fn a_share_counts_trunk_layers_only() {
        let pools = Capacity::Share(0.01).pools(&PRO, 0.25, 64, 8192, 6_400_000).unwrap();
        // 1 % of 100,000 unique pages of 70 layers: 70,000 layer pages, 3/4 for 10 layers, 1/4 for 60.
        assert_eq!((pools.full_pages, pools.swa_pages, pools.scratch_pages), (5250, 291, 129));
        assert!((pools.swa_bytes_share() - 0.25).abs() < 0.001);
        assert_eq!(pools.budget_pages, 7000);
    }

    #[test]
    fn bytes_count_mtp_and_hidden_state() {
        let pools = Capacity::Bytes(40 << 30).pools(&PRO, 0.5, 64, 8192, 0).unwrap();
        assert_eq!(pools.full_pages, ((20u64 << 30) / (64 * 51_200)) as u32);
        assert_eq!(pools.swa_pages, ((20u64 << 30) / (64 * 334_848)) as u32);
        assert_eq!(pools.scratch_bytes, 129 * 64 * 334_848);
    }

    #[test]
    fn tokens_size_the_full_pool() {
        let pools = Capacity::FullTokens(2_000_000).pools(&PRO, 0.2, 64, 8192, 0).unwrap();
        assert_eq!(pools.full_pages, 31_250);
        assert_eq!(pools.swa_pages, (31_250.0 * 51_200.0 / 4.0 / 334_848.0) as u32);
        let plain = Capacity::FullTokens(2_000_000).pools(&PLAIN, 0.0, 64, 8192, 0).unwrap();
        assert_eq!((plain.full_pages, plain.swa_pages, plain.scratch_pages), (31_250, 0, 0));
        assert_eq!(plain.swa_bytes_share(), 0.0);
        assert_eq!((pools.budget_pages, plain.budget_pages), (39_063, 31_250));
    }

    #[test]
    fn refuses_splits_and_sizes_that_cannot_work() {
        let share = Capacity::Share(0.01);
        for swa in [0.0, 1.0, -0.5, f64::NAN] {
            assert!(share.pools(&PRO, swa, 64, 8192, 6_400_000).is_err(), "{swa}");
        }
        assert!(share.pools(&PLAIN, 0.1, 64, 8192, 6_400_000).is_err());
        assert!(share.pools(&PRO, 0.2, 64, 8192, 64).unwrap_err().to_string().contains("0 pages of the full pool"));
        assert!(share.pools(&PRO, 0.0001, 64, 8192, 6_400_000).unwrap_err().to_string().contains("SWA pool"));
        let huge = Capacity::FullTokens(1 << 59).pools(&PLAIN, 0.0, 1, 8192, 0);
        assert!(huge.unwrap_err().to_string().contains("at most 1073741824 pages"));
        let swa_only = KvBytes { full_trunk: 0, ..PRO };
        assert!(Capacity::FullTokens(5000).pools(&swa_only, 1.0, 64, 8192, 0).is_err());
        let pools = Capacity::Bytes(1 << 30).pools(&swa_only, 1.0, 64, 8192, 0).unwrap();
        assert_eq!((pools.full_pages, pools.budget_pages), (0, 0));
    }
}
