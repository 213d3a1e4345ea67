"""`GCacheClient` used wrongly, interrupted, closed under way and short of memory."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from gcache_nodes import RunningNode, nodes, object_of, value_of
from mimo_cache import GCacheClient, InvalidArgument
from mimo_cache.gcache import Deleted, GetStatus, ObjectId, PutStatus, Refused, Verified
from mimo_cache.gcache.errors import Closed


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
    buffers += [
        (ctypes.c_uint16 * 9)(7),
        (ctypes.c_char * 9)(b"x"),
        (ctypes.c_double * 3 * 2)(),
        memoryview(b"abc").cast("c"),
    ]
    ids = [object_of("numbers", i) for i in range(len(buffers))]
    with GCacheClient([node.tcp], deadline=20.0) as client:
        assert set(client.put(list(zip(ids, buffers, strict=True)))) == {PutStatus.STORED}
        into: list[Any] = [np.zeros(64, kind) for kind in kinds]
        found = client.get(ids[: len(kinds)], into)
        assert all(one.hit for one in found)
        assert all(np.array_equal(a, b) for a, b in zip(into, buffers, strict=False))


def test_an_interrupt_ends_a_call_and_leaves_its_memory_alone() -> None:
    with nodes("sleeper") as (node,), GCacheClient([node.tcp], deadline=60.0) as client:
        ids = [object_of("interrupt", i) for i in range(8)]
        client.put([(one, value_of(200_000, i)) for i, one in enumerate(ids)])
        for fast_path in (False, True):
            with GCacheClient([node.unix], deadline=60.0, fast_path=fast_path) as other:
                assert all(r.hit for r in other.get(ids))
                node.pause()
                timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
                timer.start()
                into = [bytearray(200_000) for _ in ids]
                start = time.monotonic()
                with pytest.raises(KeyboardInterrupt):
                    other.get(ids, into)
                assert time.monotonic() - start < 30, "it waited for the deadline"
                timer.join()
                for memory in into:
                    memory[:] = bytes(200_000)
                node.resume()
                assert all(r.hit for r in other.get(ids))
                assert all(memory == bytes(200_000) for memory in into)


def test_what_a_signal_handler_does_is_its_own_affair() -> None:
    """One that raises nothing lets the call go on; one may close the client that is being waited for."""
    with nodes("sleeper") as (node,):
        client = GCacheClient([node.tcp], deadline=20.0)
        one = object_of("handler")
        client.put([(one, b"value")])
        seen: list[int] = []

        def handler(number: int, _frame: object) -> None:
            seen.append(number)
            client.close()
            node.resume()

        before = signal.signal(signal.SIGUSR1, handler)
        try:
            node.pause()
            timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1))
            timer.start()
            assert client.get([one])[0].status is GetStatus.HIT
            timer.join()
        finally:
            signal.signal(signal.SIGUSR1, before)
        assert seen == [signal.SIGUSR1]
        with pytest.raises(Closed):
            client.get([one])


def test_close_waits_for_calls_of_other_threads() -> None:
    with nodes("sleeper") as (node,):
        client = GCacheClient([node.tcp], deadline=4.0)
        one = object_of("close")
        client.put([(one, b"value")])
        node.pause()
        found: list[GetStatus] = []
        caller = threading.Thread(target=lambda: found.append(client.get([one])[0].status))
        caller.start()
        time.sleep(0.3)
        client.close()
        # What is left of it takes no time.
        caller.join(1.0)
        assert found == [GetStatus.LATE]
        node.resume()
        client.close()


def test_words_of_a_closed_and_of_a_forked_client(node: RunningNode) -> None:
    client = GCacheClient([node.tcp])
    child = os.fork()
    if child == 0:
        try:
            client.metrics()
        except Exception as error:
            words = "this client belongs to the parent process; a forked child must create its own"
            os._exit(7 if str(error) == words else 8)
        os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    client.close()
    calls: list[Callable[[], object]] = [client.stats, client.metrics, client.breakers, client.flush, client.refusals]
    for call in calls:
        with pytest.raises(Closed, match="the client is closed"):
            call()
    with pytest.raises(
        InvalidArgument, match=r"tenant is 18446744073709551616, allowed is an int from 0 to 18446744073709551615"
    ):
        GCacheClient([node.tcp], tenant=2**64)


LITTLE_MEMORY = """
import resource, sys
from mimo_cache import GCacheClient
from mimo_cache.gcache import ObjectId
key = b"k" * 32
with GCacheClient([sys.argv[1]], deadline=20.0, fast_path=False) as client:
    assert client.put([(ObjectId(key, 0, key), bytes(12 << 20))])[0].value == "stored"
    used = int(open("/proc/self/statm").read().split()[0]) * 4096
    resource.setrlimit(resource.RLIMIT_AS, (used + (40 << 20), resource.getrlimit(resource.RLIMIT_AS)[1]))
    try:
        client.get([ObjectId(key, 0, key)] * 12)
    except MemoryError as error:
        print(error)
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    print(client.get([ObjectId(key, 0, key)])[0].status.value)
"""


def test_short_memory_is_a_memory_error(node: RunningNode) -> None:
    command = [sys.executable, "-c", LITTLE_MEMORY, node.address]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "no memory for the bytes of a value\nhit\n"), done.stderr


def test_a_node_that_refuses_costs_the_others_objects_nothing(node: RunningNode) -> None:
    with GCacheClient([node.address, f"wrong={node.tcp}"], tenant=5, deadline=20.0) as client:
        ids = [object_of("refusal", i) for i in range(40)]
        sound = [client.locate(one.extent) == "one" for one in ids]
        assert 0 < sum(sound) < 40
        expected = [PutStatus.STORED if fine else PutStatus.REFUSED for fine in sound]
        assert client.put([(one, b"value") for one in ids]) == expected
        found = client.get(ids, [bytearray(5) for _ in ids])
        assert [r.status for r in found] == [GetStatus.HIT if fine else GetStatus.REFUSED for fine in sound]
        assert all((r.length, r.data) == (0, None) for r in found if not r.hit)
        masks = client.exists([one.key for one in ids], [one.extent for one in ids])
        assert [mask != 0 for mask in masks] == sound
        assert client.touch(ids) == sum(sound)
        assert client.verify(ids) == Verified(sum(sound), 0, (), ("wrong",))
        (name, refusal), *others = client.refusals().items()
        assert (name, others, refusal.node, refusal.code) == ("wrong", [], "wrong", "FAILED_PRECONDITION")
        assert "calls itself" in refusal.sentence
        assert client.delete(ids) == Deleted(sum(sound), (), ("wrong",))
        strange: ObjectId = ids[sound.index(False)]
        calls: list[Callable[[], object]] = [
            lambda: client.get([strange]),
            lambda: client.put([(strange, b"value")]),
            lambda: client.exists([strange.key], [strange.extent]),
            lambda: client.touch([strange]),
            lambda: client.delete([strange]),
            lambda: client.verify([strange]),
        ]
        for call in calls:
            with pytest.raises(Refused, match="calls itself"):
                call()
        assert (client.get([]), client.put([]), client.exists([])) == ([], [], [])


def test_a_value_that_is_too_long_for_its_node_costs_no_other(node: RunningNode) -> None:
    with GCacheClient([node.address], tenant=6, deadline=20.0) as client:
        short, long = object_of("short"), object_of("long")
        data = bytes(65 << 20)
        assert client.put([(short, b"value"), (long, data)]) == [PutStatus.STORED, PutStatus.REFUSED]
        with pytest.raises(Refused, match="the value has 68157440 bytes, allowed is at most"):
            client.put([(long, data)])
