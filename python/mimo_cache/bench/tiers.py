"""Runs the parts of `mimo-cache bench tiers` and collects their figures.

`copy` and `overlap` are in `tiers_copy.py`, `gcache` in `tiers_gcache.py`, `ttft` in `tiers_ttft.py`, `planner` in
`tiers_planner.py`. Names of figures are part of the output's contract: a check in `report.py` looks them up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mimo_cache.bench import TIERS_PARTS
from mimo_cache.bench.timing import Figure, say


@dataclass(frozen=True)
class Options:
    """What to run. runs: runs per figure. scale: below 1 for shorter prefixes."""

    runs: int
    scale: float
    parts: tuple[str, ...]


def run(options: Options) -> list[Figure]:
    """All figures of the chosen parts."""
    figures: list[Figure] = []
    for name in TIERS_PARTS:
        if name in options.parts:
            say(name)
            figures += _part(name)(options)
    return figures


def _part(name: str) -> Callable[[Options], list[Figure]]:
    """What measures a part. `ttft` and `planner` need torch, the others do not."""
    if name in ("copy", "overlap"):
        from mimo_cache.bench import tiers_copy  # noqa: PLC0415

        return tiers_copy.copy if name == "copy" else tiers_copy.overlap
    if name == "gcache":
        from mimo_cache.bench import tiers_gcache  # noqa: PLC0415

        return tiers_gcache.gcache
    if name == "ttft":
        from mimo_cache.bench import tiers_ttft  # noqa: PLC0415

        return tiers_ttft.ttft
    from mimo_cache.bench import tiers_planner  # noqa: PLC0415

    return tiers_planner.planner
