"""How large a cache with one pool would have to be for the same hit rate.

Such a cache stores every layer for every token, so any prefix it holds is usable. The requests the engine opened are
played into one in the same order, each at once, without sequences that run beside it and hold pages: that favours
the single pool.
"""

from __future__ import annotations

from .. import Key, OutOfPages, PrefixCache
from .workload import Turn


def hit_rate(turns: list[Turn], page: int, pages: int) -> float:
    """Share of prompt tokens that a single pool of `pages` pages serves; 0.0 when a request does not fit."""
    cache = PrefixCache.plain(page_size=page, window=0, n_mtp=0, full_pages=pages, swa_pages=0, events=0, ghosts=0)
    prompt = hits = 0
    for turn in turns:
        request = cache.request(
            turn.prompt,
            key=Key(salt=turn.salt, adapter=turn.adapter),
            spans=turn.spans,
            tenant=turn.tenant,
            store=turn.store,
        )
        try:
            seq = request.open(credit=len(turn.output))
        except OutOfPages:
            return 0.0
        prompt += len(turn.prompt)
        hits += seq.usable
        rows = len(turn.prompt) + len(turn.output) - 1 - seq.usable
        seq.reserve(rows)
        seq.commit(rows, turn.output)
        seq.finish()
    return hits / max(1, prompt)


def pages_for(turns: list[Turn], page: int, rate: float, start: int) -> int | None:
    """The smallest single pool, to 1 %, that reaches `rate`; None when no pool does. `start` is a first guess."""
    most = sum(-(-(len(t.prompt) + len(t.output)) // page) for t in turns)
    low, high = 0, start
    while hit_rate(turns, page, high) < rate:
        if high >= most:
            return None
        low, high = high, min(most, 2 * high)
    while high - low > max(1, high // 100):
        middle = (low + high) // 2
        if hit_rate(turns, page, middle) < rate:
            low = middle
        else:
            high = middle
    return high
