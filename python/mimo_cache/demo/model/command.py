"""The command line of the demo that runs a model."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from mimo_cache._parser import Parser
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
    for library in ("torch", "safetensors.torch", "tokenizers"):
        need(library)
    from . import report  # noqa: PLC0415  optional
    from .run import Settings, run  # noqa: PLC0415

    settings = Settings(options.model, options.backend, options.turns, options.seed, options.sabotage)
    result = run(settings, Progress(sys.stderr.isatty()))
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
        description="A model answers agent sessions, every turn with the cache and without it, and both are compared.",
        epilog="Exit code 0 only when both are identical. The canary demo has options of its own: "
        "mimo-cache demo --canary --help.",
    )
    p.add_argument("--turns", type=whole("turns", 1, 100_000), default=48, help="turns of all sessions (default 48)")
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
    p.add_argument(
        "--canary",
        action="store_true",
        help="run the demo without a model instead, where every page handed out is checked",
    )
    return p
