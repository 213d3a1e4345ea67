"""Why a request of a trace hit what it hit: `mimo-cache explain`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from mimo_cache._core import InvalidArgument

from .options import WORDS, Bar, add_cache_arguments, cache_options
from .runs import explain

_LISTED = 6
"""Stretches and checkpoints of a story that are told one by one."""

_WHY = {
    "full_pool": "needed room in the full pool",
    "swa_pool": "needed room in the SWA pool",
    "tenant_share": "needed room in its tenant's share",
    "superseded": "left a newer end of the conversation, which took its place",
    "resumed": "was resumed",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `mimo-cache explain`."""
    parser.set_defaults(run=command)
    parser.description = (
        "Replays a trace up to a request and tells where its prompt was found, what was missing, and which requests "
        "pushed that out."
    )
    parser.add_argument("trace", help="JSON lines, plain or gzip; the format is in docs/replay.md")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--request", type=int, metavar="N", help="the request with this number in the trace, from 1")
    which.add_argument("--session", type=int, metavar="S", help="all requests of this session")
    add_cache_arguments(parser)
    parser.add_argument("--swa-share", type=float, metavar="S", help="part of the bytes for SWA pages, 0 to 1 (0.1)")


def command(args: argparse.Namespace) -> int:
    """Runs `mimo-cache explain`."""
    for word in ("request", "session"):
        if (getattr(args, word) or 0) < 0:
            raise InvalidArgument(f"{word} is {getattr(args, word)}, allowed is a number that is not negative")
    bar = Bar(sys.stderr)
    options = {**cache_options(args), "swa_share": args.swa_share, "progress": bar}
    try:
        stories = explain(args.trace, args.request, args.session, **options)
    finally:
        bar.clear()
    if args.json:
        print(json.dumps({"stories": stories, "trace": args.trace, **{word: getattr(args, word) for word in WORDS}}))
        return 0
    if args.session is not None and len(stories) > 1:
        print(summary(stories), end="\n\n")
    print("\n\n".join(text(story) for story in stories))
    return 0


def clock(ms: int) -> str:
    """Milliseconds since the trace's start as hours, minutes and seconds."""
    seconds, ms = divmod(ms, 1000)
    return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}.{ms:03}"


def span(ms: int) -> str:
    """A length of time in the unit that fits."""
    for unit, length in (("days", 86_400_000), ("hours", 3_600_000), ("minutes", 60_000), ("seconds", 1000)):
        if ms >= 2 * length:
            return f"{ms / length:.1f} {unit}"
    return f"{ms:,} ms"


def summary(stories: Sequence[dict[str, Any]]) -> str:
    """One line a request."""
    lines = [f"{'request':>9}{'time':>15}{'prompt':>12}{'usable':>12}{'full KV':>12}  missed most"]
    for s in stories:
        misses = s.get("misses", {})
        cause = max(misses, key=lambda c: misses[c], default="")
        why = f"{cause} {misses[cause]:,}" if cause and misses[cause] else ""
        lines.append(
            f"{s['request']:>9,}{clock(s['t_ms']):>15}{s['prompt_tokens']:>12,}{s.get('usable', 0):>12,}"
            f"{s.get('full_kv_match', 0):>12,}  {why}"
        )
    return "\n".join(lines)


def text(story: dict[str, Any]) -> str:
    """The story in plain sentences."""
    s = story
    session = f" of session {s['session']}" if s["session"] >= 0 else ""
    lines = [f"Request {s['request']:,}{session} at {clock(s['t_ms'])}: {s['prompt_tokens']:,} prompt tokens."]
    if s["before"] is not None:
        lines.append(f"Its session was heard last in {_who(s['before'], s, session=False)}.")
    elif s["session"] >= 0:
        lines.append("It is the first of its session.")
    lines += _seen(s)
    if "usable" not in s:
        lines.append("The full pool has no room for a block of it, so nothing is looked up.")
        return "\n".join(lines)
    lines += _matched(s)
    for part in s["stretches"]:
        if part["cause"] not in ("evicted", "window"):
            lines.append(_stretch(part))
        elif part["cause"] == "window":
            lines.append(_stretch(part))
            lines += _lost(s)
    lines += _evicted(s)
    if s["cut_tokens"]:
        lines.append(f"The last {s['cut_tokens']:,} tokens are more than the full pool can hold.")
    if s["evicted_full"] or s["evicted_checkpoints"]:
        lines.append(
            f"To be served it pushed out {_count(s['evicted_full'], 'full page')} and "
            f"{_count(s['evicted_checkpoints'], 'checkpoint')}."
        )
    return "\n".join(lines)


