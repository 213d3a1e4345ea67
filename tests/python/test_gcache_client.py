"""`GCacheClient` on real nodes: memory of many kinds, faults, and the same interface as the client in Python."""

from __future__ import annotations

import inspect
import os
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

from gcache_nodes import RunningNode, key_of, nodes, object_of, value_of
from mimo_cache import GCacheClient, InvalidArgument, gcache
from mimo_cache.gcache import Deleted, GetStatus, Node, ObjectId, PutItem, PutStatus, Refused, Verified

MIB = 1 << 20


@pytest.fixture(scope="module")
def cluster() -> Iterator[list[RunningNode]]:
    with nodes("one", "two", "three") as running:
        yield running


def text(cluster: list[RunningNode]) -> list[str]:
    return [node.address for node in cluster]


def wait_for(condition: object, seconds: float = 20.0) -> None:
    assert callable(condition)
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.02)


def test_calls_are_those_of_the_python_client() -> None:
    ours, theirs = GCacheClient, gcache.Client
    for name in ("exists", "get", "put", "touch", "delete", "verify", "stats", "locate", "close"):
        wanted = inspect.signature(getattr(theirs, name)).parameters
        found = inspect.signature(getattr(ours, name)).parameters
        assert [n for n in found if n in wanted] == list(wanted), name
        extra = [p for n, p in found.items() if n not in wanted]
        assert all(p.kind is p.KEYWORD_ONLY for p in extra), name
    wanted = inspect.signature(gcache.connect).parameters
    found = inspect.signature(ours).parameters
    assert [n for n in found if n in wanted] == list(wanted)


