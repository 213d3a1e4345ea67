"""The asyncio client: the same calls as the blocking one, awaited. One task for each node that a call asks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

import grpc
import grpc.aio

from mimo_cache.gcache import checks, plan
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
    from mimo_cache.gcache.v1.gcache_pb2_grpc import GCacheAsyncStub

    PutCall = grpc.aio.StreamStreamCall[pb.PutRequest, pb.PutReply]

M = TypeVar("M", bound="Message")
R = TypeVar("R", bound="Message")


class _Peer(Peer):
    """One node and its channel, made in the loop that uses it."""

    def __init__(self, node: Node, metadata: Metadata) -> None:
        super().__init__(node, metadata)
        self.channel = grpc.aio.insecure_channel(address_of(node), options=options_of(node))
        self.stub: GCacheAsyncStub = GCacheStub(self.channel)


class AsyncClient(ClientBase):
    """See the package; `connect_async` makes one. Its calls document themselves in `Client`."""

    def __init__(
        self, nodes: Sequence[Node], *, tenant: int, token: str | None, deadline: float, buckets: int, name: str
    ) -> None:
        super().__init__(nodes, tenant, token, deadline, buckets, name)
        # All addresses are looked at before the first channel is made.
        for node in self.ring.nodes:
            address_of(node)
        self._peers = [_Peer(node, self.metadata) for node in self.ring.nodes]
        self._closed = False

    async def exists(
        self,
        keys: Sequence[bytes],
        extents: Sequence[bytes] | None = None,
        lease_ms: int = 0,
        *,
        deadline: float | None = None,
    ) -> list[int]:
        """As `Client.exists`."""
        names = checks.check_keys(keys)
        places = checks.check_extents(names, extents)
        lease = checks.check_lease(lease_ms)
        masks = [0] * len(names)

        async def ask(peer: _Peer, share: plan.Share, until: float) -> None:
            reply = await self._unary(peer, until, peer.stub.Exists, self.exists_request(share, names, lease))
            for position, mask in zip(share.positions, plan.masks_of(reply, share), strict=True):
                masks[position] = mask

        outcome = await self._each(plan.shares(self.ring, places, plan.MAX_KEYS), ask, deadline)
        outcome.raise_if_all(len(names))
        return masks

    async def get(
        self, ids: Sequence[ObjectId], into: Sequence[Memory] | None = None, *, deadline: float | None = None
    ) -> list[GetResult]:
        """As `Client.get`."""
        names = checks.check_ids(ids)
        buffers = checks.check_into(into, len(names))
        results = [GetResult(GetStatus.UNREACHABLE)] * len(names)

        async def ask(peer: _Peer, share: plan.Share, until: float) -> None:
            request = self.get_request(share, names, peer.version)
            receiver = GetReceiver(request, [buffers[p] for p in share.positions])
            try:
                async for reply in peer.stub.Get(request, timeout=self.left(until), metadata=peer.metadata):
                    receiver.feed(reply)
            finally:
                for position, result in zip(share.positions, receiver.finish(GetStatus.UNREACHABLE), strict=True):
                    results[position] = result
            if receiver.damaged:
                bad = plan.Share(share.node, [share.positions[i] for i in receiver.damaged], [])
                bad.buckets.extend(share.buckets[i] for i in receiver.damaged)
                await self._unary(peer, until, peer.stub.Verify, self.verify_request(bad, names))

        sizes = [0 if buffer is None else len(buffer) for buffer in buffers]
        outcome = await self._each(self.object_shares(names), ask, deadline, sizes=sizes)
        outcome.settle_gets(results)
        return results

    async def put(self, items: Iterable[PutItem], *, deadline: float | None = None) -> list[PutStatus]:
        """As `Client.put`."""
        given, views = checks.check_items(items)
        names = [item.id for item in given]
        statuses = [PutStatus.UNREACHABLE] * len(given)

        async def ask(peer: _Peer, share: plan.Share, until: float) -> None:
            sender = PutSender([given[p] for p in share.positions], [views[p] for p in share.positions], share.buckets)
            try:
                await self._put(peer.stub.Put(timeout=self.left(until), metadata=peer.metadata), sender)
            finally:
                for position, status in zip(share.positions, sender.finish(PutStatus.UNREACHABLE), strict=True):
                    statuses[position] = status

        sizes = [len(view) for view in views]
        outcome = await self._each(self.object_shares(names), ask, deadline, sizes=sizes)
        outcome.settle_puts(statuses)
        return statuses

    async def touch(self, ids: Sequence[ObjectId], *, deadline: float | None = None) -> int:
        """As `Client.touch`."""
        names = checks.check_ids(ids)
        counts: list[int] = []

        async def ask(peer: _Peer, share: plan.Share, until: float) -> None:
            reply = await self._unary(peer, until, peer.stub.Touch, self.touch_request(share, names))
            counts.append(reply.present)

        outcome = await self._each(self.object_shares(names), ask, deadline)
        outcome.raise_if_all(len(names))
        return sum(counts)

    async def delete(self, ids: Sequence[ObjectId], *, deadline: float | None = None) -> Deleted:
        """As `Client.delete`."""
        names = checks.check_ids(ids)
        counts: list[int] = []

        async def ask(peer: _Peer, share: plan.Share, until: float) -> None:
            reply = await self._unary(peer, until, peer.stub.Delete, self.delete_request(share, names))
            counts.append(reply.deleted)

        outcome = await self._each(self.object_shares(names), ask, deadline, must=True)
        outcome.raise_if_all(len(names))
        return Deleted(sum(counts), tuple(outcome.failed), outcome.refusers())

    async def verify(self, ids: Sequence[ObjectId], *, deadline: float | None = None) -> Verified:
        """As `Client.verify`."""
        names = checks.check_ids(ids)
        sound: list[int] = []
        dropped: list[int] = []

        async def ask(peer: _Peer, share: plan.Share, until: float) -> None:
            reply = await self._unary(peer, until, peer.stub.Verify, self.verify_request(share, names))
            sound.append(reply.sound)
            dropped.append(reply.dropped)

        outcome = await self._each(self.object_shares(names), ask, deadline, must=True)
        outcome.raise_if_all(len(names))
        return Verified(sum(sound), sum(dropped), tuple(outcome.failed), outcome.refusers())

    async def stats(self, *, deadline: float | None = None) -> dict[str, NodeStats | None]:
        """As `Client.stats`."""
        found: dict[str, NodeStats | None] = {node.name: None for node in self.ring.nodes}

        async def ask(peer: _Peer, _: plan.Share, until: float) -> None:
            reply = await self._unary(peer, until, peer.stub.Stats, self.stats_request())
            found[peer.node.name] = plan.node_stats(reply)

        await self._each([plan.Share(i, [], []) for i in range(len(self._peers))], ask, deadline, must=True)
        return found

    def refusals(self) -> dict[str, Refused]:
        """As `Client.refusals`."""
        return self.refusals_of(self._peers)

    async def close(self) -> None:
        """Ends the connections, and with them the leases. What calls still ask for is a miss."""
        self._closed = True
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
        offers = sender.offers(plan.COMMON_VERSION, self.tenant)

        async def send() -> None:
            await call.write(offers)
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
        sizes: Sequence[int] = (),
    ) -> Outcome:
        """As `Client._each`."""
        until = time.monotonic() + (self.deadline if deadline is None else checks.check_deadline(deadline))
        if self._closed:
            raise Closed
        of_node: dict[int, list[plan.Share]] = {}
        for share in requests:
            of_node.setdefault(share.node, []).append(share)
        tasks = []
        for node, asked in sorted(of_node.items()):
            wanted = sum(sizes[p] for share in asked for p in share.positions) if sizes else 0
            tasks.append(asyncio.ensure_future(self._node(self._peers[node], asked, ask, until, must, wanted)))
        try:
            found = await asyncio.gather(*tasks)
        except BaseException:
            # Every node is done with before the caller has its buffers again.
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise
        return Outcome.of_all(found)

    async def _node(
        self,
        peer: _Peer,
        requests: Sequence[plan.Share],
        ask: Callable[[_Peer, plan.Share, float], Awaitable[None]],
        until: float,
        must: bool,
        wanted_bytes: int,
    ) -> Outcome:
        """As `Client._node`."""
        failed = Outcome([peer.node.name])
        begun = time.monotonic()
        if not (peer.breaker.allows(begun) or must):
            return failed
        given = until - begun
        try:
            refused = await self._greeted(peer, until)
            if refused is not None:
                peer.done(refused)
                return Outcome([], [(share, refused) for share in requests])
            for share in requests:
                refused = await self._asked(peer, share, ask, until)
                failed.refused += [(share, refused)] if refused is not None else []
        except grpc.aio.AioRpcError as error:
            if not self._closed:
                self.blame(peer, failed, requests, error.code(), given, wanted_bytes)
            return failed
        except asyncio.CancelledError:
            # A channel that is closed cancels its calls, which is not for the task that waits for them.
            task = asyncio.current_task()
            if not self._closed or (task is not None and task.cancelling()):
                raise
            return failed
        except (Ended, grpc.aio.UsageError):
            if not self._closed:
                raise
            return failed
        except Late:
            self.blame(peer, failed, requests, None, given, wanted_bytes)
            return failed
        except Broken:
            peer.breaker.failed(time.monotonic())
            return failed
        peer.done(failed.refused[-1][1] if failed.refused else None)
        return Outcome([], failed.refused)

    async def _greeted(self, peer: _Peer, until: float) -> Refused | None:
        """As `Client._greeted`."""
        if peer.greeted:
            return None
        try:
            reply = await self._unary(peer, until, peer.stub.Hello, self.hello(), peer.hello_metadata)
            self.greet(peer, reply)
        except Refused as refused:
            return refused
        except grpc.aio.AioRpcError as error:
            refusal = self.refusal(peer.node, error.code(), error.details())
            if refusal is None:
                raise
            return refusal
        return None

    async def _asked(
        self,
        peer: _Peer,
        share: plan.Share,
        ask: Callable[[_Peer, plan.Share, float], Awaitable[None]],
        until: float,
    ) -> Refused | None:
        """As `Client._asked`."""
        try:
            await ask(peer, share, until)
        except grpc.aio.AioRpcError as error:
            refused = self.refusal(peer.node, error.code(), error.details())
            if refused is None:
                raise
            # It may be another node by now.
            peer.greeted = False
            return refused
        return None

    async def _unary(
        self,
        peer: _Peer,
        until: float,
        method: grpc.aio.UnaryUnaryMultiCallable[M, R],
        request: M,
        metadata: Metadata | None = None,
    ) -> R:
        """As `Client._unary`."""
        sent = peer.metadata if metadata is None else metadata
        answer = await method(request, timeout=self.left(until), metadata=sent)
        return opened(answer, request)


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
        Node.listed(nodes),
        tenant=tenant,
        token=token,
        deadline=deadline,
        buckets=buckets,
        name=name,
    )
