"""`mimo-cache gcache drill`: values are stored on several nodes, one node is killed with -9 and started again, and
every value is read back and compared byte for byte.

Bytes are made anew from the seed for each comparison: what is compared was never in the client's memory before.
"""

from __future__ import annotations

import hashlib
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mimo_cache import GCacheClient
from mimo_cache.gcache.local import LocalNode, program
from mimo_cache.gcache.types import ObjectId, PutItem, PutStatus

LARGEST = 32 << 10
BATCH = 500
PATIENCE = 30.0
"""Seconds in which everything must be back after the restart."""
DEADLINE = 30.0


def memory_of(values: int, nodes: int) -> int:
    """Bytes for each node: its share of the values at their largest, twice over, so that nothing is evicted."""
    mib = 1 << 20
    return max(64 * mib, (2 * values * LARGEST // nodes + mib - 1) // mib * mib)


def run(nodes: Sequence[LocalNode], values: int, seed: int, say: Callable[[str], None] = print) -> dict[str, Any]:
    """What was found, as plain numbers; `equal` is `values` if all is well."""
    ids = [_id(seed, n) for n in range(values)]
    status = [program("gcachectl"), *(f"--node={node.tcp}" for node in nodes), "status"]
    killed = nodes[-1]
    with GCacheClient([node.tcp for node in nodes], deadline=DEADLINE) as client:
        stored = 0
        for first in range(0, values, BATCH):
            items = [PutItem(i, _value(seed, n)) for n, i in _part(ids, first)]
            stored += sum(s is PutStatus.STORED for s in client.put(items))
        say(f"{stored} of {values} values stored")
        say(subprocess.run(status, check=False, capture_output=True, text=True).stdout.rstrip())
        owned = sum(client.locate(i.extent) == killed.name for i in ids)
        pid = killed.process.pid
        killed.kill()
        away = values - _read(client, ids, seed)[0]
        say(f"{killed.name} (process {pid}) killed with -9: {away} values are misses, {owned} are its own")
        start = time.monotonic()
        killed.start()
        serving = time.monotonic() - start
        say(f"{killed.name} started again in {serving:.2f} s: it found {killed.objects} values")
        # The client looks for a node that was gone on its own; until then what the node owns is a miss.
        while (found := _read(client, ids, seed))[0] < values and time.monotonic() - start < PATIENCE:
            time.sleep(0.05)
        equal, wrong = found
        back = time.monotonic() - start
    say(f"{equal} of {values} values equal byte for byte, {wrong} differ, {values - equal - wrong} missing")
    return {
        "values": values,
        "nodes": len(nodes),
        "stored": stored,
        "killed": killed.name,
        "owned_by_killed": owned,
        "missing_while_killed": away,
        "found_by_restarted": killed.objects,
        "serving_seconds": serving,
        "back_seconds": back,
        "equal": equal,
        "wrong": wrong,
    }


def _id(seed: int, n: int) -> ObjectId:
    key = hashlib.sha256(f"drill {seed} {n}".encode()).digest()
    return ObjectId(key, 0, key)


def _value(seed: int, n: int) -> bytes:
    random = np.random.default_rng([seed, n])
    return random.bytes(int(random.integers(1, LARGEST + 1)))


def _part(ids: Sequence[ObjectId], first: int) -> list[tuple[int, ObjectId]]:
    return list(enumerate(ids[first : first + BATCH], start=first))


def _read(client: GCacheClient, ids: Sequence[ObjectId], seed: int) -> tuple[int, int]:
    """How many values are there and equal, and how many are there and differ."""
    equal = wrong = 0
    for first in range(0, len(ids), BATCH):
        part = _part(ids, first)
        for (n, _), result in zip(part, client.get([i for _, i in part]), strict=True):
            if result.hit:
                same = result.data is not None and bytes(result.data) == _value(seed, n)
                equal, wrong = equal + same, wrong + (not same)
    return equal, wrong
