"""The network that is trained: MiMo-V2 as torch modules, written for the backward pass on a CPU.

It shares no code with the inference model, so that either can be the other's oracle. Names of modules are those of hub
checkpoints, except that a layer's experts are stacked. Shapes in comments: B sequences, T tokens, C hidden size.

SWA attention works on blocks of W tokens (W = window_keys - 1): the queries of a block see the keys of their own block
and the one before, so its cost is linear in T.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .settings import Shape


class Norm(nn.Module):
    """RMSNorm over the last dimension."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


class Rope(nn.Module):
    """Rotate-half RoPE on the leading dims of q and k: dim i pairs with dim i + rotated / 2."""

    def __init__(self, rotated: int, theta: float) -> None:
        super().__init__()
        self.rotated = rotated
        self.register_buffer("inv_freq", theta ** (-torch.arange(0, rotated, 2) / rotated), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """x: [B, T, heads, dim], token t at position t."""
        angles = torch.arange(x.shape[1], dtype=torch.float32)[:, None, None] * self.inv_freq
        cos, sin = angles.cos(), angles.sin()
        a, b, rest = x.split([self.rotated // 2, self.rotated // 2, x.shape[-1] - self.rotated], dim=-1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin, rest), dim=-1)


class Attention(nn.Module):
    """GQA over one group's keys: full layers see all, SWA layers `window_keys` keys and a sink per head."""

    def __init__(self, shape: Shape, swa: bool) -> None:
        super().__init__()
        self.shape, self.swa = shape, swa
        self.kv_heads = shape.swa_kv_heads if swa else shape.full_kv_heads
        self.q_proj = nn.Linear(shape.hidden, shape.heads * shape.k_dim, bias=False)
        self.k_proj = nn.Linear(shape.hidden, self.kv_heads * shape.k_dim, bias=False)
        self.v_proj = nn.Linear(shape.hidden, self.kv_heads * shape.v_dim, bias=False)
        self.o_proj = nn.Linear(shape.heads * shape.v_dim, shape.hidden, bias=False)
        self.rope = Rope(shape.rotated, shape.swa_theta if swa else shape.full_theta)
        if swa:
            self.attention_sink_bias = nn.Parameter(torch.zeros(shape.heads))

    def forward(self, x: Tensor) -> Tensor:
        b, t, _ = x.shape
        s = self.shape
        qkv = F.linear(x, torch.cat((self.q_proj.weight, self.k_proj.weight, self.v_proj.weight)))
        qk_heads = s.heads + self.kv_heads
        qk = self.rope(qkv[..., : qk_heads * s.k_dim].view(b, t, qk_heads, s.k_dim))
        q, k = qk[:, :, : s.heads], qk[:, :, s.heads :]
        v = (qkv[..., qk_heads * s.k_dim :] * s.value_scale).view(b, t, self.kv_heads, s.v_dim)
        mixed = self._window(q, k, v) if self.swa else self._causal(q, k, v)
        return self.o_proj(mixed.reshape(b, t, -1))

    def _causal(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """[B, T, heads, v_dim]. V is padded to K's width, which the CPU's fast kernel asks for."""
        groups = self.shape.heads // self.kv_heads
        k, v = (z.transpose(1, 2).repeat_interleave(groups, 1) for z in (k, F.pad(v, (0, k.shape[-1] - v.shape[-1]))))
        out = F.scaled_dot_product_attention(q.transpose(1, 2), k, v, is_causal=True)
        return out.transpose(1, 2)[..., : self.shape.v_dim]

    def _window(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """[B, T, heads, v_dim]."""
        b, t, heads, dim = q.shape
        w, kv = self.shape.window_keys - 1, self.kv_heads
        g = heads // kv
        if t % w:
            q, k, v = (F.pad(z, (0, 0, 0, 0, 0, w - t % w)) for z in (q, k, v))
        n = q.shape[1] // w
        q = (q * dim**-0.5).view(b, n, w, kv, g, dim).permute(0, 1, 3, 4, 2, 5).reshape(b, n, kv, g * w, dim)
        k, v = (z.reshape(b, n, w, kv, -1).transpose(2, 3) for z in (k, v))
        k, v = (torch.cat((F.pad(z[:, :-1], (0, 0, 0, 0, 0, 0, 1, 0)), z), dim=3) for z in (k, v))
        scores = (q @ k.transpose(-1, -2)).view(b, n, kv, g, w, 2 * w)
        # Key j of the 2W sits at j - W from the block's start; query i sees keys i .. i + W of them.
        i, j = torch.arange(w)[:, None], torch.arange(2 * w)
        hidden = (j < i) | (j > i + w)
        first = (torch.arange(n) == 0)[:, None, None] & (j < w)
        scores = scores.masked_fill((hidden | first)[:, None, None], -torch.inf)
        sink = self.attention_sink_bias.view(kv, g, 1, 1).expand(b, n, kv, g, w, 1)
        p = torch.cat((scores, sink), dim=-1).softmax(-1)[..., :-1].reshape(b, n, kv, g * w, 2 * w)
        out = (p @ v).view(b, n, kv, g, w, -1).permute(0, 1, 4, 2, 3, 5)
        return out.reshape(b, n * w, heads, -1)[:, :t]


class Dense(nn.Module):
    """SwiGLU."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden, inner, bias=False)
        self.up_proj = nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = F.linear(x, torch.cat((self.gate_proj.weight, self.up_proj.weight))).chunk(2, -1)
        return self.down_proj(F.silu(gate) * up)


class Gate(nn.Module):
    """The router's weights. The bias only chooses; it learns from load, not from gradients."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(shape.experts, shape.hidden))
        self.register_buffer("e_score_correction_bias", torch.zeros(shape.experts))


class Moe(nn.Module):
    """Sigmoid-routed experts; tokens are sorted by expert, so that each expert runs once over its own rows.

    `load` holds the rows per expert of the last forward pass."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.top = shape.experts_per_token
        self.gate = Gate(shape)
        self.gate_up = nn.Parameter(torch.empty(shape.experts, 2 * shape.expert, shape.hidden))
        self.down = nn.Parameter(torch.empty(shape.experts, shape.hidden, shape.expert))
        self.load: Tensor = torch.zeros(shape.experts)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        scores = F.linear(rows, self.gate.weight).sigmoid()
        chosen = (scores.detach() + self.gate.e_score_correction_bias).topk(self.top, dim=-1).indices
        weights = scores.gather(1, chosen)
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        order = chosen.flatten().argsort(stable=True)
        self.load = torch.bincount(chosen.flatten(), minlength=self.gate_up.shape[0])
        counts = self.load.tolist()
        parts = zip(
            rows.index_select(0, order // self.top).split(counts),
            weights.flatten().index_select(0, order)[:, None].split(counts),
            self.gate_up.unbind(),
            self.down.unbind(),
            strict=True,
        )
        done = []
        for part, weight, gate_up, down in parts:
            gate, up = (part @ gate_up.T).chunk(2, -1)
            # A token's weight for the expert goes in here, where its row is narrowest.
            done.append((F.silu(gate) * (up * weight)) @ down.T)
        back = torch.cat(done).index_select(0, order.argsort())
        return back.view(-1, self.top, rows.shape[-1]).sum(1).view_as(x)


class Block(nn.Module):
    """A pre-norm trunk layer."""

    def __init__(self, shape: Shape, index: int) -> None:
        super().__init__()
        self.input_layernorm = Norm(shape.hidden, shape.eps)
        self.self_attn = Attention(shape, bool(shape.pattern[index]))
        self.post_attention_layernorm = Norm(shape.hidden, shape.eps)
        self.mlp = Moe(shape) if index else Dense(shape.hidden, shape.dense)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class MtpHead(nn.Module):
    """One SWA block over [embedding of a later token ; trunk's hidden state]."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.enorm = Norm(shape.hidden, shape.eps)
        self.hnorm = Norm(shape.hidden, shape.eps)
        self.eh_proj = nn.Linear(2 * shape.hidden, shape.hidden, bias=False)
        self.input_layernorm = Norm(shape.hidden, shape.eps)
        self.self_attn = Attention(shape, swa=True)
        self.pre_mlp_layernorm = Norm(shape.hidden, shape.eps)
        self.mlp = Dense(shape.hidden, shape.dense)
        self.final_layernorm = Norm(shape.hidden, shape.eps)

    def forward(self, embedded: Tensor, hidden: Tensor) -> Tensor:
        x = self.eh_proj(torch.cat((self.enorm(embedded), self.hnorm(hidden)), dim=-1))
        x = x + self.self_attn(self.input_layernorm(x))
        return self.final_layernorm(x + self.mlp(self.pre_mlp_layernorm(x)))


class Trunk(nn.Module):
    """Embedding, layers and final norm; holds the MTP heads under the hub's names."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocab, shape.hidden)
        self.layers = nn.ModuleList(Block(shape, i) for i in range(len(shape.pattern)))
        self.norm = Norm(shape.hidden, shape.eps)
        self.mtp = nn.ModuleDict({"layers": nn.ModuleList(MtpHead(shape) for _ in range(shape.mtp_heads))})


class Net(nn.Module):
    """The whole model. Weights come from torch's global generator: seed it first."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.model = Trunk(shape)
        self.lm_head = nn.Linear(shape.hidden, shape.vocab, bias=False)
        depth = (2 * len(shape.pattern)) ** -0.5
        for name, p in self.named_parameters():
            if p.ndim >= 2:
                # Fan-in scale; branches that add to the residual stream are smaller the more of them there are.
                std = 0.5 if "embed_tokens" in name else p.shape[-1] ** -0.5
                std *= depth if name.endswith(("o_proj.weight", "down_proj.weight", ".down")) else 1.0
                std *= 0.2 if "lm_head" in name else 1.0
                nn.init.normal_(p, std=std)

    def hidden(self, ids: Tensor) -> Tensor:
        """ids [B, T] -> the trunk's hidden states after model.norm, [B, T, C]."""
        x = self.model.embed_tokens(ids)
        for layer in self.model.layers:
            x = layer(x)
        return self.model.norm(x)

    def forward(self, ids: Tensor) -> Tensor:
        """ids [B, T] -> logits [B, T, vocab]."""
        return self.lm_head(self.hidden(ids))

    def draft(self, head: int, ids: Tensor, hidden: Tensor) -> Tensor:
        """Logits [B, T, vocab] of MTP head `head`: row i predicts the token at i + head + 2.

        ids [B, T]: row i holds the token at i + head + 1. hidden [B, T, C]: of the trunk, row i of position i."""
        return self.lm_head(self.model.mtp["layers"][head](self.model.embed_tokens(ids), hidden))

    def losses(self, ids: Tensor) -> Tensor:
        """Mean cross entropy in nats, [1 + mtp_heads]: the trunk's, then each head's.

        ids [B, T + 1 + mtp_heads]: T positions are trained."""
        t = ids.shape[1] - 1 - self.shape.mtp_heads
        hidden = self.hidden(ids[:, :t])
        logits = [self.lm_head(hidden)]
        logits += [self.draft(k, ids[:, k + 1 : t + k + 1], hidden) for k in range(self.shape.mtp_heads)]
        return torch.stack(
            [F.cross_entropy(z.flatten(0, 1), ids[:, k + 1 : t + k + 1].flatten()) for k, z in enumerate(logits)]
        )
