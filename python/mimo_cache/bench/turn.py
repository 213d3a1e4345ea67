"""Scenario (a): a whole turn of a long conversation through the Python API, at page 64."""

from __future__ import annotations

from mimo_cache.bench import scenarios as sc
from mimo_cache.bench.engine import Engine, plain_cache
from mimo_cache.bench.timing import cpu_ns, resident_bytes

PARTS = ("request", "open", "reserve", "fill", "commit", "retire", "finish")
"""The calls of a turn, in order. All of them make the figure."""


def run(scale: float) -> dict[str, float]:
    """Microseconds per call and per whole turn, mean over all turns of 2,000 conversations, and bytes per token."""
    conversations = max(8, int(2_000 * scale))
    full = conversations * (sc.LONGEST - sc.SYSTEM_PROMPT) + sc.SYSTEM_PROMPTS * sc.SYSTEM_PROMPT
    # As many checkpoints as turns, so that nothing is evicted: three pages each is more than they need.
    before = resident_bytes()
    engine = Engine(plain_cache(full // sc.PAGE + 64, 3 * conversations * sc.TURNS + 64))
    totals = dict.fromkeys(PARTS, 0)
    count = expected = found = 0
    for _, turn, tokens in sc.turns(conversations):
        cache = engine.cache
        t0 = cpu_ns()
        request = cache.request(tokens)
        t1 = cpu_ns()
        seq = request.open()
        t2 = cpu_ns()
        usable = seq.usable
        new = len(tokens) - usable
        if new > sc.CHUNK:
            raise RuntimeError(f"a turn computes {new} tokens, at most {sc.CHUNK} were expected")
        t3 = cpu_ns()
        seq.reserve(new)
        t4 = cpu_ns()
        step = engine.fill(seq)
        t5 = cpu_ns()
        seq.commit(new)
        t6 = cpu_ns()
        cache.retire(step)
        t7 = cpu_ns()
        seq.finish()
        t8 = cpu_ns()
        steps = (t1 - t0, t2 - t1, t4 - t3, t5 - t4, t6 - t5, t7 - t6, t8 - t7)
        for name, ns in zip(PARTS, steps, strict=True):
            totals[name] += ns
        count += 1
        found += usable
        expected += sc.turn_end(turn) - sc.TURN if turn else 0
    if found < expected:
        raise RuntimeError(f"{found} tokens were found again, at least {expected} were expected")
    out = {name: ns / count / 1e3 for name, ns in totals.items()}
    out["turn"] = sum(out.values())
    out["bytes_per_token"] = (resident_bytes() - before) / full
    return out
