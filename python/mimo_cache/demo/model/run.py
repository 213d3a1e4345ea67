"""One run of the demo: every turn through an engine with a cache that is too small for all, and through one without.

With a cluster the cache has host memory and GCache nodes below it, which the phases of the run (`phases.py`) take away
and give back.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from mimo_cache import Report
from mimo_cache.models import ModelConfig
from mimo_cache.runner import LLM, Completion, RequestError, SamplingParams, Sources, Tally
from mimo_cache.runner.llm import TINY

from . import sabotage
from .cluster import Cluster, Holding, Sizes, running
from .compare import MtpRows, Verdict
from .phases import Books, Phase, Story
from .scenario import LIVE, Scenario, Turn

FULL = 1.1
"""Tokens of the cache's full pool, as a multiple of the longest prompt's: fewer than the sessions have together."""
NARROW = 0.8
"""The same where there is host memory below, which is then used: the longest prompt, and little beside it."""
LEAST = 1800
"""Tokens of a full pool at least: sessions have no less than 1,000 (`scenario.py`)."""
CHECKPOINTS = 48
"""SWA pages for checkpoints, beside windows and scratch."""
CHUNK = 512
TEMPERATURE = 0.7
"""Of draws, where logits have the same bits and so both sides draw the same; other backends are greedy."""
HOST = 4
"""Bytes of host memory for each byte of the device's pools."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What to run. model: a checkpoint's directory, or "tiny". longest: tokens of the longest prompt, about, and less
    for a model with fewer positions. new_tokens: of a turn at most. cluster: host memory and GCache nodes below the
    device's pools."""

    model: str = "tiny"
    backend: str = "reference"
    turns: int = 60
    seed: int = 0
    sabotage: str | None = None
    longest: int = 7000
    new_tokens: int = 48
    cluster: bool = True


@dataclass(frozen=True, slots=True)
class Served:
    """One turn. cached, plain: seconds to the first token with and without the cache; beside: turns that arrived with
    it. again: tokens, in whole pages, that were served before and are computed all the same; missing: pages of a dead
    node are among them."""

    number: int
    session: int
    kind: str
    prompt: int
    report: Report
    sources: Sources
    again: int
    missing: bool
    cached: float
    plain: float
    beside: int
    prompt_end: str
    answer: str

    @property
    def reuse(self) -> float:
        """Share of the prompt that was reused."""
        return 1 - self.sources.computed / self.prompt


@dataclass(slots=True)
class Result:
    """Everything that is printed. books: of the engines with the cache; holdings: what nodes have at the end; sizes:
    theirs, None without a cluster; killed: name and process of the node, and the turn that it was killed in."""

    settings: Settings
    model: str
    page: int
    verdict: Verdict
    served: list[Served]
    sessions: int
    compactions: int
    damaged: bool
    books: Books
    plain_tally: Tally
    phases: list[Phase]
    sizes: Sizes | None
    holdings: dict[str, Holding]
    killed: tuple[str, int, int] | None
    seconds: float

    @property
    def valid(self) -> bool:
        """Nothing differs."""
        return self.verdict.identical

    @property
    def prompt_tokens(self) -> int:
        """Of all turns."""
        return sum(s.prompt for s in self.served)

    @property
    def hits(self) -> int:
        """Prompt tokens that were reused."""
        return sum(s.prompt - s.sources.computed for s in self.served)

    @property
    def misses(self) -> Counter[str]:
        """Other prompt tokens, by cause."""
        return sum((Counter(s.report.misses) for s in self.served), Counter())

    def phase(self, phase: Phase) -> list[Served]:
        """The turns of a phase."""
        later = [other.first for other in self.phases if other.first > phase.first]
        return [s for s in self.served if phase.first <= s.number < min(later, default=len(self.served) + 1)]

    def times(self, least: float = 0.0) -> tuple[int, float, float]:
        """Turns with at least this share reused, and their median seconds to the first token with and without cache."""
        some = [s for s in self.served if s.reuse >= least]
        if not some:
            return 0, 0.0, 0.0
        return len(some), statistics.median(s.cached for s in some), statistics.median(s.plain for s in some)


