"""The shipped trace slices as token sessions.

A trace names 64-token blocks by ids, where equal ids mean equal tokens after an equal prefix. An id becomes tokens
by a fixed function. A prompt's last, partial block and the output are taken from what the same session sends next,
where that continues this prompt, so that answers come back inside later prompts as they do in real use.
"""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

import numpy as np
import numpy.typing as npt

from .workload import VOCABULARY, Session, Tokens, Turn

BLOCK = 64
TENANTS = {"claude_code": 0, "tau_airline": 1}
MS_PER_STEP = 400.0
"""Trace time is compressed: one engine step stands for this many milliseconds of a client's pause."""
LONGEST_PAUSE = 120


def sessions(name: str, max_output: int, rng: np.random.Generator) -> list[Session]:
    """The sessions of one shipped trace, in order of arrival."""
    lines = files(__package__).joinpath("data", f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    header = json.loads(lines[0])
    assert header["block_size"] == BLOCK
    by_session: dict[int, list[dict[str, Any]]] = {}
    for line in lines[1:]:
        request = json.loads(line)
        by_session.setdefault(request["s"], []).append(request)
    last = max(requests[0]["t"] for requests in by_session.values()) or 1
    out = []
    for requests in by_session.values():
        ids = [expand(r["h"]) for r in requests]
        turns = []
        for i, request in enumerate(requests):
            following = next((b for b in ids[i + 1 : i + 4] if continues(b, ids[i])), None)
            want = min(request["o"], max_output)
            stream = stream_of(ids[i] if following is None else following, request["i"] + want, rng)
            pause = request["t"] - requests[i - 1]["t"] if i else 0
            turns.append(
                Turn(
                    prompt=stream[: request["i"]],
                    output=stream[request["i"] : request["i"] + want],
                    salt=name.encode(),
                    tenant=TENANTS[name],
                    store=bool(rng.random() > 0.02),
                    delay=int(min(LONGEST_PAUSE, pause / MS_PER_STEP)),
                )
            )
        out.append(Session(name, requests[0]["t"] / last, [t for t in turns if len(t.output)]))
    return sorted(out, key=lambda s: s.start)


def expand(runs: list[list[int]]) -> npt.NDArray[np.int64]:
    """Block ids from runs [[first, count], ...]."""
    return np.concatenate([np.arange(a, a + n, dtype=np.int64) for a, n in runs] or [np.empty(0, np.int64)])


def continues(longer: npt.NDArray[np.int64], blocks: npt.NDArray[np.int64]) -> bool:
    """Whether a later prompt starts with all of these blocks and goes on."""
    return len(longer) > len(blocks) and bool(np.array_equal(longer[: len(blocks)], blocks))


def stream_of(blocks: npt.NDArray[np.int64], length: int, rng: np.random.Generator) -> Tokens:
    """`length` tokens that start with those of the blocks; what the blocks do not cover is new text."""
    known = tokens_of(blocks)[:length]
    return np.concatenate([known, rng.integers(0, VOCABULARY, length - len(known), dtype=np.uint32)])


def tokens_of(blocks: npt.NDArray[np.int64]) -> Tokens:
    """The fixed function from ids to tokens: 64 well-mixed token ids a block."""
    x = (blocks.astype(np.uint64)[:, None] << np.uint64(6)) | np.arange(BLOCK, dtype=np.uint64)
    x = (x ^ (x >> np.uint64(31))) * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    return ((x >> np.uint64(32)) % np.uint64(VOCABULARY)).astype(np.uint32).ravel()
