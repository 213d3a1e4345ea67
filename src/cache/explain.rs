//! The story of a lookup: what was found, what was lost, when and by whom.

use super::{Cache, CheckpointInfo, Explanation, Loss, LostCheckpoint, Misses, Report, Stretch, Why, check_prompt};
use crate::error::Result;
use crate::key::{Key, Span, validate_spans};
use crate::policy::kind;
use crate::tree::ghost::{Act, Dropped};
use crate::tree::{Query, WalkPlace};

/// Checkpoints and stretches listed in an explanation.
const LISTED: usize = 64;
/// Checkpoints that were lost, and evictions, of which the lines tell.
const TOLD: usize = 3;

impl Cache {
    /// The story of a lookup, without lease or recency.
    pub fn explain(&self, tokens: &[u32], key: &Key, spans: &[Span]) -> Result<Explanation> {
        check_prompt(tokens)?;
        key.validate()?;
        validate_spans(spans, tokens.len() as u64)?;
        let (found, report) = self.lookup_report(tokens, key, spans);
        let mut out = Explanation { report, ..Explanation::default() };
        let Some((root, place)) = found else {
            out.lines.push(format!("{} prompt tokens: nothing of this namespace is cached.", report.prompt_tokens));
            out.stretches = self.stretches(&report, Vec::new());
            return Ok(out);
        };
        out.checkpoints = self.checkpoints_above(place);
        out.lost = self.lost_checkpoints(place, &report);
        let evicted = self.evictions(root, Query::new(tokens, spans), place, &report);
        out.stretches = self.stretches(&report, evicted);
        self.tell(&mut out);
        Ok(out)
    }

    /// Checkpoints on the path to a place, shallow first.
    fn checkpoints_above(&self, place: WalkPlace) -> Vec<CheckpointInfo> {
        let mut out = Vec::new();
        let mut at = place.node;
        'up: loop {
            let node = &self.tree.nodes[at];
            for &c in node.ckpts.iter().rev() {
                let c = &self.tree.ckpts[c];
                if c.end <= place.depth {
                    out.push(CheckpointInfo {
                        boundary: u64::from(c.end) * self.page(),
                        kinds: kind::names(c.kinds).collect(),
                        matched: c.matched,
                        turn: c.turn,
                    });
                }
                if out.len() == LISTED {
                    break 'up;
                }
            }
            if node.is_root() {
                break;
            }
            at = node.parent;
        }
        out.reverse();
        out
    }

    fn loss(&self, act: Act) -> Loss {
        Loss { why: act.why, by: act.by, calls_ago: self.tree.act.op - act.op, at_ms: act.ms }
    }

    /// Checkpoints that the ghosts remember between q and the largest boundary that could have been usable.
    fn lost_checkpoints(&self, place: WalkPlace, report: &Report) -> Vec<LostCheckpoint> {
        let q = report.matched.usable / self.page();
        let top = u64::from(place.depth).min((report.prompt_tokens - 1) / self.page());
        let mut out = Vec::new();
        if self.tree.need == 0 || q >= top {
            return out;
        }
        self.tree.path_back(place.node, q as u32, top as u32, |page, slot| {
            if let Some(Dropped { act, kinds }) = self.tree.ckpt_ghosts.recall(self.tree.slots.key(slot)) {
                let boundary = (u64::from(page) + 1) * self.page();
                let kinds = kind::names(kinds).collect();
                out.push(LostCheckpoint { boundary, kinds, loss: act.map(|a| self.loss(a)) });
            }
            out.len() < LISTED
        });
        out
    }

    /// The evicted stretch after the match, cut where the pages were dropped for another sequence or reason.
    fn evictions(&self, root: u32, query: Query<'_>, place: WalkPlace, report: &Report) -> Vec<Stretch> {
        let mut key = match place.depth {
            0 => self.tree.roots[root].key,
            depth => *self.tree.slots.key(self.tree.slot_above(place.node, depth - 1)),
        };
        let mut out: Vec<(Stretch, Option<(u64, Why)>)> = Vec::new();
        let first = u64::from(place.depth);
        for page in first..first + report.misses.evicted / self.page() {
            key = query.key(&key, page, self.config.page_size);
            let act = self.tree.ghosts.recall(&key).and_then(|d| d.act);
            let (from, to) = (page * self.page(), (page + 1) * self.page());
            let of = act.map(|a| (a.by, a.why));
            let full = out.len() == LISTED;
            match out.last_mut() {
                Some((stretch, last)) if full || *last == of => stretch.to = to,
                _ => out.push((Stretch { from, to, cause: "evicted", loss: act.map(|a| self.loss(a)) }, of)),
            }
        }
        out.into_iter().map(|(stretch, _)| stretch).collect()
    }

    /// What missed, in order of position.
    fn stretches(&self, report: &Report, evicted: Vec<Stretch>) -> Vec<Stretch> {
        let Misses { window, last_token, in_flight, capacity, never_seen, partial_page, .. } = report.misses;
        let mut at = report.matched.usable;
        let mut out = Vec::new();
        let mut add = |cause, tokens: u64| {
            if tokens > 0 {
                out.push(Stretch { from: at, to: at + tokens, cause, loss: None });
            }
            at += tokens;
        };
        add("window", window);
        add("last_token", last_token);
        add("evicted", report.misses.evicted);
        add("in_flight", in_flight);
        // The end of a prompt is what the pool has no room for.
        add("never_seen", never_seen);
        add("capacity", capacity);
        add("partial_page", partial_page);
        if let Some(i) = out.iter().position(|s: &Stretch| s.cause == "evicted")
            && !evicted.is_empty()
        {
            out.splice(i..=i, evicted);
        }
        out.truncate(LISTED);
        out
    }

    fn tell(&self, out: &mut Explanation) {
        let r = &out.report;
        let (p, q) = (r.matched.full_kv_match, r.matched.usable);
        out.lines.push(format!("{} prompt tokens: full KV is cached up to {p}, usable up to {q}.", r.prompt_tokens));
        if let Some(c) = out.checkpoints.iter().find(|c| c.boundary == q) {
            let kinds = c.kinds.join(" and ");
            out.lines.push(format!("The boundary {q} is kept by a {kinds} checkpoint of turn {}.", c.turn));
        } else if q > 0 && self.tree.need > 0 {
            out.lines.push(format!(
                "The boundary {q} is window-safe through pages that other boundaries or sequences keep."
            ));
        }
        for (cause, tokens) in r.misses.items().into_iter().filter(|(_, t)| *t > 0) {
            out.lines.push(match cause {
                "window" => format!("{tokens} tokens have full KV, but no boundary there has its window of SWA KV."),
                "last_token" => format!("{tokens} tokens are cached and computed again: hits end at a page, and one token must be left to compute."),
                "evicted" => format!("{tokens} tokens were cached and evicted."),
                "in_flight" => format!("{tokens} tokens are being computed by another sequence."),
                "capacity" => format!("{tokens} tokens are more than the full pool can hold."),
                "never_seen" => format!("{tokens} tokens were never seen, or were forgotten."),
                _ => format!("{tokens} tokens are after the last whole page."),
            });
            if cause == "window" {
                tell_lost(&out.lost, &mut out.lines);
            }
            if cause == "evicted" {
                tell_evicted(&out.stretches, &mut out.lines);
            }
        }
    }
}

