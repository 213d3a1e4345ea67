"""Policies against libcachesim (CMU's cache simulator), where both define the same thing.

The two meet where a prefix cache is a plain cache: prompts of one full block that share nothing. A prompt has a token
of its own beside its full block, which takes a page while it runs, so a pool of N pages holds N - 1 blocks.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mimo_cache.replay import optimum, replay

peer: Any = pytest.importorskip("libcachesim")

NEVER = 1 << 62
"""Next use of what is not used again."""


def zipf(rng: random.Random) -> list[int]:
    """Some blocks are popular."""
    return rng.choices(range(2000), [1 / (i + 1) ** 0.9 for i in range(2000)], k=12_000)


def loops(rng: random.Random) -> list[int]:
    """Scans of 300 blocks over and over, between uses of 60 popular ones."""
    return [rng.randrange(60) if rng.random() < 0.5 else 60 + i % 300 for i in range(12_000)]


def drift(rng: random.Random) -> list[int]:
    """What is popular moves on."""
    return [i // 40 + int(rng.expovariate(1 / 80)) for i in range(12_000)]


TRAFFIC = [zipf, loops, drift]


def hits_of_peer(policy: str, blocks: list[int], size: int) -> int:
    """Hits of libcachesim's cache of `size` objects of size 1."""
    cache = getattr(peer, policy)(size)
    later: dict[int, int] = {}
    following = [NEVER] * len(blocks)
    for i in range(len(blocks) - 1, -1, -1):
        following[i] = later.get(blocks[i], NEVER)
        later[blocks[i]] = i
    hits = 0
    for i, block in enumerate(blocks):
        request = peer.Request(obj_id=block, obj_size=1, clock_time=i)
        request.next_access_vtime = following[i]
        hits += cache.get(request)
    return hits


@pytest.fixture(params=TRAFFIC, ids=lambda make: make.__name__)
def traffic(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[list[int], Path]:
    """The blocks, and the trace of them."""
    make: Callable[[random.Random], list[int]] = request.param
    blocks = make(random.Random(7))
    path = tmp_path / "flat.jsonl"
    lines = [json.dumps({"t": i, "s": -1, "i": 64, "o": 0, "h": [[block, 1]]}) for i, block in enumerate(blocks)]
    path.write_text("\n".join([json.dumps({"block_size": 64}), *lines, ""]))
    return blocks, path


def hits_of_ours(path: Path, policy: str, pages: int) -> int:
    """Hits of the core with a uniform pool."""
    result = replay(path, model="uniform", capacity=str(64 * pages), policy=policy)
    return int(result["hit_tokens"]) // 64


@pytest.mark.parametrize("pages", [20, 150, 400])
def test_lru_is_theirs(traffic: tuple[list[int], Path], pages: int) -> None:
    blocks, path = traffic
    assert hits_of_ours(path, "lru", pages) == hits_of_peer("LRU", blocks, pages - 1)
    assert optimum(path, [pages])["lru"] == [64 * hits_of_peer("LRU", blocks, pages)]


@pytest.mark.parametrize("pages", [20, 150, 400])
def test_the_optimum_is_theirs(traffic: tuple[list[int], Path], pages: int) -> None:
    """Theirs must admit what it misses, ours need not: that is worth up to one page."""
    blocks, path = traffic
    ours = optimum(path, [pages])["belady"][0] // 64
    assert hits_of_peer("Belady", blocks, pages) <= ours <= hits_of_peer("Belady", blocks, pages + 1)
