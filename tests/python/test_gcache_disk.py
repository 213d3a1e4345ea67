"""A node with a disk tier under load and when it is killed: what was stored is served byte for byte from one of the
tiers, what was deleted never comes back, nothing leaks, and every call ends in time.

`MIMO_SEED` draws other moments and bytes; `MIMO_FAULT_ROUNDS` says how often the node is killed.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("grpc")

from gcache_checks import BASE, all_there, wait_for
from gcache_disk import (
    MIB,
    TieredLoad,
    asker,
    comes_to_rest,
    disk_node,
    metric,
    named,
    nothing_left,
    opened,
    served,
    store,
    tiers,
)
from gcache_load import content, wrong
from gcache_nodes import RunningNode, object_of
from mimo_cache import GCacheClient
from mimo_cache.gcache import Client, GetResult, GetStatus, ObjectId, PutItem, PutStatus, connect_async, plan

SEED = int(os.environ.get("MIMO_SEED", "5"))
ROUNDS = int(os.environ.get("MIMO_FAULT_ROUNDS", "20"))


@pytest.fixture(autouse=True)
def _seed_is_told() -> None:
    print(f"MIMO_SEED={SEED}")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A directory that the node makes, on the disk of temporary files. Nothing is left of it."""
    yield tmp_path / "disk"
    shutil.rmtree(tmp_path, ignore_errors=True)


def test_a_node_that_is_killed_under_load_loses_nothing_and_deletes_for_good(folder: Path) -> None:
    draw = random.Random(f"{SEED} disk")
    hits = stored = deleted = walked = demoted = 0
    with disk_node(folder, size="512MiB", segment="4MiB") as node:
        with asker(node) as client:
            store(client, BASE)
        for turn in range(ROUNDS):
            load = TieredLoad(node, (SEED, "killed", turn), BASE).start()
            try:
                time.sleep(0.15 + draw.random() * 0.3)
                with asker(node) as client:
                    demoted += tiers(client)[1].demoted
                node.kill()
                time.sleep(draw.random() * 0.03)
                node.start()
                time.sleep(draw.random() * 0.1)
            finally:
                load.end()
            assert load.failures == []
            walked += int(str(opened(node)["walked_segments"]))
            with asker(node) as client:
                all_there(client, BASE + load.kept)
                assert not any(served(client, sorted(load.deleted)))
                memory, disk = tiers(client)
                assert (memory.damaged, disk.damaged, disk.trouble) == (0, 0, "")
                assert metric(node, "demoted_dropped_total") == 0
                comes_to_rest(client)
                assert not client.delete(load.offered).unreachable
            hits += load.hits
            stored += len(load.stored)
            deleted += len(load.deleted)
        print({"hits": hits, "stored": stored, "deleted": deleted, "walked": walked, "demoted": demoted})
        assert min(hits, stored, deleted, demoted) > ROUNDS, "there was load"
        assert walked >= ROUNDS // 2, "segments were open when the node was killed"
        with asker(node) as client:
            nothing_left(client, BASE)


def test_sigterm_under_load_loses_nothing(folder: Path) -> None:
    with disk_node(folder, size="512MiB", segment="4MiB") as node:
        base = named(SEED, "base", count=20)
        with asker(node) as client:
            store(client, base)
        for turn in range(4):
            load = TieredLoad(node, (SEED, "ends", turn), base).start()
            time.sleep(0.4)
            assert node.stop() == 0
            load.end()
            node.start()
            assert load.failures == []
            with asker(node) as client:
                all_there(client, base + load.kept)
                assert not any(served(client, sorted(load.deleted)))
                comes_to_rest(client)
                assert not client.delete(load.offered).unreachable
        with asker(node) as client:
            nothing_left(client, base)


def test_deletes_while_values_go_down_and_come_up(folder: Path) -> None:
    """Every second get of a value brings it up, memory holds a tenth of what is written, and half of it is deleted."""
    with disk_node(folder, size="512MiB", segment="8MiB", promote_after=1) as node, asker(node) as client:
        store(client, BASE)
        load = TieredLoad(node, (SEED, "deleted"), BASE, deletes=0.5).start()
        until = time.monotonic() + 4
        # Before the disk is full, which a quick machine can make it in that time: then values go for want of room.
        while time.monotonic() < until and tiers(client)[1].written_bytes < 256 * MIB:
            time.sleep(0.05)
        load.end()
        assert load.failures == []
        _, disk = tiers(client)
        print(len(load.stored), len(load.deleted), disk)
        assert min(disk.demoted, disk.promoted, len(load.deleted)) > 50, "all three happened"
        all_there(client, BASE + load.kept)
        assert not any(served(client, sorted(load.deleted)))
        node.kill()
        node.start()
        with asker(node) as again:
            all_there(again, BASE + load.kept)
            assert not any(served(again, sorted(load.deleted)))
            nothing_left(again, BASE + load.offered)


