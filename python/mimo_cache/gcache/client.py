"""What the blocking and the asyncio client share: settings, requests, and what an answer means. No I/O."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import grpc

from mimo_cache.gcache import checks, plan
from mimo_cache.gcache.errors import InvalidArgument, Refused
from mimo_cache.gcache.peer import Metadata, Peer, other_node, refusal
from mimo_cache.gcache.ring import Node, Ring
from mimo_cache.gcache.seal import sealed
from mimo_cache.gcache.types import GetResult, GetStatus, ObjectId, PutStatus
from mimo_cache.gcache.v1 import gcache_pb2 as pb

MAX_TENANT = (1 << 64) - 1
MAX_NAME_BYTES = 256
MAX_TOKEN_BYTES = 4096


class Late(Exception):
    """The deadline passed before a request could be sent."""


class Ended(Exception):
    """The caller does not wait any more, or the client is closed: nothing was learned about the node."""


@dataclass(slots=True)
class Outcome:
    """What became of the requests of one call."""

    failed: list[str] = field(default_factory=list)
    """Nodes that did not answer all of their requests."""
    refused: list[tuple[plan.Share, Refused]] = field(default_factory=list)
    late: list[plan.Share] = field(default_factory=list)
    """Requests of nodes whose time was over."""

    @classmethod
    def of_all(cls, found: Iterable[Outcome]) -> Outcome:
        """Of all nodes together."""
        whole = cls()
        for one in found:
            whole.failed += one.failed
            whole.refused += one.refused
            whole.late += one.late
        return whole

    def refusers(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(refused.node for _, refused in self.refused))

    def raise_if_all(self, count: int) -> None:
        """A refusal of everything that was asked for is the caller's fault; one of a part must not lose the rest."""
        if self.refused and sum(len(share.positions) for share, _ in self.refused) == count:
            raise self.refused[0][1]

    def settle_gets(self, results: list[GetResult]) -> None:
        """Says of what was not answered whether it was refused or late."""
        for position, refused in self._not_answered():
            if results[position].status is GetStatus.UNREACHABLE:
                results[position] = GetResult(GetStatus.REFUSED if refused else GetStatus.LATE)
        if self.refused and all(result.status is GetStatus.REFUSED for result in results):
            raise self.refused[0][1]

    def settle_puts(self, statuses: list[PutStatus]) -> None:
        """As `settle_gets`."""
        for position, refused in self._not_answered():
            if statuses[position] is PutStatus.UNREACHABLE:
                statuses[position] = PutStatus.REFUSED if refused else PutStatus.LATE
        if self.refused and all(status is PutStatus.REFUSED for status in statuses):
            raise self.refused[0][1]

    def _not_answered(self) -> Iterator[tuple[int, bool]]:
        """Positions of what was refused, and of what was late."""
        for share, _ in self.refused:
            yield from ((position, True) for position in share.positions)
        for share in self.late:
            yield from ((position, False) for position in share.positions)


