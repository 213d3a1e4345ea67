"""One call of the blocking client's caller: its deadline, and what runs for it."""

from __future__ import annotations

import threading
from typing import Protocol

from mimo_cache.gcache.client import ClientBase, Ended


class _Call(Protocol):
    """Of grpcio's calls, whose types differ."""

    def cancel(self) -> bool | None: ...


class Asked:
    """One call of the caller: its deadline, and what runs for it. Whoever leaves it early ends what runs and waits for
    it, since threads write into the caller's memory."""

    def __init__(self, until: float) -> None:
        self.until = until
        self.ended = False
        self._changed = threading.Condition()
        self._calls: list[_Call] = []
        self._running = 0

    def left(self) -> float:
        if self.ended:
            raise Ended
        return ClientBase.left(self.until)

    def add(self, call: _Call) -> None:
        """A call to a node, which is cancelled when the caller leaves."""
        with self._changed:
            self._calls.append(call)
            ended = self.ended
        if ended:
            call.cancel()

    def begin(self) -> bool:
        """Before a thread begins; False: it must not."""
        with self._changed:
            self._running += not self.ended
            return not self.ended

    def done(self) -> None:
        with self._changed:
            self._running -= 1
            self._changed.notify_all()

    def leave(self) -> None:
        """Cancels all calls and waits until no thread runs. A second ^C does not cut that short."""
        while True:
            try:
                with self._changed:
                    self.ended = True
                    calls = list(self._calls)
                for call in calls:
                    call.cancel()
                with self._changed:
                    self._changed.wait_for(lambda: self._running == 0)
            except KeyboardInterrupt:
                continue
            return
