"""Reads a `config.json` in the hub's spelling of MiMo-V2, in transformers', or with both in one file.

The spelling is the hub's exactly when `hybrid_layer_pattern` is there: the rule of `mimo_cache.Geometry`. A fact that
both spellings give must agree, and the error names both values.

| fact | hub | transformers (mimo_v2_flash, 5.20 and later) |
| --- | --- | --- |
| kinds of layers | `hybrid_layer_pattern`, 0 full, 1 SWA | `layer_types` |
| layers with experts | `moe_layer_freq`, 0 dense, 1 experts; absent: none | `mlp_layer_types` |
| keys an SWA query sees | `sliding_window_size`, else `sliding_window`, plus 1 | `sliding_window` |
| RoPE | `rope_theta`, `swa_rope_theta`, `partial_rotary_factor` | `rope_parameters` for each kind of layer |
| epsilon of norms | `layernorm_epsilon` | `rms_norm_eps` |
| KV heads of SWA layers | `swa_num_key_value_heads`, else the full layers' (so each `swa_*`) | twice the full layers' |
| sinks | `add_swa_attention_sink_bias`, `add_full_attention_sink_bias` | SWA layers only |
| MTP heads | `num_nextn_predict_layers`, else 3 | none |

A file without any list of layers has full layers only. What the formulas of this package do not compute (other
activations, biases, tied embeddings, shared experts, expert groups, scaled RoPE) is refused. No number that changes
tokens is guessed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from .config import AttentionShape
from .errors import bad, shown
from .fields import Fields, agreed, agreed_lists, eos_ids
from .support import dtype, names, refuse

HUB_MTP_HEADS = 3
"""MTP heads that checkpoints on the hub ship where their config does not say."""
# As in the core's geometry; the last ones bound what the table of tensors and single allocations can ask for.
MAX_LAYERS, MAX_HEADS, MAX_HEAD_DIM, MAX_WINDOW, MAX_MTP = 1024, 1024, 65_536, 1 << 20, 8
MAX_SIZE, MAX_VOCAB, MAX_POSITIONS = 1 << 20, 1 << 24, 1 << 31


def read(config: Mapping[str, object], mtp_heads: int | None, hub_window_plus: int) -> dict[str, Any]:
    """The arguments of `ModelConfig`."""
    if isinstance(hub_window_plus, bool) or hub_window_plus not in (0, 1):
        raise bad("hub_window_plus", shown(hub_window_plus), "0 or 1")
    if not isinstance(config, Mapping):
        raise bad("the config", f"a {type(config).__name__}", "a mapping")
    top = Fields(config)
    f = _text_fields(top)
    architecture, model_type = names(top, f)
    refuse(f)
    layers = f.required("num_hidden_layers", 1, MAX_LAYERS)
    hub = f.get("hybrid_layer_pattern") is not None
    kinds = _layer_kinds(f, layers)
    has_swa = "swa" in kinds
    full, swa = _shapes(f, hub, has_swa)
    moe = _moe_layers(f, layers, hub)
    vocab = f.required("vocab_size", 1, MAX_VOCAB)
    return {
        "architecture": architecture,
        "model_type": model_type,
        "vocab_size": vocab,
        "hidden_size": f.required("hidden_size", 1, MAX_SIZE),
        "num_layers": layers,
        "layer_kinds": tuple(kinds),
        "full": full,
        "swa": swa,
        "window_keys": _window_keys(f, hub, hub_window_plus) if has_swa else 0,
        "value_scale": _value_scale(f, hub),
        "moe_layers": tuple(moe),
        "dense_size": f.required("intermediate_size", 1, MAX_SIZE),
        **_experts(f, any(moe)),
        "norm_eps": _needed(
            f,
            ("layernorm_epsilon", f.real("layernorm_epsilon", 0, 1)),
            ("rms_norm_eps", f.real("rms_norm_eps", 0, 1)),
        ),
        "mtp_heads": _mtp_heads(f, mtp_heads, hub, has_swa),
        "max_positions": f.required("max_position_embeddings", 1, MAX_POSITIONS),
        "fused_qkv": f.get("attention_projection_layout") == "fused_qkv",
        "eos_token_ids": eos_ids(f, vocab) or eos_ids(top, vocab),
        "dtype": dtype(top, f),
    }


def _text_fields(top: Fields) -> Fields:
    """The text model's fields: in `text_config`, or at the top."""
    inner = top.inner("text_config")
    if inner is None:
        return top
    here, there = (x.number("num_hidden_layers", 1, MAX_LAYERS) for x in (top, inner))
    if there is None and here is not None:
        return top
    agreed(("text_config.num_hidden_layers", there), ("num_hidden_layers", here))
    return inner


