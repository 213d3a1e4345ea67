"""`ModelConfig`: the published models in every spelling, and configs that are wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import checkpoints
from mimo_cache import ConfigError, FileError, Geometry
from mimo_cache.models import AttentionShape, ModelConfig

MODELS = ["flash", "v2.5", "pro"]
PRESETS = {"flash": "mimo-v2-flash", "v2.5": "mimo-v2.5", "pro": "mimo-v2.5-pro"}


def agrees(config: ModelConfig, geometry: Geometry) -> None:
    """The model and the cache's geometry say the same."""
    assert list(config.layer_kinds) == geometry.layers
    assert (config.window_keys, config.mtp_heads) == (geometry.window_keys, geometry.mtp_heads)
    for group, shape in ((geometry.full, config.full), (geometry.swa, config.swa)):
        if group is not None:
            assert (shape.kv_heads, shape.k_dim, shape.v_dim) == (group.heads, group.k_dim, group.v_dim)


@pytest.mark.parametrize("model", MODELS)
def test_published_models(model: str) -> None:
    said = checkpoints.published(model)
    config = ModelConfig.from_dict(said)
    pro, flash = model == "pro", model == "flash"
    heads = 128 if pro else 64
    theta = 5e6 if flash else 1e7
    assert config.full == AttentionShape(heads, 8 if pro else 4, 192, 128, 64, theta, sink=False)
    assert config.swa == AttentionShape(heads, 8, 192, 128, 64, 1e4, sink=True)
    assert config.architecture == ("MiMoV2FlashForCausalLM" if flash else "MiMoV2ForCausalLM")
    assert config.model_type == ("mimo_v2_flash" if flash else "mimo_v2")
    layers = 70 if pro else 48
    assert (config.num_layers, config.hidden_size, config.vocab_size) == (layers, 6144 if pro else 4096, 152576)
    assert config.layer_kinds.count("full") == (10 if pro else 9)
    assert config.moe_layers == (False, *[True] * (layers - 1))
    assert (config.window_keys, config.mtp_heads, config.fused_qkv) == (129, 3, not flash)
    assert (config.dense_size, config.expert_size) == (16384, 2048)
    assert (config.num_experts, config.experts_per_token) == (384 if pro else 256, 8)
    assert (config.norm_topk_prob, config.routed_scaling, config.n_group, config.topk_group) == (True, 1.0, 1, 1)
    assert (config.value_scale, config.norm_eps) == (0.612 if pro else 0.707, 1e-5)
    assert (config.max_positions, config.dtype) == (262144 if flash else 1048576, "bfloat16")
    agrees(config, Geometry.preset(PRESETS[model]))
    agrees(config, Geometry.from_config(said))
    assert hash(config) == hash(ModelConfig.from_dict(said))


def test_transformers_spelling_is_the_same_model_without_heads() -> None:
    hub = checkpoints.published("flash")
    said = checkpoints.transformers_spelling(hub)
    config = ModelConfig.from_dict(said)
    assert config == ModelConfig.from_dict(hub, mtp_heads=0)
    assert config.window_keys == 129
    agrees(config, Geometry.from_config(said))
    # The releases before 5.20 wrote 128 and meant it.
    assert ModelConfig.from_dict(said | {"sliding_window": 128}).window_keys == 128
    # A file of theirs never has heads by itself.
    assert ModelConfig.from_dict(said | {"num_nextn_predict_layers": 3}).mtp_heads == 0
    assert ModelConfig.from_dict(said, mtp_heads=1).mtp_heads == 1


@pytest.mark.parametrize("model", MODELS)
def test_both_spellings_are_the_model_of_the_hub(model: str) -> None:
    hub = checkpoints.published(model)
    both = checkpoints.both_spellings(hub)
    assert ModelConfig.from_dict(both) == ModelConfig.from_dict(hub)
    agrees(ModelConfig.from_dict(both), Geometry.from_config(both))


@pytest.mark.parametrize(("plus", "keys"), [(1, 17), (0, 16)])
def test_the_window_of_the_hub(plus: int, keys: int) -> None:
    said = checkpoints.small("flash")
    for changes in ({}, {"sliding_window_size": None}, {"sliding_window": None}, {"sliding_window": 17}):
        config = ModelConfig.from_dict(said | changes, hub_window_plus=plus)
        assert config.window_keys == keys
        agrees(config, Geometry.from_config(said | changes, hub_window_plus=plus))


