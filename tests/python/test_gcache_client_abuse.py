"""`GCacheClient` used wrongly, interrupted, closed under way and short of memory."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from gcache_nodes import RunningNode, nodes, object_of
from mimo_cache import GCacheClient, InvalidArgument
from mimo_cache.gcache import PutStatus


@pytest.fixture(scope="module")
def node() -> Iterator[RunningNode]:
    with nodes("one") as (running,):
        yield running


class _Pointers(ctypes.Structure):
    _fields_ = [("number", ctypes.c_int), ("object", ctypes.py_object)]


POINTERS: list[Any] = [
    np.zeros(1000, object),
    np.zeros(1000, [("number", "<i4"), ("object", "O")]),
    (ctypes.py_object * 1000)(),
    (ctypes.c_void_p * 1000)(),
    (_Pointers * 1000)(),
    (ctypes.POINTER(ctypes.c_int) * 1000)(),
]


@pytest.mark.parametrize("memory", POINTERS, ids=lambda memory: type(memory).__name__)
def test_memory_of_pointers_is_neither_written_nor_read(node: RunningNode, memory: Any) -> None:
    one, other = object_of("pointers"), object_of("pointers", 2)
    with GCacheClient([node.tcp], deadline=20.0) as client:
        client.put([(one, bytes(range(100)) * 80)])
        for into in (memory, [bytearray(10), memory]):
            with pytest.raises(InvalidArgument, match="no plain numbers"):
                client.get([one], [into])
            with pytest.raises(InvalidArgument, match="no plain numbers"):
                client.put([(other, into)])
            with pytest.raises(InvalidArgument, match="no plain numbers"):
                client.put_later([(other, into)])
        assert client.exists([other.key]) == [0]


def test_memory_of_numbers_of_every_kind_is_taken(node: RunningNode) -> None:
    kinds = ["?", "i1", "u1", "<i2", ">u4", "<i8", "f2", "<f4", ">f8", "c8", "c16", "g"]
    buffers: list[Any] = [np.ones(64, kind) for kind in kinds]
    buffers += [(ctypes.c_uint16 * 9)(7), (ctypes.c_char * 9)(b"x"), (ctypes.c_double * 3 * 2)(), memoryview(b"abc").cast("c")]
    ids = [object_of("numbers", i) for i in range(len(buffers))]
    with GCacheClient([node.tcp], deadline=20.0) as client:
        assert set(client.put(list(zip(ids, buffers, strict=True)))) == {PutStatus.STORED}
        into: list[Any] = [np.zeros(64, kind) for kind in kinds]
        found = client.get(ids[: len(kinds)], into)
        assert all(one.hit for one in found)
        assert all(np.array_equal(a, b) for a, b in zip(into, buffers, strict=False))
