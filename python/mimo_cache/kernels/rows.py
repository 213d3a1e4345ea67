"""From one step's work to the rows that kernels see: positions, token ids, slots, and the page tables behind them.

A *slot* is a row of a pool seen as one flat array: page id * page_size + offset in the page. Rows that must not be
written get a slot of the null page (page 0), whose content nobody reads. A call is either *ragged*, all rows of all
sequences behind each other, or *padded*: exactly one page of one sequence, each row at its index in the page, whatever
part of it is asked for. Everything is made on the host with numpy; a backend moves what it needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Ints: TypeAlias = npt.NDArray[np.int64]


@dataclass(slots=True)
class Work:
    """One sequence's part of a step: positions [first, first + len(ids)).

    ids: int64 [n], their tokens. full_pages: int64, full page ids of the logical pages from 0 on. swa_pages: int64, SWA
    page ids of the logical pages from swa_base on. Full KV is written from position full_write_from on, SWA KV from
    swa_write_from on. logits: how many of the last rows need logits.
    """

    first: int
    ids: Ints
    full_pages: Ints
    swa_base: int
    swa_pages: Ints
    full_write_from: int = 0
    swa_write_from: int = 0
    logits: int = 0

    @property
    def end(self) -> int:
        """One past the last position."""
        return self.first + len(self.ids)


@dataclass(slots=True)
class MtpWork:
    """One sequence's MTP rows: head k gets the rows of positions [start[k], end[k]).

    tokens: int64, the known tokens from position token_base on; they reach to end[k] + k for every head with rows.
    """

    start: Sequence[int]
    end: Sequence[int]
    token_base: int
    tokens: Ints
    swa_base: int
    swa_pages: Ints


@dataclass(slots=True)
class Span:
    """The rows [start, start + count) of a call, which are consecutive positions of one sequence from `first` on.

    [valid_from, valid_to) are the positions that are asked for; outside it is padding.
    """

    start: int
    count: int
    first: int
    valid_from: int
    valid_to: int
    full_pages: Ints
    swa_base: int
    swa_pages: Ints


@dataclass(slots=True)
class Rows:
    """One call's N rows. ids, positions, full_slots, swa_slots: int64 [N]; wanted: rows whose logits are needed, with
    the sequence's index in the step for each. meta: what a backend keeps between the layers of one call."""

    ids: Ints
    positions: Ints
    full_slots: Ints
    swa_slots: Ints
    spans: list[Span]
    wanted: list[tuple[int, int]] = field(default_factory=list)
    meta: Any = None


@dataclass(slots=True)
class MtpRows:
    """One call's N rows for all MTP heads. positions, sources: int64 [N], where the stored hidden state lies. ids,
    slots: int64 [heads, N], the token each head needs (0 where unknown) and where its KV goes."""

    positions: Ints
    sources: Ints
    ids: Ints
    slots: Ints


def slots_of(pages: Ints, base: int, positions: Ints, page: int) -> Ints:
    """Slots of positions whose logical page p has the id pages[p - base]; the null page's outside the table."""
    index = positions // page - base
    inside = (index >= 0) & (index < len(pages))
    if not len(pages):
        return positions % page
    ids = np.where(inside, pages[np.clip(index, 0, len(pages) - 1)], 0)
    slots: Ints = ids * page + positions % page
    return slots


def _written(pages: Ints, base: int, positions: Ints, page: int, start: int, end: int) -> Ints:
    """Slots of positions, the null page's outside [start, end)."""
    slots = slots_of(pages, base, positions, page)
    return np.where((positions >= start) & (positions < end), slots, positions % page)


def _rows(works: Sequence[tuple[int, Work, int, int]], page: int, padded: bool) -> Rows:
    """Rows of one call from (index in the step, work, first position, one past the last)."""
    ids, positions, full, swa, spans, wanted = [], [], [], [], [], []
    count = 0
    for index, work, lo, hi in works:
        start, end = (lo // page * page, lo // page * page + page) if padded else (lo, hi)
        where = np.arange(start, end, dtype=np.int64)
        tokens = np.zeros(end - start, np.int64)
        tokens[lo - start : hi - start] = work.ids[lo - work.first : hi - work.first]
        ids.append(tokens)
        positions.append(where)
        full.append(_written(work.full_pages, 0, where, page, max(lo, work.full_write_from), hi))
        swa.append(_written(work.swa_pages, work.swa_base, where, page, max(lo, work.swa_write_from), hi))
        spans.append(Span(count, end - start, start, lo, hi, work.full_pages, work.swa_base, work.swa_pages))
        wanted += [(count + p - start, index) for p in range(max(lo, work.end - work.logits), hi)]
        count += end - start
    if len(works) == 1:
        return Rows(ids[0], positions[0], full[0], swa[0], spans, wanted)
    join = np.concatenate
    return Rows(join(ids), join(positions), join(full), join(swa), spans, wanted)


def ragged(works: Sequence[Work], page: int) -> Iterator[Rows]:
    """Everything in one call."""
    live = [(i, w, w.first, w.end) for i, w in enumerate(works) if len(w.ids)]
    if live:
        yield _rows(live, page, padded=False)


def padded(works: Sequence[Work], page: int) -> Iterator[Rows]:
    """One page of one sequence a call, in order of positions."""
    for i, work in enumerate(works):
        lo = work.first
        while lo < work.end:
            hi = min(work.end, (lo // page + 1) * page)
            yield _rows([(i, work, lo, hi)], page, padded=True)
            lo = hi


def _mtp_rows(works: Sequence[tuple[MtpWork, int, int]], page: int) -> MtpRows:
    positions, sources, ids, slots = [], [], [], []
    for work, lo, hi in works:
        where = np.arange(lo, hi, dtype=np.int64)
        positions.append(where)
        sources.append(slots_of(work.swa_pages, work.swa_base, where, page))
        heads = range(len(work.start))
        at = where[None, :] + np.arange(1, len(work.start) + 1)[:, None] - work.token_base
        mine = np.stack([(where >= work.start[k]) & (where < work.end[k]) for k in heads])
        known = mine & (at >= 0) & (at < len(work.tokens))
        ids.append(np.where(known, work.tokens[np.clip(at, 0, max(0, len(work.tokens) - 1))], 0))
        slots.append(np.where(known, sources[-1], where % page))
    if len(works) == 1:
        return MtpRows(positions[0], sources[0], ids[0], slots[0])
    return MtpRows(np.concatenate(positions), np.concatenate(sources), np.hstack(ids), np.hstack(slots))


def _range(work: MtpWork) -> tuple[int, int]:
    """Positions that any head needs."""
    pairs = [(s, e) for s, e in zip(work.start, work.end, strict=True) if e > s]
    return (min(s for s, _ in pairs), max(e for _, e in pairs)) if pairs else (0, 0)


def mtp_ragged(works: Sequence[MtpWork], page: int) -> Iterator[MtpRows]:
    """All MTP rows of a step in one call."""
    live = [(w, *_range(w)) for w in works]
    live = [x for x in live if x[2] > x[1]]
    if live:
        yield _mtp_rows(live, page)


def mtp_padded(works: Sequence[MtpWork], page: int) -> Iterator[MtpRows]:
    """The MTP rows of one page of one sequence a call."""
    for work in works:
        lo, hi = _range(work)
        for block in range(lo // page, -(-hi // page)):
            yield _mtp_rows([(work, block * page, (block + 1) * page)], page)
