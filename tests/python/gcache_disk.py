"""Nodes with a disk tier for tests: small memory, small segments, and what to ask of both tiers."""

from __future__ import annotations

import random
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from gcache_checks import wait_for
from gcache_load import content, wrong
from gcache_nodes import RunningNode, nodes, object_of
from mimo_cache.gcache import Client, GetStatus, ObjectId, PutItem, PutStatus, TierStats, connect

MIB = 1 << 20
CHUNK = 64
"""Objects of one call."""


def disk_setting(folder: Path, size: str, segment: str | None = "2MiB", **more: str) -> str:
    """The key `disk` with one directory, as TOML."""
    keys = {"path": str(folder), "size": size, **({"segment": segment} if segment else {}), **more}
    return "[{" + ", ".join(f'{key} = "{value}"' for key, value in keys.items()) + "}]"


@contextmanager
def disk_node(
    folder: Path,
    *,
    size: str = "128MiB",
    segment: str | None = "2MiB",
    promote_after: int = 2,
    within: Sequence[str] = (),
    memory: str = "16MiB",
    **settings: str,
) -> Iterator[RunningNode]:
    """A node `a` with this directory. Its memory holds some dozen of the values of `content`."""
    keys = {
        "memory__size": memory,
        "tiering__reserve": "1MiB",
        "tiering__promote_after": str(promote_after),
        "disk": disk_setting(folder, size, segment),
        **settings,
    }
    with nodes("a", config="", within=within, **keys) as (node,):
        yield node


def asker(node: RunningNode, deadline: float = 20.0) -> Client:
    """A client over the node's Unix socket."""
    return connect([node.unix], deadline=deadline)


def tiers(client: Client) -> tuple[TierStats, TierStats]:
    """Memory and disk."""
    found: list[TierStats] = []

    def answered() -> bool:
        stats = client.stats()["a"]
        found[:] = stats.tiers if stats else []
        return bool(found)

    wait_for(answered, "the node answers Stats")
    assert [one.name for one in found] == ["memory", "disk"]
    return found[0], found[1]


def metric(node: RunningNode, name: str) -> float:
    """One sample of `/metrics`, without labels."""
    text = urllib.request.urlopen(f"http://{node.serving['metrics']}/metrics", timeout=10).read().decode()
    return float(next(line for line in text.splitlines() if line.startswith(f"gcache_{name} ")).split()[1])


def opened(node: RunningNode) -> dict[str, object]:
    """What the node's last process said of the directory when it had opened it."""
    return next(entry for entry in reversed(node.log) if entry.get("message") == "the disk tier is open")


def said(node: RunningNode, words: str) -> bool:
    """Whether the node's log has these words."""
    return any(words in str(entry) for entry in node.log)


def at_rest(client: Client) -> bool:
    """Nothing is held, and nothing is on its way to the disk."""
    memory, _ = tiers(client)
    return (memory.held_slots, memory.leases, memory.lease_bytes, memory.writers) == (0, 0, 0, 0)


def comes_to_rest(client: Client) -> None:
    try:
        wait_for(lambda: at_rest(client), "pins, leases, writers and demotion end")
    except AssertionError as error:
        raise AssertionError(f"{error}: {tiers(client)}") from None


def store(client: Client, ids: Sequence[ObjectId]) -> None:
    """Puts all of them, and waits until nothing moves any more."""
    for start in range(0, len(ids), 16):
        some = ids[start : start + 16]
        statuses = client.put([PutItem(one, content(one)) for one in some])
        assert statuses == [PutStatus.STORED] * len(some), statuses
    comes_to_rest(client)


def named(*words: object, count: int) -> list[ObjectId]:
    """Objects that stand for these words."""
    return [object_of(*words, n) for n in range(count)]


def served(client: Client, ids: Sequence[ObjectId]) -> list[bool]:
    """Which are there; no byte of those is wrong, and the others are absent or damaged."""
    there: list[bool] = []
    if not ids:
        return there
    wait_for(lambda: client.get(ids[:1])[0].status is not GetStatus.UNREACHABLE, "the node is reached")
    for start in range(0, len(ids), CHUNK):
        some = ids[start : start + CHUNK]
        for one, result in zip(some, client.get(some), strict=True):
            assert result.status in (GetStatus.HIT, GetStatus.ABSENT, GetStatus.DAMAGED), result.status
            assert not wrong(one, result), f"wrong bytes of {one.key.hex()}"
            there.append(result.hit)
    return there