def test_what_absent_fields_mean() -> None:
    said = checkpoints.small("flash")
    optional = ["hybrid_layer_pattern", "moe_layer_freq", "norm_topk_prob", "attention_value_scale", "n_group"]
    optional += ["topk_group", "routed_scaling_factor", "scoring_func", "topk_method", "hidden_act", "attention_bias"]
    optional += ["num_nextn_predict_layers", "torch_dtype", "architectures", "sliding_window", "sliding_window_size"]
    optional += [name for name in said if name.startswith("swa_")] + ["n_routed_experts", "num_experts_per_tok"]
    bare = {name: value for name, value in said.items() if name not in optional}
    config = ModelConfig.from_dict(bare)
    assert config.layer_kinds == ("full",) * 3
    assert config.moe_layers == (False,) * 3
    assert (config.num_experts, config.expert_size, config.experts_per_token) == (0, 0, 0)
    assert (config.value_scale, config.norm_topk_prob, config.routed_scaling) == (1.0, True, 1.0)
    assert (config.mtp_heads, config.window_keys, config.swa) == (0, 0, config.full)
    assert (config.dtype, config.eos_token_ids) == ("bfloat16", ())
    agrees(config, Geometry.from_config(bare))
    sliding = ModelConfig.from_dict(bare | {"hybrid_layer_pattern": [0, 1, 1], "sliding_window": 9})
    assert sliding.swa == AttentionShape(4, 2, 192, 128, 64, 5e6, sink=True)
    assert (sliding.window_keys, sliding.mtp_heads) == (10, 3)
    del bare["model_type"]
    named = ModelConfig.from_dict(bare | {"architectures": ["MiMoV2ForCausalLM"]})
    assert (named.model_type, named.architecture) == ("mimo_v2", "MiMoV2ForCausalLM")


def test_fields_of_text_config_and_flat_rope_parameters() -> None:
    said = checkpoints.small("v2.5", eos_token_id=[5, 7])
    outer = {name: said.pop(name) for name in ("architectures", "model_type", "torch_dtype")}
    nested = outer | {"text_config": said, "vision_config": {"hidden_size": 7}, "eos_token_id": 3}
    config = ModelConfig.from_dict(nested)
    assert config == ModelConfig.from_dict(outer | said)
    assert config.eos_token_ids == (5, 7)
    flat = {"rope_theta": 1e7, "partial_rotary_factor": 0.334, "rope_type": "default"}
    assert ModelConfig.from_dict(outer | said | {"rope_parameters": flat}) == config
    with pytest.raises(ConfigError, match=r"rope_parameters\.rope_theta is 2e\+06, allowed is 1e\+07, as rope_theta"):
        ModelConfig.from_dict(outer | said | {"rope_parameters": flat | {"rope_theta": 2e6}})


BOTH = checkpoints.both_spellings(checkpoints.small("flash"))
ROPE = BOTH["rope_parameters"]
CONTRADICTIONS: list[tuple[dict[str, Any], str]] = [
    (
        {"layer_types": ["full_attention"] * 3},
        "layer 1 in layer_types is full, allowed is swa, as hybrid_layer_pattern says",
    ),
    (
        {"mlp_layer_types": ["sparse"] * 3},
        "layer 0 in mlp_layer_types is True, allowed is False, as moe_layer_freq says",
    ),
    ({"rms_norm_eps": 1e-6}, "rms_norm_eps is 1e-06, allowed is 1e-05, as layernorm_epsilon says"),
    ({"sliding_window": 18}, "sliding_window is 18, allowed is 16 or 17, as sliding_window_size is 16"),
    ({"rope_theta": 10000}, "rope_parameters.full_attention.rope_theta is 5e+06, allowed is 10000, as rope_theta says"),
    (
        {"swa_rope_theta": 20000},
        "rope_parameters.sliding_attention.rope_theta is 10000, allowed is 20000, as swa_rope_theta says",
    ),
    (
        {"partial_rotary_factor": 0.5},
        "rope_parameters.full_attention.partial_rotary_factor is 0.334, allowed is 0.5, as partial_rotary_factor says",
    ),
    ({"dtype": "bfloat16"}, "torch_dtype is float32, allowed is bfloat16, as dtype says"),
    ({"architectures": ["MiMoV2ForCausalLM"]}, 'architectures is "MiMoV2ForCausalLM", allowed is MiMoV2FlashForC'),
    ({"num_hidden_layers": 2}, "hybrid_layer_pattern is a list of 3, allowed is a list of 2"),
]


