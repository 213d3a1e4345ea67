"""Requests that cannot be served and steps that fail: typed errors, pages that come home, an engine that goes on."""

import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from mimo_cache import MimoCacheError, OutOfPages
from mimo_cache.runner import Engine, Output, RequestError, SamplingParams
from small_models import VOCAB, Sizes, config, engine, tokens, weights

CONFIG = config(max_positions=100)
WEIGHTS = weights(CONFIG)
ROOMY = Sizes()
PARAMS = SamplingParams(max_tokens=6, ignore_eos=True, keep_logits=True)


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    """As the runner runs."""
    with torch.inference_mode():
        yield


def make(sizes: Sizes = ROOMY, backend: str = "reference", **options: Any) -> Engine:
    return engine(CONFIG, WEIGHTS, backend, 4, sizes, **options)


def finish(server: Engine) -> dict[int, list[Output]]:
    """Serves what is there."""
    out: dict[int, list[Output]] = {}
    while server.busy:
        for output in server.step():
            out.setdefault(output.uid, []).append(output)
    return out


def check_empty(server: Engine) -> None:
    """Nobody holds anything."""
    server.cache.check_integrity()
    stats = server.cache.stats()
    assert not server.busy
    assert stats.open_sequences == 0
    for pool in (stats.full, stats.swa):
        assert (pool.private, pool.quarantined, pool.leased, pool.promised, pool.scratch_used) == (0, 0, 0, 0, 0)
        assert pool.free + pool.cached == pool.total


def alone(prompt: list[int], params: SamplingParams = PARAMS) -> list[int]:
    server = make()
    uid = server.add(np.array(prompt), params)
    return [output.token for output in finish(server)[uid]]


# --- requests that are refused ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "match"),
    [
        ([], "the prompt is empty"),
        (np.zeros(0, np.int32), "the prompt is empty"),
        ([[1, 2], [3, 4]], r"shape \(2, 2\)"),
        ([[1, 2], [3]], "allowed is one axis of integers"),
        ([1.0, 2.0], "float64"),
        ([True, False], "bool"),
        (["a"], "allowed is one axis of integers"),
        ("ab", "allowed is one axis of integers"),
        (7, r"shape \(\)"),
        (None, "allowed is one axis of integers"),
        ([1, -1], f"a token id is -1, allowed is 0 to {VOCAB - 1}"),
        ([1, VOCAB], f"a token id is {VOCAB}, allowed is 0 to {VOCAB - 1}"),
        (np.array([2**64 - 1], np.uint64), "a token id is 18446744073709551615"),
        ([2**70], "allowed is one axis of integers"),
        ([1] * 95, r"95 \+ 6 = 101 tokens, allowed are 100, the model's positions"),
    ],
)
def test_bad_prompts_are_refused_and_leave_nothing(prompt: Any, match: str) -> None:
    server = make()
    before = server.cache.stats()
    with pytest.raises(RequestError, match=match) as info:
        server.add(prompt, PARAMS)
    assert isinstance(info.value, MimoCacheError)
    assert server.cache.stats() == before
    check_empty(server)
    uid = server.add(np.array([1] * 94, np.uint8), PARAMS)  # as many as there are positions
    assert len(finish(server)[uid]) == 6


@pytest.mark.parametrize("backend", ["reference", "torch"])
def test_a_prompt_longer_than_the_pools_is_refused_among_others(backend: str) -> None:
    """It leaves the queue with an error that names the pool; those before and behind it are served."""
    server = make(Sizes(full=10, swa=20, scratch=2), backend)
    first, second = server.add(np.array(tokens(1, 9)), PARAMS), server.add(np.array(tokens(2, 60)), PARAMS)
    third = server.add(np.array(tokens(3, 7)), PARAMS)
    with pytest.raises(OutOfPages) as info:
        finish(server)
    assert (info.value.pool, info.value.total) == ("full", 10)
    assert info.value.needed > info.value.total
    assert server.refused == second
    assert [server.has(uid) for uid in (first, second, third)] == [True, False, True]
    made = finish(server)
    assert sorted(made) == [first, third]
    check_empty(server)


def test_requests_wait_for_pages_and_are_served_in_order() -> None:
    """Pools that hold one request at a time."""
    server = make(Sizes(full=9, swa=30, scratch=4), max_running=4)
    prompts = [tokens(seed, 25) for seed in range(4)]
    uids = [server.add(np.array(prompt), PARAMS) for prompt in prompts]
    seen: list[int] = []
    while server.busy:
        for output in server.step():
            assert len(server.running) <= 1
            if output.uid not in seen:
                seen.append(output.uid)
    assert seen == uids
    check_empty(server)
    again = make(Sizes(full=9, swa=30, scratch=4), max_running=4)
    uids = [again.add(np.array(prompt), PARAMS) for prompt in prompts]
    made = finish(again)
    assert [[o.token for o in made[uid]] for uid in uids] == [alone(prompt) for prompt in prompts]


def test_pages_that_somebody_else_holds_are_not_waited_for_when_nothing_runs() -> None:
    """Nothing would ever give them back: the request is refused instead of waiting for ever."""
    server = make(Sizes(full=20, swa=40, scratch=4))
    other = server.cache.request(tokens(7, 50)).open()
    uid = server.add(np.array(tokens(1, 40)), PARAMS)
    with pytest.raises(OutOfPages) as info:
        server.step()
    assert info.value.needed <= info.value.total
    assert (server.refused, server.busy) == (uid, False)
    other.abort()
    server.add(np.array(tokens(1, 40)), PARAMS)
    assert len(finish(server)) == 1
    check_empty(server)


