"""A small engine around `PrefixCache`, driven as a runner would: one sequence a step, steps that retire at once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

import mimo_cache
from mimo_cache import _core
from mimo_cache.bench.scenarios import CHUNK, LONG_PROMPT, PAGE, WINDOW, Tokens

SCRATCH_PAGES = CHUNK // PAGE + 2
"""SWA pages of one running chunk: its own and two partial ones."""


def plain_cache(
    full_pages: int, swa_pages: int, *, scratch_pages: int | None = None, retention: str = _core.DEFAULT_RETENTION
) -> mimo_cache.PrefixCache:
    """A cache with ghosts and events on.

    `swa_pages` are those for windows and checkpoints; one chunk's scratch comes on top, unless `scratch_pages` says how
    many of `swa_pages` are scratch.
    """
    outside = scratch_pages is None
    return mimo_cache.PrefixCache.plain(
        page_size=PAGE,
        window=WINDOW,
        full_pages=full_pages,
        swa_pages=swa_pages + SCRATCH_PAGES if outside else swa_pages,
        scratch_pages=SCRATCH_PAGES if scratch_pages is None else scratch_pages,
        retention=retention,
    )


class Engine:
    """The cache, the buffers of a step, and the step's number."""

    def __init__(self, cache: mimo_cache.PrefixCache) -> None:
        self.cache = cache
        self.step = 1
        self.full: npt.NDArray[np.int32] = np.zeros((1, LONG_PROMPT // PAGE + 64), dtype=np.int32)
        self.swa: npt.NDArray[np.int32] = np.zeros((1, SCRATCH_PAGES + 4), dtype=np.int32)
        self.base: npt.NDArray[np.int32] = np.zeros(1, dtype=np.int32)
        self.lens: npt.NDArray[np.int32] = np.zeros(1, dtype=np.int32)

    def fill(self, seq: mimo_cache.Sequence) -> int:
        """Starts a step with `seq` in it; returns its number."""
        step = self.step
        self.step = step + 1
        self.cache.fill(step, [seq], self.full, self.swa, self.base, self.lens)
        return step

    def compute(self, seq: mimo_cache.Sequence, count: int, tokens: Tokens | tuple[()] = ()) -> None:
        """Computes the next `count` positions."""
        seq.reserve(count)
        step = self.fill(seq)
        seq.commit(count, tokens)
        self.cache.retire(step)

    def prefill(self, seq: mimo_cache.Sequence) -> None:
        """Computes what is left of the prompt, in chunks."""
        while (left := seq.known - seq.committed) > 0:
            self.compute(seq, min(left, CHUNK))

    def run(self, tokens: Tokens) -> None:
        """A whole request: afterwards its pages are cached."""
        seq = self.cache.request(tokens).open()
        self.prefill(seq)
        seq.finish()
