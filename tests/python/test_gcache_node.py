"""The pure-Python client and real nodes: values, tenants, leases, restarts, dead nodes, both flavours of the client."""

from __future__ import annotations

import asyncio
import itertools
import json
import subprocess
import time
import urllib.request
from collections.abc import Iterator

import numpy as np
import pytest

pytest.importorskip("grpc")

from gcache_nodes import RunningNode, key_of, nodes, object_of, program, value_of
from mimo_cache.gcache import (
    AsyncClient,
    Client,
    GetStatus,
    InvalidArgument,
    ObjectId,
    PutItem,
    PutStatus,
    Verified,
    connect,
    connect_async,
    extents_of,
)

UNIQUE = itertools.count()
"""Numbers for the names of objects: tests of two clients share a node."""

SIZES = (1, 4095, 4096, 65_537, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, (3 << 20) + 5)


@pytest.fixture(scope="module")
def node() -> Iterator[RunningNode]:
    with nodes("a") as (one,):
        yield one


@pytest.fixture(params=["tcp", "unix"])
def client(node: RunningNode, request: pytest.FixtureRequest) -> Iterator[Client]:
    with connect([node.address if request.param == "tcp" else node.unix], tenant=1, deadline=20) as one:
        yield one


def test_values_come_back_into_buffers_and_without(client: Client) -> None:
    ids = [object_of("sizes", next(UNIQUE), size) for size in SIZES]
    values = [value_of(size, "sizes") for size in SIZES]
    items = [PutItem(i, v, page_index=n, layout=7) for n, (i, v) in enumerate(zip(ids, values, strict=True))]
    assert client.put(items) == [PutStatus.STORED] * len(SIZES)
    assert client.put(items) == [PutStatus.PRESENT] * len(SIZES)
    assert client.exists([i.key for i in ids]) == [1] * len(SIZES)
    got = client.get(ids)
    assert [(r.status, r.length, bytes(r.data or b""), r.layout) for r in got] == [
        (GetStatus.HIT, len(v), v, 7) for v in values
    ]
    buffers = [np.full(size + 3, 9, np.uint8) for size in SIZES]
    for result, buffer, value in zip(client.get(ids, into=buffers), buffers, values, strict=True):
        assert result.hit
        assert buffer.tobytes() == value + b"\t\t\t"
        assert result.data is not None
        assert np.shares_memory(np.frombuffer(result.data, np.uint8), buffer)
    assert client.delete(ids).deleted == len(SIZES)
    assert [r.status for r in client.get(ids)] == [GetStatus.ABSENT] * len(SIZES)


def test_the_first_writer_wins_and_a_batch_may_name_an_object_twice(client: Client) -> None:
    one = object_of("first", next(UNIQUE))
    first, second = value_of(5000, 1), value_of(6000, 2)
    statuses = client.put([PutItem(one, first), PutItem(one, second), PutItem(one, first)])
    assert statuses[0] is PutStatus.STORED
    assert set(statuses[1:]) <= {PutStatus.BUSY, PutStatus.PRESENT}
    assert client.put([PutItem(one, second)]) == [PutStatus.PRESENT]
    assert [bytes(r.data or b"") for r in client.get([one, one, object_of("none"), one])] == [first, first, b"", first]
    assert client.delete([one, one]).deleted == 1


def test_parts_make_masks(client: Client) -> None:
    key = key_of("masks", next(UNIQUE))
    parts = [0, 1, 31, 32, 63]
    assert client.put([PutItem(ObjectId(key, p, key), b"x" * (p + 1)) for p in parts]) == [PutStatus.STORED] * 5
    assert client.exists([key, key_of("other"), key]) == [sum(1 << p for p in parts), 0, sum(1 << p for p in parts)]
    assert client.touch([ObjectId(key, p, key) for p in (63, 1, 2)]) == 2
    assert client.verify([ObjectId(key, p, key) for p in (63, 1, 2)]) == Verified(2, 0, ())


def test_buffers_of_any_kind(client: Client) -> None:
    page = np.arange(6000, dtype=np.float32).reshape(3, 2, 1000)
    one = object_of("kinds", next(UNIQUE))
    assert client.put([PutItem(one, page)]) == [PutStatus.STORED]
    back = np.zeros_like(page)
    assert client.get([one], into=[back])[0].hit
    assert (back == page).all()
    assert client.get([one], into=[bytearray(4)])[0].status is GetStatus.TOO_LONG
    assert client.get([one], into=[bytearray(4)])[0].length == page.nbytes
    for bad, words in ((page.T, "contiguous"), (b"bytes", "read-only"), ("text", "allowed is a buffer")):
        with pytest.raises(InvalidArgument, match=words):
            client.get([one], into=[bad])  # type: ignore[list-item]
    with pytest.raises(InvalidArgument, match="0 bytes"):
        client.put([PutItem(one, b"")])
    with pytest.raises(InvalidArgument, match="one for each of the 1 ids"):
        client.get([one], into=[])