def test_no_scratch_still_makes_progress() -> None:
    server = make(Sizes(full=60, swa=12, scratch=0), chunk=64)
    uid = server.add(np.array(tokens(1, 40)), PARAMS)
    assert [o.token for o in finish(server)[uid]] == alone(tokens(1, 40))
    check_empty(server)


# --- aborts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", range(9))
def test_an_abort_at_any_stage_gives_everything_back(steps: int) -> None:
    """Waiting, in prefill, in decode, after the end."""
    server = make(chunk=10)
    keep, gone = server.add(np.array(tokens(1, 20)), PARAMS), server.add(np.array(tokens(2, 28)), PARAMS)
    made: list[int] = []
    for _ in range(steps):
        made += [output.token for output in server.step() if output.uid == keep]
    there = server.has(gone)
    assert server.abort(gone) == there
    assert not server.abort(gone)
    assert not server.has(gone)
    server.cache.check_integrity()
    made += [output.token for output in finish(server).get(keep, [])]
    assert made == alone(tokens(1, 20))
    check_empty(server)
    assert not server.abort(keep)
    assert not server.abort(12345)


# --- steps that fail --------------------------------------------------------------------------------------------------


class Stop:
    """Raises at the n-th call of what it is wrapped around, before or after it."""

    def __init__(self, at: int, error: type[BaseException], after: bool) -> None:
        self.left, self.error, self.after = at, error, after

    def wrap(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **named: Any) -> Any:
            self.left -= 1
            if self.left == 0 and not self.after:
                raise self.error
            made = call(*args, **named)
            if self.left == 0:
                raise self.error
            return made

        return wrapped


def break_kernels(server: Engine, stop: Stop) -> Callable[[], object]:
    """Any kernel may fail."""
    kernels = server.model.kernels
    for name in ("attention", "write", "moe", "copy_pages", "cut", "cut_mtp"):
        setattr(kernels, name, stop.wrap(getattr(kernels, name)))

    def mend() -> None:
        for name in ("attention", "write", "moe", "copy_pages", "cut", "cut_mtp"):
            delattr(kernels, name)

    return mend


def break_core(server: Engine, stop: Stop) -> Callable[[], object]:
    """An interrupt before or after any call into the cache."""
    vars(server)["core"] = stop.wrap(server.core)

    return lambda: vars(server).pop("core")


def break_lines(server: Engine, stop: Stop) -> Callable[[], object]:
    """An interrupt between any two lines of the step loop, as a signal comes."""
    source = Engine.step.__code__.co_filename

    def line(frame: Any, event: str, _: Any) -> Any:
        if event == "line" and frame.f_code.co_name not in ("_lose", "has", "busy"):
            stop.left -= 1
            if stop.left == 0:
                raise stop.error
        return line

    def call(frame: Any, event: str, _: Any) -> Any:
        return line if frame.f_code.co_filename == source else None

    before = sys.gettrace()
    sys.settrace(call)
    return lambda: sys.settrace(before)


def broken_runs(
    breaks: Callable[[Engine, Stop], Callable[[], object]], error: type[BaseException], after: bool, stride: int
) -> Iterator[tuple[Engine, int]]:
    """Engines that fail at the n-th call or line, for every n of a stride until there is no n-th."""
    at = stride
    while True:
        server = make(chunk=9, retention="prompt_end+branch+seq_end")
        warm = server.add(np.array([*tokens(1, 24), 5, 6]), SamplingParams(max_tokens=2, ignore_eos=True))
        finish(server)
        assert not server.has(warm)
        # A hit with copies and rebuilds, a fresh prompt, a third that waits.
        server.max_running = 2
        prompts = [[*tokens(1, 24), 7, 8, 9], tokens(2, 14), tokens(3, 5)]
        for prompt in prompts:
            server.add(np.array(prompt), PARAMS)
        stop = Stop(at, error, after)
        mend = breaks(server, stop)
        failed = False
        try:
            finish(server)
        except error:
            failed = True
        finally:
            mend()
        if not failed:
            assert at > 3
            return
        yield server, at
        at += stride


@pytest.mark.parametrize(
    ("breaks", "error", "after", "stride"),
    [
        (break_core, KeyboardInterrupt, False, 3),
        (break_core, KeyboardInterrupt, True, 3),
        (break_kernels, ZeroDivisionError, False, 29),
        (break_lines, KeyboardInterrupt, False, 37),
    ],
)
def test_a_step_that_fails_loses_its_own_requests_and_no_page(
    breaks: Callable[[Engine, Stop], Callable[[], object]], error: type[BaseException], after: bool, stride: int
) -> None:
    """Wherever it fails: what is left is served to its end, pages come home, and later prompts find right rows."""
    count = 0
    for server, at in broken_runs(breaks, error, after, stride):
        count += 1
        server.cache.check_integrity()
        assert not any(lane.seq.reserved for lane in server.running), at
        made = finish(server)
        for outputs in made.values():
            assert outputs[-1].finish == "length"
        check_empty(server)
        if count % 3 == 0:
            prompt = [*tokens(1, 24), 7, 8, 9, 10]
            uid = server.add(np.array(prompt), PARAMS)
            assert [o.token for o in finish(server)[uid]] == alone(prompt), at
            check_empty(server)
    assert count > 5


def test_a_failed_step_does_not_touch_those_that_wait() -> None:
    server = make(max_running=1)
    first, second = server.add(np.array(tokens(1, 9)), PARAMS), server.add(np.array(tokens(2, 9)), PARAMS)
    mend = break_kernels(server, Stop(1, KeyboardInterrupt, False))
    with pytest.raises(KeyboardInterrupt):
        server.step()
    mend()
    assert (server.has(first), server.has(second)) == (False, True)
    assert [o.token for o in finish(server)[second]] == alone(tokens(2, 9))
    check_empty(server)
