"""What the Python client makes of a node's messages, without a network: also of messages that no node should send."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("grpc")

from gcache_nodes import object_of, value_of
from mimo_cache._core import crc32c
from mimo_cache.gcache import GetResult, GetStatus, PutItem, PutStatus
from mimo_cache.gcache.errors import Broken
from mimo_cache.gcache.peer import LATE_CALLS, LONGEST_PAUSE, Breaker
from mimo_cache.gcache.plan import shares
from mimo_cache.gcache.ring import Node, Ring
from mimo_cache.gcache.seal import sealed
from mimo_cache.gcache.transfer import GetReceiver, PutSender
from mimo_cache.gcache.v1 import gcache_pb2 as pb

CHUNK = 1 << 20
REQUEST = sealed(pb.GetRequest(version=1))


def test_the_checksum_is_castagnoli() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(b"") == 0
    assert crc32c(b"456789", crc32c(b"123")) == 0xE3069283
    assert crc32c(memoryview(bytearray(b"123456789"))) == 0xE3069283
    for bad in (memoryview(b"123456789")[::2], memoryview(b"12345678").cast("I"), "text", 3):
        with pytest.raises(ValueError, match="data is"):
            crc32c(bad)  # type: ignore[arg-type]


def reply(data: bytes, offset: int = 0, length: int = 0, index: int = 0, crc: int | None = -1) -> pb.GetReply:
    piece = pb.Piece(index=index, offset=offset, length=length, data=data)
    if crc is not None:
        piece.crc32c = crc32c(data) if crc == -1 else crc
    return sealed(pb.GetReply(piece=piece), REQUEST.check)


def miss(index: int, reason: Any = pb.MISS_REASON_ABSENT) -> pb.GetReply:
    return sealed(pb.GetReply(misses=[pb.Miss(index=index, reason=reason)]), REQUEST.check)


def test_hits_misses_and_what_never_came() -> None:
    value = value_of(CHUNK + 5, "value")
    buffer = bytearray(len(value))
    receiver = GetReceiver(REQUEST, [memoryview(buffer), None, None, None])
    receiver.feed(reply(value[: CHUNK // 2], length=len(value), crc=None))
    receiver.feed(reply(value[CHUNK // 2 : CHUNK], offset=CHUNK // 2, crc=crc32c(value[:CHUNK])))
    receiver.feed(reply(value[CHUNK:], offset=CHUNK))
    receiver.feed(miss(1))
    receiver.feed(reply(b"small", length=5, index=2))
    results = receiver.finish(GetStatus.LATE)
    assert [r.status for r in results] == [GetStatus.HIT, GetStatus.ABSENT, GetStatus.HIT, GetStatus.LATE]
    assert bytes(buffer) == value
    assert bytes(results[2].data or b"") == b"small"


def test_a_value_says_which_tier_it_comes_from() -> None:
    def receive(version: int, source: int) -> GetResult:
        request = sealed(pb.GetRequest(version=version))
        receiver = GetReceiver(request, [None])
        piece = pb.Piece(length=4, data=b"fine", crc32c=crc32c(b"fine"))
        any_piece: Any = piece  # of any number
        any_piece.source = source
        receiver.feed(sealed(pb.GetReply(piece=piece), request.check))
        return receiver.finish(GetStatus.LATE)[0]

    assert [receive(2, source).source for source in range(3)] == ["memory", "disk", "remote"]
    assert receive(1, 0).source is None
    for version, source in ((2, 3), (2, -1), (2, -(1 << 31)), (1, 1)):
        with pytest.raises(Broken, match=f"from tier {source} in version {version}, allowed is 0 to 2"):
            receive(version, source)


def test_a_bad_chunk_is_damaged_and_the_next_object_is_not() -> None:
    receiver = GetReceiver(REQUEST, [None, None, None])
    receiver.feed(reply(b"x" * CHUNK, length=CHUNK + 1, crc=1))
    receiver.feed(reply(b"y", offset=CHUNK))
    receiver.feed(reply(b"z", length=1, index=1, crc=None))
    receiver.feed(reply(b"fine", length=4, index=2))
    assert receiver.damaged == [0, 1]
    assert [r.status for r in receiver.finish(GetStatus.LATE)] == [GetStatus.DAMAGED, GetStatus.DAMAGED, GetStatus.HIT]


def test_a_node_may_take_back_what_it_began() -> None:
    receiver = GetReceiver(REQUEST, [None, None])
    receiver.feed(reply(b"x" * CHUNK, length=CHUNK + 1))
    receiver.feed(miss(0, pb.MISS_REASON_DAMAGED))
    receiver.feed(reply(b"fine", length=4, index=1))
    assert [r.status for r in receiver.finish(GetStatus.LATE)] == [GetStatus.DAMAGED, GetStatus.HIT]


@pytest.mark.parametrize(
    "replies",
    [
        [reply(b"x", length=1, index=2)],
        [miss(2)],
        [reply(b"x", length=0)],
        [reply(b"x", length=(128 << 20) + 1)],
        [reply(b"", length=1)],
        [reply(b"xx", length=1)],
        [reply(b"x", length=5), reply(b"x", offset=2)],
        [reply(b"x", length=5, offset=1)],
        [reply(b"x" * (CHUNK + 1), length=CHUNK + 1)],
        [reply(b"x", length=1, index=1), reply(b"x", length=1, index=0)],
        [miss(0), reply(b"x", length=1)],
    ],
)
def test_what_no_node_says_is_broken(replies: list[pb.GetReply]) -> None:
    receiver = GetReceiver(REQUEST, [None, None])

    def feed() -> None:
        for one in replies:
            receiver.feed(one)

    with pytest.raises(Broken):
        feed()


@pytest.mark.parametrize(
    "altered",
    [
        pb.GetReply(misses=[pb.Miss(index=0)]),
        sealed(pb.GetReply(misses=[pb.Miss(index=0)])),
        pb.GetReply(check=miss(0).check, misses=[pb.Miss(index=1, reason=pb.MISS_REASON_ABSENT)]),
        pb.GetReply(
            check=reply(b"xy", length=2).check, piece=pb.Piece(index=0, length=2, data=b"x", crc32c=crc32c(b"xy"))
        ),
    ],
)
def test_an_answer_that_was_altered_is_broken(altered: pb.GetReply) -> None:
    """Without a check, with that of another call, and with a field or a length changed."""
    receiver = GetReceiver(REQUEST, [None, None])
    with pytest.raises(Broken, match="check"):
        receiver.feed(altered)
    assert receiver.finish(GetStatus.UNREACHABLE) == [GetResult(GetStatus.UNREACHABLE)] * 2


def answers(check: int, *pairs: tuple[int, Any]) -> pb.PutReply:
    return sealed(pb.PutReply(answers=[pb.Answer(index=i, outcome=o) for i, o in pairs]), check)


def test_a_put_sends_what_is_wanted() -> None:
    values = [value_of(size, size) for size in (1, CHUNK + 1, 3)]
    items = [PutItem(object_of(i), v, page_index=i) for i, v in enumerate(values)]
    sender = PutSender(items, [memoryview(v) for v in values], [7, 8, 9])
    offers = sender.offers(1, 5)
    assert [(o.length, o.bucket, o.page_index, len(o.id)) for o in offers.offers] == [
        (len(v), 7 + i, i, 33) for i, v in enumerate(values)
    ]
    wanted = sender.feed(
        answers(offers.check, (0, pb.PUT_OUTCOME_PRESENT), (1, pb.PUT_OUTCOME_WANTED), (2, pb.PUT_OUTCOME_WANTED))
    )
    assert wanted == [1, 2]
    assert sender.open == 2
    quarter = CHUNK // 4
    pieces = [request.piece for request in sender.pieces(1, quarter)]
    assert b"".join(p.data for p in pieces) == values[1]
    assert [p.crc32c for p in pieces if p.HasField("crc32c")] == [crc32c(values[1][:CHUNK]), crc32c(values[1][CHUNK:])]
    sender.feed(answers(offers.check, (1, pb.PUT_OUTCOME_STORED)))
    assert sender.finish(PutStatus.LATE) == [PutStatus.PRESENT, PutStatus.STORED, PutStatus.LATE]
    for bad in ((1, pb.PUT_OUTCOME_STORED), (3, pb.PUT_OUTCOME_STORED), (2, 0)):
        with pytest.raises(Broken, match=r"expected|outcome"):
            sender.feed(answers(offers.check, bad))


def test_batches_are_cut_and_keep_their_order() -> None:
    ring = Ring([Node("a"), Node("b")], buckets=64)
    extents = [object_of(i // 3).extent for i in range(50)]
    made = shares(ring, extents, 4)
    assert sorted(p for share in made for p in share.positions) == list(range(50))
    for node in (0, 1):
        of_node = [share for share in made if share.node == node]
        positions = [p for share in of_node for p in share.positions]
        assert positions == sorted(positions)
        assert {len(s.positions) for s in of_node[:-1]} <= {4}
        assert all(ring.owner(b) == node for share in of_node for b in share.buckets)


def test_the_breaker_waits_longer_each_time_and_lets_one_try() -> None:
    breaker = Breaker()
    assert breaker.allows(0.0)
    breaker.failed(0.0)
    assert not breaker.allows(0.4)
    assert breaker.allows(0.5)
    assert not breaker.allows(0.6), "one tries, the others wait for what it finds"
    breaker.failed(0.7)
    assert not breaker.allows(1.6)
    assert breaker.allows(1.7)
    for turn in range(20):
        breaker.failed(100.0 * turn)
    assert not breaker.allows(1900.0 + LONGEST_PAUSE - 1)
    assert breaker.allows(1900.0 + LONGEST_PAUSE)
    breaker.worked()
    assert breaker.allows(0.0)
    assert breaker.allows(0.0)


def test_the_breaker_blames_a_node_for_being_late_only_where_it_had_time() -> None:
    breaker = Breaker()
    for turn in range(LATE_CALLS - 1):
        breaker.late(1.0 * turn, 1e-6, 0)
        assert breaker.allows(1.0 * turn)
    breaker.worked()
    for _ in range(LATE_CALLS - 1):
        breaker.late(9.0, 0.5, 100_000_000)
        assert breaker.allows(9.0), "it may take longer for so many bytes"
    breaker.late(9.0, 0.5, 100_000_000)
    assert not breaker.allows(9.0), "one after the other counts"
    breaker.worked()
    breaker.late(9.0, 0.53, 100_000_000)
    assert not breaker.allows(9.0)
