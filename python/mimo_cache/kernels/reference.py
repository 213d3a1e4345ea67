"""The reference backend: plain torch, deterministic by construction.

Every call computes one page of one sequence, padded, each row at its index in the page. So the shape of every tensor in
a call is a function of the page's index in its sequence alone, and with a fixed number of threads the order of every
sum is a function of the shape. A row's bits therefore depend on the tokens up to it and on nothing else: prefill in any
chunking, decode, verification and a start from cached pages run the same operations on the same values. Full attention
reads whole pages in ascending order, as many as the sequence has up to the block's own; SWA attention reads
ceil(W / page) pages and its own, the null page where the sequence has not begun. Experts all run on all rows.

Two rules keep padding and stale memory out: a masked key has weight exp(-inf) = 0, and V rows that no valid row may see
are replaced by zeros, so that 0 * NaN cannot happen.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from .contract import Group, Kernels
from .rows import Ints, MtpRows, MtpWork, Rows, Work, mtp_padded, padded

THREADS = 1
"""Threads of every operation: a different number may split sums differently."""


@dataclass(slots=True)
class _Table:
    """Pages to read, and masks of their last keys: hidden [rows, masked] marks keys a row must not see, dead [masked]
    those nobody may see. Every row sees all keys before them."""

    pages: Any
    hidden: Any
    dead: Any
    masked: int


class ReferenceKernels(Kernels):
    """See the module."""

    name = "reference"
    bit_exact = True

    def cut(self, works: Sequence[Work]) -> Iterator[Rows]:
        """One page of one sequence a call."""
        return padded(works, self.shape.page_size)

    def cut_mtp(self, works: Sequence[MtpWork]) -> Iterator[MtpRows]:
        """One page of one sequence a call."""
        return mtp_padded(works, self.shape.page_size)

    @contextmanager
    def guard(self) -> Iterator[None]:
        """One thread, while a step runs."""
        before = torch.get_num_threads()
        torch.set_num_threads(THREADS)
        try:
            yield
        finally:
            torch.set_num_threads(before)

    def _table(self, rows: Rows, group: Group) -> _Table:
        """Tables of a call, made once and used by all its layers."""
        if rows.meta is None:
            rows.meta = {}
        if group not in rows.meta:
            rows.meta[group] = self._make(rows, group)
        table = rows.meta[group]
        assert isinstance(table, _Table)
        return table

    def _make(self, rows: Rows, group: Group) -> _Table:
        page, span = self.shape.page_size, rows.spans[0]
        block = span.first // page
        window = self.shape.window_keys - 1
        first = 0 if group == "full" else block - math.ceil(window / page)
        ids, base = (span.full_pages, 0) if group == "full" else (span.swa_pages, span.swa_base)
        logical = np.arange(first, block + 1) - base
        inside = (logical >= 0) & (logical < len(ids))
        pages: Ints = np.where(inside, ids[np.clip(logical, 0, len(ids) - 1)], 0)
        # In full attention a block's rows see every page before their own.
        key = np.arange((block if group == "full" else first) * page, (block + 1) * page)
        query = rows.positions[:, None]
        hidden = (key > query) | (key < 0)
        low = 0
        if group == "swa":
            hidden |= key < query - window
            low = max(0, span.valid_from - window)
        dead = (key < low) | (key >= span.valid_to)
        device = self.shape.device
        return _Table(
            torch.from_numpy(pages).to(device),
            torch.from_numpy(hidden[None, :, None, :]).to(device),
            torch.from_numpy(dead[:, None, None]).to(device),
            len(key),
        )

    def attention(
        self, q: Any, k_pool: Any, v_pool: Any, rows: Rows, group: Group, scale: float, sink: Any | None
    ) -> Any:
        """See the contract."""
        table = self._table(rows, group)
        count, heads, dim = q.shape
        kv_heads = k_pool.shape[2]
        k = k_pool.index_select(0, table.pages).view(-1, kv_heads, dim)
        v = v_pool.index_select(0, table.pages).view(-1, kv_heads, v_pool.shape[3])
        v[-table.masked :].masked_fill_(table.dead, 0.0)
        keys, group_size = k.shape[0], heads // kv_heads
        grouped = q.view(count, kv_heads, group_size, dim).transpose(0, 1).reshape(kv_heads, count * group_size, dim)
        scores = torch.bmm(grouped, k.permute(1, 2, 0)).mul_(scale)
        scores = scores.view(kv_heads, count, group_size, keys)
        scores[..., -table.masked :].masked_fill_(table.hidden, -math.inf)
        top = scores.amax(-1, keepdim=True)
        if sink is not None:
            extra = sink.view(kv_heads, 1, group_size, 1)
            top = torch.maximum(top, extra)
        weights = scores.sub_(top).exp_()
        total = weights.sum(-1, keepdim=True)
        if sink is not None:
            total = total + (extra - top).exp_()
        out = torch.bmm(weights.view(kv_heads, count * group_size, keys), v.transpose(0, 1))
        out = out.view(kv_heads, count, group_size, -1).div_(total)
        return out.transpose(0, 1).reshape(count, heads, -1)

    def write(self, pool: Any, slots: Any, values: Any) -> None:
        """See the contract."""
        pool.view(-1, *pool.shape[2:])[slots] = values

    def moe(self, x: Any, router: Any, bias: Any, gate_up: Any, down: Any) -> Any:
        """See the contract. Every expert runs on every row; the sum runs over experts in ascending order."""
        shape = self.shape
        scores = torch.sigmoid(x.float() @ router.t())
        chosen = torch.topk(scores + bias, shape.experts_per_token, dim=-1).indices
        weights = scores.gather(1, chosen)
        if shape.norm_topk_prob:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        weights = weights * shape.routed_scaling
        experts, hidden = gate_up.shape[0], gate_up.shape[2]
        both = torch.bmm(x.expand(experts, -1, hidden), gate_up.transpose(1, 2))
        gate, up = both.chunk(2, dim=-1)
        out = torch.bmm(F.silu(gate) * up, down.transpose(1, 2))
        full = torch.zeros_like(scores).scatter_(1, chosen, weights).t().unsqueeze(-1)
        # An expert that was not chosen must not matter even where its output overflows.
        picked = torch.where(full != 0, out.float() * full, 0.0)
        return picked.sum(0).to(x.dtype)