fn tell_lost(lost: &[LostCheckpoint], lines: &mut Vec<String>) {
    for c in lost.iter().take(TOLD) {
        let kinds = c.kinds.join(" and ");
        lines.push(match c.loss {
            Some(loss) => format!("The {kinds} checkpoint at {} was dropped {}.", c.boundary, by_whom(&loss)),
            None => format!("A checkpoint at {} was dropped, so long ago that the rest is forgotten.", c.boundary),
        });
    }
    match lost.len().saturating_sub(TOLD) {
        0 if lost.is_empty() => lines.push("No checkpoint of those boundaries is remembered.".into()),
        0 => {}
        more => lines.push(format!("{more} more checkpoints before them were dropped too.")),
    }
}

fn tell_evicted(stretches: &[Stretch], lines: &mut Vec<String>) {
    let evicted: Vec<&Stretch> = stretches.iter().filter(|s| s.cause == "evicted").collect();
    for s in evicted.iter().take(TOLD) {
        let whom = s.loss.as_ref().map_or_else(|| "so long ago that the rest is forgotten".into(), by_whom);
        lines.push(format!("Tokens {} to {} were evicted {whom}.", s.from, s.to));
    }
    if evicted.len() > TOLD {
        lines.push(format!("The rest was evicted in {} more calls.", evicted.len() - TOLD));
    }
}

/// When, for whom and why, as the end of a sentence.
fn by_whom(loss: &Loss) -> String {
    let why = match loss.why {
        Why::FullPool => "needed pages of the full pool",
        Why::SwaPool => "needed pages of the SWA pool",
        Why::Share => "needed room in its tenant's share",
        Why::Superseded => "made a newer end of the conversation, which took its place",
        Why::Resumed => "was resumed",
        Why::Chunk => "was served and the pool gave up a chunk",
    };
    let calls = match loss.calls_ago {
        0 => "in the newest call".into(),
        1 => "1 call ago".into(),
        n => format!("{n} calls ago"),
    };
    format!("{calls}, when sequence {} {why}", loss.by)
}