@pytest.mark.parametrize(("changes", "message"), CONTRADICTIONS, ids=[str(i) for i in range(len(CONTRADICTIONS))])
def test_two_values_for_one_fact(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as info:
        ModelConfig.from_dict(BOTH | changes)
    assert str(info.value).startswith(f"config: {message}")


THEIRS = checkpoints.transformers_spelling(checkpoints.small("flash"))
REFUSED_THERE: list[tuple[dict[str, Any], str]] = [
    ({"swa_num_key_value_heads": 2}, "swa_num_key_value_heads is 2, allowed is 4 without hybrid_layer_pattern"),
    ({"swa_head_dim": 64}, "swa_head_dim is 64, allowed is 192 without hybrid_layer_pattern"),
    ({"add_full_attention_sink_bias": True}, "add_full_attention_sink_bias is True, allowed is False"),
    ({"add_swa_attention_sink_bias": False}, "add_swa_attention_sink_bias is False, allowed is True"),
    ({"sliding_window_size": 17}, "sliding_window is 17, allowed is 18, as sliding_window_size is 17"),
    ({"sliding_window": None}, "sliding_window is missing"),
    ({"mlp_layer_types": None}, "mlp_layer_types is missing"),
    ({"rope_parameters": None}, "rope_theta is missing"),
    ({"rope_parameters": {"full_attention": ROPE["full_attention"]}}, "swa_rope_theta is missing"),
    (
        {"rope_parameters": ROPE | {"sliding_attention": {"rope_type": "yarn"}}},
        'rope_parameters.sliding_attention.rope_type is "yarn", allowed is "default"',
    ),
    ({"num_key_value_heads": 4}, "query heads of the SWA layers is 4, allowed is a multiple of the 8 KV heads"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED_THERE, ids=[str(i) for i in range(len(REFUSED_THERE))])
def test_what_transformers_spelling_cannot_say(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as info:
        ModelConfig.from_dict(THEIRS | changes)
    assert str(info.value).startswith(f"config: {message}"), info.value
    without = {name: value for name, value in THEIRS.items() if name != "attention_value_scale"}
    with pytest.raises(ConfigError, match="attention_value_scale is missing"):
        ModelConfig.from_dict(without)


NOT_COMPUTED: list[tuple[str, Any, str]] = [
    ("model_type", "llama", "mimo_v2_flash, mimo_v2"),
    ("model_type", "", "mimo_v2_flash, mimo_v2"),
    ("architectures", ["LlamaForCausalLM"], "MiMoV2FlashForCausalLM"),
    ("hidden_act", "gelu", '"silu"'),
    ("attention_bias", True, "false"),
    ("tie_word_embeddings", True, "false"),
    ("n_shared_experts", 1, "0"),
    ("scoring_func", "softmax", '"sigmoid"'),
    ("topk_method", "greedy", '"noaux_tc"'),
    ("n_group", 8, "1"),
    ("topk_group", 4, "1"),
    ("attention_projection_layout", "fused_kv", '"fused_qkv", "split", or absent'),
    ("kv_lora_rank", 512, "0"),
    ("torch_dtype", "int8", "bfloat16, float16, float32"),
]


@pytest.mark.parametrize(("field", "value", "allowed"), NOT_COMPUTED, ids=[f"{f}={v}" for f, v, _ in NOT_COMPUTED])
def test_what_is_not_computed_is_refused(field: str, value: Any, allowed: str) -> None:
    with pytest.raises(ConfigError) as info:
        ModelConfig.from_dict(checkpoints.small("flash") | {field: value})
    shown = json.dumps(value[0] if isinstance(value, list) else value)
    assert str(info.value).startswith(f"config: {field.removeprefix('torch_')} is {shown}, allowed is {allowed}")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("quantization_config", {"quant_method": "awq"}, 'quantization_config.quant_method is "awq", allowed is "fp8"'),
        ("quantization_config", {}, "quantization_config.quant_method is missing"),
        (
            "quantization_config",
            {"quant_method": "fp8", "weight_block_size": [64, 64]},
            "quantization_config.weight_block_size is a list of 2, allowed is [128, 128]",
        ),
        (
            "quantization_config",
            {"quant_method": "fp8", "store_dtype": "mxfp4"},
            'quantization_config.store_dtype is "mxfp4", allowed is absent',
        ),
        ("rope_scaling", {"rope_type": "yarn", "factor": 4}, 'rope_scaling.rope_type is "yarn", allowed is "default"'),
        ("rope_scaling", {"type": "linear"}, 'rope_scaling.type is "linear", allowed is "default"'),
    ],
)
def test_nested_fields_that_are_not_computed(name: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError) as info:
        ModelConfig.from_dict(checkpoints.small("flash") | {name: value})
    assert str(info.value).startswith(f"config: {message}")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hybrid_layer_pattern": None, "hybrid_block_size": 6}, "hybrid_block_size is 6, allowed is absent"),
        ({"head_dim": 191}, "rotated dimensions of the full layers is 63, allowed is an even number from 2 to 191"),
        ({"partial_rotary_factor": 0.001}, "rotated dimensions of the full layers is 0"),
        ({"num_attention_heads": 3}, "query heads of the full layers is 3, allowed is a multiple of the 2 KV heads"),
        ({"num_experts_per_tok": 4}, "num_experts_per_tok is 4, allowed is at most 3"),
        ({"n_routed_experts": 1 << 20}, "number of experts over all layers is 2097152, allowed is at most 262144"),
        ({"n_routed_experts": None}, "n_routed_experts is missing"),
        ({"eos_token_id": 96}, "eos_token_id is 96, allowed is at most 256 token ids from 0 to 95"),
        ({"eos_token_id": [1, True]}, "eos_token_id is a list of 2"),
        ({"hybrid_layer_pattern": [0, 0, 0]}, "mtp_heads is 2, allowed is 0 for a model without SWA layers"),
    ],
)
def test_numbers_that_do_not_fit(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as info:
        ModelConfig.from_dict(checkpoints.small("flash") | changes)
    assert str(info.value).startswith(f"config: {message}"), info.value


def test_fused_slabs_must_divide_the_swa_heads() -> None:
    said = checkpoints.small("v2.5", swa_num_key_value_heads=2)
    with pytest.raises(ConfigError, match="SWA heads / KV heads is 8 / 2, allowed is multiples of the 4 KV heads"):
        ModelConfig.from_dict(said)
    assert ModelConfig.from_dict(said | {"attention_projection_layout": "split"}).swa.kv_heads == 2


WRONG: list[Any] = [-1, -(2**63), 1e300, "8", True, [8], {"a": 1}, 2**64, float("nan"), float("inf"), 10**5000]
NUMBERS = [
    "num_hidden_layers",
    "hidden_size",
    "vocab_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "v_head_dim",
    "swa_num_attention_heads",
    "swa_num_key_value_heads",
    "swa_head_dim",
    "swa_v_head_dim",
    "sliding_window",
    "sliding_window_size",
    "intermediate_size",
    "moe_intermediate_size",
    "n_routed_experts",
    "num_experts_per_tok",
    "max_position_embeddings",
    "num_nextn_predict_layers",
    "rope_theta",
    "swa_rope_theta",
    "partial_rotary_factor",
    "layernorm_epsilon",
    "attention_value_scale",
    "routed_scaling_factor",
]


@pytest.mark.parametrize("name", NUMBERS)
def test_every_number_refuses_every_wrong_value(name: str) -> None:
    for wrong in WRONG:
        with pytest.raises(ConfigError, match=f"{name} is ") as info:
            ModelConfig.from_dict(checkpoints.small("flash") | {name: wrong})
        assert len(str(info.value)) < 300
    required = not name.startswith(("swa_", "sliding_window", "num_nextn")) and name not in (
        "attention_value_scale",
        "routed_scaling_factor",
    )
    if required:
        with pytest.raises(ConfigError, match=f"{name} is missing"):
            ModelConfig.from_dict(checkpoints.small("flash") | {name: None})


def test_arguments() -> None:
    said = checkpoints.small("flash")
    wrong: Any
    for plus in (2, -1, True, "1"):
        with pytest.raises(ConfigError, match="hub_window_plus"):
            ModelConfig.from_dict(said, hub_window_plus=plus)  # type: ignore[arg-type]
    for heads in (9, -1, True, "1"):
        with pytest.raises(ConfigError, match="mtp_heads"):
            ModelConfig.from_dict(said, mtp_heads=heads)  # type: ignore[arg-type]
    for wrong in (None, [], "config.json", 5):
        with pytest.raises(ConfigError, match="allowed is a mapping"):
            ModelConfig.from_dict(wrong)


def test_files(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(checkpoints.small("flash", eos_token_id=3)))
    config = ModelConfig.from_path(tmp_path)
    assert (
        config
        == ModelConfig.from_path(str(file))
        == ModelConfig.from_dict(checkpoints.small("flash") | {"eos_token_id": 3})
    )
    generation = tmp_path / "generation_config.json"
    generation.write_text('{"eos_token_id": [7, 3, 9]}')
    assert ModelConfig.from_path(tmp_path).eos_token_ids == (3, 7, 9)
    assert ModelConfig.from_path(file).eos_token_ids == (3,)
    generation.write_text('{"eos_token_id": "end"}')
    with pytest.raises(ConfigError, match='eos_token_id is "end"'):
        ModelConfig.from_path(tmp_path)
    generation.unlink()
    for path in (tmp_path / "nowhere", tmp_path / "a\0b", "/dev/null/config.json"):
        with pytest.raises(FileError):
            ModelConfig.from_path(path)
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(FileError, match="not a regular file"):
        ModelConfig.from_path(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'"x"',
        b'{"head_dim": NaN}',
        b'{"head_dim": -Infinity}',
        b"{} {}",
        b"\xff\xfe{}",
        b"\xef\xbb\xbf{}",
        b"[" * 200_000,
        b'{"a":' * 200_000,
        b'{"vocab_size": ' + b"9" * 10_000 + b"}",
        b" " * (5 << 20),
        b"{}",
    ],
    ids=lambda text: str(text[:12]),
)
def test_texts_that_are_no_config(tmp_path: Path, text: bytes) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(text)
    with pytest.raises(ConfigError, match="allowed is") as info:
        ModelConfig.from_path(file)
    assert len(str(info.value)) < 300


