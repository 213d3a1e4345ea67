"""`Prefetch`: what a request knows of its pages on their way into host memory, and how long it waits for them."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy.typing as npt

from mimo_cache._core import InvalidArgument, Key

__all__ = ["Prefetch", "patience"]


class Prefetch:
    """Pages of one prompt on their way into host memory.

    start, end: tokens that cache and host tier had together when it began, and have with it. promised: those that they
    would have with all that GCache said it has. cause: why there are not more, or None.
    """

    def __init__(
        self, tokens: npt.NDArray[Any], key: Key | None, spans: Any, tenant: int, until: float, done: bool = False
    ) -> None:
        self.tokens, self.key, self.spans, self.tenant = tokens, key, spans, tenant
        self.until = until
        """`time.monotonic` from which its request does not wait for it any more."""
        self.started = self.start = self.promised = self.end = 0
        self.cause: str | None = None
        self.cancelled = False
        self._over = threading.Event()
        if done:
            self._over.set()

    def done(self) -> bool:
        """It is over, with or without pages."""
        return self._over.is_set()

    def ready(self) -> bool:
        """Its request may be opened: it is over, or the policy waits no longer."""
        return self.done() or time.monotonic() >= self.until

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until it is over; False: not within `timeout` seconds."""
        return self._over.wait(timeout)

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
