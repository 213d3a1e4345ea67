"""The workloads of `mimo-cache bench tree`, as plain arrays of tokens.

Needs numpy only and nothing of the package, so that `benches/peer_sglang.py` feeds the very same tokens to another tree
in another environment. Every function is a pure function of its arguments: the same seed gives the same tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.int32]

PAGE = 64
"""Tokens per page in every scenario."""
WINDOW = 128
"""W in every scenario."""
VOCABULARY = 151_936
"""Tokens are uniform below this."""
CHUNK = 8_192
"""Tokens of a prefill chunk."""
SYSTEM_PROMPT = 4_096
"""Tokens of a shared system prompt."""
SYSTEM_PROMPTS = 8
"""Shared system prompts; conversation i uses number i mod 8."""
TURN = 2_048
"""Tokens that a turn adds."""
LONGEST = 32_768
"""Tokens of a conversation after its last turn."""
TURNS = (LONGEST - SYSTEM_PROMPT) // TURN
"""Turns of a conversation."""
LOOKUP = 1_024
"""Hit-rate scenario: a lookup is made this far into a turn."""


def random_tokens(count: int, *seed: int) -> Tokens:
    """`count` uniform tokens; different seeds share no page."""
    return np.random.default_rng(seed).integers(0, VOCABULARY, count, dtype=np.int32)


def system_prompt(conversation: int) -> Tokens:
    """The shared start of a conversation."""
    return random_tokens(SYSTEM_PROMPT, 1, conversation % SYSTEM_PROMPTS)


def conversation(number: int) -> Tokens:
    """All 32,768 tokens of a conversation; turn t ends at `turn_end(t)`."""
    out = np.empty(LONGEST, dtype=np.int32)
    out[:SYSTEM_PROMPT] = system_prompt(number)
    out[SYSTEM_PROMPT:] = random_tokens(LONGEST - SYSTEM_PROMPT, 2, number)
    return out


def turn_end(turn: int) -> int:
    """Length of a conversation after turn `turn`, counted from 0."""
    return SYSTEM_PROMPT + (turn + 1) * TURN


def turns(conversations: int) -> Iterator[tuple[int, int, Tokens]]:
    """Scenario (a): (conversation, turn, prompt), every conversation's turn t before any turn t + 1."""
    for turn in range(TURNS):
        for number in range(conversations):
            yield number, turn, conversation(number)[: turn_end(turn)]


LONG_PROMPT = 100_352
"""Scenario (b): tokens of the stored prompt, 1,568 pages."""


def long_prompt(number: int) -> Tokens:
    """Scenario (b): the stored prompt."""
    return random_tokens(LONG_PROMPT, 3, number)


def cuts(nodes: int) -> list[int]:
    """Scenario (b): lengths, multiples of the page, at which the prompt is divided to lie in `nodes` nodes."""
    step = {1: LONG_PROMPT, 13: CHUNK, 196: 512}[nodes]
    return list(range(step, LONG_PROMPT, step))


SESSION = 32_768
"""Scenario (c) and memory: tokens of a session without a shared prefix."""


def session(number: int) -> Tokens:
    """Scenario (c) and memory: one session."""
    return random_tokens(SESSION, 4, number)


@dataclass(frozen=True)
class HitRateTurn:
    """One turn of the hit-rate scenario."""

    lookup: Tokens
    """The prompt that is looked up."""
    whole: Tokens
    """The same with the rest of the turn: what is computed and kept."""


HIT_RATE_FULL_TOKENS = 1_000_000
"""Hit-rate scenario: tokens of the full pool."""
HIT_RATE_SWA_TOKENS = {"1.6 %": 16_384, "2.5 %": 24_576, "4.9 %": 49_152}
"""Hit-rate scenario: tokens of the SWA pool, by its share of the full pool."""
HIT_RATE_CONVERSATIONS = 100
"""Hit-rate scenario: conversations."""
HIT_RATE_TURNS = 2_000
"""Hit-rate scenario: turns that are measured."""


def hit_rate_turns(seed: int) -> Iterator[HitRateTurn]:
    """Hit-rate scenario, without end: low numbers are popular, a conversation starts again after its last turn."""
    rng = np.random.default_rng([5, seed])
    tokens: dict[int, Tokens] = {}
    turn = [0] * HIT_RATE_CONVERSATIONS
    while True:
        number = min(HIT_RATE_CONVERSATIONS - 1, int(rng.exponential(HIT_RATE_CONVERSATIONS / 5)))
        if number not in tokens:
            tokens[number] = conversation(number)
        end = turn_end(turn[number])
        turn[number] = (turn[number] + 1) % TURNS
        yield HitRateTurn(tokens[number][: end - TURN + LOOKUP], tokens[number][:end])
