"""Faults of processes and networks on real nodes: never a wrong byte, nothing that was stored is lost, nothing leaks,
and every call ends in time.

`MIMO_SEED` draws other moments and bytes; `MIMO_FAULT_ROUNDS` says how often each process is killed.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from gcache_checks import BASE, all_there, comes_to_rest, fill, idle, nothing_leaked, tier, wait_for
from gcache_load import MOST, Load, content, wrong
from gcache_nodes import nodes, object_of
from gcache_proxy import SWALLOWS, WELL, Faults, proxy
from mimo_cache import GCacheClient
from mimo_cache.gcache import GetStatus, ObjectId, PutStatus, Refused, Verified

SEED = int(os.environ.get("MIMO_SEED", "5"))
ROUNDS = int(os.environ.get("MIMO_FAULT_ROUNDS", "20"))
MIB = 1 << 20
SLACK = 2.0
"""Seconds that a call may take beyond its deadline where the machine is busy."""


@pytest.fixture(autouse=True)
def _seed_is_told() -> None:
    print(f"MIMO_SEED={SEED}")


def test_a_node_that_is_killed_under_load_loses_nothing() -> None:
    draw = random.Random(f"{SEED} node")
    hits = stored = interrupted = 0
    with nodes("a", memory__size="256MiB") as (node,):
        with GCacheClient([node.unix], deadline=10.0) as client:
            used = fill(client)
        for turn in range(ROUNDS):
            address = draw.choice([node.unix, node.address])
            load = Load(address, (SEED, turn), BASE, most=200, fast_path=draw.random() < 0.7).start()
            try:
                time.sleep(0.02 + draw.random() * 0.2)
                node.kill()
                time.sleep(draw.random() * 0.03)
                node.start()
                time.sleep(draw.random() * 0.1)
            finally:
                load.end()
            assert load.failures == []
            with GCacheClient([node.unix], deadline=10.0) as client:
                all_there(client, BASE + load.stored)
                assert tier(client).damaged == 0
                nothing_leaked(client, load.offered, used)
            hits += load.hits
            stored += len(load.stored)
            interrupted += len(load.offered) > len(load.stored)
        assert min(hits, stored) > ROUNDS, "there was load"
        assert interrupted > ROUNDS // 2, "writers were at it when the node was killed"


def test_a_client_that_is_killed_under_load_holds_nothing(tmp_path: Path) -> None:
    draw = random.Random(f"{SEED} client")
    told = tmp_path / "stored"
    command = [sys.executable, str(Path(__file__).with_name("gcache_load.py"))]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    with (
        nodes("a", memory__size="256MiB") as (node,),
        GCacheClient([node.unix], deadline=10.0) as client,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as nursery,
    ):
        assert nursery.stdin is not None
        assert nursery.stdout is not None
        used = fill(client)
        for turn in range(ROUNDS):
            seed = f"{SEED}-{turn}"
            told.write_text("")
            address = draw.choice([node.unix, node.address])
            nursery.stdin.write(f"{address} {seed} {told}\n")
            nursery.stdin.flush()
            victim = int(nursery.stdout.readline())
            try:
                wait_for(lambda: told.stat().st_size > 0, "it stored something")
                time.sleep(draw.random() * 0.1)
            finally:
                os.kill(victim, signal.SIGKILL)
            wait_for(lambda: idle(client), f"what the killed client held ends: {tier(client)}")
            # The line that the kill cut says nothing.
            keys = [bytes.fromhex(line) for line in told.read_text().splitlines() if len(line) == 64]
            all_there(client, BASE + [ObjectId(key, 0, key) for key in keys])
            # What it offered last may have been stored although it could not say so.
            offered = [object_of(seed, number, n) for number in (0, 1) for n in range(MOST)]
            nothing_leaked(client, offered, used)
        nursery.stdin.close()


def test_a_full_node_under_load_gives_no_wrong_byte_when_killed() -> None:
    """More is written than fits, so slots are used again and again while readers copy from them."""
    with nodes("a", memory__size="16MiB") as (node,):
        with GCacheClient([node.unix], deadline=10.0) as client:
            fill(client)
        evicted = 0
        for turn in range(max(2, ROUNDS // 5)):
            load = Load(node.unix, (SEED, "full", turn), BASE, most=10_000).start()
            try:
                time.sleep(0.5)
                with GCacheClient([node.unix], deadline=10.0) as client:
                    evicted += tier(client).evicted_objects
                node.kill()
                node.start()
                time.sleep(0.1)
            finally:
                load.end()
            assert load.failures == []
            with GCacheClient([node.unix], deadline=10.0) as client:
                comes_to_rest(client)
                for start in range(0, len(load.offered), 1024):
                    assert client.verify(load.offered[start : start + 1024]).dropped == 0
                assert tier(client).damaged == 0
        assert evicted > 0


def test_a_network_that_spoils_bytes_gives_misses_and_never_wrong_ones() -> None:
    draw = random.Random(f"{SEED} network")
    faults = Faults(flip=0.04, cut=0.01, truncate=0.01, delay=0.05, swallow=0.01)
    seen: dict[str, int] = {}
    offered: list[ObjectId] = []
    with nodes("a", memory__size="256MiB", limits__stall="2s") as (node,), proxy(node.tcp, SEED) as network:
        with GCacheClient([node.unix], deadline=10.0) as direct:
            fill(direct)
        address = f"a={network.address}"
        for turn in range(2 * max(10, ROUNDS)):
            network.faults = WELL if turn == 0 else faults
            with GCacheClient([address], fast_path=False, deadline=0.3) as client:
                for call in range(10):
                    if client.breakers().get("a") == "open":
                        break
                    new = [object_of(SEED, "network", turn, call, n) for n in range(2)]
                    ids = draw.choices(BASE + offered, k=6)
                    offered += new
                    start = time.monotonic()
                    try:
                        if call % 3 == 0:
                            for status in client.put([(one, content(one)) for one in new]):
                                seen[status.value] = seen.get(status.value, 0) + 1
                        else:
                            for one, result in zip(ids, client.get(ids), strict=True):
                                assert not wrong(one, result), f"wrong bytes of {one.key.hex()}"
                                seen[result.status.value] = seen.get(result.status.value, 0) + 1
                    except Refused as error:
                        # A request whose bytes changed may break a rule.
                        seen[error.code] = seen.get(error.code, 0) + 1
                    assert time.monotonic() - start < 0.3 + SLACK
        print(seen, network.done)
        assert min(network.done.values()) > 0, "every fault happened"
        assert seen["hit"] > 50
        network.faults = WELL
        network.cut_all()
        with GCacheClient([address], fast_path=False, deadline=10.0) as client:
            all_there(client, BASE)
            for start in range(0, len(offered), 64):
                some = offered[start : start + 64]
                for one, result in zip(some, client.get(some), strict=True):
                    assert not wrong(one, result), "stored wrong"
            wait_for(lambda: idle(client), f"nothing is held: {tier(client)}")


@pytest.mark.parametrize("call", ["get", "put"])
def test_a_flip_in_the_name_of_an_object_gives_no_other_value(call: str) -> None:
    """One bit of a request makes part 0 part 1; the check of the message does not fit any more."""
    with nodes("a") as (node,), proxy(node.tcp, SEED) as network, GCacheClient([node.unix], deadline=10.0) as direct:
        zero = object_of("name", call)
        one = zero._replace(part=1)
        network.faults = Faults(swap=(zero.key + b"\0", zero.key + b"\1"))
        with GCacheClient([f"a={network.address}"], fast_path=False, deadline=5.0) as client:
            if call == "get":
                direct.put([(zero, b"value of zero"), (one, b"value of one")])
                assert not client.get([zero])[0].hit, "the value of part 1 is not that of part 0"
            else:
                client.put([(zero, b"value of zero")])
                assert not direct.get([one])[0].hit, "nobody stored a part 1"


def test_a_client_comes_back_when_the_network_does() -> None:
    """Half-open connections: everything is taken and nothing answered. One deadline, then misses at once."""
    with nodes("a", limits__stall="1s") as (node,), proxy(node.tcp, SEED) as network:
        address = f"a={network.address}"
        with GCacheClient([address], fast_path=False, deadline=0.5) as client:
            fill(client)
            network.faults = SWALLOWS
            start = time.monotonic()
            assert {r.status for r in client.get(BASE)} == {GetStatus.LATE}
            assert 0.4 < time.monotonic() - start < 0.5 + SLACK
            assert client.breakers() == {"a": "open"}
            start = time.monotonic()
            assert {r.status for r in client.get(BASE)} == {GetStatus.UNREACHABLE}
            assert time.monotonic() - start < 0.3, "no second deadline"
            late = object_of("half open")
            assert client.put([(late, content(late))]) == [PutStatus.UNREACHABLE]
            # A connection that was never anything but half-open.
            with GCacheClient([address], fast_path=False, deadline=0.5) as other:
                start = time.monotonic()
                assert not other.get(BASE[:1])[0].hit
                assert time.monotonic() - start < 0.5 + SLACK
            network.faults = WELL
            network.cut_all()
            wait_for(lambda: all(r.hit for r in client.get(BASE)), "hits return")
            all_there(client, BASE)


def test_a_writer_whose_network_goes_silent_gives_its_slots_back() -> None:
    with (
        nodes("a", limits__stall="1s") as (node,),
        proxy(node.tcp, SEED) as network,
        GCacheClient([node.unix], deadline=10.0) as direct,
    ):
        used = fill(direct)
        ids = [object_of("silent", n) for n in range(32)]
        with GCacheClient([f"a={network.address}"], fast_path=False, deadline=1.0) as client:
            client.get(BASE[:1])
            # Somewhere amid the values.
            network.faults = Faults(swallow=0.2)
            values = [(one, np.full(MIB, n, np.uint8)) for n, one in enumerate(ids)]
            statuses = client.put(values)
            assert PutStatus.LATE in statuses
            wait_for(lambda: tier(direct).writers == 0, "the writer's slots are free although it is still there")
        wait_for(lambda: idle(direct), "nothing is held")
        stored = [one for one, status in zip(ids, statuses, strict=True) if status is PutStatus.STORED]
        for one, result in zip(ids, direct.get(ids), strict=True):
            assert result.hit or one not in stored
            assert result.data is None or bytes(result.data) == bytes([ids.index(one)]) * MIB
        direct.delete(ids)
        wait_for(lambda: tier(direct).used_bytes == used, "a slot leaked")


@pytest.mark.parametrize("way", ["tcp", "fast"])
def test_a_node_that_sleeps_under_load(way: str) -> None:
    with nodes("a", memory__size="256MiB") as (node,):
        with GCacheClient([node.unix], deadline=10.0) as client:
            used = fill(client)
        address = node.address if way == "tcp" else node.unix
        load = Load(address, (SEED, "sleep", way), BASE, most=100, fast_path=way == "fast").start()
        try:
            time.sleep(0.15)
            node.pause()
            try:
                # Three of the load's deadlines, and a caller that comes only now.
                with GCacheClient([address], fast_path=way == "fast", deadline=0.3) as late:
                    start = time.monotonic()
                    assert not any(r.hit for r in late.get(BASE))
                    assert time.monotonic() - start < 0.3 + SLACK
                time.sleep(1.5)
            finally:
                node.resume()
            time.sleep(0.3)
        finally:
            load.end()
        assert load.failures == []
        with GCacheClient([node.unix], deadline=10.0) as client:
            all_there(client, BASE + load.stored)
            nothing_leaked(client, load.offered, used)


def test_batches_with_duplicates() -> None:
    with nodes("a") as (node,), GCacheClient([node.unix], deadline=10.0) as client:
        for fast_path in (True, False):
            with GCacheClient([node.unix], fast_path=fast_path, deadline=10.0) as reader:
                one, two = object_of("twice", fast_path), object_of("absent", fast_path)
                first, *others = client.put([(one, content(one))] * 300)
                assert first is PutStatus.STORED
                assert set(others) <= {PutStatus.BUSY, PutStatus.PRESENT}
                results = reader.get([one, two] * 600)
                assert [r.status for r in results] == [GetStatus.HIT, GetStatus.ABSENT] * 600
                assert not any(wrong(one, r) for r in results[::2])
                assert reader.exists([one.key, two.key, one.key] * 100) == [1, 0, 1] * 100
                assert reader.exists([one.key] * 100, lease_ms=60_000) == [1] * 100
                assert reader.touch([one, two, one]) == 2
                assert reader.verify([one, one, two]) == Verified(2, 0, ())
                assert reader.delete([one] * 300).deleted == 1
        # Pins end with a message that nobody answers.
        wait_for(lambda: idle(client), "nothing is held")
        assert tier(client).used_bytes == 0


def test_empty_and_too_large_things() -> None:
    with nodes("a") as (node,), GCacheClient([node.unix], deadline=10.0) as client:
        one, large = object_of("one"), object_of("large")
        assert client.put([]) == []
        assert client.get([]) == []
        assert client.exists([]) == []
        assert client.delete([]).deleted == client.touch([]) == client.verify([]).sound == 0
        assert client.put([(one, content(one))]) == [PutStatus.STORED]
        empty = client.get([one], [bytearray(0)])[0]
        assert (empty.status, empty.length, empty.data) == (GetStatus.TOO_LONG, len(content(one)), None)
        # A length the format allows and this node's memory does not: refused, and its neighbour is not lost for ever.
        with pytest.raises(Refused) as raised:
            client.put([(large, np.zeros(100 * MIB, np.uint8))])
        assert raised.value.code == "INVALID_ARGUMENT"
        assert client.get([one, large])[0].hit
        wait_for(lambda: idle(client), "nothing is held")
