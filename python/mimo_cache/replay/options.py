"""Arguments that every command on traces has, and how it says what goes on."""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

from mimo_cache import _core

WORDS = ("model", "capacity", "retention", "policy", "page_size", "chunk", "seed", "prefill_rate", "decode_rate")


def add_cache_arguments(parser: argparse.ArgumentParser) -> None:
    """The cache of a replay: model, capacity, rules."""
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
    parser.add_argument(
        "--retention",
        default=_core.DEFAULT_RETENTION,
        metavar="RULES",
        help="which boundaries stay resumable: prompt_end, seq_end, branch, sup<n>, stride<k>, dense<k>:<until>, "
        "joined by + (%(default)s)",
    )
    parser.add_argument(
        "--policy", default=_core.DEFAULT_POLICY, help=f"order of eviction: {', '.join(_core.POLICIES)} (%(default)s)"
    )
    parser.add_argument("--page-size", type=int, default=64, metavar="N", help="tokens per page (%(default)s)")
    parser.add_argument("--chunk", type=int, default=8192, metavar="N", help="tokens per prefill chunk (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the cache's hash tables (%(default)s)")
    parser.add_argument(
        "--prefill-rate",
        type=float,
        metavar="R",
        help="requests overlap: prompt tokens computed per second, over all requests (one after another, at once)",
    )
    parser.add_argument(
        "--decode-rate",
        type=float,
        default=50.0,
        metavar="R",
        help="with --prefill-rate: output tokens per second of a request (%(default)s)",
    )
    parser.add_argument("--skip-bad", action="store_true", help="count lines that cannot be used, and go on")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line of stdout")


def cache_options(args: argparse.Namespace) -> dict[str, Any]:
    """The options of `replay` from the arguments, without the split."""
    return {word: getattr(args, word) for word in (*WORDS, "skip_bad")}


def log(line: str) -> None:
    """One line on stderr."""
    print(f"mimo-cache: {line}", file=sys.stderr, flush=True)


def warn_of(result: dict[str, Any]) -> None:
    """Says what was passed over, and whether the file is shorter than its header says."""
    promised = result["requests_promised"]
    if promised not in (None, result["requests"]):
        log(f"the header speaks of {promised:,} requests, the file has {result['requests']:,}")
    if result["skipped_lines"]:
        log(f"{result['skipped_lines']:,} lines were passed over, the first of them: {result['skipped_first'][0]}")


class Bar:
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
            log(text)

    def clear(self) -> None:
        """Takes the bar off the terminal, so that a line can be written."""
        if self._tty:
            self._stream.write("\r\x1b[K")
            self._stream.flush()


def size(count: float) -> str:
    """Bytes in powers of 1024."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} TiB"
