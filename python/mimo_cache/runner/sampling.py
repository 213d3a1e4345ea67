"""From logits to a token: greedy, or seeded sampling that depends on nothing but the request's own seed and logits."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any

import numpy as np
import numpy.typing as npt

from .errors import RequestError

MAX_TOKENS = 1 << 20


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
        for name, kind, low, high, allowed in (
            ("max_tokens", Integral, 1, MAX_TOKENS, f"1 to {MAX_TOKENS}"),
            ("temperature", Real, 0, 100, "0 to 100"),
            ("top_k", Integral, 0, None, "0 or more"),
            ("top_p", Real, None, 1, "above 0 and at most 1"),
            ("seed", Integral, 0, (1 << 64) - 1, "0 to 2^64 - 1"),
        ):
            value = getattr(self, name)
            good = isinstance(value, kind) and not isinstance(value, bool)
            # Comparisons are such that NaN fails them.
            if not good or not (value >= low if low is not None else value > 0) or not (high is None or value <= high):
                raise RequestError(f"{name} is {value!r:.80}, allowed is {allowed}")
        stop = self.stop_token_ids
        if not isinstance(stop, Collection) or not all(isinstance(token, Integral) for token in stop):
            raise RequestError(f"stop_token_ids is {stop!r:.80}, allowed is a list of token ids")


class Sampler:
    """Draws one completion's tokens."""

    def __init__(self, params: SamplingParams) -> None:
        self.params = params
        self.rng = np.random.Generator(np.random.PCG64(params.seed)) if params.temperature > 0 else None

    def __call__(self, logits: Any) -> int:
        """The next token from logits [vocab], a torch tensor in fp32. Ties go to the lowest id."""
        if self.rng is None:
            return int(logits.argmax())
        scaled: npt.NDArray[np.float64] = logits.cpu().numpy().astype(np.float64) / self.params.temperature
        order = np.argsort(-scaled, kind="stable")
        if self.params.top_k:
            order = order[: self.params.top_k]
        chance = np.exp(scaled[order] - scaled[order[0]])
        chance /= chance.sum()
        if self.params.top_p < 1:
            keep = int(np.searchsorted(np.cumsum(chance), self.params.top_p)) + 1
            order, chance = order[:keep], chance[:keep] / chance[:keep].sum()
        at = int(np.searchsorted(np.cumsum(chance), self.rng.random(), side="right"))
        return int(order[min(at, len(order) - 1)])
