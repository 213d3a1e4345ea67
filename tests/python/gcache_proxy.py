"""A TCP proxy that does to bytes what networks do: delays, cuts, truncates, swallows and flips, from a seed."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

BLOCK = 1 << 16


@dataclass(frozen=True)
class Faults:
    """Probabilities, for each block of at most 64 KiB."""

    flip: float = 0.0
    """One bit of the block changes."""
    cut: float = 0.0
    """Both sides are closed."""
    truncate: float = 0.0
    """Half of the block goes on, then both sides are closed."""
    delay: float = 0.0
    """The block and all behind it wait up to 0.1 s."""
    swallow: float = 0.0
    """From here on this direction takes bytes and passes none on."""
    swap: tuple[bytes, bytes] | None = None
    """Not drawn: wherever a block has the first, it gets the second, of the same length."""


WELL = Faults()
SWALLOWS = Faults(swallow=1.0)


class Proxy:
    """Listens on a port of 127.0.0.1 and connects to `target`, host:port. `faults` may be set at any time, and holds
    for the blocks that come after; a direction that swallows goes on swallowing.
    """

    def __init__(self, target: str, seed: object) -> None:
        host, port = target.rsplit(":", 1)
        self.target, self.seed, self.faults = (host, int(port)), seed, WELL
        self.done: dict[str, int] = dict.fromkeys(("flip", "cut", "truncate", "delay", "swallow"), 0)
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._accepting = threading.Thread(target=self._accept)
        self._accepting.start()

    def cut_all(self) -> None:
        """Closes all connections that are open now."""
        with self._lock:
            for one in self._sockets:
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        # A shutdown wakes `accept`; a close alone does not.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join(20)
        self._listener.close()
        self.cut_all()
        for thread in self._threads:
            thread.join(20)

    def _accept(self) -> None:
        number = 0
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                node = socket.create_connection(self.target, timeout=5)
            except OSError:
                client.close()
                continue
            node.settimeout(None)
            number += 1
            open_directions = [2]
            with self._lock:
                self._sockets |= {client, node}
            for way, (source, sink) in {"up": (client, node), "down": (node, client)}.items():
                draw = random.Random(f"{self.seed} {number} {way}")
                thread = threading.Thread(target=self._carry, args=(source, sink, draw, open_directions))
                self._threads.append(thread)
                thread.start()

    def _carry(
        self, source: socket.socket, sink: socket.socket, draw: random.Random, open_directions: list[int]
    ) -> None:
        with contextlib.suppress(OSError):
            swallowing = False
            while block := bytearray(source.recv(BLOCK)):
                if not swallowing:
                    block, ends = self._spoil(block, draw)
                    swallowing = not block
                    sink.sendall(block)
                    if ends:
                        break
        for one in (source, sink):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        with self._lock:
            open_directions[0] -= 1
            if not open_directions[0]:
                self._sockets -= {source, sink}
                source.close()
                sink.close()

    def _spoil(self, block: bytearray, draw: random.Random) -> tuple[bytearray, bool]:
        """The bytes that go on, and whether the connection ends after them."""
        faults = self.faults
        drawn = {name for name in self.done if draw.random() < getattr(faults, name)}
        for name in drawn:
            self.done[name] += 1
        if "swallow" in drawn:
            return bytearray(), False
        if "delay" in drawn:
            time.sleep(draw.random() * 0.1)
        if faults.swap:
            block = block.replace(*faults.swap)
        if "flip" in drawn:
            block[draw.randrange(len(block))] ^= 1 << draw.randrange(8)
        if "truncate" in drawn:
            return block[: max(1, len(block) // 2)], True
        return (bytearray() if "cut" in drawn else block), "cut" in drawn


@contextmanager
def proxy(target: str, seed: object) -> Iterator[Proxy]:
    """A proxy that ends whatever the test does."""
    one = Proxy(target, seed)
    try:
        yield one
    finally:
        one.close()