class ClientBase:
    """Settings of a client and its placement."""

    def __init__(
        self, nodes: Sequence[Node], tenant: int, token: str | None, deadline: float, buckets: int, name: str
    ) -> None:
        self.tenant = checks.check_int(tenant, "tenant", 0, MAX_TENANT)
        if token is not None and not (
            isinstance(token, str)
            and 1 <= len(token) <= MAX_TOKEN_BYTES
            and token.isascii()
            and token.isprintable()
            and " " not in token
        ):
            allowed = f"1 to {MAX_TOKEN_BYTES} characters of printable ASCII without spaces"
            raise InvalidArgument(f"token has characters that a header cannot carry, or too many; allowed is {allowed}")
        self.ring = Ring(nodes, buckets)
        self.deadline = checks.check_deadline(deadline)
        self.name = checks.check_text(name, "name", MAX_NAME_BYTES)
        self.metadata: Metadata = (("authorization", f"Bearer {token}"),) if token else ()

    def locate(self, extent: bytes) -> str:
        """Name of the node that owns an extent, from the chain key of its first page."""
        bucket = self.ring.bucket_of(checks.check_key(extent, "extent"))
        return self.ring.nodes[self.ring.owner(bucket)].name

    def hello(self) -> pb.HelloRequest:
        return sealed(pb.HelloRequest(min_version=plan.VERSIONS[0], max_version=plan.VERSIONS[-1], client=self.name))

    def greet(self, peer: Peer, reply: pb.HelloReply) -> None:
        """Agrees with a node on a version. Refuses one that is another one, or chose a version that was not offered."""
        node, spoken = peer.node, plan.VERSIONS
        refused = other_node(node, reply.node)
        if refused is None and reply.version not in spoken:
            speaks = f"this client speaks {spoken[0]} to {spoken[-1]}"
            sentence = f"it answered with protocol version {reply.version}, {speaks}"
            refused = Refused(node.name, "FAILED_PRECONDITION", sentence)
        if refused is not None:
            raise refused
        peer.version, peer.greeted = reply.version, True

    @staticmethod
    def refusals_of(peers: Iterable[Peer]) -> dict[str, Refused]:
        return {peer.node.name: peer.refused for peer in peers if peer.refused is not None}

    @staticmethod
    def blame(
        peer: Peer,
        outcome: Outcome,
        requests: Sequence[plan.Share],
        error: grpc.StatusCode | None,
        given: float,
        size: int,
    ) -> None:
        """Of a call that failed: with a status, or None for one that there was no time to send.

        `given`: seconds that the node had; `size`: bytes that it must move.
        """
        now = time.monotonic()
        if error in (None, grpc.StatusCode.DEADLINE_EXCEEDED):
            outcome.late = list(requests)
            peer.breaker.late(now, given, size)
        elif error is grpc.StatusCode.RESOURCE_EXHAUSTED:
            peer.breaker.late(now, 0.0, size)
        else:
            peer.greeted = False
            peer.breaker.failed(now)

    def object_shares(self, ids: Sequence[ObjectId]) -> list[plan.Share]:
        return plan.shares(self.ring, [one.extent for one in ids], plan.MAX_OBJECTS)

    def exists_request(self, share: plan.Share, keys: Sequence[bytes], lease_ms: int) -> pb.ExistsRequest:
        runs = plan.key_runs(share, keys)
        return sealed(pb.ExistsRequest(version=plan.COMMON_VERSION, tenant=self.tenant, lease_ms=lease_ms, runs=runs))

    def get_request(self, share: plan.Share, ids: Sequence[ObjectId], version: int) -> pb.GetRequest:
        """`version`: what was agreed with the node."""
        return sealed(pb.GetRequest(version=version, tenant=self.tenant, runs=plan.object_runs(share, ids)))

    def touch_request(self, share: plan.Share, ids: Sequence[ObjectId]) -> pb.TouchRequest:
        return sealed(
            pb.TouchRequest(version=plan.COMMON_VERSION, tenant=self.tenant, runs=plan.object_runs(share, ids))
        )

    def delete_request(self, share: plan.Share, ids: Sequence[ObjectId]) -> pb.DeleteRequest:
        return sealed(
            pb.DeleteRequest(version=plan.COMMON_VERSION, tenant=self.tenant, runs=plan.object_runs(share, ids))
        )

    def verify_request(self, share: plan.Share, ids: Sequence[ObjectId]) -> pb.VerifyRequest:
        return sealed(
            pb.VerifyRequest(version=plan.COMMON_VERSION, tenant=self.tenant, runs=plan.object_runs(share, ids))
        )

    def stats_request(self) -> pb.StatsRequest:
        return sealed(pb.StatsRequest(version=plan.COMMON_VERSION, tenant=self.tenant))

    @staticmethod
    def left(until: float) -> float:
        """Seconds to a moment of `time.monotonic`."""
        left = until - time.monotonic()
        if left <= 0:
            raise Late
        return left

    @staticmethod
    def refusal(node: Node, code: grpc.StatusCode, details: str | None) -> Refused | None:
        return refusal(node, code, details)
