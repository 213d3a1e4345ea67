"""Values on their way, without any I/O: what the messages of `Get` and `Put` mean to one batch of one node.

`GetReceiver` is fed the replies of a `Get` and copies bytes into buffers; `PutSender` is fed the replies of a `Put` and
says what to send. Nothing is allocated on a node's word: a value without a buffer grows with the bytes that arrive.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mimo_cache._core import crc32c
from mimo_cache.gcache.errors import Broken
from mimo_cache.gcache.plan import SOURCE_VERSION
from mimo_cache.gcache.seal import opened, sealed
from mimo_cache.gcache.types import CHUNK_BYTES, MAX_VALUE_BYTES, GetResult, GetStatus, PutItem, PutStatus, Source
from mimo_cache.gcache.v1 import gcache_pb2 as pb

MISSES = {
    pb.MISS_REASON_UNSPECIFIED: GetStatus.ABSENT,
    pb.MISS_REASON_ABSENT: GetStatus.ABSENT,
    pb.MISS_REASON_DAMAGED: GetStatus.DAMAGED,
}
SOURCE_NAMES: dict[int, Source] = {
    pb.SOURCE_MEMORY: "memory",
    pb.SOURCE_DISK: "disk",
    pb.SOURCE_REMOTE: "remote",
}
OUTCOMES = {
    pb.PUT_OUTCOME_STORED: PutStatus.STORED,
    pb.PUT_OUTCOME_PRESENT: PutStatus.PRESENT,
    pb.PUT_OUTCOME_BUSY: PutStatus.BUSY,
    pb.PUT_OUTCOME_NO_ROOM: PutStatus.NO_ROOM,
    pb.PUT_OUTCOME_CORRUPT: PutStatus.CORRUPT,
}


class GetReceiver:
    """Results of one `Get`, by position in its request."""

    def __init__(self, request: pb.GetRequest, buffers: Sequence[memoryview | None]) -> None:
        self._request = request
        self._source: Source | None = None
        self.results: list[GetResult | None] = [None] * len(buffers)
        self.damaged: list[int] = []
        """Values that did not match their CRC here: the node does not know yet."""
        self._buffers = buffers
        self._index = -1
        self._length = self._at = self._crc = self._layout = 0
        self._target: memoryview | bytearray = bytearray()

    def feed(self, reply: pb.GetReply) -> None:
        opened(reply, self._request)
        for miss in reply.misses:
            self._settle(miss.index, GetResult(MISSES.get(miss.reason, GetStatus.ABSENT)))
        if reply.HasField("piece"):
            self._piece(reply.piece)

    def finish(self, rest: GetStatus) -> list[GetResult]:
        """What has not come by now has the status `rest`."""
        return [result or GetResult(rest) for result in self.results]

    def _settle(self, index: int, result: GetResult) -> None:
        if index >= len(self.results):
            raise Broken(f"object {index} of a batch of {len(self.results)}")
        before = self.results[index]
        # A node takes back pieces whose end it could not vouch for, never a whole value.
        if before is None or before.status is GetStatus.TOO_LONG:
            self.results[index] = result

    def _piece(self, piece: pb.Piece) -> None:
        if piece.index != self._index:
            self._start(piece)
        data = piece.data
        end = piece.offset + len(data)
        last = end == self._length
        if (
            piece.offset != self._at
            or not data
            or end > self._length
            or (self._at % CHUNK_BYTES) + len(data) > CHUNK_BYTES
        ):
            raise Broken(f"a piece of {len(data)} bytes at {piece.offset} of {self._length}, after {self._at} bytes")
        self._at = end
        if self.results[self._index] is not None:
            return
        if isinstance(self._target, bytearray):
            self._target += data
        else:
            self._target[piece.offset : end] = data
        self._crc = crc32c(data, self._crc)
        if not last and end % CHUNK_BYTES:
            return
        if not piece.HasField("crc32c") or piece.crc32c != self._crc:
            self.damaged.append(self._index)
            self.results[self._index] = GetResult(GetStatus.DAMAGED)
            return
        self._crc = 0
        if last:
            view = memoryview(self._target)[: self._length]
            self.results[self._index] = GetResult(GetStatus.HIT, self._length, view, self._layout, self._source)

    def _start(self, piece: pb.Piece) -> None:
        if not self._index < piece.index < len(self.results) or not 1 <= piece.length <= MAX_VALUE_BYTES:
            raise Broken(f"object {piece.index} of {piece.length} bytes after object {self._index}")
        if self.results[piece.index] is not None:
            raise Broken(f"pieces of object {piece.index}, which was a miss")
        self._source = self._source_of(piece)
        self._index, self._length, self._layout = piece.index, piece.length, piece.layout
        self._at = self._crc = 0
        buffer = self._buffers[piece.index]
        self._target = bytearray() if buffer is None else buffer
        if buffer is not None and len(buffer) < piece.length:
            self.results[piece.index] = GetResult(GetStatus.TOO_LONG, piece.length)

    def _source_of(self, piece: pb.Piece) -> Source | None:
        """Where the node says it had a value. One of version 1 says nothing."""
        says = self._request.version >= SOURCE_VERSION
        if piece.source not in SOURCE_NAMES or not (says or piece.source == pb.SOURCE_MEMORY):
            allowed = f"allowed is 0 to 2 from version {SOURCE_VERSION} on"
            raise Broken(f"a value from tier {piece.source} in version {self._request.version}, {allowed}")
        return SOURCE_NAMES[piece.source] if says else None


class PutSender:
    """One `Put`: offers, then the pieces of what the node wants."""

    def __init__(self, items: Sequence[PutItem], views: Sequence[memoryview], buckets: Sequence[int]) -> None:
        self.statuses: list[PutStatus | None] = [None] * len(items)
        self.open = len(items)
        """How many have no status yet."""
        self._items, self._views, self._buckets = items, views, buckets
        self._first = pb.PutRequest()

    def offers(self, version: int, tenant: int) -> pb.PutRequest:
        """The first message."""
        request = pb.PutRequest(version=version, tenant=tenant)
        for item, view, bucket in zip(self._items, self._views, self._buckets, strict=True):
            request.offers.add(
                id=item.id.key + bytes([item.id.part]),
                bucket=bucket,
                length=len(view),
                extent=item.id.extent,
                page_index=item.page_index,
                superseded=item.superseded,
                layout=item.layout,
            )
        self._first = sealed(request)
        return request

    def feed(self, reply: pb.PutReply) -> list[int]:
        """The items to send now, in this order."""
        wanted = []
        for answer in opened(reply, self._first).answers:
            if answer.index >= len(self.statuses) or self.statuses[answer.index] is not None:
                raise Broken(f"an answer for item {answer.index} that was not expected")
            if answer.outcome == pb.PUT_OUTCOME_WANTED:
                wanted.append(answer.index)
                continue
            if answer.outcome not in OUTCOMES:
                raise Broken(f"outcome {answer.outcome}")
            self.statuses[answer.index] = OUTCOMES[answer.outcome]
            self.open -= 1
        return wanted

    def pieces(self, index: int, piece_bytes: int) -> Iterator[pb.PutRequest]:
        """The messages of one wanted item."""
        view = self._views[index]
        crc = 0
        for start in range(0, len(view), piece_bytes):
            end = min(start + piece_bytes, len(view))
            crc = crc32c(view[start:end], crc)
            piece = pb.Piece(index=index, offset=start, data=bytes(view[start:end]))
            if end == len(view) or end % CHUNK_BYTES == 0:
                piece.crc32c, crc = crc, 0
            yield sealed(pb.PutRequest(piece=piece), self._first.check)

    def finish(self, rest: PutStatus) -> list[PutStatus]:
        """What has no answer by now has the status `rest`."""
        return [status or rest for status in self.statuses]
