"""What the step loop keeps of a request, and what it tells of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from mimo_cache import Key, Report
from mimo_cache.tiers import Fetch, Prefetch

from .errors import RequestError
from .sampling import Sampler, SamplingParams
from .sources import Sources


@dataclass(slots=True)
class Output:
    """One new token of one request. logits: fp32 [vocab], where asked for. finish: None while it goes on, else "stop"
    or "length". report: what lookups found of the prompt, and the causes of the rest. sources: where the prompt's
    tokens came from. wait: seconds that steps of this request have waited for pages so far. at: `time.perf_counter`
    when it was sampled."""

    uid: int
    token: int
    logits: Any
    finish: str | None
    report: Report
    sources: Sources
    wait: float
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
    cache had. report: of the sequence, with what came since. wait: seconds that its steps waited for pages. told: to
    the host tier. mtp_done: per MTP head, rows below it are final."""

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
    sources: Any = None
    wait: float = 0.0
    told: bool = False
    mtp_done: list[int] = field(default_factory=list)

    def finish_of(self, token: int, eos: Sequence[int]) -> str | None:
        """Why the request ends with this token, which is not known yet: "stop" or "length"; None when it goes on."""
        if token in self.params.stop_token_ids or (not self.params.ignore_eos and token in eos):
            return "stop"
        return "length" if self.known + 1 - self.prompt >= self.params.max_tokens else None

    def final(self, head: int) -> int:
        """Rows below this are final in an MTP head: they are committed, and the tokens they need are known."""
        return max(0, min(self.committed, self.known - head - 1))


def checked(tokens: npt.ArrayLike, params: SamplingParams, vocab: int, longest: int) -> npt.NDArray[Any]:
    """The ids of a prompt. Raises `RequestError` for what a model of so many ids and positions cannot serve."""
    if not isinstance(params, SamplingParams):
        raise RequestError(f"params is of type {type(params).__name__}, allowed is SamplingParams")
    if isinstance(tokens, str | bytes | bytearray | memoryview):
        raise RequestError(f"a prompt is of type {type(tokens).__name__}, allowed is one axis of integers")
    try:
        ids = np.asarray(tokens)
    except Exception as error:  # whatever an array of somebody's own raises
        said = " ".join(str(error).split())[:100]
        raise RequestError(f"a prompt is no array of token ids, allowed is one axis of integers ({said})") from error
    if ids.size == 0:
        raise RequestError("the prompt is empty, allowed is at least one token")
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise RequestError(f"a prompt has shape {ids.shape} and dtype {ids.dtype}, allowed is one axis of integers")
    if int(ids.min()) < 0 or int(ids.max()) >= vocab:
        bad = int(ids.min()) if int(ids.min()) < 0 else int(ids.max())
        raise RequestError(f"a token id is {bad}, allowed is 0 to {vocab - 1}")
    total = len(ids) + params.max_tokens
    if total > longest:
        raise RequestError(
            f"prompt and max_tokens are {len(ids)} + {params.max_tokens} = {total} tokens, "
            f"allowed are {longest}, the model's positions"
        )
    return ids
