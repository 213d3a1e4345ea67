"""The pretended device: runs the steps the engine fills and checks every page it is handed.

A step is checked twice. When it starts, every row its tables promise must hold the canary of that token sequence:
full KV over all committed tokens, SWA KV and MTP rows over the window. When it retires, the same rows are read again
through the tables it was given, because a running kernel may read them until then; and the draft rows of sequences
that ended while the step was running are written once more, as a late kernel would. So a page that is given away too
early is found from both sides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from .canary import I32, U64, Pages, Table, Truth
from .lane import Lane


@dataclass(slots=True)
class Verdict:
    """What was checked and what was wrong. Only the first messages are kept."""

    rows: int = 0
    tables: int = 0
    wrong: int = 0
    messages: list[str] = field(default_factory=list)

    def fail(self, message: str) -> None:
        """Records one finding."""
        self.wrong += 1
        if len(self.messages) < 20:
            self.messages.append(message)


@dataclass(slots=True)
class Buffers:
    """One step's page tables as `fill` writes them: int32 full [B, P], swa [B, S], base [B], lens [B]."""

    full: I32
    swa: I32
    base: I32
    lens: I32

    @classmethod
    def of(cls, lanes: int, full_width: int, swa_width: int) -> Buffers:
        """Buffers for a step of this many sequences."""
        full, swa = np.empty((lanes, full_width), np.int32), np.empty((lanes, swa_width), np.int32)
        return cls(full, swa, np.empty(lanes, np.int32), np.empty(lanes, np.int32))


@dataclass(slots=True)
class Handed:
    """What one step was given for one sequence. full_rows: positions with full KV; slots: positions the step computes;
    window: what its SWA table promises from position window_from on, as (name, memory, rows, what they hold); ended_at:
    committed tokens when the sequence gave its pages back."""

    lane: Lane
    truth: Truth
    full: Table
    swa: Table
    full_rows: int
    slots: tuple[int, int]
    window_from: int = 0
    window: list[tuple[str, U64, npt.NDArray[np.int64], U64]] = field(default_factory=list)
    ended_at: int | None = None


@dataclass(slots=True)
class Step:
    """A step between its fill and its retirement."""

    number: int
    handed: list[Handed]


class RunError(Exception):
    """The run cannot go on: tables that no kernel could use, or work that can never be served."""


