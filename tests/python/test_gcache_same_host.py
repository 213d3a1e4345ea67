"""The same-host path with a liar in the middle: places, words and checksums are not what they were."""

from __future__ import annotations

import array
import itertools
import os
import resource
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from gcache_nodes import RunningNode, nodes, object_of, value_of
from mimo_cache import GCacheClient
from mimo_cache.gcache import PutItem, PutStatus

HEAD, FOUND = 24, 64
HELLO, GET, RELEASE = 1, 2, 3
Change = Callable[[bytes, bytearray], list[bytes]]
"""A request and the reply to it, as the client is to get it: in pieces."""


class Middle:
    """Stands between the client and the node's socket, and hands on what `change` makes of the answers to `Get`."""

    def __init__(self, node: RunningNode) -> None:
        self.node = node
        path = node.folder / f"{node.name}.fast"
        self.behind = path.rename(path.with_suffix(".behind"))
        self.change: Change = lambda _, reply: [bytes(reply)]
        self.requests: list[bytes] = []
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(path))
        self.listener.listen()
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                threading.Thread(target=self.serve, args=(client,), daemon=True).start()

    def serve(self, client: socket.socket) -> None:
        with client, socket.socket(socket.AF_UNIX) as node, suppress(OSError):
            node.connect(str(self.behind))
            while head := client.recv(HEAD, socket.MSG_WAITALL):
                kind, count = head[4], int.from_bytes(head[6:8], "little")
                body = client.recv(count * 40, socket.MSG_WAITALL) if kind == GET else b""
                self.requests.append(head)
                node.sendall(head + body)
                if kind == HELLO:
                    message, descriptors, _, _ = socket.recv_fds(node, 56, 1)
                    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))
                    client.sendmsg([message], [rights])
                    for one in descriptors:
                        socket.close(one)
                if kind == GET:
                    reply = bytearray(node.recv(HEAD, socket.MSG_WAITALL))
                    reply += node.recv(int.from_bytes(reply[16:20], "little"), socket.MSG_WAITALL)
                    for piece in self.change(head, reply):
                        client.sendall(piece)
                        time.sleep(0.001)

    def asked(self, count: int) -> list[tuple[int, int]]:
        """Kind and byte 5 of `count` requests, greetings left out. A release may come after the call has ended."""
        until = time.monotonic() + 20
        while len(seen := [(head[4], head[5]) for head in self.requests if head[4] != HELLO]) < count:
            assert time.monotonic() < until, f"asked was {seen}"
            time.sleep(0.001)
        self.requests.clear()
        return seen


@pytest.fixture(scope="module")
def middle() -> Iterator[Middle]:
    with nodes("a") as (node,):
        yield Middle(node)


@contextmanager
def client_of(middle: Middle, change: Change | None = None) -> Iterator[GCacheClient]:
    """A client to whom the answers come so changed. Nothing stays pinned when it is gone."""
    middle.change = change or (lambda _, reply: [bytes(reply)])
    middle.requests.clear()
    with GCacheClient([middle.node.unix], deadline=20.0) as client:
        yield client
    with GCacheClient([middle.node.unix], deadline=20.0) as client:
        until = time.monotonic() + 20
        while (stats := client.stats()["a"]) is None or stats.tiers[0].held_slots:
            assert time.monotonic() < until, "nothing stays pinned"
            time.sleep(0.02)


def changed(reply: bytearray, at: int, flip: int = 1) -> list[bytes]:
    """The reply with another byte at `at` of its body."""
    reply[HEAD + at] ^= flip
    return [bytes(reply)]


def test_few_bytes_are_not_pinned_and_many_are(middle: Middle) -> None:
    small = [(object_of("small", i), value_of(1000 + i, "small", i)) for i in range(20)]
    large = (object_of("large"), value_of(300_000, "large"))
    with client_of(middle) as client:
        client.put([PutItem(i, v) for i, v in [*small, large]])
        into = [bytearray(len(v)) for _, v in small]
        assert all(r.hit for r in client.get([i for i, _ in small], into))
        assert into == [v for _, v in small]
        assert middle.asked(1) == [(GET, 1)]
        assert bytes(client.get([large[0]], [bytearray(300_000)])[0].data or b"") == large[1]
        assert middle.asked(2) == [(GET, 0), (RELEASE, 0)]


def test_what_moved_meanwhile_is_asked_for_again_and_pinned(middle: Middle) -> None:
    values = [(object_of("moved", i), value_of(5000, "moved", i)) for i in range(3)]

    def moved_when_unpinned(head: bytes, reply: bytearray) -> list[bytes]:
        # The header's word of the second of three values; alone, when it is asked for again.
        return changed(reply, FOUND + 32) if head[5] == 1 else [bytes(reply)]

    with client_of(middle, moved_when_unpinned) as client:
        client.put([PutItem(i, v) for i, v in values])
        results = client.get([i for i, _ in values], [bytearray(5000) for _ in values])
        assert [bytes(r.data or b"") for r in results] == [v for _, v in values]
        assert middle.asked(3) == [(GET, 1), (GET, 0), (RELEASE, 0)]
        assert client.metrics()["fast_hits"] == 3

    with client_of(middle, lambda head, reply: changed(reply, 48)) as client:
        result = client.get([values[0][0]], [bytearray(5000)])[0]
        assert result.hit, "the span's word is never what it was, and gRPC goes on"
        assert middle.asked(3) == [(GET, 1), (GET, 0), (RELEASE, 0)]
        assert (client.metrics()["fast_moved"], client.metrics()["fast_hits"]) == (1, 0)


