"""What must hold of a node once a fault is over: it answers, has what was stored, and holds nothing for others."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from gcache_load import content, wrong
from gcache_nodes import object_of
from mimo_cache import GCacheClient
from mimo_cache.gcache import GetStatus, ObjectId, PutItem, PutStatus, TierStats

if TYPE_CHECKING:
    from mimo_cache.gcache import Client

    AnyClient: TypeAlias = GCacheClient | Client

BOUND = 15.0
"""Seconds within which what ended clients held must be free, and a node that is well again must be used."""
BASE = [object_of("base", n) for n in range(32)]
"""Objects that stay: they also keep a node above the use below which it is ramped up."""


def wait_for(condition: Callable[[], bool], what: str, seconds: float = BOUND) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, what
        time.sleep(0.02)


def tier(client: AnyClient, name: str = "a") -> TierStats:
    found: list[TierStats] = []

    def answered() -> bool:
        stats = client.stats().get(name)
        found[:] = stats.tiers[:1] if stats else []
        return bool(found)

    wait_for(answered, "the node answers Stats")
    return found[0]


def idle(client: AnyClient) -> bool:
    found = tier(client)
    return (found.held_slots, found.leases, found.lease_bytes, found.writers) == (0, 0, 0, 0)


def comes_to_rest(client: AnyClient) -> None:
    try:
        wait_for(lambda: idle(client), "pins, leases and writers end")
    except AssertionError as error:
        raise AssertionError(f"{error}: {client.stats()}") from None


def fill(client: AnyClient) -> int:
    """Stores the base; returns the bytes in use then."""
    assert set(client.put([PutItem(one, content(one)) for one in BASE])) <= {PutStatus.STORED, PutStatus.PRESENT}
    return tier(client).used_bytes


def all_there(client: AnyClient, ids: list[ObjectId]) -> None:
    """Every object is present with its bytes. A breaker that is open still may make some unreachable for a while."""
    wait_for(lambda: client.get(ids[:1])[0].status is not GetStatus.UNREACHABLE, "the node is reached")
    for start in range(0, len(ids), 64):
        some = ids[start : start + 64]
        for one, result in zip(some, client.get(some), strict=True):
            assert result.hit, f"{one.key.hex()} is {result.status}"
            assert not wrong(one, result)


def nothing_leaked(client: AnyClient, offered: list[ObjectId], used: int) -> None:
    """What no client holds any more is free, whatever is there is whole, and deleting it gives all its memory back."""
    comes_to_rest(client)
    for start in range(0, len(offered), 1024):
        assert client.verify(offered[start : start + 1024]).dropped == 0
    for one, result in zip(offered, client.get(offered), strict=True):
        assert not wrong(one, result)
    client.delete(offered)
    wait_for(lambda: idle(client), "the pins of this check end")
    assert tier(client).used_bytes == used, "a slot leaked"
