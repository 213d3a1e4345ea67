"""`GCacheTier`: GCache below a host tier.

`prefetch` brings the pages of a prompt into host memory while its request is queued; what the host tier has saved goes
to GCache in the background (`writer.py`). All network work runs on threads of the tier, with bounded queues, bytes and
time; what does not fit is dropped and counted. Whatever fails is a miss with a cause: nothing here raises into the
thread that serves, and no byte is published that was not checked.

Bytes go straight into host pages, which are published when all have come. When one is missing, what has come is set
aside, the pages are given back, and the nearest shorter boundary for which everything is known to be there is tried:
copies are made only then.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mimo_cache._core import GCacheClient, InvalidArgument, Key
from mimo_cache.gcache.errors import GCacheError
from mimo_cache.gcache.types import SOURCES
from mimo_cache.tiers.host import HostTier, Tokens
from mimo_cache.tiers.objects import FULL, MOST_SHARDS, SWA, Objects, whole_number
from mimo_cache.tiers.prefetch import Prefetch, patience
from mimo_cache.tiers.receiver import Got, Receiver
from mimo_cache.tiers.writer import Writer

__all__ = ["GCacheTier"]

MOST_TOKENS = 1 << 24
"""Tokens of all prompts that wait for a thread, 4 bytes each; beyond that the next one does not."""
ATTEMPTS = 4
"""Boundaries that one prefetch tries, each shorter than the one before."""
MISSES = ("lost", "damaged", "late", "unreachable", "refused", "cancelled", "no room", "busy", "declined", "failed")


@dataclass(eq=False)
class _Flight:
    """Pages that are being fetched, and who waits for them."""

    names: Sequence[bytes]
    bringer: Prefetch
    waiting: list[Prefetch] = field(default_factory=list)


class GCacheTier:
    """GCache below a host tier.

    - `write`: when what the host tier saves goes to GCache: "through", or "hit<n>", when it was matched n times.
    - `prefetch`: "wait" (requests wait for `timeout` at most, others pass them), "deadline:<ms>", or "best_effort"
      (they never wait: an idle engine opens a request before its pages have come).
    - `tenant`: who owns what comes in the host tier. `extent`: pages that GCache places together, one number for all
      that share it (`Geometry`'s `extent_pages`).
    - `shard`, `shards`: which part of the KV heads this process has, of how many. A page counts when all shards have
      written it; each process reads and writes its own.
    - `timeout`: seconds that one prefetch may take, from when a thread begins with it. `threads`: prefetches at once.
    - `max_bytes`: on their way in at once; `max_queue`: prefetches, and writes, that wait for a thread.
    - `prefill_rate`: tokens a second that the engine computes. What is expected to come slower, by the last few that
      came, is not fetched (`declined`); by default all is.
    - `lease_ms`: how long nodes keep what they said they have. `touch`: prefixes in use are marked as used in GCache.

    The client stays the caller's. Raises `InvalidArgument`, also when the cache was not told a version of its weights.
    Any thread may call `prefetch`, `leave` and `stats`.
    """

    def __init__(
        self,
        host: HostTier,
        client: GCacheClient,
        *,
        write: str = "through",
        prefetch: str = "wait",
        tenant: int = 0,
        extent: int = 16,
        shard: int = 0,
        shards: int = 1,
        timeout: float = 2.0,
        threads: int = 2,
        max_bytes: int = 256 << 20,
        max_queue: int = 256,
        lease_ms: int = 1000,
        touch: bool = True,
        prefill_rate: float | None = None,
    ) -> None:
        if not isinstance(host, HostTier) or not isinstance(client, GCacheClient):
            raise InvalidArgument("host and client are of other types, allowed are a HostTier and a GCacheClient")
        if not host.planner.weights:
            raise InvalidArgument(
                "the cache's version of the weights is empty, allowed is one that `set_weights` was told: without it "
                "other weights have the same names in GCache"
            )
        if prefill_rate is not None and not 0 < prefill_rate <= 1e12:
            raise InvalidArgument(f"prefill_rate is {prefill_rate!r}, allowed is None or tokens a second up to 1e12")
        if not 0 < timeout <= 3600:
            raise InvalidArgument(f"timeout is {timeout!r}, allowed is seconds above 0 and up to 3600")
        self.host, self.client, self.tenant, self.timeout = host, client, tenant, float(timeout)
        self.prefill_rate = prefill_rate
        self.patience = patience(prefetch, self.timeout)
        self.max_bytes = whole_number(max_bytes, "max_bytes", 1, 1 << 50)
        self.max_queue = whole_number(max_queue, "max_queue", 1, 1 << 20)
        self.lease_ms = whole_number(lease_ms, "lease_ms", 0, 60_000)
        shards = whole_number(shards, "shards", 1, MOST_SHARDS)
        shard = whole_number(shard, "shard", 0, shards - 1)
        extent = whole_number(extent, "extent", 1, 1 << 16)
        self.objects = Objects(host.layout, host.region, extent, shard, shards)
        cache = host.cache
        self.need = -(-cache.window // cache.page_size) if cache.swa_pages else 0
        self._lock = threading.Condition()
        self._queue: deque[Prefetch] = deque()
        self._coming: dict[bytes, _Flight] = {}
        self._counts: Counter[str] = Counter()
        self._misses: Counter[str] = Counter()
        self._in_flight = 0
        self._rate: float | None = None
        self._closed = self._begun = False
        self.receiver = Receiver(self)
        count = whole_number(threads, "threads", 1, 64)
        self.writer = Writer(self, write, touch)
        self._threads = [threading.Thread(target=self._work, name=f"gcache-in-{i}", daemon=True) for i in range(count)]
        for thread in self._threads:
            thread.start()

    # --- for the thread that serves -------------------------------------------------------------------------------

    def prefetch(self, tokens: Tokens, key: Key | None = None, spans: Any = None) -> Prefetch:
        """Begins to bring what GCache has of a prompt into host memory, and returns at once. To be called when its
        request is queued. Pages that another prefetch brings are not asked for again."""
        copy = np.array(tokens, dtype=np.uint32)
        until, page = time.monotonic() + self.patience, self.host.cache.page_size
        handle = Prefetch(copy, key, spans, self.tenant, until, page, self.need)
        handle.span = self.host.watch.span("prefetch", prompt_tokens=len(copy))
        with self._lock:
            self._counts["prefetches"] += 1
            if self._closed or len(self._queue) >= self.max_queue or queued(self._queue) > MOST_TOKENS:
                self._misses["busy"] += 1
                handle.cause = "busy"
                self._over(handle)
            else:
                self._queue.append(handle)
                self._lock.notify()
        return handle

    def leave(self, handle: Prefetch) -> int:
        """A request goes on with what is there. What still comes is kept for others. Returns the tokens that came."""
        if handle.done():
            return handle.end - handle.start
        self.count(left=1)
        return 0

    def receiving(self) -> bool:
        """Pages are on their way into host memory, some of them perhaps from the cache, or were since the last call."""
        with self._lock:
            begun, self._begun = self._begun, False
            return begun or bool(self._coming)

    def stats(self) -> dict[str, Any]:
        """Counters since the start, and what is on its way: `tokens` that came, and by the tier of the nodes,
        `misses` by cause, pages and bytes of both directions."""
        with self._lock:
            names = ("prefetches", "joined", "left", "hits", "shortened", "tokens", "pages_in", "bytes_in")
            counted = {name: self._counts[name] for name in names}
            now = {"queued": len(self._queue), "bytes_in_flight": self._in_flight}
            misses = {cause: self._misses[cause] for cause in MISSES}
            by_source = {source: self._counts[f"tokens_{source}"] for source in SOURCES}
        return {**counted, **now, "tokens_by_source": by_source, "misses": misses, **self.writer.stats()}

    def close(self, timeout: float = 10.0) -> bool:
        """Ends all work; False where a thread did not end within `timeout` seconds. The host tier and the client stay
        open: they are to be closed after this."""
        until = time.monotonic() + timeout
        with self._lock:
            self._closed = True
            waiting = [*self._queue, *(w for f in self._coming.values() for w in f.waiting)]
            self._queue.clear()
            self._lock.notify_all()
        for handle in waiting:
            self._over(handle)
        self.writer.close()
        for thread in (*self._threads, self.writer.thread):
            thread.join(max(0.0, until - time.monotonic()))
        return not any(thread.is_alive() for thread in (*self._threads, self.writer.thread))

    # --- on threads of its own ------------------------------------------------------------------------------------

    def _work(self) -> None:
        while True:
            with self._lock:
                self._lock.wait_for(lambda: self._queue or self._closed)
                if self._closed:
                    return
                handle = self._queue.popleft()
            try:
                waits = self._serve(handle)
            except Exception:  # a fault of ours costs this prompt its pages, and nothing else
                self.miss(handle, "failed")
                waits = False
            if not waits:
                self._over(handle)

    def _over(self, handle: Prefetch) -> None:
        """A prefetch is over, whoever says so first."""
        with self._lock:
            if handle.done():
                return
            handle._over.set()
        if handle.asked:
            self.host.watch.prefetches.add(time.perf_counter() - handle.queued)
        handle.span.end(tokens=handle.end - handle.start, bytes=handle.bytes, cause=handle.cause)

    def miss(self, handle: Prefetch | None, cause: str, count: int = 1) -> None:
        with self._lock:
            self._misses[cause] += count
        if handle is not None:
            handle.cause = cause

    def count(self, **counts: int) -> None:
        with self._lock:
            self._counts.update(counts)

    def take(self, size: int) -> bool:
        """Room for bytes on their way in. What is larger than all there may be comes alone; host pages bound it."""
        with self._lock:
            fits = not self._in_flight or self._in_flight + size <= self.max_bytes
            self._in_flight += size if fits else 0
            return fits

    def give_back(self, size: int) -> None:
        """They are there, or will not come."""
        with self._lock:
            self._in_flight -= size

    def arrived(self, size: int, seconds: float) -> None:
        """Bytes came within so many seconds: what the next ones are expected to take goes by the last few."""
        with self._lock:
            rate = size / max(seconds, 1e-6)
            self._rate = rate if self._rate is None else 0.75 * self._rate + 0.25 * rate

    def pays(self, tokens: int, pages: int) -> bool:
        """Pages of so many tokens, and a window, are expected here before the engine would have computed them."""
        with self._lock:
            if self.prefill_rate is None or self._rate is None:
                return True
            size = self.objects.bytes_of(FULL) * pages + self.objects.bytes_of(SWA) * self.need
            return size / self._rate <= tokens / self.prefill_rate

    def stops(self, handle: Prefetch) -> bool:
        return handle.cancelled or self._closed

    def _serve(self, handle: Prefetch) -> bool:
        """One prefetch. True: it waits for pages that another one brings, and will be taken up again."""
        planner, tokens, key, spans = self.host.planner, handle.tokens, handle.key, handle.spans
        if self.stops(handle):
            self.miss(handle, "cancelled")
            return False
        page = self.host.cache.page_size
        names = planner.names(tokens, key, spans)
        handle.names = names
        have, last = planner.usable(tokens, key, spans), (len(tokens) - 1) // page
        if not handle.started:
            handle.started, handle.start, handle.end = 1, have, have
            self.writer.used(names[: have // page])
        handle.end = max(handle.end, have)
        if have // page >= last:
            return False
        if self._join(handle, names[have // page : last]):
            return True
        until = time.monotonic() + self.timeout
        first = max(0, have // page - self.need)
        handle.asked = True
        try:
            extents = self.objects.extents(names, first, last)
            masks = self.client.exists(
                names[first:last], extents, self.lease_ms, want=self.objects.want, deadline=self.timeout / 2
            )
            masks = [self.objects.whole(mask) for mask in masks]
            away = {name for name, state in self.client.breakers().items() if state != "closed"}
            if away and any(not mask and self.client.locate(e) in away for mask, e in zip(masks, extents, strict=True)):
                self.miss(handle, "unreachable")
        except GCacheError:
            self.miss(handle, "refused")
            return False
        got = Got()
        for attempt in range(ATTEMPTS):
            at = planner.reachable(tokens, first, masks, key, spans)
            if at is None or self.stops(handle):
                break
            handle.promised = max(handle.promised, at)
            if not self.pays(at - have, (at - have) // page):
                self.miss(handle, "declined")
                break
            flight = self._begin(handle, names[have // page : at // page])
            if flight is None:
                return True
            try:
                came = self.receiver.receive(handle, names, at, first, masks, got, until)
            finally:
                self._land(flight)
            if came is None:
                break
            if came:
                handle.end, handle.cause = at, None
                self.count(hits=1, tokens=max(0, at - have), shortened=int(attempt > 0))
                self.count(**{f"tokens_{source}": n for source, n in handle.split(have, at).items()})
                break
        return False

    def _join(self, handle: Prefetch, names: Sequence[bytes]) -> bool:
        """Waits for the prefetch that brings any of these pages, if there is one."""
        with self._lock:
            return self._joined(handle, names)

    def _joined(self, handle: Prefetch, names: Sequence[bytes]) -> bool:
        flight = next((self._coming[name] for name in names if name in self._coming), None)
        if flight is not None:
            flight.waiting.append(handle)
            self._counts["joined"] += 1
        return flight is not None

    def _begin(self, handle: Prefetch, names: Sequence[bytes]) -> _Flight | None:
        """Notes that these pages are being brought; None where another one does, which the handle now waits for."""
        with self._lock:
            if self._joined(handle, names):
                return None
            flight, self._begun = _Flight(names, handle), True
            self._coming.update(dict.fromkeys(names, flight))
            return flight

    def _land(self, flight: _Flight) -> None:
        with self._lock:
            for name in flight.names:
                del self._coming[name]
            for handle in flight.waiting:
                handle.shares(flight.bringer)
            if self._closed:
                for handle in flight.waiting:
                    self._over(handle)
            self._queue.extendleft(reversed(flight.waiting if not self._closed else []))
            self._lock.notify_all()


def queued(waiting: Iterable[Any]) -> int:
    """Tokens of prompts that wait."""
    return sum(len(one.tokens) for one in waiting)
