"""Writers and readers that keep a node busy, in threads or, with `python gcache_load.py`, in processes of
their own. A value follows from its object, so any byte can be checked without remembering it.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from gcache_nodes import object_of
from mimo_cache import GCacheClient
from mimo_cache.gcache import GetResult, ObjectId, PutStatus

SIZES = (1, 4096, 20_001, 65_536, 300_007, (1 << 20) + 5)
BATCH = 4
MOST = 200
"""Objects that a writer of a process of its own offers."""


def content(one: ObjectId) -> NDArray[np.uint8]:
    """The value of an object: no eight bytes of it are like others of it or of another's."""
    size = SIZES[one.key[0] % len(SIZES)]
    start = np.frombuffer(one.key[8:16], np.uint64)[0]
    words: NDArray[np.uint64] = np.arange(size // 8 + 1, dtype=np.uint64) * np.uint64(0x9E37_79B9_7F4A_7C15) + start
    return words.view(np.uint8)[:size]


def wrong(one: ObjectId, result: GetResult) -> bool:
    """Whether a get gave bytes that are not those of the object."""
    return result.data is not None and not np.array_equal(np.frombuffer(result.data, np.uint8), content(one))


class Load:
    """Threads with a client each. `stored` is what a node answered STORED for; `failures` must stay empty."""

    def __init__(
        self, address: str, seed: object, base: Sequence[ObjectId], *, most: int, fast_path: bool = True
    ) -> None:
        """`base`: objects that readers ask for beside those of the writers. `most`: objects that a writer offers."""
        self.address, self.seed, self.base, self.most, self.fast_path = address, seed, base, most, fast_path
        self.stored: list[ObjectId] = []
        self.offered: list[ObjectId] = []
        self.failures: list[str] = []
        self.hits = 0
        self.stop = threading.Event()
        self.on_stored: Callable[[ObjectId], None] = lambda one: None
        work = [self._write, self._write, self._read, self._read]
        self._threads = [threading.Thread(target=self._guard, args=(f, n)) for n, f in enumerate(work)]

    def start(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def end(self) -> None:
        """Waits for the threads; their clients are closed then."""
        self.stop.set()
        for thread in self._threads:
            thread.join(60)
            if thread.is_alive():
                self.failures.append("a thread hangs")

    def _guard(self, work: Callable[[GCacheClient, random.Random, int], None], number: int) -> None:
        try:
            with GCacheClient([self.address], fast_path=self.fast_path, deadline=0.5) as client:
                work(client, random.Random(f"{self.seed} {number}"), number)
        except Exception as error:
            self.failures.append(f"{type(error).__name__}: {error}")

    def _write(self, client: GCacheClient, draw: random.Random, number: int) -> None:
        for first in range(0, self.most, BATCH):
            if self.stop.is_set():
                return
            ids = [object_of(self.seed, number, first + n) for n in range(BATCH)]
            self.offered += ids
            for one, status in zip(ids, client.put([(one, content(one)) for one in ids]), strict=True):
                if status is PutStatus.STORED:
                    self.stored.append(one)
                    self.on_stored(one)
            self.stop.wait(draw.random() * 0.01)

    def _read(self, client: GCacheClient, draw: random.Random, number: int) -> None:
        while not self.stop.is_set():
            ids = [*draw.choices(self.base, k=2), *draw.choices(self.offered or self.base, k=BATCH)]
            for one, result in zip(ids, client.get(ids), strict=True):
                self.hits += result.hit
                if wrong(one, result):
                    self.failures.append(f"wrong bytes of {one.key.hex()}")
            client.exists([one.key for one in ids], lease_ms=60_000)
            self.stop.wait(draw.random() * 0.005)


def run(address: str, seed: str, told: str) -> None:
    """Until it is killed; a line in the file `told` for each stored object, its key in hex."""
    with open(told, "a", buffering=1) as lines:
        load = Load(address, seed, [object_of("base", n) for n in range(16)], most=MOST)
        load.on_stored = lambda one: print(one.key.hex(), file=lines)
        load.start()
        load.stop.wait(600)
        load.end()


def main() -> None:
    """Starts a process for each line `ADDRESS SEED FILE` of its input, and says its number: that is much faster than an
    interpreter for each.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            run(*line.split())
            return
        print(child, flush=True)


if __name__ == "__main__":
    main()
