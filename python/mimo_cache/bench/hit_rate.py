"""The hit-rate scenario: what the SWA policy costs with a small SWA pool.

Conversations of unequal popularity grow by 2,048 tokens a turn. A lookup is made 1,024 tokens into a turn; then the
turn is computed to its end in chunks and kept. The usable hit rate is matched / prompt tokens over the lookups of 2,000
turns, after as much as half the pool was evicted once.
"""

from __future__ import annotations

from dataclasses import dataclass

from mimo_cache.bench import scenarios as sc
from mimo_cache.bench.engine import SCRATCH_PAGES, Engine, plain_cache


@dataclass(frozen=True)
class HitRate:
    """Shares of the prompt tokens."""

    usable: float
    full_kv: float


RETENTION = "prompt_end+branch+sup1"
"""Of a conversation's ends the newest is kept, and an older one goes once a later turn went on from it: in this
scenario every conversation goes on from its newest end only."""
DECODED = "prompt_end+seq_end+branch+sup1"
"""The same where a turn's second half is output: its end counts as an end too."""


def run(
    swa_tokens: int, scale: float, *, inside: bool = False, decoded: bool = False, retention: str = RETENTION
) -> HitRate:
    """One pool size.

    `inside`: the running chunk's scratch is part of the SWA pool. `decoded`: the second half of a turn is the model's
    output, not prompt.
    """
    full_pages = sc.HIT_RATE_FULL_TOKENS // sc.PAGE
    engine = Engine(
        plain_cache(
            full_pages,
            swa_tokens // sc.PAGE,
            scratch_pages=SCRATCH_PAGES if inside else None,
            retention=retention,
        )
    )
    cache = engine.cache
    measured = max(50, int(sc.HIT_RATE_TURNS * scale))
    usable = full_kv = prompt = seen = 0
    for turn in sc.hit_rate_turns(0):
        if seen or cache.stats().full_evicted >= full_pages // 2:
            found = cache.peek(turn.lookup)
            usable += found.usable
            full_kv += found.full_kv_match
            prompt += len(turn.lookup)
            seen += 1
        if seen == measured:
            break
        if decoded:
            rest = turn.whole[len(turn.lookup) :]
            seq = cache.request(turn.lookup).open(credit=len(rest))
            engine.prefill(seq)
            engine.compute(seq, len(rest), rest)
            seq.finish()
        else:
            engine.run(turn.whole)
    return HitRate(usable / prompt, full_kv / prompt)
