"""Faults of processes and networks on real nodes: never a wrong byte, nothing that was stored is lost, nothing leaks,
and every call ends in time.

`MIMO_SEED` draws other moments and bytes; `MIMO_FAULT_ROUNDS` says how often each process is killed.
"""

from __future__ import annotations

import contextlib
import os
import random
import resource
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from gcache_load import MOST, Load, content, wrong
from gcache_nodes import RunningNode, nodes, object_of
from gcache_proxy import SWALLOWS, WELL, Faults, proxy
from mimo_cache import GCacheClient
from mimo_cache.gcache import GetStatus, ObjectId, PutStatus, Refused, TierStats, Verified
from mimo_cache.gcache.v1 import gcache_pb2 as pb

SEED = int(os.environ.get("MIMO_SEED", "5"))
ROUNDS = int(os.environ.get("MIMO_FAULT_ROUNDS", "20"))
MIB = 1 << 20
SLACK = 2.0
"""Seconds that a call may take beyond its deadline where the machine is busy."""
BOUND = 15.0
"""Seconds within which what ended clients held must be free, and a node that is well again must be used."""
BASE = [object_of("base", n) for n in range(32)]
"""Objects that stay: they also keep a node above the use below which it is ramped up."""


@pytest.fixture(autouse=True)
def _seed_is_told() -> None:
    print(f"MIMO_SEED={SEED}")


def wait_for(condition: Callable[[], bool], what: str, seconds: float = BOUND) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, what
        time.sleep(0.02)


def tier(client: GCacheClient, name: str = "a") -> TierStats:
    found: list[TierStats] = []

    def answered() -> bool:
        stats = client.stats().get(name)
        found[:] = stats.tiers[:1] if stats else []
        return bool(found)

    wait_for(answered, "the node answers Stats")
    return found[0]


def idle(client: GCacheClient) -> bool:
    found = tier(client)
    return (found.held_slots, found.leases, found.lease_bytes, found.writers) == (0, 0, 0, 0)


def comes_to_rest(client: GCacheClient) -> None:
    wait_for(lambda: idle(client), f"pins, leases and writers end; at first {tier(client)}")


def fill(client: GCacheClient) -> int:
    """Stores the base; returns the bytes in use then."""
    assert set(client.put([(one, content(one)) for one in BASE])) <= {PutStatus.STORED, PutStatus.PRESENT}
    return tier(client).used_bytes


def all_there(client: GCacheClient, ids: list[ObjectId]) -> None:
    """Every object is present with its bytes. A breaker that is open still may make some unreachable for a while."""
    wait_for(lambda: client.get(ids[:1])[0].status is not GetStatus.UNREACHABLE, "the node is reached")
    for start in range(0, len(ids), 64):
        some = ids[start : start + 64]
        for one, result in zip(some, client.get(some), strict=True):
            assert result.hit, f"{one.key.hex()} is {result.status}"
            assert not wrong(one, result)


def nothing_leaked(client: GCacheClient, offered: list[ObjectId], used: int) -> None:
    """What no client holds any more is free, whatever is there is whole, and deleting it gives all its memory back."""
    comes_to_rest(client)
    for start in range(0, len(offered), 1024):
        assert client.verify(offered[start : start + 1024]).dropped == 0
    for one, result in zip(offered, client.get(offered), strict=True):
        assert not wrong(one, result)
    client.delete(offered)
    wait_for(lambda: idle(client), "the pins of this check end")
    assert tier(client).used_bytes == used, "a slot leaked"


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


@pytest.mark.xfail(strict=True, reason="the CRC of a chunk does not cover which object it belongs to")
@pytest.mark.parametrize("call", ["get", "put"])
def test_a_flip_in_the_name_of_an_object_gives_no_other_value(call: str) -> None:
    """One bit of a request makes part 0 part 1."""
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
            os.kill(node.process.pid, signal.SIGSTOP)
            try:
                # Three of the load's deadlines, and a caller that comes only now.
                with GCacheClient([address], fast_path=way == "fast", deadline=0.3) as late:
                    start = time.monotonic()
                    assert not any(r.hit for r in late.get(BASE))
                    assert time.monotonic() - start < 0.3 + SLACK
                time.sleep(1.5)
            finally:
                os.kill(node.process.pid, signal.SIGCONT)
            time.sleep(0.3)
        finally:
            load.end()
        assert load.failures == []
        with GCacheClient([node.unix], deadline=10.0) as client:
            all_there(client, BASE + load.stored)
            nothing_leaked(client, load.offered, used)


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, SETTINGS, WINDOW_UPDATE = 0, 1, 4, 8


def frame(kind: int, flags: int, stream: int, body: bytes = b"") -> bytes:
    return len(body).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + body


def call_of(name: str, request: bytes) -> bytes:
    """What a client sends for one call, on a new connection of HTTP/2."""
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": f"/gcache.v1.GCache/{name}",
        ":authority": "a",
        "te": "trailers",
        "content-type": "application/grpc",
    }
    # Literals without an index and without Huffman codes: RFC 7541, 6.2.2.
    block = b"".join(b"\0" + bytes([len(k)]) + k.encode() + bytes([len(v)]) + v.encode() for k, v in fields.items())
    message = b"\0" + len(request).to_bytes(4, "big") + request
    return PREFACE + frame(SETTINGS, 0, 0) + frame(HEADERS, 4, 1, block) + frame(DATA, 1, 1, message)


def ended_in(received: bytes) -> str | None:
    """ "served" if the call's stream has a message and its trailers, "refused" with trailers only, None before."""
    at, data = 0, False
    while at + 9 <= len(received):
        length, kind, flags = int.from_bytes(received[at : at + 3], "big"), received[at + 3], received[at + 4]
        if at + 9 + length > len(received):
            return None
        data |= kind == DATA and length > 0
        if kind == HEADERS and flags & 1:
            return "served" if data else "refused"
        at += 9 + length
    return None


