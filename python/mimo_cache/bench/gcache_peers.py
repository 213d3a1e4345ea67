"""What a GCache node is measured against, each with a server process of its own: raw TCP, grpcio streaming, Redis, and
Mooncake Store.

`python -m mimo_cache.bench.gcache_peers raw|grpcio|mooncake COUNT SIZE` is the server of a peer: it prints its port and
serves one client until its input ends.
"""

from __future__ import annotations

import shutil
import socket
import struct
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mimo_cache.bench.timing import say

Bytes = npt.NDArray[np.uint8]
PATIENCE = 30.0
GET, PUT = 1, 2
HEAD = struct.Struct("<BII")
PIECE = 1 << 20
METHOD = "/mimo.Bench/"
MOONCAKE_PEERS = "P2PHANDSHAKE"
"""Mooncake's word for: no service for metadata."""


class Peer(ABC):
    """One store with the values of a batch."""

    name: str

    @abstractmethod
    def get(self, into: Bytes) -> None:
        """Reads the batch into memory, one value after the other."""

    @abstractmethod
    def put(self, source: Bytes) -> None:
        """Stores the batch, and waits until it is stored."""

    @abstractmethod
    def close(self) -> None: ...


class _Served(Peer):
    """A peer whose server is this module in another process."""

    def __init__(self, count: int, size: int) -> None:
        self.count, self.size = count, size
        command = [sys.executable, "-m", __name__, self.name, str(count), str(size)]
        self.server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.server.stdout is not None
        self.port = int(self.server.stdout.readline())

    def close(self) -> None:
        assert self.server.stdin is not None
        self.server.stdin.close()
        self.server.wait(PATIENCE)


