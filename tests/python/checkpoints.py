"""Writes checkpoints of MiMo-V2 as the hub has them, from one set of float32 weights.

A second implementation of every storage format, which shares nothing with `mimo_cache.models`: tests hold the loader
against it. `published` has the three public configs, `small` models of the same geometry with ragged fp8 blocks;
`weights` makes split float32 tensors under the hub's names, `store` turns them into what a checkpoint holds, `write`
writes them.

Values have four significant bits and few exponents, so that fp8 with any of the factors drawn here, and bf16, hold
them exactly.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

Config = dict[str, Any]
Tensors = dict[str, Tensor]
FLASH_FULL = (0, 5, 11, 17, 23, 29, 35, 41, 47)
PRO_FULL = (0, 7, 15, 23, 31, 39, 47, 55, 62, 69)
BLOCK = 128
torch.set_num_threads(1)  # the tensors are small, and threads of several processes would wait for each other


def published(model: str) -> Config:
    """The public config of "flash", "v2.5" or "pro", in the hub's spelling."""
    layers, full_at = (70, PRO_FULL) if model == "pro" else (48, FLASH_FULL)
    config: Config = {
        "architectures": ["MiMoV2FlashForCausalLM" if model == "flash" else "MiMoV2ForCausalLM"],
        "model_type": "mimo_v2_flash" if model == "flash" else "mimo_v2",
        "torch_dtype": "bfloat16",
        "vocab_size": 152576,
        "hidden_size": 6144 if model == "pro" else 4096,
        "num_hidden_layers": layers,
        "hybrid_layer_pattern": [0 if i in full_at else 1 for i in range(layers)],
        "num_attention_heads": 128 if model == "pro" else 64,
        "swa_num_attention_heads": 128 if model == "pro" else 64,
        "num_key_value_heads": 8 if model == "pro" else 4,
        "swa_num_key_value_heads": 8,
        "head_dim": 192,
        "swa_head_dim": 192,
        "v_head_dim": 128,
        "swa_v_head_dim": 128,
        "partial_rotary_factor": 0.334,
        "rope_theta": 5000000 if model == "flash" else 10000000,
        "swa_rope_theta": 10000,
        "sliding_window": 128,
        "sliding_window_size": 128,
        "attention_chunk_size": 128,
        "add_swa_attention_sink_bias": True,
        "add_full_attention_sink_bias": False,
        "attention_value_scale": 0.612 if model == "pro" else 0.707,
        "moe_layer_freq": [0] + [1] * (layers - 1),
        "intermediate_size": 16384,
        "moe_intermediate_size": 2048,
        "n_routed_experts": 384 if model == "pro" else 256,
        "num_experts_per_tok": 8,
        "n_shared_experts": None,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "norm_topk_prob": True,
        "n_group": 1,
        "topk_group": 1,
        "routed_scaling_factor": None,
        "layernorm_epsilon": 1e-05,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "attention_bias": False,
        "max_position_embeddings": 262144 if model == "flash" else 1048576,
        "quantization_config": {
            "activation_scheme": "dynamic",
            "fmt": "e4m3",
            "quant_method": "fp8",
            "weight_block_size": [128, 128],
        },
    }
    if model != "flash":
        config["attention_projection_layout"] = "fused_qkv"
    return config


def small(model: str, **changes: Any) -> Config:
    """A model of the published geometry with few heads and ragged blocks; float32, without fp8."""
    heads, kv_heads, swa_kv_heads = {"flash": (4, 2, 4), "v2.5": (8, 4, 8), "pro": (4, 2, 2)}[model]
    config = published(model) | {
        "torch_dtype": "float32",
        "vocab_size": 96,
        "hidden_size": 200,
        "num_hidden_layers": 3,
        "hybrid_layer_pattern": [0, 1, 0],
        "moe_layer_freq": [0, 1, 1],
        "num_attention_heads": heads,
        "swa_num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "swa_num_key_value_heads": swa_kv_heads,
        "intermediate_size": 136,
        "moe_intermediate_size": 72,
        "n_routed_experts": 3,
        "num_experts_per_tok": 2,
        "sliding_window": 16,
        "sliding_window_size": 16,
        "max_position_embeddings": 4096,
        "num_nextn_predict_layers": 2,
    }
    del config["quantization_config"]
    return config | changes


