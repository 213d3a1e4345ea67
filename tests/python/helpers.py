"""What several tests of the Python API need."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import mimo_cache

Int32 = npt.NDArray[np.int32]
NEXT = 2
"""The step after the one that filled the cache of the fixture `cache`."""


def plain(**changes: Any) -> mimo_cache.PrefixCache:
    """A small cache with both groups: pages of 4 tokens, W 5, one MTP head."""
    sizes = {"page_size": 4, "window": 5, "n_mtp": 1, "full_pages": 64, "swa_pages": 64, "scratch_pages": 16}
    return mimo_cache.PrefixCache.plain(**{**sizes, **changes})


def tables(rows: int, width: int = 64) -> tuple[Int32, Int32, Int32, Int32]:
    """Buffers for `fill`: full_out, swa_out, swa_base, lens."""
    return (
        np.zeros((rows, width), np.int32),
        np.zeros((rows, width), np.int32),
        np.zeros(rows, np.int32),
        np.zeros(rows, np.int32),
    )


class FakeTensor:
    """What the bindings see of a torch CPU tensor: no buffer of its own, an array that shares its memory."""

    def __init__(self, values: Any) -> None:
        self.values = values

    def numpy(self) -> Any:
        return self.values

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self.values


FakeTensor.__module__ = "torch"


class Steps:
    """Runs whole sequences through a cache, one step after the other."""

    def __init__(self, cache: mimo_cache.PrefixCache) -> None:
        self.cache = cache
        self.next = 1

    def run(self, seq: mimo_cache.Sequence, computed: int, tokens: list[int] | None = None) -> mimo_cache.Plan:
        """Reserves, fills, commits and retires one chunk."""
        seq.reserve(computed)
        plan = self.cache.fill(self.next, [seq], *tables(1, 4096))
        seq.commit(computed, tokens or [])
        self.cache.retire(self.next)
        self.next += 1
        return plan

    def serve(self, tokens: Any, chunk: int = 32, **options: Any) -> mimo_cache.Report:
        """A prompt from `open` to `finish`, without output."""
        with self.cache.request(tokens, **options).open() as seq:
            while seq.committed < seq.known:
                self.run(seq, min(chunk, seq.known - seq.committed))
        return seq.report


@contextmanager
def refused(cache: mimo_cache.PrefixCache, error: type[Exception], match: str | None = None) -> Iterator[Any]:
    """The block raises `error`, which is a `MimoCacheError`, and leaves the cache as it was."""
    before = cache.stats()
    with pytest.raises(error, match=match) as info:
        yield info
    assert issubclass(error, mimo_cache.MimoCacheError)
    assert cache.stats() == before
    cache.check_integrity()
