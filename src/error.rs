//! Typed errors. Every message names the bad value and what is allowed; an error leaves the cache unchanged.

use std::fmt;

/// Result of a core call.
pub type Result<T> = std::result::Result<T, Error>;

/// The pool an [`OutOfPages`] speaks of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolName {
    /// Pages of the full-attention group.
    Full,
    /// SWA pages for windows and checkpoints.
    Swa,
    /// SWA pages set aside for chunks longer than a window.
    Scratch,
}

impl fmt::Display for PoolName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PoolName::Full => "full",
            PoolName::Swa => "swa",
            PoolName::Scratch => "scratch",
        })
    }
}

/// A request for pages that cannot be served now. Nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutOfPages {
    /// Which budget is short.
    pub pool: PoolName,
    /// Pages asked for.
    pub needed: u64,
    /// Pages on the free list; of free, quarantined and evictable pages `promised` are spoken for.
    pub free: u64,
    /// Pages that become free or evictable when running steps retire.
    pub quarantined: u64,
    /// Cached pages without a lease that no running step can touch.
    pub evictable: u64,
    /// Pages promised to open sequences and not taken yet.
    pub promised: u64,
    /// Usable pages of this budget.
    pub total: u64,
    /// The most that it could ever have: `total`, or with a region what the other pool can do without on top. `needed > most`
    /// can never succeed.
    pub most: u64,
}

impl fmt::Display for OutOfPages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "out of {} pages: {} needed, {} free + {} quarantined + {} evictable - {} promised to open sequences can be had, of {} in all",
            self.pool, self.needed, self.free, self.quarantined, self.evictable, self.promised, self.total
        )?;
        if self.needed > self.most {
            f.write_str(match self.pool {
                PoolName::Scratch => "; this can never be served, use a smaller chunk or more scratch pages",
                _ => "; this can never be served, use a larger pool or a shorter request",
            })
        } else if self.needed > self.total {
            f.write_str("; try again when the pool has got more chunks, or reassign some to it")
        } else if self.quarantined > 0 {
            f.write_str("; retire the running steps and try again")
        } else {
            f.write_str("; finish, park or abort a sequence and try again")
        }
    }
}

/// Everything that can go wrong in the core.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A value outside what is allowed.
    #[error("{what} is {value}, allowed is {allowed}")]
    Invalid {
        /// Which argument.
        what: &'static str,
        /// The value that was given.
        value: String,
        /// What is allowed.
        allowed: String,
    },
    /// See [`OutOfPages`].
    #[error("{0}")]
    OutOfPages(OutOfPages),
    /// The call does not fit the state of the sequence or request.
    #[error("cannot {call} a sequence that is {state}; allowed is a sequence that is {allowed}")]
    State {
        /// The call.
        call: &'static str,
        /// The state it found.
        state: &'static str,
        /// The state it needs.
        allowed: &'static str,
    },
    /// A step or move number out of order.
    #[error("{what} {value} is out of order, allowed is {expected}")]
    Order {
        /// "step to fill", "step to retire", "move".
        what: &'static str,
        /// The number that was given.
        value: u64,
        /// What would be accepted.
        expected: String,
    },
    /// A model configuration with missing or contradictory fields.
    #[error("config: {0}")]
    Config(String),
    /// A trace line that cannot be read.
    #[error("trace line {line}: {message}")]
    Trace {
        /// 1-based line number.
        line: u64,
        /// What is wrong with it.
        message: String,
    },
    /// A file that cannot be read or written.
    #[error("{path}: {message}")]
    Io {
        /// The file.
        path: String,
        /// The system's words.
        message: String,
    },
    /// Whoever waited for a call does not want to any more.
    #[error("the call was interrupted")]
    Interrupted,
    /// The structures contradict each other; a bug in this crate.
    #[error("integrity: {0}")]
    Integrity(String),
}

impl Error {
    /// An [`Error::Invalid`].
    pub fn invalid(what: &'static str, value: impl fmt::Display, allowed: impl fmt::Display) -> Self {
        Error::Invalid { what, value: value.to_string(), allowed: allowed.to_string() }
    }
}

/// A caller's text for an error: quoted, and cut where it is long (`{:.n?}` does not cut).
pub fn shown(text: &str) -> String {
    const MOST: usize = 80;
    match text.char_indices().nth(MOST) {
        None => format!("{text:?}"),
        Some((cut, _)) => format!("{:?} and {} more bytes", &text[..cut], text.len() - cut),
    }
}

#[cfg(test)]
mod tests {
    use super::shown;

    #[test]
    fn long_texts_are_cut_between_characters() {
        assert_eq!(shown("lru"), "\"lru\"");
        let long = "ä".repeat(100_000);
        assert!(shown(&long).len() < 300 && shown(&long).ends_with("and 199840 more bytes"), "{}", shown(&long));
    }
}
