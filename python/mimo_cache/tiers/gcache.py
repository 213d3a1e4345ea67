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
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from mimo_cache._core import CopyJob, GCacheClient, InvalidArgument, Key, TierReceive
from mimo_cache.gcache.errors import GCacheError
from mimo_cache.gcache.types import GetResult, GetStatus
from mimo_cache.tiers.errors import CopierClosed, CopyBusy, CopyCancelled, CopyFailed
from mimo_cache.tiers.host import HostTier, Tokens
from mimo_cache.tiers.objects import FULL, RECORD_BYTES, SWA, Objects, unpack_record, whole_number
from mimo_cache.tiers.writer import Writer

__all__ = ["GCacheTier", "Prefetch"]

ATTEMPTS = 4
"""Boundaries that one prefetch tries, each shorter than the one before."""
BATCH_BYTES = 32 << 20
"""Bytes asked for at once; between two such calls a prefetch can be cancelled."""
CAUSES = {
    GetStatus.ABSENT: "lost",
    GetStatus.DAMAGED: "damaged",
    GetStatus.TOO_LONG: "damaged",
    GetStatus.LATE: "late",
    GetStatus.UNREACHABLE: "unreachable",
    GetStatus.REFUSED: "refused",
}
MISSES = ("lost", "damaged", "late", "unreachable", "refused", "cancelled", "no room", "busy", "failed")


