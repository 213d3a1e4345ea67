"""The weights of a model as plain torch tensors, in the layout that kernels read.

Every matrix is [rows out, columns in], so that `y = x @ w.T`. Matrices, norms and sinks have the dtype that was asked
of `load`; router and bias are always float32. H query heads, KV heads of keys and values, k_dim and v_dim come from
the layer's `AttentionShape`; I is `dense_size` or `expert_size`, E `num_experts`, V `vocab_size`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(slots=True)
class AttentionWeights:
    """One attention. The value scale of the config is not in `v`: kernels multiply by it before they store V."""

    q: Tensor
    """[H * k_dim, hidden], heads in order."""
    k: Tensor
    """[KV * k_dim, hidden]."""
    v: Tensor
    """[KV * v_dim, hidden]."""
    o: Tensor
    """[hidden, H * v_dim]."""
    sink: Tensor | None
    """[H], a logit per query head that only adds to the denominator; None for a layer without sinks."""


@dataclass(slots=True)
class DenseWeights:
    """SwiGLU: down(silu(gate x) * up x)."""

    gate_up: Tensor
    """[2 * I, hidden], the rows of gate first."""
    down: Tensor
    """[hidden, I]."""


@dataclass(slots=True)
class MoeWeights:
    """Experts, each a SwiGLU, and the router that chooses among them."""

    router: Tensor
    """[E, hidden], float32."""
    bias: Tensor
    """[E], float32; added to the scores for the choice only."""
    gate_up: Tensor
    """[E, 2 * I, hidden], the rows of gate first."""
    down: Tensor
    """[E, hidden, I]."""


FfnWeights: TypeAlias = DenseWeights | MoeWeights


@dataclass(slots=True)
class LayerWeights:
    """One trunk layer."""

    input_norm: Tensor
    """[hidden], before attention."""
    attention: AttentionWeights
    post_norm: Tensor
    """[hidden], between attention and FFN."""
    ffn: FfnWeights


@dataclass(slots=True)
class MtpWeights:
    """One MTP head: an SWA layer over [embedding of the next token ; hidden state of the trunk]."""

    enorm: Tensor
    """[hidden], of the embedding."""
    hnorm: Tensor
    """[hidden], of the trunk's hidden state."""
    eh_proj: Tensor
    """[hidden, 2 * hidden], the columns of the embedding first."""
    input_norm: Tensor
    """[hidden]."""
    attention: AttentionWeights
    pre_mlp_norm: Tensor
    """[hidden]."""
    ffn: DenseWeights
    final_norm: Tensor
    """[hidden], before the trunk's `lm_head`."""


@dataclass(slots=True)
class ModelWeights:
    """A whole model."""

    embed: Tensor
    """[V, hidden]."""
    layers: list[LayerWeights]
    norm: Tensor
    """[hidden], after the last layer."""
    lm_head: Tensor
    """[V, hidden]."""
    mtp: list[MtpWeights]
    """Empty when MTP heads were not asked for."""
