"""Loading: every storage format gives the same weights, nothing is read that is not needed."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import checkpoints
from mimo_cache import ConfigError
from mimo_cache.models import CheckpointError, DenseWeights, ModelConfig, ModelWeights, MoeWeights, load
from mimo_cache.models.checkpoint import Checkpoint
from mimo_cache.models.progress import bar


def walk(node: Any, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """Every tensor of containers, with its path."""
    if isinstance(node, Tensor):
        yield path, node
    elif is_dataclass(node):
        for field in fields(node):
            yield from walk(getattr(node, field.name), f"{path}.{field.name}")
    elif isinstance(node, list):
        for i, item in enumerate(node):
            yield from walk(item, f"{path}[{i}]")
    else:
        assert node is None, path


def assert_same(a: ModelWeights, b: ModelWeights) -> None:
    """Bit for bit, dtypes and places included."""
    left, right = dict(walk(a)), dict(walk(b))
    assert left.keys() == right.keys()
    for path, tensor in left.items():
        assert tensor.dtype == right[path].dtype, path
        assert torch.equal(tensor, right[path]), path


def assert_are(weights: ModelWeights, config: ModelConfig, split: checkpoints.Tensors) -> None:
    """The weights are the split tensors, each in its place."""
    left = dict(split)

    def same(tensor: Tensor | None, *names: str) -> None:
        assert tensor is not None
        assert torch.equal(tensor, torch.cat([left.pop(f"{name}") for name in names])), names

    def attention(of: Any, name: str, sink: bool) -> None:
        for letter in "qkvo":
            same(getattr(of, letter), f"{name}.self_attn.{letter}_proj.weight")
        if sink:
            same(of.sink, f"{name}.self_attn.attention_sink_bias")
        else:
            assert of.sink is None

    def swiglu(gate_up: Tensor, down: Tensor, name: str) -> None:
        same(gate_up, f"{name}.gate_proj.weight", f"{name}.up_proj.weight")
        same(down, f"{name}.down_proj.weight")

    same(weights.embed, "model.embed_tokens.weight")
    same(weights.norm, "model.norm.weight")
    same(weights.lm_head, "lm_head.weight")
    assert len(weights.layers) == config.num_layers
    for i, layer in enumerate(weights.layers):
        name = f"model.layers.{i}"
        same(layer.input_norm, f"{name}.input_layernorm.weight")
        same(layer.post_norm, f"{name}.post_attention_layernorm.weight")
        attention(layer.attention, name, config.layer_kinds[i] == "swa")
        if isinstance(layer.ffn, DenseWeights):
            assert not config.moe_layers[i]
            swiglu(layer.ffn.gate_up, layer.ffn.down, f"{name}.mlp")
            continue
        assert isinstance(layer.ffn, MoeWeights)
        same(layer.ffn.router, f"{name}.mlp.gate.weight")
        same(layer.ffn.bias, f"{name}.mlp.gate.e_score_correction_bias")
        for e in range(config.num_experts):
            swiglu(layer.ffn.gate_up[e], layer.ffn.down[e], f"{name}.mlp.experts.{e}")
    assert len(weights.mtp) == config.mtp_heads
    for k, head in enumerate(weights.mtp):
        name = f"model.mtp.layers.{k}"
        for norm in ("enorm", "hnorm", "eh_proj"):
            same(getattr(head, norm), f"{name}.{norm}.weight")
        same(head.input_norm, f"{name}.input_layernorm.weight")
        same(head.pre_mlp_norm, f"{name}.pre_mlp_layernorm.weight")
        same(head.final_norm, f"{name}.final_layernorm.weight")
        attention(head.attention, name, sink=True)
        swiglu(head.ffn.gate_up, head.ffn.down, f"{name}.mlp")
    assert not left


@pytest.mark.parametrize("model", ["flash", "v2.5", "pro"])
def test_every_format_gives_the_weights_it_was_made_from(tmp_path: Path, model: str) -> None:
    split_config = checkpoints.small(model, attention_projection_layout=None)
    config = checkpoints.small(model)
    split = checkpoints.weights(split_config)
    formats = {
        "split fp32": (split_config, False, 1),
        "split fp8": (split_config, True, 1),
        "own fp32": (config, False, 1),
        "own fp8": (config, True, 1),
        "own fp8 in shards": (config, True, 5),
    }
    base: ModelWeights | None = None
    for name, (said, fp8, shards) in formats.items():
        path = checkpoints.write(tmp_path / name, said, checkpoints.store(said, split, fp8=fp8), shards=shards)
        model_config, loaded = load(path)
        assert model_config.fused_qkv == (said is config and model != "flash")
        if base is None:
            base = loaded
            assert_are(loaded, model_config, split)
        assert_same(loaded, base)


def test_the_formats_of_the_test_differ() -> None:
    # Without this, a loader that read [Q | K | V] and plain blocks could pass.
    for model in ("v2.5", "pro"):
        config = checkpoints.small(model)
        split = checkpoints.weights(config)
        stored = checkpoints.store(config, split, fp8=True)
        for layer, prefix in ((0, ""), (1, "swa_")):
            name = f"model.layers.{layer}.self_attn"
            plain = torch.cat([split[f"{name}.{letter}_proj.weight"] for letter in "qkv"])
            fused, scale = stored[f"{name}.qkv_proj.weight"], stored[f"{name}.qkv_proj.weight_scale_inv"]
            assert fused.shape == plain.shape
            assert len(scale.unique()) > 4
            slab = len(fused) // config["num_key_value_heads"]
            ragged = slab % 128 != 0
            assert ragged == (model == "pro" or prefix == "")
            assert (len(scale) > -(-len(fused) // 128)) == ragged


def test_only_what_is_needed_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = checkpoints.small("pro")
    split = checkpoints.weights(config)
    tensors = checkpoints.store(config, split, fp8=True)
    wanted = {name for name in tensors if not name.startswith("model.mtp.")}
    nan = torch.full((64, 64), torch.nan)
    # What the hub's checkpoints carry besides: towers, buffers, heads that are not asked for.
    extra = {
        "visual.blocks.0.attn.qkv.weight": nan,
        "model.visual.merger.weight": nan.clone(),
        "audio_encoder.layers.0.weight": nan.to(torch.float8_e4m3fn),
        "speech_embeddings.3.weight": nan.clone(),
        "model.layers.0.self_attn.rotary_emb.inv_freq": nan[0].clone(),
        "model.mtp.layers.0.enorm.weight": nan[0].clone(),
        "model.mtp.layers.9.what.weight": nan[0].clone(),
    }
    path = checkpoints.write(tmp_path, config, tensors | extra, shards=3)
    read: list[str] = []
    plain = Checkpoint.read

    def counted(self: Checkpoint, name: str) -> Any:
        read.append(name)
        return plain(self, name)

    monkeypatch.setattr(Checkpoint, "read", counted)
    steps: list[tuple[int, int]] = []
    model_config, loaded = load(path, mtp=False, progress=lambda done, total: steps.append((done, total)))
    assert (model_config.mtp_heads, loaded.mtp) == (0, [])
    assert sorted(read) == sorted(wanted)
    # Progress counts the stored bytes of what is read.
    total = sum(tensors[name].nbytes for name in wanted)
    assert steps == sorted(steps)
    assert steps[-1] == (total, total)
    assert {t for _, t in steps} == {total}
    read.clear()
    with pytest.raises(CheckpointError, match=r"model\.mtp\.layers\.0\.enorm\.weight is F32 \[64\]"):
        load(path)
    assert read == []


def test_towers_may_be_larger_than_the_memory(tmp_path: Path) -> None:
    path = checkpoints.checkpoint(tmp_path, "flash")
    header = json.dumps({"visual.huge": {"dtype": "F32", "shape": [1 << 38], "data_offsets": [0, 1 << 40]}}).encode()
    shard = path / "model-00002.safetensors"
    shard.write_bytes(len(header).to_bytes(8, "little") + header)
    os.truncate(shard, 8 + len(header) + (1 << 40))  # a hole on the disk
    (path / "model.safetensors").rename(path / "model-00001.safetensors")
    names = list(_header(path / "model-00001.safetensors"))
    weight_map = dict.fromkeys(names, "model-00001.safetensors") | {"visual.huge": "model-00002.safetensors"}
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    config, weights = load(path)
    assert len(weights.layers) == config.num_layers


def _header(file: Path) -> dict[str, Any]:
    data = file.read_bytes()
    header: dict[str, Any] = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    header.pop("__metadata__", None)
    return header


def test_fewer_heads_than_the_checkpoint_ships(tmp_path: Path) -> None:
    path = checkpoints.checkpoint(tmp_path, "flash")
    config = checkpoints.small("flash", num_nextn_predict_layers=1)
    (path / "config.json").write_text(json.dumps(config))
    model_config, weights = load(path)
    assert (model_config.mtp_heads, len(weights.mtp)) == (1, 1)


@pytest.mark.parametrize("fp8", [False, True])
@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16"])
def test_dtypes(tmp_path: Path, name: str, fp8: bool) -> None:
    path = checkpoints.checkpoint(tmp_path, "pro", fp8=fp8)
    kind = getattr(torch, name)
    _, weights = load(path, dtype=name)
    for at, tensor in walk(weights):
        fp32 = at.endswith((".router", ".bias"))
        assert tensor.dtype == (torch.float32 if fp32 else kind), at
    _, exact = load(path)  # float32 on the CPU
    for (_, got), (_, want) in zip(walk(weights), walk(exact), strict=True):
        assert torch.equal(got.float(), want)  # the values of the test fit all three
    _, same = load(path, dtype=kind, device=torch.device("cpu"))
    assert_same(same, weights)


def test_arguments(tmp_path: Path) -> None:
    path = checkpoints.checkpoint(tmp_path, "flash")
    wrong: Any
    for wrong in ("int8", "fp8", torch.float64, torch.int64, 5):
        with pytest.raises(ConfigError, match=r"dtype is .* allowed is float32, bfloat16, float16"):
            load(path, dtype=wrong)
    for device in ("tpu9", "cuda:99", "cpu:x"):
        with pytest.raises(ConfigError, match=f'device is "{device}", allowed'):
            load(path, device=device)


def test_the_bar_is_for_terminals(tmp_path: Path) -> None:
    class Screen(io.StringIO):
        def isatty(self) -> bool:
            return True

    assert bar(io.StringIO()) is None
    screen = Screen()
    path = checkpoints.checkpoint(tmp_path, "flash")
    load(path, progress=bar(screen))
    text = screen.getvalue()
    assert text.count("\n") == 1
    assert text.endswith("[##############################] 100 % of 0.01 GB\n")
    lines = text.split("\r")[1:]
    # One line for each percent at most, whatever the number of tensors.
    assert len(lines) == len(set(lines)) <= 101


def test_transformers_loads_the_same_values(tmp_path: Path) -> None:
    from transformers import MiMoV2FlashForCausalLM  # noqa: PLC0415  seconds to import
    from transformers.utils import logging  # noqa: PLC0415

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    config = checkpoints.both_spellings(checkpoints.small("flash"))
    split = checkpoints.weights(config)
    path = checkpoints.write(tmp_path, config, split)
    model = MiMoV2FlashForCausalLM.from_pretrained(path, dtype=torch.float32)
    state = dict(model.state_dict())
    model_config, weights = load(path)
    assert model.config.sliding_window == model_config.window_keys == 17

    def same(tensor: Tensor | None, name: str) -> None:
        assert tensor is not None
        assert torch.equal(tensor, state.pop(name)), name

    same(weights.embed, "model.embed_tokens.weight")
    same(weights.norm, "model.norm.weight")
    same(weights.lm_head, "lm_head.weight")
    for i, layer in enumerate(weights.layers):
        name = f"model.layers.{i}"
        same(layer.input_norm, f"{name}.input_layernorm.weight")
        same(layer.post_norm, f"{name}.post_attention_layernorm.weight")
        for letter in "qkvo":
            same(getattr(layer.attention, letter), f"{name}.self_attn.{letter}_proj.weight")
        if layer.attention.sink is not None:
            same(layer.attention.sink, f"{name}.self_attn.sinks")
        if isinstance(layer.ffn, MoeWeights):
            same(layer.ffn.router, f"{name}.mlp.gate.weight")
            same(layer.ffn.bias, f"{name}.mlp.gate.e_score_correction_bias")
            same(layer.ffn.gate_up, f"{name}.mlp.experts.gate_up_proj")
            same(layer.ffn.down, f"{name}.mlp.experts.down_proj")
        else:
            gate, up = layer.ffn.gate_up.chunk(2)
            same(gate, f"{name}.mlp.gate_proj.weight")
            same(up, f"{name}.mlp.up_proj.weight")
            same(layer.ffn.down, f"{name}.mlp.down_proj.weight")
    assert not state
