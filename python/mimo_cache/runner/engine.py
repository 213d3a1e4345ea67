"""The step loop: several sequences, chunked prefill, one cache.

A step opens waiting requests, gives running ones slots (one token for each that decodes, chunks of prompts while the
step's token budget lasts), fills the page tables, runs the cache's plan, the trunk, samples, writes the MTP rows that
became final, and commits. It holds no cache logic: what to copy, rebuild, write and keep is the cache's plan. A CPU
step has ended when its call returns, so it is retired at once.

With a host tier, what it has of a prompt comes up while the first step of the request runs, layer by layer, and what
was computed goes down after the step. Pages that do not come cost that request its part of the step, and are computed.
With GCache below it, what that has of a prompt comes into host memory from when the request is queued.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from mimo_cache import Key, OutOfPages, PrefixCache, SequenceStateError, StepOrderError
from mimo_cache.kernels.rows import MtpWork, Work
from mimo_cache.tiers import Fetch, GCacheTier, HostTier

from .errors import RequestError
from .lane import Lane, Output, Tally, checked
from .model import Model
from .sampling import Sampler, SamplingParams
from .sources import Sources

T = TypeVar("T")
PAUSE = 0.005
"""Seconds that a step without anything to compute waits for pages of its requests."""


class Engine:
    """Serves requests on one model and one cache. Not thread-safe."""

    def __init__(
        self,
        model: Model,
        cache: PrefixCache,
        *,
        max_running: int = 8,
        max_step_tokens: int = 512,
        tier: HostTier | None = None,
        remote: GCacheTier | None = None,
    ) -> None:
        self.model, self.cache, self.tier, self.remote = model, cache, tier, remote
        self.max_running, self.max_step_tokens = max_running, max_step_tokens
        self.page, self.heads = cache.page_size, model.config.mtp_heads if model.mtp else 0
        self.waiting: deque[Lane] = deque()
        self.running: list[Lane] = []
        self.fresh: dict[int, Lane] = {}
        self.tally = Tally()
        self.on_rows: Callable[[Lane, Work], None] | None = None
        """Called for each sequence of a step when its rows are written and not yet committed, for checks."""
        self.next_uid, self.next_step = 0, 1
        self.refused: int | None = None
        self._full = np.zeros((max_running, 64), np.int32)
        self._swa = np.zeros((max_running, max(1, cache.swa_width(max_step_tokens))), np.int32)
        self._base, self._lens = np.zeros(max_running, np.int32), np.zeros(max_running, np.int32)

    def core(self, call: Callable[..., T], *args: Any, **named: Any) -> T:
        """Calls the cache and counts the time."""
        begin = time.perf_counter()
        try:
            return call(*args, **named)
        finally:
            self.tally.core_seconds += time.perf_counter() - begin

    # --- requests -------------------------------------------------------------------------------------------------

    def add(self, tokens: npt.ArrayLike, params: SamplingParams, *, key: Key | None = None, store: bool = True) -> int:
        """Queues a prompt and returns its number. `store=False` publishes nothing.

        Raises `RequestError` for an empty prompt, ids outside the vocabulary, and more positions than the model has.
        """
        config = self.model.config
        ids = checked(tokens, params, config.vocab_size, config.max_positions)
        known = np.zeros(len(ids) + params.max_tokens, np.int64)
        known[: len(ids)] = ids
        request = self.core(self.cache.request, known[: len(ids)], key=key, store=store)
        self.next_uid += 1
        lane = Lane(self.next_uid, known, len(ids), params, Sampler(params), request, key=key, store=store)
        if self.remote is not None:
            lane.prefetch = self.core(self.remote.prefetch, known[: len(ids)], key)
        self.waiting.append(lane)
        return self.next_uid

    def leave_tiers(self) -> None:
        """Goes on without the tiers below the device; what is on its way from there is computed."""
        tier, self.tier, self.remote = self.tier, None, None
        if tier is not None:
            tier.cancel_fetches()
        self._stand_back()

    def abort(self, uid: int) -> bool:
        """Ends a request; False when it is not there any more."""
        for lane in list(self.waiting):
            if lane.uid == uid:
                self.waiting.remove(lane)
                if lane.prefetch is not None:
                    lane.prefetch.cancel()
                return True
        for lane in self.running:
            if lane.uid == uid:
                self._leave(lane, lane.seq.abort)
                return True
        return False

    def has(self, uid: int) -> bool:
        """The request is waiting or running."""
        return any(lane.uid == uid for lane in (*self.waiting, *self.running))

    @property
    def busy(self) -> bool:
        """Requests are waiting or running."""
        return bool(self.waiting or self.running)

    # --- one step -------------------------------------------------------------------------------------------------

    def step(self) -> list[Output]:
        """Runs one step and returns the tokens it made.

        Raises `OutOfPages` when the oldest waiting request, which `refused` then names, needs more than the pools ever
        have; it leaves the queue, and nothing else has happened. Whatever else is raised inside a step, an interrupt
        too, ends the requests that took part in it, gives back their pages, and goes on to the caller; all others are
        as they were.
        """
        begin, step = time.perf_counter(), self.next_step
        batch: list[Lane] = []
        self.refused = None
        try:
            refusal = self._admit()
            if refusal is None:
                self._batch(batch)
            outputs = self._execute(batch) if batch else []
        except BaseException:
            self._lose(step, batch)
            raise
        if refusal is not None:
            raise refusal
        if batch:
            self.tally.steps += 1
            self.tally.step_seconds += time.perf_counter() - begin
        return outputs

    def _lose(self, step: int, batch: list[Lane]) -> None:
        """Ends what a failed step leaves in doubt: sequences with rows or copies that may not be there."""
        if self.tier is not None:
            self.tier.cancel_fetches()
        for lane in [lane for lane in self.waiting if lane.request.opened]:
            self.waiting.remove(lane)
            if lane.seq is not None and lane not in self.running:
                lane.seq.abort()
        doubtful = {lane.uid for lane in (*batch, *self.fresh.values())}
        for lane in list(self.running):
            with suppress(SequenceStateError):  # it had ended
                if lane.uid not in doubtful and not lane.seq.reserved:
                    continue
                lane.seq.abort()
            self.running.remove(lane)
        self._stand_back()
        self.fresh.clear()
        with suppress(StepOrderError):  # it had not begun, or it was retired
            self.cache.retire(step)
            self.next_step = step + 1

    def _admit(self) -> OutOfPages | None:
        """Opens waiting requests in order, but for those that wait for GCache; the refusal of one that can never be
        served."""
        if self.tier is not None:  # what it gives back may be what the next one needs
            self.core(self.tier.poll)
        while len(self.running) < self.max_running:
            lane = self._next()
            if lane is None:
                return None
            if self.tier is not None and self.core(self.tier.awaits, lane.ids[: lane.prompt], lane.key):
                return None  # what it needs is on its way for another one
            lent = self._lent()
            try:
                lane.seq = self.core(lane.request.open, credit=lane.params.max_tokens)
            except OutOfPages as error:
                # Copies down give back what they read. With none, and nothing running, waiting would never end.
                lent = lent or self._lent()
                if error.needed <= error.most and lent and not self.running:
                    assert self.tier is not None
                    self.tier.drain()
                    time.sleep(PAUSE)
                    return None
                if error.needed > error.most or not self.running:
                    self.waiting.remove(lane)
                    self.refused = lane.uid
                    return error
                return None
            lane.known, lane.start, lane.report = lane.prompt, int(lane.seq.usable), lane.seq.report
            lane.sources = Sources.split(lane.prompt, lane.start)
            prefetch, lane.prefetch = lane.prefetch, None
            if self.remote is not None and prefetch is not None:
                self.tally.remote += self.remote.leave(prefetch)
            if self.tier is not None:
                lane.fetch = self.core(self.tier.fetch, lane.seq)
                if lane.fetch is None:
                    self.tier.watch.missed(lane.report.misses)
                elif prefetch is not None:
                    lane.fetch.brought = prefetch.split(lane.fetch.start, lane.fetch.end)
            self._stand(lane)
            # In this order an interrupt finds it among those that wait, opened, or among those in doubt.
            self.fresh[lane.seq.id] = lane
            self.running.append(lane)
            self.waiting.remove(lane)
        return None

    def _lent(self) -> bool:
        """Pages of the cache are lent to copies down, or were a moment ago."""
        saving = self.tier is not None and self.tier.saving
        return saving or (self.remote is not None and self.remote.receiving())

    def _next(self) -> Lane | None:
        """The oldest waiting request that may be opened. With nothing else to do, waits for one for a moment."""
        ready = next((lane for lane in self.waiting if lane.prefetch is None or lane.prefetch.ready()), None)
        if ready is None and self.waiting and not self.running:
            prefetch = self.waiting[0].prefetch
            assert prefetch is not None
            prefetch.wait(PAUSE)
        return ready

    def _stand(self, lane: Lane) -> None:
        """A lane stands where its sequence does, with or without what is on its way."""
        lane.committed, lane.rows = int(lane.seq.committed), 0
        if lane.fetch is not None and lane.committed != lane.fetch.end:
            lane.fetch.missed(lane.report.misses)
            lane.fetch = None
        lane.mtp_done = [lane.final(k) for k in range(self.heads)]

    def _stand_back(self) -> None:
        for lane in [lane for lane in self.running if lane.fetch is not None]:
            self._stand(lane)

    def _batch(self, batch: list[Lane]) -> None:
        """Adds the lanes that have slots for this step, decoding ones first."""
        budget = self.max_step_tokens
        ready = sorted(self.running, key=lambda lane: lane.committed < lane.known - 1)
        for lane in ready:
            rows = min(lane.known - lane.committed, budget)
            if rows > 1:
                rows = min(rows, self.core(lane.seq.reservable))
            if rows > 0:
                try:
                    self.core(lane.seq.reserve, rows)
                except OutOfPages:
                    if lane.fetch is None:
                        raise
                    continue  # it holds the window before its fetch as well, until that has ended
                lane.rows = rows
                budget -= rows
                batch.append(lane)
        loading = [lane for lane in self.running if lane.fetch is not None]
        if loading and not batch:
            for lane in loading:
                self._arrive(lane, loading)
            self._batch(batch)
        elif self.running and not batch:
            raise RequestError("no running sequence can get a slot; the pools' scratch pages are too few for a chunk")

    def _execute(self, batch: list[Lane]) -> list[Output]:
        step, works = self.next_step, self._fill(batch)
        fresh = [lane for lane in batch if lane.committed < lane.prompt]
        outputs = self._run(batch, works)
        self.core(self.cache.retire, step)
        if self.tier is not None:
            ended = {output.uid for output in outputs if output.finish}
            computed = {lane.uid for lane in fresh if lane.committed >= lane.prompt}
            for lane in batch:
                if lane.uid in ended | computed:
                    self._go_down(lane)
        return outputs

    def _go_down(self, lane: Lane) -> None:
        """The host tier is told of a prompt that was computed, or of its end."""
        assert self.tier is not None
        known = lane.ids[: lane.known]
        if lane.store:
            self.core(self.tier.save, known, lane.key, start=lane.start, again=lane.told)
        elif not lane.told:
            self.core(self.tier.used, known, lane.key)
        lane.told = True

    def _run(self, batch: list[Lane], works: list[Work]) -> list[Output]:
        """Trunk, sampling, MTP rows, commit; then ends what has ended."""
        with self.model.kernels.guard():
            fetches = [lane.fetch for lane in batch if lane.fetch is not None]
            logits = self.model.forward(works, self._wait_for(fetches, batch) if fetches else None)
            if fetches:
                batch, works, logits = self._arrived(batch, works, logits)
            now = time.perf_counter()
            outputs, computed, sampled = [], [], []
            mtp: list[MtpWork] = []
            for lane, work, rows in zip(batch, works, logits, strict=True):
                tokens: list[int] = []
                if work.logits:
                    tokens.append(lane.sampler(rows[-1]))
                    lane.ids[lane.known] = tokens[0]
                    outputs.append(self._output(lane, tokens[0], rows[-1], now))
                computed.append(lane.rows)
                sampled.append(tokens)
                lane.committed += lane.rows
                lane.known += len(tokens)
                if self.heads:
                    done, lane.mtp_done = lane.mtp_done, [lane.final(k) for k in range(self.heads)]
                    base, pages = work.swa_base, work.swa_pages
                    if min(done) < base * self.page:  # a window shorter than what MTP rows wait for
                        base, held = self.core(lane.seq.swa_table)
                        pages = held.astype(np.int64)
                    mtp.append(MtpWork(done, lane.mtp_done, 0, lane.ids[: lane.known], base, pages))
            self.model.write_mtp(mtp)
        if self.on_rows is not None:
            for lane, work in zip(batch, works, strict=True):
                self.on_rows(lane, work)
        self.core(self.cache.commit_many, [lane.seq for lane in batch], computed, sampled)
        self.tally.computed += sum(computed)
        ended = {output.uid for output in outputs if output.finish}
        for lane in batch:
            if lane.uid in ended:
                self._leave(lane, lane.seq.finish)
        return outputs

    def _fill(self, batch: list[Lane]) -> list[Work]:
        """Page tables of step `next_step`, and its plan carried out."""
        count = len(batch)
        longest = -(-max(lane.committed + lane.rows for lane in batch) // self.page)
        if longest > self._full.shape[1]:
            self._full = np.zeros((self.max_running, 1 << (longest - 1).bit_length()), np.int32)
        has_full, has_swa = self.cache.full_pages > 0, self.cache.swa_pages > 0
        plan = self.core(
            self.cache.fill,
            self.next_step,
            [lane.seq for lane in batch],
            self._full[:count] if has_full else None,
            self._swa[:count] if has_swa else None,
            self._base[:count] if has_swa else None,
            self._lens[:count],
        )
        self.next_step += 1
        if plan:
            self._carry_out(plan)
        self.fresh.clear()
        works = []
        for i, lane in enumerate(batch):
            lo, end = lane.committed, lane.committed + lane.rows
            pages = -(-end // self.page)
            base = int(self._base[i]) if has_swa else 0
            works.append(
                Work(
                    lo,
                    lane.ids[lo:end],
                    self._full[i, : pages if has_full else 0].astype(np.int64),
                    base,
                    self._swa[i, : pages - base if has_swa else 0].astype(np.int64),
                    lane.seq.full_write_from,
                    lane.seq.swa_write_from,
                    logits=int(end == lane.known),
                )
            )
        return works

    def _carry_out(self, plan: Any) -> None:
        """Page copies in order, then rebuilds."""
        self.model.pools.copy(self.model.kernels, plan.copies)
        self._rebuild(plan.rebuilds, self.fresh)
        self.tally.copies += len(plan.copies)

    def _wait_for(self, fetches: list[Fetch], batch: list[Lane]) -> Callable[[int], None]:
        """Waits for a layer of all of them. One that fails leaves garbage that only its own request reads."""

        def wait(layer: int) -> None:
            begin = time.perf_counter()
            for fetch in fetches:
                fetch.wait_layer(layer)
            self._waited(time.perf_counter() - begin, batch)

        return wait

    def _waited(self, seconds: float, batch: list[Lane]) -> None:
        """A step waited for pages, and so did all requests in it."""
        self.tally.wait_seconds += seconds
        for lane in batch:
            lane.wait += seconds

    def _arrived(
        self, batch: list[Lane], works: list[Work], logits: list[Any]
    ) -> tuple[list[Lane], list[Work], list[Any]]:
        """Ends the fetches of a step; those whose pages did not come leave it, to compute them in the next ones."""
        kept = [i for i, lane in enumerate(batch) if lane.fetch is None or self._arrive(lane, batch)]
        return [batch[i] for i in kept], [works[i] for i in kept], [logits[i] for i in kept]

    def _arrive(self, lane: Lane, batch: list[Lane]) -> bool:
        """Ends a lane's fetch, for which a batch waits. False: its pages did not come; it stands where it stood."""
        fetch, lane.fetch = lane.fetch, None
        assert self.tier is not None
        assert fetch is not None
        begin = time.perf_counter()
        there = fetch.wait()
        self._waited(time.perf_counter() - begin, batch)
        if there:
            self._rebuild(fetch.rebuilds, {lane.seq.id: lane})
        arrived = self.core(self.tier.finish, fetch)
        if arrived:
            self.tally.fetched += fetch.end - fetch.start
            lane.report = lane.seq.report
            lane.sources = Sources.split(lane.prompt, lane.start, fetch.end - fetch.start, fetch.brought)
        else:
            self.tally.lost += fetch.end - fetch.start
            self._stand(lane)
        self.tier.watch.missed(lane.report.misses)
        return arrived

    def _rebuild(self, rebuilds: Any, lanes: dict[int, Lane]) -> None:
        """MTP rows from the hidden states stored beside them."""
        works = []
        for seq, page, start, end in rebuilds:
            lane = lanes[seq]
            ends = [max(start, min(end, lane.known - k - 1)) for k in range(self.heads)]
            pages = np.array([page], np.int64)
            works.append(MtpWork([start] * self.heads, ends, 0, lane.ids[: lane.known], start // self.page, pages))
        if works:
            with self.model.kernels.guard():
                self.model.write_mtp(works)
        self.tally.rebuilds += len(works)

    def _output(self, lane: Lane, token: int, logits: Any, now: float) -> Output:
        finish = lane.finish_of(token, self.model.config.eos_token_ids)
        kept = logits.clone() if lane.params.keep_logits else None
        return Output(lane.uid, token, kept, finish, lane.report, lane.sources, lane.wait, now)

    def _leave(self, lane: Lane, call: Callable[[], None]) -> None:
        # In this order an interrupt in between drops the last reference to the sequence, which aborts it.
        self.running.remove(lane)
        self.fresh.pop(lane.seq.id, None)
        try:
            self.core(call)
        finally:
            if lane.fetch is not None and self.tier is not None:
                self.core(self.tier.finish, lane.fetch, ok=False)
                lane.fetch = None
