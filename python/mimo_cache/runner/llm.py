"""`LLM`: a checkpoint, a cache and the step loop behind two calls."""

from __future__ import annotations

import hashlib
import inspect
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, cast

from mimo_cache import GCacheClient, Geometry, Key, OutOfPages, PrefixCache, Report, _core
from mimo_cache.kernels import get
from mimo_cache.kernels.contract import Shape
from mimo_cache.models import ModelConfig, load
from mimo_cache.models.errors import need
from mimo_cache.tiers import GCacheTier, HostTier, metrics

from . import budget
from .engine import Engine
from .errors import RequestError, whole
from .lane import Output
from .memory import Pools
from .model import Model
from .sampling import SamplingParams
from .sources import Sources
from .tokenizer import Tokenizer

TINY = Path(__file__).parent.parent / "models" / "tiny"
"""The checkpoint that comes with the package; its name is "tiny"."""
KV_DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}

GREEDY = SamplingParams()

Prompt: TypeAlias = str | Sequence[int]


@dataclass(frozen=True, slots=True)
class Completion:
    """What became of one prompt. finish: "stop" or "length". ttft: seconds from the call to the first token. report:
    what lookups found of the prompt, and the causes of the rest. sources: where the prompt's tokens came from. wait:
    seconds that layers waited for pages, in the steps that it took part in. logits: fp32 [tokens, vocab], when the
    parameters asked for them."""

    text: str
    token_ids: list[int]
    finish: str
    ttft: float
    report: Report
    sources: Sources
    wait: float
    logits: Any = None


@dataclass(frozen=True, slots=True)
class Piece:
    """One new token of a stream. text: what it completes, often nothing. finish: None until the last one."""

    text: str
    token_id: int
    finish: str | None
    report: Report
    sources: Sources


GCACHE_OPTIONS = tuple(name for name in inspect.signature(GCacheTier).parameters if name not in ("host", "client"))


