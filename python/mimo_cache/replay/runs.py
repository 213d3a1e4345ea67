"""Single replays: the core's own, with the best split of the bytes, with the optimum beside it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from mimo_cache import _core

_COARSE = (0.025, 0.05, 0.1, 0.2, 0.35, 0.55, 0.75)
_FIRST = 2
"""Where in `_COARSE` the climb begins: near the best of most traces."""

Progress = Callable[[int, int, int, int], None]


def replay(trace: str | os.PathLike[str], optimum: bool = False, **options: Any) -> dict[str, Any]:
    """Replays `trace` and returns the numbers that `mimo-cache replay --json` prints.

    Options: `model` (a preset), `capacity` (`"2M"` tokens of the full pool, `"40GiB"`, `"1%"`), `swa_share` (part of
    the bytes for SWA pages), `split` (`"fixed"`, or `"adaptive"`: the share is only the start), `retention`,
    `policy`, `page_size`, `chunk` (tokens), `seed`, `skip_bad` (count bad lines and go on), `samples` (points in time
    of the result's `samples`), `progress(done, total, prompt_tokens, hit_tokens)`. With `optimum` the result has the
    key of that name, see `beside`. Raises `TraceError` with the line, `InvalidArgument`, or `OSError`.
    """
    result = _core.replay(trace, **options)
    if optimum:
        result["optimum"] = beside(trace, result, options.get("page_size", 64), options.get("skip_bad", False))
    return result


def optimum(
    trace: str | os.PathLike[str], capacities: Sequence[int], page_size: int = 64, skip_bad: bool = False
) -> dict[str, Any]:
    """Hit tokens of Belady's rule (`belady`) and of leaf-first LRU (`lru`) with one pool of each of these page counts.

    Also `endless` (hit tokens of an infinite cache), `prompt_tokens`, `requests`, and `reuse_tokens` and `reuse_ms`:
    tokens by powers of two of the distance between two uses. Holds the whole trace in memory, as runs of blocks.
    """
    return _core.optimum(trace, capacities=list(capacities), page_size=page_size, skip_bad=skip_bad)


def explain(
    trace: str | os.PathLike[str], request: int | None = None, session: int | None = None, **options: Any
) -> list[dict[str, Any]]:
    """The stories of one request (its number in the trace, from 1) or of all requests of a session, at most 4,096.

    Options as for `replay`. `mimo_cache.replay.story.text` makes sentences of a story.
    """
    return _core.explain(trace, request=request, session=session, **options)


def one_pool_pages(result: dict[str, Any]) -> int:
    """Pages of all layers that the bytes of a replay would hold in a cache of one pool."""
    full, swa = (_page_cost(result, group) for group in ("full", "swa"))
    return int(result["budget_pages"] * full // (full + swa)) if full else 0


def _page_cost(result: dict[str, Any], group: str) -> float:
    pages = result[f"{group}_pages"]
    return result[f"{group}_bytes"] / pages if pages else 0.0


def beside(
    trace: str | os.PathLike[str], result: dict[str, Any], page_size: int = 64, skip_bad: bool = False
) -> dict[str, Any]:
    """The optimum beside a replay's `result`.

    `token_hit_rate`: what no cache with these bytes can beat; `kind` says how it was found: `belady` (exact, one pool),
    `upper_bound` (Belady with all bytes given to full pages, as if windows were free) or `ceiling` (an infinite cache,
    for a model without full attention). `reached`: the replay's hit rate over it. For a hybrid also
    `one_pool_token_hit_rate`: Belady with the same bytes in a cache that keeps every layer for every token.
    """
    pages = result["budget_pages"]
    if not pages:
        best, kind, one_pool = result["ceiling"], "ceiling", None
    else:
        hybrid = result["swa_pages"] > 0
        found = optimum(trace, [pages, one_pool_pages(result)], page_size, skip_bad)
        rates = [hits / max(1, found["prompt_tokens"]) for hits in found["belady"]]
        best, one_pool = rates[0], rates[1] if hybrid else None
        kind = "upper_bound" if hybrid else "belady"
    out = {"token_hit_rate": best, "kind": kind, "reached": result["token_hit_rate"] / best if best else 1.0}
    if one_pool is not None:
        out["one_pool_token_hit_rate"] = one_pool
    return out


def best_split(
    trace: str | os.PathLike[str],
    refine: int = 2,
    shares: Sequence[float] | None = None,
    on_try: Callable[[float, float], None] | None = None,
    optimum: bool = False,
    **options: Any,
) -> dict[str, Any]:
    """The replay with the SWA share that hits most, found by trying.

    A coarse row of shares is climbed from its middle as long as the next one hits as much (or `shares` are all tried),
    then come `refine` rounds of halving the distance to the neighbours of the best. The result also has `tried`, a list
    of `{"swa_share", "token_hit_rate"}` in order of share. `on_try(share, rate)` hears of each. A share with which the
    capacity cannot work (a pool of no use) is passed over. A model with one group has no split.
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

    def rate(share: float) -> float:
        attempt(share)
        return float(results[share]["token_hit_rate"]) if share in results else -1.0

    if shares is None:
        for row in (_COARSE[_FIRST:], _COARSE[_FIRST::-1]):
            for here, beyond in pairwise(row):
                if rate(beyond) < rate(here):
                    break
    else:
        for share in shares:
            attempt(share)
    if not results:
        # No split works: a model with one group, or a capacity that the default share explains best.
        return {**replay(trace, swa_share=None, optimum=optimum, **options), "tried": []}
    for _ in range(refine):
        best = max(results, key=lambda share: results[share]["token_hit_rate"])
        known = sorted([*results, *refused])
        at = known.index(best)
        for neighbour in (known[at - 1] if at else 0.0, known[at + 1] if at + 1 < len(known) else 1.0):
            attempt(round((best + neighbour) / 2, 6))
    best = max(results, key=lambda share: results[share]["token_hit_rate"])
    tried = [{"swa_share": s, "token_hit_rate": r["token_hit_rate"]} for s, r in sorted(results.items())]
    result = {**results[best], "tried": tried}
    if optimum:
        result["optimum"] = beside(trace, result, options.get("page_size", 64), options.get("skip_bad", False))
    return result
