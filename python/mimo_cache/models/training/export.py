"""A trained network as a hub-style directory, and back.

`config.json` has the hub's spelling and that of transformers side by side, so that either kind of reader finds its own;
tensors carry the hub's names, MTP heads included. The tokenizer needs no training: a byte is its own id.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from .net import Net
from .settings import EOS, Shape

WEIGHTS = "model.safetensors"
SPECIALS = 64
"""Ids from 256 on. The first ends a document; the model was never shown the others."""


def write(net: Net, directory: Path, max_positions: int) -> None:
    """Writes config.json, generation_config.json, model.safetensors (fp32), tokenizer.json and tokenizer_config.json.

    `max_positions`: the longest context that the config promises, in tokens."""
    directory.mkdir(parents=True, exist_ok=True)
    files = {
        "config.json": config(net.shape, max_positions),
        "generation_config.json": {"bos_token_id": EOS, "eos_token_id": EOS, "pad_token_id": EOS, "do_sample": False},
        "tokenizer.json": tokenizer(),
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": special(EOS),
            "eos_token": special(EOS),
            "pad_token": special(EOS),
            "model_max_length": max_positions,
            "clean_up_tokenization_spaces": False,
        },
    }
    for name, value in files.items():
        text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
        (directory / name).write_text(text, encoding="utf-8")
    save_file(dict(hub_tensors(net)), directory / WEIGHTS, metadata={"format": "pt"})
    (directory / WEIGHTS).chmod(0o644)  # as the other files, where safetensors keeps it private


def read(directory: Path, shape: Shape | None = None) -> Net:
    """The network of a directory that `write` made. Raises torch's `RuntimeError` that names every tensor that is
    missing, unexpected or of another shape."""
    tensors = load_file(directory / WEIGHTS)
    net = Net(shape or Shape())
    state = {}
    for name in net.state_dict():
        if name.endswith((".mlp.gate_up", ".mlp.down")):
            kinds = ("gate_proj", "up_proj") if name.endswith("gate_up") else ("down_proj",)
            names = [[_expert(name, e, kind) for kind in kinds] for e in range(net.shape.experts)]
            if all(n in tensors for row in names for n in row):
                state[name] = torch.stack([torch.cat([tensors.pop(n) for n in row]) for row in names])
        elif name in tensors:
            state[name] = tensors.pop(name)
    net.load_state_dict(state | tensors)
    return net


def hub_tensors(net: Net) -> Iterator[tuple[str, Tensor]]:
    """(hub name, tensor) of every weight. A stacked expert weight becomes one tensor per expert and projection."""
    for name, tensor in net.state_dict().items():
        if name.endswith(".mlp.gate_up"):
            for e, expert in enumerate(tensor):
                gate, up = expert.chunk(2)
                yield _expert(name, e, "gate_proj"), gate.contiguous()
                yield _expert(name, e, "up_proj"), up.contiguous()
        elif name.endswith(".mlp.down"):
            for e, expert in enumerate(tensor):
                yield _expert(name, e, "down_proj"), expert.contiguous()
        else:
            yield name, tensor.contiguous()


def _expert(stacked: str, index: int, projection: str) -> str:
    return f"{stacked.rpartition('.')[0]}.experts.{index}.{projection}.weight"


def config(shape: Shape, max_positions: int) -> dict[str, Any]:
    """Both spellings. The hub's window leaves out the query's own key; transformers adds 1 to `sliding_window_size`."""
    count = len(shape.pattern)
    rope = {"rope_type": "default", "partial_rotary_factor": shape.rotary_factor}
    common = {
        "architectures": ["MiMoV2FlashForCausalLM"],
        "model_type": "mimo_v2_flash",
        "dtype": "float32",
        "vocab_size": shape.vocab,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.dense,
        "moe_intermediate_size": shape.expert,
        "num_hidden_layers": count,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.full_kv_heads,
        "head_dim": shape.k_dim,
        "v_head_dim": shape.v_dim,
        "attention_value_scale": shape.value_scale,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "hidden_act": "silu",
        "n_routed_experts": shape.experts,
        "num_experts_per_tok": shape.experts_per_token,
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": True,
        "routed_scaling_factor": None,
        "max_position_embeddings": max_positions,
        "tie_word_embeddings": False,
        "use_cache": True,
        "bos_token_id": EOS,
        "eos_token_id": EOS,
        "pad_token_id": EOS,
    }
    hub = {
        "hybrid_layer_pattern": list(shape.pattern),
        "moe_layer_freq": [0] + [1] * (count - 1),
        "sliding_window": shape.window_keys - 1,
        "sliding_window_size": shape.window_keys - 1,
        "swa_num_attention_heads": shape.heads,
        "swa_num_key_value_heads": shape.swa_kv_heads,
        "swa_head_dim": shape.k_dim,
        "swa_v_head_dim": shape.v_dim,
        "swa_rope_theta": shape.swa_theta,
        "rope_theta": shape.full_theta,
        "partial_rotary_factor": shape.rotary_factor,
        "add_swa_attention_sink_bias": True,
        "add_full_attention_sink_bias": False,
        "n_shared_experts": None,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "layernorm_epsilon": shape.eps,
        "num_nextn_predict_layers": shape.mtp_heads,
    }
    transformers = {
        "layer_types": ["sliding_attention" if swa else "full_attention" for swa in shape.pattern],
        "mlp_layer_types": ["dense"] + ["sparse"] * (count - 1),
        "rope_parameters": {
            "full_attention": rope | {"rope_theta": shape.full_theta},
            "sliding_attention": rope | {"rope_theta": shape.swa_theta},
        },
        "rms_norm_eps": shape.eps,
    }
    return common | hub | transformers


def special(token: int) -> str:
    """Text of a special id."""
    return "<|endoftext|>" if token == EOS else f"<|reserved_{token}|>"


def tokenizer() -> dict[str, Any]:
    """A `tokenizers` file without merges: every byte is a token whose id is the byte."""
    specials = [
        {
            "id": token,
            "content": special(token),
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for token in range(EOS, EOS + SPECIALS)
    ]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": specials,
        "normalizer": None,
        "pre_tokenizer": level,
        "post_processor": None,
        "decoder": level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {char: byte for byte, char in enumerate(byte_chars())},
            "merges": [],
        },
    }


def byte_chars() -> list[str]:
    """The printable character that stands for each byte in a byte-level vocabulary: Latin-1's own where it prints and
    is no blank, else the next character from U+0100 on."""
    own = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in own else next(others)) for byte in range(256)]
