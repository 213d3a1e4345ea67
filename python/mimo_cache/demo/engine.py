"""A serving engine around the cache, with a pretended model.

Every step it admits waiting requests, gives each running sequence slots (a prefill chunk, or one token and three
drafts), fills the page tables, lets the device check and write the pages, samples from the request's script, and
commits what was accepted. On the way clients hang up, samples fork, running requests are preempted and resumed, and
steps retire late. The calls into the cache are the ones a GPU engine makes, in the same order.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from .. import Key, OutOfPages, PrefixCache
from .canary import Pages
from .device import Buffers, Device, RunError, Verdict
from .lane import Lane
from .workload import Session, Turn

T = TypeVar("T")

DRAFTS = 3
ACCEPT = 0.72
"""Chance that the next draft is accepted."""
IN_FLIGHT = 2
"""Steps that have been filled and not retired."""


@dataclass(slots=True, frozen=True)
class Limits:
    """Sizes of the engine and of its two pools, in sequences, tokens and pages."""

    running: int = 14
    live_sessions: int = 30
    chunk: int = 2048
    full_pages: int = 4500
    swa_pages: int = 600
    scratch_pages: int = 120
    longest: int = 32_768


@dataclass(slots=True, frozen=True)
class Shape:
    """Of the model: tokens a page, W, MTP heads."""

    page: int
    window: int
    n_mtp: int


@dataclass(slots=True)
class Waiting:
    """A request that has arrived, with the cursor it keeps in the tree."""

    session: Session
    turn: Turn
    request: Any
    since: int


@dataclass(slots=True)
class Tally:
    """What happened, in numbers. samples: (step, prompt tokens, hit tokens, full-KV tokens, stats) now and then."""

    requests: int = 0
    steps: int = 0
    prompt: int = 0
    hits: int = 0
    full_kv: int = 0
    misses: Counter[str] = field(default_factory=Counter)
    computed: int = 0
    decoded: int = 0
    rejected: int = 0
    events: Counter[str] = field(default_factory=Counter)
    resumed: int = 0
    resumed_hits: int = 0
    copies: int = 0
    rebuilds: int = 0
    calls: int = 0
    core_seconds: float = 0.0
    samples: list[tuple[int, int, int, int, Any]] = field(default_factory=list)
    served: list[Turn] = field(default_factory=list)


class Engine:
    """Serves sessions until all turns are done. `run` yields progress; then `tally`, `verdict` and the cache tell."""

    def __init__(self, cache: PrefixCache, shape: Shape, limits: Limits, sessions: list[Session], seed: int) -> None:
        self.cache, self.limits, self.n_mtp = cache, limits, shape.n_mtp
        self.rng = np.random.default_rng(seed)
        self.verdict, self.tally = Verdict(), Tally()
        memory_rng = np.random.default_rng(seed + 1)
        pages = Pages(limits.full_pages, limits.swa_pages, shape.page, shape.n_mtp, memory_rng)
        self.device = Device(pages, shape.window, self.verdict, lambda page: cache.mtp_record(page) is not None)
        self.turns = sum(len(s.turns) for s in sessions)
        self.sessions = sessions[::-1]
        self.arriving: list[tuple[int, int, Session, int]] = []
        self.live = 0
        self.waiting: list[Waiting] = []
        self.lanes: list[Lane] = []
        self.fresh: dict[int, Lane] = {}
        self.parked: list[Lane] = []
        self.now, self.next_step, self.uid = 0, 1, 0
        self.full_width = -(-limits.longest // shape.page)
        self.swa_width = -(-(shape.window + limits.chunk) // shape.page) + 2
        self.on_step: Callable[[Engine], None] | None = None

    def core(self, call: Callable[..., T], *args: Any, **named: Any) -> T:
        """Calls the cache and counts call and time."""
        begin = time.perf_counter()
        try:
            return call(*args, **named)
        finally:
            self.tally.core_seconds += time.perf_counter() - begin
            self.tally.calls += 1

    # --- one step -------------------------------------------------------------------------------------------------

    def step(self) -> bool:
        """Runs one step; False when all work is done and every step has retired."""
        self.arrive()
        self.admit()
        batch = self.batch()
        if batch:
            self.execute(batch)
        elif self.device.running:
            self.retire()
        elif self.arriving or self.sessions:
            self.now = max(self.now, min((a[0] for a in self.arriving), default=self.now))
        elif self.waiting or self.parked:
            raise RunError(
                f"{len(self.waiting) + len(self.parked)} requests can never be served; the pools are too small"
            )
        else:
            return False
        self.now += 1
        return True

    def arrive(self) -> None:
        """Starts sessions and moves turns whose time has come to the queue."""
        while self.sessions and self.live < self.limits.live_sessions:
            self.live += 1
            self.schedule(self.sessions.pop(), 0, int(self.rng.integers(0, 20)))
        due = sorted((a for a in self.arriving if a[0] <= self.now), key=lambda a: a[:2])
        self.arriving = [a for a in self.arriving if a[0] > self.now]
        for _, _, session, index in due:
            turn = session.turns[index]
            request = self.core(
                self.cache.request,
                turn.prompt,
                key=Key(salt=turn.salt, adapter=turn.adapter),
                spans=turn.spans,
                tenant=turn.tenant,
                store=turn.store,
            )
            self.waiting.append(Waiting(session, turn, request, self.now))

    def schedule(self, session: Session, index: int, delay: int) -> None:
        """The session's turn `index` arrives after `delay` steps; a session without turns left makes room."""
        if index < len(session.turns):
            self.uid += 1
            self.arriving.append((self.now + delay, self.uid, session, index))
        else:
            self.live -= 1

    def admit(self) -> None:
        """Resumes preempted requests, then opens waiting ones: of the four oldest the one best cached."""
        while self.parked and len(self.lanes) < self.limits.running:
            lane = self.parked[0]
            if self.lanes and self.now - lane.since <= 8:
                break
            try:
                self.core(lane.seq.resume, credit=lane.left + 1 + DRAFTS)
            except OutOfPages:
                break
            self.parked.pop(0)
            self.enter(lane, lane.seq)
            self.tally.resumed += int(lane.known)
            self.tally.resumed_hits += int(lane.committed)
        while self.waiting and len(self.lanes) < self.limits.running:
            near = self.waiting[:4]
            best = max(near, key=lambda w: self.core(w.request.peek).usable / len(w.turn.prompt))
            try:
                seq = self.core(best.request.open, credit=len(best.turn.output) + 1 + DRAFTS)
            except OutOfPages:
                self.tally.events["open refused"] += 1
                break
            self.waiting.remove(best)
            self.opened(best, seq)

    def opened(self, waiting: Waiting, seq: Any) -> None:
        """Counts where the prompt came from and puts the request in service."""
        self.uid += 1
        lane = Lane.of(self.uid, waiting.session, waiting.turn, self.n_mtp)
        total = len(lane.tokens)
        if self.rng.random() < 0.04:  # this client will hang up, during prefill or decode
            lane.abort_at = int(self.rng.integers(1, total))
        self.enter(lane, seq)
        self.account(lane, seq.report)

    def account(self, lane: Lane, report: Any) -> None:
        """Adds one report; its numbers must add up."""
        tally, misses = self.tally, dict(report.misses)
        prompt, usable, full = len(lane.turn.prompt), int(report.usable), int(report.full_kv_match)
        if prompt != usable + sum(misses.values()) or not usable <= min(full, prompt - 1) or usable != lane.committed:
            self.verdict.fail(f"request {lane.uid}: {prompt} prompt tokens, but {usable} hits and misses {misses}")
        tally.requests += 1
        tally.prompt += prompt
        tally.hits += usable
        tally.full_kv += full
        tally.misses.update(misses)
        tally.served.append(lane.turn)

    def enter(self, lane: Lane, seq: Any) -> None:
        """Puts a sequence among the running ones."""
        lane.enter(seq)
        lane.since = self.now
        self.lanes.append(lane)
        self.fresh[seq.id] = lane

    def batch(self) -> list[Lane]:
        """Gives slots: one token and drafts to every decoding sequence, chunks to prefills while the budget lasts."""
        budget = self.limits.chunk
        chosen = []
        for lane in self.lanes:
            if lane.decoding:
                want = 1 + DRAFTS - lane.reserved
            else:
                want = min(lane.known - lane.committed - lane.reserved, budget, self.core(lane.seq.reservable))
            try:
                if want > 0:
                    self.core(lane.seq.reserve, want)
                    lane.reserved += want
            except OutOfPages:
                self.tally.events["reserve refused"] += 1
                continue
            if not lane.decoding:
                budget -= max(0, want)
            if lane.reserved > 0:
                chosen.append(lane)
        return chosen

    def execute(self, batch: list[Lane]) -> None:
        """Fill, copies, check, kernels, sampling, commit; then what the scheduler decides about each sequence."""
        number = self.next_step
        out = Buffers.of(len(batch), self.full_width, self.swa_width)
        seqs = [lane.seq for lane in batch]
        plan = self.core(self.cache.fill, number, seqs, out.full, out.swa, out.base, out.lens)
        self.next_step += 1
        self.carry_out(plan)
        self.device.start(number, batch, out)
        computed, sampled = [], []
        for lane in batch:
            rows, tokens = self.sample(lane)
            self.device.write(lane, rows, lane.known + len(tokens))
            computed.append(rows)
            sampled.append(tokens)
        self.core(self.cache.commit_many, seqs, computed, sampled)
        for lane, rows, tokens in zip(batch, computed, sampled, strict=True):
            lane.committed += rows
            lane.reserved -= rows
            lane.known += len(tokens)
            lane.mtp_done = [lane.final(k) for k in range(self.n_mtp)]
        self.tally.steps += 1
        for lane in batch:
            self.decide(lane)
        self.preempt()
        if self.on_step is not None:
            self.on_step(self)
        while len(self.device.running) > IN_FLIGHT:
            self.retire()

    def carry_out(self, plan: Any) -> None:
        """Runs the plan of a step: page copies in order, then MTP rows from the hidden states stored beside them."""
        for group, src, dst in plan.copies:
            self.device.pages.copy(group, src, dst)
        for seq, page, start, end in plan.rebuilds:
            lane = self.fresh[seq]
            self.device.pages.rebuild(page, start, end, lane.truth, lane.known)
        self.tally.copies += len(plan.copies)
        self.tally.rebuilds += len(plan.rebuilds)
        self.fresh.clear()

    def sample(self, lane: Lane) -> tuple[int, Any]:
        """Rows that are right and tokens that became known: a chunk and perhaps the first token, or accepted drafts."""
        if not lane.decoding:
            tokens = lane.tokens[lane.known : lane.known + (lane.committed + lane.reserved == lane.known)]
            self.tally.computed += lane.reserved
            return lane.reserved, tokens
        accepted = 0
        while accepted < DRAFTS and self.rng.random() < ACCEPT:
            accepted += 1
        gained = min(accepted + 1, lane.left)
        self.tally.decoded += gained
        self.tally.rejected += DRAFTS + 1 - gained
        return gained, lane.tokens[lane.known : lane.known + gained]

    # --- what the scheduler decides -------------------------------------------------------------------------------

    def decide(self, lane: Lane) -> None:
        """Ends, aborts or forks a sequence after its step."""
        if lane.abort_at is not None and lane.committed >= lane.abort_at:
            self.leave(lane, lane.seq.abort, "aborted")
        elif lane.left == 0:
            self.leave(lane, lane.seq.finish, "finished")
        elif lane.turn.forks and not lane.forked and lane.decoding and len(self.lanes) < self.limits.running:
            self.fork(lane)

    def leave(self, lane: Lane, call: Callable[[], None], what: str) -> None:
        """Takes a sequence out of service; the session's next turn comes after its pause."""
        self.core(call)
        self.device.ended(lane)
        self.lanes.remove(lane)
        self.tally.events[what] += 1
        if not lane.child:
            index = next(i for i, t in enumerate(lane.session.turns) if t is lane.turn) + 1
            delay = lane.session.turns[index].delay if index < len(lane.session.turns) else 0
            self.schedule(lane.session, index, delay)

    def fork(self, lane: Lane) -> None:
        """Draws more samples of the same prompt from where the sequence stands."""
        count = min(lane.turn.forks, self.limits.running - len(self.lanes))
        lane.forked = True
        try:
            seqs = self.core(lane.seq.fork, count, credit=lane.left + 1 + DRAFTS)
        except OutOfPages:
            self.tally.events["fork refused"] += 1
            return
        for seq in seqs:
            self.uid += 1
            self.enter(lane.variant(self.uid, self.rng), seq)
            self.tally.events["forked"] += 1

    def preempt(self) -> None:
        """Parks the newest decoding sequence when the queue's head has waited long, and one at random now and then."""
        waited = self.now - self.waiting[0].since if self.waiting else 0
        if not (waited > 60 and self.now % 16 == 0) and self.rng.random() > 0.004:
            return
        ready = [lane for lane in self.lanes if lane.decoding and lane.seq.id not in self.fresh and lane.left > 8]
        if len(ready) < 2:
            return
        lane = max(ready, key=lambda x: x.since)
        self.core(lane.seq.park)
        self.device.ended(lane)
        self.lanes.remove(lane)
        lane.since = self.now
        self.parked.append(lane)
        self.tally.events["preempted"] += 1

    def retire(self) -> None:
        """Ends the oldest running step; pages it could read may be used again."""
        self.core(self.cache.retire, self.device.end_oldest())