def transformers_spelling(config: Config) -> Config:
    """The same model as transformers (5.20 and later) spells it, without a field of the hub's own spelling."""
    kinds = [("full_attention", "sliding_attention")[p] for p in config["hybrid_layer_pattern"]]
    out = {
        name: value
        for name, value in config.items()
        if not name.startswith(("swa_", "add_"))
        and name
        not in (
            "hybrid_layer_pattern",
            "moe_layer_freq",
            "sliding_window_size",
            "layernorm_epsilon",
            "rope_theta",
            "partial_rotary_factor",
            "num_nextn_predict_layers",
        )
    }
    rope = {"rope_type": "default", "partial_rotary_factor": config["partial_rotary_factor"]}
    return out | {
        "layer_types": kinds,
        "mlp_layer_types": [("dense", "sparse")[m] for m in config["moe_layer_freq"]],
        "rms_norm_eps": config["layernorm_epsilon"],
        "sliding_window": config["sliding_window"] + 1,
        "rope_parameters": {
            "full_attention": rope | {"rope_theta": config["rope_theta"]},
            "sliding_attention": rope | {"rope_theta": config["swa_rope_theta"]},
        },
    }


def both_spellings(config: Config) -> Config:
    """One file that the hub's code and transformers read as the same model."""
    return config | transformers_spelling(config)


def weights(config: Config, seed: int = 0) -> Tensors:
    """Split float32 tensors under the hub's names. Router and bias have all their bits."""
    rng = torch.Generator().manual_seed(seed)
    hidden, vocab = config["hidden_size"], config["vocab_size"]
    out: Tensors = {"model.embed_tokens.weight": exact(rng, vocab, hidden)}

    def attention(name: str, prefix: str, sink: bool) -> None:
        heads, k, v = config["num_attention_heads"], config["head_dim"], config["v_head_dim"]
        kv = config[f"{prefix}num_key_value_heads"]
        out[f"{name}.self_attn.q_proj.weight"] = exact(rng, heads * k, hidden)
        out[f"{name}.self_attn.k_proj.weight"] = exact(rng, kv * k, hidden)
        out[f"{name}.self_attn.v_proj.weight"] = exact(rng, kv * v, hidden)
        out[f"{name}.self_attn.o_proj.weight"] = exact(rng, hidden, heads * v)
        if sink:
            out[f"{name}.self_attn.attention_sink_bias"] = exact(rng, heads)

    def swiglu(name: str, size: int) -> None:
        for part in ("gate", "up"):
            out[f"{name}.{part}_proj.weight"] = exact(rng, size, hidden)
        out[f"{name}.down_proj.weight"] = exact(rng, hidden, size)

    for i, (swa, moe) in enumerate(zip(config["hybrid_layer_pattern"], config["moe_layer_freq"], strict=True)):
        name = f"model.layers.{i}"
        for norm in ("input", "post_attention"):
            out[f"{name}.{norm}_layernorm.weight"] = exact(rng, hidden)
        attention(name, "swa_" if swa else "", config[f"add_{'swa' if swa else 'full'}_attention_sink_bias"])
        if not moe:
            swiglu(f"{name}.mlp", config["intermediate_size"])
            continue
        count = config["n_routed_experts"]
        out[f"{name}.mlp.gate.weight"] = torch.randn(count, hidden, generator=rng)
        out[f"{name}.mlp.gate.e_score_correction_bias"] = torch.randn(count, generator=rng)
        for e in range(count):
            swiglu(f"{name}.mlp.experts.{e}", config["moe_intermediate_size"])
    out["model.norm.weight"] = exact(rng, hidden)
    out["lm_head.weight"] = exact(rng, vocab, hidden)
    for k in range(config["num_nextn_predict_layers"]):
        name = f"model.mtp.layers.{k}"
        for norm in ("enorm", "hnorm", "input_layernorm", "pre_mlp_layernorm", "final_layernorm"):
            out[f"{name}.{norm}.weight"] = exact(rng, hidden)
        out[f"{name}.eh_proj.weight"] = exact(rng, hidden, 2 * hidden)
        attention(name, "swa_", config["add_swa_attention_sink_bias"])
        swiglu(f"{name}.mlp", config["intermediate_size"])
    return out


