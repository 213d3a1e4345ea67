"""What a client knows of one node: how to reach it, and whether to try. No I/O, and time comes in."""

from __future__ import annotations

import re
import threading
import urllib.parse
from collections.abc import Sequence
from typing import Any, TypeAlias

import grpc

from mimo_cache.gcache.checks import check_text, shown
from mimo_cache.gcache.errors import InvalidArgument, Refused
from mimo_cache.gcache.plan import COMMON_VERSION, MAX_MESSAGE_BYTES
from mimo_cache.gcache.ring import Node

Metadata: TypeAlias = tuple[tuple[str, str], ...]

FIRST_PAUSE = 0.5
LONGEST_PAUSE = 30.0
LATE_CALLS = 4
"""Calls in a row with too little time for a sound node that count as one failure."""
FAIR_SECONDS = 0.02
FAIR_RATE = 200e6
"""A node that had so many seconds, and one more for each so many bytes asked for, and was late, is at fault."""
NODE_HEADER = "gcache-node"
"""Says which node a call is for: a channel connects anew by itself, perhaps to another node."""
MAX_PORT = 65_535
MAX_ADDRESS_BYTES = 512

_OPTIONS: tuple[tuple[str, Any], ...] = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    # A connection of its own for each client: leases end with it.
    ("grpc.use_local_subchannel_pool", 1),
    # The breaker says when to try again; a channel must not sit out a pause of its own on top.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)

# What a node says of the request, as opposed to itself.
REFUSALS = frozenset(
    {
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.UNIMPLEMENTED,
    }
)

_ADDRESS = re.compile(r"(?:\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})")
MAX_PATH_BYTES = 107
"""Longest path of a Unix socket: unix(7)."""


class Breaker:
    """Leaves a node alone after a failure, for a pause that doubles with each one in a row. Any thread may call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pause = 0.0
        self._until = 0.0
        self._late = 0

    def allows(self, now: float) -> bool:
        """Whether to try. After a pause one caller tries; the others wait for what it finds."""
        with self._lock:
            if now < self._until:
                return False
            if self._pause:
                self._until = now + self._pause
            return True

    def worked(self) -> None:
        with self._lock:
            self._pause = self._until = 0.0
            self._late = 0

    def failed(self, now: float) -> None:
        with self._lock:
            self._fail(now)

    def late(self, now: float, given: float, wanted_bytes: int) -> None:
        """A call did not end within the `given` seconds, or the node had too much to do: its fault only where a sound
        node would have been done."""
        with self._lock:
            self._late += 1
            if self._late >= LATE_CALLS or given >= FAIR_SECONDS + wanted_bytes / FAIR_RATE:
                self._fail(now)

    def _fail(self, now: float) -> None:
        self._late = 0
        self._pause = min(max(FIRST_PAUSE, 2 * self._pause), LONGEST_PAUSE)
        self._until = now + self._pause


class Peer:
    """One node as a client knows it. The channel is its client's."""

    def __init__(self, node: Node, metadata: Metadata) -> None:
        self.node = node
        self.breaker = Breaker()
        self.greeted = False
        self.version = COMMON_VERSION
        """Of the protocol, as the greeting agreed."""
        self.refused: Refused | None = None
        """What it refused last; None once it answered again."""
        self.hello_metadata = metadata
        # Whoever names a node by its address alone takes any node that is there.
        named = () if node.name == node.address else ((NODE_HEADER, header_of(node.name)),)
        self.metadata: Metadata = (*metadata, *named)

    def done(self, refused: Refused | None) -> None:
        """The node answered all requests of a call, or refused some of them: either way it is well."""
        self.breaker.worked()
        self.refused = refused


def header_of(name: str) -> str:
    """A node's name in a header: percent-encoded where it is not printable ASCII."""
    return urllib.parse.quote(name, safe="!\"#$&'()*+,/:;<=>?@[\\]^`{|}")


def options_of(node: Node) -> Sequence[tuple[str, Any]]:
    """Options of the channel. A socket's path is no name of a host, and HTTP/2 servers refuse it as one."""
    return (*_OPTIONS, ("grpc.default_authority", "localhost")) if node.address.startswith("unix:") else _OPTIONS


def address_of(node: Node) -> str:
    address = check_text(node.address, f"address of node {node.name!r}", MAX_ADDRESS_BYTES)
    found = _ADDRESS.fullmatch(address)
    path = address.removeprefix("unix:")
    is_path = path != address and len(path) > 1 and path[0] == "/" and "\0" not in path
    if not (1 <= int(found[1]) <= MAX_PORT if found else is_path and len(path.encode()) <= MAX_PATH_BYTES):
        allowed = f"host:port with a port from 1 to {MAX_PORT}, or unix:/path of at most {MAX_PATH_BYTES} bytes"
        raise InvalidArgument(f"address of node {node.name!r} is {shown(address)}, allowed is {allowed}")
    return address


def refusal(node: Node, code: grpc.StatusCode, details: str | None) -> Refused | None:
    """The exception for a status, or None for one that makes a miss."""
    if code in REFUSALS:
        return Refused(node.name, code.name, details or "")
    return None


def other_node(node: Node, name: str) -> Refused | None:
    """A node that answers under another name would hold what belongs to others."""
    if name in (node.name, "") or node.name == node.address:
        return None
    return Refused(node.name, "FAILED_PRECONDITION", f"the node at {node.address} calls itself {name!r}")
