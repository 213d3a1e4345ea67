"""Signals that end a command in order, so that processes and files it made go with it."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

ENDS = (signal.SIGTERM, signal.SIGHUP)
"""What ends a command besides ^C: `kill`, and a terminal that is closed."""


@contextmanager
def on_signals(handler: Callable[[int, FrameType | None], None], *numbers: signal.Signals) -> Iterator[None]:
    """Calls `handler` for these signals. A SIGHUP that is ignored stays so: `nohup` wants it."""
    before = {n: signal.getsignal(n) for n in numbers}
    if before.get(signal.SIGHUP) is signal.SIG_IGN:
        del before[signal.SIGHUP]
    try:
        for number in before:
            signal.signal(number, handler)
        yield
    finally:
        for number, was in before.items():
            signal.signal(number, signal.SIG_DFL if was is None else was)


@contextmanager
def exits_in_order() -> Iterator[None]:
    """Makes a `SystemExit` of what ends a command, once: what is to be cleaned up is being cleaned up then."""

    def end(number: int, _frame: FrameType | None) -> None:
        for other in ENDS:
            signal.signal(other, signal.SIG_IGN)
        sys.exit(128 + number)

    with on_signals(end, *ENDS):
        yield