class Raw(_Served):
    """Request and response over one TCP connection, straight from memory to memory."""

    name = "raw"

    def __init__(self, count: int, size: int) -> None:
        super().__init__(count, size)
        self.socket = socket.create_connection(("127.0.0.1", self.port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def get(self, into: Bytes) -> None:
        self.socket.sendall(HEAD.pack(GET, self.count, self.size))
        receive(self.socket, into.data)

    def put(self, source: Bytes) -> None:
        self.socket.sendall(HEAD.pack(PUT, self.count, self.size))
        self.socket.sendall(source.data)
        receive(self.socket, memoryview(bytearray(1)))

    def close(self) -> None:
        self.socket.close()
        super().close()


class Grpcio(_Served):
    """A stream of pieces of 1 MiB in gRPC's Python library, copied into place."""

    name = "grpcio"

    def __init__(self, count: int, size: int) -> None:
        import grpc  # noqa: PLC0415  optional

        super().__init__(count, size)
        options = [("grpc.max_receive_message_length", 4 << 20)]
        self.channel = grpc.insecure_channel(f"127.0.0.1:{self.port}", options=options)
        self._get: Any = self.channel.unary_stream(METHOD + "Get", None, None)
        self._put: Any = self.channel.stream_unary(METHOD + "Put", None, None)

    def get(self, into: Bytes) -> None:
        view, at = into.data, 0
        for piece in self._get(b"", timeout=PATIENCE):
            view[at : at + len(piece)] = piece
            at += len(piece)

    def put(self, source: Bytes) -> None:
        view = source.data
        step = min(PIECE, self.size)
        self._put((bytes(view[i : i + step]) for i in range(0, len(view), step)), timeout=PATIENCE)

    def close(self) -> None:
        self.channel.close()
        super().close()


class Redis(Peer):
    """Redis with its C parser, values by their keys in one MGET or MSET."""

    name = "redis"

    def __init__(self, count: int, size: int) -> None:
        import redis  # noqa: PLC0415  optional

        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command = ["redis-server", "--port", str(port), "--save", "", "--appendonly", "no"]
        self.server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        self.client: Any = redis.Redis(port=port)
        self.keys = [f"value-{i}" for i in range(count)]
        self.size = size
        until = time.monotonic() + PATIENCE
        while True:
            try:
                self.client.ping()
                return
            except redis.ConnectionError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.05)

    def get(self, into: Bytes) -> None:
        view = into.data
        for i, value in enumerate(self.client.mget(self.keys)):
            view[i * self.size : (i + 1) * self.size] = value

    def put(self, source: Bytes) -> None:
        view = source.data
        parts = {key: view[i * self.size : (i + 1) * self.size] for i, key in enumerate(self.keys)}
        self.client.mset({key: part.tobytes() for key, part in parts.items()})

    def close(self) -> None:
        self.client.close()
        self.server.terminate()
        self.server.wait(PATIENCE)


class Mooncake(_Served):
    """Mooncake Store over TCP: the memory is another process's, values come by one batch into registered memory.

    A key that is there is not written again, so each put has new keys and takes the old ones away.
    """

    name = "mooncake"

    def __init__(self, count: int, size: int) -> None:
        from mooncake.store import MooncakeDistributedStore  # noqa: PLC0415  optional

        super().__init__(count, size)
        self.store: Any = MooncakeDistributedStore()
        self.known: set[int] = set()
        self.turn = 0
        refused = self.store.setup("127.0.0.1", MOONCAKE_PEERS, 0, count * size, "tcp", "", f"127.0.0.1:{self.port}")
        if refused:
            raise ImportError(f"Mooncake's client says {refused}")

    def get(self, into: Bytes) -> None:
        self._moved(self.store.batch_get_into(self._keys(), self._parts(into), self._sizes()), "get")

    def put(self, source: Bytes) -> None:
        old = self._keys()
        self.turn += 1
        self._moved(self.store.batch_put_from(self._keys(), self._parts(source), self._sizes()), "put")
        if self.turn > 1:
            self.store.batch_remove(old, True)

    def close(self) -> None:
        self.store.close()
        super().close()

    def _keys(self) -> list[str]:
        return [f"{self.turn}-{i}" for i in range(self.count)]

    def _sizes(self) -> list[int]:
        return [self.size] * self.count

    def _parts(self, memory: Bytes) -> list[int]:
        at = memory.ctypes.data
        if at not in self.known:
            self.store.register_buffer(at, memory.nbytes)
            self.known.add(at)
        return [at + i * self.size for i in range(self.count)]

    def _moved(self, outcomes: list[int], what: str) -> None:
        if any(outcome < 0 for outcome in outcomes):
            raise RuntimeError(f"a {what} of Mooncake failed: {outcomes}")


@contextmanager
def peers(wanted: bool, values: Bytes, count: int = 32) -> Iterator[list[Peer]]:
    """The peers that are installed, with `values` stored as `count` equal ones."""
    with ExitStack() as stack:
        found: list[Peer] = []
        for kind in (Raw, Grpcio, Redis, Mooncake) if wanted else ():
            if kind is Redis and shutil.which("redis-server") is None:
                say("redis: redis-server is not installed, not measured")
                continue
            try:
                peer: Peer = kind(count, len(values) // count)
            except ImportError as error:
                say(f"{kind.name}: {error}, not measured")
                continue
            stack.callback(peer.close)
            peer.put(values)
            found.append(peer)
        yield found


def receive(source: socket.socket, into: memoryview) -> None:
    """Fills memory."""
    have = 0
    while have < len(into):
        n = source.recv_into(into[have:])
        if n == 0:
            raise EOFError
        have += n


def _serve_raw(values: bytearray, _piece: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        print(server.getsockname()[1], flush=True)
        client, _ = server.accept()
    with client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        head = memoryview(bytearray(HEAD.size))
        try:
            while True:
                receive(client, head)
                kind, count, size = HEAD.unpack(head)
                if kind == GET:
                    client.sendall(memoryview(values)[: count * size])
                else:
                    receive(client, memoryview(values)[: count * size])
                    client.sendall(b"\0")
        except EOFError:
            return


def _serve_grpcio(values: bytearray, piece: int) -> None:
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415  optional

    import grpc  # noqa: PLC0415

    view = memoryview(values)

    def get(_request: bytes, _context: object) -> Iterator[bytes]:
        for start in range(0, len(view), piece):
            yield bytes(view[start : start + piece])

    def put(pieces: Iterator[bytes], _context: object) -> bytes:
        at = 0
        for one in pieces:
            view[at : at + len(one)] = one
            at += len(one)
        return b""

    handlers: dict[str, Any] = {
        "Get": grpc.unary_stream_rpc_method_handler(get),
        "Put": grpc.stream_unary_rpc_method_handler(put),
    }
    server = grpc.server(ThreadPoolExecutor(2), options=[("grpc.max_receive_message_length", 4 << 20)])
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(METHOD.strip("/"), handlers),))
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    server.start()
    sys.stdin.read()
    server.stop(None)


def _serve_mooncake(values: bytearray, _piece: int) -> None:
    """Its master, and a process that lends memory for some batches."""
    from mooncake.store import MooncakeDistributedStore  # noqa: PLC0415  optional

    with socket.socket() as free, socket.socket() as other:
        free.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        port, metrics = free.getsockname()[1], other.getsockname()[1]
    master = str(Path(sys.executable).with_name("mooncake_master"))
    command = [master, "--rpc_port", str(port), "--metrics_port", str(metrics)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as running:
        until = time.monotonic() + PATIENCE
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            assert time.monotonic() < until, "Mooncake's master does not listen"
            time.sleep(0.05)
        store: Any = MooncakeDistributedStore()
        store.setup("127.0.0.1", MOONCAKE_PEERS, 4 * len(values) + (64 << 20), 16 << 20, "tcp", "", f"127.0.0.1:{port}")
        print(port, flush=True)
        sys.stdin.read()
        store.close()
        running.terminate()


if __name__ == "__main__":
    _, which, count_text, size_text = sys.argv
    serve = {"raw": _serve_raw, "grpcio": _serve_grpcio, "mooncake": _serve_mooncake}[which]
    serve(bytearray(int(count_text) * int(size_text)), min(PIECE, int(size_text)))