def nothing_left(client: Client, ids: Sequence[ObjectId]) -> None:
    """Deletes everything there is: then no slot is taken, none is held, and the disk has no object."""
    comes_to_rest(client)
    for start in range(0, len(ids), 1024):
        assert client.verify(ids[start : start + 1024]).dropped == 0
        assert not client.delete(ids[start : start + 1024]).unreachable
    comes_to_rest(client)
    memory, disk = tiers(client)
    assert (memory.used_bytes, memory.objects, disk.objects, disk.used_bytes) == (0, 0, 0, 0), "something leaked"
    assert (memory.damaged, disk.damaged) == (0, 0)


class TieredLoad:
    """Threads that put, delete and get, each with a client of its own; `failures` must stay empty.

    `stored` is what the node answered STORED for, `doomed` what a delete was sent for, `deleted` what a delete answered
    for. A get that begins when a delete has answered must miss.
    """

    def __init__(self, node: RunningNode, seed: object, base: Sequence[ObjectId], *, deletes: float = 0.3) -> None:
        self.node, self.seed, self.base, self.deletes = node, seed, base, deletes
        self.offered: list[ObjectId] = []
        self.stored: list[ObjectId] = []
        self.doomed: set[ObjectId] = set()
        self.deleted: set[ObjectId] = set()
        self.failures: list[str] = []
        self.hits = 0
        self.stop = threading.Event()
        work = [self._write, self._write, self._delete, self._read]
        self._threads = [threading.Thread(target=self._guard, args=(f, n)) for n, f in enumerate(work)]

    def start(self) -> TieredLoad:
        for thread in self._threads:
            thread.start()
        return self

    def end(self) -> None:
        """Waits for the threads; their clients are closed then."""
        self.stop.set()
        for thread in self._threads:
            thread.join(60)
            if thread.is_alive():
                self.failures.append("a thread hangs")

    @property
    def kept(self) -> list[ObjectId]:
        """What must be there."""
        return [one for one in self.stored if one not in self.doomed]

    def _guard(self, work: Callable[[Client, random.Random, int], None], number: int) -> None:
        try:
            with asker(self.node, 2.0) as client:
                work(client, random.Random(f"{self.seed} {number}"), number)
        except Exception as error:
            self.failures.append(f"{type(error).__name__}: {error}")

    def _write(self, client: Client, draw: random.Random, number: int) -> None:
        first = 0
        while not self.stop.is_set():
            ids = [object_of(self.seed, number, first + n) for n in range(8)]
            first += 8
            self.offered += ids
            for one, status in zip(ids, client.put([PutItem(one, content(one)) for one in ids]), strict=True):
                if status is PutStatus.STORED:
                    self.stored.append(one)
            self.stop.wait(draw.random() * 0.01)

    def _delete(self, client: Client, draw: random.Random, number: int) -> None:
        while not self.stop.is_set():
            there = [one for one in self.stored[-200:] if one not in self.doomed]
            ids = [one for one in there if draw.random() < self.deletes][:8]
            self.doomed.update(ids)
            if ids and not client.delete(ids).unreachable:
                self.deleted.update(ids)
            self.stop.wait(draw.random() * 0.02)

    def _read(self, client: Client, draw: random.Random, number: int) -> None:
        while not self.stop.is_set():
            gone = set(self.deleted)
            ids = [*draw.choices(self.base, k=2), *draw.choices(self.offered[-400:] or self.base, k=6)]
            for one, result in zip(ids, client.get(ids), strict=True):
                self.hits += result.hit
                if wrong(one, result):
                    self.failures.append(f"wrong bytes of {one.key.hex()}")
                if result.hit and one in gone:
                    self.failures.append(f"{one.key.hex()} was deleted")
            time.sleep(draw.random() * 0.005)