LEAF = (
    st.none()
    | st.booleans()
    | st.integers(-2, 300)
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.sampled_from(["mimo_v2", "full_attention", "sparse", "bfloat16", "split", "", "x"])
)
JSON = LEAF | st.lists(LEAF, max_size=4) | st.dictionaries(st.sampled_from(sorted(ROPE | {"rope_type": 0})), LEAF)


@settings(deadline=None, max_examples=300, suppress_health_check=[HealthCheck.too_slow])
@given(
    base=st.sampled_from([BOTH, THEIRS, *(checkpoints.small(model) for model in MODELS)]),
    changes=st.dictionaries(st.sampled_from(sorted(BOTH)), JSON, max_size=3),
)
def test_any_config_is_read_or_refused(base: dict[str, Any], changes: dict[str, Any]) -> None:
    said = base | changes
    try:
        config = ModelConfig.from_dict(said)
    except ConfigError as error:
        message = str(error)
    else:
        # What the model takes, the cache takes as the same model.
        agrees(config, Geometry.from_config(said))
        return
    assert "allowed is" in message
    assert len(message) < 400


def test_no_torch_until_weights_are_loaded(tmp_path: Path) -> None:
    path = checkpoints.checkpoint(tmp_path, "flash")
    script = """
import sys
import mimo_cache, mimo_cache.models, mimo_cache.models.checkpoint, mimo_cache.models.progress
config = mimo_cache.models.ModelConfig.from_path(sys.argv[1])
mimo_cache.models.checkpoint.Checkpoint(sys.argv[1]).check(config)
assert not {"torch", "safetensors", "transformers"} & set(sys.modules)
sys.modules["torch"] = None
try:
    mimo_cache.models.load(sys.argv[1])
except mimo_cache.MimoCacheError as error:
    assert isinstance(error, ImportError)
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("running a model needs torch, which cannot be imported here")
    assert done.stdout.endswith("pip install 'mimo-cache[runner]'\n")
    assert len(done.stdout.splitlines()) == 1
