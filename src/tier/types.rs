//! The plain values of [`Tiers`](super::Tiers): how it is set up, and the moves it asks for.

use crate::cache::{MtpRebuild, Record};
use crate::error::{Error, Result};
use crate::key::{Key, Span, spans_before};

/// When what is computed goes to the tier below.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Write {
    /// As soon as it is computed.
    Through,
    /// When it was matched so many times.
    OnHit(u16),
    /// When newer ones push it out of the cache above.
    Back,
}

impl Write {
    /// `through`, `back`, or `hit<n>` with n from 1 to 65535.
    ///
    /// # Errors
    /// For any other text.
    pub fn parse(text: &str) -> Result<Write> {
        let hits = |text: &str| text.strip_prefix("hit")?.parse().ok().filter(|&n: &u16| n > 0);
        match text {
            "through" => Ok(Write::Through),
            "back" => Ok(Write::Back),
            _ => hits(text).map(Write::OnHit).ok_or_else(|| {
                Error::invalid(
                    "write",
                    crate::error::shown(text),
                    "\"through\", \"back\" or \"hit<n>\", n from 1 to 65535",
                )
            }),
        }
    }

    pub(super) fn wants(self, hits: u16) -> bool {
        match self {
            Write::Through | Write::Back => true,
            Write::OnHit(n) => hits >= n,
        }
    }
}

/// What keeps tiers consistent with each other. All on, but for measurements of what each is worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// Windows may be mixed of both tiers; off: a boundary is usable where one tier alone has all of it.
    pub mixed: bool,
    /// The boundary that a request began from goes down as well when the tier below lacks it; off: only what it added.
    pub difference: bool,
    /// What a fetch brought up stays resumable above; off: its boundary gets no checkpoint there.
    pub heal: bool,
    /// A request that is served above counts as a use below; off: only what is read or written there does.
    pub touch: bool,
}

impl Rules {
    /// All but those named in a list with commas: `mixed`, `difference`, `heal`, `touch`.
    ///
    /// # Errors
    /// For any other name.
    pub fn without(text: &str) -> Result<Rules> {
        let mut rules = Rules::default();
        for name in text.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            *match name {
                "mixed" => &mut rules.mixed,
                "difference" => &mut rules.difference,
                "heal" => &mut rules.heal,
                "touch" => &mut rules.touch,
                other => {
                    let allowed = "a list of mixed, difference, heal and touch";
                    return Err(Error::invalid("without", crate::error::shown(other), allowed));
                }
            } = false;
        }
        Ok(rules)
    }
}

impl Default for Rules {
    fn default() -> Self {
        Rules { mixed: true, difference: true, heal: true, touch: true }
    }
}

/// How a host tier below a cache is set up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TierConfig {
    /// Full pages of host memory.
    pub full_pages: u32,
    /// SWA pages of host memory.
    pub swa_pages: u32,
    /// When pages are written to it.
    pub write: Write,
    /// Pages on their way to it at once; what is beyond that is written at a later occasion.
    pub max_saving: u32,
    /// See there.
    pub rules: Rules,
}

/// A prefix, as the calls of a tier name it.
#[derive(Debug, Clone, Copy)]
pub struct Prefix<'a> {
    /// Its tokens.
    pub tokens: &'a [u32],
    /// Its namespace.
    pub key: &'a Key,
    /// Its multimodal spans.
    pub spans: &'a [Span],
    /// Who owns what is written of it.
    pub tenant: u32,
}

/// The same, kept.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Story {
    /// Its tokens.
    pub tokens: Vec<u32>,
    /// Its namespace.
    pub key: Key,
    /// Its multimodal spans.
    pub spans: Vec<Span>,
    /// Who owns what is written of it.
    pub tenant: u32,
}

impl Story {
    /// The first `end` tokens of a prefix.
    pub(super) fn of(prefix: &Prefix<'_>, end: u64) -> Story {
        let tokens = prefix.tokens[..end as usize].to_vec();
        Story { tokens, key: prefix.key.clone(), spans: spans_before(prefix.spans, end), tenant: prefix.tenant }
    }