def exact(rng: torch.Generator, *shape: int) -> Tensor:
    """Values ±1.000b to ±1.111b times 2^-8 to 2^-3."""
    mantissa = torch.randint(8, 16, shape, generator=rng) / 8
    sign = torch.randint(0, 2, shape, generator=rng) * 2 - 1
    return sign * mantissa * torch.exp2(torch.randint(-8, -2, shape, generator=rng).float())


def store(config: Config, split: Tensors, *, fp8: bool, seed: int = 1) -> Tensors:
    """What a checkpoint with this config holds for these weights: fused where the config says so, fp8 on demand.

    In fp8 the other tensors are bf16, router and bias float32, as on the hub.
    """
    rng = torch.Generator().manual_seed(seed)
    fused = config.get("attention_projection_layout") == "fused_qkv"
    slabs = config["num_key_value_heads"]
    out: Tensors = {}
    for name, tensor in split.items():
        if fused and name.endswith(("k_proj.weight", "v_proj.weight")):
            continue
        target, stored, parts = name, tensor, 1
        if fused and name.endswith("q_proj.weight"):
            target, parts = name.replace("q_proj", "qkv_proj"), slabs
            letters = [split[name.replace("q_proj", f"{letter}_proj")] for letter in "qkv"]
            stored = torch.cat([part.chunk(slabs)[r] for r in range(slabs) for part in letters])
        if not fp8:
            out[target] = stored.clone()
        elif name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight")) or (
            ".mlp." in name and ".mlp.gate." not in name
        ):
            out[target], out[f"{target}_scale_inv"] = quantise(stored, parts, rng)
        else:
            out[target] = stored.clone() if ".mlp.gate." in name else stored.bfloat16()
    return out


def quantise(matrix: Tensor, slabs: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """fp8 and factors, a power of two from 2^-10 to 2^-2 for each block; no bit is lost."""
    rows, columns = matrix.shape
    height = rows // slabs
    blocks = -(-height // BLOCK)
    exponents = torch.randint(-10, -1, (slabs * blocks, -(-columns // BLOCK)), generator=rng)
    scale = torch.exp2(exponents.float())
    row_block = [r // height * blocks + r % height // BLOCK for r in range(rows)]
    column_block = [c // BLOCK for c in range(columns)]
    factors = scale[row_block][:, column_block]
    out = (matrix / factors).to(torch.float8_e4m3fn)
    assert torch.equal(out.float() * factors, matrix), "the values were chosen to fit"
    return out, scale


def write(path: Path, config: Config, tensors: Tensors, *, shards: int = 1) -> Path:
    """A checkpoint directory; with several shards, neighbours in the table lie in different ones."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config, indent=1))
    if shards == 1:
        save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
        return path
    weight_map = {name: f"model-{i % shards:05}-of-{shards:05}.safetensors" for i, name in enumerate(tensors)}
    for shard in sorted(set(weight_map.values())):
        mine = {name: tensor for name, tensor in tensors.items() if weight_map[name] == shard}
        save_file(mine, path / shard, metadata={"format": "pt"})
    total = sum(tensor.nbytes for tensor in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    return path


def checkpoint(path: Path, model: str, *, fp8: bool = False, shards: int = 1, seed: int = 0, **changes: Any) -> Path:
    """A small checkpoint in one call."""
    config = small(model, **changes)
    return write(path, config, store(config, weights(config, seed), fp8=fp8), shards=shards)