def test_tenants_do_not_see_each_other(node: RunningNode) -> None:
    one = object_of("tenants")
    with connect([node.address], tenant=5, deadline=20) as a, connect([node.address], tenant=6, deadline=20) as b:
        assert a.put([PutItem(one, b"of five")]) == [PutStatus.STORED]
        assert b.exists([one.key]) == [0]
        assert not b.get([one])[0].hit
        assert (b.touch([one]), b.delete([one]).deleted, b.verify([one]).sound) == (0, 0, 0)
        assert b.put([PutItem(one, b"of six")]) == [PutStatus.STORED]
        assert bytes(a.get([one])[0].data or b"") == b"of five"


def test_many_objects_in_one_call(client: Client) -> None:
    """More than one request may carry, and more small values than one answer."""
    keys = [key_of("many", next(UNIQUE), i) for i in range(9000)]
    extents = extents_of(keys, 16)
    ids = [ObjectId(k, 0, e) for k, e in zip(keys, extents, strict=True)]
    assert set(client.put([PutItem(i, i.key) for i in ids], deadline=60)) == {PutStatus.STORED}
    assert client.exists(keys, extents, deadline=60) == [1] * len(keys)
    assert [bytes(r.data or b"") for r in client.get(ids, deadline=60)] == keys
    assert client.delete(ids, deadline=60).deleted == len(ids)


def test_asyncio_has_the_same_calls(node: RunningNode) -> None:
    async def use(client: AsyncClient) -> None:
        ids = [object_of("asyncio", i, part=i) for i in range(40)]
        values = [value_of(i * 9001 + 1, "asyncio") for i in range(40)]
        items = [PutItem(i, v) for i, v in zip(ids, values, strict=True)]
        assert set(await client.put(items)) == {PutStatus.STORED}
        assert await client.exists([i.key for i in ids]) == [1 << i.part for i in ids]
        batches = await asyncio.gather(*(client.get(ids[i : i + 10]) for i in range(0, 40, 10)))
        assert [bytes(r.data or b"") for batch in batches for r in batch] == values
        assert await client.touch(ids) == 40
        assert (await client.verify(ids)).sound == 40
        assert (await client.delete(ids)).deleted == 40
        found = (await client.stats())["a"]
        assert found is not None
        assert found.node == "a"
        assert found.tiers[0].name == "memory"
        with pytest.raises(InvalidArgument):
            await client.put([PutItem(ids[0], b"")])

    async def main() -> None:
        async with connect_async([node.address], tenant=2, deadline=30) as client:
            await use(client)

    asyncio.run(main())


def test_a_killed_node_gives_everything_back_and_is_a_miss_meanwhile() -> None:
    with nodes("n1", "n2", "n3") as cluster:
        ids = [object_of("cluster", i) for i in range(300)]
        values = [value_of(20_000 + i, i) for i in range(300)]
        with connect([n.address for n in cluster], tenant=3, deadline=20) as client:
            assert set(client.put([PutItem(i, v) for i, v in zip(ids, values, strict=True)])) == {PutStatus.STORED}
            owners = [client.locate(i.extent) for i in ids]
            assert set(owners) == {"n1", "n2", "n3"}
            cluster[1].kill()
            start = time.monotonic()
            found = client.get(ids, deadline=5)
            assert time.monotonic() - start < 15
            expected = [GetStatus.UNREACHABLE if o == "n2" else GetStatus.HIT for o in owners]
            assert [r.status for r in found] == expected
            assert client.exists([i.key for i in ids]) == [int(o != "n2") for o in owners]
            assert client.delete([i for i, o in zip(ids, owners, strict=True) if o == "n2"]).unreachable == ("n2",)
            cluster[1].start()
            assert cluster[1].serving["objects"] == owners.count("n2")
            until = time.monotonic() + 30
            while not all(r.hit for r in client.get(ids)):
                assert time.monotonic() < until
                time.sleep(0.1)
            assert [bytes(r.data or b"") for r in client.get(ids)] == values


