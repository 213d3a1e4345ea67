"""The command line of the canary demo: options, progress, what goes to stdout and what to stderr."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from mimo_cache._files import check_writable
from mimo_cache._parser import Parser

from . import report
from .progress import Progress
from .run import run

SABOTAGE = ("full", "swa", "mtp")


def main(argv: Sequence[str]) -> int:
    """Runs `mimo-cache demo --canary` with these arguments; the exit code is 0 only when everything was verified."""
    options = parser().parse_args(argv)
    if options.html is not None and find_spec("matplotlib") is None:
        print(
            "mimo-cache demo --canary: --html needs matplotlib; pip install 'mimo-cache[report]' brings it",
            file=sys.stderr,
        )
        return 2
    if options.html is not None:
        check_writable(options.html)
    result = run(options.seed, options.scale, options.sabotage, progress=Progress(sys.stderr.isatty()))
    if options.html is not None:
        from . import html  # noqa: PLC0415 - matplotlib is optional

        options.html.write_text(html.page(result), encoding="utf-8")
        print(f"wrote {options.html}", file=sys.stderr)
    print(report.text(result), file=sys.stderr if options.json else sys.stdout)
    if options.json:
        print(report.json_line(result))
    return 0 if result.verified else 1


def parser() -> argparse.ArgumentParser:
    """The command line."""

    def scale(text: str) -> float:
        value = float(text)
        if not 0 < value <= 1:
            raise argparse.ArgumentTypeError(f"scale is {text}, allowed is a number above 0 and at most 1")
        return value

    def seed(text: str) -> int:
        value = int(text)
        if value < 0:
            raise argparse.ArgumentTypeError(f"seed is {text}, allowed is 0 or more")
        return value

    p = Parser(
        prog="mimo-cache demo --canary",
        description="Serve agent sessions through the cache and check every page it hands out.",
        epilog="Exit code 0 only when everything was verified.",
    )
    p.add_argument("--seed", type=seed, default=0, help="seed of the workload and of the engine's chances (default 0)")
    p.add_argument(
        "--scale", type=scale, default=1.0, help="share of the sessions and of the pools, up to 1 (default 1)"
    )
    p.add_argument("--json", action="store_true", help="end stdout with one JSON object; the report goes to stderr")
    p.add_argument("--html", type=Path, metavar="FILE", help="also write a page with plots (needs matplotlib)")
    p.add_argument(
        "--sabotage",
        choices=SABOTAGE,
        help="self-check: overwrite one row of this kind in the middle of the run; the run must not verify",
    )
    return p
