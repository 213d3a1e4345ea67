"""Connections that are many or slow, spoken to byte by byte: the node serves or refuses them, and serves others."""

from __future__ import annotations

import contextlib
import resource
import selectors
import socket
import time
from collections.abc import Iterator

import pytest

from gcache_checks import BASE, BOUND, all_there, fill, idle, tier, wait_for
from gcache_nodes import RunningNode, nodes, object_of
from mimo_cache import GCacheClient
from mimo_cache.gcache.seal import sealed
from mimo_cache.gcache.v1 import gcache_pb2 as pb

MIB = 1 << 20
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, SETTINGS, WINDOW_UPDATE = 0, 1, 4, 8


def frame(kind: int, flags: int, stream: int, body: bytes = b"") -> bytes:
    return len(body).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + body


def call_of(name: str, request: bytes, *, ends: bool = True, **more: str) -> bytes:
    """What a client sends for one call, on a new connection of HTTP/2, with more headers; `ends`: nothing follows."""
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": f"/gcache.v1.GCache/{name}",
        ":authority": "a",
        "te": "trailers",
        "content-type": "application/grpc",
        **{name.replace("_", "-"): value for name, value in more.items()},
    }
    # Literals without an index and without Huffman codes: RFC 7541, 6.2.2.
    block = b"".join(b"\0" + bytes([len(k)]) + k.encode() + bytes([len(v)]) + v.encode() for k, v in fields.items())
    message = b"\0" + len(request).to_bytes(4, "big") + request
    return PREFACE + frame(SETTINGS, 0, 0) + frame(HEADERS, 4, 1, block) + frame(DATA, ends, 1, message)


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
            request = sealed(pb.ExistsRequest(version=1, runs=[run])).SerializeToString()
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


def test_a_call_that_its_client_forgets_ends_at_its_deadline() -> None:
    """A writer offers a value and is never heard of again, with a limit that would keep it for a minute."""
    with nodes("a", limits__stall="60s") as (node,), GCacheClient([node.unix], deadline=10.0) as client:
        one = object_of("forgotten")
        offer = pb.Offer(id=one.key + b"\0", bucket=1, length=MIB, extent=one.extent)
        request = sealed(pb.PutRequest(version=1, offers=[offer])).SerializeToString()
        host, port = node.tcp.rsplit(":", 1)
        with socket.create_connection((host, int(port)), timeout=20) as forgotten:
            forgotten.sendall(call_of("Put", request, ends=False, grpc_timeout="3S"))
            wait_for(lambda: tier(client).writers == 1, "the slot is taken")
            wait_for(lambda: tier(client).writers == 0, "the slot is given back")
            received = b""
            while ended_in(received) is None:
                received += forgotten.recv(65536)
            assert ended_in(received) == "served", "an answer, and the status at the end"


def test_a_reader_of_one_byte_a_second_holds_one_value_and_is_cut() -> None:
    with nodes("a", limits__stall="2s") as (node,), GCacheClient([node.unix], deadline=10.0) as client:
        used = fill(client)
        ids = [object_of("byte", n) for n in range(4)]
        client.put([(one, bytes(4 * MIB)) for one in ids])
        runs = [pb.ObjectRun(bucket=1, ids=b"".join(one.key + b"\0" for one in ids))]
        request = sealed(pb.GetRequest(version=1, runs=runs)).SerializeToString()
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


def test_a_reader_whose_window_grows_by_one_byte_is_cut() -> None:
    """What it lets through is no progress: a piece that was begun is not taken within the limit. Others are served."""
    with nodes("a", limits__stall="1s") as (node,), GCacheClient([node.unix], deadline=10.0) as client:
        used = fill(client)
        one = object_of("window")
        client.put([(one, bytes(8 * MIB))])
        runs = [pb.ObjectRun(bucket=1, ids=one.key + b"\0")]
        host, port = node.tcp.rsplit(":", 1)
        with socket.create_connection((host, int(port)), timeout=20) as slow:
            slow.sendall(call_of("Get", sealed(pb.GetRequest(version=1, runs=runs)).SerializeToString()))
            wait_for(lambda: tier(client).held_slots > 0, "the call began")
            until = time.monotonic() + BOUND
            while tier(client).held_slots:
                assert tier(client).held_slots <= 2
                assert time.monotonic() < until, "it is cut"
                with contextlib.suppress(ConnectionError):
                    slow.sendall(b"".join(frame(WINDOW_UPDATE, 0, stream, b"\0\0\0\1") for stream in (0, 1)))
                all_there(client, BASE[:4])
                time.sleep(0.2)
        wait_for(lambda: idle(client), "what it held ends with its connection")
        client.delete([one])
        wait_for(lambda: tier(client).used_bytes == used, "a slot leaked")
