"""What the blocking and the asyncio client share: settings, requests, and what an answer means. No I/O."""

from __future__ import annotations

import time
from collections.abc import Sequence

import grpc

from mimo_cache.gcache import checks, plan
from mimo_cache.gcache.errors import InvalidArgument, Refused
from mimo_cache.gcache.peer import other_node, refusal
from mimo_cache.gcache.ring import Node, Ring
from mimo_cache.gcache.seal import sealed
from mimo_cache.gcache.types import ObjectId
from mimo_cache.gcache.v1 import gcache_pb2 as pb

MAX_TENANT = (1 << 64) - 1
MAX_NAME_BYTES = 256


class Late(Exception):
    """The deadline passed before a request could be sent."""


class ClientBase:
    """Settings of a client and its placement."""

    def __init__(
        self, nodes: Sequence[Node], tenant: int, token: str | None, deadline: float, buckets: int, name: str
    ) -> None:
        if not 0 <= tenant <= MAX_TENANT:
            raise InvalidArgument(f"tenant is {tenant}, allowed is 0 to {MAX_TENANT}")
        if token is not None and not (token and token.isascii() and token.isprintable()):
            raise InvalidArgument("token has characters that a header cannot carry, allowed is printable ASCII")
        if len(name.encode()) > MAX_NAME_BYTES:
            raise InvalidArgument(f"name has {len(name.encode())} bytes, allowed is {MAX_NAME_BYTES}")
        self.ring = Ring(nodes, buckets)
        self.tenant = tenant
        self.deadline = checks.check_deadline(deadline)
        self.name = name
        self.metadata: tuple[tuple[str, str], ...] = (("authorization", f"Bearer {token}"),) if token else ()

    def locate(self, extent: bytes) -> str:
        """Name of the node that owns an extent, from the chain key of its first page."""
        bucket = self.ring.bucket_of(checks.check_key(extent, "extent"))
        return self.ring.nodes[self.ring.owner(bucket)].name

    def hello(self) -> pb.HelloRequest:
        return sealed(pb.HelloRequest(min_version=plan.VERSION, max_version=plan.VERSION, client=self.name))

    def greet(self, node: Node, reply: pb.HelloReply) -> None:
        """Refuses a node that is another one, or speaks another version than was agreed."""
        refused = other_node(node, reply.node)
        if refused is None and reply.version != plan.VERSION:
            sentence = f"it answered with protocol version {reply.version}, this client speaks {plan.VERSION}"
            refused = Refused(node.name, "FAILED_PRECONDITION", sentence)
        if refused is not None:
            raise refused

    def object_shares(self, ids: Sequence[ObjectId]) -> list[plan.Share]:
        return plan.shares(self.ring, [one.extent for one in ids], plan.MAX_OBJECTS)

    def exists_request(self, share: plan.Share, keys: Sequence[bytes], lease_ms: int) -> pb.ExistsRequest:
        runs = plan.key_runs(share, keys)
        return sealed(pb.ExistsRequest(version=plan.VERSION, tenant=self.tenant, lease_ms=lease_ms, runs=runs))

    def get_request(self, share: plan.Share, ids: Sequence[ObjectId]) -> pb.GetRequest:
        return sealed(pb.GetRequest(version=plan.VERSION, tenant=self.tenant, runs=plan.object_runs(share, ids)))

    def touch_request(self, share: plan.Share, ids: Sequence[ObjectId]) -> pb.TouchRequest:
        return sealed(pb.TouchRequest(version=plan.VERSION, tenant=self.tenant, runs=plan.object_runs(share, ids)))

    def delete_request(self, share: plan.Share, ids: Sequence[ObjectId]) -> pb.DeleteRequest:
        return sealed(pb.DeleteRequest(version=plan.VERSION, tenant=self.tenant, runs=plan.object_runs(share, ids)))

    def verify_request(self, share: plan.Share, ids: Sequence[ObjectId]) -> pb.VerifyRequest:
        return sealed(pb.VerifyRequest(version=plan.VERSION, tenant=self.tenant, runs=plan.object_runs(share, ids)))

    def stats_request(self) -> pb.StatsRequest:
        return sealed(pb.StatsRequest(version=plan.VERSION, tenant=self.tenant))

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