def test_a_writer_faster_than_the_disk_gets_an_answer_in_time(folder: Path) -> None:
    """Six writers, each with batches as large as a third of the memory."""
    with disk_node(folder, size="512MiB", segment="8MiB", memory="24MiB") as node:
        seen: dict[PutStatus, int] = {}
        stored: list[ObjectId] = []
        slowest = 0.0

        def write(number: int) -> float:
            longest = 0.0
            with asker(node) as client:
                for turn in range(3):
                    ids = named(SEED, "fast", number, turn, count=8)
                    start = time.monotonic()
                    statuses = client.put([PutItem(one, np.full(MIB, one.key[0], np.uint8)) for one in ids])
                    longest = max(longest, time.monotonic() - start)
                    for one, status in zip(ids, statuses, strict=True):
                        seen[status] = seen.get(status, 0) + 1
                        if status is PutStatus.STORED:
                            stored.append(one)
            return longest

        with ThreadPoolExecutor(6) as threads:
            slowest = max(threads.map(write, range(6)))
        print(seen, slowest)
        assert set(seen) <= {PutStatus.STORED, PutStatus.NO_ROOM}
        assert seen[PutStatus.STORED] > 100
        assert slowest < 15
        with asker(node) as client:
            for one in stored:
                result = client.get([one])[0]
                assert result.data is not None, f"{one.key.hex()} is {result.status}"
                assert bytes(result.data) == bytes([one.key[0]]) * MIB
            nothing_left(
                client, [object_of(SEED, "fast", n, t, k) for n in range(6) for t in range(3) for k in range(8)]
            )


def test_writers_who_owe_all_they_may_wait_for_each_other(folder: Path) -> None:
    """Memory has room for everything, and the writers together may owe a twelfth of it."""
    with disk_node(folder, memory="96MiB", limits__put_total="4MiB") as node:

        def write(number: int) -> list[PutStatus]:
            with asker(node) as client:
                ids = named(SEED, "owe", number, count=8)
                return client.put([PutItem(one, np.full(MIB, one.key[0], np.uint8)) for one in ids])

        start = time.monotonic()
        with ThreadPoolExecutor(6) as threads:
            for statuses in threads.map(write, range(6)):
                assert statuses == [PutStatus.STORED] * 8
        print(f"{time.monotonic() - start:.2f} s")