def _layer_kinds(f: Fields, layers: int) -> list[str]:
    hub = {0: "full", 1: "swa"}
    named = {"full_attention": "full", "sliding_attention": "swa"}
    kinds = agreed_lists(
        (
            "hybrid_layer_pattern",
            f.items("hybrid_layer_pattern", layers, "0 (full) or 1 (SWA)", lambda v: _pick(hub, v, int)),
        ),
        (
            "layer_types",
            f.items(
                "layer_types",
                layers,
                '"full_attention" or "sliding_attention"',
                lambda v: _pick(named, v, str),
            ),
        ),
    )
    return ["full"] * layers if kinds is None else kinds


def _moe_layers(f: Fields, layers: int, hub: bool) -> list[bool]:
    freq = {0: False, 1: True}
    named = {"dense": False, "sparse": True}
    moe = agreed_lists(
        (
            "moe_layer_freq",
            f.items("moe_layer_freq", layers, "0 (dense) or 1 (experts)", lambda v: _pick(freq, v, int)),
        ),
        (
            "mlp_layer_types",
            f.items("mlp_layer_types", layers, '"dense" or "sparse"', lambda v: _pick(named, v, str)),
        ),
    )
    if moe is not None:
        return moe
    if not hub and f.get("layer_types") is not None:
        raise f.error("mlp_layer_types", "missing", f'a list of {layers}, each "dense" or "sparse"')
    return [False] * layers


def _pick(table: dict[Any, Any], value: object, kind: type) -> Any:
    """table[value], or None; true and 1.0 are not 1."""
    return table.get(value) if type(value) is kind else None


def _shapes(f: Fields, hub: bool, has_swa: bool) -> tuple[AttentionShape, AttentionShape]:
    """The shapes of full and SWA layers."""
    k_dim = f.required("head_dim", 1, MAX_HEAD_DIM)
    theta, factor = _rope(f, "full_attention", "rope_theta", None)
    # In transformers' spelling the class decides about sinks and SWA heads; fields may only repeat it.
    full_sink, swa_sink = f.flag("add_full_attention_sink_bias"), f.flag("add_swa_attention_sink_bias")
    if not hub:
        agreed(("transformers' mimo_v2_flash", False), ("add_full_attention_sink_bias", full_sink))
    full = AttentionShape(
        heads=f.required("num_attention_heads", 1, MAX_SIZE),
        kv_heads=f.required("num_key_value_heads", 1, MAX_HEADS),
        k_dim=k_dim,
        v_dim=f.required("v_head_dim", 1, MAX_HEAD_DIM),
        rotary_dim=int(k_dim * factor),
        rope_theta=theta,
        sink=bool(full_sink),
    )
    if not has_swa:
        return full, full
    theta, factor = _rope(f, "sliding_attention", "swa_rope_theta", full.rope_theta if hub else None)

    def of_swa(name: str, high: int, rule: int) -> int:
        given = f.number(name, 1, high)
        if given is not None and not hub and given != rule:
            raise f.error(name, str(given), f"{rule} without hybrid_layer_pattern")
        return rule if given is None else given

    swa_k_dim = of_swa("swa_head_dim", MAX_HEAD_DIM, k_dim)
    if not hub:
        agreed(("transformers' mimo_v2_flash", True), ("add_swa_attention_sink_bias", swa_sink))
    swa = replace(
        full,
        heads=of_swa("swa_num_attention_heads", MAX_SIZE, full.heads),
        kv_heads=of_swa("swa_num_key_value_heads", MAX_HEADS, full.kv_heads if hub else 2 * full.kv_heads),
        k_dim=swa_k_dim,
        v_dim=of_swa("swa_v_head_dim", MAX_HEAD_DIM, full.v_dim),
        rotary_dim=int(swa_k_dim * factor),
        rope_theta=theta,
        sink=bool(swa_sink) if hub else True,
    )
    return full, swa