def run(settings: Settings, progress: Callable[[int, int, str], None] | None = None) -> Result:
    """Serves the sessions twice and compares turn by turn, on one thread: a small model gains nothing from more, and
    threads that wait for each other on a busy machine make times meaningless.

    Raises `RequestError` when a row is to be damaged and no turn after the first half reuses any.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _run(settings, progress)
    finally:
        torch.set_num_threads(threads)


def _run(settings: Settings, progress: Callable[[int, int, str], None] | None) -> Result:
    begin = time.perf_counter()
    longest = longest_prompt(settings)
    plain = _engine(settings, LIVE * max(LEAST, int(longest)), 0)
    with running(plain.geometry) if settings.cluster else nullcontext() as cluster:

        def make() -> LLM:
            share = FULL if cluster is None else NARROW
            return _engine(settings, max(LEAST, int(share * longest)), CHECKPOINTS, cluster)

        with closing(Story(make, cluster, settings.turns)) as story:
            result = _play(settings, story, plain, longest, progress)
    result.seconds = time.perf_counter() - begin
    return result


def _play(
    settings: Settings, story: Story, plain: LLM, longest: int, progress: Callable[[int, int, str], None] | None
) -> Result:
    exact = plain.engine.model.kernels.bit_exact
    scenario = Scenario(settings.seed, settings.turns, longest, plain.tokenizer.encode)
    verdict, plain_rows, before = Verdict(exact), MtpRows(plain.engine), Before()
    served: list[Served] = []
    damaged = False
    for wave in scenario.waves(story.stops):
        story.wave(len(served), wave)
        ours, prompts = story.llm, [turn.prompt for turn in wave]
        params = [_params(turn, exact, settings.new_tokens) for turn in wave]
        if settings.sabotage is not None and not damaged and 2 * len(served) >= story.first_phase - 1:
            damaged = any(sabotage.damage(ours, prompt, settings.sabotage) for prompt in prompts)
        cached = ours.generate(prompts, params)
        without = plain.generate(prompts, params, store=False)
        for turn, a, b, rows, others in zip(wave, cached, without, story.rows.take(), plain_rows.take(), strict=True):
            if b.sources.computed < len(turn.prompt):
                raise RequestError("the engine without a cache reused tokens, so nothing can be compared with it")
            number = len(served) + 1
            verdict.turn(number, turn, a, b, rows, others)
            served.append(_served(number, turn, a, b, len(wave) - 1, story, before.common(turn.prompt)))
            turn.session.answer(b.token_ids)
        for turn, completion in zip(wave, without, strict=True):
            before.add(turn.prompt + completion.token_ids)
        if progress is not None:
            rate = 1 - sum(s.sources.computed for s in served) / sum(s.prompt for s in served)
            progress(len(served), settings.turns, f"turn {len(served)}, hit rate {100 * rate:.1f} %")
    if settings.sabotage is not None and not damaged:
        raise RequestError(
            "no turn in which a row may be damaged reuses anything, so no row was damaged; allow more turns"
        )
    story.end()
    cluster = story.cluster
    return Result(
        settings=settings,
        model=describe(plain),
        page=plain.geometry.page_size,
        verdict=verdict,
        served=served,
        sessions=len({s.session for s in served}),
        compactions=sum(s.compactions for s in scenario.sessions),
        damaged=damaged,
        books=story.books,
        plain_tally=plain.engine.tally,
        phases=story.phases,
        sizes=cluster.sizes if cluster is not None else None,
        holdings=cluster.holdings() if cluster is not None else {},
        killed=story.killed,
        seconds=0.0,
    )


class Before:
    """Token ids that were served."""

    def __init__(self) -> None:
        self.all: list[Any] = []

    def add(self, tokens: list[int]) -> None:
        """A prompt and its answer."""
        self.all.append(np.array(tokens, dtype=np.int64))

    def common(self, prompt: list[int]) -> int:
        """Tokens from the prompt's start that were served before."""
        ids, longest = np.array(prompt, dtype=np.int64), 0
        for other in self.all:
            least = min(len(ids), len(other))
            differs = np.flatnonzero(ids[:least] != other[:least])
            longest = max(longest, int(differs[0]) if len(differs) else least)
        return longest


def longest_prompt(settings: Settings) -> int:
    """Tokens of the longest prompt, about; an answer still fits the model."""
    config = ModelConfig.from_path(TINY if settings.model == "tiny" else settings.model)
    return min(settings.longest, int(0.8 * config.max_positions))


def _engine(settings: Settings, tokens: int, checkpoints: int, cluster: Cluster | None = None) -> LLM:
    """With pools for so many tokens and checkpoints; with a cluster, with host memory and its nodes below."""
    page = 16
    scratch = CHUNK // page + 2 * LIVE
    full_pages, swa_pages = tokens // page, scratch + 6 * LIVE + checkpoints
    below: dict[str, Any] = {}
    if cluster is not None:
        geometry = cluster.geometry
        memory = full_pages * geometry.stored_full_page_bytes + swa_pages * geometry.stored_swa_page_bytes
        # A request waits for its pages: it is short beside computing them, and what comes late is of no use to it.
        below = {"host_memory": HOST * memory, "host_write": "through", "gcache": cluster.addresses}
        below["gcache_options"] = {"write": "through", "prefetch": "wait"}
    llm = LLM(
        settings.model,
        backend=settings.backend,
        page_size=page,
        full_pages=full_pages,
        swa_pages=swa_pages,
        scratch_pages=scratch,
        max_running=LIVE,
        max_step_tokens=CHUNK,
        **below,
    )
    # As engines do before they serve: the first step is slow, and so is the first call to a node.
    llm.generate([0], SamplingParams(max_tokens=1), store=False)
    if llm.remote is not None:
        llm.remote.client.stats()
    return llm


def _params(turn: Turn, exact: bool, new: int) -> SamplingParams:
    temperature = TEMPERATURE if exact else 0.0
    return SamplingParams(max_tokens=new, temperature=temperature, seed=turn.seed, keep_logits=True)


def _served(number: int, turn: Turn, a: Completion, b: Completion, beside: int, story: Story, seen: int) -> Served:
    reused, page = len(turn.prompt) - a.sources.computed, story.llm.geometry.page_size
    # One token is always left to compute.
    end = max(reused, min(seen, len(turn.prompt) - 1) // page * page)
    return Served(
        number=number,
        session=turn.session.number,
        kind=turn.kind,
        prompt=len(turn.prompt),
        report=a.report,
        sources=a.sources,
        again=end - reused,
        missing=story.missing(turn.prompt, reused, end),
        cached=a.ttft,
        plain=b.ttft,
        beside=beside,
        prompt_end=story.llm.tokenizer.decode(turn.prompt[-160:]),
        answer=a.text,
    )


def describe(llm: LLM) -> str:
    """The model in words."""
    kinds: Any = llm.config.layer_kinds
    full = sum(kind == "full" for kind in kinds)
    return (
        f"{llm.path.name}: {full} full and {len(kinds) - full} SWA layers, {llm.config.mtp_heads} MTP heads, "
        f"W {llm.geometry.window}, page {llm.geometry.page_size}"
    )