    pub(super) fn prefix(&self) -> Prefix<'_> {
        Prefix { tokens: &self.tokens, key: &self.key, spans: &self.spans, tenant: self.tenant }
    }
}

/// Pages to copy: (device page, host page) of each group.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pairs {
    /// Full pages.
    pub full: Vec<(u32, u32)>,
    /// SWA pages.
    pub swa: Vec<(u32, u32)>,
}

impl Pairs {
    /// Pages of both groups.
    pub fn len(&self) -> usize {
        self.full.len() + self.swa.len()
    }

    /// Nothing to copy.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Pages that come up for a sequence, which stands at `to` already.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Fetch {
    /// Its number, for [`Tiers::fetched`](super::Tiers::fetched).
    pub id: u64,
    /// What to copy from host to device.
    pub pairs: Pairs,
    /// MTP rows to rebuild when the bytes are there, before it is told to be over.
    pub rebuilds: Vec<MtpRebuild>,
    /// Tokens the sequence had before.
    pub from: u64,
    /// Tokens it has with them.
    pub to: u64,
}

/// Pages that go down. The bytes must be those of retired steps.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Save {
    /// Its number, for [`Tiers::saved`](super::Tiers::saved).
    pub id: u64,
    /// What to copy from device to host.
    pub pairs: Pairs,
    /// The boundary that it makes resumable in the host tier, in tokens.
    pub at: u64,
}

/// Pages that come to the host tier from another process, through the tier below it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Receive {
    /// Its number, for [`Tiers::received`](super::Tiers::received).
    pub id: u64,
    /// What the cache above has and the host tier lacks: to be copied down, as a [`Save`]'s.
    pub pairs: Pairs,
    /// Full pages to write from elsewhere: (logical page, host page).
    pub full: Vec<(u64, u32)>,
    /// SWA pages to write from elsewhere: (logical page, host page).
    pub swa: Vec<(u64, u32)>,
    /// The boundary that they make resumable, in tokens.
    pub at: u64,
}

/// Pages of the host tier under a lease, to be written to the tier below it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Loan {
    /// Its number, for [`Tiers::returned`](super::Tiers::returned).
    pub id: u64,
    /// Names of all pages before the boundary, in order.
    pub keys: Vec<[u8; 32]>,
    /// Full pages: (logical page, host page).
    pub full: Vec<(u64, u32)>,
    /// SWA pages of the window: (logical page, host page).
    pub swa: Vec<(u64, u32)>,
    /// Records of the SWA pages.
    pub records: Vec<Record>,
}

/// What came of everything so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TierStats {
    /// Loads that were begun.
    pub fetches: u64,
    /// Of them, those whose bytes did not come.
    pub fetches_failed: u64,
    /// Tokens that sequences went on from instead of computing them.
    pub fetched_tokens: u64,
    /// Full and SWA pages that came up.
    pub fetched_full: u64,
    /// See `fetched_full`.
    pub fetched_swa: u64,
    /// Loads that did not pay, and those for which a pool had no room.
    pub declined: u64,
    /// See `declined`.
    pub no_room_above: u64,
    /// Boundaries that were written.
    pub saves: u64,
    /// Of them, those whose bytes did not come.
    pub saves_failed: u64,
    /// Full and SWA pages that went down.
    pub saved_full: u64,
    /// See `saved_full`.
    pub saved_swa: u64,
    /// Boundaries that were not written because the host tier had no room, or too many pages were on their way.
    pub no_room_below: u64,
    /// Boundaries that came from another process.
    pub receives: u64,
    /// Of them, those whose bytes did not come.
    pub receives_failed: u64,
    /// Full and SWA pages that came from another process.
    pub received_full: u64,
    /// See `received_full`.
    pub received_swa: u64,
    /// Boundaries lent for writing to the tier below.
    pub lent: u64,
    /// Of them, those that were not returned yet.
    pub lending: u64,
    /// Pages on their way down now.
    pub saving_pages: u64,
    /// Loads on their way now.
    pub fetching: u64,
    /// Pages that wait to be written back.
    pub dirty_pages: u64,
    /// Boundaries that the cache above had dropped when their turn to go down came.
    pub gone: u64,
}
