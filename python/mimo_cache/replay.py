"""`mimo-cache replay`: what a cache of a given size would have hit on a trace.

The work is done in Rust, by the same core that serves (`mimo_cache._core.replay`); this file reads the arguments,
shows progress, searches for the best split of the bytes, and prints.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from mimo_cache import _core

_COARSE = (0.05, 0.1, 0.2, 0.35, 0.55, 0.75)
_CAUSES = {
    "window": "full KV there, window gone",
    "last_token": "cached, but the last page is computed again: one token must be left",
    "evicted": "cached once, evicted",
    "in_flight": "another sequence was computing it",
    "capacity": "prompt larger than the pool",
    "never_seen": "never seen, or long forgotten",
}

Progress = Callable[[int, int, int, int], None]


def replay(trace: str | os.PathLike[str], **options: Any) -> dict[str, Any]:
    """Replays `trace` and returns the numbers that `mimo-cache replay --json` prints.

    Options: `model` (a preset), `capacity` (`"2M"` tokens of the full pool, `"40GiB"`, `"1%"`), `swa_share` (part of
    the bytes for SWA pages), `split` (`"fixed"`, or `"adaptive"`: that share is only the start), `split_chunks`
    (chunks to aim at), `retention`, `policy`, `page_size`, `chunk` (tokens), `seed`, `progress(done, total,
    prompt_tokens, hit_tokens)`. Raises `TraceError` with the line, `InvalidArgument`, or `OSError`.
    """
    return _core.replay(trace, **options)


def best_split(
    trace: str | os.PathLike[str], refine: int = 2, on_try: Callable[[float, float], None] | None = None, **options: Any
) -> dict[str, Any]:
    """The replay with the SWA share that hits most, found by trying.

    A coarse row of shares first, then `refine` rounds of halving the distance to the neighbours of the best. The result
    also has `tried`, a list of `{"swa_share", "token_hit_rate"}` in order of share. `on_try(share, rate)` hears of
    each. A share with which the capacity cannot work (a pool of no use) is passed over. A model with one group has no
    split.
    """
    results: dict[float, dict[str, Any]] = {}
    refused: dict[float, _core.InvalidArgument] = {}

    def attempt(share: float) -> None:
        if share in results or share in refused:
            return
        try:
            results[share] = replay(trace, swa_share=share, **options)
        except _core.InvalidArgument as error:
            refused[share] = error
            return
        if on_try is not None:
            on_try(share, results[share]["token_hit_rate"])

    for share in _COARSE:
        attempt(share)
    if not results:
        # No split works: a model with one group, or a capacity that the default share explains best.
        return {**replay(trace, swa_share=None, **options), "tried": []}
    for _ in range(refine):
        best = max(results, key=lambda share: results[share]["token_hit_rate"])
        known = sorted([*results, *refused])
        at = known.index(best)
        for neighbour in (known[at - 1] if at else 0.0, known[at + 1] if at + 1 < len(known) else 1.0):
            attempt(round((best + neighbour) / 2, 6))
    best = max(results, key=lambda share: results[share]["token_hit_rate"])
    tried = [{"swa_share": s, "token_hit_rate": r["token_hit_rate"]} for s, r in sorted(results.items())]
    return {**results[best], "tried": tried}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `mimo-cache replay`."""
    parser.description = (
        "Sends every request of a trace through the cache and reports the token hit rate: usable prompt tokens over "
        "prompt tokens in full blocks."
    )
    parser.set_defaults(run=command)
    parser.add_argument("trace", help="JSON lines, plain or gzip; the format is in docs/replay.md")
    parser.add_argument(
        "--model",
        default="mimo-v2.5-pro",
        metavar="PRESET",
        help="whose bytes and window: mimo-v2-flash, mimo-v2.5, mimo-v2.5-pro or uniform (%(default)s)",
    )
    parser.add_argument(
        "--capacity",
        default="1%",
        metavar="SPEC",
        help="2M: tokens of the full pool; 40GiB: bytes of both pools with MTP heads and hidden states; 1%%: share of "
        "the trunk's bytes for all unique tokens of the trace (%(default)s)",
    )
    split = parser.add_mutually_exclusive_group()
    split.add_argument("--swa-share", type=float, metavar="S", help="part of the bytes for SWA pages, 0 to 1 (0.1)")
    parser.add_argument(
        "--split",
        choices=("fixed", "adaptive"),
        default="fixed",
        help="adaptive: the SWA share is only the start, chunks change between the pools (%(default)s)",
    )
    split.add_argument("--best-split", action="store_true", help="try several SWA shares and take the best")
    parser.add_argument(
        "--retention",
        default="prompt_end+branch",
        metavar="RULES",
        help="which boundaries stay resumable: prompt_end, seq_end, branch, sup<n>, stride<k>, dense<k>:<until>, "
        "joined by + (%(default)s)",
    )
    parser.add_argument("--policy", default="lru", help="order of eviction (%(default)s)")
    parser.add_argument("--page-size", type=int, default=64, metavar="N", help="tokens per page (%(default)s)")
    parser.add_argument("--chunk", type=int, default=8192, metavar="N", help="tokens per prefill chunk (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the cache's hash tables (%(default)s)")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line of stdout")


