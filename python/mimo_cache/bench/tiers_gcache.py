"""Part `gcache` of `mimo-cache bench tiers`: a prefix from a node of the same machine into host memory and back.

Byte volumes and layout are those of `copy`. `prefetch`: from `GCacheTier.prefetch` until it is over, with all that the
tier does: names, exists, room in the host tier, get, publication. Beside it, by turns, the client's own `get` of the
same objects into host memory of the same kind, in batches of 32 MiB, as `bench gcache` has them. `write`: what the tier
puts of a prefix that has arrived in host memory, beside the client's `put` of the same objects from the same pages.
Each round has names of its own, so that no byte is there before it is asked for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, Literal

import numpy as np

from mimo_cache import GCacheClient, Key, PrefixCache
from mimo_cache.bench.gcache_nodes import nodes
from mimo_cache.bench.report import COPIED
from mimo_cache.bench.tiers import Options
from mimo_cache.bench.tiers_copy import PAGE, WINDOW_PAGES, Bytes, device_arrays, pro_layers
from mimo_cache.bench.timing import Figure, figure
from mimo_cache.gcache.types import GetStatus, ObjectId, PutItem, PutStatus
from mimo_cache.tiers import DeviceLayout, GCacheTier, HostRegion, HostTier, device_layout
from mimo_cache.tiers.objects import FULL, RECORD_BYTES, SWA, pack_record

WINDOW = 127
"""Previous tokens that an SWA query needs: 128 keys."""
MTP_HEADS = 3
BATCH_BYTES = 32 << 20
"""Bytes of a client's call."""
PATIENCE = 60.0
"""Seconds that one prefetch or write may take."""
PLACES = 2
"""Prefixes that host memory holds."""
SWA_PAGES = 8
"""On the device, and in host memory: a sequence's window at least."""
MIB = 1 << 20
Group = Literal["full", "swa"]


