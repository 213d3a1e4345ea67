"""The MiMo-V2 forward pass over paged KV: trunk, logits, MTP rows and drafts.

`Model` owns the prepared weights and the pools and calls a kernel backend; it knows nothing of prefixes, requests or
sampling. Formulas are those of MiMo-V2's published code: pre-norm blocks, RoPE on the first rotary_dim of each head in
the rotate-half form, V scaled before it is stored, sigmoid router. Every method may be called with any mix of
sequences; how rows are grouped into calls is the backend's choice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from mimo_cache.kernels import Kernels
from mimo_cache.kernels.contract import Group
from mimo_cache.kernels.rows import MtpWork, Rows, Work
from mimo_cache.models.config import AttentionShape, ModelConfig
from mimo_cache.models.weights import AttentionWeights, DenseWeights, ModelWeights, MoeWeights

from .memory import Pools


@dataclass(slots=True)
class _Attention:
    """One layer's attention, prepared. qkv [(H + KV) * K dim + KV * V dim, hidden], V rows not scaled."""

    shape: AttentionShape
    group: Group
    row: int
    qkv: Any
    o: Any
    sink: Any


@dataclass(slots=True)
class _Layer:
    attention: _Attention
    input_norm: Any
    post_norm: Any
    ffn: DenseWeights | MoeWeights


@dataclass(slots=True)
class _Mtp:
    """All MTP heads, stacked in the first dimension where their KV rows are made together."""

    layers: list[_Layer]
    enorm: Any
    hnorm: Any
    eh: Any
    input_norm: Any
    kv: Any
    final_norm: list[Any]


