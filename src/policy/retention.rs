//! Which boundaries stay resumable: the rules that make checkpoints and let them go.

use crate::error::{Error, Result};

/// Kinds of a checkpoint, as bits of a set.
pub mod kind {
    /// Last boundary of a prompt.
    pub const PROMPT_END: u8 = 1;
    /// Last boundary of a sequence with its output.
    pub const SEQ_END: u8 = 2;
    /// A full-KV match went beyond what was usable and was computed again.
    pub const BRANCH: u8 = 4;
    /// Every so many tokens.
    pub const STRIDE: u8 = 8;
    /// Last boundary of a parked sequence.
    pub const PARK: u8 = 16;

    /// Names of the kinds in `set`.
    pub fn names(set: u8) -> impl Iterator<Item = &'static str> {
        [(PROMPT_END, "PROMPT_END"), (SEQ_END, "SEQ_END"), (BRANCH, "BRANCH"), (STRIDE, "STRIDE"), (PARK, "PARK")]
            .into_iter()
            .filter(move |(bit, _)| set & bit != 0)
            .map(|(_, name)| name)
    }
}

/// Parameters of retention. PROMPT_END is always on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retention {
    /// Keep the end of the sequence with its output.
    pub seq_end: bool,
    /// Keep a boundary where `p > q` was seen.
    pub branch: bool,
    /// SUPn: ends of one conversation that are kept once matched; 0 turns the rule off.
    pub sup: u32,
    /// Tokens between STRIDE checkpoints; 0 for none.
    pub stride: u64,
    /// A denser stride inside the first `dense_until` tokens; 0 for none.
    pub dense_stride: u64,
    /// End of the dense stretch.
    pub dense_until: u64,
}

impl Default for Retention {
    /// [`Retention::DEFAULT`].
    fn default() -> Self {
        Retention { seq_end: false, branch: true, sup: 2, stride: 8192, dense_stride: 2048, dense_until: 4096 }
    }
}

impl Retention {
    /// The rules where none are named, as text. Why these: docs/policies.md.
    pub const DEFAULT: &str = "prompt_end+branch+sup2+stride8192+dense2048:4096";
    /// PROMPT_END alone.
    const LEAST: Retention =
        Retention { seq_end: false, branch: false, sup: 0, stride: 0, dense_stride: 0, dense_until: 0 };

    /// Reads `"prompt_end+branch+sup2+stride8192"`; parts in any order and case, `seq_end` and
    /// `dense<k>:<until>` too. PROMPT_END is on whether it is named or not.
    pub fn parse(text: &str) -> Result<Self> {
        const ALLOWED: &str =
            "parts joined by '+': prompt_end, seq_end, branch, sup<n>, stride<tokens>, dense<tokens>:<until>";
        let bad = || Error::invalid("retention", crate::error::shown(text), ALLOWED);
        let mut out = Retention::LEAST;
        for part in text.split('+') {
            let part = part.trim().to_ascii_lowercase();
            let number = |s: &str| s.parse::<u64>().ok().filter(|v| (1..=1 << 40).contains(v)).ok_or_else(bad);
            match part.as_str() {
                "prompt_end" => {}
                "seq_end" => out.seq_end = true,
                "branch" => out.branch = true,
                p if p.starts_with("sup") => out.sup = number(&p[3..])?.min(1 << 20) as u32,
                p if p.starts_with("stride") => out.stride = number(&p[6..])?,
                p if p.starts_with("dense") => {
                    let (k, until) = p[5..].split_once(':').ok_or_else(bad)?;
                    out.dense_stride = number(k)?;
                    out.dense_until = number(until)?;
                }
                _ => return Err(bad()),
            }
        }
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_every_part() {
        let r = Retention::parse("PROMPT_END+branch+sup2+stride8192+dense512:4096+seq_end").unwrap();
        assert_eq!(
            r,
            Retention { seq_end: true, branch: true, sup: 2, stride: 8192, dense_stride: 512, dense_until: 4096 }
        );
        assert_eq!(Retention::parse("prompt_end"), Ok(Retention::LEAST));
        assert_eq!(Retention::parse(Retention::DEFAULT), Ok(Retention::default()));
    }

    #[test]
    fn refuses_what_it_does_not_know() {
        for text in ["", "stride", "stride0", "sup-1", "dense5", "everything", "stride99999999999999999999"] {
            assert!(Retention::parse(text).is_err(), "{text}");
        }
    }
}
