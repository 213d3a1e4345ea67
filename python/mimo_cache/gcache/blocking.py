"""The blocking client: one thread for each node that a call asks, so that a slow node delays only what it owns."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

import grpc

from mimo_cache.gcache import checks, plan
from mimo_cache.gcache.asked import Asked
from mimo_cache.gcache.client import ClientBase, Ended, Late, Outcome
from mimo_cache.gcache.errors import Broken, Closed, Refused
from mimo_cache.gcache.peer import Metadata, Peer, address_of, options_of
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
    from google.protobuf.message import Message

    from mimo_cache.gcache.types import Memory

M = TypeVar("M", bound="Message")
R = TypeVar("R", bound="Message")
MOST_THREADS = 64


class _Peer(Peer):
    """One node and its channel."""

    def __init__(self, node: Node, metadata: Metadata) -> None:
        super().__init__(node, metadata)
        self.channel = grpc.insecure_channel(address_of(node), options=options_of(node))
        self.stub = GCacheStub(self.channel)


class Client(ClientBase):
    """See the package; `connect` makes one."""

    def __init__(
        self, nodes: Sequence[Node], *, tenant: int, token: str | None, deadline: float, buckets: int, name: str
    ) -> None:
        super().__init__(nodes, tenant, token, deadline, buckets, name)
        # All addresses are looked at before the first channel is made.
        for node in self.ring.nodes:
            address_of(node)
        self._peers = [_Peer(node, self.metadata) for node in self.ring.nodes]
        self._pool: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()
        self._closed = threading.Event()

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
        names = checks.check_keys(keys)
        places = checks.check_extents(names, extents)
        lease = checks.check_lease(lease_ms)
        masks = [0] * len(names)

        def ask(peer: _Peer, share: plan.Share, asked: Asked) -> None:
            reply = self._unary(peer, asked, peer.stub.Exists, self.exists_request(share, names, lease))
            for position, mask in zip(share.positions, plan.masks_of(reply, share), strict=True):
                masks[position] = mask

        self._each(plan.shares(self.ring, places, plan.MAX_KEYS), ask, deadline).raise_if_all(len(names))
        return masks

    def get(
        self, ids: Sequence[ObjectId], into: Sequence[Memory] | None = None, *, deadline: float | None = None
    ) -> list[GetResult]:
        """One result for each id. With `into`, bytes go to the start of its buffers."""
        names = checks.check_ids(ids)
        buffers = checks.check_into(into, len(names))
        results = [GetResult(GetStatus.UNREACHABLE)] * len(names)

        def ask(peer: _Peer, share: plan.Share, asked: Asked) -> None:
            request = self.get_request(share, names, peer.version)
            receiver = GetReceiver(request, [buffers[p] for p in share.positions])
            try:
                call = peer.stub.Get(request, timeout=asked.left(), metadata=peer.metadata)
                asked.add(call)
                for reply in call:
                    receiver.feed(reply)
            finally:
                for position, result in zip(share.positions, receiver.finish(GetStatus.UNREACHABLE), strict=True):
                    results[position] = result
            if receiver.damaged:
                bad = plan.Share(share.node, [share.positions[i] for i in receiver.damaged], [])
                bad.buckets.extend(share.buckets[i] for i in receiver.damaged)
                self._unary(peer, asked, peer.stub.Verify, self.verify_request(bad, names))

        sizes = [0 if buffer is None else len(buffer) for buffer in buffers]
        self._each(self.object_shares(names), ask, deadline, sizes=sizes).settle_gets(results)
        return results

    def put(self, items: Iterable[PutItem], *, deadline: float | None = None) -> list[PutStatus]:
        """What became of each item. Bytes of objects that are there already are not sent."""
        given, views = checks.check_items(items)
        names = [item.id for item in given]
        statuses = [PutStatus.UNREACHABLE] * len(given)

        def ask(peer: _Peer, share: plan.Share, asked: Asked) -> None:
            sender = PutSender([given[p] for p in share.positions], [views[p] for p in share.positions], share.buckets)
            wanted: queue.SimpleQueue[int | None] = queue.SimpleQueue()
            offers = sender.offers(plan.COMMON_VERSION, self.tenant)
            own: list[Exception] = []

            def requests() -> Iterator[pb.PutRequest]:
                yield offers
                try:
                    while (index := wanted.get()) is not None:
                        yield from sender.pieces(index, plan.PIECE_BYTES)
                except Exception as error:
                    # grpcio makes a failed call of it, for which the node is not to blame.
                    own.append(error)
                    raise

            try:
                call = peer.stub.Put(requests(), timeout=asked.left(), metadata=peer.metadata)
                asked.add(call)
                for reply in call:
                    for index in sender.feed(reply):
                        wanted.put(index)
                    if not sender.open:
                        wanted.put(None)
            except grpc.RpcError:
                if own:
                    raise own[0] from None
                raise
            finally:
                wanted.put(None)
                for position, status in zip(share.positions, sender.finish(PutStatus.UNREACHABLE), strict=True):
                    statuses[position] = status

        sizes = [len(view) for view in views]
        self._each(self.object_shares(names), ask, deadline, sizes=sizes).settle_puts(statuses)
        return statuses

    def touch(self, ids: Sequence[ObjectId], *, deadline: float | None = None) -> int:
        """Marks objects as used, the last one as used last; returns how many are there."""
        names = checks.check_ids(ids)
        counts: list[int] = []

        def ask(peer: _Peer, share: plan.Share, asked: Asked) -> None:
            reply = self._unary(peer, asked, peer.stub.Touch, self.touch_request(share, names))
            counts.append(reply.present)

        self._each(self.object_shares(names), ask, deadline).raise_if_all(len(names))
        return sum(counts)

    def delete(self, ids: Sequence[ObjectId], *, deadline: float | None = None) -> Deleted:
        """Forgets objects, durably."""
        names = checks.check_ids(ids)
        counts: list[int] = []

        def ask(peer: _Peer, share: plan.Share, asked: Asked) -> None:
            reply = self._unary(peer, asked, peer.stub.Delete, self.delete_request(share, names))
            counts.append(reply.deleted)

        outcome = self._each(self.object_shares(names), ask, deadline, must=True)
        outcome.raise_if_all(len(names))
        return Deleted(sum(counts), tuple(outcome.failed), outcome.refusers())

    def verify(self, ids: Sequence[ObjectId], *, deadline: float | None = None) -> Verified:
        """Compares values with their CRCs inside the nodes."""
        names = checks.check_ids(ids)
        sound: list[int] = []
        dropped: list[int] = []

        def ask(peer: _Peer, share: plan.Share, asked: Asked) -> None:
            reply = self._unary(peer, asked, peer.stub.Verify, self.verify_request(share, names))
            sound.append(reply.sound)
            dropped.append(reply.dropped)

        outcome = self._each(self.object_shares(names), ask, deadline, must=True)
        outcome.raise_if_all(len(names))
        return Verified(sum(sound), sum(dropped), tuple(outcome.failed), outcome.refusers())

    def stats(self, *, deadline: float | None = None) -> dict[str, NodeStats | None]:
        """Counts and sizes of each node, or None where it did not answer or refused."""
        found: dict[str, NodeStats | None] = {node.name: None for node in self.ring.nodes}

        def ask(peer: _Peer, _: plan.Share, asked: Asked) -> None:
            reply = self._unary(peer, asked, peer.stub.Stats, self.stats_request())
            found[peer.node.name] = plan.node_stats(reply)

        self._each([plan.Share(i, [], []) for i in range(len(self._peers))], ask, deadline, must=True)
        return found

    def refusals(self) -> dict[str, Refused]:
        """For each node's name what it refused last, with its sentence; nodes that answered since are not there."""
        return self.refusals_of(self._peers)

    def close(self) -> None:
        """Ends the connections, and with them the leases. What calls still ask for is a miss."""
        with self._lock:
            self._closed.set()
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
        ask: Callable[[_Peer, plan.Share, Asked], None],
        deadline: float | None,
        must: bool = False,
        sizes: Sequence[int] = (),
    ) -> Outcome:
        """Asks all nodes at once, one request after the other at each. `must`: asked even while their breaker is open.
        `sizes`: bytes at each position that a node must move."""
        asked = Asked(time.monotonic() + (self.deadline if deadline is None else checks.check_deadline(deadline)))
        if self._closed.is_set():
            raise Closed
        of_node: dict[int, list[plan.Share]] = {}
        for share in requests:
            of_node.setdefault(share.node, []).append(share)
        outcomes: dict[int, Outcome] = {}

        def run(node: int) -> None:
            if not asked.begin():
                return
            try:
                wanted = sum(sizes[p] for share in of_node[node] for p in share.positions) if sizes else 0
                outcomes[node] = self._node(self._peers[node], of_node[node], ask, asked, must, wanted)
            finally:
                asked.done()

        try:
            if len(of_node) <= 1:
                for node in of_node:
                    run(node)
            else:
                threads = self._threads()
                for done in [threads.submit(run, node) for node in of_node]:
                    done.result()
        except BaseException as error:
            asked.leave()
            if self._closed.is_set() and isinstance(error, RuntimeError):
                # The threads ended between two of its lines.
                raise Closed from None
            raise
        # In the order of the nodes, whichever was faster.
        return Outcome.of_all(outcomes[node] for node in sorted(of_node))

    def _node(
        self,
        peer: _Peer,
        requests: Sequence[plan.Share],
        ask: Callable[[_Peer, plan.Share, Asked], None],
        asked: Asked,
        must: bool,
        wanted_bytes: int,
    ) -> Outcome:
        """All requests of one node."""
        failed = Outcome([peer.node.name])
        begun = time.monotonic()
        if not (peer.breaker.allows(begun) or must):
            return failed
        given = asked.until - begun
        try:
            refused = self._greeted(peer, asked)
            if refused is not None:
                failed = Outcome([], [(share, refused) for share in requests])
                peer.done(refused)
                return failed
            for share in requests:
                refused = self._asked(peer, share, ask, asked)
                failed.refused += [(share, refused)] if refused is not None else []
        except (grpc.RpcError, Ended, ValueError) as error:
            if not (asked.ended or self._closed.is_set()):
                # A channel that was closed raises a ValueError.
                if not isinstance(error, grpc.RpcError):
                    raise
                self.blame(peer, failed, requests, _status(error)[0], given, wanted_bytes)
            return failed
        except Late:
            self.blame(peer, failed, requests, None, given, wanted_bytes)
            return failed
        except Broken:
            peer.breaker.failed(time.monotonic())
            return failed
        peer.done(failed.refused[-1][1] if failed.refused else None)
        return Outcome([], failed.refused)

    def _greeted(self, peer: _Peer, asked: Asked) -> Refused | None:
        """Says hello where that was not done; what the node, or this client, refuses."""
        if peer.greeted:
            return None
        try:
            reply = self._unary(peer, asked, peer.stub.Hello, self.hello(), peer.hello_metadata)
            self.greet(peer, reply)
        except Refused as refused:
            return refused
        except grpc.RpcError as error:
            refusal = self.refusal(peer.node, *_status(error))
            if refusal is None:
                raise
            return refusal
        return None

    def _asked(
        self, peer: _Peer, share: plan.Share, ask: Callable[[_Peer, plan.Share, Asked], None], asked: Asked
    ) -> Refused | None:
        """One request; what the node refuses."""
        try:
            ask(peer, share, asked)
        except grpc.RpcError as error:
            refused = self.refusal(peer.node, *_status(error))
            if refused is None or asked.ended:
                raise
            # It may be another node by now.
            peer.greeted = False
            return refused
        return None

    def _unary(
        self,
        peer: _Peer,
        asked: Asked,
        method: grpc.UnaryUnaryMultiCallable[M, R],
        request: M,
        metadata: Metadata | None = None,
    ) -> R:
        """The checked answer to one request."""
        sent = peer.metadata if metadata is None else metadata
        call = method.future(request, timeout=asked.left(), metadata=sent)
        asked.add(call)
        try:
            return opened(call.result(), request)
        except grpc.FutureCancelledError:
            raise Ended from None

    def _threads(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._closed.is_set():
                raise Closed
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
        Node.listed(nodes),
        tenant=tenant,
        token=token,
        deadline=deadline,
        buckets=buckets,
        name=name,
    )
