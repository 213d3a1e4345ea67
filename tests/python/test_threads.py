"""The cache under threads: the GIL is released on long walks, kept on short calls, and nobody sees a half-done call."""

import gc
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import mimo_cache
from helpers import Steps, plain, tables
from mimo_cache import PrefixCache

LONG = 8_000_000
"""Tokens of a walk that takes some milliseconds."""


@pytest.fixture(scope="module")
def big() -> tuple[PrefixCache, np.ndarray[Any, np.dtype[np.int32]]]:
    """A cache that holds one very long prompt."""
    cache = PrefixCache.plain(page_size=1024, full_pages=LONG // 1024 + 8)
    tokens = np.random.default_rng(1).integers(0, 1 << 17, LONG, dtype=np.int32)
    steps = Steps(cache)
    with cache.request(tokens).open() as seq:
        while seq.committed < seq.known:
            n = min(1 << 20, seq.known - seq.committed)
            seq.reserve(n)
            full, lens = np.zeros((1, LONG // 1024 + 1), np.int32), np.zeros(1, np.int32)
            cache.fill(steps.next, [seq], full, None, None, lens)
            seq.commit(n)
            cache.retire(steps.next)
            steps.next += 1
    return cache, tokens


@pytest.fixture
def patient() -> Iterator[None]:
    """No thread is made to give up the GIL: another runs only when a call releases it."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    yield
    sys.setswitchinterval(before)


class Ticker:
    """A thread that counts whenever it gets the GIL, and hands it back at once."""

    def __init__(self) -> None:
        self.ticks = 0
        self.stop = False
        self.thread = threading.Thread(target=self.run)

    def run(self) -> None:
        while not self.stop:
            self.ticks += 1
            time.sleep(0)

    def during(self, call: Callable[[], object]) -> int:
        """Ticks while `call` ran."""
        before = self.ticks
        call()
        return self.ticks - before

    def gets_in(self, call: Callable[[], object]) -> bool:
        """Whether some `call` lets this thread tick; tried again on a busy machine, where a thread may wait long."""
        end = time.monotonic() + 60
        while time.monotonic() < end:
            if self.during(call):
                return True
        return False

    def __enter__(self) -> "Ticker":
        self.thread.start()
        while not self.ticks:
            time.sleep(0.001)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop = True
        self.thread.join()


@pytest.mark.usefixtures("patient")
def test_long_walks_release_the_gil(big: tuple[PrefixCache, Any]) -> None:
    cache, tokens = big
    request = cache.request(tokens)
    calls: dict[str, Callable[[], object]] = {
        "peek": lambda: cache.peek(tokens),
        "request": lambda: cache.request(tokens),
        "explain": lambda: cache.explain(tokens),
        "request.peek": request.peek,
        "snapshot": cache.snapshot,
        "check_integrity": cache.check_integrity,
    }
    with Ticker() as ticker:
        for name, call in calls.items():
            assert ticker.gets_in(call), f"{name} kept the GIL"


@pytest.mark.usefixtures("patient")
def test_short_calls_keep_the_gil() -> None:
    cache = plain()
    tokens = np.arange(16, dtype=np.int32)
    seq = cache.request(tokens).open(100)
    calls: dict[str, Callable[[], object]] = {
        "peek": lambda: cache.peek(tokens),
        "request": lambda: cache.request(tokens),
        "reserve": lambda: seq.reserve(0),
        "commit": lambda: seq.commit(0),
        "stats": cache.stats,
    }
    with Ticker() as ticker:
        for name, call in calls.items():
            # Nothing here may hand the GIL over; once in a while something else, such as a signal, does.
            assert sorted(ticker.during(call) for _ in range(20))[10] == 0, f"{name} released the GIL"


@pytest.mark.usefixtures("patient")
def test_a_waiting_call_lets_others_run(big: tuple[PrefixCache, Any]) -> None:
    """A short call on a cache that another thread walks waits without the GIL, so that a third thread can work."""
    cache, tokens = big
    done = threading.Event()

    def walk() -> None:
        while not done.is_set():
            cache.peek(tokens)

    walker = threading.Thread(target=walk)
    with Ticker() as ticker:
        walker.start()
        end = time.monotonic() + 60
        got_in = False
        while not got_in and time.monotonic() < end:
            time.sleep(0.0005)  # The walker walks now, most of the time.
            got_in = ticker.during(cache.stats) > 0
        done.set()
        walker.join(60)
    assert not walker.is_alive()
    assert got_in


def test_many_threads_at_once() -> None:
    """Lives of sequences, lookups, statistics and clears from eight threads; steps are one thread's at a time."""
    cache = plain(full_pages=200, swa_pages=120, scratch_pages=30)
    step_lock, next_step = threading.Lock(), [1]
    failures: list[BaseException] = []

    def run(seq: mimo_cache.Sequence, n: int) -> None:
        with step_lock:
            try:
                seq.reserve(n)
            except mimo_cache.OutOfPages:
                return
            cache.fill(next_step[0], [seq], *tables(1, 80))
            cache.retire(next_step[0])
            next_step[0] += 1
        seq.commit(min(n, seq.known - seq.committed))

    def live(seed: int) -> None:
        random = np.random.default_rng(seed)
        for _ in range(150):
            tokens = np.concatenate([np.arange(int(random.integers(1, 40))), random.integers(0, 3, 12)])
            try:
                seq = cache.request(tokens.astype(str(random.choice(["i4", "u4", "i8"])))).open(4)
            except mimo_cache.OutOfPages:
                continue
            found = seq.usable
            assert found <= cache.peek(tokens[: found + 1] if found else tokens[:1]).full_kv_match + len(tokens)
            while seq.committed < seq.known and random.random() < 0.9:
                run(seq, min(8, seq.known - seq.committed))
            match int(random.integers(0, 5)):
                case 0:
                    seq.finish()
                case 1:
                    seq.abort()
                case 2:
                    seq.park()
                    seq.abort()
                case 3:
                    with seq:
                        pass
                case _:
                    del seq  # Dropped: it aborts itself.

    def look(seed: int) -> None:
        random = np.random.default_rng(seed)
        for i in range(300):
            tokens = np.arange(int(random.integers(1, 60)), dtype=np.int32)
            found = cache.peek(tokens)
            assert 0 <= found.usable <= found.full_kv_match <= len(tokens)
            assert sum(cache.explain(tokens).report.misses.values()) <= len(tokens)
            cache.drain_events()
            stats = cache.stats()
            pool = stats.full
            assert pool.free + pool.private + pool.cached + pool.quarantined == pool.total
            if i % 100 == 99:
                cache.check_integrity()
                cache.clear()

    def guarded(work: Callable[[int], None], seed: int) -> None:
        try:
            work(seed)
        except BaseException as error:
            failures.append(error)

    with ThreadPoolExecutor(8) as pool:
        jobs = [pool.submit(guarded, live if i % 4 else look, i) for i in range(8)]
        for job in jobs:
            job.result(120)
    assert not failures, failures
    gc.collect()
    cache.check_integrity()
    stats = cache.stats()
    assert (stats.open_sequences, stats.parked_sequences) == (0, 0)
    assert stats.full.private == stats.swa.private == stats.full.promised == stats.swa.promised == 0


def test_one_sequence_ends_once() -> None:
    """Of many threads that finish or abort the same sequence one succeeds; the others are told that it ended."""
    cache = plain()
    for _ in range(50):
        seq = cache.request([1, 2, 3]).open()
        barrier = threading.Barrier(4)

        def end(
            call: Callable[[], object], barrier: threading.Barrier = barrier
        ) -> mimo_cache.SequenceStateError | None:
            barrier.wait()
            try:
                call()
            except mimo_cache.SequenceStateError as error:
                return error
            return None

        with ThreadPoolExecutor(4) as pool:
            results = list(pool.map(end, [seq.finish, seq.abort, seq.finish, seq.abort]))
        assert results.count(None) == 1
    cache.check_integrity()


def test_one_request_opens_once() -> None:
    cache = plain()
    for _ in range(50):
        request = cache.request(list(range(20)))
        barrier = threading.Barrier(3)

        def start(
            request: mimo_cache.Request = request, barrier: threading.Barrier = barrier
        ) -> mimo_cache.Sequence | mimo_cache.SequenceStateError:
            barrier.wait()
            try:
                return request.open()
            except mimo_cache.SequenceStateError as error:
                return error

        with ThreadPoolExecutor(3) as pool:
            results = [job.result() for job in [pool.submit(start) for _ in range(3)]]
        assert sum(isinstance(result, mimo_cache.Sequence) for result in results) == 1
        results.clear()
    assert cache.stats().open_sequences == 0


def test_sequences_dropped_while_the_cache_is_busy(big: tuple[PrefixCache, Any]) -> None:
    """A destructor never waits for the lock: what it could not abort is aborted by the next call."""
    cache, tokens = big
    stop = threading.Event()

    def walk() -> None:
        while not stop.is_set():
            cache.peek(tokens)

    walker = threading.Thread(target=walk)
    walker.start()
    try:
        slowest = 0.0
        for _ in range(30):
            seq = cache.request([1, 2, 3]).open()
            start = time.perf_counter()
            del seq
            slowest = max(slowest, time.perf_counter() - start)
    finally:
        stop.set()
        walker.join(60)
    assert cache.stats().open_sequences == 0
    assert slowest < 1.0
    cache.check_integrity()
