"""The command `mimo-cache trace convert`."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from mimo_cache._core import InvalidArgument
from mimo_cache._files import check_writable
from mimo_cache.replay.options import log

from .base import Options
from .formats import FORMATS
from .write import as_json, convert


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `mimo-cache trace convert`."""
    parser.set_defaults(run=command)
    parser.description = "Writes a trace that `mimo-cache replay` reads. What is read of each format: docs/replay.md."
    parser.add_argument("--from", dest="kind", required=True, metavar="FORMAT", help=", ".join(FORMATS))
    parser.add_argument("input", type=Path, help="file, plain or gzip; for kv-cache-tester also a folder")
    parser.add_argument("output", help="trace to write, compressed when it ends with .gz; - is stdout")
    parser.add_argument("--block-size", type=int, metavar="N", help="tokens per block (mooncake 512, others 64)")
    parser.add_argument("--skip-bad", action="store_true", help="count lines that cannot be used, and go on")
    parser.add_argument("--sort", action="store_true", help="hold all requests in memory and sort them by time")
    parser.add_argument("--seed", type=int, default=0, help="kv-cache-tester: seed of when sessions start (0)")
    parser.add_argument(
        "--spread",
        type=float,
        default=3600.0,
        metavar="SECONDS",
        help="kv-cache-tester: sessions start within this time (3600)",
    )
    parser.add_argument(
        "--share-tools",
        action="store_true",
        help="kv-cache-tester: sessions with equally many tool tokens share the blocks of their tools",
    )
    parser.add_argument(
        "--gap",
        type=float,
        default=1.0,
        metavar="SECONDS",
        help="events: a request is over this long after a block (1)",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line of stdout")


def command(args: argparse.Namespace) -> int:
    """Runs `mimo-cache trace convert`."""
    if args.kind not in FORMATS:
        raise InvalidArgument(f"format is {args.kind[:80]!r}, allowed is one of {', '.join(FORMATS)}")
    out = None if args.output == "-" else Path(args.output)
    if out is None and args.json:
        raise InvalidArgument("--json and - both want stdout; name a file")
    if out is not None:
        if out.exists() and out.resolve() == args.input.resolve():
            raise InvalidArgument(f"output is {args.output!r}, the input; allowed is another file")
        check_writable(out)
    options = Options(
        block_size=args.block_size,
        skip_bad=args.skip_bad,
        sort=args.sort,
        seed=args.seed,
        spread=args.spread,
        share_tools=args.share_tools,
        gap=args.gap,
    )
    report = convert(args.kind, args.input, out, options)
    if report.skipped_lines:
        log(f"{report.skipped_lines:,} lines were passed over, the first of them: {report.first_skipped}")
    if args.json:
        print(json.dumps(as_json(report)))
    else:
        text = f"{report.requests:,} requests, {report.blocks:,} distinct blocks of {report.block_size} tokens"
        print(text, file=sys.stderr if out is None else sys.stdout)
    return 0
