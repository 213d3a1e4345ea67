"""What no client should send: every request gets a typed status and a sentence, and the node goes on."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from gcache_fast import fast, head
from gcache_nodes import RunningNode, key_of, nodes, object_of, value_of
from mimo_cache import gcache
from mimo_cache._core import crc32c
from mimo_cache.gcache import PutItem, PutStatus, Refused, connect
from mimo_cache.gcache.seal import FIRST, sealed
from mimo_cache.gcache.v1 import gcache_pb2 as pb
from mimo_cache.gcache.v1.gcache_pb2_grpc import GCacheStub

CHUNK = 1 << 20
KEY = key_of("hostile")
ID = KEY + b"\0"
CODE = grpc.StatusCode


@pytest.fixture(scope="module")
def node() -> Iterator[RunningNode]:
    with nodes("a", limits__stall="1s") as (one,):
        yield one


@pytest.fixture
def stub(node: RunningNode) -> Iterator[Any]:
    options = [("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(node.tcp, options=options) as channel:
        yield Sealing(GCacheStub(channel))


class Sealing:
    """A stub that gives every request the check that belongs to it, so that nothing but the rest of it is wrong."""

    def __init__(self, stub: Any) -> None:
        self._stub = stub

    def __getattr__(self, call: str) -> Any:
        def unary(request: Any, **how: Any) -> Any:
            return getattr(self._stub, call)(sealed(request), **how)

        def stream(requests: Iterator[Any], **how: Any) -> Any:
            return self._stub.Put(in_one_call(requests), **how)

        return stream if call == "Put" else unary


def in_one_call(requests: Iterator[Any]) -> Iterator[Any]:
    check = None
    for request in requests:
        yield sealed(request, FIRST if check is None else check)
        check = request.check if check is None else check


@pytest.fixture(autouse=True)
def the_node_goes_on(node: RunningNode) -> Iterator[None]:
    yield
    with connect([node.address], deadline=20) as client:
        one = object_of("after", time.monotonic())
        assert client.put([PutItem(one, b"value")]) == [PutStatus.STORED]
        assert client.get([one])[0].hit
        found = client.stats()["a"]
        assert found is not None
        assert found.tiers[0].writers == 0


def objects(*ids: bytes) -> list[pb.ObjectRun]:
    return [pb.ObjectRun(bucket=1, ids=b"".join(ids))]


def keys(*names: bytes) -> list[pb.KeyRun]:
    return [pb.KeyRun(bucket=1, keys=b"".join(names))]


class _One:
    """A call with one answer, not made yet."""

    def __init__(self, call: Any, request: Any) -> None:
        self._call, self._request = call, request

    def result(self) -> None:
        """Makes it."""
        self._call(self._request, timeout=20)


def refused(call: Any, code: grpc.StatusCode, words: str) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        call.result() if isinstance(call, _One) else list(call)
    assert caught.value.code() is code, caught.value.details()
    assert words in (caught.value.details() or ""), caught.value.details()


@pytest.mark.parametrize(
    ("call", "request_", "code", "words"),
    [
        ("Hello", pb.HelloRequest(min_version=3, max_version=9), CODE.FAILED_PRECONDITION, "versions 3 to 9"),
        ("Hello", pb.HelloRequest(min_version=1, max_version=0), CODE.FAILED_PRECONDITION, "1 to 0"),
        ("Hello", pb.HelloRequest(min_version=1, max_version=1, client="x" * 257), CODE.INVALID_ARGUMENT, "257 bytes"),
        ("Exists", pb.ExistsRequest(version=3, runs=keys(KEY)), CODE.FAILED_PRECONDITION, "version is 3"),
        ("Exists", pb.ExistsRequest(version=1), CODE.INVALID_ARGUMENT, "0 keys"),
        ("Exists", pb.ExistsRequest(version=1, runs=keys(KEY, b"x")), CODE.INVALID_ARGUMENT, "33 bytes of keys"),
        ("Exists", pb.ExistsRequest(version=1, runs=keys(KEY * 32_769)), CODE.INVALID_ARGUMENT, "32769 keys"),
        ("Touch", pb.TouchRequest(version=1, runs=objects(ID + b"x")), CODE.INVALID_ARGUMENT, "multiple of 33"),
        ("Touch", pb.TouchRequest(version=1, runs=objects(KEY + b"\x40")), CODE.INVALID_ARGUMENT, "part is 64"),
        ("Delete", pb.DeleteRequest(version=1, runs=objects(ID * 8193)), CODE.INVALID_ARGUMENT, "8193 object ids"),
        ("Verify", pb.VerifyRequest(version=0, runs=objects(ID)), CODE.FAILED_PRECONDITION, "version is 0"),
        ("Stats", pb.StatsRequest(version=77), CODE.FAILED_PRECONDITION, "version is 77"),
    ],
)
def test_requests_that_break_a_rule(stub: Any, call: str, request_: Any, code: grpc.StatusCode, words: str) -> None:
    refused(_One(getattr(stub, call), request_), code, words)


def test_gets_that_break_a_rule(stub: Any) -> None:
    for request, words in (
        (pb.GetRequest(version=1), "0 object ids"),
        (pb.GetRequest(version=1, runs=objects(ID), piece_bytes=1000), "piece_bytes is 1000"),
        (pb.GetRequest(version=1, runs=objects(ID * 8193)), "8193 object ids"),
        (pb.GetRequest(version=1, runs=[pb.ObjectRun()]), "0 bytes of object ids"),
    ):
        refused(stub.Get(request, timeout=20), CODE.INVALID_ARGUMENT, words)


def test_a_message_beyond_the_limit(stub: Any) -> None:
    request = pb.ExistsRequest(version=1, runs=keys(bytes(3 << 20)))
    refused(_One(stub.Exists, request), CODE.OUT_OF_RANGE, "allowed is at most 2097152")


def test_bytes_that_are_no_message(node: RunningNode) -> None:
    with grpc.insecure_channel(node.tcp) as channel:
        for path, data in (
            ("Exists", b"\xff" * 100),
            ("Get", os.urandom(1000)),
            ("Stats", b"\x0a\xff\xff\xff\xff\x0f"),
        ):
            call: Any = channel.unary_unary(f"/gcache.v1.GCache/{path}")
            with pytest.raises(grpc.RpcError) as caught:
                call(data, timeout=20)
            assert caught.value.code() in {CODE.INTERNAL, CODE.DATA_LOSS}
        nothing: Any = channel.unary_unary("/gcache.v1.GCache/Nothing")
        with pytest.raises(grpc.RpcError) as caught:
            nothing(b"", timeout=20)
        assert caught.value.code() is CODE.UNIMPLEMENTED


def test_requests_that_were_altered(node: RunningNode) -> None:
    """Refused before anything is done for them, whichever field it was."""
    good = pb.DeleteRequest(version=1, tenant=4, runs=objects(ID))
    with grpc.insecure_channel(node.tcp) as channel:
        stub = GCacheStub(channel)
        refused(_One(stub.Delete, good), CODE.DATA_LOSS, "gcache.v1.DeleteRequest has no check")
        check = sealed(good).check
        for altered in (
            pb.DeleteRequest(check=check, version=1, tenant=5, runs=objects(ID)),
            pb.DeleteRequest(check=check, version=1, tenant=4, runs=objects(KEY + b"\1")),
            pb.DeleteRequest(check=check, version=1, tenant=4, runs=[*objects(ID), *objects(ID)]),
            pb.DeleteRequest(check=check, version=1, tenant=4, runs=[pb.ObjectRun(bucket=2, ids=ID)]),
            pb.DeleteRequest(check=check ^ 1, version=1, tenant=4, runs=objects(ID)),
        ):
            refused(_One(stub.Delete, altered), CODE.DATA_LOSS, "altered on their way")
        # The same fields are another message.
        touch = pb.TouchRequest(check=check, version=1, tenant=4, runs=objects(ID))
        refused(_One(stub.Touch, touch), CODE.DATA_LOSS, "TouchRequest")


def test_pieces_of_another_call_are_not_stored(node: RunningNode) -> None:
    data = b"of another call"
    with grpc.insecure_channel(node.tcp) as channel:
        begun = sealed(first(offer(len(data), id=key_of("other call") + b"\0")))
        requests = [begun, sealed(piece(data), begun.check ^ 1)]
        refused(GCacheStub(channel).Put(iter(requests), timeout=20), CODE.DATA_LOSS, "altered on their way")
        asked = sealed(pb.ExistsRequest(version=1, tenant=4, runs=keys(key_of("other call"))))
        assert list(GCacheStub(channel).Exists(asked, timeout=20).masks) == [0]


def offer(length: int, **fields: Any) -> pb.Offer:
    return pb.Offer(**{"id": ID, "bucket": 1, "length": length, "extent": KEY, **fields})


def first(*offers: pb.Offer, **fields: Any) -> pb.PutRequest:
    return pb.PutRequest(**{"version": 1, "tenant": 4, "offers": offers, **fields})


def piece(data: bytes, offset: int = 0, index: int = 0, crc: int | None = None) -> pb.PutRequest:
    made = pb.Piece(index=index, offset=offset, data=data)
    made.crc32c = crc32c(data) if crc is None else crc
    return pb.PutRequest(piece=made)


@pytest.mark.parametrize(
    ("requests", "words"),
    [
        ([], "no message"),
        ([first(offer(0))], "value length is 0"),
        ([first(offer((128 << 20) + 1))], "value length is 134217729"),
        ([first(offer(1 << 63))], "value length is"),
        ([first(offer(120 << 20))], "value length"),
        ([first(offer(1, id=KEY))], "32 bytes, allowed is 33"),
        ([first(offer(1, id=KEY + b"\x40"))], "part is 64"),
        ([first(offer(1, extent=b""))], "extent has 0 bytes"),
        ([first(*[offer(1)] * 8193)], "8193 offers"),
        ([first(), piece(b"x")], "no object is wanted"),
        ([first(offer(10)), piece(b"x" * 11)], "with 11 bytes"),
        ([first(offer(10)), piece(b"x" * 5, offset=1)], "at 1 with 5 bytes"),
        ([first(offer(10)), piece(b"x" * 10, index=1)], "object 1 at 0"),
        ([first(offer(10)), piece(b"")], "with 0 bytes"),
        ([first(offer(2 << 20)), piece(bytes(CHUNK - 1)), piece(b"xx", CHUNK - 1)], "within a chunk"),
        ([first(offer(10)), pb.PutRequest(tenant=5)], "tenant 5"),
        ([first(offer(10)), pb.PutRequest(version=2)], "version 2"),
        ([first(offer(10))], "ended before"),
        ([first(offer(10)), piece(b"x" * 5)], "ended before"),
    ],
)
def test_puts_that_break_a_rule(stub: Any, requests: list[pb.PutRequest], words: str) -> None:
    refused(stub.Put(iter(requests), timeout=20), CODE.INVALID_ARGUMENT, words)


def test_a_put_of_another_version(stub: Any) -> None:
    refused(stub.Put(iter([first(offer(1), version=3)]), timeout=20), CODE.FAILED_PRECONDITION, "version is 3")


def test_bytes_that_changed_on_the_way_are_not_stored(stub: Any) -> None:
    data = value_of(CHUNK + 10, "corrupt")
    requests = [
        first(offer(len(data)), offer(5, id=KEY + b"\1")),
        piece(data[:CHUNK], crc=crc32c(data[:CHUNK]) ^ 1),
        piece(data[CHUNK:], CHUNK),
        piece(b"fine!", index=1),
    ]
    answers = [(a.index, a.outcome) for reply in stub.Put(iter(requests), timeout=20) for a in reply.answers]
    assert answers == [
        (0, pb.PUT_OUTCOME_WANTED),
        (1, pb.PUT_OUTCOME_WANTED),
        (0, pb.PUT_OUTCOME_CORRUPT),
        (1, pb.PUT_OUTCOME_STORED),
    ]
    reply = stub.Exists(pb.ExistsRequest(version=1, tenant=4, runs=keys(KEY)), timeout=20)
    assert list(reply.masks) == [2]


def test_a_writer_that_stops_gives_its_slots_back(stub: Any) -> None:
    def requests() -> Iterator[pb.PutRequest]:
        yield first(offer(1 << 20, id=key_of("stops") + b"\0"), offer(1 << 20, id=key_of("stops") + b"\1"))
        yield piece(bytes(1 << 18), crc=0)
        time.sleep(4)

    refused(stub.Put(requests(), timeout=20), CODE.DEADLINE_EXCEEDED, "no progress for 1000 ms")


def test_small_pieces_make_a_value(stub: Any) -> None:
    """256 KiB pieces, of which only the last of a chunk has a CRC."""
    data, name = value_of(CHUNK + 3, "pieces"), key_of("pieces")
    quarter = CHUNK // 4
    requests = [first(offer(len(data), id=name + b"\0"))]
    for start in range(0, CHUNK, quarter):
        made = pb.Piece(offset=start, data=data[start : start + quarter])
        if start + quarter == CHUNK:
            made.crc32c = crc32c(data[:CHUNK])
        requests.append(pb.PutRequest(piece=made))
    requests.append(piece(data[CHUNK:], CHUNK))
    outcomes = [a.outcome for reply in stub.Put(iter(requests), timeout=20) for a in reply.answers]
    assert outcomes == [pb.PUT_OUTCOME_WANTED, pb.PUT_OUTCOME_STORED]
    for size in (1 << 18, 1 << 19, 1 << 20):
        request = pb.GetRequest(version=1, tenant=4, piece_bytes=size, runs=objects(name + b"\0"))
        pieces = [reply.piece for reply in stub.Get(request, timeout=20)]
        assert b"".join(p.data for p in pieces) == data
        assert [len(p.data) for p in pieces] == [size] * (CHUNK // size) + [3]
        assert [p.HasField("crc32c") for p in pieces] == [False] * (CHUNK // size - 1) + [True, True]
        assert [p.length for p in pieces] == [len(data)] + [0] * (len(pieces) - 1)


def test_a_reader_that_does_not_read_is_cut(node: RunningNode) -> None:
    """It holds one value and a window, and after the stall limit nothing."""
    with connect([node.address], tenant=9, deadline=20) as client:
        ids = [object_of("slow", i) for i in range(8)]
        client.put([PutItem(i, value_of(2 << 20, i)) for i in ids])
        # A window that does not grow: else the channel itself may read all there is.
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.http2.bdp_probe", 0)]
        with grpc.insecure_channel(node.tcp, options=options) as channel:
            request = sealed(pb.GetRequest(version=1, tenant=9, runs=objects(*(i.key + b"\0" for i in ids))))
            replies = GCacheStub(channel).Get(request, timeout=60)
            next(replies)
            until = time.monotonic() + 30
            while True:
                found = client.stats()["a"]
                assert found is not None
                assert found.tiers[0].held_slots <= 2
                if found.tiers[0].held_slots == 0:
                    break
                assert time.monotonic() < until
                time.sleep(0.1)
            with pytest.raises(grpc.RpcError):
                list(replies)


def test_half_a_handshake(node: RunningNode) -> None:
    host, port = node.tcp.rsplit(":", 1)
    for sent in (b"", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", os.urandom(4096)):
        with socket.create_connection((host, int(port)), timeout=20) as one:
            one.sendall(sent)
            # A close with bytes that nobody read is a reset.
            with contextlib.suppress(ConnectionResetError):
                while one.recv(65536):
                    pass


def test_tokens(tmp_path: Any) -> None:
    few, every = tmp_path / "few", tmp_path / "every"
    few.write_text("token-of-tenants-one-and-two\n")
    every.write_text("token-of-all-the-tenants")
    config = f'[[tokens]]\nfile = "{few}"\ntenants = [1, 2]\n[[tokens]]\nfile = "{every}"\nall_tenants = true'
    with pytest.raises(RuntimeError, match="fast_path maps the memory of all tenants"), nodes("a", config=config):
        pass
    config = f'[[tokens]]\nfile = "{every}"\nall_tenants = true'
    with nodes("a", config=config) as (node,):
        for token, code in ((None, "UNAUTHENTICATED"), ("token-of-nobody-at-all", "UNAUTHENTICATED")):
            with connect([node.address], tenant=1, token=token, deadline=20) as client:
                with pytest.raises(Refused) as caught:
                    client.exists([KEY])
                assert (caught.value.code, caught.value.node) == (code, "a")
        with connect([node.address], tenant=77, token=every.read_text(), deadline=20) as client:
            assert client.exists([KEY]) == [0]
        with fast(node) as one:
            one.sendall(head(1))
            assert b"wants a token" in one.recv(4096)
        with fast(node) as one:
            one.sendall(head(1, len(every.read_text())) + every.read_text().encode())
            assert len(one.recv(4096)) == 56


def test_a_node_under_another_name_is_refused(node: RunningNode) -> None:
    with connect([f"b={node.tcp}"], deadline=20) as client, pytest.raises(Refused, match="calls itself 'a'"):
        client.exists([KEY])
    with connect([node.tcp], deadline=20) as client:
        assert client.exists([KEY_ABSENT := key_of("absent")]) == [0]
        assert len(KEY_ABSENT) == 32


def test_the_package_says_what_is_missing_in_arguments(node: RunningNode) -> None:
    for arguments, words in (
        ({"tenant": -1}, "tenant is -1"),
        ({"tenant": 1 << 64}, "tenant is"),
        ({"deadline": 0}, "deadline is 0"),
        ({"token": "a\nb"}, "token has characters"),
        ({"name": "x" * 257}, "name has 257 bytes"),
        ({"buckets": 3}, "buckets is 3"),
    ):
        with pytest.raises(gcache.InvalidArgument, match=words):
            connect([node.address], **arguments)
    for address in ("a=nowhere", "a=host:port", "a=unix:relative", "a=host:123456"):
        with pytest.raises(gcache.InvalidArgument, match="address of node"):
            connect([address])