class Model:
    """A MiMo-V2 model bound to pools and a backend. Not thread-safe."""

    def __init__(self, config: ModelConfig, weights: ModelWeights, kernels: Kernels, pools: Pools) -> None:
        self.config, self.kernels, self.pools = config, kernels, pools
        self.dtype, self.device = pools.full_k.dtype, pools.full_k.device
        self.embed, self.norm, self.lm_head = (_own(w) for w in (weights.embed, weights.norm, weights.lm_head))
        self.layers = []
        rows = {"full": 0, "swa": 0}
        for kind, layer in zip(config.layer_kinds, weights.layers, strict=True):
            group: Group = "full" if kind == "full" else "swa"
            attention = self._attention(layer.attention, group, rows[group])
            rows[group] += 1
            self.layers.append(_Layer(attention, _own(layer.input_norm), _own(layer.post_norm), _own_ffn(layer.ffn)))
        self.mtp = self._stack_mtp(weights) if weights.mtp else None
        self._rope: dict[str, tuple[Any, Any]] = {}

    # --- trunk ----------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def forward(self, works: Sequence[Work], ready: Callable[[int], None] | None = None) -> list[Any]:
        """Runs the trunk over a step's rows: writes KV and hidden states, returns logits.

        One tensor [works[i].logits, vocab] in fp32 for each of `works`, of its last rows. ready: called with a layer's
        number right before its attention, which may read pages that are still being loaded before the call.
        """
        found: list[list[Any]] = [[] for _ in works]
        for rows in self.kernels.cut(works):
            hidden = self._trunk(rows, ready)
            if rows.wanted:
                if self.kernels.bit_exact:  # the same rows in the same places, whatever is wanted
                    logits = F.linear(hidden, self.lm_head)
                    for row, index in rows.wanted:
                        found[index].append(logits[row])
                else:
                    at = torch.tensor([row for row, _ in rows.wanted], device=self.device)
                    logits = F.linear(hidden if len(at) == len(hidden) else hidden[at], self.lm_head)
                    for (_, index), row in zip(rows.wanted, logits, strict=True):
                        found[index].append(row)
        empty = torch.empty(0, self.config.vocab_size)
        return [torch.stack(f).float() if f else empty for f in found]

    def _trunk(self, rows: Rows, ready: Callable[[int], None] | None) -> Any:
        """Hidden states after the last norm [N, hidden], stored beside the SWA pages."""
        device = self.device
        positions = torch.from_numpy(rows.positions).to(device)
        slots = {
            "full": torch.from_numpy(rows.full_slots).to(device),
            "swa": torch.from_numpy(rows.swa_slots).to(device),
        }
        rope = {kind: self._rope_rows(kind, positions) for kind in set(self.config.layer_kinds)}
        x = self.embed[torch.from_numpy(rows.ids).to(device)]
        for number, layer in enumerate(self.layers):
            group = layer.attention.group
            if ready is not None:
                ready(number)
            x = self._block(x, layer, rows, slots[group], rope[group])
        hidden = self._rms(x, self.norm)
        if self.pools.hidden.shape[0] > 1:
            self.pools.hidden.view(-1, hidden.shape[1])[slots["swa"]] = hidden
        return hidden

    def _block(self, x: Any, layer: _Layer, rows: Rows, slots: Any | None, rope: tuple[Any, Any]) -> Any:
        """One decoder layer over N rows; writes their KV to `slots`, or finds it written (None)."""
        attention, kernels = layer.attention, self.kernels
        shape = attention.shape
        qkv = F.linear(self._rms(x, layer.input_norm), attention.qkv)
        split = (shape.heads + shape.kv_heads) * shape.k_dim
        qk = _rotate(qkv[:, :split].view(len(x), -1, shape.k_dim), *rope)
        v = qkv[:, split:].view(len(x), -1, shape.v_dim)
        if self.config.value_scale != 1.0:
            v = v * self.config.value_scale
        k_pool, v_pool = self._pools(attention)
        if slots is not None:
            kernels.write(k_pool, slots, qk[:, shape.heads :])
            kernels.write(v_pool, slots, v)
        q = qk[:, : shape.heads].contiguous()
        out = kernels.attention(q, k_pool, v_pool, rows, attention.group, shape.k_dim**-0.5, attention.sink)
        x = x + F.linear(out.reshape(len(x), -1), attention.o)
        return x + self._ffn(self._rms(x, layer.post_norm), layer.ffn)

    def _ffn(self, x: Any, ffn: DenseWeights | MoeWeights) -> Any:
        if isinstance(ffn, MoeWeights):
            return self.kernels.moe(x, ffn.router, ffn.bias, ffn.gate_up, ffn.down)
        gate, up = F.linear(x, ffn.gate_up).chunk(2, dim=-1)
        return F.linear(F.silu(gate) * up, ffn.down)

    # --- MTP heads ------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def write_mtp(self, works: Sequence[MtpWork]) -> None:
        """Writes the KV rows of the MTP heads from the stored hidden states and the tokens that follow.

        Head k's row at position i is made of the hidden state at i and the token at i + k + 1; its K and V need no
        attention. The hidden states must have been written.
        """
        if self.mtp is None:
            return
        mtp, device, heads = self.mtp, self.device, len(self.mtp.layers)
        shape = self.config.swa
        stored = self.pools.hidden.view(-1, self.config.hidden_size)
        first = self.pools.swa_layers
        k_pool = self.pools.swa_k[first:].view(-1, shape.kv_heads, shape.k_dim)
        v_pool = self.pools.swa_v[first:].view(-1, shape.kv_heads, shape.v_dim)
        stride = k_pool.shape[0] // heads
        for rows in self.kernels.cut_mtp(works):
            hidden = stored[torch.from_numpy(rows.sources).to(device)]
            z = self._mtp_input(torch.from_numpy(rows.ids).to(device), hidden)
            kv = torch.bmm(self._rms_by_head(z, mtp.input_norm), mtp.kv)
            count = len(rows.positions)
            split = shape.kv_heads * shape.k_dim
            rope = self._rope_rows("swa", torch.from_numpy(rows.positions).to(device))
            k = _rotate(kv[..., :split].reshape(heads, count, -1, shape.k_dim), *rope)
            v = kv[..., split:].reshape(heads * count, -1, shape.v_dim)
            if self.config.value_scale != 1.0:
                v = v * self.config.value_scale
            slots = torch.from_numpy((rows.slots + np.arange(heads)[:, None] * stride).reshape(-1)).to(device)
            k_pool[slots] = k.reshape(heads * count, -1, shape.k_dim)
            v_pool[slots] = v

    @torch.inference_mode()
    def draft(self, head: int, works: Sequence[Work]) -> list[Any]:
        """Draft logits of one MTP head, whose KV rows `write_mtp` has written.

        works[i].ids are the tokens of its positions as for `forward`. Row j of head k is made of the token at
        j + k + 1, so the last k + 1 of `ids` are no rows of their own: logits are those of the rows before them.
        Returns one tensor [min(works[i].logits, rows), vocab] in fp32 for each; row j predicts token j + k + 2.
        """
        if self.mtp is None:
            raise ValueError(f"head is {head}, and the model has no MTP head")
        if not 0 <= head < len(self.mtp.layers):
            raise ValueError(f"head is {head}, allowed is 0 to {len(self.mtp.layers) - 1}")
        mtp, layer = self.mtp, self.mtp.layers[head]
        stored = self.pools.hidden.view(-1, self.config.hidden_size)
        shifted = [
            Work(w.first, w.ids[head + 1 :], w.full_pages, w.swa_base, w.swa_pages, logits=w.logits) for w in works
        ]
        found: list[list[Any]] = [[] for _ in works]
        for rows in self.kernels.cut(shifted):
            sources = torch.from_numpy(rows.swa_slots).to(self.device)
            rope = self._rope_rows("swa", torch.from_numpy(rows.positions).to(self.device))
            ids = torch.from_numpy(rows.ids).to(self.device).expand(len(mtp.layers), -1)
            z = self._mtp_input(ids, stored[sources])[head]
            x = self._block(z, layer, rows, None, rope)
            logits = F.linear(self._rms(x, mtp.final_norm[head]), self.lm_head)
            for row, index in rows.wanted:
                found[index].append(logits[row])
        empty = torch.empty(0, self.config.vocab_size)
        return [torch.stack(f).float() if f else empty for f in found]

    def _mtp_input(self, ids: Any, hidden: Any) -> Any:
        """z of every head [heads, N, hidden] for tokens [heads, N] and hidden states [N, hidden]."""
        assert self.mtp is not None
        mtp = self.mtp
        embedded = self._rms_by_head(self.embed[ids], mtp.enorm)
        state = self._rms_by_head(hidden.expand(len(mtp.layers), -1, -1), mtp.hnorm)
        return torch.bmm(torch.cat((embedded, state), dim=-1), mtp.eh)

    # --- parts ----------------------------------------------------------------------------------------------------

    def _pools(self, attention: _Attention) -> tuple[Any, Any]:
        if attention.group == "full":
            return self.pools.full_k[attention.row], self.pools.full_v[attention.row]
        return self.pools.swa_k[attention.row], self.pools.swa_v[attention.row]

    def _rms(self, x: Any, weight: Any) -> Any:
        return F.rms_norm(x, weight.shape, weight, self.config.norm_eps)

    def _rms_by_head(self, x: Any, weights: Any) -> Any:
        """RMSNorm of x [heads, N, hidden] with one weight for each head [heads, 1, hidden]."""
        return F.rms_norm(x, x.shape[-1:], None, self.config.norm_eps) * weights

    def _rope_rows(self, kind: str, positions: Any) -> tuple[Any, Any]:
        """cos and sin [N, 1, rotary_dim] of positions, from a table that grows as positions do."""
        shape = self.config.full if kind == "full" else self.config.swa
        table = self._rope.get(kind)
        needed = int(positions[-1] if len(positions) == 1 else positions.max()) + 1
        if table is None or len(table[0]) < needed:
            size = 1 << max(10, (needed - 1).bit_length())
            table = self._rope[kind] = rope_table(shape, size, self.device, self.dtype)
        return table[0][positions], table[1][positions]

    def _attention(self, weights: AttentionWeights, group: Group, row: int) -> _Attention:
        shape = self.config.full if group == "full" else self.config.swa
        sink = None if weights.sink is None else _own(weights.sink)
        qkv = torch.cat((weights.q, weights.k, weights.v))
        return _Attention(shape, group, row, qkv, _own(weights.o), sink)

    def _stack_mtp(self, weights: ModelWeights) -> _Mtp:
        layers = []
        for k, head in enumerate(weights.mtp):
            attention = self._attention(head.attention, "swa", self.pools.swa_layers + k)
            layers.append(_Layer(attention, _own(head.input_norm), _own(head.pre_mlp_norm), _own_ffn(head.ffn)))

        def stack(tensors: list[Any]) -> Any:
            return torch.stack(tensors).unsqueeze(1)

        heads = weights.mtp
        return _Mtp(
            layers,
            stack([h.enorm for h in heads]),
            stack([h.hnorm for h in heads]),
            torch.stack([h.eh_proj.t() for h in heads]).contiguous(),
            stack([h.input_norm for h in heads]),
            torch.stack([torch.cat((h.attention.k, h.attention.v)).t() for h in heads]).contiguous(),
            [_own(h.final_norm) for h in heads],
        )


