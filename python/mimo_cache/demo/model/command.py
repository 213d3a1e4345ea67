"""The command line of the demo that runs a model."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

from mimo_cache._files import check_writable
from mimo_cache._parser import Parser
from mimo_cache.gcache.signals import exits_in_order
from mimo_cache.models.errors import need

from ..progress import Progress

SABOTAGE = ("kv", "mtp")
BACKENDS = ("reference", "torch")


def main(argv: Sequence[str]) -> int:
    """Runs `mimo-cache demo` with these arguments; the exit code is 0 only when both runs were identical."""
    arguments = parser()
    options = arguments.parse_args(argv)
    if options.sabotage is not None and options.backend != "reference":
        arguments.error("--sabotage compares bits, so it needs the backend reference")
    if options.html is not None and find_spec("matplotlib") is None:
        print("mimo-cache demo: --html needs matplotlib; pip install 'mimo-cache[report]' brings it", file=sys.stderr)
        return 2
    if options.html is not None:
        check_writable(options.html)
    for library in ("torch", "safetensors.torch", "tokenizers"):
        need(library)
    from . import report  # noqa: PLC0415  optional
    from .run import Settings, run  # noqa: PLC0415

    settings = Settings(
        options.model,
        options.backend,
        options.turns,
        options.seed,
        options.sabotage,
        cluster=not options.no_cluster,
    )
    with exits_in_order():
        result = run(settings, Progress(sys.stderr.isatty()))
    if options.html is not None:
        from . import html  # noqa: PLC0415  optional

        options.html.write_text(html.page(result), encoding="utf-8")
        print(f"wrote {options.html}", file=sys.stderr)
    print(report.text(result), file=sys.stderr if options.json else sys.stdout)
    if options.json:
        print(report.json_line(result))
    return 0 if result.valid else 1


def parser() -> argparse.ArgumentParser:
    """The command line."""

    def whole(name: str, least: int, most: int) -> Callable[[str], int]:
        def parse(text: str) -> int:
            value = int(text)
            if not least <= value <= most:
                raise argparse.ArgumentTypeError(f"{name} is {value}, allowed is {least} to {most}")
            return value

        parse.__name__ = "int"  # what the parser calls it when it is no number
        return parse

    p = Parser(
        prog="mimo-cache demo",
        allow_abbrev=False,  # --canary is looked for before this parser sees it
        description="A model answers agent sessions, every turn with the cache and without it, and both are compared. "
        "Below the cache are host memory and three GCache nodes, which are dropped, killed and started again.",
        epilog="Exit code 0 only when both are identical. The canary demo has options of its own: "
        "mimo-cache demo --canary --help.",
    )
    p.add_argument("--turns", type=whole("turns", 1, 100_000), default=60, help="turns of all sessions (default 60)")
    p.add_argument("--seed", type=whole("seed", 0, 2**63), default=0, help="seed of the sessions (default 0)")
    p.add_argument(
        "--backend",
        choices=BACKENDS,
        default="reference",
        help="reference (default): bits are compared; torch: tokens are",
    )
    p.add_argument("--model", default="tiny", help='a hub checkpoint\'s directory, or "tiny", which comes along')
    p.add_argument("--json", action="store_true", help="end stdout with one JSON object; the report goes to stderr")
    p.add_argument(
        "--sabotage",
        choices=SABOTAGE,
        help="self-check: damage a cached row in the middle of the run, which must then not be identical",
    )
    p.add_argument("--no-cluster", action="store_true", help="the device's pools alone, without host memory and GCache")
    p.add_argument("--html", type=Path, metavar="FILE", help="also write a page with plots (needs matplotlib)")
    p.add_argument(
        "--canary",
        action="store_true",
        help="run the demo without a model instead, where every page handed out is checked",
    )
    return p
