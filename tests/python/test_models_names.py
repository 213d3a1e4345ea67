"""The table of tensors: numbers of the published models, and every name of a small one."""

from __future__ import annotations

import pytest

import checkpoints
from mimo_cache.models import ModelConfig
from mimo_cache.models.names import ignored, parameters, tensors


def shapes(model: str) -> dict[str, tuple[tuple[int, ...], tuple[int, int]]]:
    """Shape and shape of the fp8 factors of each matrix of a published model."""
    table = tensors(ModelConfig.from_dict(checkpoints.published(model)))
    return {spec.name: (spec.shape, spec.scale_shape) for spec in table if spec.storage != "plain"}


def test_parameters_of_the_published_models() -> None:
    counts = {m: parameters(ModelConfig.from_dict(checkpoints.published(m))) for m in ("flash", "v2.5", "pro")}
    for model, trunk, mtp in (("flash", 308.8, 0.99), ("v2.5", 308.8, 0.99), ("pro", 1021, 1.9)):
        got = counts[model]
        assert round(got[0] / 1e9, 0 if model == "pro" else 1) == trunk
        assert round(got[1] / 1e9, 1 if model == "pro" else 2) == mtp
    config = ModelConfig.from_dict(checkpoints.published("pro"), mtp_heads=0)
    assert parameters(config) == (counts["pro"][0], 0)


def test_shapes_of_the_published_models() -> None:
    pro, v25, flash = shapes("pro"), shapes("v2.5"), shapes("flash")
    attention = "model.layers.{}.self_attn.{}_proj.weight"
    # Layer 0 is full, layer 1 SWA.
    for layer in (0, 1):
        assert pro[attention.format(layer, "qkv")] == ((27136, 6144), (216, 48))
        assert pro[attention.format(layer, "o")][0] == (6144, 16384)
    assert v25[attention.format(0, "qkv")] == ((13568, 4096), (108, 32))
    assert v25[attention.format(1, "qkv")] == ((14848, 4096), (116, 32))
    assert v25["model.mtp.layers.2.self_attn.qkv_proj.weight"] == ((14848, 4096), (116, 32))
    assert flash[attention.format(0, "q")] == ((12288, 4096), (96, 32))
    assert flash[attention.format(0, "k")] == ((768, 4096), (6, 32))
    assert flash[attention.format(0, "v")] == ((512, 4096), (4, 32))
    assert flash[attention.format(1, "k")] == ((1536, 4096), (12, 32))
    assert pro["model.layers.69.mlp.experts.383.down_proj.weight"] == ((6144, 2048), (48, 16))
    assert pro["model.layers.0.mlp.gate_proj.weight"] == ((16384, 6144), (128, 48))


@pytest.mark.parametrize("fp8", [False, True])
@pytest.mark.parametrize("model", ["flash", "v2.5", "pro"])
def test_the_table_is_what_a_checkpoint_holds(model: str, fp8: bool) -> None:
    said = checkpoints.small(model)
    stored = checkpoints.store(said, checkpoints.weights(said), fp8=fp8)
    table: dict[str, tuple[int, ...]] = {}
    for spec in tensors(ModelConfig.from_dict(said)):
        assert spec.name not in table
        table[spec.name] = spec.shape
        if fp8 and spec.storage != "plain" and "o_proj" not in spec.name:
            table[spec.scale_name] = spec.scale_shape
    assert table == {name: tuple(tensor.shape) for name, tensor in stored.items()}


def test_sinks_and_experts_follow_the_config() -> None:
    said = checkpoints.small("flash", add_full_attention_sink_bias=True, add_swa_attention_sink_bias=False)
    names = {spec.name for spec in tensors(ModelConfig.from_dict(said))}
    assert {name for name in names if "sink" in name} == {
        f"model.layers.{i}.self_attn.attention_sink_bias" for i in (0, 2)
    }
    dense = ModelConfig.from_dict(checkpoints.small("flash", moe_layer_freq=[0, 0, 0]))
    assert not any("experts" in spec.name or ".gate." in spec.name for spec in tensors(dense))


def test_what_is_ignored() -> None:
    config = ModelConfig.from_dict(checkpoints.small("flash"))
    without = ModelConfig.from_dict(checkpoints.small("flash"), mtp_heads=0)
    for name in ("visual.a", "model.visual.a", "audio_encoder.b.weight", "speech_embeddings.1.weight"):
        assert ignored(name, config)
    assert ignored("model.layers.0.self_attn.rotary_emb.inv_freq", config)
    assert ignored("model.mtp.layers.2.enorm.weight", config)
    for name in ("model.mtp.layers.1.enorm.weight", "model.mtp.norm.weight", "model.mtp.layers.x.enorm.weight"):
        assert not ignored(name, config)
        assert ignored(name, without)
    for name in ("model.layers.3.input_layernorm.weight", "visual", "lm_head.bias", "model.audio", "", "avisual.a"):
        assert not ignored(name, config)
