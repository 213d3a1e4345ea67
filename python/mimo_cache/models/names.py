"""The table of tensors that a checkpoint must hold, by the names of the hub.

`tensors` makes it from a config alone and needs no torch. Each row says the tensor's name, its shape, how it may be
stored, and the place in `ModelWeights` where it goes, so that names and containers meet in this file only.

Storage:
- "plain": F32, BF16 or F16 (norms, embeddings, sinks, router, bias, `eh_proj`);
- "matrix": plain, or F8_E4M3 with float32 factors for blocks of 128 x 128 in `<name>_scale_inv`;
- "qkv": as "matrix", with rows and factors in slabs (`qkv.py`).

`docs/models.md` lists the names with an example.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import TypeAlias

from .config import AttentionShape, ModelConfig

BLOCK = 128
"""Rows and columns of fp8 weights that share one factor."""

Step: TypeAlias = str | int | slice
"""An attribute of a container, an index or rows of a tensor."""

IGNORED_PREFIXES = tuple(
    start + tower for start in ("", "model.") for tower in ("visual.", "audio_encoder.", "speech_embeddings.")
)
"""Towers of the omni checkpoints of V2.5, which the text model does not use."""
IGNORED_SUFFIX = ".rotary_emb.inv_freq"
"""Buffers that old writers stored; they follow from the config."""
MTP_PREFIX = "model.mtp."


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One row of the table."""

    name: str
    shape: tuple[int, ...]
    storage: str
    """"plain", "matrix" or "qkv"."""
    place: tuple[Step, ...]
    """Way from `ModelWeights` to where it goes; for "qkv" to the `AttentionWeights`."""
    slabs: int = 1
    """Parts of equal height whose blocks of factors start anew."""

    @property
    def scale_name(self) -> str:
        """Name of the fp8 factors."""
        return f"{self.name}_scale_inv"

    @property
    def scale_shape(self) -> tuple[int, int]:
        """Shape of the fp8 factors: each slab has its own ceil(rows / 128) rows, edges are ragged."""
        rows, columns = self.shape
        return self.slabs * -(-(rows // self.slabs) // BLOCK), -(-columns // BLOCK)

    @property
    def parameters(self) -> int:
        """Elements."""
        return prod(self.shape)


def tensors(config: ModelConfig) -> Iterator[TensorSpec]:
    """Every tensor that must be there, without fp8 factors: trunk first, then `config.mtp_heads` MTP heads."""
    hidden, vocab = config.hidden_size, config.vocab_size
    yield TensorSpec("model.embed_tokens.weight", (vocab, hidden), "plain", ("embed",))
    for i, (kind, moe) in enumerate(zip(config.layer_kinds, config.moe_layers, strict=True)):
        name, place = f"model.layers.{i}.", ("layers", i)
        yield TensorSpec(f"{name}input_layernorm.weight", (hidden,), "plain", (*place, "input_norm"))
        yield from _attention(config, config.shape(kind), f"{name}self_attn.", (*place, "attention"))
        yield TensorSpec(f"{name}post_attention_layernorm.weight", (hidden,), "plain", (*place, "post_norm"))
        ffn = _experts if moe else _dense
        yield from ffn(config, f"{name}mlp.", (*place, "ffn"))
    yield TensorSpec("model.norm.weight", (hidden,), "plain", ("norm",))
    yield TensorSpec("lm_head.weight", (vocab, hidden), "plain", ("lm_head",))
    for k in range(config.mtp_heads):
        name, place = f"{MTP_PREFIX}layers.{k}.", ("mtp", k)
        for norm in ("enorm", "hnorm"):
            yield TensorSpec(f"{name}{norm}.weight", (hidden,), "plain", (*place, norm))
        yield TensorSpec(f"{name}eh_proj.weight", (hidden, 2 * hidden), "plain", (*place, "eh_proj"))
        yield TensorSpec(f"{name}input_layernorm.weight", (hidden,), "plain", (*place, "input_norm"))
        yield from _attention(config, config.swa, f"{name}self_attn.", (*place, "attention"))
        yield TensorSpec(f"{name}pre_mlp_layernorm.weight", (hidden,), "plain", (*place, "pre_mlp_norm"))
        yield from _dense(config, f"{name}mlp.", (*place, "ffn"))
        yield TensorSpec(f"{name}final_layernorm.weight", (hidden,), "plain", (*place, "final_norm"))


def _attention(config: ModelConfig, shape: AttentionShape, name: str, place: tuple[Step, ...]) -> Iterator[TensorSpec]:
    hidden = config.hidden_size
    q, k, v = shape.heads * shape.k_dim, shape.kv_heads * shape.k_dim, shape.kv_heads * shape.v_dim
    if config.fused_qkv:
        # The slabs are the KV heads of the full layers, in SWA layers and MTP heads too.
        yield TensorSpec(f"{name}qkv_proj.weight", (q + k + v, hidden), "qkv", place, config.full.kv_heads)
    else:
        for letter, rows in (("q", q), ("k", k), ("v", v)):
            yield TensorSpec(f"{name}{letter}_proj.weight", (rows, hidden), "matrix", (*place, letter))
    yield TensorSpec(f"{name}o_proj.weight", (hidden, shape.heads * shape.v_dim), "matrix", (*place, "o"))
    if shape.sink:
        yield TensorSpec(f"{name}attention_sink_bias", (shape.heads,), "plain", (*place, "sink"))


def _dense(config: ModelConfig, name: str, place: tuple[Step, ...]) -> Iterator[TensorSpec]:
    yield from _swiglu(config.hidden_size, config.dense_size, name, place)


def _experts(config: ModelConfig, name: str, place: tuple[Step, ...]) -> Iterator[TensorSpec]:
    count, hidden = config.num_experts, config.hidden_size
    yield TensorSpec(f"{name}gate.weight", (count, hidden), "plain", (*place, "router"))
    yield TensorSpec(f"{name}gate.e_score_correction_bias", (count,), "plain", (*place, "bias"))
    for e in range(count):
        yield from _swiglu(hidden, config.expert_size, f"{name}experts.{e}.", place, (e,))


def _swiglu(
    hidden: int, size: int, name: str, place: tuple[Step, ...], expert: tuple[int, ...] = ()
) -> Iterator[TensorSpec]:
    """gate and up share one tensor, the rows of gate first."""
    for part, rows in (("gate", slice(0, size)), ("up", slice(size, 2 * size))):
        yield TensorSpec(f"{name}{part}_proj.weight", (size, hidden), "matrix", (*place, "gate_up", *expert, rows))
    yield TensorSpec(f"{name}down_proj.weight", (hidden, size), "matrix", (*place, "down", *expert))


def ignored(name: str, config: ModelConfig) -> bool:
    """A tensor that real checkpoints carry and this model does not use: never read, no reason for an error."""
    if name.startswith(MTP_PREFIX):
        # Heads beyond those that are used.
        head = name.removeprefix(f"{MTP_PREFIX}layers.").partition(".")[0]
        return not config.mtp_heads or (head.isdecimal() and len(head) < 6 and int(head) >= config.mtp_heads)
    return name.startswith(IGNORED_PREFIXES) or name.endswith(IGNORED_SUFFIX)


def parameters(config: ModelConfig) -> tuple[int, int]:
    """Parameters of trunk and MTP heads. V2-Flash: 308.8e9 and 0.99e9, V2.5-Pro: 1,021e9 and 1.9e9."""
    trunk = mtp = 0
    for spec in tensors(config):
        if spec.name.startswith(MTP_PREFIX):
            mtp += spec.parameters
        else:
            trunk += spec.parameters
    return trunk, mtp
