"""Resident memory of many cached tokens, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys

from mimo_cache.bench import scenarios as sc
from mimo_cache.bench.engine import Engine, plain_cache
from mimo_cache.bench.timing import resident_bytes


def bytes_per_token(tokens: int) -> float:
    """Measures in a fresh process."""
    code = f"import json; from mimo_cache.bench import memory; print(json.dumps(memory.measure({tokens})))"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return float(json.loads(done.stdout.splitlines()[-1])["bytes_per_token"])


def measure(tokens: int) -> dict[str, float]:
    """Fills a cache with 32k-token sessions and compares resident memory before and after."""
    sessions = max(1, tokens // sc.SESSION)
    pages = sessions * sc.SESSION // sc.PAGE
    # The first arrays and calls grow the process too; they are no part of the cache.
    Engine(plain_cache(1_024, 64)).run(sc.session(0))
    before = resident_bytes()
    # 2.5 % of the full pool, as in the hit-rate scenario.
    engine = Engine(plain_cache(pages + 64, max(64, pages // 40)))
    # A tenth more than fits: eviction has begun, and what remembers evicted pages has its memory.
    for number in range(sessions + sessions // 10 + 1):
        engine.run(sc.session(number))
    cached = engine.cache.stats().full.cached
    if cached < pages:
        raise RuntimeError(f"{cached} pages are cached, expected at least {pages}")
    return {"bytes_per_token": (resident_bytes() - before) / (pages * sc.PAGE), "tokens": pages * sc.PAGE}
