"""The blocking client: one thread for each node that a call asks, so that a slow node delays only what it owns."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

import grpc

from mimo_cache.gcache import checks, plan
from mimo_cache.gcache.client import ClientBase, Late
from mimo_cache.gcache.errors import Broken
from mimo_cache.gcache.peer import Breaker, address_of, options_of
from mimo_cache.gcache.ring import DEFAULT_BUCKETS, Node
from mimo_cache.gcache.seal import opened
from mimo_cache.gcache.transfer import GetReceiver, PutSender
from mimo_cache.gcache.types import (
    Deleted,
    GetResult,
    GetStatus,
    NodeStats,
    ObjectId,
    PutItem,
    PutStatus,
    Verified,
)
from mimo_cache.gcache.v1 import gcache_pb2 as pb
from mimo_cache.gcache.v1.gcache_pb2_grpc import GCacheStub

if TYPE_CHECKING:
    from mimo_cache.gcache.types import Memory

T = TypeVar("T")
MOST_THREADS = 64


class _Peer:
    """One node: its channel and its breaker."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.breaker = Breaker()
        self.greeted = False
        self.channel = grpc.insecure_channel(address_of(node), options=options_of(node))
        self.stub = GCacheStub(self.channel)


class Client(ClientBase):
    """See the package; `connect` makes one."""

    def __init__(
        self, nodes: Sequence[Node], *, tenant: int, token: str | None, deadline: float, buckets: int, name: str
    ) -> None:
        super().__init__(nodes, tenant, token, deadline, buckets, name)
        self._peers = [_Peer(node) for node in self.ring.nodes]
        self._pool: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()

    def exists(
        self,
        keys: Sequence[bytes],
        extents: Sequence[bytes] | None = None,
        lease_ms: int = 0,
        *,
        deadline: float | None = None,
    ) -> list[int]:
        """For each key the mask of the parts that are there; 0 where the node cannot be asked.

        With `lease_ms` they stay for so long, as far as the node's lease bytes go and while this client lives.
        `extents`: for each key that of its page; None only where every page is an extent of its own.
        """
        places = checks.check_extents(keys, extents)
        lease = checks.check_lease(lease_ms)
        masks = [0] * len(keys)

        def ask(peer: _Peer, share: plan.Share, until: float) -> None:
            request = self.exists_request(share, keys, lease)
            answer = peer.stub.Exists(request, timeout=self.left(until), metadata=self.metadata)
            reply = opened(answer, request)
            for position, mask in zip(share.positions, plan.masks_of(reply, share), strict=True):
                masks[position] = mask

        self._each(plan.shares(self.ring, places, plan.MAX_KEYS), ask, deadline)
        return masks

    def get(
        self, ids: Sequence[ObjectId], into: Sequence[Memory] | None = None, *, deadline: float | None = None
    ) -> list[GetResult]:
        """One result for each id. With `into`, bytes go to the start of its buffers."""
        names = checks.check_ids(ids)
        buffers = checks.check_into(into, len(names))
        results = [GetResult(GetStatus.UNREACHABLE)] * len(names)

        def ask(peer: _Peer, share: plan.Share, until: float) -> None:
            request = self.get_request(share, names)
            receiver = GetReceiver(request, [buffers[p] for p in share.positions])
            rest = GetStatus.UNREACHABLE
            try:
                for reply in peer.stub.Get(request, timeout=self.left(until), metadata=self.metadata):
                    receiver.feed(reply)
            except grpc.RpcError as error:
                rest = GetStatus.LATE if _status(error)[0] is grpc.StatusCode.DEADLINE_EXCEEDED else rest
                raise
            except Late:
                rest = GetStatus.LATE
                raise
            finally:
                for position, result in zip(share.positions, receiver.finish(rest), strict=True):
                    results[position] = result
            if receiver.damaged:
                bad = plan.Share(share.node, [share.positions[i] for i in receiver.damaged], [])
                bad.buckets.extend(share.buckets[i] for i in receiver.damaged)
                report = self.verify_request(bad, names)
                opened(peer.stub.Verify(report, timeout=self.left(until), metadata=self.metadata), report)

        self._each(self.object_shares(names), ask, deadline)
        return results

    def put(self, items: Iterable[PutItem], *, deadline: float | None = None) -> list[PutStatus]:
        """What became of each item. Bytes of objects that are there already are not sent."""
        given, views = checks.check_items(items)
        names = [item.id for item in given]
        statuses = [PutStatus.UNREACHABLE] * len(given)

        def ask(peer: _Peer, share: plan.Share, until: float) -> None:
            sender = PutSender([given[p] for p in share.positions], [views[p] for p in share.positions], share.buckets)
            wanted: queue.SimpleQueue[int | None] = queue.SimpleQueue()

            def requests() -> Iterator[pb.PutRequest]:
                yield sender.offers(plan.VERSION, self.tenant)
                while (index := wanted.get()) is not None:
                    yield from sender.pieces(index, plan.PIECE_BYTES)

            rest = PutStatus.UNREACHABLE
            try:
                for reply in peer.stub.Put(requests(), timeout=self.left(until), metadata=self.metadata):
                    for index in sender.feed(reply):
                        wanted.put(index)
                    if not sender.open:
                        wanted.put(None)
            except grpc.RpcError as error:
                rest = PutStatus.LATE if _status(error)[0] is grpc.StatusCode.DEADLINE_EXCEEDED else rest
                raise
            except Late:
                rest = PutStatus.LATE
                raise
            finally:
                wanted.put(None)
                for position, status in zip(share.positions, sender.finish(rest), strict=True):
                    statuses[position] = status

        self._each(self.object_shares(names), ask, deadline)
        return statuses

    def touch(self, ids: Sequence[ObjectId], *, deadline: float | None = None) -> int:
        """Marks objects as used, the last one as used last; returns how many are there."""
        names = checks.check_ids(ids)
        counts: list[int] = []

        def ask(peer: _Peer, share: plan.Share, until: float) -> None:
            request = self.touch_request(share, names)
            answer = peer.stub.Touch(request, timeout=self.left(until), metadata=self.metadata)
            reply = opened(answer, request)
            counts.append(reply.present)

        self._each(self.object_shares(names), ask, deadline)
        return sum(counts)

    def delete(self, ids: Sequence[ObjectId], *, deadline: float | None = None) -> Deleted:
        """Forgets objects, durably."""
        names = checks.check_ids(ids)
        counts: list[int] = []

        def ask(peer: _Peer, share: plan.Share, until: float) -> None:
            request = self.delete_request(share, names)
            answer = peer.stub.Delete(request, timeout=self.left(until), metadata=self.metadata)
            reply = opened(answer, request)
            counts.append(reply.deleted)

        failed = self._each(self.object_shares(names), ask, deadline, must=True)
        return Deleted(sum(counts), failed)

    def verify(self, ids: Sequence[ObjectId], *, deadline: float | None = None) -> Verified:
        """Compares values with their CRCs inside the nodes."""
        names = checks.check_ids(ids)
        sound: list[int] = []
        dropped: list[int] = []

        def ask(peer: _Peer, share: plan.Share, until: float) -> None:
            request = self.verify_request(share, names)
            answer = peer.stub.Verify(request, timeout=self.left(until), metadata=self.metadata)
            reply = opened(answer, request)
            sound.append(reply.sound)
            dropped.append(reply.dropped)

        failed = self._each(self.object_shares(names), ask, deadline, must=True)
        return Verified(sum(sound), sum(dropped), failed)

    def stats(self, *, deadline: float | None = None) -> dict[str, NodeStats | None]:
        """Counts and sizes of each node, or None."""
        found: dict[str, NodeStats | None] = {node.name: None for node in self.ring.nodes}

        def ask(peer: _Peer, _: plan.Share, until: float) -> None:
            request = self.stats_request()
            answer = peer.stub.Stats(request, timeout=self.left(until), metadata=self.metadata)
            reply = opened(answer, request)
            found[peer.node.name] = plan.node_stats(reply)

        self._each([plan.Share(i, [], []) for i in range(len(self._peers))], ask, deadline, must=True)
        return found

    def close(self) -> None:
        """Ends the connections, and with them the leases."""
        with self._lock:
            pool, self._pool = self._pool, None
        for peer in self._peers:
            peer.channel.close()
        if pool is not None:
            pool.shutdown()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _each(
        self,
        requests: Sequence[plan.Share],
        ask: Callable[[_Peer, plan.Share, float], None],
        deadline: float | None,
        must: bool = False,
    ) -> tuple[str, ...]:
        """Asks all nodes at once, one request after the other at each; returns the names of those that failed. `must`:
        asked even while their breaker is open."""
        until = time.monotonic() + (self.deadline if deadline is None else checks.check_deadline(deadline))
        of_node: dict[int, list[plan.Share]] = {}
        for share in requests:
            of_node.setdefault(share.node, []).append(share)

        def run(node: int) -> str | None:
            peer = self._peers[node]
            return None if self._node(peer, of_node[node], ask, until, must) else peer.node.name

        if len(of_node) <= 1:
            failed = [run(node) for node in of_node]
        else:
            threads = self._threads()
            asked = [threads.submit(run, node) for node in of_node]
            # Every node is done with before a refusal of one is raised: buffers are the caller's again.
            wait(asked)
            failed = [done.result() for done in asked]
        return tuple(name for name in failed if name is not None)

    def _node(
        self,
        peer: _Peer,
        requests: Sequence[plan.Share],
        ask: Callable[[_Peer, plan.Share, float], None],
        until: float,
        must: bool,
    ) -> bool:
        """All requests of one node; False where it did not answer all of them."""
        if not (peer.breaker.allows(time.monotonic()) or must):
            return False
        try:
            if not peer.greeted:
                hello = self.hello()
                answer = peer.stub.Hello(hello, timeout=self.left(until), metadata=self.metadata)
                self.greet(peer.node, opened(answer, hello))
                peer.greeted = True
            for share in requests:
                ask(peer, share, until)
        except grpc.RpcError as error:
            refused = self.refusal(peer.node, *_status(error))
            if refused is None:
                peer.greeted = False
                peer.breaker.failed(time.monotonic())
                return False
            peer.breaker.worked()
            raise refused from None
        except (Broken, Late):
            peer.breaker.failed(time.monotonic())
            return False
        peer.breaker.worked()
        return True

    def _threads(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(min(len(self._peers), MOST_THREADS), "gcache")
            return self._pool


def _status(error: grpc.RpcError) -> tuple[grpc.StatusCode, str | None]:
    """Status of a failed call, and its sentence. Every error of a call is a call too, which its type does not say."""
    call: object = error
    if isinstance(call, grpc.Call):
        return call.code(), call.details()
    return grpc.StatusCode.UNKNOWN, None


def connect(
    nodes: Iterable[Node | str],
    *,
    tenant: int = 0,
    token: str | None = None,
    deadline: float = 1.0,
    buckets: int = DEFAULT_BUCKETS,
    name: str = "mimo_cache python",
) -> Client:
    """A client of `nodes` (`Node`, or text that `Node.parse` takes). No node is asked before the first call.

    `tenant` owns what is put and sees only that; 0 for none. `token` is sent with every request, in the clear.
    `deadline`, seconds, is what one node may take for one call. `buckets` is the size of the placement table, the same
    for all clients of a cluster. `name` is for the nodes' logs.
    """
    return Client(
        [node if isinstance(node, Node) else Node.parse(node) for node in nodes],
        tenant=tenant,
        token=token,
        deadline=deadline,
        buckets=buckets,
        name=name,
    )
