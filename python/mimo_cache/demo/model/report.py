"""The result of the demo: a table of turns, totals, the verdict, and the line for scripts."""

from __future__ import annotations

import json
from typing import Any

from ..report import CAUSES
from .compare import TIE
from .run import MOSTLY, Result


def json_line(r: Result) -> str:
    """The last line of stdout with `--json`."""
    turns, cached, plain = r.times()
    mostly, mostly_cached, mostly_plain = r.times(MOSTLY)
    rate = r.hits / max(1, r.prompt_tokens)
    out: dict[str, Any] = {
        "identical": r.valid,
        "verified": r.valid,
        "compared": "bits" if r.verdict.exact else "tokens",
        "first_difference": r.verdict.first,
        "turns": turns,
        "sessions": r.sessions,
        "prompt_tokens": r.prompt_tokens,
        "hit_tokens": r.hits,
        "token_hit_rate": rate,
        "hit_rate": rate,
        "misses": {cause: r.misses[cause] for cause in CAUSES},
        "ttft_cached": cached,
        "ttft_uncached": plain,
        "ttft_ratio": ratio(cached, plain),
        "turns_mostly_reused": mostly,
        "ttft_ratio_mostly_reused": ratio(mostly_cached, mostly_plain) if mostly else None,
        "full_pages_evicted": r.stats.full_evicted,
        "checkpoints_evicted": r.stats.checkpoints_evicted,
        "bookkeeping_share": r.tally.core_seconds / r.tally.step_seconds,
        "tokens_compared": r.verdict.tokens,
        "logits_compared": r.verdict.logits,
        "mtp_rows_compared": r.verdict.mtp_rows,
        "ties": r.verdict.ties,
        "turns_different": r.verdict.different,
        "backend": r.settings.backend,
        "model": r.settings.model,
        "seed": r.settings.seed,
        "seconds": round(r.seconds, 3),
    }
    return json.dumps(out)


def ratio(ours: float, theirs: float) -> float:
    """Ours over theirs."""
    return ours / max(1e-9, theirs)


def text(r: Result) -> str:
    """The report, for a terminal."""
    parts = [head(r), turns(r), "", *tokens(r), "", *times(r), "", *pressure(r), "", *sample(r), "", *verdict(r)]
    return "\n".join(parts)


def head(r: Result) -> str:
    """What ran."""
    return (
        f"mimo-cache demo: {len(r.served)} turns of {r.sessions} sessions, each with the cache and without it\n"
        f"({r.model}; backend {r.settings.backend})\n"
    )


def turns(r: Result) -> str:
    """One line for each turn."""
    lines = ["turn session what     prompt  reused        first token: cached  uncached   ratio"]
    for s in r.served:
        beside = f"  beside {s.beside} more" if s.beside else ""
        lines.append(
            f"{s.number:>4}{s.session:>8} {s.kind:<8}{s.prompt:>7,}{s.report.usable:>8,}{100 * s.reuse:>5.0f} %"
            f"{1000 * s.cached:>16,.0f} ms{1000 * s.plain:>7,.0f} ms{ratio(s.cached, s.plain):>8.2f}{beside}"
        )
    return "\n".join(lines)


def tokens(r: Result) -> list[str]:
    """Where prompt tokens came from."""

    def share(n: int) -> str:
        return f"{n:>11,}  {100 * n / max(1, r.prompt_tokens):5.1f} %"

    out = [
        "Where the prompt tokens came from",
        f"  prompt tokens   {share(r.prompt_tokens)}",
        f"  hits (usable)   {share(r.hits)}",
    ]
    return out + [f"  {cause:<15} {share(r.misses[cause])}   {why}" for cause, why in CAUSES.items()]


def times(r: Result) -> list[str]:
    """Time to the first token."""
    out = ["Time to the first token, median", "                                     cached    uncached   ratio"]
    for name, least in (("all turns", 0.0), (f"turns with {MOSTLY:.0%} reused", MOSTLY)):
        count, cached, plain = r.times(least)
        if count:
            label = f"{name} ({count})"
            out.append(f"  {label:<32}{1000 * cached:>6,.0f} ms{1000 * plain:>9,.0f} ms{ratio(cached, plain):>8.2f}")
    return out


def pressure(r: Result) -> list[str]:
    """What the pools did, and what the cache cost."""
    stats, t = r.stats, r.tally
    return [
        "Pressure",
        f"  the full pool has {stats.full.total:,} pages of {r.page} tokens, the SWA pool {stats.swa.total:,}",
        f"  evicted: {stats.full_evicted:,} full pages, {stats.checkpoints_evicted:,} checkpoints; "
        f"{r.compactions} sessions compacted",
        f"  plans: {t.copies:,} page copies, {t.rebuilds:,} MTP rebuilds",
        f"  with the cache {t.computed:,} rows were computed in {t.step_seconds:.1f} s, "
        f"without it {r.plain_tally.computed:,} in {r.plain_tally.step_seconds:.1f} s",
        f"  bookkeeping of the cache: {100 * t.core_seconds / t.step_seconds:.2f} % of the time of the steps",
    ]


def sample(r: Result) -> list[str]:
    """A full answer, behind the end of its prompt: the one with the shortest prompt, since small models lose the thread
    in long ones."""
    longest = max(len(s.answer) for s in r.served)
    best = min((s for s in r.served if 4 * len(s.answer) >= 3 * longest), key=lambda s: s.prompt)
    shown = (best.prompt_end + "[" + best.answer + "]").strip().splitlines()
    return [f"From turn {best.number}, the model's own text in brackets", *(f"  | {line}" for line in shown)]


def verdict(r: Result) -> list[str]:
    """What was compared, and the last line."""
    v, out = r.verdict, []
    if r.damaged:
        out.append(f"A cached row was damaged on purpose ({r.settings.sabotage}).")
    if v.exact:
        out.append(
            f"Compared bit by bit: {v.logits:,} logits of {v.tokens:,} new tokens, {v.mtp_rows:,} rows of MTP heads."
        )
    else:
        out.append(
            f"Compared {v.tokens:,} new tokens, not bits: this backend may differ in the last bits, and in a token "
            f"where the two largest logits are within {TIE:g} ({v.ties} such turns)."
        )
    if v.different:
        out.append(f"{v.different} turns differ, first {v.first}.")
    out.append("identical" if r.valid else "NOT identical")
    return out
