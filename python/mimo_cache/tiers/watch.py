"""What the tiers below the device measure of themselves: counters, times in fixed buckets, and spans where asked for.

Any thread may add and read. Adding takes a microsecond, and nothing is kept for each request: what is counted has one
place for each name, whatever is served. `prometheus.py` makes text of it; spans are those of `trace.py`.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any

from mimo_cache.gcache.types import SOURCES, Source
from mimo_cache.tiers.trace import Span, Spans

__all__ = ["BUCKETS", "Histogram", "Watch"]

BUCKETS = (*(step * 10.0**power for power in range(-5, 1) for step in (1.0, 2.5, 5.0)), 10.0)
"""Upper bounds of the buckets, in seconds: three for each power of ten from 10 us to 10 s."""


class Histogram:
    """Times in buckets that are the same for all of them, so that they can be added up over processes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = [0] * (len(BUCKETS) + 1)
        self._sum = 0.0

    def add(self, seconds: float) -> None:
        """One more time."""
        place = bisect_left(BUCKETS, seconds)
        with self._lock:
            self._counts[place] += 1
            self._sum += seconds

    def read(self) -> tuple[list[int], float]:
        """How many were in each bucket, the last without a bound, and the sum of all in seconds."""
        with self._lock:
            return list(self._counts), self._sum


class Watch:
    """Times and counters of one host tier and of what is below it.

    fetches, saves, prefetches, writes: histograms of how long they took, those that failed included. Of a fetch: from
    its submission until its last layer was there (one that failed: until it was ended); of a save: until the step that
    saw its end; of a prefetch that asked nodes: from when it was queued; of a write: from when its turn came. layers:
    how long each wait for a layer was.
    """

    def __init__(self, tracer: Any = None) -> None:
        self.spans = Spans(tracer)
        self.fetches, self.saves, self.layers = Histogram(), Histogram(), Histogram()
        self.prefetches, self.writes = Histogram(), Histogram()
        self._lock = threading.Lock()
        names = ("device", "host", *(f"gcache_{source}" for source in SOURCES))
        self._hits = dict.fromkeys(names, 0)
        self._bytes = {"up": 0, "down": 0}
        self._waited = self._copied = 0.0

    def opened(self, tokens: int) -> None:
        """A sequence was opened with tokens that the device had."""
        with self._lock:
            self._hits["device"] += tokens

    def moved(self, way: str, size: int) -> None:
        """Bytes went "up" to the device or "down" to host memory."""
        with self._lock:
            self._bytes[way] += size

    def fetched(
        self, tokens: int, brought: Mapping[Source, int], times: Sequence[tuple[int, int, int | None, int]]
    ) -> None:
        """A fetch arrived with tokens, some of which GCache had brought. times: `CopyJob.times`."""
        with self._lock:
            self._hits["host"] += tokens - sum(brought.values())
            for source, count in brought.items():
                self._hits[f"gcache_{source}"] += count
            self._copied += sum(copying for _, copying, _, _ in times) / 1e9

    def waited(self, seconds: float) -> None:
        """An engine waited for pages, for a layer of them or for the last."""
        with self._lock:
            self._waited += seconds

    def read(self) -> dict[str, Any]:
        """hits: tokens by source, of requests that asked for a fetch. bytes: both ways. waited, copied: seconds that an
        engine waited for pages on their way up, and that copy threads spent on them."""
        with self._lock:
            return {
                "hits": dict(self._hits),
                "bytes": dict(self._bytes),
                "waited": self._waited,
                "copied": self._copied,
            }

    def span(self, name: str, **attributes: Any) -> Span:
        """Begins a span of `mimo_cache.<name>`; one that does nothing where no tracer was given."""
        return self.spans.start(name, attributes)
