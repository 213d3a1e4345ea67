"""`mimo-cache bench NAME`: measures this build on this machine.

`tree` runs the scenarios that `docs/performance.md` describes. The contract of the output is in `docs/cli.md`; the exit
code is 0 when every figure that has a floor was measured, whatever it came to, and 1 when one could not be.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from mimo_cache._files import check_writable
from mimo_cache._parser import Parser
from mimo_cache.bench import plot, report, tree

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command with the arguments after `bench`, and returns its exit code."""
    parser = Parser(prog="mimo-cache bench", description="Measure the cache against its peers.")
    parser.add_argument("name", choices=["tree"], metavar="NAME", help="what to measure: tree")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line of stdout")
    parser.add_argument("--runs", type=_runs, default=5, help="runs per figure, of which the median counts (5)")
    parser.add_argument("--scale", type=_scale, default=1.0, help="below 1: smaller scenarios, for a quick look (1.0)")
    parser.add_argument(
        "--only", nargs="+", choices=tree.PARTS, metavar="PART", help=f"some of {', '.join(tree.PARTS)}"
    )
    parser.add_argument("--no-peer", action="store_true", help="compare with recorded figures, do not run the peer")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="write the growth from 1 M to 100 M tokens as SVG")
    args = parser.parse_args(argv)
    if args.plot is not None:
        check_writable(args.plot)
    options = tree.Options(
        runs=args.runs, scale=args.scale, parts=tuple(args.only or tree.PARTS), peer=not args.no_peer
    )
    figures = tree.run(options)
    checks = report.checks(figures, options.parts)
    print(report.text(figures, checks))
    if args.plot is not None:
        args.plot.write_text(plot.growth(figures))
        print(f"growth: {args.plot}", file=sys.stderr)
    missing = report.missing(figures, options.parts)
    for name in missing:
        print(f"mimo-cache bench: {name} was not measured", file=sys.stderr)
    if args.json:
        print(json.dumps({"figures": [f.as_json() for f in figures], "checks": checks}))
    return 1 if missing else 0


def _runs(text: str) -> int:
    value = int(text)
    if not 1 <= value <= 100:
        raise argparse.ArgumentTypeError(f"{value}, allowed is 1 to 100")
    return value


def _scale(text: str) -> float:
    value = float(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{value}, allowed is more than 0 and at most 1")
    return value