def command(args: argparse.Namespace) -> int:
    """Runs `mimo-cache replay`."""
    bar = _Bar(sys.stderr)
    options: dict[str, Any] = {
        "model": args.model,
        "capacity": args.capacity,
        "split": args.split,
        "retention": args.retention,
        "policy": args.policy,
        "page_size": args.page_size,
        "chunk": args.chunk,
        "seed": args.seed,
        "progress": bar,
    }

    def say_try(share: float, rate: float) -> None:
        bar.clear()
        _log(f"SWA share {share:g}: token hit rate {rate:.2%}")

    try:
        if args.best_split and args.split == "adaptive":
            raise _core.InvalidArgument("--best-split is for --split fixed: an adaptive split finds its own")
        if args.best_split:
            result = best_split(args.trace, on_try=say_try, **options)
        else:
            result = replay(args.trace, swa_share=args.swa_share, **options)
    finally:
        bar.clear()
    promised = result["requests_promised"]
    if promised not in (None, result["requests"]):
        _log(f"the header speaks of {promised:,} requests, the file has {result['requests']:,}")
    words = ("trace", "model", "capacity", "retention", "policy", "page_size", "chunk", "seed")
    result |= {word: getattr(args, word) for word in words}
    print(json.dumps(result) if args.json else _table(result))
    return 0


def _log(line: str) -> None:
    print(f"mimo-cache: {line}", file=sys.stderr, flush=True)


class _Bar:
    """Progress on a terminal: one line that is written again; elsewhere: a line every ten seconds."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._tty = stream.isatty()
        self._next = time.monotonic() + (0 if self._tty else 10)

    def __call__(self, done: int, total: int, prompt_tokens: int, hit_tokens: int) -> None:
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + (0.2 if self._tty else 10)
        rate = hit_tokens / prompt_tokens if prompt_tokens else 0.0
        text = f"{done:,} of {total:,} requests, token hit rate so far {rate:.2%}"
        if self._tty:
            width = 24
            full = width * done // total
            self._stream.write(f"\r[{'#' * full}{'.' * (width - full)}] {text}\x1b[K")
            self._stream.flush()
        else:
            _log(text)

    def clear(self) -> None:
        """Takes the bar off the terminal, so that a line can be written."""
        if self._tty:
            self._stream.write("\r\x1b[K")
            self._stream.flush()


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} TiB"


def _table(result: dict[str, Any]) -> str:
    total = result["prompt_tokens"]
    tokens = result["page_size"]
    rows = [
        ("requests", f"{result['requests']:,}"),
        ("prompt tokens", f"{total:,} in full blocks, {result['partial_tokens']:,} after them (not counted)"),
        ("full pool", f"{result['full_pages']:,} pages, {_size(result['full_bytes'])}"),
        ("SWA pool", f"{result['swa_pages']:,} pages, {_size(result['swa_bytes'])}, {result['swa_bytes_share']:.1%}"),
        ("scratch", f"{result['scratch_pages']:,} SWA pages, {_size(result['scratch_bytes'])}, outside the capacity"),
        ("page", f"{tokens} tokens"),
        ("ceiling", f"{result['ceiling']:.2%} (infinite cache)"),
        ("full-KV hits", f"{result['full_kv_hit_rate']:.2%}"),
        ("token hit rate", f"{result['token_hit_rate']:.2%}"),
    ]
    if result["split"] is not None:
        s = result["split"]
        rows.append(("SWA share", f"{s['start']:.1%} at first, {s['mean']:.1%} on average, {s['end']:.1%} at last"))
        pages = f"{s['chunk_full_pages']} full or {s['chunk_swa_pages']} SWA pages"
        rows.append(("chunks", f"{s['chunks']:,} of {pages}; {s['to_full']:,} went to full, {s['to_swa']:,} to SWA"))
        copies = f"{s['full_relocated']:,} full and {s['swa_relocated']:,} SWA pages copied"
        rows.append(("relocation", copies))
    for cause, count in result["misses"].items():
        rows.append((f"miss {cause}", f"{count / total if total else 0:.2%} ({_CAUSES.get(cause, cause)})"))
    rows.append(("speed", f"{result['requests_per_second']:,.0f} requests/s, {result['seconds']:.1f} s"))
    return "\n".join(f"{name:<18}{value}" for name, value in rows)
