"""One run of the demo: every turn through an engine with a cache that is too small for all, and through one without."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from mimo_cache import Report, Stats
from mimo_cache.models import ModelConfig
from mimo_cache.runner import LLM, Completion, RequestError, SamplingParams, Tally
from mimo_cache.runner.llm import TINY

from . import sabotage
from .compare import MtpRows, Verdict
from .scenario import LIVE, Scenario, Turn

FULL = 1.6
"""Tokens of the cache's full pool, as a multiple of the longest session's: fewer than the sessions have together."""
CHECKPOINTS = 48
"""SWA pages for checkpoints, beside windows and scratch."""
CHUNK = 512
TEMPERATURE = 0.7
"""Of draws, where logits have the same bits and so both sides draw the same; other backends are greedy."""
MOSTLY = 0.8
"""Share of a prompt that must be reused for the second ratio of times."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What to run. model: a checkpoint's directory, or "tiny". longest: prompt tokens after which the longest session
    is compacted, less for a model with fewer positions. new_tokens: of a turn at most."""

    model: str = "tiny"
    backend: str = "reference"
    turns: int = 48
    seed: int = 0
    sabotage: str | None = None
    longest: int = 8000
    new_tokens: int = 48


@dataclass(frozen=True, slots=True)
class Served:
    """One turn. cached, plain: seconds to the first token with and without the cache; beside: turns that arrived with
    it."""

    number: int
    session: int
    kind: str
    prompt: int
    report: Report
    cached: float
    plain: float
    beside: int
    prompt_end: str
    answer: str

    @property
    def reuse(self) -> float:
        """Share of the prompt that was reused."""
        return self.report.usable / self.prompt


@dataclass(slots=True)
class Result:
    """Everything that is printed. tally, stats: of the engine with the cache and of its cache, at the end."""

    settings: Settings
    model: str
    page: int
    verdict: Verdict
    served: list[Served]
    sessions: int
    compactions: int
    damaged: bool
    tally: Tally
    plain_tally: Tally
    stats: Stats
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
        return sum(s.report.usable for s in self.served)

    @property
    def misses(self) -> Counter[str]:
        """Other prompt tokens, by cause."""
        return sum((Counter(s.report.misses) for s in self.served), Counter())

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
    ours, plain = engines(settings, longest)
    exact = ours.engine.model.kernels.bit_exact
    scenario = Scenario(settings.seed, settings.turns, longest, ours.tokenizer.encode)
    verdict = Verdict(exact)
    our_rows, plain_rows = MtpRows(ours.engine), MtpRows(plain.engine)
    served: list[Served] = []
    damaged = False
    for wave in scenario.waves():
        prompts = [turn.prompt for turn in wave]
        params = [_params(turn, exact, settings.new_tokens) for turn in wave]
        if settings.sabotage is not None and not damaged and 2 * len(served) >= settings.turns - 1:
            damaged = any(sabotage.damage(ours, prompt, settings.sabotage) for prompt in prompts)
        cached = ours.generate(prompts, params)
        without = plain.generate(prompts, params, store=False)
        for turn, a, b, rows, others in zip(wave, cached, without, our_rows.take(), plain_rows.take(), strict=True):
            if b.report.usable:
                raise RequestError("the engine without a cache reused tokens, so nothing can be compared with it")
            number = len(served) + 1
            verdict.turn(number, turn, a, b, rows, others)
            served.append(_served(number, turn, a, b, len(wave) - 1, ours))
            turn.session.answer(b.token_ids)
        if progress is not None:
            rate = sum(s.report.usable for s in served) / sum(s.prompt for s in served)
            progress(len(served), settings.turns, f"turn {len(served)}, hit rate {100 * rate:.1f} %")
    ours.cache.check_integrity()
    if settings.sabotage is not None and not damaged:
        raise RequestError("no turn after the first half reuses anything, so no row was damaged; allow more turns")
    return Result(
        settings=settings,
        model=describe(ours),
        page=ours.geometry.page_size,
        verdict=verdict,
        served=served,
        sessions=len(scenario.sessions),
        compactions=sum(s.compactions for s in scenario.sessions),
        damaged=damaged,
        tally=ours.engine.tally,
        plain_tally=plain.engine.tally,
        stats=ours.cache.stats(),
        seconds=time.perf_counter() - begin,
    )


def longest_prompt(settings: Settings) -> int:
    """Tokens after which the longest session is compacted; its last message and an answer still fit the model."""
    config = ModelConfig.from_path(TINY if settings.model == "tiny" else settings.model)
    return min(settings.longest, int(0.8 * config.max_positions))


def engines(settings: Settings, longest: int) -> tuple[LLM, LLM]:
    """The engine with the cache, and one whose cache never holds anything."""
    ours = _engine(settings, int(FULL * longest), CHECKPOINTS)
    return ours, _engine(settings, LIVE * int(FULL * longest), 0)


def _engine(settings: Settings, tokens: int, checkpoints: int) -> LLM:
    page = 16
    scratch = CHUNK // page + 2 * LIVE
    return LLM(
        settings.model,
        backend=settings.backend,
        page_size=page,
        full_pages=tokens // page,
        swa_pages=scratch + 6 * LIVE + checkpoints,
        scratch_pages=scratch,
        max_running=LIVE,
        max_step_tokens=CHUNK,
    )


def _params(turn: Turn, exact: bool, new: int) -> SamplingParams:
    temperature = TEMPERATURE if exact else 0.0
    return SamplingParams(max_tokens=new, temperature=temperature, seed=turn.seed, keep_logits=True)


def _served(number: int, turn: Turn, a: Completion, b: Completion, beside: int, llm: LLM) -> Served:
    return Served(
        number=number,
        session=turn.session.number,
        kind=turn.kind,
        prompt=len(turn.prompt),
        report=a.report,
        cached=a.ttft,
        plain=b.ttft,
        beside=beside,
        prompt_end=llm.tokenizer.decode(turn.prompt[-160:]),
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