class LLM:
    """A model that generates through a prefix cache.

    - `path`: a hub checkpoint's directory, or "tiny" for the one that comes with the package.
    - `backend`: "torch", or "reference", whose bits do not depend on what is cached.
    - `memory`: bytes of all pools ("512M", "8G"), or `full_pages`, `swa_pages` and `scratch_pages` one by one.
    - `page_size`: tokens per page; by default the largest power of two up to the window W and 64.
    - `retention`, `policy`: as for `PrefixCache`; by default with the ends of answers, which the
      next turn repeats.
    - `max_running`: sequences in one step; `max_step_tokens`: their rows, which bounds a prefill chunk.
    - `host_memory`: bytes of a host tier below the device's pools (docs/tiers.md), by default none; `host_write`: when
      prefixes go down to it, "through", "back" or "hit<n>".
    - `gcache`: nodes of a GCache cluster below the host tier, as a list or as `GCACHE_NODES` has them, or a client of
      one, which stays the caller's;
      `gcache_options` are those of `GCacheTier`. `weights`: the version of the weights, part of the names of pages;
      with `gcache` by default a digest of the checkpoint's files and of the backend.
    - `tracer`: gets spans of what moves between tiers (`mimo_cache.tiers.trace`): a tracer of OpenTelemetry, or True
      for the one that is installed. `metrics` has times and counters.
    - `dtype`: of weights and KV, by default float32 on the CPU and the config's elsewhere.

    Raises what `mimo_cache.models.load` raises, `RequestError`, and `UnknownBackend`. Threads may share
    it: they take turns, step by step, and a step serves the requests of all.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] = "tiny",
        *,
        backend: str = "torch",
        memory: str | int = "256M",
        full_pages: int | None = None,
        swa_pages: int | None = None,
        scratch_pages: int | None = None,
        page_size: int | None = None,
        retention: str = f"seq_end+{_core.DEFAULT_RETENTION}",
        policy: str = _core.DEFAULT_POLICY,
        max_running: int = 8,
        max_step_tokens: int = 512,
        host_memory: str | int | None = None,
        host_write: str = "through",
        gcache: GCacheClient | Sequence[str] | str | None = None,
        gcache_options: Mapping[str, Any] | None = None,
        weights: str | bytes | None = None,
        tracer: Any = None,
        mtp: bool = True,
        dtype: str | None = None,
        device: str = "cpu",
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        need("torch")
        kernels_class = get(backend)
        for name, value in (("max_running", max_running), ("max_step_tokens", max_step_tokens)):
            whole(name, value, 1, 1 << 16)
        max_running, max_step_tokens = int(max_running), int(max_step_tokens)
        if scratch_pages is not None and full_pages is None and swa_pages is None:
            raise RequestError(
                f"scratch_pages is {scratch_pages} without full_pages and swa_pages, allowed is all three"
            )
        try:
            self.path = TINY if path == "tiny" else Path(path)
        except TypeError as error:
            raise RequestError(
                f"path is of type {type(path).__name__}, allowed is str or os.PathLike of str"
            ) from error
        self.tokenizer = Tokenizer(self.path)
        options = dict(gcache_options or {})
        if unknown := [name for name in options if name not in GCACHE_OPTIONS]:
            raise RequestError(f"gcache_options has {unknown[0]!r}, allowed are {', '.join(GCACHE_OPTIONS)}")
        if gcache is not None and host_memory is None:
            raise RequestError("gcache is given without host_memory, allowed is both: its pages come into host memory")
        config, loaded = load(self.path, dtype=dtype, device=device, mtp=mtp, progress=progress)
        self.config: ModelConfig = config
        kv_dtype = KV_DTYPES[str(loaded.embed.dtype).removeprefix("torch.")]
        self.geometry = Geometry.from_file(
            self.path / "config.json",
            mtp_heads=config.mtp_heads,
            page_size=default_page(config.window_keys - 1) if page_size is None else page_size,
            kv_dtype=kv_dtype,
        )
        if full_pages is None and swa_pages is None:
            pages = budget.plan(
                self.geometry,
                budget.parse_bytes(memory),
                max_running=max_running,
                max_step_tokens=max_step_tokens,
            )
        else:
            pages = budget.Budget(full_pages or 0, swa_pages or 0, scratch_pages or 0)
        self.cache = PrefixCache(
            self.geometry,
            full_pages=pages.full_pages,
            swa_pages=pages.swa_pages,
            scratch_pages=pages.scratch_pages,
            retention=retention,
            policy=policy,
        )
        shape = Shape(
            self.geometry.page_size,
            config.window_keys,
            config.experts_per_token,
            config.norm_topk_prob,
            config.routed_scaling,
            device,
        )
        pools = Pools.make(
            config,
            page_size=self.geometry.page_size,
            full_pages=pages.full_pages,
            swa_pages=pages.swa_pages,
            dtype=loaded.embed.dtype,
            device=device,
        )
        model = Model(config, loaded, kernels_class(shape), pools)
        self.tier = None
        if host_memory is not None:
            below = budget.below(self.geometry, budget.parse_bytes(host_memory, "host_memory"))
            self.tier = HostTier(
                self.cache,
                pools.layout(config.layer_kinds),
                full_pages=below.full_pages,
                swa_pages=below.swa_pages,
                write=host_write,
                tracer=tracer,
            )
        if gcache is not None and weights is None:
            weights = weights_version(self.path, backend)
        if weights is not None:  # both tiers are told
            self.cache.set_weights(weights)
        self.remote, self._client = None, None
        if gcache is not None and self.tier is not None:
            if not isinstance(gcache, GCacheClient):
                nodes = gcache.split(",") if isinstance(gcache, str) else gcache
                gcache = self._client = GCacheClient(nodes)
            self.remote = GCacheTier(self.tier, gcache, **options)
        self.engine = Engine(
            model,
            self.cache,
            max_running=max_running,
            max_step_tokens=max_step_tokens,
            tier=self.tier,
            remote=self.remote,
        )
        self._turn = threading.RLock()
        """Held for a step and for handing out its tokens: threads take turns."""
        self._boxes: dict[int, deque[Output]] = {}
        self._refusals: dict[int, OutOfPages] = {}

    def close(self) -> None:
        """Ends threads and connections of the tiers below the device, bounded in time; requests go on without them."""
        with self._turn:
            self.engine.leave_tiers()
            if self.remote is not None:
                self.remote.close()
            if self.tier is not None:
                self.tier.close()
            if self._client is not None:
                self._client.close()

    def metrics(self) -> str:
        """Counters and times of the tiers in Prometheus' text format (`mimo_cache.tiers.metrics`). Any thread may call.

        Raises `RequestError` without a host tier.
        """
        if self.tier is None:
            raise RequestError("there is no host tier, allowed is metrics with host_memory")
        return metrics(self.tier, self.remote)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] = GREEDY,
        *,
        key: Key | None = None,
        store: bool = True,
    ) -> list[Completion]:
        """Completes one or many prompts (texts or token ids), in order.

        `params` holds for all, or one for each. `key` is their namespace; `store=False` reads the cache and publishes
        nothing. Raises `RequestError` for a request that model or pools can never serve, before any is run where that
        can be known; then nothing of the call stays queued.
        """
        many = cast(list[Prompt], [prompts] if _is_one(prompts) else list(prompts))
        given: Any = params  # callers need not check types
        if not isinstance(given, SamplingParams | Sequence):
            said = f"params is of type {type(given).__name__}"
            raise RequestError(f"{said}, allowed is SamplingParams, or a list of them")
        each: list[SamplingParams] = [given] * len(many) if isinstance(given, SamplingParams) else list(given)
        if len(each) != len(many):
            raise RequestError(f"there are {len(each)} parameters for {len(many)} prompts, allowed is one or as many")
        begin = time.perf_counter()
        uids: list[int] = []
        made: list[list[Output]] = []
        try:
            for prompt, param in zip(many, each, strict=True):
                uids.append(self._begin(prompt, param, key, store))
            for uid in uids:
                made.append([self._next(uid, uids)])
                while not made[-1][-1].finish:
                    made[-1].append(self._next(uid, uids))
        finally:
            for uid in uids:
                self._end(uid)
        return [self._completion(outputs, begin) for outputs in made]

    def stream(
        self, prompt: Prompt, params: SamplingParams = GREEDY, *, key: Key | None = None, store: bool = True
    ) -> Generator[Piece]:
        """Completes one prompt token by token. Closing the iterator early aborts the request. Streams and calls of
        `generate` may be mixed: a step serves all of them, whoever asks for it."""
        decoder = self.tokenizer.stream()
        uid = self._begin(prompt, params, key, store)
        try:
            finish = None
            while not finish:
                output = self._next(uid, [uid])
                finish = output.finish
                yield Piece(decoder.step(output.token), output.token, finish, output.report, output.sources)
        finally:
            self._end(uid)

    def _begin(self, prompt: Prompt, params: SamplingParams, key: Key | None, store: bool) -> int:
        ids = self._ids(prompt)
        with self._turn:
            uid = self.engine.add(ids, params, key=key, store=store)
            self._boxes[uid] = deque()
        return uid

    def _next(self, uid: int, call: Sequence[int]) -> Output:
        """The next token of a request. Steps are run until there is one, and what they make for others is kept. Raises
        what became of any request of the same call."""
        box = self._boxes[uid]
        while True:
            with self._turn:
                if box:
                    return box.popleft()
                for refused in self._refusals.keys() & call:
                    raise self._refusals[refused]
                if not self.engine.has(uid):
                    raise RequestError("the request has ended: a step that it took part in failed, or it was aborted")
                self._step()

    def _step(self) -> None:
        """Runs a step and hands out what it made."""
        try:
            outputs = self.engine.step()
        except OutOfPages as refusal:
            if self.engine.refused is None:
                raise
            self._refusals[self.engine.refused] = refusal
            return
        for output in outputs:
            if output.uid in self._boxes:
                self._boxes[output.uid].append(output)

    def _end(self, uid: int) -> None:
        with self._turn:
            self.engine.abort(uid)
            self._boxes.pop(uid, None)
            self._refusals.pop(uid, None)
            if self.engine.tier is not None and not self.engine.busy:
                self.engine.tier.drain()  # what goes down goes on with steps, and there are none now

    def _ids(self, prompt: Prompt) -> Sequence[int]:
        return self.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt

    def _completion(self, outputs: list[Output], begin: float) -> Completion:
        import torch  # noqa: PLC0415  optional

        ids = [o.token for o in outputs]
        logits = torch.stack([o.logits for o in outputs]) if outputs[0].logits is not None else None
        finish = outputs[-1].finish or "length"
        first, last = outputs[0], outputs[-1]
        text, ttft = self.tokenizer.decode(ids), first.at - begin
        return Completion(text, ids, finish, ttft, first.report, first.sources, last.wait, logits)


def weights_version(path: Path, backend: str) -> bytes:
    """SHA-256 of all weights of a checkpoint, and of the backend's name: the bits of KV are another backend's
    otherwise. Reads every byte; for large checkpoints give `LLM` a `weights` of your own."""
    digest = hashlib.sha256(backend.encode())
    for file in sorted(path.glob("*.safetensors")):
        with file.open("rb") as opened:
            digest.update(file.name.encode() + hashlib.file_digest(opened, "sha256").digest())
    return digest.digest()


def default_page(window: int) -> int:
    """The largest power of two that is at most W and 64; 64 without a window."""
    return 1 << (min(window, 64).bit_length() - 1) if window > 0 else 64


def _is_one(prompts: Any) -> bool:
    """A text, or token ids themselves. Raises `RequestError` for what is neither one nor a list of them."""
    if isinstance(prompts, str | bytes | bytearray):  # of which the step loop says which are refused
        return True
    if not isinstance(prompts, Sequence) and not getattr(prompts, "ndim", 0):
        said = f"prompts is of type {type(prompts).__name__}"
        raise RequestError(f"{said}, allowed is a text, token ids, or a list of these")
    if len(prompts) == 0:
        return False
    return not isinstance(prompts[0], str | Sequence) and getattr(prompts[0], "ndim", 0) == 0
