"""Cached equals uncached, whatever happens: random schedules of requests, each compared with itself alone.

A schedule has several sequences at once, prompts that continue or branch off older ones, pools so small that pages are
evicted and requests wait, aborts at every stage, steps that are interrupted, chunks of any size, greedy and seeded
completions; with `below`, a host tier under the pools whose copies fail now and then. Pools are full of NaN wherever
nothing may be read, freed pages included (`watched.py`). In the reference backend tokens, bits of logits, and every row
that a step reads (KV of both groups, hidden states, MTP rows) are those of the same request alone in an empty cache. In
the torch backend rows and logits are within 1e-4 and tokens are equal, up to the first place where the two largest
logits are closer than that.

500 schedules, about four minutes on one free core:

    MIMO_SCHEDULES=500 .venv/bin/python -m pytest tests/python/test_runner_schedules.py

`MIMO_SOAK=n` runs n times as many as the default, and `MIMO_SCHEDULE=number` one schedule alone, for a failure.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from mimo_cache import OutOfPages, PrefixCache
from mimo_cache.models.config import ModelConfig
from mimo_cache.models.weights import ModelWeights
from mimo_cache.runner import Engine, Output, Pools, SamplingParams, Sources
from mimo_cache.tiers import Fetch, HostTier
from small_models import Sizes, config, parts, shape, weights
from watched import Alone, Record, Told, Watched

DEFAULT = 100
COUNT = int(os.environ.get("MIMO_SCHEDULES", DEFAULT * int(os.environ.get("MIMO_SOAK", "1"))))
ONLY = os.environ.get("MIMO_SCHEDULE")
LONGEST = 44
"""Tokens of a prompt at most."""
RETENTION = ("prompt_end+branch", "prompt_end+branch+seq_end", "branch+seq_end+sup1", "prompt_end+branch+stride8")


@cache
def model(window: int, heads: int, kinds: str) -> tuple[ModelConfig, ModelWeights]:
    """A model of a few layers: `kinds` has a letter for each, f or s."""
    layers = tuple({"f": "full", "s": "swa"}[kind] for kind in kinds)
    made = config(
        layer_kinds=layers,
        moe_layers=tuple(i == 1 for i in range(len(layers))),
        window_keys=window + 1,
        mtp_heads=heads,
        hidden_size=16,
        dense_size=16,
        expert_size=8,
        full=shape(1, 1e5, False, k_dim=8, v_dim=4),
        swa=shape(2, 1e2, True, k_dim=8, v_dim=4),
        vocab_size=24,
    )
    return made, weights(made)


class Shaky(HostTier):
    """A host tier whose copies fail now and then, and whose memory holds NaN before it holds anything."""

    def __init__(self, source: np.random.Generator, cache: PrefixCache, layout: Any, **sizes: Any) -> None:
        super().__init__(cache, layout, **sizes)
        self.source = source
        for group, pages in (("full", sizes["full_pages"]), ("swa", sizes["swa_pages"])):
            for page in range(1, pages + 1):
                view = self.region.page(group, page, writable=True)  # type: ignore[arg-type]
                view[:] = b"\xff" * len(view)

    def fetch(self, seq: Any) -> Fetch | None:
        fetch = super().fetch(seq)
        if fetch is not None and self.source.random() < 0.15:
            fetch.cancel()
        return fetch

    def finish(self, fetch: Fetch, ok: bool = True) -> bool:
        return super().finish(fetch, ok and self.source.random() < 0.9)

    def save(self, tokens: Any, key: Any = None, spans: Any = None, tenant: int = 0, start: int = 0) -> int:
        pages = super().save(tokens, key, spans, tenant, start)
        for job in self._saves.values():
            if self.source.random() < 0.1:
                job.cancel()
        if self.source.random() < 0.5:
            self.drain()
        self.check_integrity()
        return pages


@dataclass
class Plan:
    """What a schedule is made of, drawn from its number."""

    number: int
    backend: str
    below: bool = False
    source: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.source = source = np.random.default_rng(self.number)
        self.page = int(source.choice([1, 2, 4, 4, 8]))
        self.window = int(source.choice([1, 2, 3, self.page, self.page + 1, 2 * self.page + 3]))
        self.kinds = str(source.choice(["fss", "sfs", "fs", "fs", "ss", "ff"], p=[0.3, 0.3, 0.1, 0.1, 0.1, 0.1]))
        self.heads = int(source.choice([0, 1, 3, 3, 3])) if "s" in self.kinds else 0
        self.running = int(source.choice([1, 2, 3, 5]))
        self.chunk = int(source.choice([self.running, 5, 9, 17, 64]))
        self.alphabet = int(source.choice([2, 2, 3, 20]))
        quota = -(-(self.window + 2 * self.heads + 1) // self.page) + 2 + -(-self.window // self.page)
        scratch = int(source.choice([0, 1, 4, 12]))
        room = quota * int(source.integers(1, self.running + 1)) + int(source.integers(0, 8))
        longest = -(-(LONGEST + 12) // self.page)
        full = int(longest * source.choice([0.7, 1.0, 1.3, 2.0, 4.0])) + int(source.integers(0, 4))
        if self.below:  # little more than one request, so that much comes from the host tier
            full, room = longest + 2, quota + int(source.integers(0, 4))
        self.sizes = Sizes(full, room + scratch, scratch)
        self.retention = str(source.choice(RETENTION))

    def engine(self, cls: type[Engine], *, alone: bool = False) -> Any:
        """An engine, on pools with room for everything when it serves one request alone."""
        made, drawn = model(self.window, self.heads, self.kinds)
        sizes = Sizes(100, 130, 90) if alone else self.sizes
        model_, cache_ = parts(made, drawn, self.backend, self.page, sizes, retention=self.retention)
        if alone:
            return cls(model_, cache_, max_running=1, max_step_tokens=LONGEST)
        tier = self.tier(made, model_.pools, cache_) if self.below else None
        return cls(model_, cache_, max_running=self.running, max_step_tokens=self.chunk, tier=tier)

    def tier(self, made: ModelConfig, pools: Pools, cache: PrefixCache) -> Shaky:
        """Host memory for a few stories, or for many."""
        source = np.random.default_rng(1_000_000 + self.number)
        window = -(-(self.window + 2 * self.heads + 1) // self.page) + 2
        full = int(source.choice([12, 60, 200])) if "f" in self.kinds else 0
        swa = 2 * window + int(source.choice([4, 30, 100])) if "s" in self.kinds else 0
        layout = pools.layout(made.layer_kinds)
        write, most = str(source.choice(["through", "through", "hit1"])), int(source.choice([3, 100]))
        return Shaky(source, cache, layout, full_pages=full, swa_pages=swa, write=write, max_saving=most)


class Fault(Exception):
    """Something that goes wrong inside a step."""


class Schedule:
    """One run."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.source = plan, plan.source
        self.engine: Watched = plan.engine(Watched)
        self.engine.watch()
        self.engine.settle()
        self.stories: list[tuple[list[int], int]] = []
        self.records: dict[tuple[Any, ...], Record] = {}
        self.sources: dict[int, Sources] = {}
        self.counts = dict.fromkeys(("finished", "aborted", "refused", "faults", "hits", "rebuilds", "waited"), 0)

    def draw(self, *choices: Any) -> Any:
        return choices[int(self.source.integers(len(choices)))]

    def run(self, operations: int = 60) -> None:
        """Random operations, then everything that was asked for is finished."""
        ways = [self.request, self.request, self.step, self.step, self.step, self.step, self.abort, self.rare]
        for _ in range(operations):
            self.draw(*ways)()
        while self.engine.busy:
            self.step()
        for told in self.engine.told.values():
            assert told.left or told.made == told.record.tokens[: len(told.made)]
        if self.engine.tier is not None:  # copies down lease what they read
            self.engine.tier.drain()
        stats = self.engine.cache.stats()
        for pool in (stats.full, stats.swa):
            assert (pool.private, pool.quarantined, pool.leased, pool.promised, pool.scratch_used) == (0, 0, 0, 0, 0)
            assert pool.free + pool.cached == pool.total
        assert stats.open_sequences == 0
        if self.engine.tier is not None:
            self.engine.tier.check_integrity()
            moved, host = self.engine.tier.stats(), self.engine.tier.planner.host_stats()
            assert (moved.fetching, moved.saving_pages) == (0, 0)
            for pool in (host.full, host.swa):
                assert (pool.private, pool.quarantined, pool.leased) == (0, 0, 0)
            for name in ("fetched_tokens", "fetches_failed", "saves", "saves_failed", "saved_swa"):
                self.counts[name] = getattr(moved, name)
            self.counts["host"] = sum(sources.host for sources in self.sources.values())
            assert self.counts["host"] <= moved.fetched_tokens == self.engine.tally.fetched
        else:
            assert not any(sources.host for sources in self.sources.values())
        self.counts["hits"] = stats.hit_tokens
        self.counts["rebuilds"] = self.engine.tally.rebuilds

    # --- operations -----------------------------------------------------------------------------------------------

    def request(self) -> None:
        """A prompt that begins like an old story, mostly up to a boundary, and a tail that others may share."""
        if len(self.engine.waiting) > 4:
            return
        source, page = self.source, self.plan.page
        flood = self.plan.below and source.random() < 0.3
        fresh = flood or not self.stories or source.random() < (0.05 if self.plan.below else 0.15)
        story, salt = ([], self.draw(0, 0, 0, 1)) if fresh else self.draw(*self.stories)
        keep = self.draw(len(story), len(story), int(source.integers(0, len(story) + 1)))
        if source.random() < 0.6:
            keep -= keep % page
        keep = min(keep, LONGEST - 1)
        tail = LONGEST if flood else int(source.integers(1, min(3 * page + 3, LONGEST - keep) + 1))
        tokens = story[:keep] + [int(t) for t in source.integers(0, 24 if flood else self.plan.alphabet, tail)]
        greedy = source.random() < 0.5
        params = SamplingParams(
            max_tokens=int(source.integers(1, 8)),
            temperature=0.0 if greedy else 1.5,
            seed=0 if greedy else int(source.integers(0, 3)),
            stop_token_ids=(5,),
            ignore_eos=True,
            keep_logits=True,
        )
        told = Told(tokens, params, self.alone(tokens, params), salt)
        self.engine.tell(told, store=source.random() < 0.9)
        if not flood:  # it only pushes others out of the pools
            self.remember(told)
        self.engine.settle()

    def alone(self, tokens: list[int], params: SamplingParams) -> Record:
        key = (tuple(tokens), params)
        if key not in self.records:
            engine: Alone = self.plan.engine(Alone, alone=True)
            self.records[key] = engine.record(tokens, params)
        return self.records[key]

    def remember(self, told: Told) -> None:
        """Later prompts may continue its prompt or its completion."""
        whole = told.tokens + told.record.tokens
        self.stories = [*self.stories[-7:], (whole, told.salt)]

    def step(self) -> None:
        before = len(self.engine.running)
        try:
            outputs = self.engine.advance()
        except OutOfPages as error:
            # The oldest waiting request is more than the pools have; it has left, and nothing else happened.
            assert error.needed > error.total or before == 0  # noqa: PT017
            self.counts["refused"] += 1
            self.engine.settle()
            return
        for output in outputs:
            self.source_of(output)
        self.counts["finished"] += sum(output.finish is not None for output in outputs)
        self.counts["waited"] += bool(self.engine.waiting) and len(self.engine.running) < self.plan.running
        ended = {output.uid for output in outputs if output.finish}
        assert not ended & {lane.uid for lane in self.engine.running}

    def source_of(self, output: Output) -> None:
        """Prompt tokens add up, whatever was fetched, lost or evicted, and stay what they were at the first token."""
        sources, report = output.sources, output.report
        assert sources.total == len(self.engine.told[output.uid].tokens) == report.prompt_tokens
        assert (sources.gcache_memory, sources.gcache_disk, sources.gcache_remote) == (0, 0, 0)
        assert min(sources.device, sources.host, sources.computed, output.wait) >= 0
        assert (sources.device, sources.computed) == (report.usable, sum(report.misses.values()))
        assert sources.device + sources.host == report.delivered
        assert self.sources.setdefault(output.uid, sources) == sources

    def abort(self) -> None:
        if self.source.random() < 0.5:
            return
        lanes = [*self.engine.waiting, *self.engine.running]
        if lanes:
            assert self.engine.abort(self.draw(*lanes).uid)
            self.counts["aborted"] += 1
            self.engine.settle()

    def rare(self) -> None:
        what = self.source.random()
        if what < 0.1:
            self.engine.clear()
        elif what < 0.4:
            self.fault()

    def fault(self) -> None:
        """A kernel fails somewhere in a step. Those in the step are lost, all others go on."""
        kernels, left = self.engine.model.kernels, int(self.source.integers(1, 14))
        name = self.draw("write", "attention", "copy_pages")
        real = getattr(kernels, name)

        def fail(*args: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                raise Fault
            return real(*args)

        # `watched.py` has put itself before `write`.
        kept = vars(kernels).get(name)
        setattr(kernels, name, fail)
        try:
            self.step()
        except Fault:
            self.counts["faults"] += 1
            self.engine.settle()
        finally:
            delattr(kernels, name) if kept is None else setattr(kernels, name, kept)


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    """As the runner runs."""
    with torch.inference_mode():
        yield


def numbers(backend: str) -> list[int]:
    """Two thirds of the schedules go to the reference backend."""
    if ONLY is not None:
        return [int(ONLY)]
    return [n for n in range(COUNT) if (n % 3 == 2) == (backend == "torch")]


@pytest.mark.parametrize(
    ("backend", "below"), [("reference", False), ("torch", False), ("reference", True), ("torch", True)]
)
def test_cached_is_uncached(backend: str, below: bool) -> None:
    total: dict[str, int] = {}
    some = numbers(backend)
    for number in some[: -(-len(some) // 3)] if below else some:
        schedule = Schedule(Plan(number, backend, below))
        try:
            schedule.run(150 if below else 60)
        except BaseException as error:
            error.add_note(f"MIMO_SCHEDULE={number}, {backend}, below={below}: {vars(schedule.plan)}")
            raise
        for name, count in schedule.counts.items():
            total[name] = total.get(name, 0) + count
        total["rows"] = total.get("rows", 0) + schedule.engine.compared
    if ONLY is None:
        # With a host tier refusals are rare; a copy may be over before it is cancelled.
        rare = {"refused", "saves_failed", "fetches_failed"} if below else set()
        assert all(n for name, n in total.items() if name not in rare), f"something never happened: {total}"
    print(backend, below, total)
