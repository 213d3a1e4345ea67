"""From a call to the requests of each node, and back: grouping, slicing, limits. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from mimo_cache.gcache.ring import Ring
from mimo_cache.gcache.types import NodeStats, ObjectId, TierStats
from mimo_cache.gcache.v1 import gcache_pb2 as pb

VERSIONS = range(1, 3)
"""Versions of the protocol that this client speaks."""
COMMON_VERSION = VERSIONS[0]
"""Of all requests that mean the same in each of them: whoever speaks any of them takes it."""
SOURCE_VERSION = 2
"""The first version whose answers to `Get` say where the node had a value."""
MAX_KEYS = 32_768
MAX_OBJECTS = 8_192
MAX_MESSAGE_BYTES = 2 << 20
PIECE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Share:
    """What one request asks of one node: `positions` are indices into the caller's arguments, in order."""

    node: int
    positions: list[int]
    buckets: list[int]


def shares(ring: Ring, extents: Sequence[bytes], most: int) -> list[Share]:
    """The requests for a batch; those of one node stand in the order of the batch and have at most `most` entries."""
    of_node: dict[int, list[Share]] = {}
    buckets: dict[bytes, tuple[int, int]] = {}
    for position, extent in enumerate(extents):
        place = buckets.get(extent)
        if place is None:
            bucket = ring.bucket_of(extent)
            place = buckets[extent] = (bucket, ring.owner(bucket))
        bucket, node = place
        queue = of_node.setdefault(node, [])
        if not queue or len(queue[-1].positions) == most:
            queue.append(Share(node, [], []))
        queue[-1].positions.append(position)
        queue[-1].buckets.append(bucket)
    return [share for queue in of_node.values() for share in queue]


def _packed(share: Share, name: Callable[[int], bytes]) -> Iterator[tuple[int, bytes]]:
    """Runs of consecutive entries of one bucket."""
    start = 0
    for end in range(1, len(share.positions) + 1):
        if end == len(share.positions) or share.buckets[end] != share.buckets[start]:
            yield share.buckets[start], b"".join(name(p) for p in share.positions[start:end])
            start = end


def key_runs(share: Share, keys: Sequence[bytes]) -> list[pb.KeyRun]:
    return [pb.KeyRun(bucket=bucket, keys=packed) for bucket, packed in _packed(share, lambda p: keys[p])]


def object_runs(share: Share, ids: Sequence[ObjectId]) -> list[pb.ObjectRun]:
    def packed(position: int) -> bytes:
        return ids[position].key + bytes([ids[position].part])

    return [pb.ObjectRun(bucket=bucket, ids=ids) for bucket, ids in _packed(share, packed)]


def masks_of(reply: pb.ExistsReply, share: Share) -> list[int]:
    """The masks of a reply, of which a node may not have sent another number than was asked for."""
    masks = list(reply.masks)
    return masks if len(masks) == len(share.positions) else [0] * len(share.positions)


def node_stats(reply: pb.StatsReply) -> NodeStats:
    names = [field.name for field in pb.TierStats.DESCRIPTOR.fields]
    tiers = tuple(TierStats(**{name: getattr(tier, name) for name in names}) for tier in reply.tiers)
    return NodeStats(
        reply.node,
        reply.program,
        reply.start_id,
        reply.uptime_ms,
        reply.draining,
        reply.connections,
        reply.streams,
        tiers,
    )