def gcache(options: Options) -> list[Figure]:
    """Prefetch beside get, write beside put, for each prefix; MB/s."""
    figures = []
    for tokens in COPIED:
        pages = max(int(tokens // PAGE * options.scale), WINDOW_PAGES)
        with ExitStack() as stack:
            site = Site(pages, stack)
            site.round(0)
            site.check()
            rates: dict[str, list[float]] = {}
            rounds = max(int((MIB << 10) * options.scale / site.bytes), 1)
            for run in range(options.runs):
                spent: dict[str, float] = {}
                for n in range(rounds):
                    for name, seconds in site.round(1 + run * rounds + n).items():
                        spent[name] = spent.get(name, 0.0) + seconds
                for name, seconds in spent.items():
                    rates.setdefault(name, []).append(rounds * site.bytes / seconds / 1e6)
        figures += [figure(f"{name}_{tokens}", "MB/s", runs) for name, runs in rates.items()]
        for ours, theirs in (("prefetch", "get"), ("write", "put")):
            ratios = [one / other for one, other in zip(rates[ours], rates[theirs], strict=True)]
            figures.append(figure(f"{ours}_{tokens}_vs_{theirs}", "x", ratios))
    return figures


class Site:
    """A node, a host tier with GCache below it, and host memory beside it into which the client reads."""

    def __init__(self, pages: int, stack: ExitStack) -> None:
        full, swa = device_arrays(*pro_layers(), pages, SWA_PAGES, hidden=True)
        layout = device_layout(full=full, swa=swa)
        cache = PrefixCache.plain(page_size=PAGE, window=WINDOW, n_mtp=MTP_HEADS, full_pages=pages, swa_pages=SWA_PAGES)
        cache.set_weights("bench")
        self.pages = pages
        self.host = HostTier(cache, layout, full_pages=PLACES * pages, swa_pages=SWA_PAGES, write="through")
        stack.callback(self.host.close)
        self.bytes = pages * layout.full_page_bytes + WINDOW_PAGES * (layout.swa_page_bytes + RECORD_BYTES)
        (node,) = stack.enter_context(nodes("bench", size=(8 * self.bytes // MIB + 64) * MIB))
        self.client = stack.enter_context(GCacheClient([node.unix], deadline=PATIENCE))
        self.tier = GCacheTier(self.host, self.client, prefetch="wait", timeout=PATIENCE)
        stack.callback(self.tier.close)
        self.source = Plain(layout, pages, noise=True)
        self.target = Plain(layout, pages, noise=False)
        # Tokens after the prefix: one to compute, and those with which the last page's MTP rows were made.
        self.tokens = np.random.default_rng(2).integers(0, 1000, pages * PAGE + MTP_HEADS, dtype=np.uint32)
        ends = [(page + 1) * PAGE for page in range(pages - WINDOW_PAGES, pages)]
        self.trailers = [pack_record(self.tokens[end : end + MTP_HEADS].tolist()) for end in ends]

    def round(self, number: int) -> dict[str, float]:
        """Seconds of put, get, prefetch and write of one prefix under names of its own."""
        key = Key(salt=number.to_bytes(8, "little"))
        names = self.host.planner.names(self.tokens, key)[: self.pages]
        wanted = self.tier.objects.wanted(self.pages, WINDOW_PAGES)
        ids = [self.tier.objects.object(names, page, part) for page, part in wanted]
        reads: list[tuple[str, Callable[[], None]]] = [
            ("get", lambda: self._get(ids)),
            ("prefetch", lambda: self._prefetch(key)),
        ]
        spent = {"put": _timed(lambda: self._put(ids))}
        # Both orders in turn, so that neither is always the second.
        for name, read in reads[:: 1 if number % 2 else -1]:
            spent[name] = _timed(read)
        self._delete(ids)
        spent["write"] = _timed(lambda: self._write(key, len(ids)))
        self._delete(ids)
        self.key = key
        return spent

    def _put(self, ids: Sequence[ObjectId]) -> None:
        values = self.source.values(self.trailers)
        number = self.tier.objects.number
        items = [PutItem(one, value, i, False, number) for i, (one, value) in enumerate(zip(ids, values, strict=True))]
        for batch in self._batches(items):
            if any(status is not PutStatus.STORED for status in self.client.put(batch)):
                raise RuntimeError("a put of the bench was not stored")

    def _get(self, ids: Sequence[ObjectId]) -> None:
        into = self.target.values([bytearray(RECORD_BYTES) for _ in range(WINDOW_PAGES)])
        for batch in self._batches(list(zip(ids, into, strict=True))):
            results = self.client.get([one for one, _ in batch], [value for _, value in batch])
            if any(result.status is not GetStatus.HIT for result in results):
                raise RuntimeError("a get of the bench missed")

    def _prefetch(self, key: Key) -> None:
        handle = self.tier.prefetch(self.tokens, key)
        if not handle.wait(PATIENCE) or (handle.start, handle.end) != (0, self.pages * PAGE):
            raise RuntimeError(f"a prefetch of the bench brought {handle.end} of {self.pages * PAGE} tokens")

    def _write(self, key: Key, objects: int) -> None:
        before = self.tier.stats()["pages_out"]
        self.tier.writer.saved(self.tokens, key, None, self.pages * PAGE)
        if not self.tier.writer.flush(PATIENCE) or self.tier.stats()["pages_out"] - before != objects:
            raise RuntimeError(f"a write of the bench did not store {objects} objects")

    def _delete(self, ids: Sequence[ObjectId]) -> None:
        self.client.delete(ids, deadline=PATIENCE)

    def _batches(self, items: list[Any]) -> list[list[Any]]:
        """In calls of 32 MiB."""
        sizes = [self.tier.objects.bytes_of(FULL)] * self.pages + [self.tier.objects.bytes_of(SWA)] * WINDOW_PAGES
        out: list[list[Any]] = [[]]
        left = BATCH_BYTES
        for item, size in zip(items, sizes, strict=True):
            if left <= 0:
                out, left = [*out, []], BATCH_BYTES
            out[-1].append(item)
            left -= size
        return out

    def check(self) -> None:
        """Both ways delivered what was put."""
        loan = self.host.planner.lend_down(self.tokens, self.pages * PAGE, self.key)
        if loan is None:
            raise RuntimeError("the host tier does not have what was prefetched")
        groups: tuple[tuple[Group, int, list[tuple[int, int]]], ...] = (
            ("full", FULL, loan.full),
            ("swa", SWA, loan.swa),
        )
        for group, part, pages in groups:
            for i, (_, host_page) in enumerate(pages):
                want = self.source.page(group, i + 1)
                if self.tier.objects.page(part, host_page) != want or self.target.page(group, i + 1) != want:
                    raise RuntimeError("a node delivered other bytes than were stored")
        self.host.planner.returned(loan.id)


class Plain:
    """Host memory of one prefix without a tier: what the client puts from and gets into."""

    def __init__(self, layout: DeviceLayout, pages: int, noise: bool) -> None:
        self.region = HostRegion(layout, full_pages=pages, swa_pages=WINDOW_PAGES)
        self.sizes: dict[Group, int] = {"full": layout.full_page_bytes, "swa": layout.swa_page_bytes}
        self.counts: dict[Group, int] = {"full": pages, "swa": WINDOW_PAGES}
        rng = np.random.default_rng(1)
        for group, count in self.counts.items():
            for page in range(1, count + 1) if noise else ():
                view: Bytes = np.frombuffer(self.region.page(group, page, writable=True), np.uint8)
                view[:] = rng.integers(0, 256, view.size, np.uint8)

    def page(self, group: Group, page: int) -> memoryview:
        """A page's bytes, without what it is rounded up with."""
        return self.region.page(group, page, writable=True)[: self.sizes[group]]

    def values(self, trailers: Sequence[bytes | bytearray]) -> list[Any]:
        """Buffers of all objects: full pages, then SWA pages with their trailers."""
        full = [self.page("full", page) for page in range(1, self.counts["full"] + 1)]
        swa = [[self.page("swa", page), trailers[page - 1]] for page in range(1, self.counts["swa"] + 1)]
        return [*full, *swa]


def _timed(call: Callable[[], None]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
