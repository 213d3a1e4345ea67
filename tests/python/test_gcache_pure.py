"""The clients in Python, blocking and asyncio: what a caller gets wrong is the caller's, what one node refuses loses
nothing of the others, and no call reaches a node of another name."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

pytest.importorskip("grpc")

from gcache_nodes import RunningNode, nodes, object_of, value_of
from mimo_cache import gcache
from mimo_cache.gcache import (
    Client,
    Closed,
    Deleted,
    GetStatus,
    InvalidArgument,
    Node,
    PutItem,
    PutStatus,
    Refused,
    Verified,
    connect,
    connect_async,
)
from mimo_cache.gcache.plan import MAX_OBJECTS

UNIQUE = itertools.count()


class Awaited:
    """The asyncio client with the calls of the blocking one: the same tests are for both."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self._loop = asyncio.new_event_loop()

        async def made() -> gcache.AsyncClient:
            return connect_async(*args, **options)

        try:
            self.inner = self._loop.run_until_complete(made())
        except BaseException:
            self._loop.close()
            raise

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        if name in ("refusals", "locate"):
            return found
        return lambda *args, **options: self._loop.run_until_complete(found(*args, **options))

    def __enter__(self) -> Awaited:
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.run_until_complete(self.inner.close())
        self._loop.close()


KINDS: dict[str, Any] = {"blocking": connect, "asyncio": Awaited}


@pytest.fixture(scope="module")
def node() -> Iterator[RunningNode]:
    with nodes("a") as (one,):
        yield one


@pytest.fixture(params=list(KINDS))
def made(request: pytest.FixtureRequest) -> Any:
    return KINDS[request.param]


class Silly:
    """Its own words fail."""

    def __repr__(self) -> str:
        raise RuntimeError


def test_what_the_caller_gets_wrong_has_one_type_and_costs_the_node_nothing(node: RunningNode, made: Any) -> None:
    one, two = object_of("wrong", next(UNIQUE)), object_of("wrong", next(UNIQUE))
    shared = bytearray(100)
    whole = np.zeros(100, np.uint8)
    with made([node.address], deadline=20) as client:
        assert client.put([PutItem(one, b"value")]) == [PutStatus.STORED]
        calls: list[Callable[[], Any]] = [
            *(
                lambda ids=ids: client.get(ids)
                for ids in (None, 5, "ids", b"ids", [None], [5], ["abc"], [(one.key, 0)])
            ),
            *(
                lambda p=p: client.get([one._replace(part=p)])
                for p in (64, -1, 1.0, True, "1", None, 10**5000, Silly())
            ),
            *(lambda k=k: client.get([one._replace(key=k)]) for k in (b"", "x" * 32, bytearray(32), None)),
            lambda: client.get([one, two], [shared, shared]),
            lambda: client.get([one, two], [memoryview(shared)[:60], memoryview(shared)[59:]]),
            lambda: client.get([one, two], [whole[50:], whole]),
            lambda: client.get([one], [np.zeros(10, "M8[s]")]),
            *(lambda into=into: client.get([one], into) for into in (5, b"x" * 10, [], [None], [b"x"], ["x"])),
            *(lambda d=d: client.get([one], deadline=d) for d in (0, -1, "1", b"1", 3601, float("nan"), 10**400, 1j)),
            *(lambda i=i: client.put(i) for i in (None, 5, b"x", [None], [5], [()], [(two,)], [(None, b"x")])),
            *(lambda d=d: client.put([(two, d)]) for d in (b"", "text", None, 5, [b"x"])),
            *(lambda v=v: client.put([(two, b"x", v)]) for v in (1.5, -1, "1", None, True, 1 << 32)),
            *(lambda v=v: client.put([(two, b"x", 0, v)]) for v in ("no", 1, 2, None)),
            *(lambda v=v: client.put([(two, b"x", 0, False, v)]) for v in ("1", 0.5, None, 1 << 32)),
            *(lambda k=k: client.exists(k) for k in (None, 5, "x" * 32, b"x" * 32, [None], [b"x"])),
            *(lambda e=e: client.exists([one.key], e) for e in (5, [], [b""], [None], one.key)),
            *(lambda ms=ms: client.exists([one.key], lease_ms=ms) for ms in (1.5, -1, "1", None, 1 << 32)),
            *(lambda call=call: getattr(client, call)(None) for call in ("touch", "delete", "verify")),
            lambda: client.stats(deadline="1"),
            lambda: client.locate("x" * 32),
        ]
        for call in calls:
            with pytest.raises(InvalidArgument, match=r"allowed (is|are)|as uint8"):
                call()
        assert client.get([one])[0].hit, "the node is not blamed"
        assert client.exists([two.key]) == [0], "nothing was stored"


