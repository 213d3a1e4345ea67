"""The node's side of the same-host path: what no client should send, and what a reader sees and holds."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("grpc")

from gcache_fast import exactly, fast, greeted, head
from gcache_nodes import RunningNode, key_of, nodes, object_of, value_of
from mimo_cache import GCacheClient
from mimo_cache._core import crc32c
from mimo_cache.gcache import PutItem, PutStatus, connect

CHUNK = 1 << 20
KEY = key_of("hostile")


@pytest.fixture(scope="module")
def node() -> Iterator[RunningNode]:
    with nodes("a", limits__stall="1s") as (one,):
        yield one


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (head(1, magic=b"GET "), "starts with"),
        (head(9), "kind 9"),
        (head(4), "kind 4"),
        (head(2, 257), "count of a Get is 257"),
        (head(2, 0), "count of a Get is 0"),
        (head(1, 5000), "count of a Hello is 5000"),
        (head(3), "must be a Hello"),
        (head(2, 1) + bytes(40), "must be a Hello"),
        (head(1) + head(2, 1) + KEY + b"\x40" + bytes(7), "part is 64"),
    ],
)
def test_the_same_host_path_refuses(node: RunningNode, sent: bytes, words: str) -> None:
    with fast(node) as one:
        one.sendall(sent)
        data = b""
        while more := one.recv(65536):
            data += more
        assert words in data.decode(errors="replace")


def test_the_same_host_path_shows_values_where_they_lie(node: RunningNode) -> None:
    value = value_of(CHUNK + 77, "fast")
    name = object_of("fast")
    with connect([node.address], tenant=8, deadline=20) as client:
        client.put([PutItem(name, value)])
        one, descriptor = greeted(node)
        with one:
            with pytest.raises(OSError, match="Bad file descriptor"):
                os.write(descriptor, b"x")
            one.sendall(head(2, 2, 8, 5) + (name.key + b"\0" + bytes(7)) + (name.key + b"\1" + bytes(7)))
            reply = exactly(one, 24 + 2 * 64 + 2 * 4)
            outcome, _, offset, length, header_at, header_word = struct.unpack("<IIQQQQ", reply[24:64])
            assert (outcome, length, reply[88:92]) == (0, len(value), struct.pack("<I", 1))
            assert os.pread(descriptor, length, offset) == value
            assert struct.unpack("<Q", os.pread(descriptor, 8, header_at))[0] == header_word
            assert struct.unpack("<2I", reply[-8:]) == (crc32c(value[:CHUNK]), crc32c(value[CHUNK:]))
            held = client.stats()["a"]
            assert held is not None
            assert held.tiers[0].held_slots == 1
            one.sendall(head(2, 1, 8, 5) + name.key + bytes(8))
            assert b"sequence number 5" in one.recv(4096), "a number that is not released"
        os.close(descriptor)
        until = time.monotonic() + 20
        while (held := client.stats()["a"]) is None or held.tiers[0].held_slots:
            assert time.monotonic() < until, "pins end with the connection"
            time.sleep(0.05)


def test_pins_of_a_sleeping_reader_end(node: RunningNode) -> None:
    name = object_of("sleeper")
    with connect([node.address], tenant=8, deadline=20) as client:
        client.put([PutItem(name, b"value")])
        one, descriptor = greeted(node)
        os.close(descriptor)
        with one:
            one.sendall(head(2, 1, 8, 1) + name.key + bytes(8))
            exactly(one, 24 + 64 + 4)
            until = time.monotonic() + 20
            while (held := client.stats()["a"]) is None or held.tiers[0].held_slots:
                assert time.monotonic() < until
                time.sleep(0.1)


def test_what_is_on_disk_comes_over_grpc(tmp_path: Path) -> None:
    disk = f'[[disk]]\npath = "{tmp_path}/disk"\nsize = "256MiB"\n'
    with nodes("a", memory__size="32MiB", config=disk) as (node,), GCacheClient([node.unix], deadline=20.0) as client:
        values = {object_of("on disk", i): value_of(CHUNK, i) for i in range(96)}
        assert client.put(list(values.items())) == [PutStatus.STORED] * 96
        results = client.get(list(values))
        assert [bytes(r.data or b"") for r in results] == list(values.values())
        metrics = client.metrics()
        assert 0 < metrics["fast_hits"] < 60, "what memory holds"
        assert metrics["get_hits"] == 96
        assert client.delete(list(values)).deleted == 96
        assert not any(r.hit for r in client.get(list(values)))