@pytest.mark.parametrize("way", ["tcp", "unix", "fast"])
def test_values_come_back_into_memory_of_any_kind(cluster: list[RunningNode], way: str) -> None:
    addresses = text(cluster) if way == "tcp" else [node.unix for node in cluster]
    with GCacheClient(addresses, tenant=3, fast_path=way == "fast", deadline=20.0) as client:
        sizes = [1, 4096, 100_001, MIB, 3 * MIB + 5]
        ids = [object_of(way, size, part=i) for i, size in enumerate(sizes)]
        values = [value_of(size, way, size) for size in sizes]
        assert client.put([PutItem(i, v) for i, v in zip(ids, values, strict=True)]) == [PutStatus.STORED] * 5
        assert client.put([(i, v) for i, v in zip(ids, values, strict=True)]) == [PutStatus.PRESENT] * 5
        # Its own memory.
        for result, value in zip(client.get(ids), values, strict=True):
            assert result.hit
            assert result.length == len(value)
            assert bytes(result.data or b"") == value
        # bytearray, numpy of several types, torch of a type that numpy does not have, and pieces here and there.
        tensor = torch.zeros(MIB // 2, dtype=torch.bfloat16)
        spread = [np.zeros(MIB, np.uint8), bytearray(5), np.zeros((2, MIB // 4), np.float32)]
        into = [bytearray(1), np.zeros((32, 32), np.int32), np.zeros(100_005, np.uint8), tensor, spread]
        results = client.get(ids, into)
        assert all(r.hit for r in results)
        assert bytes(into[0]) == values[0]
        assert into[1].tobytes() == values[1]
        assert into[2].tobytes() == values[2] + bytes(4)
        assert bytes(results[2].data or b"") == values[2]
        assert tensor.view(torch.uint8).numpy().tobytes() == values[3]
        assert b"".join(bytes(memoryview(cast(Any, s)).cast("B")) for s in spread) == values[4]
        if way == "fast":
            assert client.metrics()["fast_hits"] >= 5


def test_both_clients_see_the_same(cluster: list[RunningNode]) -> None:
    with GCacheClient(text(cluster), tenant=4) as ours, gcache.connect(text(cluster), tenant=4) as theirs:
        keys = [key_of("same", i) for i in range(64)]
        extents = [keys[i - i % 8] for i in range(64)]
        ids = [ObjectId(k, i % 2 * 32, e) for i, (k, e) in enumerate(zip(keys, extents, strict=True))]
        values = [value_of(5000 + i, "same", i) for i in range(64)]
        items = [PutItem(i, v, page_index=n, layout=7) for n, (i, v) in enumerate(zip(ids, values, strict=True))]
        assert ours.put(items[::2]) == [PutStatus.STORED] * 32
        assert theirs.put(items) == [PutStatus.PRESENT, PutStatus.STORED] * 32
        assert ours.exists(keys, extents) == theirs.exists(keys, extents) == [1, 1 << 32] * 32
        assert [ours.locate(e) for e in extents] == [theirs.locate(e) for e in extents]
        mine, other = ours.get(ids), theirs.get(ids)
        assert [(r.status, r.length, r.layout) for r in mine] == [(r.status, r.length, r.layout) for r in other]
        assert all(bytes(r.data or b"") == v and r.layout == 7 for r, v in zip(mine, values, strict=True))
        assert ours.touch(ids[::-1]) == theirs.touch(ids[::-1]) == 64
        assert ours.verify(ids) == theirs.verify(ids) == Verified(64, 0, ())
        assert set(ours.stats()) == set(theirs.stats()) == {"one", "two", "three"}
        assert sum(s.tiers[0].objects for s in ours.stats().values() if s) >= 64
        assert ours.delete(ids[:10]) == Deleted(10, ())
        assert theirs.delete(ids) == Deleted(54, ())
        assert [r.status for r in ours.get(ids)] == [GetStatus.ABSENT] * 64
    with GCacheClient(text(cluster), tenant=5) as stranger:
        assert stranger.exists(keys, extents) == [0] * 64


def test_what_the_caller_gets_wrong_is_refused_with_a_sentence(cluster: list[RunningNode]) -> None:
    one = object_of("wrong")
    frozen = np.zeros(10, np.uint8)
    frozen.flags.writeable = False
    shared = np.zeros(20, np.uint8)
    with GCacheClient([Node("one", cluster[0].tcp)]) as client:
        cases: list[tuple[Callable[[], object], str]] = [
            (lambda: client.get([(b"short", 0, one.extent)]), "key of an object is 5 bytes"),
            (lambda: client.get([one._replace(part=64)]), "part is 64"),
            (lambda: client.get([one], [frozen]), "read-only"),
            (lambda: client.get([one], [b"bytes"]), "buffer of into"),
            (lambda: client.get([one], [shared[::2]]), "not contiguous"),
            (lambda: client.get([one], [torch.zeros(4, 4).t()]), "buffer of into"),
            (lambda: client.get([one, one], [shared[:12], shared[8:]]), "overlap"),
            (lambda: client.get([one], []), "one for each"),
            (lambda: client.get([one], deadline=0.0), "deadline is 0.0"),
            (lambda: client.put([(one, b"")]), "value length is 0"),
            (lambda: client.put([(one, np.zeros(128 * MIB + 1, np.uint8))]), "value length is 134217729"),
            (lambda: client.put([(one,)]), "item is of type tuple"),
            (lambda: client.put([(one, "text")]), "data of an item"),
            (lambda: client.put([(one, b"x", -1)]), "page_index is -1"),
            (lambda: client.exists([one.key], []), "one for each"),
            (lambda: client.exists([one.key], lease_ms=-1), "lease_ms is -1"),
            (lambda: client.locate(b"x"), "extent is 1 bytes"),
            (lambda: GCacheClient([]), "nodes is 0"),
            (lambda: GCacheClient(["a=b"]), "node address"),
            (lambda: GCacheClient(["a=b:1", "a=c:1"]), "each name once"),
            (GCacheClient, "both or none"),
            (lambda: GCacheClient(["a=b:1"], buckets=3), "buckets is 3"),
            (lambda: GCacheClient(["a=b:1"], connections=0), "connections is 0"),
        ]
        for call, words in cases:
            with pytest.raises(InvalidArgument, match=words):
                call()
    with pytest.raises(Exception, match="closed"):
        client.get([one])
    assert gcache.InvalidArgument is InvalidArgument


def test_a_long_value_says_how_long_it_is(cluster: list[RunningNode]) -> None:
    for fast_path in (False, True):
        with GCacheClient([cluster[0].unix], fast_path=fast_path) as client:
            ids = [object_of("long", fast_path, i) for i in range(2)]
            client.put([(ids[0], bytes(5000)), (ids[1], bytes(10))])
            for _ in range(2):
                long, other = client.get(ids, [bytearray(4999), bytearray(10)])
                assert (long.status, long.length, long.data) == (GetStatus.TOO_LONG, 5000, None)
                assert other.hit


def test_a_node_that_sleeps_costs_one_deadline_and_releases_the_gil(cluster: list[RunningNode]) -> None:
    with GCacheClient(text(cluster), deadline=0.4) as client:
        mine = {
            name: next(o for i in range(999) if client.locate((o := object_of("sleep", i)).extent) == name)
            for name in ("one", "two")
        }
        assert client.put([(o, b"value") for o in mine.values()]) == [PutStatus.STORED] * 2
        cluster[0].pause()
        try:
            turns, done = 0, threading.Event()

            def count() -> None:
                nonlocal turns
                while not done.is_set():
                    turns += 1
                    time.sleep(0.001)

            counter = threading.Thread(target=count)
            counter.start()
            before = turns
            start = time.monotonic()
            hung, well = client.get(mine.values())
            took, during = time.monotonic() - start, turns - before
            done.set()
            counter.join()
            assert (hung.status, well.status) == (GetStatus.LATE, GetStatus.HIT)
            assert took > 0.3
            assert during > 20, "other threads ran while the call waited"
            assert client.breakers()["one"] == "open"
            assert client.get([mine["one"]])[0].status is GetStatus.UNREACHABLE
        finally:
            cluster[0].resume()
        wait_for(lambda: client.get([mine["one"]])[0].hit)
        assert client.metrics()["breaker_opened"] >= 1


def test_everything_is_back_after_kill_and_restart() -> None:
    with nodes("solo") as (node,), GCacheClient([node.unix], deadline=5.0) as client:
        ids = [object_of("kill", i) for i in range(200)]
        assert set(client.put([(o, value_of(4000 + i, i)) for i, o in enumerate(ids)])) == {PutStatus.STORED}
        assert all(r.hit for r in client.get(ids))
        node.kill()
        assert not any(r.hit for r in client.get(ids))
        node.start()
        wait_for(lambda: all(r.hit for r in client.get(ids)))
        for i, result in enumerate(client.get(ids)):
            assert bytes(result.data or b"") == value_of(4000 + i, i)


def test_puts_that_nobody_waits_for(cluster: list[RunningNode]) -> None:
    with GCacheClient(text(cluster), queue_bytes=4 * MIB) as client:
        ids = [object_of("later", i) for i in range(100)]
        assert client.put_later([(o, value_of(1000, i)) for i, o in enumerate(ids)]) == 100
        assert client.flush(deadline=20.0)
        assert all(bytes(r.data or b"") == value_of(1000, i) for i, r in enumerate(client.get(ids)))
        assert client.put_later([(object_of("large"), bytes(5 * MIB))]) == 0
        found = client.metrics()
        assert (found["put_stored"], found["queue_full"], found["queue_bytes"]) == (100, 1, 0)


def test_the_list_of_nodes_may_be_a_file_that_changes(cluster: list[RunningNode], tmp_path: Path) -> None:
    path = tmp_path / "nodes.toml"

    def write(*members: RunningNode) -> None:
        parts = [f'[[node]]\nname = "{m.name}"\naddresses = ["{m.tcp}"]\n' for m in members]
        (tmp_path / "new").write_text("".join(parts))
        (tmp_path / "new").rename(path)

    write(cluster[0])
    with GCacheClient(nodes_file=path) as client:
        ids = [object_of("file", i) for i in range(50)]
        client.put([(o, b"value") for o in ids])
        write(*cluster[:2])
        wait_for(lambda: len(client.breakers()) == 2)
        # What the new owner lacks is found at the owner before.
        assert all(r.hit for r in client.get(ids))
        assert client.metrics()["previous_hits"] > 0
        path.write_text("[[node]]\nname =")
        wait_for(lambda: client.membership_trouble is not None)
        assert "stays" in (client.membership_trouble or "")
        assert all(r.hit for r in client.get(ids))
        write(*cluster)
        wait_for(lambda: client.membership_trouble is None and len(client.breakers()) == 3)


def test_a_refusal_raises(tmp_path: Path) -> None:
    secret = tmp_path / "token"
    secret.write_text("a-token-for-all-the-tenants\n")
    token = secret.read_text().strip()
    one = object_of("refusal")
    with nodes("guarded", config=f'[[tokens]]\nfile = "{secret}"\nall_tenants = true') as (node,):
        # Whether the refusal or the request is faster differs from time to time.
        for wrong in (None, "a-token-of-nobody-at-all") * 10:
            with GCacheClient([node.address], token=wrong, deadline=20.0) as client:
                calls: tuple[Callable[[], object], ...] = (
                    partial(client.get, [one]),
                    partial(client.put, [(one, b"x")]),
                    partial(client.exists, [one.key]),
                )
                for call in calls:
                    with pytest.raises(Refused) as raised:
                        call()
                    assert (raised.value.node, raised.value.code) == ("guarded", "UNAUTHENTICATED")
                assert client.breakers() == {"guarded": "closed"}
        with GCacheClient([node.unix], tenant=7, token=token, deadline=20.0) as client:
            assert client.put([(one, b"value")]) == [PutStatus.STORED]
            assert bytes(client.get([one])[0].data or b"") == b"value"
            assert client.metrics()["fast_hits"] == 1
        with GCacheClient([f"wrong={node.tcp}"], token=token) as client, pytest.raises(Refused, match="calls itself"):
            client.get([one])
        with GCacheClient([node.tcp], token=token, deadline=20.0) as client:
            assert client.exists([one.key]) == [0]


def test_a_forked_child_is_refused(cluster: list[RunningNode]) -> None:
    with GCacheClient(text(cluster)) as client:
        client.get([object_of("fork")])
        child = os.fork()
        if child == 0:
            try:
                client.get([object_of("fork")])
            except Exception as error:
                os._exit(7 if type(error).__name__ == "ForkedProcessError" else 8)
            os._exit(9)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert client.get([object_of("fork")])[0].status is GetStatus.ABSENT
