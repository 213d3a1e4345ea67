"""Scenario (b): match of a stored 100,352-token prompt, cold, as 1, 13 and 196 nodes, against `memcmp` of its bytes.

A rotation over many stored prompts keeps both sides out of the processor's caches: every run walks queries and stored
tokens that together are larger than the last-level cache.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np

from mimo_cache.bench import scenarios as sc
from mimo_cache.bench.engine import Engine, plain_cache
from mimo_cache.bench.timing import available_bytes, cpu_ns, last_level_cache_bytes, per_call_us, say

NODES = (1, 13, 196)
"""Nodes that the stored prompt is spread over."""


@dataclass(frozen=True)
class ColdMatch:
    """Microseconds per prompt, one number a run."""

    nodes: int
    match: list[float]
    memcmp: list[float]
    rotated_bytes: int
    """Queries and stored tokens that a run walks."""


def copies(scale: float) -> int:
    """Prompts to rotate over: 600 MB or 1.25 x the last-level cache, but at most a sixth of the memory."""
    wanted = max(600_000_000, int(1.25 * last_level_cache_bytes()))
    return max(2, int(min(wanted, available_bytes() // 6) * scale) // (2 * 4 * sc.LONG_PROMPT) + 1)


def cold(nodes: int, runs: int, scale: float) -> ColdMatch:
    """Stores the prompts, then matches them all in each run."""
    count = copies(scale)
    queries = [sc.long_prompt(i) for i in range(count)]
    others = [q.copy() for q in queries]
    branches = len(sc.cuts(nodes))
    # A branch is one page of its own; each of them keeps a checkpoint of at most three pages, as the prompt does.
    pages = count * (sc.LONG_PROMPT // sc.PAGE + branches) + 64
    engine = Engine(plain_cache(pages, 3 * count * (branches + 1) + 64))
    for number, query in enumerate(queries):
        if number % 100 == 0:
            say(f"(b) {nodes} nodes: {number} of {count} prompts stored")
        engine.run(np.append(query, np.int32(0)))
        for i, cut in enumerate(sc.cuts(nodes)):
            engine.run(np.append(query[:cut], sc.random_tokens(sc.PAGE, 8, number, i)))
    peek = engine.cache.peek
    memcmp = ctypes.CDLL(None).memcmp
    memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
    pairs = [(a.ctypes.data, b.ctypes.data) for a, b in zip(queries, others, strict=True)]
    size = queries[0].nbytes
    out = ColdMatch(nodes, [], [], 2 * count * size)
    for query in queries[:2]:
        found = peek(query)
        if found.full_kv_match != sc.LONG_PROMPT:
            raise RuntimeError(f"{found.full_kv_match} tokens of a stored prompt match, expected {sc.LONG_PROMPT}")
    for _ in range(runs):
        start = cpu_ns()
        different = sum(memcmp(a, b, size) for a, b in pairs)
        out.memcmp.append((cpu_ns() - start) / count / 1e3)
        if different:
            raise RuntimeError("memcmp found a difference between equal arrays")
        start = cpu_ns()
        for query in queries:
            peek(query)
        out.match.append((cpu_ns() - start) / count / 1e3)
    return out


def peek_overhead(runs: int, scale: float) -> list[float]:
    """Microseconds of one `peek` of a stored prompt of 64 tokens: the cost of the call itself."""
    engine = Engine(plain_cache(64, 64))
    prompt = sc.random_tokens(sc.PAGE + 1, 9)
    engine.run(prompt)
    short, peek = prompt[: sc.PAGE].copy(), engine.cache.peek
    calls = max(1_000, int(50_000 * scale))
    return [per_call_us(calls, lambda: peek(short)) for _ in range(runs)]
