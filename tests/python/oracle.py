"""MiMo-V2 the slow way: one sequence, float64, a loop over positions, heads and experts, no cache and no batches.

Everything is written from the published formulas and meant to be read beside them; it shares nothing with the runner
but the containers of weights. Each rule that a runner can get wrong is a method of its own, so that a test can break it
and show that the difference would be seen.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mimo_cache.models.config import AttentionShape, ModelConfig
from mimo_cache.models.weights import AttentionWeights, DenseWeights, ModelWeights, MoeWeights

Array = npt.NDArray[np.float64]


@dataclass
class Trace:
    """What the trunk makes of n tokens. hidden [n, hidden] is the state after the last norm; logits [n, vocab]; keys
    and values hold one array [n, KV heads, dim] for each layer, as a cache stores them."""

    hidden: Array
    logits: Array
    keys: list[Array]
    values: list[Array]


@dataclass
class Draft:
    """What one MTP head makes of rows whose tokens are known. logits [rows, vocab]; keys, values [rows, KV, dim]."""

    logits: Array
    keys: Array
    values: Array


class Oracle:
    """A model in float64."""

    def __init__(self, config: ModelConfig, weights: ModelWeights) -> None:
        self.config, self.weights = config, weights
        self.doubles: dict[int, Array] = {}

    def double(self, tensor: Any) -> Array:
        """A tensor as float64, converted once."""
        if id(tensor) not in self.doubles:
            self.doubles[id(tensor)] = tensor.detach().double().cpu().numpy()
        return self.doubles[id(tensor)]

    # --- the rules ------------------------------------------------------------------------------------------------

    def sees(self, kind: str, query: int, key: int) -> bool:
        """Whether the query at one position sees the key at another."""
        return key <= query and (kind == "full" or query - key < self.config.window_keys)

    def kv_head(self, shape: AttentionShape, head: int) -> int:
        """The KV head that a query head reads."""
        return head // (shape.heads // shape.kv_heads)

    def rotate(self, shape: AttentionShape, x: Array, position: int) -> Array:
        """RoPE of one head's vector: dim j turns with dim j + rotary_dim / 2, the dims behind rotary_dim stay."""
        half = shape.rotary_dim // 2
        out = x.copy()
        for j in range(half):
            angle = position * shape.rope_theta ** (-2.0 * j / shape.rotary_dim)
            out[j] = x[j] * np.cos(angle) - x[j + half] * np.sin(angle)
            out[j + half] = x[j + half] * np.cos(angle) + x[j] * np.sin(angle)
        return out

    def value(self, v: Array) -> Array:
        """V as it is stored."""
        return v * self.config.value_scale

    def mix(self, scores: Array, values: Array, sink: float | None) -> Array:
        """Weighted sum of values [keys, dim]. The sink adds to the denominator and to nothing else."""
        top = max(scores.max(), -np.inf if sink is None else sink)
        weights = np.exp(scores - top)
        total = weights.sum() + (0.0 if sink is None else np.exp(sink - top))
        mixed: Array = (weights / total) @ values
        return mixed

    def route(self, x: Array, ffn: MoeWeights) -> list[tuple[int, float]]:
        """Chosen experts of one row and their weights. The bias takes part in the choice only."""
        scores = 1.0 / (1.0 + np.exp(-(self.double(ffn.router) @ x)))
        chosen = np.argsort(-(scores + self.double(ffn.bias)), kind="stable")[: self.config.experts_per_token]
        total = scores[chosen].sum() + 1e-20 if self.config.norm_topk_prob else 1.0
        return [(int(e), float(scores[e] / total * self.config.routed_scaling)) for e in chosen]

    def token_of_head(self, head: int, position: int) -> int:
        """The position of the token that an MTP head's row at `position` is made of."""
        return position + head + 1

    # --- the parts ------------------------------------------------------------------------------------------------

    def norm(self, x: Array, weight: Any) -> Array:
        """RMSNorm over the last axis."""
        normed: Array = self.double(weight) * x / np.sqrt((x * x).mean(-1, keepdims=True) + self.config.norm_eps)
        return normed

    def swiglu(self, x: Array, gate_up: Array, down: Array) -> Array:
        """down(silu(gate x) * up x) of one row."""
        both = gate_up @ x
        gate, up = both[: len(both) // 2], both[len(both) // 2 :]
        out: Array = down @ (gate / (1.0 + np.exp(-gate)) * up)
        return out

    def ffn(self, x: Array, ffn: DenseWeights | MoeWeights) -> Array:
        """The FFN of rows [n, hidden]."""
        gate_up, down = self.double(ffn.gate_up), self.double(ffn.down)
        if isinstance(ffn, DenseWeights):
            return np.stack([self.swiglu(row, gate_up, down) for row in x])
        out = np.zeros_like(x)
        for i, row in enumerate(x):
            for expert, weight in self.route(row, ffn):
                out[i] += weight * self.swiglu(row, gate_up[expert], down[expert])
        return out

    def attention(self, kind: str, x: Array, weights: AttentionWeights) -> tuple[Array, Array, Array]:
        """Attention of rows [n, hidden] at positions 0 to n - 1: output [n, hidden], stored K and V."""
        shape, n = self.config.shape(kind), len(x)
        q = (x @ self.double(weights.q).T).reshape(n, shape.heads, shape.k_dim)
        k = (x @ self.double(weights.k).T).reshape(n, shape.kv_heads, shape.k_dim)
        v = self.value((x @ self.double(weights.v).T).reshape(n, shape.kv_heads, shape.v_dim))
        for i in range(n):
            q[i] = [self.rotate(shape, head, i) for head in q[i]]
            k[i] = [self.rotate(shape, head, i) for head in k[i]]
        sinks = None if weights.sink is None else self.double(weights.sink)
        out = np.zeros((n, shape.heads, shape.v_dim))
        for i in range(n):
            keys = [j for j in range(n) if self.sees(kind, i, j)]
            for head in range(shape.heads):
                kv = self.kv_head(shape, head)
                scores = k[keys, kv] @ q[i, head] / np.sqrt(shape.k_dim)
                out[i, head] = self.mix(scores, v[keys, kv], None if sinks is None else float(sinks[head]))
        return out.reshape(n, -1) @ self.double(weights.o).T, k, v

    # --- the model ------------------------------------------------------------------------------------------------

    def trunk(self, tokens: Sequence[int]) -> Trace:
        """The trunk over a whole sequence."""
        w = self.weights
        x = self.double(w.embed)[list(tokens)]
        keys, values = [], []
        for kind, layer in zip(self.config.layer_kinds, w.layers, strict=True):
            mixed, k, v = self.attention(kind, self.norm(x, layer.input_norm), layer.attention)
            keys.append(k)
            values.append(v)
            x = x + mixed
            x = x + self.ffn(self.norm(x, layer.post_norm), layer.ffn)
        hidden = self.norm(x, w.norm)
        return Trace(hidden, hidden @ self.double(w.lm_head).T, keys, values)

    def draft(self, head: int, tokens: Sequence[int], hidden: Array) -> Draft:
        """One MTP head over every row whose token is among `tokens`; `hidden` is the trunk's."""
        w = self.weights.mtp[head]
        rows = [i for i in range(len(hidden)) if self.token_of_head(head, i) < len(tokens)]
        ids = [tokens[self.token_of_head(head, i)] for i in rows]
        embedded = self.norm(self.double(self.weights.embed)[ids], w.enorm)
        state = self.norm(hidden[rows], w.hnorm)
        x = np.concatenate((embedded, state), axis=1) @ self.double(w.eh_proj).T
        mixed, k, v = self.attention("swa", self.norm(x, w.input_norm), w.attention)
        x = x + mixed
        x = x + self.ffn(self.norm(x, w.pre_mlp_norm), w.ffn)
        return Draft(self.norm(x, w.final_norm) @ self.double(self.weights.lm_head).T, k, v)
