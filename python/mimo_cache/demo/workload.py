"""What the demo serves: sessions of turns, as tokens.

A `Turn` is one request with the output the pretended model will give it; a `Session` is the turns one client sends
one after another.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.uint32]

VOCABULARY = 152_576
"""Token ids are below this; the vocabulary of the MiMo-V2 models."""

IMAGE_TOKEN = 151_655
"""The placeholder that stands for a piece of an image."""


@dataclass(slots=True)
class Turn:
    """One request.

    prompt, output: uint32 token ids. spans: (start, length, sha256) of multimodal content. salt and adapter name the
    namespace. delay: steps between the end of the turn before and the arrival of this one. forks: samples drawn from
    this prompt beside the main one.
    """

    prompt: Tokens
    output: Tokens
    salt: bytes = b""
    adapter: bytes = b""
    spans: list[tuple[int, int, bytes]] = field(default_factory=list)
    tenant: int = 0
    store: bool = True
    delay: int = 0
    forks: int = 0


@dataclass(slots=True)
class Session:
    """The turns of one client, in order. source: which workload it belongs to; start: order of arrival, 0 to 1."""

    source: str
    start: float
    turns: list[Turn]
