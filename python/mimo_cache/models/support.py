"""Which models this package computes: families by name, and what would change their formulas."""

from __future__ import annotations

from .errors import shown
from .fields import Fields, agreed

ARCHITECTURES = {"mimo_v2_flash": "MiMoV2FlashForCausalLM", "mimo_v2": "MiMoV2ForCausalLM"}
"""Architecture of each model type."""
DTYPES = ("bfloat16", "float16", "float32")


def names(top: Fields, f: Fields) -> tuple[str, str]:
    """Architecture and model type, of which a file may leave one out."""
    model_type = f.text("model_type") or top.text("model_type")
    architecture: str | None = None
    given = f.get("architectures") or top.get("architectures")
    if given is not None:
        if not isinstance(given, (list, tuple)) or not given or not isinstance(given[0], str):
            raise f.error("architectures", shown(given), "a list of names")
        architecture = given[0]
    known = ", ".join(ARCHITECTURES)
    if model_type is None and architecture is None:
        raise f.error("model_type", "missing", known)
    if model_type is None:
        model_type = next((t for t, a in ARCHITECTURES.items() if a == architecture), None)
    if model_type is not None and model_type not in ARCHITECTURES:
        raise f.error("model_type", shown(model_type), known)
    if model_type is None or architecture not in (None, ARCHITECTURES[model_type]):
        allowed = ARCHITECTURES[model_type] if model_type else ", ".join(ARCHITECTURES.values())
        raise f.error("architectures", shown(architecture), allowed)
    return ARCHITECTURES[model_type], model_type


def refuse(f: Fields) -> None:
    """What would change the formulas in a way that is not computed here."""
    f.only("hidden_act", "silu")
    f.only("attention_bias", False)
    f.only("tie_word_embeddings", False)
    f.only("n_shared_experts", 0)
    f.only("scoring_func", "sigmoid")
    f.only("topk_method", "noaux_tc")
    f.only("n_group", 1)
    f.only("topk_group", 1)
    f.only("attention_projection_layout", "fused_qkv", "split")
    for name in ("kv_lora_rank", "num_kv_shared_layers", "global_head_dim", "num_global_key_value_heads"):
        f.only(name, 0)
    if f.get("hybrid_layer_pattern") is None:
        f.only("hybrid_block_size")
    scaling = f.inner("rope_scaling")
    if scaling is not None:
        scaling.only("rope_type", "default")
        scaling.only("type", "default")
    quantization = f.inner("quantization_config")
    if quantization is not None:
        if quantization.get("quant_method") is None:
            raise quantization.error("quant_method", "missing", '"fp8"')
        quantization.only("quant_method", "fp8")
        quantization.only("fmt", "e4m3", "float8_e4m3fn")
        quantization.only("store_dtype")
        block = quantization.get("weight_block_size")
        if block is not None and block not in ([128, 128], (128, 128)):
            raise quantization.error("weight_block_size", shown(block), "[128, 128], or absent")


def dtype(top: Fields, f: Fields) -> str:
    """What the model computes in; bfloat16 where the file does not say."""
    for fields in (f, top):
        name = agreed(*((n, fields.text(n)) for n in ("dtype", "torch_dtype")))
        if name is not None and name not in DTYPES:
            raise fields.error("dtype", shown(name), ", ".join(DTYPES))
        if name is not None:
            return name
    return "bfloat16"