class Device:
    """Pools, running steps and the verdict."""

    def __init__(self, pages: Pages, window: int, verdict: Verdict, published: Callable[[int], bool]) -> None:
        """`published` tells whether an SWA page belongs to the tree; such a page must never be written again."""
        self.pages = pages
        self.published = published
        self.window = window
        self.verdict = verdict
        self.running: list[Step] = []

    def start(self, number: int, lanes: list[Lane], tables: Buffers) -> None:
        """Takes one step's tables, one row a lane, and checks what they promise."""
        step = Step(number, [])
        width = self.pages.page
        for i, lane in enumerate(lanes):
            lo, end, base = lane.committed, lane.committed + lane.reserved, int(tables.base[i])
            if int(tables.lens[i]) != end:
                raise RunError(f"step {number}: length {int(tables.lens[i])} for a sequence of {end} tokens")
            if base * width > max(0, lo - self.window):
                raise RunError(f"step {number}: the SWA table of {lo} tokens starts at page {base}")
            full, swa = Table(tables.full[i, : -(-end // width)]), Table(tables.swa[i], base)
            first, last = lo // width, -(-end // width)
            if not full.ids[first:last].all() or not swa.ids[first - base : last - base].all():
                self.verdict.fail(f"step {number}: the null page was handed out for rows [{lo}, {end})")
            for ids, memory in ((full.ids, self.pages.full), (swa.ids, self.pages.swa)):
                if int(ids.min()) < 0 or int(ids.max()) >= len(memory) // width:
                    raise RunError(f"step {number}: page ids from {ids.min()} to {ids.max()} were handed out")
            full_rows = max(lo, min(lane.write_full_from, end))
            handed = Handed(lane, lane.truth, full, swa, full_rows, slots=(lo, end))
            handed.window_from = first = max(0, lo - self.window)
            rows = self.pages.rows(swa, first, lo)
            handed.window.append(("SWA KV", self.pages.swa, rows, lane.truth.swa[first:lo]))
            for k, memory in enumerate(self.pages.mtp):
                final = max(first, lane.mtp_done[k])
                expected = lane.truth.mtp(k, first, final)
                handed.window.append((f"MTP head {k}", memory, rows[: final - first], expected))
            step.handed.append(handed)
        self.running.append(step)
        self.check(step, "start")

    def check(self, step: Step, when: str) -> None:
        """Compares every promised row with its canary."""
        pages, verdict = self.pages, self.verdict
        for h in step.handed:
            verdict.tables += 1
            verdict.rows += h.full_rows
            got = pages.full_rows(h.full, h.full_rows)
            bad = (got != h.truth.full[: h.full_rows]).nonzero()[0]
            if len(bad):
                row = int(pages.rows(h.full, int(bad[0]), int(bad[0]) + 1)[0])
                self.found(step, h, when, f"full KV is wrong in {len(bad)} rows from position {bad[0]}", row)
            for what, memory, rows, expected in h.window:
                verdict.rows += len(rows)
                bad = (memory[rows] != expected).nonzero()[0]
                if len(bad):
                    at = h.window_from + bad[0]
                    self.found(
                        step, h, when, f"{what} is wrong in {len(bad)} rows from position {at}", int(rows[bad[0]])
                    )

    def found(self, step: Step, h: Handed, when: str, what: str, row: int) -> None:
        """Records wrong rows, with where the first one lies and who wrote it last."""
        writers = self.pages.full_writer if what.startswith("full") else self.pages.swa_writer
        self.verdict.fail(
            f"step {step.number} ({when}), request {h.lane.uid} ({h.lane.session.source}): {what}, "
            f"page {row // self.pages.page}, last written by request {writers[row]}"
        )

    def write(self, lane: Lane, computed: int, known: int) -> None:
        """Runs the kernels of one sequence: trunk and full KV of all its slots, then the MTP heads.

        The first `computed` rows are right, the rest belongs to rejected drafts. `known` counts the tokens known after
        sampling, which decides how far the MTP rows are final.
        """
        h = next(h for h in self.running[-1].handed if h.lane is lane)
        pages, truth = self.pages, lane.truth
        lo, end = h.slots
        good = lo + computed
        start = min(end, max(lo, lane.write_full_from))
        rows = pages.rows(h.full, start, end)
        self.put(pages.full, rows, truth.full[start : max(start, good)])
        pages.full_writer[rows] = lane.uid
        first = min([lo, *lane.mtp_done])
        rows = pages.rows(h.swa, first, end)
        for page in {*(rows[:: pages.page] // pages.page).tolist(), int(rows[-1]) // pages.page}:
            if self.published(page):
                self.verdict.fail(
                    f"request {lane.uid} would write [{first}, {end}) into SWA page {page}, which is published"
                )
        self.put(pages.swa, rows[lo - first :], truth.swa[lo:good])
        pages.swa_writer[rows[lo - first :]] = lane.uid
        for k, memory in enumerate(pages.mtp):
            start = lane.mtp_done[k]
            self.put(memory, rows[start - first :], truth.mtp(k, start, max(0, min(good, known - k - 1))))

    def put(self, memory: U64, rows: npt.NDArray[np.int64], right: U64) -> None:
        """Writes what is right, then garbage into the remaining rows."""
        memory[rows[: len(right)]] = right
        memory[rows[len(right) :]] = self.pages.garbage(len(rows) - len(right))

    def ended(self, lane: Lane) -> None:
        """Notes that a sequence gave its pages back while steps that name it may still run."""
        for step in self.running:
            for h in step.handed:
                if h.lane is lane and h.ended_at is None:
                    h.ended_at = lane.committed

    def end_oldest(self) -> int:
        """Finishes the oldest running step and returns its number; the caller retires it next."""
        step = self.running.pop(0)
        self.check(step, "end")
        for h in step.handed:
            if h.ended_at is not None:  # its kernels write as late as they may
                lo, end = max(h.slots[0], h.ended_at), h.slots[1]
                nothing = self.pages.garbage(0)
                self.put(self.pages.swa, self.pages.rows(h.swa, lo, end), nothing)
                start = max(lo, h.lane.write_full_from)
                self.put(self.pages.full, self.pages.rows(h.full, start, end), nothing)
        return step.number

    def sabotage(self, kind: str) -> int:
        """Overwrites one row that a running sequence relies on, to prove that the check finds it; 1 when it did."""
        for h in self.running[-1].handed if self.running else ():
            if h.ended_at is None and h.slots[0] - h.window_from > 8:
                if kind == "full":
                    at = h.window_from
                    self.pages.full[self.pages.rows(h.full, at, at + 1)] ^= np.uint64(1)
                else:
                    _, memory, rows, _ = h.window[("swa", "mtp").index(kind)]
                    memory[rows[:1]] ^= np.uint64(1)
                return 1
        return 0
