"""`HostTier`: a cache with host memory below it, as an engine uses it.

The planner decides which pages move, under the cache's lock; the copier moves them on threads of its own. This file
puts the two together: a move that the planner asks for is submitted, and told to be over when its job is, whatever
became of it. A move that fails is a miss, never an exception.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from mimo_cache._core import (
    CopyJob,
    DeviceLayout,
    HostRegion,
    Key,
    KvCopier,
    PrefixCache,
    Sequence,
    StepOrderError,
    TierFetch,
    TierPlanner,
    TierSave,
    TierStats,
)
from mimo_cache.gcache.types import Source
from mimo_cache.tiers.errors import CopierClosed, CopyBusy, CopyCancelled, CopyFailed
from mimo_cache.tiers.trace import Span
from mimo_cache.tiers.watch import Watch

__all__ = ["Fetch", "HostTier"]

Tokens: TypeAlias = list[int] | npt.NDArray[np.integer[Any]]
MULTIPLE = 4
"""Host pages for each device page, where the caller does not say (production advice: 3 to 5)."""


AT_ONCE = 32
"""Prompts that are written back at once; the copier takes some more."""


class Fetch:
    """Pages on their way up for one sequence, layer by layer.

    start, end: tokens the sequence had, and has with it. rebuilds: as `Plan.rebuilds`, to run when all layers are
    there, before `HostTier.finish`. brought: how many of the tokens a tier below had brought into host memory for this
    request (`Prefetch.split`), to be set by whoever knows.
    """

    def __init__(self, planned: TierFetch, job: CopyJob, watch: Watch) -> None:
        self.id, self.start, self.end = planned.id, planned.start, planned.end
        self.rebuilds = planned.rebuilds
        self.job = job
        self.brought: dict[Source, int] = {}
        self._watch, self._begun = watch, time.perf_counter()
        self._span = watch.span("fetch", tokens=self.end - self.start, bytes=job.bytes)

    def wait_layer(self, layer: int) -> bool:
        """Waits until the pages of the layers up to `layer` are there. False: they will not come."""
        begin = time.perf_counter()
        try:
            return self.job.wait_layer(layer)
        except (CopyCancelled, CopyFailed):
            return False
        finally:
            waited = time.perf_counter() - begin
            self._watch.layers.add(waited)
            self._watch.waited(waited)

    def wait(self) -> bool:
        """Waits until the job is over. False: its bytes did not come; nothing of it is written any more."""
        begin = time.perf_counter()
        try:
            return self.job.wait()
        except (CopyCancelled, CopyFailed):
            return False
        finally:
            self._watch.waited(time.perf_counter() - begin)

    def _over(self, arrived: bool) -> None:
        """Counts it: the planner was told."""
        times, seconds = self.job.times(), time.perf_counter() - self._begun
        ready = [nanoseconds for _, _, nanoseconds, _ in times if nanoseconds is not None]
        self._watch.moved("up", self.job.copied_bytes)
        if arrived:
            self._watch.fetched(self.end - self.start, self.brought, times)
            seconds = max(ready, default=0) / 1e9 if len(ready) == len(times) else seconds
        self._watch.fetches.add(seconds)
        outcome = self.job.outcome
        self._span.end(cause=None if arrived else "given up" if outcome == "done" else outcome)

    def missed(self, misses: Mapping[str, int]) -> None:
        """Its request computes these tokens after all (`Report.misses`)."""
        self._watch.missed(misses)

    def cancel(self) -> None:
        """Asks it to end without its bytes."""
        self.job.cancel()


class HostTier:
    """Host memory below a cache.

    - `cache`: a `PrefixCache` without a host tier. `layout`: where its pages lie on the device (`device_layout`).
    - `full_pages`, `swa_pages`: pages of host memory, by default four for each of the device's.
    - `write`: when a prefix goes down: "through", "back", when newer ones push it out of the cache, or "hit<n>", when
      it was matched n times.
    - `threads`: copy threads. `max_saving`: pages on their way down at once. `hugepages`: as for `HostRegion`.
    - `tracer`: gets spans of what moves (`mimo_cache.tiers.trace`), by default nobody. `watch` has times and counters.

    Raises `InvalidArgument`, and `HostMemoryError` when the machine does not have the memory. Not thread-safe: calls
    come from the engine's thread.
    """

    def __init__(
        self,
        cache: PrefixCache,
        layout: DeviceLayout,
        *,
        full_pages: int | None = None,
        swa_pages: int | None = None,
        write: str = "through",
        threads: int = 1,
        max_saving: int = 4096,
        hugepages: Literal["auto", "off"] = "auto",
        tracer: Any = None,
    ) -> None:
        self.watch = Watch(tracer)
        full = MULTIPLE * cache.full_pages if full_pages is None else full_pages
        swa = MULTIPLE * cache.swa_pages if swa_pages is None else swa_pages
        self.cache, self.layout, self.write = cache, layout, write
        self.region = HostRegion(layout, full_pages=full, swa_pages=swa, hugepages=hugepages)
        self.copier = KvCopier(layout, self.region, threads=threads)
        self.planner = TierPlanner(
            cache, full_pages=full, swa_pages=swa, write=write, max_saving=max_saving, layout=layout.digest
        )
        self.on_saved: list[Callable[[Tokens, Key | None, Any, int], None]] = []
        """Called with (tokens, key, spans, boundary) when a boundary has arrived in host memory."""
        self.on_used: list[Callable[[Tokens, Key | None, Any], None]] = []
        """Called with (tokens, key, spans) at every `save`."""
        self._fetches: dict[int, Fetch] = {}
        self._saves: dict[int, CopyJob] = {}
        self._closing = False
        self._saving: dict[int, tuple[Tokens, Key | None, Any, int]] = {}
        self._begun: dict[int, tuple[float, Span]] = {}

    # --- up -------------------------------------------------------------------------------------------------------

    def awaits(self, tokens: Tokens, key: Key | None = None, spans: Any = None) -> bool:
        """A fetch on its way brings up more of this prompt than the cache has now: opened after it, the prompt needs no
        fetch of its own."""
        return bool(self._fetches) and self.planner.awaits(tokens, key, spans) is not None

    def fetch(self, seq: Sequence) -> Fetch | None:
        """Begins to bring up what the host tier has for a sequence that was just opened.

        The sequence stands at `Fetch.end` at once: reserve and fill as ever, wait for each layer before its attention,
        and call `finish` before `commit`. `None`: there is nothing more, or no room for it.
        """
        planned = self.planner.fetch(seq)
        self.watch.opened(int(seq.usable))
        if planned is None:
            return None
        try:
            job = self.copier.load(planned.full, planned.swa)
        except (CopyBusy, CopierClosed):
            self.planner.fetched(planned.id, False)
            return None
        except BaseException:
            self._rest()  # an interrupt may come after the job was queued
            self.planner.fetched(planned.id, False)
            raise
        fetch = self._fetches[planned.id] = Fetch(planned, job, self.watch)
        return fetch

    def finish(self, fetch: Fetch, ok: bool = True) -> bool:
        """Ends a fetch: its rebuilds were run, or (`ok` false) its sequence is to stand where it stood before. Waits
        until nothing of it is written any more. True when the sequence goes on from its pages."""
        if not ok:
            fetch.cancel()
        arrived = self.planner.fetched(fetch.id, fetch.wait() and ok)
        self._fetches.pop(fetch.id, None)
        fetch._over(arrived)
        return arrived

    def cancel_fetches(self) -> None:
        """Ends every fetch that was not finished; their sequences stand where they stood before."""
        for fetch in list(self._fetches.values()):
            fetch.cancel()
        for fetch in list(self._fetches.values()):
            with suppress(StepOrderError):  # it was told already, when an interrupt came
                self.finish(fetch, ok=False)
            self._fetches.pop(fetch.id, None)
        # What the planner began and an interrupt kept from being noted here.
        fetches, saves, _ = self.planner.moving()
        lost = [number for number in saves if number not in self._saves]
        if fetches or lost:
            self._rest()
        for number in fetches:
            self.planner.fetched(number, False)
        for number in lost:
            self.planner.saved(number, False)

    # --- down -----------------------------------------------------------------------------------------------------

    def save(
        self,
        tokens: Tokens,
        key: Key | None = None,
        spans: Any = None,
        tenant: int = 0,
        start: int = 0,
        again: bool = False,
    ) -> int:
        """Begins to write down what the cache has of a prefix and the write policy wants, one boundary after the other.
        To be called when a prompt is computed and when its sequence ends, after the steps that wrote its pages are
        retired. `start`: the tokens it was opened with (`Sequence.usable`); boundaries before are not offered again.
        `again`: this request was told before; else it counts as a use of what the host tier has of it. Returns the
        pages that go down first."""
        save = self.planner.save(tokens, key, spans, tenant, start, again)
        pages = self._submit(save, tokens, key, spans)
        for used in tuple(self.on_used):
            _tell(used, tokens, key, spans)
        return pages

    def used(self, tokens: Tokens, key: Key | None = None, spans: Any = None) -> None:
        """A request that is not saved was served: what the host tier has of it counts as used."""
        self.planner.used(tokens, key, spans)

    def _submit(self, save: TierSave | None, tokens: Tokens, key: Key | None, spans: Any) -> int:
        if save is None:
            return 0
        try:
            begun = time.perf_counter()
            job = self._saves[save.id] = self.copier.save(save.full, save.swa)
            self._begun[save.id] = begun, self.watch.span("save", tokens=save.boundary, bytes=job.bytes)
            self._saving[save.id] = (tokens, key, spans, save.boundary)
        except (CopyBusy, CopierClosed):
            self.planner.saved(save.id, False)
            return 0
        except BaseException:
            self._rest()  # an interrupt may come after the job was queued
            if save.id not in self._saves:
                with suppress(StepOrderError):
                    self.planner.saved(save.id, False)
            raise
        return len(save.full) + len(save.swa)

    def poll(self) -> None:
        """Tells the planner of copies down that are over, and begins with what is pushed out of the cache (`write`
        "back"); never waits. To be called once a step."""
        for number, job in list(self._saves.items()):
            if job.done():
                self._end(number, job)
        while self.write == "back" and len(self._saves) < AT_ONCE and (back := self.planner.write_back()) is not None:
            self._submit(*back)

    @property
    def saving(self) -> bool:
        """Copies down are on their way, or `poll` has not told of their end."""
        return bool(self._saves)

    def drain(self) -> None:
        """Waits for all copies down, and for those that follow them."""
        while self._saves:
            for number, job in list(self._saves.items()):
                self._end(number, job)

    def _end(self, number: int, job: CopyJob) -> None:
        try:
            ok = job.wait()
        except (CopyCancelled, CopyFailed):
            ok = False
        following = None
        with suppress(StepOrderError):  # it was told already, when an interrupt came
            following = self.planner.saved(number, ok)
        del self._saves[number]
        begun = self._begun.pop(number, None)
        if begun is not None:
            self.watch.saves.add(time.perf_counter() - begun[0])
            self.watch.moved("down", job.copied_bytes)
            begun[1].end(cause=None if ok else job.outcome)
        saving = self._saving.pop(number, None)
        if saving is not None and ok:
            for saved in tuple(self.on_saved):
                _tell(saved, *saving)
        if saving is not None and not self._closing:
            self._submit(following, *saving[:3])
        elif following is not None:
            self.planner.saved(following.id, False)

    def _rest(self) -> None:
        """Waits until no copy runs."""
        with suppress(CopierClosed):
            while self.copier.in_flight()[0]:
                time.sleep(0.001)

    # --- the whole ------------------------------------------------------------------------------------------------

    @property
    def nbytes(self) -> int:
        """Bytes of host memory."""
        return self.region.bytes

    def stats(self) -> TierStats:
        """Counters of the moves."""
        return self.planner.stats()

    def check_integrity(self) -> None:
        """Raises `IntegrityError` when the structures contradict each other. For tests."""
        self.planner.check_integrity()

    def close(self) -> None:
        """Ends all moves and gives the copy threads back; what the host tier holds is not found any more."""
        self._closing = True
        self.cancel_fetches()
        for job in self._saves.values():
            job.cancel()
        self.drain()
        self.copier.close()


def _tell(listener: Callable[..., None], *what: Any) -> None:
    """A listener's fault is not the engine's: it is logged, and serving goes on."""
    try:
        listener(*what)
    except Exception:
        logging.getLogger("mimo_cache.tiers").exception("a listener of the host tier failed")