def test_a_batch_without_room_is_answered_in_time_for_all_of_it(folder: Path) -> None:
    """Leases hold the memory, so nothing can go; the wait for room is one wait, not one for each value."""
    with (
        disk_node(folder, memory__lease="16MiB", limits__put_total="16MiB") as node,
        asker(node) as holder,
        asker(node) as client,
    ):
        held = named(SEED, "held", count=64)
        for one in held:
            if holder.put([PutItem(one, np.zeros(MIB // 2, np.uint8))], deadline=20.0) != [PutStatus.STORED]:
                break
            holder.exists([one.key], lease_ms=60_000)
        assert tiers(client)[0].lease_bytes > 12 * MIB
        start = time.monotonic()
        statuses = client.put([PutItem(one, np.zeros(2 * MIB, np.uint8)) for one in named("late", count=32)])
        took = time.monotonic() - start
        print(statuses[0], took)
        assert set(statuses) <= {PutStatus.NO_ROOM, PutStatus.STORED}
        assert PutStatus.NO_ROOM in statuses
        assert took < 8
        start = time.monotonic()
        holder.close()
        wait_for(lambda: client.put([PutItem(object_of("after"), b"x" * MIB)]) == [PutStatus.STORED], "there is room")
        assert time.monotonic() - start < 6


def test_a_lease_keeps_values_in_memory_and_does_not_hold_the_disk(folder: Path) -> None:
    with (
        disk_node(folder, promote_after=255, memory__lease="8MiB") as node,
        asker(node) as holder,
        asker(node) as client,
    ):
        first, many = named(SEED, "leased", count=8), named(SEED, "many", count=120)
        store(client, first)
        assert holder.exists([one.key for one in first], lease_ms=60_000) == [1] * len(first)
        memory, _ = tiers(client)
        assert memory.leases > 0
        for start in range(0, len(many), 8):
            some = many[start : start + 8]
            assert client.put([PutItem(one, content(one)) for one in some]) == [PutStatus.STORED] * 8
        wait_for(lambda: tiers(client)[1].demoted > 60, "values went down")
        wait_for(lambda: tiers(client)[0].writers == 0, "writers end")
        read = tiers(client)[1].hits
        all_there(client, first)
        assert tiers(client)[1].hits == read, "what is leased was read from memory"
        # What is on disk alone is reported, and not leased.
        leased = tiers(client)[0].lease_bytes
        below = [one for one in many[:20] if _is_below(client, one)]
        assert len(below) > 5
        assert holder.exists([one.key for one in below], lease_ms=60_000) == [1] * len(below)
        assert tiers(client)[0].lease_bytes == leased
        holder.close()
        wait_for(lambda: tiers(client)[0].leases == 0, "leases end with their connection")
        all_there(client, first + many)
        nothing_left(client, first + many)


def _is_below(client: Client, one: ObjectId) -> bool:
    """Whether a get reads it from disk."""
    before = tiers(client)[1].hits
    assert client.get([one])[0].hit
    return tiers(client)[1].hits > before


def test_a_batch_of_both_tiers_comes_in_its_order(folder: Path) -> None:
    draw = random.Random(f"{SEED} order")
    with disk_node(folder, promote_after=255) as node, asker(node) as client:
        there, absent = named(SEED, "order", count=150), named(SEED, "absent", count=50)
        store(client, there)
        memory, disk = tiers(client)
        assert min(memory.objects, disk.objects) > 5, "some are above and some below"
        for _ in range(3):
            ids = [*there, *absent, *draw.choices(there, k=20)]
            draw.shuffle(ids)
            got = client.get(ids)
            assert [r.hit for r in got] == [one not in absent for one in ids]
            assert not any(wrong(one, r) for one, r in zip(ids, got, strict=True))
            assert _order(client, ids) == list(range(len(ids)))
        after, below = tiers(client)
        assert after.hits > memory.hits
        assert below.hits > disk.hits
        assert below.promoted == 0
        buffers = [np.zeros(len(content(one)), np.uint8) for one in there]
        assert all(r.hit for r in client.get(there, into=buffers))
        assert all(np.array_equal(b, content(one)) for one, b in zip(there, buffers, strict=True))
        assert client.exists([one.key for one in [*there, *absent]]) == [1] * 150 + [0] * 50
        assert client.touch([*there, *absent]) == 150
        assert client.verify([*there, *absent]).sound == 150


def _got(node: RunningNode, way: str, ids: list[ObjectId]) -> list[GetResult]:
    """One get by one of the clients."""
    if way in ("rust", "same host"):
        with GCacheClient([node.unix], deadline=20.0, fast_path=way == "same host") as made:
            return made.get(ids)
    if way == "asyncio":

        async def get() -> list[GetResult]:
            async with connect_async([node.unix], deadline=20.0) as client:
                return await client.get(ids)

        return asyncio.run(get())
    with asker(node) as client:
        return client.get(ids)


@pytest.mark.parametrize("way", ["rust", "same host", "blocking", "asyncio"])
def test_a_value_says_where_this_get_found_it(folder: Path, way: str) -> None:
    with disk_node(folder, promote_after=3) as node, asker(node) as client:
        ids = named(SEED, "source", way, count=150)
        store(client, ids)
        first = _got(node, way, [*ids, *named("absent", count=3)])
        above, below = ([one for one, r in zip(ids, first, strict=False) if r.source == s] for s in ("memory", "disk"))
        assert min(len(above), len(below)) > 5
        assert [len(above) + len(below), *(r.source for r in first[150:])] == [150, None, None, None]
        # What comes up with its third read was found on disk by that read, and by the next one in memory.
        some = below[:2]
        found = [[r.source for r in _got(node, way, some)] for _ in range(3)]
        assert found == [["disk"] * 2, ["disk"] * 2, ["memory"] * 2]
        assert tiers(client)[1].promoted == 2


def test_a_client_of_version_1_is_served_as_before(folder: Path) -> None:
    with disk_node(folder, promote_after=255) as node, asker(node) as client:
        ids = named(SEED, "old", count=150)
        store(client, ids)
        peer = client._peers[0]
        assert {r.source for r in client.get(ids)} == {"memory", "disk"}
        assert peer.version == 2
        peer.version = 1
        got = client.get(ids)
        assert not any(wrong(one, r) for one, r in zip(ids, got, strict=True))
        assert [(r.hit, r.source) for r in got] == [(True, None)] * 150
        (share,) = client.object_shares(ids)
        for reply in peer.stub.Get(client.get_request(share, ids, 1), timeout=20):
            assert reply.piece.source == 0


def _order(client: Client, ids: list[ObjectId]) -> list[int]:
    """Positions in the order in which the node answers them, each once."""
    (share,) = client.object_shares(ids)
    told: list[int] = []
    for reply in client._peers[0].stub.Get(client.get_request(share, ids, plan.SOURCE_VERSION), timeout=20):
        indexes = [miss.index for miss in reply.misses]
        if reply.HasField("piece"):
            indexes.append(reply.piece.index)
        told += [share.positions[index] for index in indexes if told[-1:] != [share.positions[index]]]
    return told


@pytest.mark.parametrize("promote_after", [1, 255])
def test_slow_readers_of_the_disk_hold_bounded_memory_and_nobody_up(folder: Path, promote_after: int) -> None:
    """Ten connections ask for 32 MiB each and read next to nothing."""
    with disk_node(folder, size="512MiB", segment="16MiB", promote_after=promote_after) as node, asker(node) as client:
        shares = [named(SEED, "slow", n, count=32) for n in range(11)]
        ids = [one for share in shares for one in share]
        for start in range(0, len(ids), 8):
            items = [PutItem(one, np.full(MIB, one.key[0], np.uint8)) for one in ids[start : start + 8]]
            assert client.put(items) == [PutStatus.STORED] * 8
        comes_to_rest(client)
        before = _anonymous(node)
        slow = [asker(node, 60.0) for _ in range(10)]
        calls = []
        try:
            for one, share in zip(slow, shares, strict=False):
                assert one.exists([ids[0].key]) == [1]
                (whole,) = one.object_shares(share)
                call = one._peers[0].stub.Get(one.get_request(whole, share, plan.SOURCE_VERSION), timeout=60)
                # The first answer, so that the node is at it.
                next(iter(call))
                calls.append(call)
            time.sleep(0.5)
            held = _anonymous(node) - before
            print(f"{held / MIB:.0f} MiB for {len(slow)} slow readers")
            # A value each, 4 MiB read ahead for all, and what waits to be sent.
            assert 4 * MIB < held < 96 * MIB
            start_time = time.monotonic()
            got = client.get(shares[10][:8])
            print(f"others wait {time.monotonic() - start_time:.2f} s")
            assert all(r.hit for r in got), [r.status for r in got]
            assert time.monotonic() - start_time < 6, "others are not held up"
            start_time = time.monotonic()
            new = named(SEED, "meanwhile", promote_after, count=8)
            statuses = client.put([PutItem(one, content(one)) for one in new])
            print(f"writers wait {time.monotonic() - start_time:.2f} s, {tiers(client)[0]}")
            assert statuses == [PutStatus.STORED] * 8
            assert time.monotonic() - start_time < 6, "writers are not held up"
        finally:
            for call in calls:
                call.cancel()
            for one in slow:
                one.close()
        comes_to_rest(client)
        wait_for(lambda: _anonymous(node) - before < 64 * MIB, "what they held is free")
        nothing_left(client, ids + new)


def _anonymous(node: RunningNode) -> int:
    """Bytes of the node's own memory, without the memory tier's file: proc(5)."""
    status = Path(f"/proc/{node.process.pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("RssAnon")).split()[1]) * 1024


def test_a_value_for_which_everything_must_go_finds_room(folder: Path) -> None:
    """Small values fill the memory; then one comes that needs half of it in one piece."""
    with disk_node(folder, size="256MiB", segment="16MiB") as node, asker(node) as client:
        small = named(SEED, "small", count=800)
        for start in range(0, len(small), 100):
            some = small[start : start + 100]
            items = [PutItem(one, np.full(20_000, one.key[0], np.uint8)) for one in some]
            assert client.put(items) == [PutStatus.STORED] * 100
        large = named(SEED, "large", count=4)
        for one in large:
            assert client.put([PutItem(one, np.full(8 * MIB, one.key[0], np.uint8))]) == [PutStatus.STORED]
        for one in large:
            data = client.get([one])[0].data
            assert data is not None
            assert bytes(data) == bytes([one.key[0]]) * (8 * MIB)
        got = client.get(small)
        assert all(
            r.data is not None and bytes(r.data) == bytes([o.key[0]]) * 20_000 for o, r in zip(small, got, strict=True)
        )
        nothing_left(client, small + large)


def test_readers_of_one_value_at_once(folder: Path) -> None:
    with disk_node(folder) as node, asker(node) as client:
        ids = named(SEED, "together", count=120)
        store(client, ids)
        barrier = threading.Barrier(8)

        def read(number: int) -> list[GetStatus]:
            with asker(node) as reader:
                barrier.wait()
                got = reader.get(ids[:30])
                assert not any(wrong(one, r) for one, r in zip(ids, got, strict=False))
                return [r.status for r in got]

        with ThreadPoolExecutor(8) as threads:
            for statuses in threads.map(read, range(8)):
                assert statuses == [GetStatus.HIT] * 30
        nothing_left(client, ids)
