"""The way from a host tier to GCache, on one thread: boundaries that were saved, and marks of what is in use.

Pages are read where they lie in host memory, under a loan, so that nobody evicts or rewrites them meanwhile. Nodes are
asked first which objects they have; of the rest the first writer wins. What waits is bounded, and what is beyond that
is dropped and counted: it goes down at its next occasion, or never.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mimo_cache._core import InvalidArgument, Key
from mimo_cache.gcache.errors import GCacheError
from mimo_cache.gcache.types import ObjectId, PutItem, PutStatus
from mimo_cache.tiers.objects import FULL, SWA, pack_record

if TYPE_CHECKING:
    from mimo_cache.tiers.gcache import GCacheTier

BATCH_BYTES = 32 << 20
"""Bytes put at once; between two such calls a write can be cancelled."""
TOUCH_SECONDS = 1.0
"""Marks are sent at most so often."""
MOST_TOUCHES = 4096
"""Objects marked at once; what is beyond that is dropped."""
AGAIN_SECONDS = 30.0
"""A page is not marked, and a boundary that counts hits not written, a second time before that."""
REMEMBERED = 1 << 16
MOST_TOKENS = 1 << 24
"""Tokens of all prompts that wait, 4 bytes each."""


class Saved(NamedTuple):
    """A boundary to write; `at` 0: those of the prompt that were matched often enough."""

    tokens: Any
    key: Key | None
    spans: Any
    at: int


class Recent:
    """Names that came up lately, bounded."""

    def __init__(self, seconds: float, most: int) -> None:
        self.seconds, self.most = seconds, most
        self.seen: OrderedDict[bytes, float] = OrderedDict()

    def fresh(self, name: bytes) -> bool:
        """True when it did not come up within the time; it has now."""
        now = time.monotonic()
        fresh = now - self.seen.get(name, -self.seconds) >= self.seconds
        if fresh:
            self.seen[name] = now
            self.seen.move_to_end(name)
            while len(self.seen) > self.most:
                self.seen.popitem(last=False)
        return fresh


class Writer:
    """See the module's text. Made by `GCacheTier`."""

    def __init__(self, tier: GCacheTier, write: str, touch: bool) -> None:
        self.tier, self.hits, self.touch = tier, _hits(write), touch
        self._lock = threading.Condition()
        self._queue: deque[Saved] = deque()
        self._used: OrderedDict[ObjectId, None] = OrderedDict()
        self._touched = Recent(AGAIN_SECONDS, REMEMBERED)
        self._written = Recent(AGAIN_SECONDS, REMEMBERED)
        self._next_touch = 0.0
        self._counts: Counter[str] = Counter()
        self._closed = self._busy = False
        if self.hits == 0:
            tier.host.on_saved.append(self.saved)
        else:
            tier.host.on_used.append(self.asked)
        self.thread = threading.Thread(target=self._work, name="gcache-out", daemon=True)
        self.thread.start()

    # --- for other threads ----------------------------------------------------------------------------------------

    def saved(self, tokens: Any, key: Key | None, spans: Any, at: int) -> None:
        """The host tier has a boundary now."""
        self._add(Saved(np.array(tokens[:at], dtype=np.uint32), key, spans, at))

    def asked(self, tokens: Any, key: Key | None, spans: Any) -> None:
        """A prompt was served or has ended: its boundaries may have been matched often enough."""
        self._add(Saved(np.array(tokens, dtype=np.uint32), key, spans, 0))

    def _add(self, job: Saved) -> None:
        with self._lock:
            long = sum(len(saved.tokens) for saved in self._queue) > MOST_TOKENS
            full = self._closed or long or len(self._queue) >= self.tier.max_queue
            self._counts["writes_dropped"] += int(full)
            if not full:
                self._queue.append(job)
                self._lock.notify()

    def used(self, names: Sequence[bytes]) -> None:
        """Pages of a prefix from its start that cache or host tier have and a request reads."""
        if not self.touch or not names:
            return
        objects = self.tier.objects
        # The tail first, so that nodes drop it before the head.
        wanted = reversed(objects.wanted(len(names), self.tier.need))
        with self._lock:
            for page, part in wanted:
                if len(self._used) >= MOST_TOUCHES:
                    self._counts["touches_dropped"] += 1
                elif self._touched.fresh(names[page] + bytes([part])):
                    self._used[objects.object(names, page, part)] = None
            self._lock.notify()

    def stats(self) -> dict[str, Any]:
        """Counters since the start, and what waits."""
        names = ("writes", "writes_dropped", "writes_gone", "pages_out", "bytes_out", "pages_there", "pages_failed")
        with self._lock:
            counted = {name: self._counts[name] for name in (*names, "touches", "touches_dropped")}
            return {**counted, "writes_queued": len(self._queue)}

    def flush(self, timeout: float) -> bool:
        """Waits until all that was asked for is written; False: not within `timeout` seconds."""
        with self._lock:
            return self._lock.wait_for(lambda: self._closed or not (self._queue or self._busy), timeout)

    def close(self) -> None:
        """Ends the thread after the call to a node that it is in; what waits is dropped."""
        host = self.tier.host
        with self._lock:
            if self.saved in host.on_saved:
                host.on_saved.remove(self.saved)
            if self.asked in host.on_used:
                host.on_used.remove(self.asked)
            self._closed = True
            self._queue.clear()
            self._lock.notify_all()

    # --- on its thread --------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while True:
            with self._lock:
                self._busy = False
                self._lock.notify_all()
                rest = max(0.0, self._next_touch - time.monotonic())
                self._lock.wait_for(lambda: self._queue or self._closed, rest if self._used else TOUCH_SECONDS)
                if self._closed:
                    return
                job = self._queue.popleft() if self._queue else None
                self._busy = job is not None
            try:
                if job is not None:
                    self._write(job)
                self._send_touches()
            except Exception:  # a fault of ours, or of a node, costs what was to be written, and nothing else
                self._count(pages_failed=1)

    def _count(self, **counts: int) -> None:
        with self._lock:
            self._counts.update(counts)

    def _write(self, job: Saved) -> None:
        if job.at:
            self._write_one(job)
            return
        planner = self.tier.host.planner
        boundaries = planner.kept(job.tokens, self.hits, job.key, job.spans)
        if boundaries:
            names = planner.names(job.tokens, job.key, job.spans)
            for at in boundaries:
                if self._written.fresh(names[at // self.tier.host.cache.page_size - 1]):
                    self._write_one(job._replace(at=at))

    def _write_one(self, job: Saved) -> None:
        planner = self.tier.host.planner
        span, begin = self.tier.host.watch.span("write", tokens=job.at), time.perf_counter()
        loan = planner.lend_down(job.tokens, job.at, job.key, job.spans)
        if loan is None:
            self._count(writes_gone=1)
            span.end(cause="gone")
            return
        before, cause = (self._counts["bytes_out"], self._counts["pages_failed"]), "failed"
        try:
            objects, names = self.tier.objects, loan.names
            masks = self.tier.client.exists(names, objects.extents(names, 0, len(names)), want=objects.own)
            pages = [(page, host, FULL, b"") for page, host in loan.full]
            for (page, host), record in zip(loan.swa, loan.records, strict=True):
                pages.append((page, host, SWA, pack_record(record)))
            absent = [one for one in pages if not masks[one[0]] >> (one[2] + objects.shard) & 1]
            self._count(writes=1, pages_there=len(pages) - len(absent))
            self._put(names, absent)
            cause = "failed" if self._counts["pages_failed"] > before[1] else ""
        finally:
            planner.returned(loan.id)
            self.tier.host.watch.writes.add(time.perf_counter() - begin)
            # Only this thread counts them.
            span.end(bytes=self._counts["bytes_out"] - before[0], cause=cause or None)

    def _put(self, names: Sequence[bytes], pages: Sequence[tuple[int, int, int, bytes]]) -> None:
        objects, batch, size = self.tier.objects, [], 0
        for i, (page, host, part, trailer) in enumerate(pages):
            view = objects.page(part, host)
            data: Any = [view, trailer] if trailer else view
            batch.append(PutItem(objects.object(names, page, part), data, page, False, objects.number))
            size += objects.bytes_of(part)
            if size >= BATCH_BYTES or i + 1 == len(pages):
                if self._closed:
                    self._count(pages_failed=len(pages) - i - 1 + len(batch))
                    return
                try:
                    put = self.tier.client.put(batch)
                except GCacheError:
                    put = [PutStatus.REFUSED] * len(batch)
                self._tell(batch, put)
                batch, size = [], 0

    def _tell(self, batch: Sequence[PutItem], put: Sequence[PutStatus]) -> None:
        out = bytes_out = there = 0
        for item, status in zip(batch, put, strict=True):
            if status is PutStatus.STORED:
                out, bytes_out = out + 1, bytes_out + self.tier.objects.bytes_of(item.id.part)
            there += status is PutStatus.PRESENT
        self._count(pages_out=out, bytes_out=bytes_out, pages_there=there, pages_failed=len(batch) - out - there)

    def _send_touches(self) -> None:
        with self._lock:
            if not self._used or time.monotonic() < self._next_touch:
                return
            ids = list(self._used)
            self._used.clear()
            self._next_touch = time.monotonic() + TOUCH_SECONDS
        self._count(touches=self.tier.client.touch(ids))


def _hits(write: str) -> int:
    """0 for "through", n for "hit<n>"."""
    count = write[3:] if isinstance(write, str) and write.startswith("hit") else ""
    if write == "through":
        return 0
    if count.isdecimal() and 0 < int(count) < 1 << 16:
        return int(count)
    raise InvalidArgument(f'write is {write!r}, allowed is "through" or "hit<n>", n from 1 to 65535')
