"""Small random models of MiMo-V2's shape, as weights and as checkpoints, and engines that serve them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mimo_cache import Geometry, PrefixCache
from mimo_cache.kernels import Kernels, get
from mimo_cache.kernels.contract import Shape
from mimo_cache.models.config import AttentionShape, ModelConfig
from mimo_cache.models.training.export import write
from mimo_cache.models.training.net import Net
from mimo_cache.models.training.settings import Shape as NetShape
from mimo_cache.models.weights import (
    AttentionWeights,
    DenseWeights,
    LayerWeights,
    ModelWeights,
    MoeWeights,
    MtpWeights,
)
from mimo_cache.runner import Engine, Model, Pools

torch.set_num_threads(1)

BACKENDS = ("reference", "torch")
VOCAB = 61


def shape(kv_heads: int, theta: float, sink: bool, **changes: Any) -> AttentionShape:
    """Four query heads of 12 / 8 dims, of which RoPE turns 4."""
    fields: dict[str, Any] = {"heads": 4, "k_dim": 12, "v_dim": 8, "rotary_dim": 4}
    return AttentionShape(kv_heads=kv_heads, rope_theta=theta, sink=sink, **{**fields, **changes})


def config(**changes: Any) -> ModelConfig:
    """A model like V2-Flash in small: full and SWA layers, one dense FFN and then experts, three MTP heads, W 5."""
    kinds = changes.pop("layer_kinds", ("full", "swa", "swa", "full"))
    fields: dict[str, Any] = {
        "architecture": "MiMoV2FlashForCausalLM",
        "model_type": "mimo_v2_flash",
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "num_layers": len(kinds),
        "layer_kinds": kinds,
        "full": shape(1, 1e5, False),
        "swa": shape(2, 1e2, True),
        "window_keys": 6,
        "value_scale": 0.707,
        "moe_layers": (False,) + (True,) * (len(kinds) - 1),
        "dense_size": 48,
        "expert_size": 16,
        "num_experts": 4,
        "experts_per_token": 2,
        "norm_topk_prob": True,
        "routed_scaling": 1.0,
        "n_group": 1,
        "topk_group": 1,
        "norm_eps": 1e-5,
        "mtp_heads": 3,
        "max_positions": 4096,
        "fused_qkv": False,
        "eos_token_ids": (0,),
        "dtype": "float32",
    }
    return ModelConfig(**{**fields, **changes})


def weights(config: ModelConfig, seed: int = 0, dtype: Any = torch.float32) -> ModelWeights:
    """Random weights that keep activations near one. Norm weights differ from one, so that a forgotten one shows."""
    source = torch.Generator().manual_seed(seed)
    hidden = config.hidden_size

    def normal(*size: int, scale: float | None = None) -> Any:
        drawn = torch.randn(*size, generator=source, dtype=torch.float64)
        return (drawn * (size[-1] ** -0.5 if scale is None else scale)).to(dtype)

    def norm() -> Any:
        return 1 + normal(hidden, scale=0.2)

    def attention(s: AttentionShape) -> AttentionWeights:
        # Queries are large enough that attention is far from uniform.
        q, k = normal(s.heads * s.k_dim, hidden, scale=2 * hidden**-0.5), normal(s.kv_heads * s.k_dim, hidden)
        v, o = normal(s.kv_heads * s.v_dim, hidden), normal(hidden, s.heads * s.v_dim)
        return AttentionWeights(q, k, v, o, normal(s.heads, scale=1.0) if s.sink else None)

    def dense() -> DenseWeights:
        return DenseWeights(normal(2 * config.dense_size, hidden), normal(hidden, config.dense_size))

    def experts() -> MoeWeights:
        n, size = config.num_experts, config.expert_size
        router, bias = normal(n, hidden).float(), normal(n, scale=0.3).float()
        return MoeWeights(router, bias, normal(n, 2 * size, hidden), normal(n, hidden, size))

    layers = [
        LayerWeights(norm(), attention(config.shape(kind)), norm(), experts() if moe else dense())
        for kind, moe in zip(config.layer_kinds, config.moe_layers, strict=True)
    ]
    heads = [
        MtpWeights(norm(), norm(), normal(hidden, 2 * hidden), norm(), attention(config.swa), norm(), dense(), norm())
        for _ in range(config.mtp_heads)
    ]
    vocab = config.vocab_size
    return ModelWeights(normal(vocab, hidden, scale=1.0), layers, norm(), normal(vocab, hidden, scale=0.4), heads)


def kernels(backend: str, config: ModelConfig, page: int) -> Kernels:
    """A backend for a model on the CPU."""
    return get(backend)(
        Shape(
            page,
            config.window_keys,
            config.experts_per_token,
            config.norm_topk_prob,
            config.routed_scaling,
            "cpu",
        )
    )


def geometry(config: ModelConfig, page: int) -> Geometry:
    """What the cache knows of a model."""
    kinds, full, swa = config.layer_kinds, config.full, config.swa
    return Geometry(
        name="small",
        layers=list(kinds),
        full=(full.kv_heads, full.k_dim, full.v_dim) if "full" in kinds else None,
        swa=(swa.kv_heads, swa.k_dim, swa.v_dim) if "swa" in kinds else None,
        window_keys=config.window_keys,
        mtp_heads=config.mtp_heads,
        hidden_size=config.hidden_size,
        dtype={"float32": "fp32", "bfloat16": "bf16"}[config.dtype],
        page_size=page,
    )


@dataclass(frozen=True)
class Sizes:
    """Pages of a cache. `full` and `swa` are 0 for a model without such layers."""

    full: int = 400
    swa: int = 400
    scratch: int = 100


def fill_nan(pools: Pools) -> None:
    """Nothing that was not written may be read, so that it is what no result survives."""
    for tensor in (pools.full_k, pools.full_v, pools.swa_k, pools.swa_v, pools.hidden):
        tensor.fill_(float("nan"))


def parts(
    config: ModelConfig, weights: ModelWeights, backend: str, page: int, sizes: Sizes = Sizes(), **options: Any
) -> tuple[Model, PrefixCache]:
    """A model on pools full of NaN, and its cache; `options` are those of `PrefixCache`."""
    full = sizes.full if "full" in config.layer_kinds else 0
    swa, scratch = (sizes.swa, sizes.scratch) if "swa" in config.layer_kinds else (0, 0)
    dtype = weights.embed.dtype
    pools = Pools.make(config, page_size=page, full_pages=full, swa_pages=swa, dtype=dtype, device="cpu")
    fill_nan(pools)
    cache = PrefixCache(geometry(config, page), full_pages=full, swa_pages=swa, scratch_pages=scratch, **options)
    return Model(config, weights, kernels(backend, config, page), pools), cache


def engine(
    config: ModelConfig,
    weights: ModelWeights,
    backend: str = "reference",
    page: int = 4,
    sizes: Sizes = Sizes(),
    *,
    max_running: int = 8,
    chunk: int = 512,
    **options: Any,
) -> Engine:
    """An engine on pools full of NaN."""
    model, cache = parts(config, weights, backend, page, sizes, **options)
    return Engine(model, cache, max_running=max_running, max_step_tokens=chunk)


def checkpoint(path: Path, seed: int = 0, max_positions: int = 4096, **changes: Any) -> Path:
    """A directory with random weights, a tokenizer of bytes, and a config in both spellings; W 16."""
    sizes = {"hidden": 48, "pattern": (0, 1, 1, 0), "dense": 64, "expert": 16, "experts": 4}
    net = Net(NetShape(**{**sizes, **changes}))
    scramble(net, seed)
    write(net, path, max_positions)
    return path


def scramble(net: Any, seed: int) -> None:
    """Random weights everywhere, sinks, biases and norms included, which a fresh network leaves at zero or one."""
    source = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in net.state_dict().items():
            drawn = torch.randn(tensor.shape, generator=source)
            if "norm" in name:
                tensor.copy_(1 + 0.2 * drawn)
            elif tensor.ndim == 1:
                tensor.copy_(drawn * (0.3 if "correction" in name else 1.0))
            else:
                tensor.copy_(drawn * (1.0 if "embed" in name else 1.5 * tensor.shape[-1] ** -0.5))


def tokens(seed: int, n: int, vocab: int = VOCAB) -> list[int]:
    """Random token ids."""
    return [int(t) for t in np.random.default_rng(seed).integers(0, vocab, n)]


def chunks(seed: int, n: int, most: int) -> list[int]:
    """Random chunk sizes that add up to n."""
    source = np.random.default_rng(seed)
    out: list[int] = []
    while sum(out) < n:
        out.append(min(int(source.integers(1, most + 1)), n - sum(out)))
    return out


def close(found: Any, want: Any, within: float = 1e-4) -> bool:
    """Equal shapes, and nowhere further apart than `within`; NaN is far from everything."""
    found, want = np.asarray(found, np.float64), np.asarray(want, np.float64)
    return found.shape == want.shape and bool(np.all(np.abs(found - want) <= within))


def distance(found: Any, want: Any) -> float:
    """Largest difference."""
    return float(np.abs(np.asarray(found, np.float64) - np.asarray(want, np.float64)).max())
