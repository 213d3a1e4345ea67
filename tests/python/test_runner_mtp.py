"""MTP rows after a hit.

Head k's row at position i is made with the token at i + k + 1, so the last rows of a page depend on tokens behind it. A
page that another prompt has published is right for a reader that goes on with the same tokens, and has stale rows for
one that does not. The cache's plan then gives the reader a copy and names the rows to rebuild; rows, and the drafts
that read them, must be those of the same prompt without a cache, bit for bit.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from mimo_cache.kernels.rows import Work
from mimo_cache.runner import Engine, RequestError, SamplingParams
from mimo_cache.runner.lane import Lane
from small_models import Sizes, config, parts, tokens, weights
from watched import Alone, Told, Watched

PAGE, BOUNDARY = 4, 24
PARAMS = SamplingParams(max_tokens=3, ignore_eos=True, keep_logits=True)
BASE = tokens(1, BOUNDARY)
ONE, OTHER, HALF = [*BASE, 7, 8, 9, 10, 11, 12], [*BASE, 17, 18, 19, 20, 21, 22], [*BASE, 7, 28, 29, 30]


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    """As the runner runs."""
    with torch.inference_mode():
        yield


class Lab:
    """An engine that is watched, and what requests make alone."""

    def __init__(
        self,
        backend: str = "reference",
        window: int = 5,
        page: int = PAGE,
        cls: type[Watched] = Watched,
        **options: Any,
    ) -> None:
        self.config = config(window_keys=window + 1)
        self.weights, self.backend, self.page, self.options = weights(self.config), backend, page, options
        self.engine: Any = self.make(cls)
        self.engine.watch()
        self.engine.settle()

    def make(self, cls: type[Engine]) -> Any:
        model, cache = parts(self.config, self.weights, self.backend, self.page, Sizes(), **self.options)
        return cls(model, cache, max_running=2, max_step_tokens=64)

    def serve(self, prompt: list[int], params: SamplingParams = PARAMS) -> tuple[int, int, int]:
        """Runs a request, compares every row that it reads, and returns (hit, copies, rebuilds)."""
        tally = self.engine.tally
        before = tally.copies, tally.rebuilds
        record = self.make(Alone).record(prompt, params)
        self.engine.tell(Told(prompt, params, record, 0), store=True)
        hit = -1
        while self.engine.busy:
            for output in self.engine.advance():
                hit = output.report.usable
        return hit, tally.copies - before[0], tally.rebuilds - before[1]


@pytest.fixture(params=["reference", "torch"])
def backend(request: pytest.FixtureRequest) -> str:
    """Each backend."""
    return str(request.param)


def test_the_same_continuation_needs_no_copy(backend: str) -> None:
    lab = Lab(backend)
    assert lab.serve(ONE[: BOUNDARY + 3]) == (0, 0, 0)
    assert lab.serve(ONE) == (BOUNDARY, 0, 0)
    assert lab.serve([*ONE[: BOUNDARY + 3], 40]) == (BOUNDARY, 0, 0)


@pytest.mark.parametrize("reader", [OTHER, HALF, [*BASE, 17]], ids=["other", "differs at the second", "one token"])
def test_another_continuation_gets_a_copy_with_rebuilt_rows(backend: str, reader: list[int]) -> None:
    lab = Lab(backend)
    lab.serve(ONE[: BOUNDARY + 2])
    hit, copies, rebuilds = lab.serve(reader)
    assert (hit, copies, rebuilds) == (BOUNDARY, 1, 1)


def test_what_was_published_stays_as_it_was(backend: str) -> None:
    """Readers of either kind, again and again: each finds its own rows, and a copy is published for nobody else."""
    lab = Lab(backend)
    for prompt in (ONE, OTHER, HALF, ONE, OTHER, HALF, [*BASE, 17], ONE):
        lab.serve(prompt)
    assert lab.serve([*ONE[: BOUNDARY + 1], 50, 51])[0] == BOUNDARY


@pytest.mark.parametrize("skip", ["rebuilds", "copies", "one head"])
def test_a_plan_that_is_not_carried_out_is_found_out(monkeypatch: pytest.MonkeyPatch, skip: str) -> None:
    lab = Lab()
    lab.serve(ONE[: BOUNDARY + 2])
    real, write = Engine._carry_out, lab.engine.model.write_mtp

    def carry_out(self: Engine, plan: Any) -> None:
        class Less:
            copies = [] if skip == "copies" else plan.copies
            rebuilds = [] if skip == "rebuilds" else plan.rebuilds

        assert plan.copies
        assert plan.rebuilds
        if skip == "one head":
            self.model.write_mtp = all_but_one
        real(self, Less())
        self.model.write_mtp = write

    def all_but_one(works: Any) -> None:
        for work in works:
            work.end[1] = work.start[1]
        write(works)

    monkeypatch.setattr(Engine, "_carry_out", carry_out)
    # Without the copy the window is NaN, which reaches the logits before the rows are compared.
    match = {"rebuilds": "of MTP head 0", "copies": "are not those|logit is nan", "one head": "of MTP head 1"}
    with pytest.raises((AssertionError, RequestError), match=match[skip]):
        lab.serve(OTHER)


def test_rows_of_a_page_that_ends_with_the_completion(backend: str) -> None:
    """Published at the end with no token behind it known: every reader gets a copy and all three heads rebuilt."""
    lab = Lab(backend, retention="prompt_end+branch+seq_end")
    prompt = BASE[:22]
    record = lab.make(Alone).record(prompt, PARAMS)
    lab.serve(prompt)  # 22 + 3 tokens, of which the last has no row: the page ends at 24
    reader = prompt + record.tokens[:2] + [33, 34, 35, 36]
    assert lab.serve(reader) == (BOUNDARY, 1, 1)


@pytest.mark.parametrize("window", [1, 2, 3])
@pytest.mark.parametrize("page", [1, 2, 4])
def test_windows_shorter_than_the_heads_look_ahead(backend: str, window: int, page: int) -> None:
    """Head 2's row waits two tokens; by then it may lie before the window that tables show. It is written all the same,
    before its page is published for readers that go on alike."""
    lab = Lab(backend, window=window, page=page)
    long = SamplingParams(max_tokens=9, ignore_eos=True, keep_logits=True)
    lab.serve(BASE[:9], long)
    record = lab.make(Alone).record(BASE[:9], long)
    story = BASE[:9] + record.tokens
    for length in range(10, 17):
        hit, _, _ = lab.serve([*story[:length], 1, 2, 3])
        assert hit > 0
        lab.serve(story[: length + 1])


class Asking(Watched):
    """Keeps the draft logits of every head over the rows from the boundary on, as soon as they are there."""

    drafts: list[Any]

    def computed(self, lanes: Sequence[Lane]) -> None:
        super().computed(lanes)
        lane = lanes[0]
        base, pages = self.table(lane, "swa")
        if lane.committed == len(OTHER) and not self.drafts:
            for k in range(self.heads):
                ids, none = lane.ids[BOUNDARY : len(OTHER)], np.zeros(0, np.int64)
                work = Work(BOUNDARY, ids, none, base, pages, logits=len(ids) - k - 1)
                self.drafts += self.model.draft(k, [work])


def test_drafts_after_a_hit_are_those_without() -> None:
    """Draft logits of each head through `Model.draft`, bit for bit; they read the rebuilt rows."""
    found = []
    for warm in ([], [ONE[: BOUNDARY + 2]]):
        lab = Lab(cls=Asking)
        lab.engine.drafts = []
        for prompt in warm:
            lab.serve(prompt)
        lab.serve(OTHER)
        assert lab.engine.tally.rebuilds == len(warm)
        found.append(lab.engine.drafts)
    assert [len(rows) for rows in found[0]] == [len(OTHER) - BOUNDARY - k - 1 for k in range(3)]
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
