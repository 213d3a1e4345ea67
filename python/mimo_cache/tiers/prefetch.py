"""`Prefetch`: what a request knows of its pages on their way into host memory, and how long it waits for them."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy.typing as npt

from mimo_cache._core import InvalidArgument, Key
from mimo_cache.gcache.types import SOURCES, Source
from mimo_cache.tiers.trace import Span

__all__ = ["Prefetch", "patience", "slowest"]


def slowest(*sources: Source) -> Source:
    """Of at least one."""
    return max(sources, key=SOURCES.index)


class Prefetch:
    """Pages of one prompt on their way into host memory.

    start, end: tokens that cache and host tier had together when it began, and have with it. promised: those that they
    would have with all that GCache said it has. cause: why there are not more, or None.
    """

    def __init__(
        self,
        tokens: npt.NDArray[Any],
        key: Key | None,
        spans: Any,
        tenant: int,
        until: float,
        page_size: int,
        need: int,
    ) -> None:
        self.tokens, self.key, self.spans, self.tenant = tokens, key, spans, tenant
        self.until = until
        """`time.monotonic` from which its request does not wait for it any more."""
        self.started = self.start = self.promised = self.end = 0
        self.cause: str | None = None
        self.cancelled = False
        self.names: Sequence[bytes] = ()
        """Of the whole pages of the prompt, when a thread has begun with it."""
        self._came: Mapping[int, Source] = {}
        self._page = page_size
        self._need = need
        self.queued, self.bytes, self.asked = time.perf_counter(), 0, False
        """When it was queued, bytes that came, and whether nodes were asked."""
        self.span = Span()
        self._over = threading.Event()

    def done(self) -> bool:
        """It is over, with or without pages."""
        return self._over.is_set()

    def ready(self) -> bool:
        """Its request may be opened: it is over, or the policy waits no longer."""
        return self.done() or time.monotonic() >= self.until

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until it is over; False: not within `timeout` seconds."""
        return self._over.wait(timeout)

    def brought(self, pages: Mapping[int, Source]) -> None:
        """Pages come from GCache, by logical page: the slowest tier that an object of it came from. To be told before
        they can be found. Only the thread that serves it, or holds it back, calls this."""
        self._came = {**self._came, **pages}  # readers have the old or the new one

    def shares(self, other: Prefetch) -> None:
        """What another prefetch, which this one waited for, has brought of their common pages."""
        both = min(len(self.names), len(other.names))
        self.brought({i: s for i, s in other._came.items() if i < both and self.names[i] == other.names[i]})

    def split(self, start: int, end: int) -> dict[Source, int]:
        """Of the tokens from one boundary to another that host memory had: those that GCache brought for this prompt,
        by tier of the node. Pages of which nothing came, but which only a window that came makes usable, count for the
        slowest page of that window."""
        came, page = self._came, self._page
        last = end // page
        window = [came[i] for i in range(max(0, last - self._need), last) if i in came]
        found: dict[Source, int] = {}
        for i in range(start // page, last):
            source = came.get(i)
            if source is None and window and i >= self.start // page:
                source = slowest(*window)
            if source is not None:
                found[source] = found.get(source, 0) + page
        return found

    @property
    def sources(self) -> dict[Source, int]:
        """Tokens of `start` to `end` by tier of the nodes."""
        return {**dict.fromkeys(SOURCES, 0), **self.split(self.start, self.end)}

    def cancel(self) -> None:
        """Asks it to end; what has come is kept where it makes a boundary."""
        self.cancelled = True


def patience(policy: str, timeout: float) -> float:
    """Seconds that a request waits for its pages."""
    kind, _, ms = policy.partition(":") if isinstance(policy, str) else ("", "", "")
    if kind == "deadline" and ms.isdecimal() and 0 < int(ms) <= 3_600_000:
        return int(ms) / 1000
    named = {"best_effort": 0.0, "wait": timeout}
    if policy not in named:
        raise InvalidArgument(
            f'prefetch is {policy!r}, allowed is "best_effort", "wait" or "deadline:<ms>" from 1 to 3600000'
        )
    return named[policy]
