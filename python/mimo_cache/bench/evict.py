"""Scenario (c): evict and allocate for a chunk of 8,192 tokens through the Python API, in a full pool of 1 M tokens."""

from __future__ import annotations

from mimo_cache.bench import scenarios as sc
from mimo_cache.bench.engine import Engine, plain_cache
from mimo_cache.bench.timing import cpu_ns


def run(scale: float) -> dict[str, float]:
    """Microseconds of a `reserve` of one chunk, mean and 99th percentile, while 32k-token sessions stream through."""
    full_pages = sc.HIT_RATE_FULL_TOKENS // sc.PAGE
    engine = Engine(plain_cache(full_pages, 131_072 // sc.PAGE))
    warm = sc.HIT_RATE_FULL_TOKENS // sc.SESSION + 1
    times = []
    for number in range(warm + max(8, int(250 * scale))):
        seq = engine.cache.request(sc.session(number)).open()
        while seq.committed < seq.known:
            start = cpu_ns()
            seq.reserve(sc.CHUNK)
            if number >= warm:
                times.append((cpu_ns() - start) / 1e3)
            step = engine.fill(seq)
            seq.commit(sc.CHUNK)
            engine.cache.retire(step)
        seq.finish()
    evicted = engine.cache.stats().full_evicted
    if evicted < len(times) * sc.CHUNK // sc.PAGE:
        raise RuntimeError(f"{evicted} pages were evicted for {len(times)} chunks, the pool was not full")
    return {"chunk": sum(times) / len(times), "chunk_p99": sorted(times)[int(len(times) * 0.99)]}
