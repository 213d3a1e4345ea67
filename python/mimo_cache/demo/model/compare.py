"""Whether the run with the cache computed the same as the run without it.

In the `reference` backend: every new token, the bits of all its logits, and the bits of every MTP row that was written
or taken from the cache. In a backend whose bits may differ: tokens, up to the first one that the two largest logits
leave open.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from mimo_cache.kernels.rows import Work, slots_of
from mimo_cache.runner import Completion, Engine
from mimo_cache.runner.lane import Lane

from .scenario import Turn

TIE = 1e-4
"""Backends may choose another token where the two largest logits are closer than this (docs/runner.md)."""


@dataclass(slots=True)
class Rows:
    """K and V of one MTP head, side by side, of consecutive positions from `first` on: [positions, KV heads * dims]."""

    first: int
    parts: list[Any] = field(default_factory=list)
    end: int = 0

    def tensor(self, start: int, end: int) -> Any:
        """The rows of positions [start, end), which lie inside."""
        return torch.cat(self.parts)[start - self.first : end - self.first]


class MtpRows:
    """Copies the MTP rows of an engine's sequences as they become final, those that came from the cache as well."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.found: dict[int, list[Rows]] = {}
        engine.on_rows = self._see

    def take(self) -> list[list[Rows]]:
        """For each request since the last call, in order of arrival: the rows of each head."""
        found, self.found = self.found, {}
        return [found[uid] for uid in sorted(found)]

    def _see(self, lane: Lane, work: Work) -> None:
        engine, pools = self.engine, self.engine.model.pools
        if lane.uid not in self.found:
            first = max(0, work.first - engine.cache.window)
            self.found[lane.uid] = [Rows(first, end=first) for _ in range(engine.heads)]
        for head, rows in enumerate(self.found[lane.uid]):
            end = lane.mtp_done[head]
            if end > rows.end:
                at = slots_of(work.swa_pages, work.swa_base, np.arange(rows.end, end, dtype=np.int64), engine.page)
                index, layer = torch.from_numpy(at).to(pools.swa_k.device), pools.swa_layers + head
                rows.parts.append(
                    torch.cat([pool[layer].flatten(0, 1)[index].flatten(1) for pool in (pools.swa_k, pools.swa_v)], 1)
                )
                rows.end = end


@dataclass(slots=True)
class Verdict:
    """What was compared. different: turns that differ; ties: turns cut short at an open choice; first: where the first
    difference is."""

    exact: bool
    tokens: int = 0
    logits: int = 0
    mtp_rows: int = 0
    different: int = 0
    ties: int = 0
    first: str | None = None

    @property
    def identical(self) -> bool:
        """Nothing differs, and something was compared."""
        return self.different == 0 and self.tokens > 0

    def turn(
        self, number: int, turn: Turn, ours: Completion, plain: Completion, mtp: list[Rows], plain_mtp: list[Rows]
    ) -> None:
        """Compares one turn; the rows without the cache start at position 0."""
        problem = self._logits(ours.logits, plain.logits) if self.exact else None
        problem = problem or self._tokens(ours, plain)
        if problem is None and self.exact:
            problem = self._mtp(mtp, plain_mtp)
        if problem is not None:
            self.different += 1
            self.first = self.first or f"turn {number} ({turn.kind}, session {turn.session.number}): {problem}"

    def _tokens(self, ours: Completion, plain: Completion) -> str | None:
        pairs = list(zip(ours.token_ids, plain.token_ids, strict=False))
        self.tokens += len(pairs)
        for i, (a, b) in enumerate(pairs):
            if a != b:
                top = plain.logits[i].topk(2).values
                if not self.exact and float(top[0] - top[1]) <= TIE:
                    self.ties += 1
                    return None
                return f"new token {i + 1} is {a} with the cache and {b} without"
        if len(ours.token_ids) != len(plain.token_ids):
            return f"{len(ours.token_ids)} new tokens with the cache and {len(plain.token_ids)} without"
        return None

    def _logits(self, ours: Any, plain: Any) -> str | None:
        count = min(len(ours), len(plain))
        ours, plain = ours[:count], plain[:count]
        self.logits += ours.numel()
        if same(ours, plain):
            return None
        token, entry = (bits(ours) != bits(plain)).nonzero()[0].tolist()
        values = f"{float(ours[token, entry])!r} with the cache and {float(plain[token, entry])!r} without"
        return f"logit {entry} of new token {token + 1} is {values}"

    def _mtp(self, ours: list[Rows], plain: list[Rows]) -> str | None:
        for head, (a, b) in enumerate(zip(ours, plain, strict=True)):
            if a.end != b.end:
                return f"MTP head {head} has rows up to {a.end} with the cache and up to {b.end} without"
            mine, theirs = a.tensor(a.first, a.end), b.tensor(a.first, a.end)
            self.mtp_rows += len(mine)
            if not same(mine, theirs):
                row = int((bits(mine) != bits(theirs)).any(1).nonzero()[0])
                return f"the row of MTP head {head} at position {a.first + row} has other bits with the cache"
        return None


def bits(tensor: Any) -> Any:
    """The bits of a tensor, as integers of its width."""
    return tensor.contiguous().view({2: torch.int16, 4: torch.int32}[tensor.element_size()])


def same(a: Any, b: Any) -> bool:
    """Equal values and equal bits: zeros of two signs differ, and NaN equals nothing."""
    return bool(torch.equal(a, b) and torch.equal(bits(a), bits(b)))
