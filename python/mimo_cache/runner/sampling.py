"""From logits to a token: greedy, or seeded sampling that depends on nothing but the request's own seed and logits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from mimo_cache.models.errors import shown

from .errors import RequestError, real, whole

MAX_TOKENS = 1 << 20
MAX_ID = (1 << 32) - 1
"""Largest token id."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one completion is drawn.

    max_tokens: new tokens at most, 1 to 2^20. temperature: 0 for greedy. top_k: only the k likeliest tokens, 0 for all.
    top_p: only the smallest set of likeliest tokens whose probability reaches top_p, 1 for all. seed: of this
    completion's draws; the same seed and prompt give the same text, whatever else runs. stop_token_ids: tokens that end
    it besides the model's own end tokens, which ignore_eos switches off. keep_logits: keep every new token's logits
    (fp32 [vocab]). Raises `RequestError` for a value outside its range.
    """

    max_tokens: int = 64
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    stop_token_ids: Sequence[int] = field(default=())
    ignore_eos: bool = False
    keep_logits: bool = False

    def __post_init__(self) -> None:
        try:
            stops = tuple(self.stop_token_ids)
        except TypeError as error:
            said = f"stop_token_ids is {shown(self.stop_token_ids)}, allowed is a list of token ids"
            raise RequestError(said) from error
        for name, value in (
            ("max_tokens", whole("max_tokens", self.max_tokens, 1, MAX_TOKENS)),
            ("temperature", real("temperature", self.temperature, lambda x: 0 <= x <= 100, "0 to 100")),
            ("top_k", whole("top_k", self.top_k, 0, 1 << 200, "0 or more")),
            ("top_p", real("top_p", self.top_p, lambda x: 0 < x <= 1, "above 0 and at most 1")),
            ("seed", whole("seed", self.seed, 0, (1 << 64) - 1, "0 to 2^64 - 1")),
            ("stop_token_ids", tuple(whole("an item of stop_token_ids", s, 0, MAX_ID) for s in stops)),
        ):
            object.__setattr__(self, name, value)  # numpy's and torch's numbers become Python's
        for name in ("ignore_eos", "keep_logits"):
            if not isinstance(getattr(self, name), bool):
                raise RequestError(f"{name} is {shown(getattr(self, name))}, allowed is True or False")


class Sampler:
    """Draws one completion's tokens."""

    def __init__(self, params: SamplingParams) -> None:
        self.params = params
        self.rng = np.random.Generator(np.random.PCG64(params.seed)) if params.temperature > 0 else None

    def __call__(self, logits: Any) -> int:
        """The next token from logits [vocab], a torch tensor in fp32. Ties go to the lowest id.

        Raises `RequestError` when the largest logit is not finite, as when one is NaN: no token follows from it.
        """
        likeliest = int(logits.argmax())  # of NaN, if there is one
        largest = float(logits[likeliest])
        if not math.isfinite(largest):
            raise RequestError(f"the model's largest logit is {largest}, from which no token can be drawn")
        if self.rng is None:
            return likeliest
        # Distances from the largest first: what a tiny temperature makes infinite then has the chance 0.
        away: npt.NDArray[np.float64] = logits.cpu().numpy().astype(np.float64) - largest
        with np.errstate(over="ignore"):
            scaled = away / self.params.temperature
        order = np.argsort(-scaled, kind="stable")
        if self.params.top_k:
            order = order[: self.params.top_k]
        chance = np.exp(scaled[order])
        chance /= chance.sum()
        if self.params.top_p < 1:
            keep = int(np.searchsorted(np.cumsum(chance), self.params.top_p)) + 1
            order, chance = order[:keep], chance[:keep] / chance[:keep].sum()
        at = int(np.searchsorted(np.cumsum(chance), self.rng.random(), side="right"))
        return int(order[min(at, len(order) - 1)])