class Prefetch:
    """Pages of one prompt on their way into host memory.

    start, end: tokens that cache and host tier had together when it began, and have with it. cause: why there are not
    more, or None.
    """

    def __init__(
        self, tokens: npt.NDArray[Any], key: Key | None, spans: Any, tenant: int, until: float, done: bool = False
    ) -> None:
        self.tokens, self.key, self.spans, self.tenant = tokens, key, spans, tenant
        self.until = until
        """`time.monotonic` from which its request does not wait for it any more."""
        self.started = self.start = self.end = 0
        self.cause: str | None = None
        self.cancelled = False
        self._over = threading.Event()
        if done:
            self._over.set()

    def done(self) -> bool:
        """It is over, with or without pages."""
        return self._over.is_set()

    def ready(self) -> bool:
        """Its request may be opened: it is over, or the policy waits no longer."""
        return self.done() or time.monotonic() >= self.until

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until it is over; False: not within `timeout` seconds."""
        return self._over.wait(timeout)

    def cancel(self) -> None:
        """Asks it to end; what has come is kept where it makes a boundary."""
        self.cancelled = True


@dataclass(eq=False)
class _Flight:
    """Pages that are being fetched, and who waits for them."""

    names: Sequence[bytes]
    waiting: list[Prefetch] = field(default_factory=list)


@dataclass
class _Got:
    """What has come of a receive: bytes by (page, part), and records of SWA pages."""

    aside: dict[tuple[int, int], bytes] = field(default_factory=dict)
    records: dict[int, list[int]] = field(default_factory=dict)


class GCacheTier:
    """GCache below a host tier.

    - `write`: when what the host tier saves goes to GCache: "through", or "hit<n>", when it was matched n times.
    - `prefetch`: "best_effort" (requests never wait), "wait" (for `timeout` at most), or "deadline:<ms>".
    - `tenant`: who owns what comes in the host tier. `extent`: pages that GCache places together, one number for all
      that share it (`Geometry`'s `extent_pages`).
    - `timeout`: seconds that one prefetch may take, from when a thread begins with it. `threads`: prefetches at once.
    - `max_bytes`: on their way in at once; `max_queue`: prefetches, and writes, that wait for a thread.
    - `lease_ms`: how long nodes keep what they said they have. `touch`: prefixes in use are marked as used in GCache.

    The client stays the caller's. Raises `InvalidArgument`. `prefetch`, `stats` and `close` may be called by any thread.
    """

    def __init__(
        self,
        host: HostTier,
        client: GCacheClient,
        *,
        write: str = "through",
        prefetch: str = "best_effort",
        tenant: int = 0,
        extent: int = 16,
        timeout: float = 2.0,
        threads: int = 2,
        max_bytes: int = 256 << 20,
        max_queue: int = 256,
        lease_ms: int = 1000,
        touch: bool = True,
    ) -> None:
        if not isinstance(host, HostTier) or not isinstance(client, GCacheClient):
            raise InvalidArgument("host and client are of other types, allowed are a HostTier and a GCacheClient")
        if not 0 < timeout <= 3600:
            raise InvalidArgument(f"timeout is {timeout!r}, allowed is seconds above 0 and up to 3600")
        self.host, self.client, self.tenant, self.timeout = host, client, tenant, float(timeout)
        self.patience = _patience(prefetch, self.timeout)
        self.max_bytes = whole_number(max_bytes, "max_bytes", 1, 1 << 50)
        self.max_queue = whole_number(max_queue, "max_queue", 1, 1 << 20)
        self.lease_ms = whole_number(lease_ms, "lease_ms", 0, 60_000)
        self.objects = Objects(host.layout, host.region, whole_number(extent, "extent", 1, 1 << 16))
        cache = host.cache
        self.need = -(-cache.window // cache.page_size) if cache.swa_pages else 0
        self._lock = threading.Condition()
        self._queue: deque[Prefetch] = deque()
        self._coming: dict[bytes, _Flight] = {}
        self._counts: Counter[str] = Counter()
        self._misses: Counter[str] = Counter()
        self._in_flight = 0
        self._closed = False
        self.writer = Writer(self, write, touch)
        count = whole_number(threads, "threads", 1, 64)
        self._threads = [threading.Thread(target=self._work, name=f"gcache-in-{i}", daemon=True) for i in range(count)]
        for thread in self._threads:
            thread.start()

    # --- for the thread that serves -------------------------------------------------------------------------------

    def prefetch(self, tokens: Tokens, key: Key | None = None, spans: Any = None) -> Prefetch:
        """Begins to bring what GCache has of a prompt into host memory, and returns at once. To be called when its
        request is queued. Pages that another prefetch brings are not asked for again."""
        copy = np.array(tokens, dtype=np.uint32)
        handle = Prefetch(copy, key, spans, self.tenant, time.monotonic() + self.patience)
        with self._lock:
            self._counts["prefetches"] += 1
            if self._closed or len(self._queue) >= self.max_queue:
                self._misses["busy"] += 1
                handle.cause = "busy"
                handle._over.set()
            else:
                self._queue.append(handle)
                self._lock.notify()
        return handle

    def leave(self, handle: Prefetch) -> int:
        """A request goes on with what is there. What still comes is kept for others. Returns the tokens that came."""
        if handle.done():
            return handle.end - handle.start
        self._count(left=1)
        return 0

    def stats(self) -> dict[str, Any]:
        """Counters since the start, and what is on its way: `tokens` that came, `misses` by cause, pages and bytes of
        both directions."""
        with self._lock:
            names = ("prefetches", "joined", "left", "hits", "shortened", "tokens", "pages_in", "bytes_in")
            counted = {name: self._counts[name] for name in names}
            now = {"queued": len(self._queue), "bytes_in_flight": self._in_flight}
            misses = {cause: self._misses[cause] for cause in MISSES}
        return {**counted, **now, "misses": misses, **self.writer.stats()}

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
            handle._over.set()
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
                self._miss(handle, "failed")
                waits = False
            if not waits:
                handle._over.set()

    def _miss(self, handle: Prefetch | None, cause: str, count: int = 1) -> None:
        with self._lock:
            self._misses[cause] += count
        if handle is not None:
            handle.cause = cause

    def _count(self, **counts: int) -> None:
        with self._lock:
            self._counts.update(counts)

    def _stops(self, handle: Prefetch) -> bool:
        return handle.cancelled or self._closed

    def _serve(self, handle: Prefetch) -> bool:
        """One prefetch. True: it waits for pages that another one brings, and will be taken up again."""
        planner, tokens, key, spans = self.host.planner, handle.tokens, handle.key, handle.spans
        if self._stops(handle):
            self._miss(handle, "cancelled")
            return False
        page = self.host.cache.page_size
        names = planner.names(tokens, key, spans)
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
        try:
            extents = self.objects.extents(names, first, last)
            masks = self.client.exists(
                names[first:last], extents, self.lease_ms, want=self.objects.want, deadline=self.timeout
            )
            if not any(masks) and any(state != "closed" for state in self.client.breakers().values()):
                self._miss(handle, "unreachable")
        except GCacheError:
            self._miss(handle, "refused")
            return False
        got = _Got()
        for attempt in range(ATTEMPTS):
            at = planner.reachable(tokens, first, masks, key, spans)
            if at is None or self._stops(handle):
                break
            flight = self._begin(handle, names[have // page : at // page])
            if flight is None:
                return True
            try:
                came = self._receive(handle, names, at, first, masks, got, until)
            finally:
                self._land(flight)
            if came is None:
                break
            if came:
                handle.end = at
                self._count(hits=1, tokens=at - have, shortened=int(attempt > 0))
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
            flight = _Flight(names)
            self._coming.update(dict.fromkeys(names, flight))
            return flight

    def _land(self, flight: _Flight) -> None:
        with self._lock:
            for name in flight.names:
                del self._coming[name]
            if self._closed:
                for handle in flight.waiting:
                    handle._over.set()
            self._queue.extendleft(reversed(flight.waiting if not self._closed else []))
            self._lock.notify_all()

    def _receive(
        self,
        handle: Prefetch,
        names: Sequence[bytes],
        at: int,
        first: int,
        masks: list[int],
        got: _Got,
        until: float,
    ) -> bool | None:
        """Brings the host tier up to a boundary. True: it is there. False: `masks` know better now, and `got` has what
        has come. None: there is no sense in another try."""
        planner, page = self.host.planner, self.host.cache.page_size
        plan = planner.receive(handle.tokens, at, names[at // page - 1], handle.key, handle.spans, handle.tenant)
        if plan is None:
            if planner.usable(handle.tokens, handle.key, handle.spans) < at:
                self._miss(handle, "no room")
            return None
        size = self.objects.bytes_of(FULL) * len(plan.full) + self.objects.bytes_of(SWA) * len(plan.swa)
        records: list[list[int]] | None = None
        missing: dict[tuple[int, int], str] = {}
        with self._lock:
            # One that is larger than all there may be comes alone; host pages bound it.
            fits = not self._in_flight or self._in_flight + size <= self.max_bytes
            self._in_flight += size if fits else 0
        try:
            if not fits:
                self._miss(handle, "busy")
                return None
            try:
                job = self._copy_down(plan)
            except (CopyBusy, CopierClosed):
                self._miss(handle, "busy")
                return None
            try:
                missing = self._get(handle, plan, names, got, until)
            finally:
                copied = job is None or _ended(job, cancel=bool(missing))
            if not copied:
                self._miss(handle, "busy")
                return None
            if not missing:
                records = [got.records[logical] for logical, _ in plan.swa]
                return True
            for (logical, part), cause in missing.items():
                self._miss(handle, cause)
                if logical >= first:
                    masks[logical - first] &= ~(1 << part)
            if self._stops(handle):
                return None
            self._set_aside(handle, plan, masks, first, missing, got)
            return False
        finally:
            with self._lock:
                self._in_flight -= size if fits else 0
            planner.received(plan.id, records)

    def _copy_down(self, plan: TierReceive) -> CopyJob | None:
        """What the cache above has and the host tier lacks."""
        pairs = (plan.full_pairs, plan.swa_pairs)
        return self.host.copier.save(*pairs) if len(pairs[0]) + len(pairs[1]) else None

    def _get(
        self, handle: Prefetch, plan: TierReceive, names: Sequence[bytes], got: _Got, until: float
    ) -> dict[tuple[int, int], str]:
        """Writes the pages of a receive. Returns those that did not come, by (page, part), with the cause."""
        missing: dict[tuple[int, int], str] = {}
        batch: list[tuple[int, int, list[Any]]] = []
        size = 0
        wanted = [(*one, FULL) for one in plan.full] + [(*one, SWA) for one in plan.swa]
        for i, (logical, host_page, part) in enumerate(wanted):
            view = self.objects.page(part, host_page, writable=True)
            kept = got.aside.get((logical, part))
            if kept is not None:
                view[:] = kept
            else:
                batch.append((logical, part, [view] if part == FULL else [view, bytearray(RECORD_BYTES)]))
                size += self.objects.bytes_of(part)
            if batch and (size >= BATCH_BYTES or i + 1 == len(wanted)):
                missing.update(self._get_batch(handle, batch, names, got, until))
                batch, size = [], 0
        return missing

    def _get_batch(
        self,
        handle: Prefetch,
        batch: Sequence[tuple[int, int, list[Any]]],
        names: Sequence[bytes],
        got: _Got,
        until: float,
    ) -> dict[tuple[int, int], str]:
        left = until - time.monotonic()
        if left <= 0 or self._stops(handle):
            cause = "late" if left <= 0 else "cancelled"
            return {(logical, part): cause for logical, part, _ in batch}
        ids = [self.objects.object(names, logical, part) for logical, part, _ in batch]
        try:
            results = self.client.get(ids, [into for _, _, into in batch], deadline=left)
        except GCacheError:
            return {(logical, part): "refused" for logical, part, _ in batch}
        missing, came = {}, 0
        for (logical, part, into), result in zip(batch, results, strict=True):
            cause = self._check(logical, part, into, result, got)
            if cause is None:
                came += 1
                self._count(bytes_in=result.length)
            else:
                missing[logical, part] = cause
        self._count(pages_in=came)
        return missing

    def _check(self, logical: int, part: int, into: list[Any], result: GetResult, got: _Got) -> str | None:
        """The cause why a result is no page, or None."""
        if not result.hit:
            return CAUSES[result.status]
        if result.length != self.objects.bytes_of(part) or result.layout != self.objects.number:
            return "damaged"
        if part == SWA:
            record = unpack_record(into[1], self.host.cache.n_mtp)
            if record is None:
                return "damaged"
            got.records[logical] = record
        return None

    def _set_aside(
        self,
        handle: Prefetch,
        plan: TierReceive,
        masks: list[int],
        first: int,
        missing: dict[tuple[int, int], str],
        got: _Got,
    ) -> None:
        """Copies what has come, as far as the next boundary needs it: the pages themselves are given back."""
        at = self.host.planner.reachable(handle.tokens, first, masks, handle.key, handle.spans)
        end = (at or 0) // self.host.cache.page_size
        wanted = [(*one, FULL) for one in plan.full] + [(*one, SWA) for one in plan.swa if one[0] >= end - self.need]
        for logical, host_page, part in wanted:
            if logical < end and (logical, part) not in missing:
                got.aside[logical, part] = bytes(self.objects.page(part, host_page))


def _ended(job: CopyJob, cancel: bool) -> bool:
    """Waits for a copy; nothing of it is written any more then."""
    if cancel:
        job.cancel()
    with suppress(CopyCancelled, CopyFailed):
        return job.wait()
    return False


def _patience(policy: str, timeout: float) -> float:
    """Seconds that a request waits for its pages."""
    kind, _, ms = policy.partition(":") if isinstance(policy, str) else ("", "", "")
    if kind == "deadline" and ms.isdecimal() and 0 < int(ms) <= 3_600_000:
        return int(ms) / 1000
    named = {"best_effort": 0.0, "wait": timeout}
    if policy not in named:
        raise InvalidArgument(
            f'prefetch is {policy!r}, allowed is "best_effort", "wait" or "deadline:<ms>" from 1 to 3600000'
        )
    return named[policy]
