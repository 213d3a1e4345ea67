"""The result of the demo: a table of turns, totals, the verdict, and the line for scripts."""

from __future__ import annotations

import json
import textwrap
from dataclasses import asdict
from typing import Any

from ..report import CAUSES
from . import sources
from .cluster import NAMES
from .compare import TIE
from .phases import Phase
from .run import Result, Served
from .sources import MOSTLY, REUSED, Times


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
        "full_pages_evicted": r.books.full_evicted,
        "checkpoints_evicted": r.books.checkpoints_evicted,
        "bookkeeping_share": r.books.tally.core_seconds / r.books.tally.step_seconds,
        "tokens_compared": r.verdict.tokens,
        "logits_compared": r.verdict.logits,
        "mtp_rows_compared": r.verdict.mtp_rows,
        "ties": r.verdict.ties,
        "turns_different": r.verdict.different,
        "backend": r.settings.backend,
        "model": r.settings.model,
        "seed": r.settings.seed,
        "seconds": round(r.seconds, 3),
        "sources": sources.total(r.served),
        "ttft_by_source": _ttft(r),
        "overlap": _overlap(r),
        "phases": [_phase(r, phase) for phase in r.phases],
        "cluster": _cluster(r),
    }
    return json.dumps(out)


def _ttft(r: Result) -> dict[str, Any]:
    """For each source that has turns: medians over those, and over questions asked again."""
    again = sources.by_source(r.served, again=True)
    return {
        name: {**_medians(times), "asked_again": _medians(again[name]) if name in again else None}
        for name, times in sources.by_source(r.served).items()
    }


def _medians(times: Times) -> dict[str, float]:
    return {
        "turns": times.turns,
        "prompt_tokens": times.prompt,
        "computed_tokens": times.computed,
        "ttft": times.cached,
        "ttft_uncached": times.plain,
    }


def _overlap(r: Result) -> dict[str, float | None]:
    waited, copied = r.books.tally.wait_seconds, r.books.copying
    share = waited / copied if copied else None
    return {"waited_seconds": waited, "copied_seconds": copied, "waited_share": share}


def _phase(r: Result, phase: Phase) -> dict[str, Any]:
    turns = r.phase(phase)
    return {
        "name": phase.name,
        "first_turn": phase.first,
        "turns": len(turns),
        "prompt_tokens": sum(s.prompt for s in turns),
        "sources": sources.total(turns),
        "computed_again": sum(s.again for s in turns),
        "turns_missing_a_node": sum(s.missing for s in turns),
        "puts_failed": phase.failed,
        "gcache_misses": dict(phase.misses),
        "sentences": [*phase.before, *after(phase, turns)],
    }


def _cluster(r: Result) -> dict[str, Any] | None:
    if r.sizes is None:
        return None
    killed = dict(zip(("node", "process", "turn"), r.killed, strict=True)) if r.killed is not None else None
    return {
        "nodes": len(NAMES),
        "memory_bytes": r.sizes.memory,
        "disk_bytes": r.sizes.disk,
        "killed": killed,
        "written": {
            name: r.books.gcache[name] for name in ("pages_out", "bytes_out", "pages_failed", "writes_dropped")
        },
        "read": {name: r.books.gcache[name] for name in ("pages_in", "bytes_in", "tokens")},
        "objects": {name: asdict(holding) for name, holding in r.holdings.items()},
    }


def ratio(ours: float, theirs: float) -> float:
    """Ours over theirs."""
    return ours / max(1e-9, theirs)


def text(r: Result) -> str:
    """The report, for a terminal."""
    parts = [head(r), turns(r), "", *tokens(r), "", *times(r), ""]
    if r.sizes is not None:
        parts += [*cost(r), "", *cluster(r), ""]
    return "\n".join([*parts, *pressure(r), "", *sample(r), "", *verdict(r)])


def head(r: Result) -> str:
    """What ran."""
    alone = "" if r.sizes is not None else "; no cluster: device pools alone"
    return (
        f"mimo-cache demo: {len(r.served)} turns of {r.sessions} sessions, each with the cache and without it\n"
        f"({r.model}; backend {r.settings.backend}{alone})\n"
    )


def turns(r: Result) -> str:
    """One line for each turn, under what was done before it."""
    lines = ["                           prompt tokens, and where they came from          first token"]
    lines.append(
        "turn session what     prompt  device    host  memory    disk computed      cached uncached  ratio   beside"
    )
    for phase in r.phases:
        some = r.phase(phase)
        if r.sizes is not None:
            lines += ["", f"{phase.title}.", *_wrapped(phase.before)]
        lines += [_turn(s) for s in some]
        if r.sizes is not None:
            lines += _wrapped(after(phase, some))
    return "\n".join(lines)


def _wrapped(sentences: list[str]) -> list[str]:
    return textwrap.wrap(" ".join(sentences), 108, initial_indent="  ", subsequent_indent="  ")


def _turn(s: Served) -> str:
    t = s.sources
    tier = "".join(f"{n:>8,}" for n in (t.device, t.host, t.gcache_memory, t.gcache_disk))
    return (
        f"{s.number:>4}{s.session:>8} {s.kind:<8}{s.prompt:>7,}{tier}{t.computed:>9,}"
        f"{1000 * s.cached:>9,.0f} ms{1000 * s.plain:>6,.0f} ms{ratio(s.cached, s.plain):>7.2f}"
        + (f"   {s.beside} more" if s.beside else "")
    )