def _who(who: dict[str, Any], story: dict[str, Any], session: bool = True) -> str:
    ago = story["t_ms"] - who["t_ms"]
    of = (
        f" of session {who['session']}"
        if session and who["session"] >= 0 and who["session"] != story["session"]
        else ""
    )
    own = " of its own session" if session and who["session"] == story["session"] >= 0 else ""
    return f"request {who['request']:,}{of}{own}, {span(ago)} before"


def _tokens(part: dict[str, Any]) -> str:
    return f"Tokens {part['from']:,} to {part['to']:,}"


def _seen(s: dict[str, Any]) -> list[str]:
    lines = []
    for part in s["seen"][:_LISTED]:
        if part["by"] is None:
            lines.append(f"{_tokens(part)} are new in the trace.")
        else:
            lines.append(f"{_tokens(part)} were last part of {_who(part['by'], s)}.")
    if len(s["seen"]) > _LISTED:
        lines.append(f"The rest of the prompt was seen in {len(s['seen']) - _LISTED} more stretches.")
    return lines


def _matched(s: dict[str, Any]) -> list[str]:
    p, q, total = s["full_kv_match"], s["usable"], s["prompt_tokens"]
    share = f"{q / total:.1%}" if total else "nothing"
    lines = [f"The cache has full KV up to {p:,} and can be used up to {q:,} ({share} of the prompt)."]
    kept = next((c for c in s["checkpoints"] if c["boundary"] == q), None)
    if kept is not None:
        lines.append(f"Boundary {q:,} is kept by a {_kinds(kept)} checkpoint of turn {kept['turn']}.")
    return lines


def _kinds(checkpoint: dict[str, Any]) -> str:
    return " and ".join(checkpoint["kinds"]) or "forgotten"


def _stretch(part: dict[str, Any]) -> str:
    count = f"{part['to'] - part['from']:,} tokens"
    words = {
        "window": f"{_tokens(part)}, {count}, have full KV, but no boundary there has its window of SWA KV.",
        "last_token": f"{_tokens(part)} are cached and computed again: one token must be left to compute.",
        "in_flight": f"{_tokens(part)} are being computed by another request.",
        "capacity": f"{_tokens(part)} are more than the full pool can hold.",
        "never_seen": f"{_tokens(part)}, {count}, are not cached: never seen, or so long ago that the cache forgot.",
    }
    return words[part["cause"]]


def _lost(s: dict[str, Any]) -> list[str]:
    lost = s["lost_checkpoints"]
    lines = [f"The {_kinds(c)} checkpoint at {c['boundary']:,} was dropped {_culprit(c, s)}." for c in lost[:_LISTED]]
    if len(lost) > _LISTED:
        lines.append(f"{len(lost) - _LISTED} more checkpoints before them were dropped too.")
    if not lost:
        lines.append(
            "No checkpoint there is remembered: no prompt ended in that stretch, and no rule kept a boundary of it."
        )
    return lines


def _evicted(s: dict[str, Any]) -> list[str]:
    parts = [p for p in s["stretches"] if p["cause"] == "evicted"]
    lines = [
        f"{_tokens(p)}, {p['to'] - p['from']:,} tokens, were cached and evicted {_culprit(p, s)}."
        for p in parts[:_LISTED]
    ]
    if len(parts) > _LISTED:
        rest = sum(p["to"] - p["from"] for p in parts[_LISTED:])
        lines.append(f"{rest:,} tokens more were evicted in {len(parts) - _LISTED} other stretches.")
    return lines


def _culprit(part: dict[str, Any], s: dict[str, Any]) -> str:
    dropped = part["dropped"]
    if dropped is None or dropped["by"] is None:
        return "so long ago that the rest is forgotten"
    return f"when {_who(dropped['by'], s)}, {_WHY[dropped['why']]}"


def _count(number: int, thing: str) -> str:
    """A number of things in words: 1 page, 2 pages."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"
