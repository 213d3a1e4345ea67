"""Part `planner` of `mimo-cache bench tiers`: what deciding costs, apart from the bytes.

`planner_chunk`: what the engine spends in `HostTier` (asking, planning, telling, submitting) while it brings 4,096
tokens of a prompt up and computes and writes down the next 4,096, as a share of the shortest chunk of 4,096 tokens: one
with nothing before it, computed in turns. Both are CPU time of the engine's thread: waits for copies are not counted.
`planner_page_N`: `TierPlanner.fetch` and `fetched`, per page that comes up, for a prefix of N tokens of MiMo-V2.5-Pro
that the host tier has and the device lacks; no memory is behind the pages.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, cast

import numpy as np

from mimo_cache import Geometry, PrefixCache
from mimo_cache.bench.report import PLANNED
from mimo_cache.bench.tiers import Options
from mimo_cache.bench.tiers_ttft import one_thread
from mimo_cache.bench.timing import Figure, figure
from mimo_cache.runner import LLM, SamplingParams
from mimo_cache.tiers import HostTier, TierPlanner

CHUNK = 4096
"""Tokens that come up, and tokens that are computed."""
TIER_CALLS = ("awaits", "fetch", "finish", "save", "poll")
"""Of `HostTier`, all that the engine calls."""
ONE = SamplingParams(max_tokens=1, ignore_eos=True)
PRO_PAGE = 64
PAGES_MOVED = 20_000
"""Of each run of `planner_page`, at least."""


def planner(options: Options) -> list[Figure]:
    """Both kinds of figures."""
    figures = _chunk(options)
    for tokens in PLANNED:
        figures += _page(options, tokens)
    return figures


# --- share of a chunk -----------------------------------------------------------------------------------------------


class Watched:
    """A host tier that counts the CPU time of its calls."""

    def __init__(self, tier: HostTier) -> None:
        self.tier, self.seconds = tier, 0.0
        for name in TIER_CALLS:
            setattr(self, name, self._timed(getattr(tier, name)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tier, name)

    def _timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **named: Any) -> Any:
            begin = time.thread_time()
            try:
                return call(*args, **named)
            finally:
                self.seconds += time.thread_time() - begin

        return timed


def _chunk(options: Options) -> list[Figure]:
    """Two prefixes by turns, on a device that holds one prompt: each pushes the other one out, and comes up again."""
    page = 16
    chunk = max(int(CHUNK * options.scale) // page, 4) * page
    samples: dict[str, list[float]] = {"step": [], "tier": [], "share": []}
    rng = np.random.default_rng(3)
    with one_thread():
        llm = _engine(chunk, page, options.runs)
        assert llm.tier is not None
        prefixes = [rng.integers(0, 256, chunk).tolist() for _ in range(2)]
        # The last prompt pushes the second prefix out.
        for prompt in (*prefixes, prefixes[0] + rng.integers(0, 256, chunk).tolist()):
            llm.generate([prompt], ONE)
            llm.tier.drain()
        watched = Watched(llm.tier)
        llm.engine.tier = cast(HostTier, watched)  # it has what the engine calls
        for i in range(-1, options.runs):
            tier = _tier_seconds(llm, watched, prefixes[i % 2], rng.integers(0, 256, chunk).tolist())
            alone = rng.integers(0, 256, chunk).tolist()
            begin = time.thread_time()
            llm.generate([alone], ONE, store=False)
            step = time.thread_time() - begin
            if i >= 0:  # the first warms up
                for name, value in (("step", 1e3 * step), ("tier", 1e6 * tier), ("share", tier / step)):
                    samples[name].append(value)
        llm.tier.close()
    return [
        figure("planner_chunk_step", "ms", samples["step"]),
        figure("planner_chunk_tier", "us", samples["tier"]),
        figure("planner_chunk", "1", samples["share"]),
    ]


def _engine(chunk: int, page: int, runs: int) -> LLM:
    """Device pools for one prompt of two chunks; host memory for all of the bench."""
    pages = chunk // page
    return LLM(
        "tiny",
        full_pages=2 * pages + 2,
        swa_pages=pages + 68,
        scratch_pages=pages + 4,
        page_size=page,
        max_running=1,
        max_step_tokens=chunk,
        host_memory=(64 << 20) + 2 * (runs + 4) * pages * 8192,
        host_write="through",
        retention="prompt_end+seq_end+branch",  # the prefixes' ends stay, however many prompts go on from them
    )


def _tier_seconds(llm: LLM, watched: Watched, prefix: list[int], new: list[int]) -> float:
    """Seconds inside the host tier of one request whose prefix comes up, and whose new tokens go down."""
    tier, tally = watched.tier, llm.engine.tally
    fetched, computed, saved, begin = tally.fetched, tally.computed, tier.stats().saved_full, watched.seconds
    llm.generate([prefix + new], ONE)
    # Copies down end when they end; telling the planner of it is part of what is measured.
    while tier.copier.in_flight()[0]:
        time.sleep(0.001)
    watched.poll()
    up, there, down = tally.fetched - fetched, tally.computed - computed, tier.stats().saved_full - saved
    if (up, there) != (len(prefix), len(new)) or down < len(new) // llm.cache.page_size:
        raise RuntimeError(f"{up} of {len(prefix)} tokens came up, {there} were computed, {down} pages went down")
    return watched.seconds - begin


# --- per page -------------------------------------------------------------------------------------------------------


def _page(options: Options, tokens: int) -> list[Figure]:
    """Prefixes that were never seen before, in pools that hold all of them: nothing is evicted."""
    pages = max(int(tokens * options.scale) // PRO_PAGE, 8)
    rounds = max(int(PAGES_MOVED * options.scale) // pages, 3)
    room = (rounds + 1) * (pages + 1) * (options.runs + 1)
    geometry = Geometry.preset("mimo-v2.5-pro", tp_size=8, page_size=PRO_PAGE)
    runs = []
    rng = np.random.default_rng(4)
    swa = 64 + 8 * (rounds + 1) * (options.runs + 1)
    cache = PrefixCache(geometry, full_pages=room, swa_pages=swa)
    below = TierPlanner(cache, full_pages=room, swa_pages=swa)
    for run in range(-1, options.runs):
        spent = moved = 0
        for _ in range(rounds):
            prompt = rng.integers(0, 100_000, pages * PRO_PAGE + 1, dtype=np.uint32)
            _arrive_below(below, prompt, pages * PRO_PAGE)
            seq = cache.request(prompt).open()
            begin = time.thread_time_ns()
            plan = below.fetch(seq)
            if plan is None:
                raise RuntimeError("the planner of the bench fetches nothing")
            count = len(plan.full) + len(plan.swa)
            there = below.fetched(plan.id, True)
            spent += time.thread_time_ns() - begin
            if not there or plan.end != pages * PRO_PAGE or len(plan.full) != pages:
                raise RuntimeError(f"a fetch of the bench ended at {plan.end} of {pages * PRO_PAGE} tokens")
            moved += count
            seq.abort()
        if run >= 0:  # the first warms up
            runs.append(spent / moved / 1e3)
    return [figure(f"planner_page_{tokens}", "us", runs)]


def _arrive_below(below: TierPlanner, prompt: Any, boundary: int) -> None:
    """The host tier has a prefix, the device has nothing of it."""
    plan = below.receive(prompt, boundary, below.names(prompt)[boundary // PRO_PAGE - 1])
    if plan is None:
        raise RuntimeError("the host tier of the bench has no room")
    ends = [(page + 1) * PRO_PAGE for page, _ in plan.swa]
    below.received(plan.id, [prompt[end : end + 3].tolist() for end in ends])
