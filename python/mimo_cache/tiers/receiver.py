"""Bytes from GCache into host pages, on a thread of the tier: one boundary at a time, published whole or not at all.

What does not come is told to the caller, page by page, and what has come is set aside for a shorter boundary.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mimo_cache._core import CopyJob, TierReceive
from mimo_cache.gcache.errors import GCacheError
from mimo_cache.gcache.types import GetResult, GetStatus, Source
from mimo_cache.tiers.errors import CopierClosed, CopyBusy, CopyCancelled, CopyFailed
from mimo_cache.tiers.objects import FULL, RECORD_BYTES, SWA, unpack_record
from mimo_cache.tiers.prefetch import Prefetch, slowest

if TYPE_CHECKING:
    from mimo_cache.tiers.gcache import GCacheTier

__all__ = ["Got", "Receiver"]

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


@dataclass
class Got:
    """What has come of a receive: bytes by (page, part) where they were set aside, records of SWA pages, and where each
    (page, part) came from."""

    aside: dict[tuple[int, int], bytes] = field(default_factory=dict)
    records: dict[int, list[int]] = field(default_factory=dict)
    sources: dict[tuple[int, int], Source] = field(default_factory=dict)

    def pages(self, plan: TierReceive) -> dict[int, Source]:
        """The slowest source of the objects of each page of a receive that is complete."""
        found: dict[int, Source] = {}
        wanted = [(page, FULL) for page, _ in plan.full] + [(page, SWA) for page, _ in plan.swa]
        for page, part in wanted:
            source = self.sources[page, part]
            found[page] = slowest(source, found.get(page, source))
        return found


class Receiver:
    """See the module's text. Made by `GCacheTier`."""

    def __init__(self, tier: GCacheTier) -> None:
        self.tier = tier

    def receive(
        self,
        handle: Prefetch,
        names: Sequence[bytes],
        at: int,
        first: int,
        masks: list[int],
        got: Got,
        until: float,
    ) -> bool | None:
        """Brings the host tier up to a boundary. True: it is there. False: `masks` know better now, and `got` has what
        has come. None: there is no sense in another try."""
        page = self.tier.host.cache.page_size
        objects = self.tier.objects
        # What there is at most to fetch; asked for before anything is evicted for it.
        room = objects.bytes_of(FULL) * (at // page - first) + objects.bytes_of(SWA) * self.tier.need
        if not self.tier.take(room):
            self.tier.miss(handle, "busy")
            return None
        with ExitStack() as ends:
            ends.callback(self.tier.give_back, room)
            planner = self.tier.host.planner
            plan = planner.receive(handle.tokens, at, names[at // page - 1], handle.key, handle.spans, handle.tenant)
            if plan is None:
                if planner.usable(handle.tokens, handle.key, handle.spans) < at:
                    self.tier.miss(handle, "no room")
                return None
            size = objects.bytes_of(FULL) * len(plan.full) + objects.bytes_of(SWA) * len(plan.swa)
            records: list[list[int]] | None = None
            missing: dict[tuple[int, int], str] = {}
            try:
                try:
                    job = self._copy_down(plan)
                except (CopyBusy, CopierClosed):
                    self.tier.miss(handle, "busy")
                    return None
                begin = time.monotonic()
                try:
                    missing = self.get(handle, plan, names, got, until)
                finally:
                    copied = job is None or _ended(job, cancel=bool(missing))
                if not copied and not missing:
                    self.tier.miss(handle, "busy")
                    return None
                if not missing:
                    self.tier.arrived(size, time.monotonic() - begin)
                    records = [got.records[logical] for logical, _ in plan.swa]
                    handle.brought(got.pages(plan))
                    return True
                for (logical, part), cause in missing.items():
                    self.tier.miss(handle, cause)
                    if logical >= first:
                        masks[logical - first] &= ~(1 << part)
                if self.tier.stops(handle) or min(missing)[0] < first:
                    return None
                self._set_aside(handle, plan, masks, first, missing, got)
                return False
            finally:
                planner.received(plan.id, records)

    def _copy_down(self, plan: TierReceive) -> CopyJob | None:
        """What the cache above has and the host tier lacks."""
        pairs = (plan.full_pairs, plan.swa_pairs)
        return self.tier.host.copier.save(*pairs) if len(pairs[0]) + len(pairs[1]) else None

    def get(
        self, handle: Prefetch, plan: TierReceive, names: Sequence[bytes], got: Got, until: float
    ) -> dict[tuple[int, int], str]:
        """Writes the pages of a receive. Returns those that did not come, by (page, part), with the cause."""
        missing: dict[tuple[int, int], str] = {}
        batch: list[tuple[int, int, list[Any]]] = []
        size = 0
        wanted = [(*one, FULL) for one in plan.full] + [(*one, SWA) for one in plan.swa]
        for i, (logical, host_page, part) in enumerate(wanted):
            view = self.tier.objects.page(part, host_page, writable=True)
            kept = got.aside.get((logical, part))
            if kept is not None:
                view[:] = kept
            else:
                batch.append((logical, part, [view] if part == FULL else [view, bytearray(RECORD_BYTES)]))
                size += self.tier.objects.bytes_of(part)
            if batch and (size >= BATCH_BYTES or i + 1 == len(wanted)):
                missing.update(self._get_batch(handle, batch, names, got, until))
                batch, size = [], 0
        return missing

    def _get_batch(
        self,
        handle: Prefetch,
        batch: Sequence[tuple[int, int, list[Any]]],
        names: Sequence[bytes],
        got: Got,
        until: float,
    ) -> dict[tuple[int, int], str]:
        left = until - time.monotonic()
        if left <= 0 or self.tier.stops(handle):
            cause = "late" if left <= 0 else "cancelled"
            return {(logical, part): cause for logical, part, _ in batch}
        ids = [self.tier.objects.object(names, logical, part) for logical, part, _ in batch]
        try:
            results = self.tier.client.get(ids, [into for _, _, into in batch], deadline=left)
        except GCacheError:
            return {(logical, part): "refused" for logical, part, _ in batch}
        missing: dict[tuple[int, int], str] = {}
        came = 0
        for (logical, part, into), result in zip(batch, results, strict=True):
            why = self._check(logical, part, into, result, got)
            if why is None:
                came += 1
                # A node of protocol version 1 does not say.
                got.sources[logical, part] = result.source or "memory"
                handle.bytes += result.length
                self.tier.count(bytes_in=result.length)
            else:
                missing[logical, part] = why
        self.tier.count(pages_in=came)
        return missing

    def _check(self, logical: int, part: int, into: list[Any], result: GetResult, got: Got) -> str | None:
        """The cause why a result is no page, or None."""
        if not result.hit:
            return CAUSES[result.status]
        if result.length != self.tier.objects.bytes_of(part) or result.layout != self.tier.objects.number:
            return "damaged"
        if part == SWA:
            record = unpack_record(into[1], self.tier.host.cache.n_mtp)
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
        got: Got,
    ) -> None:
        """Copies what has come, as far as the next boundary needs it: the pages themselves are given back."""
        at = self.tier.host.planner.reachable(handle.tokens, first, masks, handle.key, handle.spans)
        end = (at or 0) // self.tier.host.cache.page_size
        window = [one for one in plan.swa if one[0] >= end - self.tier.need]
        wanted = [(*one, FULL) for one in plan.full] + [(*one, SWA) for one in window]
        for logical, host_page, part in wanted:
            if logical < end and (logical, part) not in missing:
                got.aside[logical, part] = bytes(self.tier.objects.page(part, host_page))


def _ended(job: CopyJob, cancel: bool) -> bool:
    """Waits for a copy; nothing of it is written any more then."""
    if cancel:
        job.cancel()
    with suppress(CopyCancelled, CopyFailed):
        return job.wait()
    return False
