"""`mimo-cache bench NAME`: measures this build on this machine.

`tree`, `model`, `gcache`, `disk` and `tiers` run the scenarios that `docs/performance.md` describes. The contract of
the output is in `docs/cli.md`; the exit code is 0 when every figure that has a floor was measured, whatever it came to,
and 1 when one could not be.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from mimo_cache._files import check_writable
from mimo_cache._parser import Parser
from mimo_cache.bench import plot, report, tree
from mimo_cache.bench.timing import Figure
from mimo_cache.models.errors import need

__all__ = ["main"]

GCACHE_PARTS = ("transfer", "latency", "exists", "sizes", "restart", "idle")
"""Parts of `bench gcache`, whose module needs Linux."""
DISK_PARTS = ("read", "write", "sizes", "recovery", "segments", "wear", "demote", "promotion", "quiet")
"""Parts of `bench disk`, whose module needs Linux."""
TIERS_PARTS = ("copy", "overlap", "gcache", "ttft", "planner")
"""Parts of `bench tiers`, whose modules need Linux."""
TIERS_TORCH = ("ttft", "planner")
"""Of them, those that need torch."""
MODEL_PARTS = ("ttft", "bookkeeping", "decode")
"""Parts of `bench model`, whose module needs torch."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command with the arguments after `bench`, and returns its exit code."""
    args = _parser().parse_args(argv)
    figures, parts = args.measure(args)
    checks = report.checks(figures, parts)
    print(report.text(figures, checks))
    if args.plot is not None:
        args.plot.write_text(args.draw(figures))
        print(f"plot: {args.plot}", file=sys.stderr)
    missing = report.missing(figures, parts)
    for name in missing:
        print(f"mimo-cache bench: {name} was not measured", file=sys.stderr)
    if args.json:
        print(json.dumps({"figures": [f.as_json() for f in figures], "checks": checks}))
    return 1 if missing else 0


def _parser() -> argparse.ArgumentParser:
    top = Parser(prog="mimo-cache bench", description="Measure the cache against its peers.")
    names = top.add_subparsers(dest="name", required=True, metavar="NAME", parser_class=Parser)
    one = names.add_parser("tree", help="the cache core beside the prefix tree of SGLang")
    one.add_argument("--no-peer", action="store_true", help="compare with recorded figures, do not run the peer")
    one.add_argument("--plot", type=Path, metavar="FILE", help="write the growth from 1 M to 100 M tokens as SVG")
    _common(one, tree.PARTS)
    one.set_defaults(measure=_tree, draw=plot.growth)
    two = names.add_parser("model", help="a model with and without the cache, and beside transformers")
    two.add_argument("--model", default="tiny", help='a hub checkpoint\'s directory, or "tiny", which comes along')
    _common(two, MODEL_PARTS)
    two.set_defaults(measure=_model, plot=None)
    three = names.add_parser("gcache", help="a GCache node beside raw TCP, grpcio, Redis, Mooncake and memcpy")
    three.add_argument("--no-peer", action="store_true", help="do not run the peers")
    _common(three, GCACHE_PARTS)
    three.set_defaults(measure=_gcache, plot=None)
    four = names.add_parser("disk", help="the disk tier beside fio, and a node with a disk")
    four.add_argument("--dir", type=Path, metavar="DIR", help="directory on the disk to measure (the temporary one)")
    _common(four, DISK_PARTS, most_scale=10)
    four.set_defaults(measure=_disk, plot=None)
    five = names.add_parser("tiers", help="copies between the tiers, first tokens by tier, and the planner")
    five.add_argument("--plot", type=Path, metavar="FILE", help="write the time to the first token by tier as SVG")
    _common(five, TIERS_PARTS)
    five.set_defaults(measure=_tiers, draw=plot.first_tokens)
    return top


def _common(parser: argparse.ArgumentParser, parts: Sequence[str], most_scale: float = 1) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line of stdout")
    parser.add_argument("--runs", type=_runs, default=5, help="runs per figure, of which the median counts (5)")
    scale = partial(_scale, most_scale)
    parser.add_argument("--scale", type=scale, default=1.0, help="below 1: smaller scenarios, for a quick look (1.0)")
    parser.add_argument("--only", nargs="+", choices=parts, metavar="PART", help=f"some of {', '.join(parts)}")


def _tree(args: argparse.Namespace) -> tuple[list[Figure], tuple[str, ...]]:
    if args.plot is not None:
        check_writable(args.plot)
    options = tree.Options(
        runs=args.runs, scale=args.scale, parts=tuple(args.only or tree.PARTS), peer=not args.no_peer
    )
    return tree.run(options), options.parts


def _model(args: argparse.Namespace) -> tuple[list[Figure], tuple[str, ...]]:
    for library in ("torch", "safetensors.torch", "tokenizers"):
        need(library)
    from mimo_cache.bench import model  # noqa: PLC0415  optional

    options = model.Options(args.runs, args.scale, tuple(args.only or MODEL_PARTS), args.model)
    return model.run(options), options.parts


def _gcache(args: argparse.Namespace) -> tuple[list[Figure], tuple[str, ...]]:
    from mimo_cache.bench import gcache  # noqa: PLC0415  needs the node's programs

    options = gcache.Options(args.runs, args.scale, tuple(args.only or GCACHE_PARTS), not args.no_peer)
    return gcache.run(options), options.parts


def _disk(args: argparse.Namespace) -> tuple[list[Figure], tuple[str, ...]]:
    from mimo_cache.bench import disk  # noqa: PLC0415  needs the node's programs

    options = disk.Options(args.runs, args.scale, tuple(args.only or DISK_PARTS), args.dir)
    return disk.run(options), options.parts


def _tiers(args: argparse.Namespace) -> tuple[list[Figure], tuple[str, ...]]:
    parts = tuple(args.only or TIERS_PARTS)
    if set(parts) & set(TIERS_TORCH):
        for library in ("torch", "safetensors.torch", "tokenizers"):
            need(library)
    if args.plot is not None:
        check_writable(args.plot)
    from mimo_cache.bench import tiers  # noqa: PLC0415  needs Linux

    options = tiers.Options(args.runs, args.scale, parts)
    # Floors name the bench: others have parts of the same name.
    return tiers.run(options), tuple(f"tiers {part}" for part in parts)


def _runs(text: str) -> int:
    value = int(text)
    if not 1 <= value <= 100:
        raise argparse.ArgumentTypeError(f"{value}, allowed is 1 to 100")
    return value


def _scale(most: float, text: str) -> float:
    value = float(text)
    if not 0 < value <= most:
        raise argparse.ArgumentTypeError(f"{value}, allowed is more than 0 and at most {most:g}")
    return value
