"""What a client knows of one node: how to reach it, and whether to try. No I/O, and time comes in."""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from typing import Any

import grpc

from mimo_cache.gcache.errors import InvalidArgument, Refused
from mimo_cache.gcache.plan import MAX_MESSAGE_BYTES
from mimo_cache.gcache.ring import Node

FIRST_PAUSE = 0.5
LONGEST_PAUSE = 30.0

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

_ADDRESS = re.compile(r"unix:/.+|\[[0-9a-fA-F:.]+\]:\d{1,5}|[A-Za-z0-9._-]+:\d{1,5}")


class Breaker:
    """Leaves a node alone after a failure, for a pause that doubles with each one in a row. Any thread may call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pause = 0.0
        self._until = 0.0

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

    def failed(self, now: float) -> None:
        with self._lock:
            self._pause = min(max(FIRST_PAUSE, 2 * self._pause), LONGEST_PAUSE)
            self._until = now + self._pause


def options_of(node: Node) -> Sequence[tuple[str, Any]]:
    """Options of the channel. A socket's path is no name of a host, and HTTP/2 servers refuse it as one."""
    return (*_OPTIONS, ("grpc.default_authority", "localhost")) if node.address.startswith("unix:") else _OPTIONS


def address_of(node: Node) -> str:
    if not _ADDRESS.fullmatch(node.address):
        raise InvalidArgument(f"address of node {node.name!r} is {node.address!r}, allowed is host:port or unix:/path")
    return node.address


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