@contextlib.contextmanager
def connections(count: int, node: RunningNode, sent: bytes) -> Iterator[list[socket.socket]]:
    """So many at once, each of which has sent this; none reads yet."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < count + 500:
        pytest.skip(f"this process may have {hard} files open, {count + 500} are needed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count + 500), hard))
    host, port = node.tcp.rsplit(":", 1)
    opened: list[socket.socket] = []
    try:
        for _ in range(count):
            one = socket.create_connection((host, int(port)), timeout=20)
            opened.append(one)
            with contextlib.suppress(ConnectionError):
                one.sendall(sent)
        yield opened
    finally:
        for one in opened:
            one.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def outcomes(opened: list[socket.socket]) -> dict[str, int]:
    """How each call ended: served, refused with a status, or its connection was closed."""
    found = dict.fromkeys(("served", "refused", "closed"), 0)
    waiting = selectors.DefaultSelector()
    received = dict.fromkeys(opened, b"")
    for one in opened:
        one.setblocking(False)
        waiting.register(one, selectors.EVENT_READ)
    until = time.monotonic() + BOUND
    with waiting:
        while waiting.get_map():
            assert time.monotonic() < until, f"every call ends, {len(waiting.get_map())} did not: {found}"
            for key, _ in waiting.select(1):
                source = key.fileobj
                assert isinstance(source, socket.socket)
                try:
                    more = source.recv(65536)
                except ConnectionError:
                    more = b""
                received[source] += more
                end = ended_in(received[source]) or (None if more else "closed")
                if end:
                    found[end] += 1
                    waiting.unregister(source)
    return found


@pytest.mark.parametrize("allowed", [1024, 100])
def test_a_thousand_connections_at_once(allowed: int) -> None:
    """They are served or refused, nobody waits for ever, and the node serves afterwards."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 1500:
        pytest.skip(f"a node may have {hard} files open, 1,500 are needed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1500), hard))
    try:
        running = nodes("a", limits__connections=str(allowed))
        with running as (node,), GCacheClient([node.address], fast_path=False, deadline=10.0) as client:
            fill(client)
            run = pb.KeyRun(bucket=1, keys=b"".join(one.key for one in BASE))
            request = pb.ExistsRequest(version=1, runs=[run]).SerializeToString()
            with connections(1000, node, call_of("Exists", request)) as opened:
                found = outcomes(opened)
                print(found)
                if allowed > 1000:
                    assert found["closed"] == 0
                    assert found["served"] >= 256, "as many as may call at a time"
                else:
                    assert found["closed"] >= 1000 - allowed
                    assert found["served"] >= 50
                # Its connection is older than those; new ones beyond the limit are refused.
                all_there(client, BASE)
            with GCacheClient([node.address], fast_path=False, deadline=10.0) as new:
                wait_for(lambda: all(r.hit for r in new.get(BASE)), "new connections are served again")
                wait_for(lambda: idle(new), "nothing is held")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_reader_of_one_byte_a_second_holds_one_value_and_is_cut() -> None:
    with nodes("a", limits__stall="2s") as (node,), GCacheClient([node.unix], deadline=10.0) as client:
        used = fill(client)
        ids = [object_of("byte", n) for n in range(4)]
        client.put([(one, bytes(4 * MIB)) for one in ids])
        runs = [pb.ObjectRun(bucket=1, ids=b"".join(one.key + b"\0" for one in ids))]
        request = pb.GetRequest(version=1, runs=runs).SerializeToString()
        host, port = node.tcp.rsplit(":", 1)
        with socket.socket() as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            one.settimeout(20)
            one.connect((host, int(port)))
            one.sendall(call_of("Get", request))
            wait_for(lambda: tier(client).held_slots > 0, "the call began")
            until = time.monotonic() + BOUND
            while tier(client).held_slots:
                assert tier(client).held_slots <= 2
                assert time.monotonic() < until, "it is cut"
                assert one.recv(1)
                # Others are served meanwhile.
                all_there(client, BASE[:4])
                time.sleep(1)
        client.delete(ids)
        wait_for(lambda: tier(client).used_bytes == used, "a slot leaked")


def test_a_reader_whose_window_grows_by_one_byte_does_not_hold_up_others() -> None:
    """It makes progress, if hardly any, so it may go on; what it holds ends with it."""
    with nodes("a", limits__stall="1s") as (node,), GCacheClient([node.unix], deadline=10.0) as client:
        used = fill(client)
        one = object_of("window")
        client.put([(one, bytes(8 * MIB))])
        runs = [pb.ObjectRun(bucket=1, ids=one.key + b"\0")]
        host, port = node.tcp.rsplit(":", 1)
        with socket.create_connection((host, int(port)), timeout=20) as slow:
            slow.sendall(call_of("Get", pb.GetRequest(version=1, runs=runs).SerializeToString()))
            wait_for(lambda: tier(client).held_slots > 0, "the call began")
            for _ in range(15):
                with contextlib.suppress(ConnectionError):
                    slow.sendall(b"".join(frame(WINDOW_UPDATE, 0, stream, b"\0\0\0\1") for stream in (0, 1)))
                assert tier(client).held_slots <= 2
                all_there(client, BASE[:4])
                time.sleep(0.2)
        wait_for(lambda: idle(client), "what it held ends with its connection")
        client.delete([one])
        wait_for(lambda: tier(client).used_bytes == used, "a slot leaked")


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
        assert idle(client)
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
        assert idle(client)
