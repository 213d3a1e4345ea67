"""The command `mimo-cache replay`: one trace, or with `--suite` a folder of them."""

from __future__ import annotations

import argparse
import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mimo_cache._core import InvalidArgument
from mimo_cache._files import check_writable

from . import suite
from .options import WORDS, Bar, add_cache_arguments, cache_options, log, size, warn_of
from .runs import best_split, replay

_CAUSES = {
    "window": "full KV there, window gone",
    "last_token": "cached, but the last page is computed again: one token must be left",
    "evicted": "cached once, evicted",
    "in_flight": "another sequence was computing it",
    "capacity": "prompt larger than the pool",
    "never_seen": "never seen, or long forgotten",
}
_KINDS = {
    "belady": "Belady, exact for one pool",
    "upper_bound": "no cache can hit more: Belady with all bytes for full pages",
    "ceiling": "infinite cache",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `mimo-cache replay`."""
    parser.set_defaults(run=command)
    parser.description = (
        "Sends every request of a trace through the cache and reports the token hit rate: usable prompt tokens over "
        "prompt tokens in full blocks."
    )
    parser.add_argument(
        "trace", nargs="?", help="JSON lines, plain or gzip; the format is in docs/replay.md (not with --suite)"
    )
    add_cache_arguments(parser)
    share = parser.add_mutually_exclusive_group()
    share.add_argument("--swa-share", type=float, metavar="S", help="part of the bytes for SWA pages, 0 to 1 (0.1)")
    share.add_argument("--best-split", action="store_true", help="try several SWA shares and take the best")
    parser.add_argument(
        "--split",
        choices=("fixed", "adaptive"),
        default="fixed",
        help="adaptive: the SWA share is only the start, chunks of memory go to the pool that needs them (%(default)s)",
    )
    parser.add_argument(
        "--host", type=float, metavar="R", help="a host tier below, with R times the cache's pages (one trace)"
    )
    parser.add_argument(
        "--host-write",
        default="through",
        metavar="WHEN",
        help="with --host: prefixes go down when they are computed (through), pushed out (back) or matched n times "
        "(hit<n>; %(default)s)",
    )
    parser.add_argument("--gcache", type=float, metavar="R", help="with --host: GCache below, with R times the pages")
    parser.add_argument("--gcache-write", default="through", metavar="WHEN", help="as --host-write, from the host tier")
    parser.add_argument(
        "--without", default="", metavar="RULES", help="rules between tiers that are off: mixed,difference,heal,touch"
    )
    parser.add_argument("--optimum", action="store_true", help="also the best that any cache could do")
    parser.add_argument(
        "--suite",
        metavar="FOLDER",
        help="all traces of a folder at several capacities: the default policy (or --policy), LRU and the optimum",
    )
    parser.add_argument("--html", type=Path, metavar="FILE", help="also write a page with plots (needs matplotlib)")


def command(args: argparse.Namespace) -> int:
    """Runs `mimo-cache replay`."""
    if (args.trace is None) == (args.suite is None):
        raise InvalidArgument("a trace (TRACE) or --suite FOLDER must be named, and not both")
    if args.split == "adaptive" and (args.best_split or args.suite is not None):
        other = "--best-split" if args.best_split else "--suite"
        raise InvalidArgument(f"split is 'adaptive', allowed is 'fixed' with {other}, which compares fixed splits")
    if args.gcache is not None and args.host is None:
        raise InvalidArgument("--gcache is given without --host, allowed is both: its pages come into host memory")
    if args.host is not None and (args.best_split or args.suite is not None):
        raise InvalidArgument("--host is for one trace and one split, and not for --suite or --best-split")
    if args.html is not None:
        if find_spec("matplotlib") is None:
            raise InvalidArgument("--html needs matplotlib; pip install 'mimo-cache[report]' brings it")
        check_writable(args.html)
    if args.suite is not None:
        return _suite(args)
    bar = Bar(sys.stderr)
    options: dict[str, Any] = {**cache_options(args), "progress": bar, "optimum": args.optimum or args.html is not None}
    if args.html is not None:
        options["samples"] = suite.SAMPLES

    def say_try(share: float, rate: float) -> None:
        bar.clear()
        log(f"SWA share {share:g}: token hit rate {rate:.2%}")

    try:
        if args.best_split:
            result = best_split(args.trace, on_try=say_try, **options)
        else:
            tiers = {
                "host": args.host,
                "host_write": args.host_write,
                "gcache": args.gcache,
                "gcache_write": args.gcache_write,
                "without": args.without,
            }
            result = replay(args.trace, swa_share=args.swa_share, split=args.split, **tiers, **options)
    finally:
        bar.clear()
    warn_of(result)
    result |= {"trace": args.trace, **{word: getattr(args, word) for word in WORDS}}
    if args.html is not None:
        run = suite.of_one(args.trace, result, args.skip_bad)
        write_page(args.html, f"mimo-cache replay of {Path(args.trace).name}", [run])
    result.pop("skipped_first")
    result.pop("samples", None)
    print(json.dumps(result) if args.json else _table(result))
    return 0


def _suite(args: argparse.Namespace) -> int:
    """Runs `mimo-cache replay --suite`."""
    options = {k: v for k, v in cache_options(args).items() if k not in ("model", "capacity")}
    runs = suite.run(Path(args.suite), options, None if args.best_split else args.swa_share, say=log)
    if args.html is not None:
        write_page(args.html, f"mimo-cache replay of the traces in {Path(args.suite).name}", runs)
    print(json.dumps(suite.as_json(runs, options)) if args.json else suite.table(runs))
    return 0


def write_page(path: Path, title: str, runs: list[suite.TraceRuns]) -> None:
    """Writes the page with plots."""
    from . import page  # noqa: PLC0415  matplotlib is optional

    path.write_text(page.page(title, runs), encoding="utf-8")
    log(f"wrote {path}")


def _table(result: dict[str, Any]) -> str:
    total = result["prompt_tokens"]
    tokens = result["page_size"]
    rows = [
        ("requests", f"{result['requests']:,}"),
        ("prompt tokens", f"{total:,} in full blocks, {result['partial_tokens']:,} after them (not counted)"),
        ("full pool", f"{result['full_pages']:,} pages, {size(result['full_bytes'])}"),
        ("SWA pool", f"{result['swa_pages']:,} pages, {size(result['swa_bytes'])}, {result['swa_bytes_share']:.1%}"),
        ("scratch", f"{result['scratch_pages']:,} SWA pages, {size(result['scratch_bytes'])}, outside the capacity"),
        ("page", f"{tokens} tokens"),
        ("ceiling", f"{result['ceiling']:.2%} (infinite cache)"),
        ("full-KV hits", f"{result['full_kv_hit_rate']:.2%}"),
        ("token hit rate", f"{result['token_hit_rate']:.2%}"),
    ]
    if (split := result["split"]) is not None:
        start, mean, end = (f"{split[when]:.1%}" for when in ("start", "mean", "end"))
        changed = f"{split['to_full'] + split['to_swa']:,} changes of {split['chunks']:,} chunks"
        rows.insert(5, ("split", f"SWA {start} of the bytes at first, {mean} on average, {end} in the end; {changed}"))
    for name, what in (("host", "from the host tier"), ("gcache", "of that from GCache")):
        if (tier := result[name]) is not None:
            moved = f"{tier['fetched_full']:,} full and {tier['fetched_swa']:,} SWA pages up, "
            moved += f"{tier['saved_full']:,} and {tier['saved_swa']:,} down"
            rows.append((what, f"{tier['fetched_tokens'] / total if total else 0:.2%}; {moved}"))
    if "optimum" in result:
        best = result["optimum"]
        rows.append(("optimum", f"{best['token_hit_rate']:.2%} ({_KINDS[best['kind']]})"))
        if "one_pool_token_hit_rate" in best:
            text = f"{best['one_pool_token_hit_rate']:.2%} (Belady with every layer of every token in one pool)"
            rows.append(("one pool", text))
        rows.append(("reached", f"{best['reached']:.1%} of the optimum"))
    for cause, count in result["misses"].items():
        rows.append((f"miss {cause}", f"{count / total if total else 0:.2%} ({_CAUSES.get(cause, cause)})"))
    if result["prefill_rate"] is not None:
        waited = result["waited_ms"] / max(1, result["requests"])
        rows.append(
            ("overlap", f"{result['most_open']:,} sequences open at most, {waited:,.0f} ms of waiting a request")
        )
    if result["skipped_lines"]:
        rows.append(("bad lines", f"{result['skipped_lines']:,} passed over"))
    rows.append(("speed", f"{result['requests_per_second']:,.0f} requests/s, {result['seconds']:.1f} s"))
    return "\n".join(f"{name:<18}{value}" for name, value in rows)