def test_a_node_that_hangs_costs_one_deadline() -> None:
    with nodes("a", "b") as (a, b):
        ids = [object_of("hang", i) for i in range(50)]
        with connect([a.address, b.address], deadline=20) as client:
            client.put([PutItem(i, b"value") for i in ids])
            owners = [client.locate(i.extent) for i in ids]
            b.pause()
            try:
                statuses = [r.status for r in client.get(ids, deadline=1.0)]
                assert statuses == [GetStatus.LATE if o == "b" else GetStatus.HIT for o in owners]
                start = time.monotonic()
                statuses = [r.status for r in client.get(ids, deadline=20.0)]
                assert statuses == [GetStatus.UNREACHABLE if o == "b" else GetStatus.HIT for o in owners]
                assert time.monotonic() - start < 10, "a node that was late is left alone"
            finally:
                b.resume()
            until = time.monotonic() + 30
            while not all(r.hit for r in client.get(ids)):
                assert time.monotonic() < until
                time.sleep(0.1)


def test_leases_end_with_their_connection() -> None:
    with nodes("a", memory__lease="1MiB") as (node,):
        one = object_of("lease")
        with connect([node.address], deadline=20) as watcher:
            with connect([node.address], deadline=20) as holder:
                holder.put([PutItem(one, b"kept")])
                assert holder.exists([one.key], lease_ms=60_000) == [1]
                found = watcher.stats()["a"]
                assert found is not None
                assert found.tiers[0].lease_bytes > 0
            until = time.monotonic() + 20
            while (found := watcher.stats()["a"]) is None or found.tiers[0].lease_bytes:
                assert time.monotonic() < until
                time.sleep(0.05)


def test_an_orderly_stop_and_what_tools_see() -> None:
    with nodes("a") as (node,):
        with connect([node.address], deadline=20) as client:
            client.put([PutItem(object_of("stop"), b"value")])
            client.get([object_of("stop"), object_of("nothing")])
            metrics = urllib.request.urlopen(f"http://{node.serving['metrics']}/metrics", timeout=10).read().decode()
            assert 'gcache_hits_total{tier="memory"} 1\n' in metrics
            assert "gcache_misses_total 1\n" in metrics
            health = urllib.request.urlopen(f"http://{node.serving['metrics']}/health", timeout=10)
            assert health.read() == b"serving\n"
            tool = [program("gcachectl"), "--node", node.address]
            status = subprocess.run([*tool, "status", "--json"], check=True, capture_output=True, text=True)
            (row,) = json.loads(status.stdout)
            assert (row["node"], row["error"], row["tiers"][0]["objects"]) == ("a", None, 1)
            key = object_of("stop").key.hex()
            located = subprocess.run([*tool, "locate", key], check=True, capture_output=True, text=True)
            assert f"node a at {node.tcp}" in located.stdout
            for names, code in (([f"{key}:0"], 0), ([f"{key}:0", f"{key}:1"], 1)):
                assert subprocess.run([*tool, "verify", *names], check=False, capture_output=True).returncode == code
            bench = [*tool, "bench", "--size", "3MiB", "--count", "6", "--batch", "4", "--deadline", "30", "--json"]
            measured = json.loads(subprocess.run(bench, check=True, capture_output=True, text=True).stdout)
            assert measured["equal"] == measured["stored"] == 6
        assert node.stop() == 0
        node.start()
        assert node.serving["objects"] == 1
        assert (
            subprocess.run([*tool[:2], f"other={node.tcp}", "status"], check=False, capture_output=True).returncode == 1
        )


def test_health_and_reflection(node: RunningNode) -> None:
    grpc = pytest.importorskip("grpc")
    health = pytest.importorskip("grpc_health.v1.health_pb2")
    health_grpc = pytest.importorskip("grpc_health.v1.health_pb2_grpc")
    reflection = pytest.importorskip("grpc_reflection.v1alpha.proto_reflection_descriptor_database")
    with grpc.insecure_channel(node.tcp) as channel:
        reply = health_grpc.HealthStub(channel).Check(health.HealthCheckRequest(service="gcache.v1.GCache"), timeout=20)
        assert reply.status == health.HealthCheckResponse.SERVING
        database = reflection.ProtoReflectionDescriptorDatabase(channel)
        assert "gcache.v1.GCache" in database.get_services()
        assert database.FindFileContainingSymbol("gcache.v1.Piece").package == "gcache.v1"