def rope_table(shape: AttentionShape, size: int, device: Any, dtype: Any) -> tuple[Any, Any]:
    """cos and sin [size, 1, rotary_dim] in the rotate-half form: angle of dims j and j + rotary_dim / 2 is
    position * theta^(-2 j / rotary_dim), in fp32. The first half of sin is negated: x cos + swap(x) sin rotates.
    """
    inverse = 1.0 / shape.rope_theta ** (torch.arange(0, shape.rotary_dim, 2, dtype=torch.float32) / shape.rotary_dim)
    angle = torch.arange(size, dtype=torch.float32)[:, None] * inverse
    cos, sin = angle.cos(), angle.sin()
    cos, sin = torch.cat((cos, cos), -1).unsqueeze(1), torch.cat((-sin, sin), -1).unsqueeze(1)
    return cos.to(device=device, dtype=dtype), sin.to(device=device, dtype=dtype)


def _rotate(x: Any, cos: Any, sin: Any) -> Any:
    """RoPE on the first rotary dims of x [..., N, heads, dim]; cos and sin [N, 1, rotary_dim]."""
    rotary = cos.shape[-1]
    turned = x[..., :rotary]
    swapped = turned.roll(rotary // 2, -1)
    return torch.cat((turned * cos + swapped * sin, x[..., rotary:]), -1)


def _own(tensor: Any) -> Any:
    """The tensor, contiguous and aligned as torch allocates, so that two loads of one checkpoint run the same
    instructions; a tensor mapped from a file may lie anywhere."""
    tensor = tensor.detach()
    if tensor.is_contiguous() and tensor.data_ptr() % 64 == 0:
        return tensor
    return tensor.clone(memory_format=torch.contiguous_format)


def _own_ffn(ffn: DenseWeights | MoeWeights) -> DenseWeights | MoeWeights:
    if isinstance(ffn, MoeWeights):
        return MoeWeights(_own(ffn.router), _own(ffn.bias), _own(ffn.gate_up), _own(ffn.down))
    return DenseWeights(_own(ffn.gate_up), _own(ffn.down))
