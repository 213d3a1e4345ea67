"""The torch backend: batched and ragged, for speed. Sums run in whatever order is fast.

All rows of a step go through the dense layers together. Attention takes sequences with one row in one padded batch
(decode), and the others one by one: full attention in blocks of queries that bound the score matrix, SWA attention as
a band, each block of queries against the keys that its windows reach. Experts run on the rows that chose them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from .contract import Group, Kernels
from .rows import MtpRows, MtpWork, Rows, Span, Work, mtp_ragged, ragged

FULL_BLOCK = 256
"""Queries of one block of full attention."""
SWA_BLOCK = 64
"""Queries of one block of SWA attention, at least; blocks grow to a quarter of the window."""
FEW = 4
"""Up to this many chosen experts over all rows, their weights are gathered; beyond it, rows are sorted by expert."""


@dataclass(slots=True)
class _Single:
    """The sequences with one row. rows: their rows, None for all; slots: [B, keys] slots to read; hidden: mask
    [B, 1, 1, keys], None when every key is seen."""

    rows: Any
    slots: Any
    hidden: Any


@dataclass(slots=True)
class _Many:
    """One sequence with several rows [start, start + count), the first at position `first`. slots: the keys to read,
    [keys] for full, [blocks, keys] for SWA; hidden: SWA mask [blocks, 1, block, 1, keys]; key0: position of the first
    key; block: queries a block."""

    start: int
    count: int
    first: int
    slots: Any
    hidden: Any
    block: int


@dataclass(slots=True)
class _Table:
    single: _Single | None = None
    many: list[_Many] = field(default_factory=list)


class TorchKernels(Kernels):
    """See the module."""

    name = "torch"
    bit_exact = False

    def cut(self, works: Sequence[Work]) -> Iterator[Rows]:
        """Everything in one call."""
        return ragged(works, self.shape.page_size)

    def cut_mtp(self, works: Sequence[MtpWork]) -> Iterator[MtpRows]:
        """Everything in one call."""
        return mtp_ragged(works, self.shape.page_size)

    def _slots(self, span: Span, group: Group, keys: Any) -> Any:
        """Slots of key positions, which lie inside the table or are masked."""
        page = self.shape.page_size
        ids, base = (span.full_pages, 0) if group == "full" else (span.swa_pages, span.swa_base)
        return ids[np.clip(keys // page - base, 0, len(ids) - 1)] * page + keys % page

    def _table(self, rows: Rows, group: Group) -> _Table:
        """Tables of a call, made once and used by all its layers."""
        if rows.meta is None:
            rows.meta = {}
        if group not in rows.meta:
            single = [s for s in rows.spans if s.count == 1]
            rows.meta[group] = _Table(
                self._single(single, group, len(single) == len(rows.spans)) if single else None,
                [self._many(s, group) for s in rows.spans if s.count > 1],
            )
        table = rows.meta[group]
        assert isinstance(table, _Table)
        return table

    def _single(self, spans: list[Span], group: Group, all_rows: bool) -> _Single:
        device, window = self.shape.device, self.shape.window_keys - 1
        low = [0 if group == "full" else max(0, s.first - window) for s in spans]
        lengths = [s.first + 1 - lo for s, lo in zip(spans, low, strict=True)]
        width = max(lengths)
        slots = np.zeros((len(spans), width), np.int64)
        for i, (span, lo, n) in enumerate(zip(spans, low, lengths, strict=True)):
            slots[i, :n] = self._slots(span, group, np.arange(lo, lo + n))
        hidden = None
        if min(lengths) < width:
            mask = np.arange(width)[None, :] >= np.array(lengths)[:, None]
            hidden = torch.from_numpy(mask[:, None, None, :]).to(device)
        where = None if all_rows else torch.tensor([s.start for s in spans], device=device)
        return _Single(where, torch.from_numpy(slots).to(device), hidden)

    def _many(self, span: Span, group: Group) -> _Many:
        device, window = self.shape.device, self.shape.window_keys - 1
        if group == "full":
            slots = self._slots(span, group, np.arange(span.first + span.count))
            return _Many(span.start, span.count, span.first, torch.from_numpy(slots).to(device), None, FULL_BLOCK)
        block = min(max(SWA_BLOCK, window // 4), span.count)
        blocks = -(-span.count // block)
        begin = span.first + np.arange(blocks)[:, None] * block
        keys = begin - window + np.arange(window + block)[None, :]
        queries = begin + np.arange(block)[None, :]
        k, q = keys[:, None, :], queries[:, :, None]
        hidden = (k > q) | (k < q - window) | (k < 0)
        # Queries past the end see the keys of the last row, so that no stale row is read.
        last = span.first + span.count - 1
        hidden |= (k > last) & (q <= last)
        slots = self._slots(span, group, np.clip(keys, 0, last))
        mask = torch.from_numpy(hidden[:, None, :, None, :]).to(device)
        return _Many(span.start, span.count, span.first, torch.from_numpy(slots).to(device), mask, block)

    def attention(
        self, q: Any, k_pool: Any, v_pool: Any, rows: Rows, group: Group, scale: float, sink: Any | None
    ) -> Any:
        """See the contract."""
        table = self._table(rows, group)
        heads, kv_heads = q.shape[1], k_pool.shape[2]
        k_flat, v_flat = k_pool.view(-1, *k_pool.shape[2:]), v_pool.view(-1, *v_pool.shape[2:])
        extra = None if sink is None else sink.view(1, kv_heads, heads // kv_heads, 1)
        if table.single is not None and not table.many:
            return self._decode(q, k_flat, v_flat, table.single, scale, extra)
        out = q.new_empty(q.shape[0], heads, v_pool.shape[3])
        if table.single is not None:
            where = table.single.rows
            out[where] = self._decode(q[where], k_flat, v_flat, table.single, scale, extra)
        for many in table.many:
            mine = q[many.start : many.start + many.count]
            run = self._full if group == "full" else self._band
            out[many.start : many.start + many.count] = run(mine, k_flat, v_flat, many, scale, extra)
        return out

    def _decode(self, q: Any, k_flat: Any, v_flat: Any, table: _Single, scale: float, extra: Any | None) -> Any:
        """q [B, H, dim], one row a sequence."""
        batch, heads, dim = q.shape
        kv_heads, keys = k_flat.shape[1], table.slots.shape[1]
        k = k_flat[table.slots]
        v = v_flat[table.slots]
        # [B, KV heads, group, dim] x [B, KV heads, dim, keys]
        scores = torch.matmul(q.view(batch, kv_heads, -1, dim), k.permute(0, 2, 3, 1)).mul_(scale)
        if table.hidden is not None:
            scores = scores.masked_fill_(table.hidden, -math.inf)
            v = v.masked_fill(table.hidden.view(batch, keys, 1, 1), 0.0)
        weights = _softmax(scores, extra)
        return torch.matmul(weights, v.transpose(1, 2)).view(batch, heads, -1)

    def _full(self, q: Any, k_flat: Any, v_flat: Any, table: _Many, scale: float, extra: Any | None) -> Any:
        """q [n, H, dim], consecutive rows of one sequence."""
        count, heads, dim = q.shape
        kv_heads = k_flat.shape[1]
        k, v = k_flat[table.slots].permute(1, 2, 0), v_flat[table.slots].transpose(0, 1)
        out = q.new_empty(count, heads, v_flat.shape[2])
        for lo in range(0, count, table.block):
            hi = min(count, lo + table.block)
            keys = table.first + hi
            mine = q[lo:hi].view(hi - lo, kv_heads, -1, dim).permute(1, 2, 0, 3).reshape(kv_heads, -1, dim)
            scores = torch.bmm(mine, k[:, :, :keys]).mul_(scale).view(kv_heads, -1, hi - lo, keys)
            mask = torch.ones(hi - lo, hi - lo, dtype=torch.bool, device=q.device).triu_(1)
            scores[..., table.first + lo :].masked_fill_(mask, -math.inf)
            weights = _softmax(scores, None if extra is None else extra.view(kv_heads, -1, 1, 1))
            part = torch.bmm(weights.view(kv_heads, -1, keys), v[:, :keys])
            out[lo:hi] = part.view(kv_heads, -1, hi - lo, part.shape[-1]).permute(2, 0, 1, 3).flatten(1, 2)
        return out

    def _band(self, q: Any, k_flat: Any, v_flat: Any, table: _Many, scale: float, extra: Any | None) -> Any:
        """q [n, H, dim], consecutive rows of one sequence, in blocks against the keys of their windows."""
        count, heads, dim = q.shape
        kv_heads, (blocks, keys) = k_flat.shape[1], table.slots.shape
        pad = blocks * table.block - count
        if pad:
            q = F.pad(q, (0, 0, 0, 0, 0, pad))
        k, v = k_flat[table.slots], v_flat[table.slots]  # [blocks, keys, KV heads, dim]
        mine = q.view(blocks, table.block, kv_heads, -1, dim).permute(0, 2, 1, 3, 4)
        scores = torch.matmul(mine.reshape(blocks, kv_heads, -1, dim), k.permute(0, 2, 3, 1)).mul_(scale)
        scores = scores.view(blocks, kv_heads, table.block, -1, keys).masked_fill_(table.hidden, -math.inf)
        weights = _softmax(scores, None if extra is None else extra.view(1, kv_heads, 1, -1, 1))
        out = torch.matmul(weights.view(blocks, kv_heads, -1, keys), v.transpose(1, 2))
        out = out.view(blocks, kv_heads, table.block, heads // kv_heads, -1).transpose(1, 2)
        return out.reshape(blocks * table.block, heads, -1)[:count]

    def write(self, pool: Any, slots: Any, values: Any) -> None:
        """See the contract."""
        pool.view(-1, *pool.shape[2:])[slots] = values

    def moe(self, x: Any, router: Any, bias: Any, gate_up: Any, down: Any) -> Any:
        """See the contract."""
        shape = self.shape
        scores = F.linear(x.float(), router).sigmoid_()
        chosen = torch.topk(scores + bias, shape.experts_per_token, dim=-1, sorted=False).indices
        weights = scores.gather(1, chosen)
        if shape.norm_topk_prob:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        if shape.routed_scaling != 1.0:
            weights = weights * shape.routed_scaling
        weights = weights.to(x.dtype)
        if chosen.numel() <= FEW:
            picked = chosen.flatten()
            rows = x.repeat_interleave(shape.experts_per_token, 0).unsqueeze(-1) if len(x) > 1 else x.t()
            gate, up = torch.matmul(gate_up[picked], rows).squeeze(-1).chunk(2, dim=-1)
            out = torch.matmul(down[picked], (F.silu(gate) * up).unsqueeze(-1)).squeeze(-1)
            return (out.view(len(x), -1, x.shape[1]) * weights.unsqueeze(-1)).sum(1)
        flat = chosen.flatten()
        order = flat.argsort()
        counts = torch.bincount(flat, minlength=gate_up.shape[0]).tolist()
        source = order // shape.experts_per_token
        out = torch.zeros_like(x)
        scale = weights.flatten()[order].unsqueeze(-1)
        begin = 0
        for expert, n in enumerate(counts):
            if n:
                mine = source[begin : begin + n]
                gate, up = F.linear(x[mine], gate_up[expert]).chunk(2, dim=-1)
                part = F.linear(F.silu(gate) * up, down[expert]) * scale[begin : begin + n]
                out.index_add_(0, mine, part)
                begin += n
        return out


def _softmax(scores: Any, extra: Any | None) -> Any:
    """Softmax over the last axis, which may overwrite `scores`; `extra` joins the denominator only."""
    if extra is None:
        return torch.softmax(scores, -1)
    top = torch.maximum(scores.amax(-1, keepdim=True), extra)
    weights = scores.sub_(top).exp_()
    return weights.div_(weights.sum(-1, keepdim=True) + (extra - top).exp_())
