"""The asyncio client: the same calls as the blocking one, awaited. One task for each node that a call asks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING

import grpc
import grpc.aio

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
    from mimo_cache.gcache.v1.gcache_pb2_grpc import GCacheAsyncStub

    PutCall = grpc.aio.StreamStreamCall[pb.PutRequest, pb.PutReply]


class _Peer:
    """One node: its channel, made in the loop that uses it, and its breaker."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.breaker = Breaker()
        self.greeted = False
        self.channel = grpc.aio.insecure_channel(address_of(node), options=options_of(node))
        self.stub: GCacheAsyncStub = GCacheStub(self.channel)


class AsyncClient(ClientBase):
    """See the package; `connect_async` makes one. Its calls document themselves in `Client`."""

    def __init__(
        self, nodes: Sequence[Node], *, tenant: int, token: str | None, deadline: float, buckets: int, name: str
    ) -> None:
        super().__init__(nodes, tenant, token, deadline, buckets, name)
        self._peers = [_Peer(node) for node in self.ring.nodes]

    async def exists(
        self,
        keys: Sequence[bytes],
        extents: Sequence[bytes] | None = None,
        lease_ms: int = 0,
        *,
        deadline: float | None = None,
    ) -> list[int]:
        """As `Client.exists`."""
        places = checks.check_extents(keys, extents)
        lease = checks.check_lease(lease_ms)
        masks = [0] * len(keys)

        async def ask(peer: _Peer, share: plan.Share, until: float) -> None:
            request = self.exists_request(share, keys, lease)
            answer = await peer.stub.Exists(request, timeout=self.left(until), metadata=self.metadata)
            reply = opened(answer, request)
            for position, mask in zip(share.positions, plan.masks_of(reply, share), strict=True):
                masks[position] = mask

        await self._each(plan.shares(self.ring, places, plan.MAX_KEYS), ask, deadline)
        return masks

    async def get(
        self, ids: Sequence[ObjectId], into: Sequence[Memory] | None = None, *, deadline: float | None = None
    ) -> list[GetResult]:
        """As `Client.get`."""
        names = checks.check_ids(ids)
        buffers = checks.check_into(into, len(names))
        results = [GetResult(GetStatus.UNREACHABLE)] * len(names)

        async def ask(peer: _Peer, share: plan.Share, until: float) -> None:
            request = self.get_request(share, names)
            receiver = GetReceiver(request, [buffers[p] for p in share.positions])
            rest = GetStatus.UNREACHABLE
            try:
                async for reply in peer.stub.Get(request, timeout=self.left(until), metadata=self.metadata):
                    receiver.feed(reply)
            except grpc.aio.AioRpcError as error:
                rest = GetStatus.LATE if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED else rest
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
                opened(await peer.stub.Verify(report, timeout=self.left(until), metadata=self.metadata), report)

        await self._each(self.object_shares(names), ask, deadline)
        return results

    async def put(self, items: Iterable[PutItem], *, deadline: float | None = None) -> list[PutStatus]:
        """As `Client.put`."""
        given, views = checks.check_items(items)
        names = [item.id for item in given]
        statuses = [PutStatus.UNREACHABLE] * len(given)

        async def ask(peer: _Peer, share: plan.Share, until: float) -> None:
            sender = PutSender([given[p] for p in share.positions], [views[p] for p in share.positions], share.buckets)
            rest = PutStatus.UNREACHABLE
            try:
                await self._put(peer.stub.Put(timeout=self.left(until), metadata=self.metadata), sender)
            except grpc.aio.AioRpcError as error:
                rest = PutStatus.LATE if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED else rest
                raise
            except Late:
                rest = PutStatus.LATE
                raise
            finally:
                for position, status in zip(share.positions, sender.finish(rest), strict=True):
                    statuses[position] = status

        await self._each(self.object_shares(names), ask, deadline)
        return statuses

    async def touch(self, ids: Sequence[ObjectId], *, deadline: float | None = None) -> int:
        """As `Client.touch`."""
        names = checks.check_ids(ids)
        counts: list[int] = []

        async def ask(peer: _Peer, share: plan.Share, until: float) -> None:
            request = self.touch_request(share, names)
            answer = await peer.stub.Touch(request, timeout=self.left(until), metadata=self.metadata)
            reply = opened(answer, request)
            counts.append(reply.present)

        await self._each(self.object_shares(names), ask, deadline)
        return sum(counts)

    async def delete(self, ids: Sequence[ObjectId], *, deadline: float | None = None) -> Deleted:
        """As `Client.delete`."""
        names = checks.check_ids(ids)
        counts: list[int] = []

        async def ask(peer: _Peer, share: plan.Share, until: float) -> None:
            request = self.delete_request(share, names)
            answer = await peer.stub.Delete(request, timeout=self.left(until), metadata=self.metadata)
            reply = opened(answer, request)
            counts.append(reply.deleted)

        failed = await self._each(self.object_shares(names), ask, deadline, must=True)
        return Deleted(sum(counts), failed)

    async def verify(self, ids: Sequence[ObjectId], *, deadline: float | None = None) -> Verified:
        """As `Client.verify`."""
        names = checks.check_ids(ids)
        sound: list[int] = []
        dropped: list[int] = []

        async def ask(peer: _Peer, share: plan.Share, until: float) -> None:
            request = self.verify_request(share, names)
            answer = await peer.stub.Verify(request, timeout=self.left(until), metadata=self.metadata)
            reply = opened(answer, request)
            sound.append(reply.sound)
            dropped.append(reply.dropped)

        failed = await self._each(self.object_shares(names), ask, deadline, must=True)
        return Verified(sum(sound), sum(dropped), failed)

    async def stats(self, *, deadline: float | None = None) -> dict[str, NodeStats | None]:
        """As `Client.stats`."""
        found: dict[str, NodeStats | None] = {node.name: None for node in self.ring.nodes}

        async def ask(peer: _Peer, _: plan.Share, until: float) -> None:
            request = self.stats_request()
            answer = await peer.stub.Stats(request, timeout=self.left(until), metadata=self.metadata)
            reply = opened(answer, request)
            found[peer.node.name] = plan.node_stats(reply)

        await self._each([plan.Share(i, [], []) for i in range(len(self._peers))], ask, deadline, must=True)
        return found

    async def close(self) -> None:
        """Ends the connections, and with them the leases."""
        await asyncio.gather(*(peer.channel.close() for peer in self._peers))

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _put(self, call: PutCall, sender: PutSender) -> None:
        """One stream. A task of its own sends, so that answers are read while pieces wait for the node."""
        wanted: asyncio.Queue[int | None] = asyncio.Queue()

        async def send() -> None:
            await call.write(sender.offers(plan.VERSION, self.tenant))
            while (index := await wanted.get()) is not None:
                for request in sender.pieces(index, plan.PIECE_BYTES):
                    await call.write(request)
            await call.done_writing()

        sending = asyncio.ensure_future(send())
        try:
            async for reply in call:
                for index in sender.feed(reply):
                    wanted.put_nowait(index)
                if not sender.open:
                    wanted.put_nowait(None)
        finally:
            call.cancel()
            sending.cancel()
            # What it raises is the call's status once more.
            await asyncio.gather(sending, return_exceptions=True)

    async def _each(
        self,
        requests: Sequence[plan.Share],
        ask: Callable[[_Peer, plan.Share, float], Awaitable[None]],
        deadline: float | None,
        must: bool = False,
    ) -> tuple[str, ...]:
        """As `Client._each`."""
        until = time.monotonic() + (self.deadline if deadline is None else checks.check_deadline(deadline))
        of_node: dict[int, list[plan.Share]] = {}
        for share in requests:
            of_node.setdefault(share.node, []).append(share)
        peers = [self._peers[node] for node in of_node]
        # Every node is done with before a refusal of one is raised: buffers are the caller's again.
        done = await asyncio.gather(
            *(self._node(p, of_node[n], ask, until, must) for n, p in zip(of_node, peers, strict=True)),
            return_exceptions=True,
        )
        for outcome in done:
            if isinstance(outcome, BaseException):
                raise outcome
        return tuple(peer.node.name for peer, worked in zip(peers, done, strict=True) if not worked)

    async def _node(
        self,
        peer: _Peer,
        requests: Sequence[plan.Share],
        ask: Callable[[_Peer, plan.Share, float], Awaitable[None]],
        until: float,
        must: bool,
    ) -> bool:
        """As `Client._node`."""
        if not (peer.breaker.allows(time.monotonic()) or must):
            return False
        try:
            if not peer.greeted:
                hello = self.hello()
                answer = await peer.stub.Hello(hello, timeout=self.left(until), metadata=self.metadata)
                self.greet(peer.node, opened(answer, hello))
                peer.greeted = True
            for share in requests:
                await ask(peer, share, until)
        except grpc.aio.AioRpcError as error:
            refused = self.refusal(peer.node, error.code(), error.details())
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


def connect_async(
    nodes: Iterable[Node | str],
    *,
    tenant: int = 0,
    token: str | None = None,
    deadline: float = 1.0,
    buckets: int = DEFAULT_BUCKETS,
    name: str = "mimo_cache python asyncio",
) -> AsyncClient:
    """An `AsyncClient` with the arguments of `connect`. Call it inside the event loop that will use it."""
    return AsyncClient(
        [node if isinstance(node, Node) else Node.parse(node) for node in nodes],
        tenant=tenant,
        token=token,
        deadline=deadline,
        buckets=buckets,
        name=name,
    )
