"""What the step loop keeps of a request, and what it tells of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from mimo_cache import Key, Report
from mimo_cache.tiers import Fetch, Prefetch

from .sampling import Sampler, SamplingParams


@dataclass(slots=True)
class Output:
    """One new token of one request. logits: fp32 [vocab], where asked for. finish: None while it goes on, else "stop"
    or "length". report: where the prompt's tokens came from. at: `time.perf_counter` when it was sampled."""

    uid: int
    token: int
    logits: Any
    finish: str | None
    report: Report
    at: float


@dataclass(slots=True)
class Tally:
    """What steps cost. fetched: tokens from the host tier, lost: those that did not come; remote: tokens that GCache
    had brought there before the request was opened; wait_seconds: for layers; core_seconds: inside calls into the
    cache; step_seconds: whole steps."""

    steps: int = 0
    computed: int = 0
    copies: int = 0
    rebuilds: int = 0
    fetched: int = 0
    lost: int = 0
    remote: int = 0
    wait_seconds: float = 0.0
    core_seconds: float = 0.0
    step_seconds: float = 0.0


@dataclass(slots=True, eq=False)
class Lane:
    """A request in the engine. ids: int64 [prompt + max_tokens], the first `known` are known. start: tokens that the
    cache had. report: of the sequence, with what came since. mtp_done: per MTP head, rows below it are final."""

    uid: int
    ids: npt.NDArray[np.int64]
    prompt: int
    params: SamplingParams
    sampler: Sampler
    request: Any
    seq: Any = None
    committed: int = 0
    known: int = 0
    start: int = 0
    report: Any = None
    rows: int = 0
    key: Key | None = None
    store: bool = True
    fetch: Fetch | None = None
    prefetch: Prefetch | None = None
    mtp_done: list[int] = field(default_factory=list)

    def final(self, head: int) -> int:
        """Rows below this are final in an MTP head: they are committed, and the tokens they need are known."""
        return max(0, min(self.committed, self.known - head - 1))