def test_what_a_client_is_made_of_is_looked_at(made: Any) -> None:
    address = "a=127.0.0.1:7401"
    makings: list[Callable[[], Any]] = [
        *(lambda n=n: made(n) for n in (None, 5, address, [], [None], [b"a=h:1"], [Node("a", cast(Any, 5))])),
        *(lambda p=p: made([f"a=127.0.0.1:{p}"]) for p in (0, 65_536, 99_999, "١", "")),
        *(lambda p=p: made([f"a=unix:{p}"]) for p in ("", "/", "x", "/" + "x" * 107, "/x\0y")),
        *(lambda t=t: made([address], tenant=t) for t in ("1", 1.5, -1, None, True, 1 << 64)),
        *(lambda t=t: made([address], token=t) for t in (5, b"x" * 20, "", "a b", "ä", "x\n", "\0", "x" * 4097)),
        *(lambda d=d: made([address], deadline=d) for d in (0, "1", None, float("inf"))),
        *(lambda b=b: made([address], buckets=b) for b in (1.5, "64", None, 0, 3, 1 << 30, True)),
        *(lambda n=n: made([address], name=n) for n in (5, None, b"x", "\udc80", "x" * 257)),
    ]
    for making in makings:
        with pytest.raises(InvalidArgument, match=r"allowed (is|are)"):
            making()


def test_a_deadline_too_short_for_any_node_is_not_its_fault(node: RunningNode, made: Any) -> None:
    one = object_of("short", next(UNIQUE))
    with made([node.address], deadline=20) as client:
        client.put([PutItem(one, b"value")])
        for _ in range(3):
            assert client.get([one], deadline=1e-9)[0].status is GetStatus.LATE
            assert client.put([PutItem(object_of("never"), b"value")], deadline=1e-9) == [PutStatus.LATE]
            assert client.get([one])[0].hit


def test_a_closed_client_says_so(node: RunningNode) -> None:
    client = connect([node.address])
    client.close()
    client.close()
    one = object_of("closed")
    for call in (
        lambda: client.get([one]),
        lambda: client.put([PutItem(one, b"x")]),
        client.stats,
        lambda: client.get([]),
    ):
        with pytest.raises(Closed, match="the client is closed"):
            cast(Any, call)()

    async def main() -> None:
        client = connect_async([node.address])
        await client.close()
        for call in (client.get([one]), client.put([PutItem(one, b"x")]), client.stats()):
            with pytest.raises(Closed, match="the client is closed"):
                await cast(Any, call)

    asyncio.run(main())


def test_a_call_that_is_running_when_its_client_is_closed_is_a_miss() -> None:
    with nodes("a", "b") as cluster:
        addresses = [one.address for one in cluster]
        ids = [object_of("closing", i) for i in range(20)]
        blocking = connect(addresses, deadline=20)
        blocking.put([PutItem(i, b"value") for i in ids])
        for one in cluster:
            one.pause()
        closer = threading.Timer(0.5, blocking.close)
        closer.start()
        start = time.monotonic()
        assert {r.status for r in blocking.get(ids)} == {GetStatus.UNREACHABLE}
        closer.join()

        async def main() -> None:
            client = connect_async(addresses, deadline=20)
            calls = [asyncio.ensure_future(client.get(ids)), asyncio.ensure_future(client.get(ids[:1]))]
            put = asyncio.ensure_future(client.put([PutItem(i, b"value") for i in ids]))
            await asyncio.sleep(0.5)
            await client.close()
            for call in calls:
                assert {r.status for r in await call} == {GetStatus.UNREACHABLE}
            assert set(await put) == {PutStatus.UNREACHABLE}
            # The task that is cancelled itself is cancelled.
            client = connect_async(addresses, deadline=20)
            call = asyncio.ensure_future(client.get(ids))
            await asyncio.sleep(0.2)
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            await client.close()

        asyncio.run(main())
        assert time.monotonic() - start < 15, "nobody waits for the deadline"


def test_an_interrupt_ends_what_writes_into_the_callers_memory() -> None:
    assert threading.current_thread() is threading.main_thread()
    with nodes("a", "b") as (a, b), connect([a.address, b.address], deadline=20) as client:
        ids = [object_of("interrupt", i) for i in range(60)]
        client.put([PutItem(i, value_of(200_000, i)) for i in ids])
        assert {client.locate(i.extent) for i in ids} == {"a", "b"}
        into = [bytearray(200_000) for _ in ids]
        of_b = [n for n, i in enumerate(ids) if client.locate(i.extent) == "b"]
        b.pause()
        try:
            for chosen in (range(60), of_b):
                timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
                start = time.monotonic()
                timer.start()
                with pytest.raises(KeyboardInterrupt):
                    client.get([ids[n] for n in chosen], into=[into[n] for n in chosen])
                assert time.monotonic() - start < 10
                timer.join()
        finally:
            for buffer in into:
                buffer[:] = bytes(200_000)
            b.resume()
        # The node sends now what it was asked for.
        assert all(r.hit for r in client.get(ids)), "no node is blamed for it"
        assert not any(any(buffer) for buffer in into)