def after(phase: Phase, turns: list[Served]) -> list[str]:
    """What came of a phase, in sentences."""
    tokens = sources.total(turns)
    came = [f"{n:,} from {REUSED[name]}" for name, n in tokens.items() if name != "computed" and n]
    out = [
        f"Of {sum(tokens.values()):,} prompt tokens: {'; '.join([*came, ''])}{tokens['computed']:,} computed.",
    ]
    again = sum(s.again for s in turns)
    if again:
        out.append(f"Of those computed, {again:,} had been served before.")
    missing = sum(s.missing for s in turns)
    if missing:
        out.append(f"In {missing} of {len(turns)} turns pages of the dead node were missing.")
    if phase.failed:
        out.append(f"{phase.failed:,} puts of objects did not reach a node that took them.")
    if phase.left:
        out.append(f"{phase.left:,} prefixes still waited to be written when the engine was closed.")
    if phase.misses:
        misses = ", ".join(f"{cause} {n:,}" for cause, n in sorted(phase.misses.items()))
        out.append(f"GCache's misses by cause: {misses}.")
    return out


def tokens(r: Result) -> list[str]:
    """Where prompt tokens came from."""

    def share(n: int) -> str:
        return f"{n:>11,}  {100 * n / max(1, r.prompt_tokens):5.1f} %"

    found = sources.total(r.served)
    computed = found.pop("computed")
    out = ["Where the prompt tokens came from", f"  prompt tokens         {share(r.prompt_tokens)}"]
    out += [f"  {REUSED[name]:<22}{share(n)}" for name, n in found.items() if n or name == "device"]
    out.append(f"  computed              {share(computed)}   of which")
    return out + [f"    {cause:<20}{share(r.misses[cause])}   {why}" for cause, why in CAUSES.items()]


def times(r: Result) -> list[str]:
    """Time to the first token."""
    out = ["Time to the first token, median", "                                     cached    uncached   ratio"]
    for name, least in (("all turns", 0.0), (f"turns with {MOSTLY:.0%} reused", MOSTLY)):
        count, cached, plain = r.times(least)
        if count:
            label = f"{name} ({count})"
            out.append(f"  {label:<32}{1000 * cached:>6,.0f} ms{1000 * plain:>9,.0f} ms{ratio(cached, plain):>8.2f}")
    return out


def cost(r: Result) -> list[str]:
    """Time to the first token by source, and how much of the copies layers waited for."""
    out: list[str] = []
    for words, again in ((f"turns with {MOSTLY:.0%} reused", False), ("questions asked again", True)):
        found = sources.by_source(r.served, again)
        device = found.get("device")
        if found:
            out.append(f"Time to the first token by source, median over {words} that arrived alone")
            more = "  beside device" if again else ""
            out.append(f"  {'most of it from':<24}turns  prompt  computed    cached  uncached   ratio{more}")
        for name, t in found.items():
            beside = f"{ratio(t.cached, device.cached):>14.2f}" if again and device is not None else ""
            out.append(
                f"  {REUSED[name]:<24}{t.turns:>5}{t.prompt:>8,.0f}{t.computed:>10,.0f}{1000 * t.cached:>7,.0f} ms"
                f"{1000 * t.plain:>7,.0f} ms{ratio(t.cached, t.plain):>8.2f}{beside}"
            )
    lap = _overlap(r)
    if lap["waited_share"] is not None:
        out += textwrap.wrap(
            f"Overlap: {r.books.tally.fetched:,} tokens came up from host memory, those from GCache among them. Copy "
            f"threads worked {lap['copied_seconds']:.4f} s on them, layers waited {lap['waited_seconds']:.4f} s: with "
            "pages as small as these mostly for threads to wake. `mimo-cache bench tiers` measures it at real sizes.",
            108,
            subsequent_indent="  ",
        )
    return out


def cluster(r: Result) -> list[str]:
    """What nodes hold at the end."""
    out = ["GCache's nodes at the end"]
    for name in NAMES:
        h = r.holdings.get(name)
        if h is None:
            out.append(f"  {name}: dead")
            continue
        out.append(
            f"  {name}: {h.memory:,} objects in memory, {h.disk:,} on disk; since its start {h.demoted:,} went down to "
            f"disk and {h.promoted:,} came back up"
        )
    g = r.books.gcache
    out.append(
        f"  engines wrote {g['pages_out']:,} objects ({g['bytes_out'] / 1e6:.1f} MB; {g['pages_failed']:,} more did "
        f"not reach a node) and read {g['pages_in']:,} ({g['bytes_in'] / 1e6:.1f} MB)"
    )
    return out


def pressure(r: Result) -> list[str]:
    """What the pools did, and what the cache cost."""
    b, t = r.books, r.books.tally
    assert b.stats is not None
    return [
        "Pressure",
        f"  the full pool has {b.stats.full.total:,} pages of {r.page} tokens, the SWA pool {b.stats.swa.total:,}",
        f"  evicted: {b.full_evicted:,} full pages, {b.checkpoints_evicted:,} checkpoints; "
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