def _rope(f: Fields, kind: str, theta_name: str, theta_rule: float | None) -> tuple[float, float]:
    """theta and the rotated part of a head, for one kind of layer."""
    outer = f.inner("rope_parameters")
    by_kind = None if outer is None else outer.inner(kind)
    path = f"rope_parameters.{kind}."
    if outer is not None and by_kind is None:
        # One set of numbers for all layers: its theta is that of the full layers.
        by_kind, path = outer, "rope_parameters."
    theta: float | None = None
    factor: float | None = None
    if by_kind is not None:
        by_kind.only("rope_type", "default")
        theta = by_kind.real("rope_theta", 0, 1e15)
        factor = by_kind.real("partial_rotary_factor", 0, 1)
        if path == "rope_parameters." and kind != "full_attention":
            theta = None
    own = f.real(theta_name, 0, 1e15)
    found = agreed((theta_name, own), (f"{path}rope_theta", theta))
    if found is None:
        found = theta_rule
    if found is None:
        raise f.error(theta_name, "missing", f"a number above 0, or rope_parameters.{kind}.rope_theta")
    own = f.real("partial_rotary_factor", 0, 1)
    part = _needed(f, ("partial_rotary_factor", own), (f"{path}partial_rotary_factor", factor))
    return found, part


def _needed(f: Fields, *given: tuple[str, float | None]) -> float:
    """`agreed`, which must be there."""
    value = agreed(*given)
    if value is None:
        raise f.error(given[0][0], "missing", f"a number, here or as {given[1][0]}")
    return value


def _window_keys(f: Fields, hub: bool, plus: int) -> int:
    """Keys an SWA query sees, itself included."""
    plain = f.number("sliding_window", 0 if hub else 1, MAX_WINDOW + 1)
    size = f.number("sliding_window_size", 0 if hub and plus else 1, MAX_WINDOW)
    if not hub:
        # transformers takes sliding_window_size + 1 where it is there, `Geometry` sliding_window: they must agree.
        if plain is None:
            return f.required("sliding_window", 1, MAX_WINDOW + 1)
        if size is not None and plain != size + 1:
            raise f.error("sliding_window", str(plain), f"{size + 1}, as sliding_window_size is {size}")
        return plain
    if size is not None:
        # Beside it, sliding_window is in the hub's spelling (the same) or in transformers' (one more).
        if plain is not None and plain not in (size, size + 1):
            raise f.error("sliding_window", str(plain), f"{size} or {size + 1}, as sliding_window_size is {size}")
        return size + plus
    if plain is None:
        raise f.error("sliding_window", "missing", "a number of tokens, as SWA layers need one")
    return f.required("sliding_window", 1 - plus, MAX_WINDOW) + plus


def _value_scale(f: Fields, hub: bool) -> float:
    if not hub and f.get("layer_types") is not None and not f.has("attention_value_scale"):
        raise f.error("attention_value_scale", "missing", "a number above 0, or null")
    scale = f.real("attention_value_scale", 0, 1e6)
    return 1.0 if scale is None else scale


def _experts(f: Fields, any_moe: bool) -> dict[str, Any]:
    norm = f.flag("norm_topk_prob")
    scaling = f.real("routed_scaling_factor", 0, 1e6)
    count = f.required if any_moe else f.number
    found = {
        "expert_size": count("moe_intermediate_size", 1, MAX_SIZE),
        "num_experts": count("n_routed_experts", 1, MAX_SIZE),
        "experts_per_token": count("num_experts_per_tok", 1, MAX_SIZE),
    }
    return {name: value if any_moe else 0 for name, value in found.items()} | {
        "norm_topk_prob": True if norm is None else norm,
        "routed_scaling": 1.0 if scaling is None else scaling,
        "n_group": 1,
        "topk_group": 1,
    }


def _mtp_heads(f: Fields, option: int | None, hub: bool, has_swa: bool) -> int:
    if option is not None:
        if isinstance(option, bool) or not isinstance(option, int) or not 0 <= option <= MAX_MTP:
            raise bad("mtp_heads", shown(option), f"a whole number from 0 to {MAX_MTP}")
        return option
    in_file = f.number("num_nextn_predict_layers", 0, MAX_MTP)
    if not hub:
        return 0
    if in_file is not None:
        return in_file
    return HUB_MTP_HEADS if has_swa else 0