def test_other_bytes_are_damage_and_reported(middle: Middle) -> None:
    one = object_of("crc")
    with client_of(middle, lambda _, reply: changed(reply, FOUND)) as client:
        client.put([PutItem(one, value_of(5000, "crc"))])
        client.get([one], [bytearray(5000)])
        counted = client.metrics()
        assert (counted["miss_damaged"], counted["damage_reports"]) == (1, 1)
    with client_of(middle) as client:
        assert client.get([one])[0].hit, "the node has looked and found nothing wrong"


@pytest.mark.parametrize(
    ("what", "change"),
    [
        ("a value beyond the file", lambda _, reply: changed(reply, 8 + 5)),
        ("a value at no page", lambda _, reply: changed(reply, 8)),
        ("a word beyond the file", lambda _, reply: changed(reply, 24 + 7, 0x80)),
        ("a word that is not aligned", lambda _, reply: changed(reply, 40)),
        ("a huge value", lambda _, reply: changed(reply, 16 + 7)),
        ("an outcome that is none", lambda _, reply: changed(reply, 0, 4)),
        ("too many CRCs", lambda _, reply: changed(reply, 56, 2)),
        ("bytes behind the end", lambda _, reply: [bytes(reply) + b"x"]),
    ],
)
def test_after_an_answer_against_the_protocol_grpc_goes_on(middle: Middle, what: str, change: Change) -> None:
    one = object_of(what)
    with client_of(middle, change) as client:
        client.put([PutItem(one, value_of(5000, what))])
        for _ in range(3):
            into = bytearray(5000)
            assert client.get([one], [into])[0].hit
            assert into == value_of(5000, what)
        assert middle.asked(1) == [(GET, 1)], "the path is left alone for a while"
        counted = client.metrics()
        assert (counted["fast_hits"], counted["breaker_opened"]) == (0, 0)


def test_an_answer_in_pieces_is_put_together(middle: Middle) -> None:
    ids = [object_of("pieces", i) for i in range(40)]
    cuts = (1, 23, 24, 25, 1024, 1500)

    def cut(_: bytes, reply: bytearray) -> list[bytes]:
        ends = [0, *cuts, len(reply)]
        return [bytes(reply[a:b]) for a, b in itertools.pairwise(ends)]

    with client_of(middle, cut) as client:
        client.put([PutItem(one, value_of(200, n)) for n, one in enumerate(ids)])
        for _ in range(5):
            results = client.get(ids, [bytearray(200) for _ in ids])
            assert [bytes(r.data or b"") for r in results] == [value_of(200, n) for n in range(40)]
        assert client.metrics()["fast_hits"] == 200


def test_an_answer_that_never_comes_costs_one_deadline(middle: Middle) -> None:
    one = object_of("silence")
    with client_of(middle, lambda _, reply: [bytes(reply[:30])]) as client:
        client.put([PutItem(one, b"value")])
        start = time.monotonic()
        assert not client.get([one], [bytearray(5)], deadline=0.2)[0].hit
        assert 0.15 < time.monotonic() - start < 5
        assert client.metrics()["miss_late"] == 1


def test_only_a_get_may_go_without_pins(middle: Middle) -> None:
    for kind, flag in ((GET, 2), (HELLO, 1), (RELEASE, 1)):
        with socket.socket(socket.AF_UNIX) as one:
            one.settimeout(20)
            one.connect(str(middle.behind))
            one.sendall(b"gcf1" + struct.pack("<BBHQQ", kind, flag, kind == GET, 0, 0))
            data = b""
            while more := one.recv(65536):
                data += more
            assert b"byte 5 of a" in data


def test_a_path_that_leads_to_another_node_is_not_used(tmp_path: Path) -> None:
    """Two containers on one machine: one boot id, and in each the same path is another node's socket."""
    with nodes("a") as (one,), nodes("a") as (other,):
        name = object_of("two containers")
        for node, value in ((one, b"of one"), (other, b"other!")):
            with GCacheClient([node.address], fast_path=False, deadline=10.0) as direct:
                assert direct.put([(name, value)]) == [PutStatus.STORED]
        Path(f"{one.folder}/a.fast").unlink()
        Path(f"{one.folder}/a.fast").symlink_to(f"{other.folder}/a.fast")
        with GCacheClient([one.address], deadline=10.0) as client:
            for _ in range(3):
                assert bytes(client.get([name])[0].data or b"") == b"of one"
            assert client.metrics()["fast_hits"] == 0


def test_a_connection_without_a_greeting_is_closed() -> None:
    with nodes("a", limits__stall="1s") as (node,), socket.socket(socket.AF_UNIX) as silent:
        silent.settimeout(20)
        silent.connect(f"{node.folder}/a.fast")
        assert silent.recv(1) == b""


def test_a_node_without_descriptors_waits_and_goes_on() -> None:
    """More connections than it may open files: the rest waits, and the thread that accepts does not spin."""
    with nodes("a") as (node,):
        resource.prlimit(node.process.pid, resource.RLIMIT_NOFILE, (40, 4096))
        with ExitStack() as stack:
            for _ in range(100):
                one = stack.enter_context(socket.socket(socket.AF_UNIX))
                one.settimeout(0.2)
                with suppress(OSError):
                    one.connect(f"{node.folder}/a.fast")
            time.sleep(0.2)
            before = cpu_of(node)
            time.sleep(2)
            assert cpu_of(node) - before < 0.5
        resource.prlimit(node.process.pid, resource.RLIMIT_NOFILE, (4096, 4096))
        until = time.monotonic() + 20
        name = object_of("after")
        with GCacheClient([node.address], deadline=10.0) as client:
            client.put([(name, b"value")])
            while client.metrics()["fast_hits"] == 0:
                assert client.get([name])[0].hit
                assert time.monotonic() < until
                time.sleep(0.05)


def cpu_of(node: RunningNode) -> float:
    """Seconds of processor that a node has used."""
    fields = Path(f"/proc/{node.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
