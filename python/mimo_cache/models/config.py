"""What a MiMo-V2 model is: the shape of its layers and the numbers of its formulas.

`spelling.py` says how a `config.json` is read; the rules are those of `mimo_cache.Geometry`, so that the cache and the
model agree on every window. This module needs no torch.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from .errors import bad
from .fields import Fields, eos_ids
from .files import read_limited

MAX_TEXT = 4 << 20
"""Longest `config.json`, in bytes."""
MAX_EXPERTS = 1 << 18
"""Most experts over all layers (V2.5-Pro has 26,496): bounds the table of tensors."""


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """One kind of attention layer."""

    heads: int
    """Query heads; a multiple of `kv_heads`. Query head h reads KV head h // (heads // kv_heads)."""
    kv_heads: int
    k_dim: int
    """Dimension of a query or key head. Scores are scaled by 1 / sqrt(k_dim)."""
    v_dim: int
    """Dimension of a value head."""
    rotary_dim: int
    """First dims of q and k that RoPE rotates (even); dim i pairs with i + rotary_dim // 2."""
    rope_theta: float
    sink: bool
    """Each query head has a sink."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A model. Sizes are in elements."""

    architecture: str
    model_type: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    """Trunk layers, MTP heads not counted."""
    layer_kinds: tuple[str, ...]
    """"full" or "swa" for each trunk layer. MTP heads are "swa"."""
    full: AttentionShape
    swa: AttentionShape
    """Without SWA layers the same as `full`, and unused."""
    window_keys: int
    """Keys an SWA query sees, itself included; 0 without SWA layers."""
    value_scale: float
    """Multiplies V before it is stored; 1.0 when the file has none."""
    moe_layers: tuple[bool, ...]
    """For each trunk layer: experts, or one dense FFN. MTP heads are dense."""
    dense_size: int
    expert_size: int
    """This and the next two are 0 for a model without experts."""
    num_experts: int
    experts_per_token: int
    norm_topk_prob: bool
    """The weights of the chosen experts are divided by their sum."""
    routed_scaling: float
    n_group: int
    topk_group: int
    norm_eps: float
    mtp_heads: int
    max_positions: int
    fused_qkv: bool
    """Checkpoints hold one `qkv_proj` of interleaved slabs (see `qkv.py`) instead of three matrices."""
    eos_token_ids: tuple[int, ...]
    dtype: str
    """What the file says the model computes in: "bfloat16", "float16" or "float32"."""

    def __post_init__(self) -> None:
        for name, kind in (("full", self.full), ("SWA", self.swa)):
            if kind.heads % kind.kv_heads:
                allowed = f"a multiple of the {kind.kv_heads} KV heads"
                raise bad(f"query heads of the {name} layers", str(kind.heads), allowed)
            if kind.rotary_dim % 2 or not 0 < kind.rotary_dim <= kind.k_dim:
                allowed = f"an even number from 2 to {kind.k_dim}"
                raise bad(f"rotated dimensions of the {name} layers", str(kind.rotary_dim), allowed)
        if self.mtp_heads and "swa" not in self.layer_kinds:
            allowed = "0 for a model without SWA layers, since MTP heads are SWA layers"
            raise bad("mtp_heads", str(self.mtp_heads), allowed)
        if self.fused_qkv and (self.swa.heads % self.full.kv_heads or self.swa.kv_heads % self.full.kv_heads):
            allowed = f"multiples of the {self.full.kv_heads} KV heads of the full layers, which are the fused slabs"
            raise bad("SWA heads / KV heads", f"{self.swa.heads} / {self.swa.kv_heads}", allowed)
        if self.experts_per_token > self.num_experts:
            raise bad("num_experts_per_tok", str(self.experts_per_token), f"at most {self.num_experts}")
        experts = sum(self.moe_layers) * self.num_experts
        if experts > MAX_EXPERTS:
            raise bad("number of experts over all layers", str(experts), f"at most {MAX_EXPERTS}")

    def shape(self, kind: str) -> AttentionShape:
        """The shape of layers of this kind, "full" or "swa"."""
        return self.full if kind == "full" else self.swa

    @classmethod
    def from_dict(
        cls, config: Mapping[str, object], *, mtp_heads: int | None = None, hub_window_plus: int = 1
    ) -> ModelConfig:
        """From a parsed `config.json`, in the hub's spelling, transformers', or both at once.

        A file with `hybrid_layer_pattern` is in the hub's spelling: an SWA query sees `sliding_window_size` (else
        `sliding_window`) keys before it plus `hub_window_plus` (1 for itself; 0 for code that counts it inside).
        Without it, `sliding_window` counts the query's own key. Where both spellings say one fact they must agree.
        `mtp_heads` overrides the file, whose rule is `num_nextn_predict_layers`, else 3, in the hub's spelling and 0
        in transformers'. Raises `ConfigError`.
        """
        from .spelling import read  # noqa: PLC0415  it imports this module

        return cls(**read(config, mtp_heads, hub_window_plus))

    @classmethod
    def from_path(
        cls, path: str | os.PathLike[str], *, mtp_heads: int | None = None, hub_window_plus: int = 1
    ) -> ModelConfig:
        """`from_dict` of a file, or of `config.json` in a directory. Raises `FileError` and `ConfigError`.

        The ids in a directory's `generation_config.json`, where the hub keeps most of them, join `eos_token_ids`.
        """
        file = Path(path)
        generation = file / "generation_config.json"
        if os.path.isdir(file):
            file /= "config.json"
        config = cls.from_dict(read_json(file), mtp_heads=mtp_heads, hub_window_plus=hub_window_plus)
        if not os.path.exists(generation):
            return config
        more = eos_ids(Fields(read_json(generation)), config.vocab_size)
        return replace(config, eos_token_ids=tuple(dict.fromkeys(config.eos_token_ids + more)))


def read_json(file: Path) -> Mapping[str, object]:
    """The JSON object in `file`, of at most `MAX_TEXT` bytes."""
    data = read_limited(file, MAX_TEXT)
    if data is None:
        raise bad("length of the file", f"over {MAX_TEXT} bytes", f"at most {MAX_TEXT} bytes")
    try:
        value = json.loads(data.decode(), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        said = str(error)[:100]
        raise bad("the file", f"not JSON ({said})", "one JSON object") from error
    if not isinstance(value, dict):
        raise bad("the file", f"a JSON {type(value).__name__}", "one JSON object")
    return value


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")