def test_one_node_that_refuses_loses_nothing_of_the_others(made: Any) -> None:
    with nodes("a", "b") as (a, b), made([a.address, f"other={b.tcp}"], deadline=20) as client:
        ids = [object_of("refuses", i) for i in range(40)]
        sound = [client.locate(i.extent) == "a" for i in ids]
        assert {True, False} == set(sound)
        expected = [PutStatus.STORED if fine else PutStatus.REFUSED for fine in sound]
        assert client.put([PutItem(i, b"value") for i in ids]) == expected
        found = client.get(ids)
        assert [r.status for r in found] == [GetStatus.HIT if fine else GetStatus.REFUSED for fine in sound]
        assert all((r.length, r.data) == (0, None) for r, fine in zip(found, sound, strict=True) if not fine)
        assert client.exists([i.key for i in ids]) == [int(fine) for fine in sound]
        assert client.touch(ids) == sum(sound)
        assert client.verify(ids) == Verified(sum(sound), 0, (), ("other",))
        stats = client.stats()
        assert stats["a"] is not None
        assert stats["other"] is None
        assert client.delete(ids) == Deleted(sum(sound), (), ("other",))
        (refused,) = client.refusals().values()
        assert (refused.node, refused.code) == ("other", "FAILED_PRECONDITION")
        assert "calls itself 'b'" in refused.sentence
        # All of it refused: that is an exception. None of it: nothing is.
        theirs = [i for i, fine in zip(ids, sound, strict=True) if not fine]
        calls: list[Callable[[], Any]] = [
            lambda: client.get(theirs),
            lambda: client.put([PutItem(i, b"x") for i in theirs]),
            lambda: client.exists([i.key for i in theirs]),
            *(lambda call=call: getattr(client, call)(theirs) for call in ("touch", "delete", "verify")),
        ]
        for call in calls:
            with pytest.raises(Refused, match="calls itself 'b'"):
                call()
        assert client.get([]) == client.put([]) == client.exists([]) == []
        # What is down is not refused.
        a.kill()
        assert {r.status for r in client.get(ids)} == {GetStatus.UNREACHABLE, GetStatus.REFUSED}
        assert client.delete(ids) == Deleted(0, ("a",), ("other",))


def test_what_a_node_refuses_of_a_batch_loses_nothing_of_its_rest(made: Any) -> None:
    """A value longer than the node's memory: it refuses the request with it, and answers the one after."""
    with nodes("a", memory__size="64MiB") as (node,), made([node.address], deadline=20) as client:
        long = PutItem(object_of("long"), np.zeros(100 << 20, np.uint8))
        short = [PutItem(object_of("short", i), b"x") for i in range(MAX_OBJECTS)]
        statuses = client.put([long, *short[1:], short[0]])
        assert statuses[0] is PutStatus.REFUSED
        assert statuses[-1] is PutStatus.STORED
        assert "value length is 104857600" in client.refusals()["a"].sentence
        assert client.get([short[0].id])[0].hit
        assert client.refusals() == {}, "it answered since"


@contextlib.contextmanager
def taken_over(node: RunningNode, name: str) -> Iterator[RunningNode]:
    """Another node at the address of one that ended."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        other = RunningNode(Path(folder), name, {}, port=node.port)
        try:
            yield other
        finally:
            other.kill()


@pytest.mark.parametrize("ends", ["stop", "kill"])
@pytest.mark.parametrize("name", ["b", "knoten ä%"])
def test_no_call_reaches_a_node_of_another_name(made: Any, ends: str, name: str) -> None:
    """The library below connects anew by itself as soon as the address answers."""
    with nodes("a") as (a,), made([a.address], deadline=20) as client:
        one = object_of("moved")
        assert client.put([PutItem(one, b"value")]) == [PutStatus.STORED]
        getattr(a, ends)()
        with taken_over(a, name) as b, connect([Node(name, b.tcp)], deadline=20) as theirs:
            assert theirs.put([PutItem(one, b"theirs")]) == [PutStatus.STORED]
            until = time.monotonic() + 10
            refusals: list[Refused] = []
            calls: list[Callable[[], Any]] = [
                lambda: client.put([PutItem(object_of("other"), b"x")])[0] is PutStatus.UNREACHABLE,
                lambda: client.get([one])[0].status is GetStatus.UNREACHABLE,
                lambda: client.exists([one.key]) == [0],
                lambda: client.delete([one]) == Deleted(0, ("a",)),
            ]
            while len(refusals) < 12:
                assert time.monotonic() < until
                for call in calls:
                    try:
                        assert call()
                    except Refused as refused:
                        refusals.append(refused)
            assert {refused.code for refused in refusals} == {"FAILED_PRECONDITION"}
            assert all("calls itself" in refused.sentence for refused in refusals)
            assert theirs.get([one, object_of("other")])[0].hit
            stats = theirs.stats()[name]
            assert stats is not None
            assert stats.tiers[0].objects == 1


def test_a_node_that_comes_back_under_its_name_is_used_again(made: Any) -> None:
    with nodes("a") as (a,), made([a.address], deadline=20) as client:
        one = object_of("back")
        client.put([PutItem(one, b"value")])
        a.stop()
        a.start()
        until = time.monotonic() + 20
        while not client.get([one])[0].hit:
            assert time.monotonic() < until
            time.sleep(0.05)


def test_the_clients_have_the_same_calls() -> None:
    assert {name for name in vars(Client) if not name.startswith("_")} == {
        name for name in vars(gcache.AsyncClient) if not name.startswith("_")
    }
