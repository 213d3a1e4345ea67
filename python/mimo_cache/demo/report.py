"""The demo's result: numbers, the report for people, the line for scripts."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from .device import Verdict
from .engine import Limits, Tally

CAUSES = {
    "window": "full KV is there, its window is not",
    "last_token": "cached, but the last page is computed again: one token must be left",
    "evicted": "full KV was cached once and evicted",
    "in_flight": "another request is computing it",
    "capacity": "could not be cached",
    "never_seen": "new to this engine",
    "partial_page": "after the last whole page",
}
STATES = ("free", "private", "cached", "leased", "quarantined", "promised")


@dataclass(slots=True)
class Result:
    """Everything that is printed or drawn. bytes: of both pools; single_bytes: of a single pool with the same hit rate,
    None when no such pool reaches it. seconds: serving time, checks included. last, snapshot: the cache's stats and
    contents at the end, the snapshot None when the run broke off."""

    verified: bool
    verdict: Verdict
    tally: Tally
    limits: Limits
    model: str
    page: int
    window: int
    bytes: int
    full_bytes: int
    single_pages: int | None
    single_bytes: int | None
    seconds: float
    sessions: int
    mirrored: int
    last: Any
    snapshot: Any

    @property
    def hit_rate(self) -> float:
        """Usable tokens over prompt tokens."""
        return self.tally.hits / max(1, self.tally.prompt)

    @property
    def full_kv_rate(self) -> float:
        """Tokens with full KV over prompt tokens: what a tree without the window rule would return."""
        return self.tally.full_kv / max(1, self.tally.prompt)


def json_line(r: Result) -> str:
    """The last line of stdout with `--json`."""
    return json.dumps(
        {
            "verified": r.verified,
            "token_hit_rate": r.hit_rate,
            "prompt_tokens": r.tally.prompt,
            "hit_tokens": r.tally.hits,
            "misses": dict(r.tally.misses),
            "seconds": round(r.seconds, 3),
            "full_kv_hit_rate": r.full_kv_rate,
            "requests": r.tally.requests,
            "sessions": r.sessions,
            "steps": r.tally.steps,
            "rows_checked": r.verdict.rows,
            "rows_wrong": r.verdict.wrong,
            "events": dict(r.tally.events),
            "bytes": r.bytes,
            "single_pool_bytes": r.single_bytes,
            "core_calls_per_second": round(r.tally.calls / max(1e-9, r.tally.core_seconds)),
        }
    )


def text(r: Result) -> str:
    """The report, for a terminal."""
    t = r.tally

    def share(n: int) -> str:
        return f"{n:>13,}  {100 * n / max(1, t.prompt):5.1f} %"

    out = [
        f"mimo-cache demo --canary: {r.sessions} sessions, {t.requests:,} requests, {t.steps:,} steps "
        f"({r.model}, page {r.page}, W {r.window})",
        "",
        "Where the prompt tokens came from",
        f"  prompt tokens   {share(t.prompt)}",
        f"  hits (usable)   {share(t.hits)}   full-KV match {100 * r.full_kv_rate:.1f} %, of which "
        f"{100 * (r.full_kv_rate - r.hit_rate):.1f} points were not usable",
    ]
    out += [f"  {cause:<15} {share(t.misses[cause])}   {why}" for cause, why in CAUSES.items()]
    others = ", ".join(f"{n:,} {what}" for what, n in sorted(t.events.items()))
    out += [
        "",
        "What the engine did",
        f"  computed {t.computed:,} prompt rows and {t.decoded:,} output tokens; {t.rejected:,} draft rows rejected",
        f"  requests: {others}",
        f"  resumed after preemption: {t.resumed_hits:,} of {t.resumed:,} tokens were still cached",
        f"  plans: {t.copies:,} page copies, {t.rebuilds:,} MTP rebuilds; {r.mirrored:,} events mirrored",
        "",
        f"Pages by state (mean over the run and at the end)  {'full':>15}{'SWA':>18}",
    ]
    for state in (*STATES, "total"):
        cells = []
        for pool in ("full", "swa"):
            series = [getattr(getattr(s[4], pool), state) for s in t.samples] or [0]
            cells.append(f"{sum(series) / len(series):>9,.0f}{getattr(getattr(r.last, pool), state):>8,}")
        out.append(f"  {state:<45}{cells[0]:>18}{cells[1]:>18}")
    gib = 1 << 30
    out += ["", "Bytes", f"  both pools: {r.bytes / gib:.2f} GiB, {100 * r.full_bytes / r.bytes:.0f} % of it full KV"]
    if r.single_bytes is None:
        why = "reaches this hit rate at no size" if r.verified else "is not compared with a run that has findings"
        out.append(f"  a single-pool cache {why}")
    else:
        out.append(
            f"  a single-pool cache needs {r.single_bytes / gib:.2f} GiB for the same hit rate: "
            f"{r.single_bytes / r.bytes:.2f} times as much"
        )
    per_call = 1e6 * t.core_seconds / max(1, t.calls)
    out += [
        "",
        "Speed",
        f"  {t.calls / max(1e-9, t.core_seconds):,.0f} cache calls per second of cache time ({t.calls:,} calls, "
        f"{per_call:.1f} us each, {t.core_seconds:.2f} s of {r.seconds:.1f} s)",
        f"  {t.requests / r.seconds:,.0f} requests and {t.prompt / r.seconds:,.0f} prompt tokens per second, checks "
        "included",
        "",
        f"Checked {r.verdict.rows:,} rows in {r.verdict.tables:,} page tables: {r.verdict.wrong:,} findings",
    ]
    out += [f"  {message}" for message in r.verdict.messages]
    out.append("verified" if r.verified else "NOT VERIFIED")
    return "\n".join(out)
